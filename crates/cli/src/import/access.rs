//! Egress, IngressBackend and AccessControl.

use super::fields::{carry, list, lose_rest, take, text};
use super::imported::{Imported, object};
use super::source::Source;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

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
    let ports: Vec<Value> = list(&mut spec, "ports")
        .into_iter()
        .enumerate()
        .filter_map(|(number, port)| egress_port(&id, number, port, imported))
        .collect();
    if !ports.is_empty() {
        fields.insert("ports".into(), ports.into());
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
    // One that lost its conditions would allow more than before.
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

/// IngressBackend and AccessControl, which have the same fields. One with conditions on requests, of `groups`, becomes an
/// AuthorizationPolicy, which has such.
pub(super) fn backend(mut source: Source, groups: &[Value], imported: &mut Imported) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = source.id.clone();
    let mut notes = Vec::new();
    let mut backends = Vec::new();
    for (number, mut backend) in list(&mut spec, "backends").into_iter().enumerate() {
        let at = format!("spec.backends[{number}]");
        let mut fields = Map::new();
        carry(&mut backend, "name", &mut fields, "name");
        carry(&mut backend, "port/number", &mut fields, "port");
        // Which protocol is spoken the Service says, and the sidecar sees.
        take(&mut backend, "port/protocol");
        if take(&mut backend, "tls").is_some() {
            notes.push(format!(
                "{at}.tls: the sidecar takes mutual TLS in any case"
            ));
        }
        lose_rest(imported, &id, &at, &backend, "leave it out");
        backends.push(fields.into());
    }
    let mut sources = Vec::new();
    for (number, mut one) in list(&mut spec, "sources").into_iter().enumerate() {
        let at = format!("spec.sources[{number}]");
        if let Some(one) = backend_source(&id, &at, &mut one, imported) {
            sources.push(one);
        }
        lose_rest(imported, &id, &at, &one, "leave it out");
    }
    let matches = list(&mut spec, "matches");
    lose_rest(imported, &id, "spec", &spec, "leave it out");
    if sources.is_empty() {
        imported.lose(
            &id,
            "spec.sources",
            "none is left, so nobody would be let in",
            "name clients by IPRange",
        );
        return;
    }
    let (kind, spec) = if matches.is_empty() {
        let spec = json!({ "backends": Value::Array(backends), "sources": sources });
        (source.kind.as_str(), spec)
    } else {
        let Some(calls) = calls(&source, &matches, groups, imported) else {
            return;
        };
        let spec =
            json!({ "targetRefs": backends, "action": "Allow", "rules": rules(&sources, &calls) });
        ("AuthorizationPolicy", spec)
    };
    let ours = object(kind, source.namespace(), &source.name, spec);
    imported.make(&id, ours).notes = notes;
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
        calls.extend(group["spec"]["matches"].as_array().into_iter().flatten());
    }
    Some(calls)
}

/// A rule for each kind of request.
fn rules(sources: &[Value], calls: &[&Value]) -> Vec<Value> {
    let mut from = Map::new();
    for (kind, list) in [
        ("IPRange", "networks"),
        ("AuthenticatedPrincipal", "principals"),
    ] {
        let of_kind = sources.iter().filter(|one| one["kind"] == kind);
        let names: Vec<&Value> = of_kind.map(|one| &one["name"]).collect();
        if !names.is_empty() {
            from.insert(list.into(), json!(names));
        }
    }
    let rule = |call: &&Value| {
        let mut to = Map::new();
        let methods = call["methods"].as_array().cloned().unwrap_or_default();
        if !methods.is_empty() && !methods.contains(&"*".into()) {
            to.insert("methods".into(), methods.into());
        }
        let regex = "RegularExpression";
        if let Some(path) = call.get("pathRegex") {
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
        let mut rule = Map::new();
        rule.insert("from".into(), from.clone().into());
        if !to.is_empty() {
            rule.insert("to".into(), to.into());
        }
        Value::from(rule)
    };
    calls.iter().map(rule).collect()
}

fn backend_source(id: &str, at: &str, one: &mut Value, imported: &mut Imported) -> Option<Value> {
    let kind = text(one, "kind").unwrap_or_default();
    let name = text(one, "name").unwrap_or_default();
    let namespace = text(one, "namespace").unwrap_or_default();
    match kind.as_str() {
        "IPRange" => Some(json!({ "kind": "IPRange", "name": name })),
        "AuthenticatedPrincipal" if name.starts_with("spiffe://") => {
            Some(json!({ "kind": "AuthenticatedPrincipal", "name": name }))
        }
        "AuthenticatedPrincipal" => {
            imported.lose(
                id,
                at,
                &format!("`{name}` is no SPIFFE id, and only this mesh makes certificates that it accepts"),
                "let the client in by its addresses, with a source of kind IPRange",
            );
            None
        }
        "Service" => {
            imported.lose(
                id,
                at,
                &format!("Service {namespace}/{name} is let in by what its pods' addresses are, which change"),
                "let it in by a source of kind IPRange; or put it into the mesh, and name it as Service: then its identity counts",
            );
            None
        }
        _ => {
            imported.lose(
                id,
                at,
                &format!("a source of kind `{kind}` is not known"),
                "name an IPRange",
            );
            None
        }
    }
}
