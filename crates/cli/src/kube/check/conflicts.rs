//! Which HTTPRoutes say different things of the same requests? All of them are accepted; the oldest is heard.

use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::workloads::{items, text};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tulle_kube::names::CONTROLLER_NAME;

pub(super) fn check(facts: &Facts, report: &mut Report) {
    // Maps each match to the routes that have it, each with its age.
    let mut all: BTreeMap<String, BTreeSet<(&str, String)>> = BTreeMap::new();
    let routes = facts.objects.iter();
    for route in routes.filter(|o| text(o, "/kind") == "HTTPRoute") {
        let metadata = &route["metadata"];
        let name = format!(
            "{}/{}",
            text(metadata, "/namespace"),
            text(metadata, "/name")
        );
        let key = (text(metadata, "/creationTimestamp"), name);
        for place in places(route) {
            all.entry(place).or_default().insert(key.clone());
        }
    }
    let mut pairs: BTreeMap<(String, String), String> = BTreeMap::new();
    for (place, routes) in all {
        let mut routes = routes.into_iter().map(|(_, name)| name);
        let Some(first) = routes.next() else { continue };
        for other in routes {
            pairs
                .entry((first.clone(), other))
                .or_insert_with(|| place.clone());
        }
    }
    let told = pairs.into_iter();
    let told = told.map(|((first, other), place)| {
        format!("HTTPRoute {other} is not heard for {place}: {first} says it, too, and is older")
    });
    report.each(
        "TK098",
        Outcome::Warning,
        told.collect(),
        "no two say the same",
    );
}

/// Everything that a route matches at the parents that accept it.
fn places(route: &Value) -> BTreeSet<String> {
    let mut hosts: Vec<&str> = items(route, "/spec/hostnames")
        .filter_map(Value::as_str)
        .collect();
    if hosts.is_empty() {
        hosts.push("every host");
    }
    let mut places = BTreeSet::new();
    let parents = items(route, "/status/parents").filter(|p| is_accepted(p));
    for parent in parents.map(|p| &p["parentRef"]) {
        let at = parent_name(parent, text(route, "/metadata/namespace"));
        for rule in items(route, "/spec/rules") {
            let everything = json!({});
            let mut matches: Vec<&Value> = items(rule, "/matches").collect();
            if matches.is_empty() {
                matches.push(&everything);
            }
            for (host, one) in hosts
                .iter()
                .flat_map(|h| matches.iter().map(move |m| (h, m)))
            {
                places.insert(format!("{} of {host} at {at}", shown(one)));
            }
        }
    }
    places
}

fn is_accepted(parent: &Value) -> bool {
    let accepted = |c: &Value| text(c, "/type") == "Accepted" && text(c, "/status") == "True";
    text(parent, "/controllerName") == CONTROLLER_NAME && items(parent, "/conditions").any(accepted)
}

fn parent_name(parent: &Value, here: &str) -> String {
    let kind = match text(parent, "/kind") {
        "" => "Gateway",
        kind => kind,
    };
    let namespace = match text(parent, "/namespace") {
        "" => here,
        other => other,
    };
    let mut name = format!("{kind} {namespace}/{}", text(parent, "/name"));
    let section = text(parent, "/sectionName");
    if !section.is_empty() {
        name.push_str(&format!(" ({section})"));
    }
    if let Some(port) = parent.get("port").and_then(Value::as_u64) {
        name.push_str(&format!(" port {port}"));
    }
    name
}

/// A match with its defaults, in a few words.
fn shown(one: &Value) -> String {
    let path = |member: &str, default: &str| match text(one, &format!("/path/{member}")) {
        "" => default.to_owned(),
        given => given.to_owned(),
    };
    let mut text = format!("{} {}", path("type", "PathPrefix"), path("value", "/"));
    for member in ["method", "headers", "queryParams"] {
        if let Some(more) = one.get(member) {
            text.push_str(&format!(" {member} {more}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(name: &str, created: &str, hosts: Value, matches: Value, accepted: &str) -> Value {
        json!({
            "kind": "HTTPRoute",
            "metadata": { "namespace": "shop", "name": name, "creationTimestamp": created },
            "spec": { "hostnames": hosts, "rules": [{ "matches": matches }] },
            "status": { "parents": [{
                "controllerName": CONTROLLER_NAME, "parentRef": { "name": "edge" },
                "conditions": [{ "type": "Accepted", "status": accepted }],
            }] },
        })
    }

    #[test]
    fn routes_that_match_the_same_are_told_and_others_are_not() {
        let path = |value: &str| json!([{ "path": { "type": "PathPrefix", "value": value } }]);
        let (a, b) = (json!(["a.example"]), json!(["b.example"]));
        let objects = vec![
            route("new", "2", a.clone(), path("/x"), "True"),
            route("old", "1", a.clone(), path("/x"), "True"),
            route("elsewhere", "1", b.clone(), path("/x"), "True"),
            route("other-path", "1", a.clone(), path("/y"), "True"),
            route("refused", "1", a, path("/x"), "False"),
            // The defaults are the same as what is said.
            route("all", "1", b.clone(), json!([]), "True"),
            route("root", "2", b, path("/"), "True"),
        ];
        let facts = Facts {
            objects,
            ..Facts::default()
        };
        let wrong = Report::wrong(|report| check(&facts, report));
        let found: Vec<&str> = wrong.iter().map(|f| f.finding.as_str()).collect();
        assert_eq!(
            found,
            [
                "HTTPRoute shop/root is not heard for PathPrefix / of b.example at Gateway shop/edge: \
                 shop/all says it, too, and is older",
                "HTTPRoute shop/new is not heard for PathPrefix /x of a.example at Gateway shop/edge: \
                 shop/old says it, too, and is older",
            ]
        );
    }
}
