//! Do policies name callers that there are? One about nobody is in force and lets nobody call, and no
//! status says that its name is a slip.

use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::workloads::{items, text};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use tulle_model::identity::SpiffeId;
use tulle_model::manifest::{AuthorizationRule, HttpFilterSpec, HttpRouteSpec, RateLimitRule};

/// Namespace and name of a service account.
type Account = (String, String);

pub(super) fn check(facts: &Facts, report: &mut Report) {
    report.each(
        "TK090",
        Outcome::Warning,
        in_one_case(facts),
        "all that restrict by path say whether it matters",
    );
    let Some(accounts) = &facts.accounts else {
        return report.warning("TK088", "you may not list serviceaccounts");
    };
    let trust_domain = facts.options().map(|o| o.sidecars.trust_domain);
    let there: BTreeSet<Account> = accounts.iter().map(place).collect();
    let mut wrong = Vec::new();
    for policy in &facts.policies {
        let kind = text(policy, "/kind");
        let (namespace, name) = place(policy);
        let named = match kind {
            "TrafficTarget" => of_target(policy, &namespace),
            _ => of_policy(policy, &namespace, trust_domain.as_deref()),
        };
        for (of, account) in named.difference(&there) {
            wrong.push(format!(
                "{kind} {namespace}/{name}: there is no service account {of}/{account}"
            ));
        }
    }
    report.each(
        "TK088",
        Outcome::Warning,
        wrong,
        "all that policies name exist",
    );
}

/// Finds what restricts by path and does not say whether letter case matters.
fn in_one_case(facts: &Facts) -> Vec<String> {
    let mut found = Vec::new();
    for policy in &facts.policies {
        let (kind, (namespace, name)) = (text(policy, "/kind"), place(policy));
        for (i, rule) in items(policy, "/spec/rules").enumerate() {
            // One that cannot be read has a status that says so.
            let path = match (kind, text(policy, "/spec/action")) {
                ("RateLimit", _) => RateLimitRule::deserialize(rule).ok().and_then(|r| {
                    let path = r.path_in_one_case()?;
                    Some(format!("limits {path}"))
                }),
                (_, "Deny") => AuthorizationRule::deserialize(rule).ok().and_then(|r| {
                    let path = r.path_in_one_case()?;
                    Some(format!("denies {path}"))
                }),
                _ => None,
            };
            found.extend(path.map(|does| {
                format!("{kind} {namespace}/{name}: rules[{i}] {does} in this case alone")
            }));
        }
    }
    found.extend(routes_in_one_case(&facts.objects));
    found
}

/// Finds rules of HTTPRoutes with filters that another letter case of the path goes past.
fn routes_in_one_case(objects: &[Value]) -> Vec<String> {
    let of_kind = |kind: &'static str| objects.iter().filter(move |o| text(o, "/kind") == kind);
    let mut filters: BTreeSet<(String, String)> = BTreeSet::new();
    for filter in of_kind("HTTPFilter") {
        let spec = HttpFilterSpec::deserialize(&filter["spec"]);
        if spec.is_ok_and(|spec| spec.restricts()) {
            filters.insert(place(filter));
        }
    }
    let mut found = Vec::new();
    for route in of_kind("HTTPRoute") {
        let (namespace, name) = place(route);
        // One that cannot be read has a status that says so.
        let Ok(spec) = HttpRouteSpec::deserialize(&route["spec"]) else {
            continue;
        };
        let restricts = |filter: &str| filters.contains(&(namespace.clone(), filter.to_owned()));
        for (i, path) in spec.restricted_in_one_case(restricts) {
            found.push(format!(
                "HTTPRoute {namespace}/{name}: filters of rules[{i}] restrict {path} in this case alone, \
                 and another rule takes it in others"
            ));
        }
    }
    found
}

fn place(object: &Value) -> (String, String) {
    let of = |field| text(object, field).to_owned();
    (of("/metadata/namespace"), of("/metadata/name"))
}

fn of_target(target: &Value, own: &str) -> BTreeSet<Account> {
    let named = items(target, "/spec/sources").chain(target.pointer("/spec/destination"));
    let accounts = named.filter(|i| text(i, "/kind") == "ServiceAccount");
    let placed = accounts.map(|i| match text(i, "/namespace") {
        "" => (own, text(i, "/name")),
        namespace => (namespace, text(i, "/name")),
    });
    placed
        .map(|(of, name)| (of.to_owned(), name.to_owned()))
        .collect()
}

/// Returns the service accounts that a policy names. Identities of another trust domain are not accounts of
/// this cluster.
fn of_policy(policy: &Value, own: &str, trust_domain: Option<&str>) -> BTreeSet<Account> {
    let mut named = BTreeSet::new();
    for rule in items(policy, "/spec/rules") {
        let accounts = items(rule, "/from/serviceAccounts").filter_map(Value::as_str);
        named.extend(accounts.map(|name| (own.to_owned(), name.to_owned())));
        let principals = items(rule, "/from/principals").filter_map(Value::as_str);
        let ids = principals.filter_map(|id| SpiffeId::parse(id).ok());
        let ids = ids.filter(|id| Some(id.trust_domain()) == trust_domain);
        named.extend(ids.filter_map(|id| {
            let (namespace, name) = id.service_account()?;
            Some((namespace.to_owned(), name.to_owned()))
        }));
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn denials_that_depend_on_letter_case_are_found() {
        let found = |action: &str, rule: Value| {
            let facts = Facts {
                accounts: Some(Vec::new()),
                policies: vec![json!({
                    "kind": "AuthorizationPolicy", "metadata": { "namespace": "shop", "name": "p" },
                    "spec": { "action": action, "rules": [{}, rule] },
                })],
                ..Facts::default()
            };
            let wrong = Report::wrong(|report| check(&facts, report)).into_iter();
            wrong.map(|f| f.id).collect::<Vec<_>>()
        };
        let by = |kind: &str, path: &str| json!({ "to": { "paths": [{ "type": kind, "value": path }] } });
        assert_eq!(found("Deny", by("Exact", "/admin")), ["TK090"]);
        assert!(found("Allow", by("Exact", "/admin")).is_empty());
        assert!(found("Deny", by("PathPrefix", "/")).is_empty());
        assert!(found("Deny", by("RegularExpression", "(?i)/admin")).is_empty());
        for said in [true, false] {
            let mut rule = by("Exact", "/admin");
            rule["ignoreCase"] = json!(said);
            assert!(found("Deny", rule).is_empty());
        }
    }

    #[test]
    fn limits_that_depend_on_letter_case_are_found() {
        let found = |ignore: Value| {
            let rule = json!({
                "to": { "paths": [{ "value": "/search" }] }, "requests": { "count": 1 },
                "ignoreCase": ignore,
            });
            let facts = Facts {
                accounts: Some(Vec::new()),
                policies: vec![json!({
                    "kind": "RateLimit", "metadata": { "namespace": "shop", "name": "p" },
                    "spec": { "rules": [rule] },
                })],
                ..Facts::default()
            };
            let wrong = Report::wrong(|report| check(&facts, report)).into_iter();
            wrong.map(|f| f.id).collect::<Vec<_>>()
        };
        assert_eq!(found(Value::Null), ["TK090"]);
        assert!(found(json!(true)).is_empty() && found(json!(false)).is_empty());
    }

    #[test]
    fn filters_of_routes_that_another_letter_case_goes_past_are_found() {
        let found = |namespace: &str, other: &str| {
            let filters = json!([{
                "type": "ExtensionRef",
                "extensionRef": { "group": "tulle.dev", "kind": "HTTPFilter", "name": "tokens" },
            }]);
            let path = |value: &str| json!([{ "path": { "type": "PathPrefix", "value": value } }]);
            let backends = json!([{
                "group": "", "kind": "Service", "name": "web", "port": 80, "weight": 1,
            }]);
            let route = json!({
                "kind": "HTTPRoute", "metadata": { "namespace": "shop", "name": "r" },
                "spec": {
                    "parentRefs": [{
                        "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge",
                    }],
                    "rules": [
                        { "matches": path("/admin"), "filters": filters, "backendRefs": backends },
                        { "matches": path(other), "backendRefs": backends },
                    ],
                },
            });
            let filter = json!({
                "kind": "HTTPFilter", "metadata": { "namespace": namespace, "name": "tokens" },
                "spec": { "jwt": { "providers": [{ "issuer": "https://login.example" }] } },
            });
            let facts = Facts {
                accounts: Some(Vec::new()),
                objects: vec![route, filter],
                ..Facts::default()
            };
            let wrong = Report::wrong(|report| check(&facts, report)).into_iter();
            wrong.map(|f| f.id).collect::<Vec<_>>()
        };
        assert_eq!(found("shop", "/"), ["TK090"]);
        assert!(found("shop", "/public").is_empty());
        assert!(found("other", "/").is_empty(), "that is another filter");
    }

    #[test]
    fn policies_about_nobody_are_found() {
        let account = |namespace: &str, name: &str| json!({ "metadata": { "namespace": namespace, "name": name } });
        let reference =
            |name: &str| json!({ "kind": "ServiceAccount", "name": name, "namespace": "shop" });
        let target = |name: &str, source: &str| {
            json!({
                "kind": "TrafficTarget", "metadata": { "namespace": "shop", "name": name },
                "spec": { "destination": reference("cart"), "sources": [reference(source)] },
            })
        };
        let policy = |from: Value| {
            json!({
                "kind": "AuthorizationPolicy", "metadata": { "namespace": "shop", "name": "p" },
                "spec": { "rules": [{ "from": from }, { "to": {} }] },
            })
        };
        let settings = json!({
            "namespace": "tulle-system",
            "sidecars": { "image": "i", "controller": "c:15010", "trustDomain": "td" },
        });
        let mut facts = Facts {
            settings: Some(json!({ "data": { "settings.json": settings.to_string() } })),
            accounts: Some(vec![account("shop", "cart"), account("shop", "web")]),
            policies: vec![
                target("good", "web"),
                policy(json!({
                    "serviceAccounts": ["web"],
                    "principals": ["spiffe://td/ns/shop/sa/cart", "spiffe://other/ns/shop/sa/x"],
                })),
            ],
            ..Facts::default()
        };
        assert!(
            facts.options().is_some(),
            "the settings of this test cannot be read"
        );
        let wrong = |facts: &Facts| {
            let wrong = Report::wrong(|report| check(facts, report)).into_iter();
            wrong.map(|f| f.finding).collect::<Vec<_>>()
        };
        assert!(wrong(&facts).is_empty(), "{:?}", wrong(&facts));
        facts.policies.push(target("slip", "wbe"));
        facts.policies.push(policy(json!({
            "serviceAccounts": ["wbe", "wbe"], "principals": ["spiffe://td/ns/other/sa/web"],
        })));
        let of = |policy: &str, account: &str| {
            format!("{policy}: there is no service account {account}")
        };
        assert_eq!(
            wrong(&facts),
            [
                of("TrafficTarget shop/slip", "shop/wbe"),
                of("AuthorizationPolicy shop/p", "other/web"),
                of("AuthorizationPolicy shop/p", "shop/wbe"),
            ]
        );
        facts.accounts = None;
        assert_eq!(wrong(&facts), ["you may not list serviceaccounts"]);
    }
}
