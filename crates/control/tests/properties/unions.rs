//! The demands of all Services of a pod hold together, whatever their names and whenever they come.

use super::edits::{cluster, edit, pod, service};
use super::manifests::{MADE, made};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tulle_control::index::{Edit, Index};
use tulle_model::resource::{Action, Filter, Inbound, PathMatch, PolicyMatch, Resource};

const TULLE: &str = "tulle.dev/v1alpha1";
const SERVICES: [&str; 3] = ["a", "b", "c"];
const JWKS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;

/// The demands of the Services of one pod, and requests to it.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) demands: Vec<Demand>,
    /// In which order the pod, its Services and their demands come: of each, its place among those that are left.
    pub(crate) arrival: [u8; 7],
    pub(crate) requests: Vec<Asked>,
}

#[derive(Debug, Clone)]
pub(crate) enum Demand {
    /// Limits of the requests that meet conditions, and of all others.
    Limit(Vec<Value>),
    Token,
    /// An answer of another service.
    Answer,
}

/// Random demands of up to three Services.
pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let demands = prop::collection::vec(demand(), 1..4);
    let requests = prop::collection::vec(request(), 1..20);
    (demands, any::<[u8; 7]>(), requests).prop_map(|(demands, arrival, requests)| Case {
        demands,
        arrival,
        requests,
    })
}

/// One demand of a Service.
pub(crate) fn demand() -> impl Strategy<Value = Demand> {
    prop_oneof![
        3 => prop::collection::vec(some_conditions(), 0..3).prop_map(Demand::Limit),
        1 => Just(Demand::Token),
        1 => Just(Demand::Answer),
    ]
}

/// Compares what holds for each request with what each demand alone asks of it.
///
/// # Errors
/// The request that something else holds for.
pub(crate) fn check(case: Case) -> Result<(), String> {
    let demands: Vec<(&str, &Demand)> = SERVICES.into_iter().zip(&case.demands).collect();
    let mut edits = vec![the_pod()];
    let mut alone = Vec::new();
    for (name, demand) in &demands {
        edits.extend([leading(name), put(name, demand)]);
        let mut index = cluster();
        index.apply([the_pod(), leading(name), put(name, demand)]);
        alone.push(index);
    }
    let mut index = cluster();
    for at in case.arrival {
        if !edits.is_empty() {
            index.apply([edits.remove(usize::from(at) % edits.len())]);
        }
    }
    if is_closed(&index)? {
        return Ok(());
    }
    for asked in &case.requests {
        let together = first(&index, asked)?;
        let mut each = BTreeSet::new();
        for index in &alone {
            each.extend(first(index, asked)?);
        }
        if together != each {
            return Err(format!("{asked:?}: {together:?} hold, and {each:?} should"));
        }
    }
    Ok(())
}

fn the_pod() -> Edit {
    pod(("web-1", "shop", MADE), "web", "10.244.0.5", &[8080], true)
}

/// A Service whose port 80 leads to port 8080 of the pod.
fn leading(name: &str) -> Edit {
    service(
        (name, "shop", MADE),
        &[],
        &[(80, Some("http"), 8080)],
        &[("10.244.0.5", Some("web-1"))],
    )
}

fn put(name: &str, demand: &Demand) -> Edit {
    let refs = json!([{ "kind": "Service", "name": name }]);
    let (kind, spec) = match demand {
        Demand::Limit(conditions) => {
            let rules = conditions.iter();
            let rules = rules.map(|to| json!({ "to": to, "requests": { "count": 1 } }));
            let rules: Vec<Value> = rules.collect();
            let spec = json!({ "targetRefs": refs, "rules": rules, "requests": { "count": 1 } });
            ("RateLimit", spec)
        }
        Demand::Token => {
            let providers = json!([{ "issuer": "i", "jwks": JWKS }]);
            let spec = json!({ "targetRefs": refs, "jwt": { "providers": providers } });
            ("Authentication", spec)
        }
        Demand::Answer => {
            let ask = json!({ "backendRef": { "name": "a", "port": 80 }, "protocol": "HTTP" });
            let spec = json!({ "targetRefs": refs, "externalAuth": ask });
            ("Authentication", spec)
        }
    };
    edit(&made("shop", TULLE, kind, name, spec)).expect("an object that can be read")
}

fn inbound(index: &Index) -> Result<Inbound, String> {
    let entry = index
        .get("inbound/web-1.shop")
        .ok_or("the pod is not known")?;
    match tulle_api::decode_body(&entry.body) {
        Ok(Resource::Inbound(inbound)) => Ok(inbound),
        other => Err(format!("{other:?}")),
    }
}

/// Whether the demands contradict each other, so that nobody may come.
fn is_closed(index: &Index) -> Result<bool, String> {
    let rules = inbound(index)?.policy.rules;
    Ok(rules
        .iter()
        .any(|r| r.action == Action::Deny && r.any_identity))
}

/// Returns the demands of the first rule that matches a request.
fn first(index: &Index, asked: &Asked) -> Result<BTreeSet<String>, String> {
    let ports = inbound(index)?.ports;
    let port = ports
        .iter()
        .find(|p| p.port == 8080)
        .ok_or("it has no port 8080")?;
    let is_meant =
        |matches: &[PolicyMatch]| matches.is_empty() || matches.iter().any(|m| is_met(m, asked));
    let rule = port.rules.iter().find(|rule| is_meant(&rule.matches));
    let filters = rule.into_iter().flat_map(|rule| &rule.filters);
    let demands = filters.map(|filter| match filter {
        Filter::RateLimit(limit) => Ok(limit.name.clone()),
        Filter::Jwt(_) => Ok("a token".to_owned()),
        Filter::ExternalAuth(_) => Ok("an answer".to_owned()),
        other => Err(format!("{other:?}")),
    });
    demands.collect()
}

/// The parts of a request that limits look at.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    method: &'static str,
    path: &'static str,
    host: &'static str,
    team: Option<&'static str>,
}

fn is_met(m: &PolicyMatch, asked: &Asked) -> bool {
    let whole = |pattern: &str| {
        let regex = tulle_model::pattern::compile(pattern).expect("a pattern");
        regex.is_match(asked.path.as_bytes())
    };
    let path = match &m.path {
        None => true,
        Some(PathMatch::Exact(path)) => path == asked.path,
        Some(PathMatch::Regex(pattern)) => whole(pattern),
        Some(PathMatch::Prefix(prefix)) => {
            let rest = asked.path.strip_prefix(prefix.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
    };
    let host = |pattern: &String| match pattern.strip_prefix('*') {
        Some(suffix) => asked.host.len() > suffix.len() && asked.host.ends_with(suffix),
        None => pattern == asked.host,
    };
    let mut headers = m.header_matches.iter();
    path && (m.path_regex.is_empty() || whole(&m.path_regex))
        && (m.methods.is_empty() || m.methods.iter().any(|x| x == asked.method))
        && (m.hosts.is_empty() || m.hosts.iter().any(host))
        && headers.all(|h| asked.team == Some(h.value.as_str()))
}

fn some_conditions() -> impl Strategy<Value = Value> {
    let path = prop::sample::select(vec![
        json!({ "value": "/" }),
        json!({ "value": "/a" }),
        json!({ "value": "/a/b" }),
        json!({ "type": "Exact", "value": "/a" }),
        json!({ "type": "RegularExpression", "value": "/a.*" }),
    ]);
    let method = prop::sample::select(vec!["GET", "POST"]);
    let host = prop::sample::select(vec!["x.example", "*.example", "*.x.example"]);
    let team = prop::sample::select(vec!["red", "blue"]);
    (
        prop::collection::vec(path, 0..3),
        prop::collection::vec(method, 0..2),
        prop::collection::vec(host, 0..2),
        prop::option::of(team),
    )
        .prop_filter("a condition", |(paths, methods, hosts, team)| {
            !(paths.is_empty() && methods.is_empty() && hosts.is_empty() && team.is_none())
        })
        .prop_map(|(paths, methods, hosts, team)| {
            let team = team
                .iter()
                .map(|value| json!({ "name": "team", "value": value }));
            json!({
                "paths": paths, "methods": methods, "hosts": hosts,
                "headers": team.collect::<Vec<_>>(),
            })
        })
}

pub(crate) fn request() -> impl Strategy<Value = Asked> {
    (
        prop::sample::select(vec!["GET", "POST", "PUT"]),
        prop::sample::select(vec!["/", "/a", "/ab", "/a/b", "/a/b/c", "/c"]),
        prop::sample::select(vec!["x.example", "a.x.example", "other"]),
        prop::option::of(prop::sample::select(vec!["red", "blue"])),
    )
        .prop_map(|(method, path, host, team)| Asked {
            method,
            path,
            host,
            team,
        })
}
