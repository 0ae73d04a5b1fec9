//! Explains the rules of a gateway for clients outside the mesh. A question from a gateway names no
//! client, so conditions on addresses stay undecided.

use super::Call;
use super::policies::matches;
use tulle_api::v1;
use tulle_model::resource::{
    Action, Gateway, GatewayListener, ListenerProtocol, Policy, PolicyRule, Route, RouteRule,
    Target,
};

/// Names the policies of the listeners that a route is attached to, and of the rule.
pub(super) fn requests(
    gateway: &Gateway,
    route: &Route,
    rule: &RouteRule,
    call: &Call<'_>,
    answer: &mut v1::Explanation,
) {
    for listener in listeners(gateway).filter(|l| is_attached(gateway, route, l)) {
        considered(listener, call, answer);
        for rule in &listener.rules {
            let texts = rule.filters.iter().map(super::limits::filter);
            answer
                .limits
                .extend(texts.map(|text| format!("{}{text}", at(listener))));
        }
    }
    for rule in rule.policy.as_deref().into_iter().flat_map(rules) {
        add(rule, "at the gateway: ", None, call, answer);
    }
}

/// Names the policies of the listeners by which connections of TLS or opaque bytes come to a service. Returns what closes
/// these listeners, if all of them are closed.
pub(super) fn connections<'a>(
    gateway: &'a Gateway,
    service: &str,
    call: &Call<'_>,
    answer: &mut v1::Explanation,
) -> Option<&'a PolicyRule> {
    let leads = |targets: &[Target]| {
        let mut targets = targets.iter();
        targets.any(|t| t.service == service && t.port == call.port && t.weight > 0)
    };
    let tls = gateway.tls_routes.iter().filter(|r| leads(&r.targets));
    let tls: Vec<(u16, &str)> = tls.map(|r| (r.port, r.listener.as_str())).collect();
    let tcp = gateway.tcp_routes.iter().filter(|r| leads(&r.targets));
    let tcp: Vec<(u16, &str)> = tcp.map(|r| (r.port, r.listener.as_str())).collect();
    let lead = |l: &&GatewayListener| {
        let has = |places: &[(u16, &str)]| places.iter().any(|(port, name)| is_at(l, *port, name));
        match l.protocol {
            ListenerProtocol::Tls => has(&tls) || (l.tls.is_some() && has(&tcp)),
            ListenerProtocol::Tcp => has(&tcp),
            ListenerProtocol::Http | ListenerProtocol::Https => false,
        }
    };
    let listeners: Vec<&GatewayListener> = gateway.listeners.iter().filter(lead).collect();
    for listener in &listeners {
        considered(listener, call, answer);
    }
    closing(listeners, None)
}

/// Returns what closes the listeners that take requests, if all of them are closed.
pub(super) fn closed(gateway: &Gateway) -> Option<&PolicyRule> {
    closing(listeners(gateway), None)
}

/// Lists the listeners that take requests.
pub(super) fn listeners(gateway: &Gateway) -> impl Iterator<Item = &GatewayListener> {
    let takes_requests = |listener: &&GatewayListener| {
        matches!(
            listener.protocol,
            ListenerProtocol::Http | ListenerProtocol::Https
        )
    };
    gateway.listeners.iter().filter(takes_requests)
}

/// Whether the object of a route is attached to a listener: it is a route at each place where it is attached.
pub(super) fn is_attached(gateway: &Gateway, route: &Route, listener: &GatewayListener) -> bool {
    let mut places = gateway.routes.iter().filter(|r| r.name == route.name);
    places.any(|r| is_at(listener, r.port, &r.listener))
}

/// Whether a route with this port and listener is attached to a listener.
pub(super) fn is_at(listener: &GatewayListener, port: u16, name: &str) -> bool {
    (port == 0 || port == listener.port) && (name.is_empty() || name == listener.name)
}

/// Returns what closes the first of these listeners. `of_rule`: the policy of a route's rule, which may close each of them to the
/// requests that this takes. `None`: one of them is open, or there is none.
pub(super) fn closing<'a>(
    listeners: impl IntoIterator<Item = &'a GatewayListener>,
    of_rule: Option<&'a Policy>,
) -> Option<&'a PolicyRule> {
    let mut first = None;
    for listener in listeners {
        let policies = [listener.policy.as_deref(), of_rule];
        let mut rules = policies.into_iter().flatten().flat_map(|p| &p.rules);
        let by = rules.find(|rule| closes(rule, listener.port))?;
        first.get_or_insert(by);
    }
    first
}

/// Whether a rule denies everybody everything at a port, as the one that closes a port does, and the one in the place of an
/// object that cannot be read.
fn closes(rule: &PolicyRule, port: u16) -> bool {
    rule.action == Action::Deny
        && rule.matches.is_empty()
        && (rule.ports.is_empty() || rule.ports.contains(&port))
        && has_network(rule, "0.0.0.0/0")
        && has_network(rule, "::/0")
}

fn has_network(rule: &PolicyRule, network: &str) -> bool {
    rule.networks.iter().any(|n| n.to_string() == network)
}

fn at(listener: &GatewayListener) -> String {
    format!("at listener {}: ", listener.name)
}

fn considered(listener: &GatewayListener, call: &Call<'_>, answer: &mut v1::Explanation) {
    let policy = listener.policy.as_deref();
    for rule in policy.into_iter().flat_map(rules) {
        add(rule, &at(listener), Some(listener.port), call, answer);
    }
}

/// Rules that come from policies, and those that close a port: the last one of a gateway without a policy that allows says
/// that everybody may come in.
fn rules(policy: &Policy) -> impl Iterator<Item = &PolicyRule> {
    let rules = policy.rules.iter();
    rules.filter(|r| r.action == Action::Deny || r.name.starts_with("AuthorizationPolicy/"))
}

fn add(
    rule: &PolicyRule,
    at: &str,
    port: Option<u16>,
    call: &Call<'_>,
    answer: &mut v1::Explanation,
) {
    let denies = rule.action.denies();
    let mut all = rule.matches.iter();
    let meant = match call.opaque {
        _ if rule.matches.is_empty() => true,
        // Requests that cannot be looked at may be what it denies.
        true => rule.action == Action::Deny,
        false => all.any(|m| matches(m, call, denies).is_ok()),
    };
    let here = port.is_none_or(|p| rule.ports.is_empty() || rule.ports.contains(&p));
    let everybody = has_network(rule, "0.0.0.0/0");
    let outcome = match (meant && here, everybody) {
        (false, _) => "does not match".to_owned(),
        (true, false) => format!("{}: the client's address decides", would(rule.action)),
        (true, true) => would(rule.action).to_owned(),
    };
    let (kind, name) = rule.name.split_once('/').unwrap_or(("", &rule.name));
    answer.considered.push(v1::Applied {
        kind: kind.into(),
        name: name.into(),
        outcome: format!("{at}{outcome}"),
    });
}

fn would(action: Action) -> &'static str {
    match action {
        Action::Allow => "allows",
        Action::Deny => "denies",
        Action::AuditAllow => "would allow (audit only)",
        Action::AuditDeny => "would deny (audit only)",
    }
}
