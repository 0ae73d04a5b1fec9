//! UpstreamTrafficSetting and Retry, which become TrafficPolicies and RateLimits: one policy for each service, as one
//! alone holds for a port.

use super::fields::{carry, list, lose_rest, nest, take, text, time};
use super::imported::{Imported, object};
use super::source::Source;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A service: its namespace, if one is said, and its name.
type Service = (Option<String>, String);

/// Settings of a service so far.
#[derive(Default)]
struct Policy {
    from: Vec<String>,
    notes: Vec<String>,
    spec: Map<String, Value>,
}

/// Policies of all services.
#[derive(Default)]
pub(super) struct Policies {
    by_service: BTreeMap<Service, Policy>,
    /// Services that have an UpstreamTrafficSetting, by its id.
    set: BTreeMap<Service, String>,
}

impl Policies {
    fn policy(&mut self, service: &Service, from: &str) -> &mut Policy {
        let policy = self.by_service.entry(service.clone()).or_default();
        if !policy.from.iter().any(|known| known == from) {
            policy.from.push(from.to_owned());
        }
        policy
    }

    /// UpstreamTrafficSetting.
    pub(super) fn setting(&mut self, mut source: Source, imported: &mut Imported) {
        let mut spec = std::mem::take(&mut source.spec);
        let id = source.id.clone();
        let host = text(&mut spec, "host").unwrap_or_default();
        let Some(service) = service_of(&host, &source) else {
            imported.lose(
                &id,
                "spec.host",
                &format!(
                    "`{host}` is no Service of this cluster, and a TrafficPolicy is about Services"
                ),
                "leave it out",
            );
            return;
        };
        // Its RateLimit would take the place of the other one's.
        if let Some(other) = self.set.get(&service) {
            let why = format!("{other} is about the same service, and one policy holds for it");
            return imported.lose(&id, "spec.host", &why, "put both into one");
        }
        self.set.insert(service.clone(), id.clone());
        let mut policy = Map::new();
        connections(&id, &mut spec, &mut policy, imported);
        breaker(&id, &mut spec, &mut policy, imported);
        if !policy.is_empty() {
            let known = self.policy(&service, &id);
            known.spec.extend(policy);
        }
        rate_limit(&id, &service, &mut spec, imported);
        lose_rest(
            imported,
            &id,
            "spec",
            &spec,
            "see docs/manifests/traffic.md",
        );
    }

    /// Retry.
    pub(super) fn retry(&mut self, mut source: Source, imported: &mut Imported) {
        let mut spec = std::mem::take(&mut source.spec);
        let id = source.id.clone();
        let caller = text(&mut spec, "source/name").unwrap_or_default();
        take(&mut spec, "source");
        let retry = retry(&id, &mut spec, imported);
        for mut destination in list(&mut spec, "destinations") {
            let Some(name) = text(&mut destination, "name") else {
                imported.lose(&id, "spec.destinations", "it names no service", "name one");
                continue;
            };
            let namespace =
                text(&mut destination, "namespace").or_else(|| source.namespace.clone());
            let policy = self.policy(&(namespace, name), &id);
            if policy
                .spec
                .insert("retry".into(), retry.clone().into())
                .is_some()
            {
                imported.lose(&id, "spec", "another Retry is about the same service, and the last one counts",
                    "one policy holds for all callers of a service; retries of one caller are an HTTPRoute's");
            }
        }
        let note = format!("retry: for every caller, not only for {caller}");
        for policy in self
            .by_service
            .values_mut()
            .filter(|p| p.from.contains(&id))
        {
            if !policy.notes.contains(&note) {
                policy.notes.push(note.clone());
            }
        }
        lose_rest(
            imported,
            &id,
            "spec",
            &spec,
            "see docs/manifests/traffic.md",
        );
    }

    /// Prints them.
    pub(super) fn finish(self, imported: &mut Imported) {
        for ((namespace, name), policy) in self.by_service {
            let mut spec = policy.spec;
            spec.insert(
                "targetRefs".into(),
                json!([{ "kind": "Service", "name": name }]),
            );
            let made = imported.make(
                "",
                object("TrafficPolicy", namespace.as_deref(), &name, spec.into()),
            );
            made.from = policy.from;
            made.notes = policy.notes;
        }
    }
}

/// The service that a host is: `name`, `name.namespace` and longer forms. None: it is not of a cluster.
pub(super) fn service_of(host: &str, source: &Source) -> Option<Service> {
    let mut labels = host.split('.');
    let name = labels.next().filter(|n| !n.is_empty() && *n != "*")?;
    let own = source.namespace.clone();
    let rest: Vec<&str> = labels.collect();
    let namespace = match rest.as_slice() {
        [] => own,
        [namespace] | [namespace, "svc"] | [namespace, "svc", ..] => Some((*namespace).to_owned()),
        _ => return None,
    };
    Some((namespace, name.to_owned()))
}

fn connections(
    id: &str,
    spec: &mut Value,
    policy: &mut Map<String, Value>,
    imported: &mut Imported,
) {
    let mut limits = Map::new();
    carry(
        spec,
        "connectionSettings/tcp/maxConnections",
        &mut limits,
        "maxConnections",
    );
    for name in [
        "maxRequests",
        "maxPendingRequests",
        "maxRetries",
        "maxRequestsPerConnection",
    ] {
        carry(
            spec,
            &format!("connectionSettings/http/{name}"),
            &mut limits,
            name,
        );
    }
    nest(policy, "connections", limits);
    let mut timeouts = Map::new();
    time(
        id,
        "spec",
        spec,
        "connectionSettings/tcp/connectTimeout",
        &mut timeouts,
        "connect",
        imported,
    );
    nest(policy, "timeouts", timeouts);
}

/// Circuit breaking of osm-edge and FSM.
fn breaker(id: &str, spec: &mut Value, policy: &mut Map<String, Value>, imported: &mut Imported) {
    let Some(mut theirs) = take(spec, "connectionSettings/http/circuitBreaking") else {
        return;
    };
    let mut breaker = Map::new();
    time(
        id,
        "spec",
        &mut theirs,
        "statTimeWindow",
        &mut breaker,
        "window",
        imported,
    );
    carry(&mut theirs, "minRequestAmount", &mut breaker, "minRequests");
    let mut slow = Map::new();
    time(
        id,
        "spec",
        &mut theirs,
        "slowTimeThreshold",
        &mut slow,
        "threshold",
        imported,
    );
    carry(&mut theirs, "slowAmountThreshold", &mut slow, "amount");
    share(id, &mut theirs, "slowRatioThreshold", &mut slow, imported);
    // A threshold alone opens nothing.
    if slow.len() > 1 || !slow.contains_key("threshold") {
        nest(&mut breaker, "slow", slow);
    }
    let mut errors = Map::new();
    carry(&mut theirs, "errorAmountThreshold", &mut errors, "amount");
    share(
        id,
        &mut theirs,
        "errorRatioThreshold",
        &mut errors,
        imported,
    );
    nest(&mut breaker, "errors", errors);
    time(
        id,
        "spec",
        &mut theirs,
        "degradedTimeWindow",
        &mut breaker,
        "openFor",
        imported,
    );
    carry(&mut theirs, "degradedStatusCode", &mut breaker, "status");
    carry(&mut theirs, "degradedResponseContent", &mut breaker, "body");
    let at = "spec.connectionSettings.http.circuitBreaking";
    lose_rest(
        imported,
        id,
        at,
        &theirs,
        "see circuitBreaker of docs/manifests/traffic.md",
    );
    nest(policy, "circuitBreaker", breaker);
}

/// A ratio from 0 to 1 as a percentage.
fn share(
    id: &str,
    from: &mut Value,
    name: &str,
    to: &mut Map<String, Value>,
    imported: &mut Imported,
) {
    let Some(value) = take(from, name) else {
        return;
    };
    let ratio = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    match ratio.filter(|r| *r > 0.0 && *r <= 1.0) {
        Some(ratio) => {
            let hundredths = (ratio * 10_000.0).round() / 100.0;
            to.insert("percentage".into(), format!("{hundredths}%").into());
        }
        None => imported.lose(
            id,
            name,
            &format!("{value} is no share from 0 to 1"),
            "set `percentage`",
        ),
    }
}

fn rate_limit(id: &str, service: &Service, spec: &mut Value, imported: &mut Imported) {
    let mut fields = Map::new();
    if let Some(mut tcp) = take(spec, "rateLimit/local/tcp") {
        let counted = bucket(id, &mut tcp, "connections", imported);
        nest(&mut fields, "connections", counted);
        lose_rest(
            imported,
            id,
            "spec.rateLimit.local.tcp",
            &tcp,
            "leave it out",
        );
    }
    if let Some(mut http) = take(spec, "rateLimit/local/http") {
        let counted = requests(id, &mut http, imported);
        nest(&mut fields, "requests", counted);
        lose_rest(
            imported,
            id,
            "spec.rateLimit.local.http",
            &http,
            "leave it out",
        );
    }
    if take(spec, "rateLimit/global").is_some() {
        imported.lose(
            id,
            "spec.rateLimit.global",
            "nothing is counted for the whole mesh",
            "give each of the workloads its part by a local limit",
        );
    }
    let mut rules = Vec::new();
    for (number, mut route) in list(spec, "httpRoutes").into_iter().enumerate() {
        let at = format!("spec.httpRoutes[{number}]");
        let path = text(&mut route, "path").unwrap_or_default();
        if let Some(mut limit) = take(&mut route, "rateLimit/local") {
            let counted = requests(id, &mut limit, imported);
            rules.push(json!({
                "to": { "paths": [{ "type": "RegularExpression", "value": path }] },
                "requests": counted,
            }));
            lose_rest(
                imported,
                id,
                &format!("{at}.rateLimit.local"),
                &limit,
                "leave it out",
            );
        }
        lose_rest(
            imported,
            id,
            &at,
            &route,
            "give each of the workloads its part by a local limit",
        );
    }
    if !rules.is_empty() {
        fields.insert("rules".into(), rules.into());
    }
    if fields.is_empty() {
        return;
    }
    let (namespace, name) = service;
    fields.insert(
        "targetRefs".into(),
        json!([{ "kind": "Service", "name": name }]),
    );
    let made = imported.make(
        id,
        object("RateLimit", namespace.as_deref(), name, fields.into()),
    );
    made.notes.push(
        "each workload of the service keeps it for itself, all threads of its sidecar together"
            .into(),
    );
}

/// Requests of an interval, and the answer to what is too much.
fn requests(id: &str, limit: &mut Value, imported: &mut Imported) -> Map<String, Value> {
    let mut counted = bucket(id, limit, "requests", imported);
    carry(limit, "responseStatusCode", &mut counted, "status");
    carry(limit, "responseHeadersToAdd", &mut counted, "headers");
    counted
}

fn bucket(id: &str, limit: &mut Value, what: &str, imported: &mut Imported) -> Map<String, Value> {
    let mut counted = Map::new();
    carry(limit, what, &mut counted, "count");
    carry(limit, "burst", &mut counted, "burst");
    let unit = text(limit, "unit").unwrap_or_default();
    let per = match unit.as_str() {
        "" | "second" => "1s",
        "minute" => "1m",
        "hour" => "1h",
        _ => {
            imported.lose(id, "unit", &format!("`{unit}` is not known"), "set `per`");
            "1s"
        }
    };
    counted.insert("per".into(), per.into());
    counted
}

/// Reads Envoy's names for what is tried again.
fn retry(id: &str, spec: &mut Value, imported: &mut Imported) -> Map<String, Value> {
    let mut retry = Map::new();
    carry(spec, "retryPolicy/numRetries", &mut retry, "attempts");
    time(
        id,
        "spec",
        spec,
        "retryPolicy/perTryTimeout",
        &mut retry,
        "perTryTimeout",
        imported,
    );
    time(
        id,
        "spec",
        spec,
        "retryPolicy/retryBackoffBaseInterval",
        &mut retry,
        "backoff",
        imported,
    );
    let (mut on, mut codes, mut grpc) = (Vec::new(), Vec::new(), Vec::new());
    let asked = text(spec, "retryPolicy/retryOn").unwrap_or_default();
    for condition in asked.split(',').map(str::trim).filter(|c| !c.is_empty()) {
        match condition {
            "5xx" => {
                on.extend(["connect-failure", "reset", "timeout"]);
                codes.extend([500, 501, 502, 503, 504, 505]);
            }
            "gateway-error" => codes.extend([502, 503, 504]),
            "connect-failure" => on.push("connect-failure"),
            "reset" | "refused-stream" => on.extend(["connect-failure", "reset"]),
            "retriable-4xx" => codes.push(409),
            "cancelled" => grpc.push(1),
            "deadline-exceeded" => grpc.push(4),
            "resource-exhausted" => grpc.push(8),
            "internal" => grpc.push(13),
            "unavailable" => grpc.push(14),
            _ => match condition.parse::<u16>() {
                Ok(code @ 400..=599) => codes.push(code),
                _ => imported.lose(
                    id,
                    "spec.retryPolicy.retryOn",
                    &format!("`{condition}` is not known"),
                    "say on, codes or grpcCodes",
                ),
            },
        }
    }
    on.sort_unstable();
    on.dedup();
    codes.sort_unstable();
    codes.dedup();
    for (name, list) in [
        ("on", json!(on)),
        ("codes", json!(codes)),
        ("grpcCodes", json!(grpc)),
    ] {
        if list.as_array().is_some_and(|l| !l.is_empty()) {
            retry.insert(name.into(), list);
        }
    }
    retry
}
