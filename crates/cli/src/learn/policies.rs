//! The smallest policies that allow what was seen.

use super::observed::{Observed, Outside};
use super::paths::{PathRule, covering};
use crate::prove::is_below;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tulle_model::identity::SpiffeId;

/// The requests that one rule lets in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct To {
    port: u16,
    methods: BTreeSet<String>,
    /// None: everything, opaque bytes too.
    paths: Option<Vec<PathRule>>,
}

/// Manifests for the calls that were seen: an AuthorizationPolicy for each service, an Egress for each host.
pub(super) fn of_observed(
    observed: &Observed,
    port_of: impl Fn(&str, u16) -> u16,
    audit: bool,
) -> Vec<Value> {
    let mut services: BTreeMap<&str, BTreeMap<To, BTreeSet<&str>>> = BTreeMap::new();
    for (called, requests) in &observed.calls {
        let rules = services.entry(&called.service).or_default();
        for to in needed(requests, port_of(&called.service, called.port)) {
            rules.entry(to).or_default().insert(&called.source);
        }
    }
    let policies = services
        .into_iter()
        .map(|(service, rules)| policy(service, rules, audit));
    policies.chain(egresses(&observed.outside)).collect()
}

/// The rules that one caller of a port needs: one for each set of methods.
fn needed(requests: &BTreeSet<(String, String)>, port: u16) -> Vec<To> {
    if requests.is_empty() {
        return vec![To {
            port,
            methods: BTreeSet::new(),
            paths: None,
        }];
    }
    let mut by_path: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (method, path) in requests {
        by_path.entry(path).or_default().insert(method);
    }
    // Paths of one prefix are one thing, whatever methods each of them was asked with.
    let mut by_rule: BTreeMap<PathRule, BTreeSet<String>> = BTreeMap::new();
    for rule in covering(by_path.keys().copied()) {
        let methods = by_path.iter().filter(|(path, _)| covers(&rule, path));
        let methods = methods.flat_map(|(_, methods)| methods.iter().map(ToString::to_string));
        by_rule.insert(rule.clone(), methods.collect());
    }
    let mut by_methods: BTreeMap<BTreeSet<String>, Vec<PathRule>> = BTreeMap::new();
    for (rule, methods) in by_rule {
        by_methods.entry(methods).or_default().push(rule);
    }
    let rules = by_methods.into_iter().map(|(methods, paths)| To {
        port,
        methods,
        paths: Some(paths),
    });
    rules.collect()
}

fn covers(rule: &PathRule, path: &str) -> bool {
    match rule {
        PathRule::Exact(exact) => path == exact,
        PathRule::Prefix(prefix) => is_below(path, prefix),
    }
}

fn policy(service: &str, rules: BTreeMap<To, BTreeSet<&str>>, audit: bool) -> Value {
    let (name, namespace) = name(service);
    let rules: Vec<Value> = rules.into_iter().map(|(to, from)| rule(to, from)).collect();
    let mut spec = json!({ "targetRefs": [{ "kind": "Service", "name": name }] });
    if audit {
        spec["mode"] = "Audit".into();
    }
    spec["rules"] = rules.into();
    object(
        "AuthorizationPolicy",
        &format!("learned-{name}"),
        namespace,
        spec,
    )
}

fn rule(to: To, from: BTreeSet<&str>) -> Value {
    let mut accounts = Vec::new();
    let mut principals = Vec::new();
    for source in from {
        match service_name(source) {
            Some(name) => accounts.push(name),
            None => principals.push(source.to_owned()),
        }
    }
    let mut callers = Map::new();
    for (field, names) in [("serviceAccounts", accounts), ("principals", principals)] {
        if !names.is_empty() {
            callers.insert(field.to_owned(), names.into());
        }
    }
    let mut called = json!({ "ports": [to.port] });
    if !to.methods.is_empty() {
        called["methods"] = to.methods.into_iter().collect::<Vec<_>>().into();
    }
    let all = PathRule::Prefix("/".to_owned());
    if let Some(paths) = to.paths.filter(|paths| !paths.contains(&all)) {
        let paths = paths.into_iter().map(|path| match path {
            PathRule::Exact(path) => json!({ "type": "Exact", "value": path }),
            PathRule::Prefix(path) => json!({ "type": "PathPrefix", "value": path }),
        });
        called["paths"] = paths.collect();
    }
    json!({ "from": callers, "to": called })
}

/// An Egress for each host, port and protocol; in a cluster for each namespace, too.
fn egresses(outside: &BTreeSet<Outside>) -> Vec<Value> {
    type Key<'a> = (String, &'a str, u16, bool);
    let mut all: BTreeMap<Key<'_>, BTreeSet<String>> = BTreeMap::new();
    for found in outside {
        let Ok(id) = SpiffeId::parse(&found.source) else {
            continue;
        };
        let (namespace, account) = id.service_account().unwrap_or(("", id.name()));
        let key = (
            namespace.to_owned(),
            found.host.as_str(),
            found.port,
            found.http,
        );
        all.entry(key).or_default().insert(account.to_owned());
    }
    let objects = all
        .into_iter()
        .map(|((namespace, host, port, http), accounts)| {
            let sources: Vec<Value> = accounts
                .into_iter()
                .map(|account| json!({ "kind": "ServiceAccount", "name": account }))
                .collect();
            let protocol = if http { "http" } else { "tcp" };
            let mut spec = json!({ "sources": sources });
            match host.parse::<std::net::IpAddr>() {
                Ok(address) => {
                    let bits = if address.is_ipv4() { 32 } else { 128 };
                    spec["ipAddresses"] = json!([format!("{address}/{bits}")]);
                }
                Err(_) => spec["hosts"] = json!([host]),
            }
            spec["ports"] = json!([{ "number": port, "protocol": protocol }]);
            let plain = |c: char| {
                if c.is_ascii_alphanumeric() {
                    c.to_ascii_lowercase()
                } else {
                    '-'
                }
            };
            let host: String = host.chars().map(plain).collect();
            object(
                "Egress",
                &format!("learned-{}-{port}", host.trim_matches('-')),
                &namespace,
                spec,
            )
        });
    objects.collect()
}

fn object(kind: &str, name: &str, namespace: &str, spec: Value) -> Value {
    let mut metadata = json!({ "name": name });
    if !namespace.is_empty() {
        metadata["namespace"] = namespace.into();
    }
    json!({ "apiVersion": "tulle.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec })
}

/// Name and namespace of a service.
fn name(service: &str) -> (&str, &str) {
    service.split_once('.').unwrap_or((service, ""))
}

/// The name of a host's service; none for an identity of a cluster, which may be of another namespace.
fn service_name(identity: &str) -> Option<String> {
    let id = SpiffeId::parse(identity).ok()?;
    let is_service = id.service_account().is_none() && identity.contains("/svc/");
    is_service.then(|| id.name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::observed::Called;
    use super::*;
    use tulle_model::manifest::parse;

    fn called(source: &str, service: &str, port: u16) -> Called {
        Called {
            source: format!("spiffe://t/{source}"),
            service: service.to_owned(),
            port,
        }
    }

    fn requests(all: &[(&str, &str)]) -> BTreeSet<(String, String)> {
        let all = all.iter().map(|(m, p)| ((*m).to_owned(), (*p).to_owned()));
        all.collect()
    }

    fn yaml(observed: &Observed) -> String {
        let objects = of_observed(observed, |_, port| port, false);
        // JSON is YAML.
        let documents = objects.iter().map(ToString::to_string);
        let text = documents.collect::<Vec<_>>().join("\n---\n");
        // Whatever is printed can be applied.
        parse("learned.yaml", &text).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
        text
    }

    #[test]
    fn callers_with_the_same_needs_share_a_rule() {
        let mut observed = Observed::default();
        let read = requests(&[
            ("GET", "/ratings/1"),
            ("GET", "/ratings/2"),
            ("GET", "/health"),
        ]);
        observed
            .calls
            .insert(called("svc/reviews", "ratings", 8101), read.clone());
        observed
            .calls
            .insert(called("svc/gateway", "ratings", 8101), read);
        observed.calls.insert(
            called("svc/admin", "ratings", 8101),
            requests(&[("DELETE", "/ratings/1")]),
        );
        observed
            .calls
            .insert(called("svc/reviews", "db", 5432), BTreeSet::new());
        let text = yaml(&observed);
        let objects = of_observed(&observed, |_, port| port, false);
        let names: Vec<_> = objects
            .iter()
            .map(|o| o["metadata"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["learned-db", "learned-ratings"], "{text}");
        assert_eq!(
            objects[0]["spec"]["rules"][0]["to"],
            json!({"ports": [5432]})
        );
        let rules = objects[1]["spec"]["rules"].as_array().unwrap();
        assert_eq!(rules.len(), 2, "{text}");
        assert_eq!(
            rules[1],
            json!({
                "from": {"serviceAccounts": ["gateway", "reviews"]},
                "to": {
                    "ports": [8101], "methods": ["GET"],
                    "paths": [{"type": "Exact", "value": "/health"}, {"type": "PathPrefix", "value": "/ratings"}],
                },
            }),
            "{text}"
        );
        let audit = of_observed(&observed, |_, port| port, true);
        assert_eq!(audit[0]["spec"]["mode"], "Audit");
    }

    #[test]
    fn in_a_cluster_names_have_namespaces_and_ports_are_the_services() {
        let mut observed = Observed::default();
        let read = requests(&[("GET", "/")]);
        observed
            .calls
            .insert(called("ns/shop/sa/web", "api.back", 8080), read);
        observed.outside.insert(Outside {
            source: "spiffe://t/ns/shop/sa/web".into(),
            host: "books.example.com".into(),
            port: 443,
            http: false,
        });
        yaml(&observed);
        let objects = of_observed(&observed, |_, _| 80, false);
        assert_eq!(objects[0]["metadata"]["namespace"], "back");
        assert_eq!(objects[0]["spec"]["targetRefs"][0]["name"], "api");
        let rule = &objects[0]["spec"]["rules"][0];
        assert_eq!(rule["from"]["principals"][0], "spiffe://t/ns/shop/sa/web");
        assert_eq!(rule["to"]["ports"], json!([80]));
        assert_eq!(objects[1]["metadata"]["namespace"], "shop");
        assert_eq!(objects[1]["spec"]["hosts"], json!(["books.example.com"]));
    }
}
