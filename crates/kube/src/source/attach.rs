//! Which routes hang on which gateways and services.

use super::kinds::Kind;
use super::refs::{text, text_or};
use super::state::State;
use crate::gateway::attach;
use crate::gateway::view::{GatewaySpec, Key, ParentRef, RouteKind, RouteSpec};
use crate::names::CONTROLLER_NAME;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// What a parent becomes for the index, or with which reason (of `Accepted`) it does not take the
/// route.
pub(super) type Parent = Result<Vec<Value>, (&'static str, String)>;

/// The gateways of the cluster, ours and others'.
#[derive(Debug, Default)]
pub(super) struct Gateways {
    /// Those of this controller.
    classes: BTreeSet<String>,
    all: BTreeMap<String, Gateway>,
}

#[derive(Debug)]
struct Gateway {
    key: Key,
    spec: GatewaySpec,
}

impl Gateways {
    pub(super) fn class(&mut self, name: String, controller: &str) {
        if controller == CONTROLLER_NAME {
            self.classes.insert(name);
        } else {
            self.classes.remove(&name);
        }
    }

    pub(super) fn remove_class(&mut self, name: &str) {
        self.classes.remove(name);
    }

    pub(super) fn keep_classes(&mut self, listed: &BTreeSet<String>) {
        self.classes.retain(|name| listed.contains(name));
    }

    pub(super) fn put(&mut self, key: String, namespace: &str, name: &str, spec: Value) {
        let gateway = Gateway {
            key: Key::new(namespace, name),
            // The API server has checked it; what is not as expected takes no routes.
            spec: serde_json::from_value(spec).unwrap_or_default(),
        };
        self.all.insert(key, gateway);
    }

    pub(super) fn keep(&mut self, listed: &BTreeSet<String>) {
        self.all.retain(|key, _| listed.contains(key));
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.all.remove(key);
    }

    /// What a parent of a route is; `None`: it is nothing of ours.
    pub(super) fn parent(
        &self,
        kind: &Kind,
        route: &Value,
        parent: &Value,
        state: &State,
    ) -> Option<Parent> {
        let namespace = text(&route["metadata"], "namespace");
        let name = text(parent, "name");
        let there = text_or(parent, "namespace", namespace);
        let key = format!("{name}.{there}");
        // An empty group is the core group; absent means Gateway API's.
        let group = parent.get("group").and_then(Value::as_str);
        match (
            group.unwrap_or(GATEWAY_GROUP),
            text_or(parent, "kind", "Gateway"),
        ) {
            (GATEWAY_GROUP, "Gateway") => {
                let gateway = self.all.get(&key)?;
                self.classes
                    .contains(&gateway.spec.gateway_class_name)
                    .then(|| attach(kind, route, parent, gateway, state))
            }
            ("" | "core", "Service") => Some(service(kind, namespace, there, &key, parent, state)),
            _ => None,
        }
    }
}

/// In the Service's own namespace a route is for all clients, elsewhere for those of that namespace.
fn service(
    kind: &Kind,
    namespace: &str,
    there: &str,
    key: &str,
    parent: &Value,
    state: &State,
) -> Parent {
    if namespace != there && !["HTTPRoute", "GRPCRoute"].contains(&kind.kind) {
        let why = format!(
            "a {} for a Service of another namespace ({there}) would be for clients of \
             {namespace} alone, which is not supported: put the route into {there}",
            kind.kind
        );
        return Err(("UnsupportedValue", why));
    }
    let no = |why: String| Err(("NoMatchingParent", why));
    let Some(mut ports) = state.ports(key) else {
        return no(format!("there is no Service {key}"));
    };
    let mut effective = parent.clone();
    let section = text(parent, "sectionName");
    if !section.is_empty() {
        let Some((_, port)) = ports.find(|(name, _)| *name == section) else {
            return no(format!("Service {key} has no port named {section}"));
        };
        effective["port"] = json!(port);
        if let Some(fields) = effective.as_object_mut() {
            fields.remove("sectionName");
        }
    } else if let Some(port) = parent["port"].as_u64()
        && !ports.any(|(_, p)| u64::from(p) == port)
    {
        return no(format!("Service {key} has no port {port}"));
    }
    Ok(vec![effective])
}

/// The parent, once for each listener that takes the route.
fn attach(kind: &Kind, route: &Value, parent: &Value, gateway: &Gateway, state: &State) -> Parent {
    let Some(kind) = RouteKind::of(kind.kind) else {
        let text = format!("a gateway takes no {}", kind.kind);
        return Err(("NotAllowedByListeners", text));
    };
    let of = |field: &str| text(&route["metadata"], field);
    let key = Key::new(of("namespace"), of("name"));
    let spec: RouteSpec = serde_json::from_value(route["spec"].clone()).unwrap_or_default();
    let reference: ParentRef = serde_json::from_value(parent.clone()).unwrap_or_default();
    let names = attach::attach(
        &gateway.key,
        &gateway.spec.listeners,
        &reference,
        (kind, &key, &spec),
        state.labels(&key.namespace),
    )?;
    let each = names.into_iter().map(|name| {
        let mut effective = parent.clone();
        effective["sectionName"] = name.into();
        effective
    });
    Ok(each.collect())
}
