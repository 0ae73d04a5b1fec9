//! How a service is called: a TrafficPolicy for it, and for each subset a Service with a policy of its own.

use super::exported::Exported;
use crate::import::fields::{carry, duration, list, lose_rest, nest, take, text, text_map, time};
use crate::import::imported::{Imported, object};
use crate::import::services::{Named, Service, subset_name};
use crate::import::source::Source;
use serde_json::{Map, Value, json};

const SEE: &str = "see docs/manifests/traffic.md";

pub(super) fn import(mut source: Source, services: &[Service], imported: &mut Imported) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = source.id.clone();
    let host = text(&mut spec, "host").unwrap_or_default();
    let Some(named) = Named::read(&host, &source, services) else {
        let why = format!(
            "`{host}` is no Service of this cluster, and a TrafficPolicy is about Services"
        );
        return imported.lose(&id, "spec.host", &why, "leave it out");
    };
    if named.namespace != source.namespace {
        let why = "a policy about a Service is in the Service's namespace";
        let instead = "make it there; then it holds for all callers";
        return imported.lose(&id, "spec.host", why, instead);
    }
    if !Exported::read(&mut spec, &source).is_for_all() {
        // It is made all the same, as it says how a Service is called, and not by whom.
        let why = "only some callers had it, and a TrafficPolicy is for all callers of the Service";
        let instead = "leave out what is not for all of them";
        imported.lose(&id, "spec.exportTo", why, instead);
    }
    let common = take(&mut spec, "trafficPolicy").unwrap_or_else(|| json!({}));
    let subsets = list(&mut spec, "subsets");
    let whole = About {
        id: &id,
        namespace: source.namespace(),
        service: &named.name,
        name: &source.name,
    };
    whole.make("spec.trafficPolicy", common.clone(), imported);
    for (number, mut subset) in subsets.into_iter().enumerate() {
        let at = format!("spec.subsets[{number}]");
        let name = text(&mut subset, "name").unwrap_or_default();
        let more = text_map(&mut subset, "labels");
        // Without one of its labels it would have other pods, too.
        if let Some(left) = take(&mut subset, "labels") {
            lose_rest(imported, &id, &format!("{at}.labels"), &left, SEE);
            continue;
        }
        let Some(service) = named.find(services) else {
            let why = format!(
                "the Service {} is not among the objects, and a subset is a Service of its own",
                named.name
            );
            imported.lose(
                &id,
                &at,
                &why,
                "give the Services, too: kubectl get services -A -o yaml",
            );
            continue;
        };
        let made = imported.make(&id, service.subset(&name, &more));
        made.notes.push(format!(
            "the subset {name}: its pods are also those of {}",
            named.name
        ));
        let mut policy = common.clone();
        if let Some(own) = take(&mut subset, "trafficPolicy") {
            merge(&mut policy, own);
        }
        let part = About {
            service: &subset_name(&named.name, &name),
            name: &format!("{}-{name}", source.name),
            ..whole
        };
        part.make(&format!("{at}.trafficPolicy"), policy, imported);
        lose_rest(imported, &id, &at, &subset, SEE);
    }
    lose_rest(imported, &id, "spec", &spec, SEE);
}

/// A setting of the subset takes the place of what is said for all, field by field as in Istio.
fn merge(into: &mut Value, own: Value) {
    let (Some(into), Value::Object(own)) = (into.as_object_mut(), own) else {
        return;
    };
    into.extend(own);
}

/// A Service, and the name of policies about it.
#[derive(Clone, Copy)]
struct About<'a> {
    id: &'a str,
    namespace: Option<&'a str>,
    service: &'a str,
    name: &'a str,
}

impl About<'_> {
    /// Makes its policy, and one for each port that has settings of its own.
    fn make(&self, at: &str, mut theirs: Value, imported: &mut Imported) {
        let id = self.id;
        for (number, mut of_port) in list(&mut theirs, "portLevelSettings")
            .into_iter()
            .enumerate()
        {
            let at = format!("{at}.portLevelSettings[{number}]");
            let port = take(&mut of_port, "port/number").unwrap_or_default();
            take(&mut of_port, "port");
            let spec = policy(id, &at, &mut of_port, imported);
            lose_rest(imported, id, &at, &of_port, SEE);
            self.put(Some(port), spec, imported);
        }
        let spec = policy(id, at, &mut theirs, imported);
        lose_rest(imported, id, at, &theirs, SEE);
        self.put(None, spec, imported);
    }

    fn put(&self, port: Option<Value>, mut spec: Map<String, Value>, imported: &mut Imported) {
        if spec.is_empty() {
            return;
        }
        let mut reference = json!({ "kind": "Service", "name": self.service });
        let mut name = self.name.to_owned();
        if let Some(port) = port {
            name = format!("{name}-{port}");
            reference["port"] = port;
        }
        spec.insert("targetRefs".into(), json!([reference]));
        let policy = object("TrafficPolicy", self.namespace, &name, spec.into());
        imported.make(self.id, policy);
    }
}

fn policy(id: &str, at: &str, theirs: &mut Value, imported: &mut Imported) -> Map<String, Value> {
    let mut policy = Map::new();
    balancer(id, at, theirs, &mut policy, imported);
    connections(id, at, theirs, &mut policy, imported);
    outliers(id, at, theirs, &mut policy, imported);
    tls(id, at, theirs, imported);
    policy
}

fn balancer(
    id: &str,
    at: &str,
    theirs: &mut Value,
    policy: &mut Map<String, Value>,
    imported: &mut Imported,
) {
    let Some(mut theirs) = take(theirs, "loadBalancer") else {
        return;
    };
    let at = format!("{at}.loadBalancer");
    let simple = text(&mut theirs, "simple").unwrap_or_default();
    let ours = match simple.as_str() {
        "" | "UNSPECIFIED" => None,
        "ROUND_ROBIN" => Some("RoundRobin"),
        "LEAST_REQUEST" | "LEAST_CONN" => Some("LeastRequest"),
        "RANDOM" => Some("Random"),
        other => {
            let why = format!("{other} chooses no endpoint");
            imported.lose(id, &format!("{at}.simple"), &why, "leave it out");
            None
        }
    };
    if let Some(ours) = ours {
        policy.insert("loadBalancer".into(), json!({ "type": ours }));
    }
    if let Some(mut hash) = take(&mut theirs, "consistentHash") {
        // How the ring is made differs, and does not matter.
        for name in ["minimumRingSize", "ringHash", "maglev"] {
            take(&mut hash, name);
        }
        let cookie = text(&mut hash, "httpCookie/name");
        let lifetime = text(&mut hash, "httpCookie/ttl");
        take(&mut hash, "httpCookie/path");
        let by = match (
            text(&mut hash, "httpHeaderName"),
            take(&mut hash, "useSourceIp"),
        ) {
            (Some(header), _) => Some(json!({ "header": header })),
            (None, Some(Value::Bool(true))) => Some(json!({ "sourceAddress": true })),
            _ => None,
        };
        match (cookie, by) {
            // Istio makes the cookie where there is none, unless its lifetime is not said.
            (Some(name), _) if lifetime.is_some() => {
                let mut affinity = json!({ "type": "Cookie", "name": name });
                let ours = lifetime.and_then(|text| duration(&text));
                if let Some(ours) = ours {
                    affinity["maxAge"] = ours.into();
                }
                policy.insert("sessionAffinity".into(), affinity);
            }
            (Some(name), _) => {
                let by = json!({ "type": "RingHash", "hash": { "cookie": name } });
                policy.insert("loadBalancer".into(), by);
            }
            (None, Some(by)) => {
                let by = json!({ "type": "RingHash", "hash": by });
                policy.insert("loadBalancer".into(), by);
            }
            (None, None) => {}
        }
        lose_rest(
            imported,
            id,
            &format!("{at}.consistentHash"),
            &hash,
            "hash a header, a cookie or the source's address",
        );
    }
    for name in ["warmupDurationSecs", "warmup/duration"] {
        time(id, &at, &mut theirs, name, policy, "slowStart", imported);
    }
    lose_rest(
        imported,
        id,
        &at,
        &theirs,
        "`locality` of a TrafficPolicy: docs/features/endpoints.md",
    );
}

fn connections(
    id: &str,
    at: &str,
    theirs: &mut Value,
    policy: &mut Map<String, Value>,
    imported: &mut Imported,
) {
    let Some(mut theirs) = take(theirs, "connectionPool") else {
        return;
    };
    let at = format!("{at}.connectionPool");
    let mut limits = Map::new();
    carry(
        &mut theirs,
        "tcp/maxConnections",
        &mut limits,
        "maxConnections",
    );
    carry(
        &mut theirs,
        "http/http1MaxPendingRequests",
        &mut limits,
        "maxPendingRequests",
    );
    carry(
        &mut theirs,
        "http/http2MaxRequests",
        &mut limits,
        "maxRequests",
    );
    carry(&mut theirs, "http/maxRetries", &mut limits, "maxRetries");
    carry(
        &mut theirs,
        "http/maxRequestsPerConnection",
        &mut limits,
        "maxRequestsPerConnection",
    );
    nest(policy, "connections", limits);
    let mut timeouts = Map::new();
    time(
        id,
        &at,
        &mut theirs,
        "tcp/connectTimeout",
        &mut timeouts,
        "connect",
        imported,
    );
    // HTTP has the last word.
    for name in ["tcp/idleTimeout", "http/idleTimeout"] {
        time(id, &at, &mut theirs, name, &mut timeouts, "idle", imported);
    }
    nest(policy, "timeouts", timeouts);
    // Sidecars speak one protocol to each other, whatever the applications speak.
    take(&mut theirs, "http/h2UpgradePolicy");
    lose_rest(imported, id, &at, &theirs, SEE);
}

fn outliers(
    id: &str,
    at: &str,
    theirs: &mut Value,
    policy: &mut Map<String, Value>,
    imported: &mut Imported,
) {
    let Some(mut theirs) = take(theirs, "outlierDetection") else {
        return;
    };
    let at = format!("{at}.outlierDetection");
    let mut ours = Map::new();
    for name in [
        "consecutiveErrors",
        "consecutiveGatewayErrors",
        "consecutive5xxErrors",
    ] {
        carry(&mut theirs, name, &mut ours, "consecutiveFailures");
    }
    // Istio's 0 switches it off.
    if ours.get("consecutiveFailures") == Some(&json!(0)) {
        let why = "0 switches it off; here it is there or not";
        return imported.lose(id, &at, why, "leave it out");
    }
    time(
        id,
        &at,
        &mut theirs,
        "baseEjectionTime",
        &mut ours,
        "baseEjectionTime",
        imported,
    );
    carry(
        &mut theirs,
        "maxEjectionPercent",
        &mut ours,
        "maxEjectionPercent",
    );
    // Endpoints are looked at with each answer.
    take(&mut theirs, "interval");
    lose_rest(imported, id, &at, &theirs, SEE);
    nest(policy, "outlierDetection", ours);
}

fn tls(id: &str, at: &str, theirs: &mut Value, imported: &mut Imported) {
    let Some(mut theirs) = take(theirs, "tls") else {
        return;
    };
    let mode = text(&mut theirs, "mode").unwrap_or_default();
    let (why, instead) = match mode.as_str() {
        // It is so here, always.
        "ISTIO_MUTUAL" => return,
        "DISABLE" => (
            "mutual TLS is never off between sidecars",
            "take the pods out of the mesh with the annotation tulle.dev/inject: disabled",
        ),
        _ => (
            "TLS that an application's server speaks itself is the client application's",
            "for a host outside the mesh an Egress has `tls`: docs/features/egress.md",
        ),
    };
    imported.lose(id, &format!("{at}.tls"), why, instead);
}
