//! Which routes attach to which listeners, and why others do not. Pure.

use super::listeners::{Trouble, kinds};
use super::view::{Key, Labels, Listener, ParentRef, RouteKind, RouteSpec};
use tulle_control::index::common_hosts;

/// Whether a parent reference means a Gateway, and which.
pub(super) fn gateway_of(parent: &ParentRef, route: &Key) -> Option<Key> {
    let group = parent.group.as_deref().unwrap_or(super::GROUP);
    let kind = parent.kind.as_deref().unwrap_or("Gateway");
    let namespace = parent.namespace.as_deref().unwrap_or(&route.namespace);
    (group == super::GROUP && kind == "Gateway").then(|| Key::new(namespace, &parent.name))
}

/// The names of the listeners that take a route. `labels` are those of its namespace.
///
/// # Errors
/// None does: the reason, as in the condition `Accepted`, and what is told the user.
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
