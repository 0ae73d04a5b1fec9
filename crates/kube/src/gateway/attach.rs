//! Which routes attach to which listeners, and why others do not. Pure.

use super::listeners::{Trouble, kinds};
use crate::gateway_fields::{Key, Labels, Listener, ParentRef, RouteKind, RouteSpec};
use tulle_control::index::common_hosts;

/// The names of the listeners that take a route. `labels` are those of its namespace.
///
/// # Errors
/// No listener takes it: the reason, as in the condition `Accepted`, and a message for the user.
pub(crate) fn attach<'a>(
    gateway: &Key,
    listeners: &'a [Listener],
    parent: &ParentRef,
    (kind, key, route): (RouteKind, &Key, &RouteSpec),
    labels: Option<&Labels>,
) -> Result<Vec<&'a str>, Trouble> {
    let mut left: Vec<&Listener> = listeners.iter().collect();
    let name = parent.section_name.as_deref();
    left.retain(|l| name.is_none_or(|name| name == l.name));
    left.retain(|l| parent.port.is_none_or(|port| port == l.port));
    if left.is_empty() {
        let text = format!("Gateway {gateway} has no listener with that name and port");
        return Err(("NoMatchingParent", text));
    }
    left.retain(|l| kinds(l).0.contains(&kind) && allows(gateway, l, key, labels));
    if left.is_empty() {
        let text = format!(
            "no listener of Gateway {gateway} that is meant takes a {} of namespace {}",
            kind.name(),
            key.namespace
        );
        return Err(("NotAllowedByListeners", text));
    }
    left.retain(|l| {
        let host = l.hostname.as_deref().unwrap_or_default();
        kind == RouteKind::Tcp || common_hosts(host, &route.hostnames).is_some()
    });
    if left.is_empty() {
        let text = format!("no listener of Gateway {gateway} has a hostname in common with it");
        return Err(("NoMatchingListenerHostname", text));
    }
    Ok(left.into_iter().map(|l| l.name.as_str()).collect())
}

fn allows(gateway: &Key, listener: &Listener, route: &Key, labels: Option<&Labels>) -> bool {
    let allowed = &listener.allowed_routes.namespaces;
    match allowed.from.as_deref().unwrap_or("Same") {
        "All" => true,
        "Same" => route.namespace == gateway.namespace,
        "Selector" => {
            let selector = allowed.selector.as_ref();
            selector.zip(labels).is_some_and(|(s, l)| s.selects(l))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn routes_attach_where_they_may() {
        let listeners = json!([
            { "name": "same", "port": 80, "protocol": "HTTP" },
            { "name": "all", "port": 81, "protocol": "HTTP", "hostname": "*.example",
              "allowedRoutes": { "namespaces": { "from": "All" } } },
            { "name": "some", "port": 82, "protocol": "HTTP",
              "allowedRoutes": { "namespaces": { "from": "Selector", "selector": {
                  "matchExpressions": [{ "key": "team", "operator": "In", "values": ["shop"] }] } },
                "kinds": [{ "kind": "GRPCRoute" }] } },
            { "name": "raw", "port": 83, "protocol": "TCP",
              "allowedRoutes": { "namespaces": { "from": "All" } } },
        ]);
        let listeners: Vec<Listener> = serde_json::from_value(listeners).unwrap();
        let try_route = |kind, namespace: &str, parent: Value, hosts: &[&str]| {
            let parent: ParentRef = serde_json::from_value(parent).unwrap();
            let spec: RouteSpec = serde_json::from_value(json!({ "hostnames": hosts })).unwrap();
            let gateway = Key::new("infra", "edge");
            let labels = Labels::from([("team".to_owned(), namespace.to_owned())]);
            let labels = (namespace != "unknown").then_some(&labels);
            let route = (kind, &Key::new(namespace, "r"), &spec);
            match attach(&gateway, &listeners, &parent, route, labels) {
                Ok(names) => names.join(" "),
                Err((reason, _)) => reason.to_owned(),
            }
        };
        let (http, grpc, tcp) = (RouteKind::Http, RouteKind::Grpc, RouteKind::Tcp);
        let whole = json!({});
        assert_eq!(try_route(http, "infra", whole.clone(), &[]), "same all");
        assert_eq!(
            try_route(http, "infra", whole.clone(), &["a.other"]),
            "same"
        );
        assert_eq!(
            try_route(http, "shop", whole.clone(), &["a.example"]),
            "all"
        );
        let no_host = "NoMatchingListenerHostname";
        assert_eq!(
            try_route(http, "shop", whole.clone(), &["a.other"]),
            no_host
        );
        assert_eq!(try_route(grpc, "shop", whole.clone(), &[]), "all some");
        let not_allowed = "NotAllowedByListeners";
        let port = json!({ "port": 82 });
        assert_eq!(try_route(grpc, "unknown", port, &[]), not_allowed);
        let section = json!({ "sectionName": "some" });
        assert_eq!(try_route(grpc, "shop", section, &[]), "some");
        let none = json!({ "sectionName": "some", "port": 81 });
        assert_eq!(try_route(grpc, "shop", none, &[]), "NoMatchingParent");
        assert_eq!(try_route(tcp, "shop", whole, &[]), "raw");
    }
}
