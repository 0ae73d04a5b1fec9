//! Requests that rules of policies are about.

use super::path_templates::{any_path, is_known};
use super::ports::{Place, of_service};
use crate::import::POLICY;
use crate::import::cel::{any, is_exact, negated};
use crate::import::fields::lose_rest;
use crate::import::imported::Imported;
use crate::import::texts;
use serde_json::{Map, Value, json};

/// Requests. None: no port of the Service can match.
pub(super) fn to(
    id: &str,
    at: &str,
    mut operation: Value,
    place: &Place<'_>,
    when: &mut Vec<String>,
    imported: &mut Imported,
) -> Option<Map<String, Value>> {
    let mut to = Map::new();
    let theirs = texts(&mut operation, "ports");
    let not = texts(&mut operation, "notPorts");
    let at_ports = format!("{at}.ports");
    let given = of_service(id, &at_ports, &theirs, place, imported);
    let not = of_service(id, &at_ports, &not, place, imported);
    let can_match = theirs.is_empty() || !given.is_empty();
    if !given.is_empty() {
        to.insert(
            "ports".into(),
            given.into_iter().collect::<Vec<u64>>().into(),
        );
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
    when.extend(any("request.host", &texts(&mut operation, "hosts")));
    let not_methods = texts(&mut operation, "notMethods");
    when.extend(negated(any("request.method", &not_methods)));
    when.extend(negated(any_path(&not_paths)));
    let not_hosts = texts(&mut operation, "notHosts");
    when.extend(negated(any("request.host", &not_hosts)));
    when.extend(
        not.into_iter()
            .map(|number| format!("destination.port != {number}")),
    );
    lose_rest(imported, id, at, &operation, POLICY);
    can_match.then_some(to)
}
