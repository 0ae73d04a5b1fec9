//! Judges which routes attach to which gateways and services.

use super::refs::text_or;
use super::state::State;
use crate::gateway::attach;
use crate::gateway::view::View;
use crate::gateway_fields::{Gateway, Key, ParentRef, RouteKind, RouteSpec};
use crate::kinds::{GATEWAY, Kind};
use crate::object::text;
use serde::Deserialize;
use serde_json::{Value, json};
use tulle_model::namespaced::ObjectName;

/// A parent in the form that the index reads, or the reason (of `Accepted`) why it does not take the
/// route.
pub(super) type Parent = Result<Vec<Value>, (&'static str, String)>;

/// Judges a parent of a route; `None`: it is nothing of ours.
pub(super) fn parent(
    view: &View,
    kind: &Kind,
    route: &Value,
    parent: &Value,
    state: &State,
) -> Option<Parent> {
    let namespace = text(&route["metadata"], "namespace");
    if let Some(key) = gateway_of(parent, namespace) {
        let gateway = view.gateways.get(&key)?;
        view.class(gateway)?;
        return Some(attach(kind, route, parent, (&key, gateway), state));
    }
    // An empty group is the core group.
    let group = parent.get("group").and_then(Value::as_str);
    if !matches!(group, Some("" | "core")) || text(parent, "kind") != "Service" {
        return None;
    }
    let there = text_or(parent, "namespace", namespace);
    Some(service(kind, namespace, there, parent, state))
}

/// The Gateway that a parent of a route in this namespace means. Absent means Gateway API's group,
/// and a Gateway.
pub(super) fn gateway_of(parent: &Value, namespace: &str) -> Option<Key> {
    let group = parent.get("group").and_then(Value::as_str);
    let is_gateway = group.is_none_or(|group| group == GATEWAY)
        && text_or(parent, "kind", "Gateway") == "Gateway";
    let namespace = text_or(parent, "namespace", namespace);
    is_gateway.then(|| Key::new(namespace, text(parent, "name")))
}

/// In the Service's own namespace a route is for all clients, elsewhere for those of that namespace.
fn service(kind: &Kind, namespace: &str, there: &str, parent: &Value, state: &State) -> Parent {
    if namespace != there && !["HTTPRoute", "GRPCRoute"].contains(&kind.kind) {
        let why = format!(
            "a {} for a Service of another namespace ({there}) would be for clients of \
             {namespace} alone, which is not supported: put the route into {there}",
            kind.kind
        );
        return Err(("UnsupportedValue", why));
    }
    let no = |why: String| Err(("NoMatchingParent", why));
    let key = ObjectName::in_namespace(text(parent, "name"), there);
    let Some(mut ports) = state.ports(key.name(), there) else {
        return no(format!("there is no Service {key}"));
    };
    let mut effective = parent.clone();
    let section = text(parent, "sectionName");
    if !section.is_empty() {
        let Some((_, port)) = ports.find(|(port, _)| *port == section) else {
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
fn attach(
    kind: &Kind,
    route: &Value,
    parent: &Value,
    (gateway_key, gateway): (&Key, &Gateway),
    state: &State,
) -> Parent {
    let Some(kind) = RouteKind::from_name(kind.kind) else {
        let text = format!("a gateway takes no {}", kind.kind);
        return Err(("NotAllowedByListeners", text));
    };
    if gateway.is_egress() {
        let text = format!("Gateway {gateway_key} is an egress gateway, which takes no routes");
        return Err(("NotAllowedByListeners", text));
    }
    let of = |field: &str| text(&route["metadata"], field);
    let key = Key::new(of("namespace"), of("name"));
    let spec = RouteSpec::deserialize(&route["spec"]).unwrap_or_default();
    let reference = ParentRef::deserialize(parent).unwrap_or_default();
    let names = attach::attach(
        gateway_key,
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
