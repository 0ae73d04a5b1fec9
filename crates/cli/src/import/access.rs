//! Egress, IngressBackend and AccessControl.

use super::cel::any_network;
use super::fields::{carry, list, lose_rest, take, text};
use super::imported::{Imported, object};
use super::source::Source;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

const POLICY: &str =
    "write an AuthorizationPolicy: docs/manifests/access.md, or leave it out if all may call";

/// An Egress of theirs names callers of any namespace; one of ours is about its own. There is one for each.
pub(super) fn egress(mut source: Source, imported: &mut Imported) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = source.id.clone();
    let mut callers: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (number, mut caller) in list(&mut spec, "sources").into_iter().enumerate() {
        let at = format!("spec.sources[{number}]");
        let kind = text(&mut caller, "kind").unwrap_or_default();
        let (name, namespace) = (text(&mut caller, "name"), text(&mut caller, "namespace"));
        let namespace = namespace
            .or_else(|| source.namespace.clone())
            .unwrap_or_default();
        match name {
            Some(name) if kind == "ServiceAccount" => {
                let named = json!({ "kind": "ServiceAccount", "name": name });
                callers.entry(namespace).or_default().push(named);
            }
            _ => imported.lose(
                &id,
                &at,
                &format!("a source of kind `{kind}` is not known"),
                "name a ServiceAccount",
            ),
        }
        lose_rest(
            imported,
            &id,
            &at,
            &caller,
            "an Egress has tls.caCertificateRef for what a server must prove",
        );
    }
    let mut fields = Map::new();
    carry(&mut spec, "hosts", &mut fields, "hosts");
    carry(&mut spec, "ipAddresses", &mut fields, "ipAddresses");
    let is_nothing = |v: &Value| v.is_null() || v.as_array().is_some_and(Vec::is_empty);
    let for_any_port = spec.get("ports").is_none_or(is_nothing);
    let ports: Vec<Value> = list(&mut spec, "ports")
        .into_iter()
        .enumerate()
        .filter_map(|(number, port)| egress_port(&id, number, port, imported))
        .collect();
    if !ports.is_empty() {
        fields.insert("ports".into(), json!(ports));
    }
    let matches = egress_matches(&id, &mut spec, imported);
    if !matches.is_empty() {
        fields.insert("matches".into(), matches.into());
    }
    lose_rest(imported, &id, "spec", &spec, "leave it out");
    if fields.get("hosts").or(fields.get("ipAddresses")).is_none() {
        imported.lose(
            &id,
            "spec",
            "an Egress needs hosts or addresses; ports alone are not enough",
            "add `ipAddresses: [0.0.0.0/0]` for every address",
        );
        return;
    }
    // One that lost all its ports or its conditions would allow more than before.
    if ports.is_empty() && !for_any_port {
        return;
    }
    if imported
        .lost
        .iter()
        .any(|l| l.object == id && l.field.starts_with("spec.matches"))
    {
        return;
    }
    if callers.is_empty() {
        imported.lose(
            &id,
            "spec.sources",
            "nobody is named",
            "name the service accounts that may",
        );
    }
    for (namespace, sources) in callers {
        let mut own = fields.clone();
        own.insert("sources".into(), sources.into());
        let is_elsewhere = source.namespace.as_deref() != Some(&namespace);
        let namespace = Some(namespace.as_str()).filter(|n| !n.is_empty());
        let made = imported.make(&id, object("Egress", namespace, &source.name, own.into()));
        if is_elsewhere && made.object["spec"].get("matches").is_some() {
            made.notes
                .push("its HTTPRouteGroups must be in this namespace, too".into());
        }
    }
}

fn egress_port(id: &str, number: usize, mut port: Value, imported: &mut Imported) -> Option<Value> {
    let at = format!("spec.ports[{number}]");
    let mut fields = Map::new();
    carry(&mut port, "number", &mut fields, "number");
    let protocol = text(&mut port, "protocol")
        .unwrap_or_default()
        .to_lowercase();
    let ours = match protocol.as_str() {
        "http" | "https" | "tcp" | "tls" => protocol.as_str(),
        // A server that speaks first is what `tcp` is for: nothing is waited for.
        "tcp-server-first" => "tcp",
        _ => {
            imported.lose(
                id,
                &format!("{at}.protocol"),
                &format!("`{protocol}` is not known"),
                "say http, https, tls or tcp",
            );
            return None;
        }
    };
    fields.insert("protocol".into(), ours.into());
    lose_rest(imported, id, &at, &port, "leave it out");
    Some(fields.into())
}

fn egress_matches(id: &str, spec: &mut Value, imported: &mut Imported) -> Vec<Value> {
    let mut ours = Vec::new();
    for (number, mut one) in list(spec, "matches").into_iter().enumerate() {
        let at = format!("spec.matches[{number}]");
        take(&mut one, "apiGroup");
        let (kind, name) = (text(&mut one, "kind"), text(&mut one, "name"));
        match (kind.as_deref(), name) {
            (Some("HTTPRouteGroup"), Some(name)) => {
                ours.push(json!({ "kind": "HTTPRouteGroup", "name": name }));
            }
            (Some("UpstreamTrafficSetting"), Some(name)) => imported.lose(
                id,
                &at,
                &format!("the setting {name} is about an outside host, and a TrafficPolicy is about services of the mesh"),
                "leave it out, and make the Egress again without it",
            ),
            _ => imported.lose(id, &at, "it names no HTTPRouteGroup", "name one"),
        }
        lose_rest(imported, id, &at, &one, "leave it out");
    }
    ours
}

/// IngressBackend and AccessControl, which have the same fields. One of theirs demands an address and, where the backend
/// demands a client certificate, a principal, too; in one of ours either is enough. So one with both, or with conditions on
/// requests, of `groups`, becomes an AuthorizationPolicy.
pub(super) fn backend(mut source: Source, groups: &[Value], imported: &mut Imported) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = source.id.clone();
    let before = imported.lost.len();
    let mut notes = Vec::new();
    let (backends, by_certificate) = backends(&id, &mut spec, &mut notes, imported);
    let given = list(&mut spec, "sources");
    let matches = list(&mut spec, "matches");
    lose_rest(imported, &id, "spec", &spec, POLICY);
    let is_whole = imported.lost.len() == before;
    // One source that is lost leaves fewer callers, but without all of its kind a demand is gone.
    let (mut ranges, mut principals) = (Vec::new(), Vec::new());
    for (number, one) in given.iter().enumerate() {
        match backend_source(&id, &format!("spec.sources[{number}]"), one, imported) {
            Some(Caller::Range(name)) => ranges.push(name),
            Some(Caller::Principal(name)) => principals.push(name),
            None => {}
        }
    }
    let is_principal = |one: &Value| one["kind"] == "AuthenticatedPrincipal";
    let gone = if by_certificate && principals.is_empty() && given.iter().any(is_principal) {
        Some((
            "no principal is left, and clients that are let in by address need no certificate",
            "name clients of this mesh by their SPIFFE ids; others have to be trusted by address",
        ))
    } else if ranges.is_empty() && (principals.is_empty() || !given.iter().all(is_principal)) {
        Some((
            "no address is left, and without one nobody would be let in, or others than before",
            "name clients by IPRange",
        ))
    } else {
        None
    };
    if let Some((why, instead)) = gone {
        imported.lose(&id, "spec.sources", why, instead);
    }
    if gone.is_some() || !is_whole {
        return;
    }
    let mut from = Map::new();
    let mut when = None;
    if by_certificate {
        when = any_network(&ranges);
    } else if !ranges.is_empty() {
        if !principals.is_empty() {
            notes.push("spec.sources: principals counted only with client certificates".into());
        }
        principals.clear();
        from.insert("networks".into(), json!(ranges));
    }
    if !principals.is_empty() {
        from.insert("principals".into(), json!(principals));
    }
    let (kind, spec) = if matches.is_empty() && when.is_none() {
        let range = |name: &String| json!({ "kind": "IPRange", "name": name });
        let principal = |name: &String| json!({ "kind": "AuthenticatedPrincipal", "name": name });
        let principals = principals.iter().map(principal);
        let sources: Vec<Value> = ranges.iter().map(range).chain(principals).collect();
        let spec = json!({ "backends": Value::Array(backends), "sources": sources });
        (source.kind.as_str(), spec)
    } else {
        let everything = json!({});
        let calls = match matches.is_empty() {
            true => Some(vec![&everything]),
            false => calls(&source, &matches, groups, imported),
        };
        let Some(calls) = calls else {
            return;
        };
        let rules = rules(&from, when.as_deref(), &calls);
        let spec = json!({ "targetRefs": backends, "action": "Allow", "rules": rules });
        ("AuthorizationPolicy", spec)
    };
    let ours = object(kind, source.namespace(), &source.name, spec);
    imported.make(&id, ours).notes = notes;
}

/// Reads the backends, and whether they demand a client certificate.
fn backends(
    id: &str,
    spec: &mut Value,
    notes: &mut Vec<String>,
    imported: &mut Imported,
) -> (Vec<Value>, bool) {
    let mut backends = Vec::new();
    let mut by_certificate = BTreeSet::new();
    for (number, mut backend) in list(spec, "backends").into_iter().enumerate() {
        let at = format!("spec.backends[{number}]");
        let mut fields = Map::new();
        carry(&mut backend, "name", &mut fields, "name");
        carry(&mut backend, "port/number", &mut fields, "port");
        if !fields.contains_key("port") {
            let why = "it names no port, and without one it would be about all of them";
            imported.lose(id, &format!("{at}.port.number"), why, "name the port");
        }
        // Which protocol is spoken the Service says, and the sidecar sees.
        let protocol = text(&mut backend, "port/protocol").unwrap_or_default();
        let skip = take(&mut backend, "tls/skipClientCertValidation");
        by_certificate
            .insert(protocol.eq_ignore_ascii_case("https") && skip != Some(Value::Bool(true)));
        if backend.get("tls").is_some() {
            notes.push(format!(
                "{at}.tls: the sidecar takes mutual TLS in any case"
            ));
        }
        // `tls.sniHosts` is left: it is a demand, too.
        lose_rest(imported, id, &at, &backend, POLICY);
        backends.push(fields.into());
    }
    if by_certificate.len() > 1 {
        let why = "some of them demand a client certificate, and others do not";
        let instead = "make an object for each of the two before";
        imported.lose(id, "spec.backends", why, instead);
    }
    (backends, by_certificate.contains(&true))
}

/// The requests that HTTPRouteGroups name. None: one of them is unknown, and without it others would be let in.
fn calls<'g>(
    source: &Source,
    matches: &[Value],
    groups: &'g [Value],
    imported: &mut Imported,
) -> Option<Vec<&'g Value>> {
    let mut calls = Vec::new();
    for (number, one) in matches.iter().enumerate() {
        let is_it = |group: &&Value| {
            one["kind"] == group["kind"]
                && one["name"] == group["metadata"]["name"]
                && group["metadata"]["namespace"].as_str() == source.namespace()
        };
        let Some(group) = groups.iter().find(is_it) else {
            imported.lose(
                &source.id,
                &format!("spec.matches[{number}]"),
                "it is no HTTPRouteGroup among the objects",
                "give it, too, or make an AuthorizationPolicy for the Service with `from.networks` and `to`",
            );
            return None;
        };
        let given = group["spec"]["matches"].as_array();
        let given: Vec<&Value> = given.into_iter().flatten().collect();
        let is_whole = one.as_object().is_some_and(|fields| {
            let mut names = fields.keys();
            names.all(|name| matches!(name.as_str(), "apiGroup" | "kind" | "name"))
        });
        if !is_whole || given.is_empty() || !given.iter().all(|call| is_readable(call)) {
            imported.lose(
                &source.id,
                &format!("spec.matches[{number}]"),
                "it or its HTTPRouteGroup has a part that cannot be read, and without the part more would be let in",
                "put it right, or make an AuthorizationPolicy for the Service with `from.networks` and `to`",
            );
            return None;
        }
        calls.extend(given);
    }
    Some(calls)
}

/// Whether each field of a match of an HTTPRouteGroup is known, and of its kind.
fn is_readable(call: &Value) -> bool {
    let is_text = |v: &Value| v.is_string();
    let are_texts = |v: &Value| v.as_object().is_some_and(|m| m.values().all(is_text));
    let all = |v: &Value, is_meant: &dyn Fn(&Value) -> bool| {
        v.as_array().is_some_and(|items| items.iter().all(is_meant))
    };
    call.as_object().is_some_and(|fields| {
        let mut fields = fields.iter();
        fields.all(|(name, value)| {
            value.is_null()
                || match name.as_str() {
                    "name" | "pathRegex" => is_text(value),
                    "methods" => all(value, &is_text),
                    "headers" => are_texts(value) || all(value, &are_texts),
                    _ => false,
                }
        })
    })
}

/// A rule for each kind of request, with a condition that all of them have.
fn rules(from: &Map<String, Value>, when: Option<&str>, calls: &[&Value]) -> Vec<Value> {
    let rule = |call: &&Value| {
        let mut to = Map::new();
        let methods = call["methods"].as_array().cloned().unwrap_or_default();
        if !methods.is_empty() && !methods.contains(&"*".into()) {
            to.insert("methods".into(), methods.into());
        }
        let regex = "RegularExpression";
        if let Some(path) = call.get("pathRegex").filter(|path| !path.is_null()) {
            to.insert("paths".into(), json!([{ "type": regex, "value": path }]));
        }
        // A list of mappings, or one.
        let given = &call["headers"];
        let maps = given
            .as_array()
            .map_or(std::slice::from_ref(given), Vec::as_slice);
        let fields = maps.iter().filter_map(Value::as_object).flatten();
        let header = |(name, value)| json!({ "type": regex, "name": name, "value": value });
        let headers: Vec<Value> = fields.map(header).collect();
        if !headers.is_empty() {
            to.insert("headers".into(), headers.into());
        }
        if let Some(when) = when {
            to.insert("when".into(), when.into());
        }
        let mut rule = Map::new();
        if !from.is_empty() {
            rule.insert("from".into(), from.clone().into());
        }
        if !to.is_empty() {
            rule.insert("to".into(), to.into());
        }
        Value::from(rule)
    };
    calls.iter().map(rule).collect()
}

/// A source that has a counterpart.
enum Caller {
    Range(String),
    Principal(String),
}

/// Reads a source. `None`: it is lost, or a part of it.
fn backend_source(id: &str, at: &str, one: &Value, imported: &mut Imported) -> Option<Caller> {
    let mut one = one.clone();
    let before = imported.lost.len();
    let kind = text(&mut one, "kind").unwrap_or_default();
    let name = text(&mut one, "name").unwrap_or_default();
    let namespace = text(&mut one, "namespace").unwrap_or_default();
    lose_rest(imported, id, at, &one, "leave it out");
    if imported.lost.len() > before {
        return None;
    }
    let (why, instead) = match kind.as_str() {
        "IPRange" => return Some(Caller::Range(name)),
        "AuthenticatedPrincipal" if name.starts_with("spiffe://") => {
            return Some(Caller::Principal(name));
        }
        "AuthenticatedPrincipal" => (
            format!(
                "`{name}` is no SPIFFE id, and only this mesh makes certificates that it accepts"
            ),
            "name a client of this mesh by its SPIFFE id",
        ),
        "Service" => (
            format!(
                "Service {namespace}/{name} is let in by what its pods' addresses are, which change"
            ),
            "let it in by a source of kind IPRange; or put it into the mesh, and name it as Service: then its identity counts",
        ),
        _ => (
            format!("a source of kind `{kind}` is not known"),
            "name an IPRange",
        ),
    };
    imported.lose(id, at, &why, instead);
    None
}
