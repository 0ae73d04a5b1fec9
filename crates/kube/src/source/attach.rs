//! Which routes hang on which gateways and services.

use super::kinds::Kind;
use super::refs::{list, text, text_or};
use super::state::State;
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
    namespace: String,
    spec: Value,
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

    pub(super) fn put(&mut self, key: String, namespace: &str, spec: Value) {
        let namespace = namespace.to_owned();
        self.all.insert(key, Gateway { namespace, spec });
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.all.remove(key);
    }

    /// A Gateway's `spec` as the index needs it; `None`: it is not ours. Which routes may attach is
    /// decided here, so the index is not told.
    pub(super) fn for_index(&self, class: &str, gateway: &Value) -> Option<Value> {
        if !self.classes.contains(class) {
            return None;
        }
        let mut spec = gateway["spec"].clone();
        spec["gatewayClassName"] = "tulle".into();
        for listener in spec["listeners"].as_array_mut().into_iter().flatten() {
            if let Some(listener) = listener.as_object_mut() {
                listener.remove("allowedRoutes");
            }
        }
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("addresses");
            if let Some(infrastructure) = spec
                .get_mut("infrastructure")
                .and_then(Value::as_object_mut)
            {
                infrastructure.retain(|field, _| field == "annotations");
            }
        }
        Some(spec)
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
                let class = text(&gateway.spec, "gatewayClassName");
                self.classes
                    .contains(class)
                    .then(|| attach(kind, namespace, parent, gateway, state))
            }
            ("" | "core", "Service") => Some(service(namespace, there, &key, parent, state)),
            _ => None,
        }
    }
}

fn service(namespace: &str, there: &str, key: &str, parent: &Value, state: &State) -> Parent {
    if namespace != there {
        let why = format!(
            "a route for a Service of another namespace ({there}) would be for clients of \
             {namespace} alone, which is not supported: put the route into {there}"
        );
        return Err(("UnsupportedValue", why));
    }
    let no = |why: String| Err(("NoMatchingParent", why));
    let Some(ports) = state.named_ports(key) else {
        return no(format!("there is no Service {key}"));
    };
    let mut effective = parent.clone();
    let mut ports = ports.iter();
    let section = text(parent, "sectionName");
    if !section.is_empty() {
        let Some((_, port)) = ports.find(|(name, _)| name == section) else {
            return no(format!("Service {key} has no port named {section}"));
        };
        effective["port"] = json!(port);
        if let Some(fields) = effective.as_object_mut() {
            fields.remove("sectionName");
        }
    } else if let Some(port) = parent["port"].as_u64()
        && !ports.any(|(_, p)| u64::from(*p) == port)
    {
        return no(format!("Service {key} has no port {port}"));
    }
    Ok(vec![effective])
}

fn attach(
    kind: &Kind,
    namespace: &str,
    parent: &Value,
    gateway: &Gateway,
    state: &State,
) -> Parent {
    let (section, port) = (text(parent, "sectionName"), parent["port"].as_u64());
    let meant = |listener: &&Value| {
        (section.is_empty() || text(listener, "name") == section)
            && port.is_none_or(|port| listener["port"].as_u64() == Some(port))
    };
    let meant: Vec<&Value> = list(&gateway.spec["listeners"])
        .into_iter()
        .filter(meant)
        .collect();
    if meant.is_empty() {
        return Err((
            "NoMatchingParent",
            "the Gateway has no such listener".into(),
        ));
    }
    let allowed = meant
        .iter()
        .filter(|l| allows(kind, namespace, l, gateway, state));
    let attached: Vec<Value> = allowed
        .map(|listener| {
            let mut effective = parent.clone();
            effective["sectionName"] = listener["name"].clone();
            effective
        })
        .collect();
    if attached.is_empty() {
        let why = format!("its listeners do not allow a {} of {namespace}", kind.kind);
        return Err(("NotAllowedByListeners", why));
    }
    Ok(attached)
}

fn allows(
    kind: &Kind,
    namespace: &str,
    listener: &Value,
    gateway: &Gateway,
    state: &State,
) -> bool {
    let allowed = &listener["allowedRoutes"];
    let kinds = list(&allowed["kinds"]);
    if !kinds.is_empty() && !kinds.iter().any(|k| text(k, "kind") == kind.kind) {
        return false;
    }
    let from = &allowed["namespaces"];
    match text_or(from, "from", "Same") {
        "All" => true,
        "Same" => namespace == gateway.namespace,
        "Selector" => state
            .labels(namespace)
            .is_some_and(|labels| selects(&from["selector"], labels)),
        _ => false,
    }
}

/// A label selector (meta/v1).
fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let exact = selector["matchLabels"].as_object().into_iter().flatten();
    let mut exact =
        exact.map(|(name, value)| labels.get(name).map(String::as_str) == value.as_str());
    let expression = |e: &&Value| {
        let value = labels.get(text(e, "key"));
        let among = || {
            let mut values = list(&e["values"]).into_iter();
            values.any(|v| v.as_str() == value.map(String::as_str))
        };
        match text(e, "operator") {
            "In" => value.is_some() && among(),
            "NotIn" => value.is_none() || !among(),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    };
    exact.all(|same| same) && list(&selector["matchExpressions"]).iter().all(expression)
}
