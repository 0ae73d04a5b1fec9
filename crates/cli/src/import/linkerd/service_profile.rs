//! How a service is called: routes with their timeouts and retries become an HTTPRoute, the budget of retries a
//! TrafficPolicy. One of another namespace than its Service is for callers of that namespace, as such an HTTPRoute is, too.

use super::order::lose_outranking;
use crate::import::fields::{METHODS, carry, list, lose_rest, nest, take, text, time};
use crate::import::grants;
use crate::import::imported::{Imported, object};
use crate::import::services::{Named, Service};
use crate::import::source::Source;
use serde_json::{Map, Value, json};

const SEE: &str = "see docs/features/routing.md";

pub(super) fn import(mut source: Source, services: &[Service], imported: &mut Imported) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = source.id.clone();
    // A profile is named as the host that it is about.
    let Some(named) = Named::read(&source.name, &source, services) else {
        let why = format!("`{}` is no Service of this cluster", source.name);
        return imported.lose(
            &id,
            "metadata.name",
            &why,
            "an Egress has hosts outside: docs/features/egress.md",
        );
    };
    // A file may leave the profile's own namespace to whoever applies it.
    let is_of_callers = source.namespace.is_some() && source.namespace != named.namespace;
    budget(&id, &named, is_of_callers, &mut spec, imported);
    let backends = overrides(&id, &source, &mut spec, services, imported);
    let mut rules = Vec::new();
    for (number, route) in list(&mut spec, "routes").into_iter().enumerate() {
        let at = format!("spec.routes[{number}]");
        rules.extend(rule(&id, &at, route, imported).map(|rule| (at, rule)));
    }
    if !list(&mut spec, "opaquePorts").is_empty() {
        let why = "ports that are not looked into are an annotation";
        imported.lose(
            &id,
            "spec.opaquePorts",
            why,
            "tulle.dev/opaque-ports of the Service",
        );
    }
    lose_rest(imported, &id, "spec", &spec, SEE);
    if backends.is_none() && rules.is_empty() {
        return;
    }
    // A route that matches nothing more is for the rest.
    let needs_backends = backends.is_some()
        || rules
            .iter()
            .any(|(_, rule)| rule.get("timeouts").or(rule.get("retry")).is_some());
    if !needs_backends {
        let why = "its routes only name requests for metrics";
        return imported.lose(
            &id,
            "spec.routes",
            why,
            "the access log has paths; metrics go by service",
        );
    }
    let called = named.reference(source.namespace());
    let own = || {
        let port = named.find(services).and_then(Service::only_port)?;
        let mut backend = called.clone();
        backend.insert("port".into(), port.into());
        Some(vec![Value::from(backend)])
    };
    let Some(backends) = backends.or_else(own) else {
        let why = format!(
            "the Service {} is not among the objects, or has several ports",
            named.name
        );
        return imported.lose(
            &id,
            "spec.routes",
            &why,
            "give the Services, too: kubectl get services -A -o yaml",
        );
    };
    lose_outranking(&id, &rules, imported);
    let mut rules: Vec<Value> = rules.into_iter().map(|(_, rule)| rule).collect();
    rules.push(json!({}));
    for rule in &mut rules {
        rule["backendRefs"] = backends.clone().into();
    }
    // The namespace of callers may have a service of that name, too.
    let name = match (&named.namespace, is_of_callers) {
        (Some(there), true) => format!("{}-{there}", named.name),
        _ => named.name.clone(),
    };
    let mut parent = Map::new();
    parent.insert("group".into(), "".into());
    parent.insert("kind".into(), "Service".into());
    parent.extend(called);
    let spec = json!({ "parentRefs": [parent], "rules": rules });
    let grants = grants::note("HTTPRoute", source.namespace(), &spec);
    let mut route = object("HTTPRoute", source.namespace(), &name, spec);
    route["apiVersion"] = "gateway.networking.k8s.io/v1".into();
    imported.make(&id, route).notes.extend(grants);
}

/// `retryBudget`, which says how many retries may be added.
fn budget(id: &str, named: &Named, is_of_callers: bool, spec: &mut Value, imported: &mut Imported) {
    let Some(mut theirs) = take(spec, "retryBudget") else {
        return;
    };
    if is_of_callers {
        let why = "it was for callers of the profile's namespace, and a TrafficPolicy is for all callers of the Service";
        let instead = "write `retry.budget` of a TrafficPolicy for all of them, or leave it out: docs/manifests/traffic.md";
        return imported.lose(id, "spec.retryBudget", why, instead);
    }
    let mut ours = Map::new();
    if let Some(ratio) = take(&mut theirs, "retryRatio").and_then(|ratio| ratio.as_f64()) {
        // A share from 0 to 1.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let percent = (ratio * 100.0).round().clamp(1.0, 100.0) as u64;
        ours.insert("percent".into(), percent.into());
    }
    carry(
        &mut theirs,
        "minRetriesPerSecond",
        &mut ours,
        "minPerSecond",
    );
    // Ours is counted over ten seconds.
    take(&mut theirs, "ttl");
    lose_rest(imported, id, "spec.retryBudget", &theirs, "leave it out");
    let spec = json!({
        "targetRefs": [{ "kind": "Service", "name": named.name }], "retry": { "budget": ours },
    });
    imported.make(
        id,
        object(
            "TrafficPolicy",
            named.namespace.as_deref(),
            &named.name,
            spec,
        ),
    );
}

/// `dstOverrides`: where the requests of the service go instead. None: nothing is said, or it cannot be.
fn overrides(
    id: &str,
    source: &Source,
    spec: &mut Value,
    services: &[Service],
    imported: &mut Imported,
) -> Option<Vec<Value>> {
    let mut backends = Vec::new();
    for (number, mut one) in list(spec, "dstOverrides").into_iter().enumerate() {
        let at = format!("spec.dstOverrides[{number}]");
        let authority = text(&mut one, "authority").unwrap_or_default();
        let weight = take(&mut one, "weight");
        lose_rest(imported, id, &at, &one, SEE);
        let (host, port) = authority.rsplit_once(':').unwrap_or((&authority, ""));
        let found = Named::read(host.trim_end_matches('.'), source, services);
        let port = port.parse::<u64>().ok();
        let port = port.or_else(|| found.as_ref()?.find(services)?.only_port());
        let (Some(found), Some(port)) = (found, port) else {
            let why = format!("`{authority}` is no Service of this cluster whose port is known");
            imported.lose(id, &at, &why, "give the Services, too, or name the port");
            continue;
        };
        let mut backend = found.reference(source.namespace());
        backend.insert("port".into(), port.into());
        let Some(thousandths) = weight.as_ref().map_or(Some(1000), thousandths) else {
            let why = "a weight is a whole number, or one of thousandths with `m` behind it";
            imported.lose(
                id,
                &format!("{at}.weight"),
                why,
                "write the weight as a number",
            );
            continue;
        };
        backend.insert("weight".into(), thousandths.into());
        backends.push(backend.into());
    }
    (!backends.is_empty()).then_some(backends)
}

/// Reads a quantity of Kubernetes in thousandths: `500m` is a half. None: it is none, or too large.
fn thousandths(weight: &Value) -> Option<u64> {
    let whole = |whole: u64| whole.checked_mul(1000);
    match weight {
        Value::String(text) => match text.strip_suffix('m') {
            Some(number) => number.parse().ok(),
            None => text.parse().ok().and_then(whole),
        },
        other => other.as_u64().and_then(whole),
    }
}

/// A condition as a match; its parts, `all`, must hold together. None: it cannot be said.
fn one_match(
    id: &str,
    at: &str,
    mut condition: Value,
    imported: &mut Imported,
) -> Option<Map<String, Value>> {
    let before = imported.lost.len();
    let mut one = Map::new();
    let mut parts = list(&mut condition, "all");
    parts.push(condition);
    for mut part in parts {
        match text(&mut part, "method") {
            Some(method) if METHODS.contains(&method.as_str()) && !one.contains_key("method") => {
                one.insert("method".into(), method.into());
            }
            Some(_) => imported.lose(
                id,
                &format!("{at}.method"),
                "a match takes one, of the usual ones",
                SEE,
            ),
            None => {}
        }
        match text(&mut part, "pathRegex") {
            Some(path) if !one.contains_key("path") => {
                let path = json!({ "type": "RegularExpression", "value": path });
                one.insert("path".into(), path);
            }
            Some(_) => imported.lose(id, &format!("{at}.pathRegex"), "a match takes one", SEE),
            None => {}
        }
        lose_rest(
            imported,
            id,
            at,
            &part,
            "write the route anew: `match` of an HTTPFilter takes any condition",
        );
    }
    (imported.lost.len() == before).then_some(one)
}

/// A route as a rule. None: its condition cannot be said.
fn rule(id: &str, at: &str, mut route: Value, imported: &mut Imported) -> Option<Value> {
    take(&mut route, "name");
    let mut condition = take(&mut route, "condition").unwrap_or_else(|| json!({}));
    let mut matches = Vec::new();
    let mut any = list(&mut condition, "any");
    if any.is_empty() {
        any.push(condition);
    }
    for one in any {
        let one = one_match(id, &format!("{at}.condition"), one, imported)?;
        matches.push(Value::from(one));
    }
    let mut rule = Map::new();
    // Without a condition it is about everything.
    if matches
        .iter()
        .all(|one| one.as_object().is_some_and(|m| !m.is_empty()))
    {
        rule.insert("matches".into(), matches.into());
    }
    let mut timeouts = Map::new();
    time(
        id,
        at,
        &mut route,
        "timeout",
        &mut timeouts,
        "request",
        imported,
    );
    nest(&mut rule, "timeouts", timeouts);
    if take(&mut route, "isRetryable") == Some(Value::Bool(true)) {
        let codes: Vec<u16> = (500..=504).collect();
        rule.insert("retry".into(), json!({ "attempts": 1, "codes": codes }));
    }
    if take(&mut route, "responseClasses").is_some() {
        let why = "what counts as a failure is the same for all: 5xx, and gRPC's";
        imported.lose(id, &format!("{at}.responseClasses"), why, "leave it out");
    }
    lose_rest(imported, id, at, &route, SEE);
    Some(rule.into())
}
