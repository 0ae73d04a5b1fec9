//! Explains the rules of a gateway for clients outside the mesh. A question from a gateway names no
//! client, so conditions on addresses stay undecided.

use super::Call;
use super::policies::matches;
use tulle_api::v1;
use tulle_model::resource::{
    Action, Gateway, GatewayListener, Policy, PolicyRule, Route, RouteRule,
};

/// Names the policies of the listeners that a route is attached to, and of the rule.
pub(super) fn considered(
    gateway: &Gateway,
    route: &Route,
    rule: &RouteRule,
    call: &Call<'_>,
    answer: &mut v1::Explanation,
) {
    let takes = |l: &&GatewayListener| {
        (route.port == 0 || route.port == l.port)
            && (route.listener.is_empty() || route.listener == l.name)
    };
    for listener in gateway.listeners.iter().filter(takes) {
        let at = format!("at listener {}: ", listener.name);
        let policy = listener.policy.as_deref();
        for rule in policy.into_iter().flat_map(rules) {
            add(rule, &at, Some(listener.port), call, answer);
        }
        for rule in &listener.rules {
            let texts = rule.filters.iter().map(super::limits::filter);
            answer
                .limits
                .extend(texts.map(|text| format!("{at}{text}")));
        }
    }
    for rule in rule.policy.as_deref().into_iter().flat_map(rules) {
        add(rule, "at the gateway: ", None, call, answer);
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
    let meant = rule.matches.is_empty()
        || rule
            .matches
            .iter()
            .any(|m| matches(m, call, denies).is_ok());
    let here = port.is_none_or(|p| rule.ports.is_empty() || rule.ports.contains(&p));
    let everybody = rule.networks.iter().any(|n| n.to_string() == "0.0.0.0/0");
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
