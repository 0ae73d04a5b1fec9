//! Requests that rules of policies are about.

use super::hosts::hosts;
use super::path_templates::{any_path, is_known};
use super::ports::{Place, Wanted, both, numbers};
use crate::import::POLICY;
use crate::import::cel::{any, is_exact, negated};
use crate::import::fields::lose_rest;
use crate::import::imported::Imported;
use crate::import::texts;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Requests, to ports of the pods that conditions leave (`only`; none: any). None: no port is left.
pub(super) fn to(
    id: &str,
    at: &str,
    mut operation: Value,
    (place, only): (&Place<'_>, Option<BTreeSet<u64>>),
    when: &mut Vec<String>,
    imported: &mut Imported,
) -> Option<Map<String, Value>> {
    let mut to = Map::new();
    let mut ports = |name: &str| {
        let theirs = texts(&mut operation, name);
        numbers(id, &format!("{at}.{name}"), &theirs, imported)
    };
    let (theirs, not_ports) = (ports("ports"), ports("notPorts"));
    let mut can_match = true;
    if let Some(pods) = both(only, theirs) {
        can_match = !pods.is_empty();
        match place.wanted(&pods) {
            Wanted::Ports(own) => drop(to.insert("ports".into(), Vec::from_iter(own).into())),
            Wanted::Condition(condition) => when.push(condition),
        }
    }
    let methods = texts(&mut operation, "methods");
    match is_exact(&methods) {
        true => drop(to.insert("methods".into(), methods.into())),
        false => when.extend(any("request.method", &methods)),
    }
    let mut paths = |name: &str| {
        let paths = texts(&mut operation, name);
        if !paths.iter().all(|path| is_known(path)) {
            let why = "a template is for whole segments of a path: `{*}` or `{**}`";
            imported.lose(id, &format!("{at}.{name}"), why, POLICY);
        }
        paths
    };
    let (paths, not_paths) = (paths("paths"), paths("notPaths"));
    match is_exact(&paths) {
        true => {
            let exact = |path: &String| json!({ "type": "Exact", "value": path });
            to.insert(
                "paths".into(),
                paths.iter().map(exact).collect::<Vec<_>>().into(),
            );
        }
        false => when.extend(any_path(&paths)),
    }
    let mut hosts = |name: &str| {
        let theirs = texts(&mut operation, name);
        hosts(id, &format!("{at}.{name}"), &theirs, imported)
    };
    let (hosts, not_hosts) = (hosts("hosts"), hosts("notHosts"));
    when.extend(any("request.host", &hosts));
    let not_methods = texts(&mut operation, "notMethods");
    when.extend(negated(any("request.method", &not_methods)));
    when.extend(negated(any_path(&not_paths)));
    when.extend(negated(any("request.host", &not_hosts)));
    when.extend(place.unwanted(&not_ports.unwrap_or_default()));
    lose_rest(imported, id, at, &operation, POLICY);
    can_match.then_some(to)
}
