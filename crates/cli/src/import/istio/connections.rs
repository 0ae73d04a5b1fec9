//! Connections that are not HTTP: a TLSRoute or TCPRoute for each rule of `tls` or `tcp`. Such a route has one rule and one
//! list of server names, so matches with other names get a route of their own.

use super::exported::{is_elsewhere, named, namespaces_elsewhere};
use super::matches::SEE;
use super::virtual_service::Virtual;
use crate::import::fields::{list, lose_rest, take};
use crate::import::grants;
use crate::import::imported::{Imported, object};
use crate::import::texts;
use serde_json::{Value, json};

const MATCH: &str =
    "choose by port and server name, or let an AuthorizationPolicy say who may connect";

/// Server names, and the ports (null: all) at which a rule names these.
type Place = (Vec<String>, Vec<Value>);

/// Makes the routes of a kind with the rules that are for these gateways.
pub(super) fn route(
    read: &Virtual<'_>,
    (kind, field): (&str, &str),
    name: &str,
    parents: &[Value],
    (rules, gateways): (&[Value], &[&str]),
    imported: &mut Imported,
) {
    let (there, here): (Vec<Value>, Vec<Value>) = parents.iter().cloned().partition(is_elsewhere);
    let namespace = read.source.namespace();
    let mut count = 0;
    for (number, rule) in rules.iter().enumerate() {
        let at = format!("spec.{field}[{number}]");
        let mut rule = rule.clone();
        let places = places(&read.id, &at, &mut rule, gateways, imported);
        if !places.is_empty() && !there.is_empty() {
            let why = format!(
                "a {kind} for a Service of another namespace would be for callers of {} alone, which is not supported",
                namespace.unwrap_or("its own namespace")
            );
            let instead = format!("put it into {}", named(&namespaces_elsewhere(&there)));
            imported.lose(&read.id, &at, &why, &instead);
        }
        if places.is_empty() || here.is_empty() {
            continue;
        }
        let backends = read.backends(&at, &mut rule, imported);
        lose_rest(imported, &read.id, &at, &rule, SEE);
        if backends.is_empty() {
            continue;
        }
        for (names, ports) in places {
            count += 1;
            let name = match count {
                1 => name.to_owned(),
                _ => format!("{name}-{count}"),
            };
            let spec = json!({
                "parentRefs": at_ports(&here, &ports), "rules": [{ "backendRefs": backends }],
            });
            let grants = grants::note(kind, namespace, &spec);
            let mut route = object(kind, namespace, &name, spec);
            route["apiVersion"] = "gateway.networking.k8s.io/v1".into();
            if !names.is_empty() {
                route["spec"]["hostnames"] = json!(names);
            }
            imported.make(&read.id, route).notes.extend(grants);
        }
    }
}

/// Takes the matches of a rule. One with a part that has no counterpart is left out: without the part it would match more.
fn places(
    id: &str,
    at: &str,
    rule: &mut Value,
    gateways: &[&str],
    imported: &mut Imported,
) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    let given = list(rule, "match");
    if given.is_empty() {
        places.push((Vec::new(), vec![Value::Null]));
    }
    for (number, mut one) in given.into_iter().enumerate() {
        let only = texts(&mut one, "gateways");
        if !only.is_empty() && !only.iter().any(|g| gateways.contains(&g.as_str())) {
            continue;
        }
        let port = take(&mut one, "port").unwrap_or_default();
        let mut names = texts(&mut one, "sniHosts");
        // Any server, for which a route names none.
        if names.iter().any(|name| name == "*") {
            names.clear();
        }
        let before = imported.lost.len();
        lose_rest(imported, id, &format!("{at}.match[{number}]"), &one, MATCH);
        if imported.lost.len() == before {
            match places.iter_mut().find(|(known, _)| *known == names) {
                Some((_, ports)) => ports.push(port),
                None => places.push((names, vec![port])),
            }
        }
    }
    places
}

/// Each parent at each port.
fn at_ports(parents: &[Value], ports: &[Value]) -> Vec<Value> {
    if ports.contains(&Value::Null) {
        return parents.to_vec();
    }
    let mut all = Vec::new();
    for parent in parents {
        for port in ports {
            let mut parent = parent.clone();
            parent["port"] = port.clone();
            all.push(parent);
        }
    }
    all
}
