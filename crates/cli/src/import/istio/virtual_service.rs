//! Where requests go: an HTTPRoute for the callers in the mesh, and one for each kind of gateway that a VirtualService is
//! attached to. Beside them the routes of its connections (`connections`).

use super::exported::Exported;
use super::matches::{Match, SEE};
use super::proxies::Proxies;
use super::{connections, steps};
use crate::import::fields::{list, lose_rest, nest, take, text, time};
use crate::import::grants;
use crate::import::imported::{Imported, object};
use crate::import::services::{Named, Service, subset_name};
use crate::import::source::Source;
use crate::import::texts;
use serde_json::{Map, Value, json};

/// Istio's name for all sidecars.
const MESH: &str = "mesh";

/// A VirtualService while it is read.
pub(super) struct Virtual<'s> {
    pub(super) id: String,
    pub(super) source: &'s Source,
    pub(super) services: &'s [Service],
}

/// Rules of a route while it is made.
#[derive(Default)]
struct Rules {
    ours: Vec<Value>,
    /// Their matches, each with its place in the VirtualService.
    read: Vec<(String, Match)>,
    /// HTTPFilters that rules refer to, by name.
    filters: Vec<(String, Value)>,
}

pub(super) fn import(
    mut source: Source,
    services: &[Service],
    proxies: &Proxies<'_>,
    imported: &mut Imported,
) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = source.id.clone();
    let exported = Exported::read(&mut spec, &source);
    let hosts = texts(&mut spec, "hosts");
    let mut gateways = texts(&mut spec, "gateways");
    if gateways.is_empty() {
        gateways.push(MESH.to_owned());
    }
    let rules = list(&mut spec, "http");
    let connections = [
        (("TLSRoute", "tls"), list(&mut spec, "tls")),
        (("TCPRoute", "tcp"), list(&mut spec, "tcp")),
    ];
    lose_rest(imported, &id, "spec", &spec, SEE);
    // At a gateway a route without hosts would be for all of them.
    if hosts.is_empty() {
        let why = "it names no hosts: others delegate to it, and a route here is about what it names itself";
        let instead = "put its rules into those that delegate to it";
        return imported.lose(&id, "spec.hosts", why, instead);
    }
    if rules.is_empty() && connections.iter().all(|(_, rules)| rules.is_empty()) {
        return imported.lose(&id, "spec", "it has no rules", "leave it out");
    }
    let read = Virtual {
        id,
        source: &source,
        services,
    };
    let (inside, outside): (Vec<&String>, Vec<&String>) = gateways.iter().partition(|g| *g == MESH);
    let both = !inside.is_empty() && !outside.is_empty();
    let outside = exported.gateways(outside, proxies, imported);
    let parents = match inside.is_empty() {
        true => Vec::new(),
        false => exported.services(read.services_of(&hosts, imported), imported),
    };
    if !rules.is_empty() {
        exported.lose_callers(&parents, imported);
    }
    let mut make = |name: &str, parents: &[Value], hosts: &[&String], gateways: &[&str]| {
        read.route(name, parents, hosts, &rules, gateways, imported);
        for (kind, rules) in &connections {
            connections::route(&read, *kind, name, parents, (rules, gateways), imported);
        }
    };
    if !inside.is_empty() {
        let name = if both {
            format!("{}-mesh", source.name)
        } else {
            source.name.clone()
        };
        make(&name, &parents, &[], &[MESH]);
    }
    if !outside.is_empty() {
        let parents: Vec<Value> = outside
            .iter()
            .map(|gateway| read.gateway(gateway))
            .collect();
        let names: Vec<&str> = outside.iter().map(|g| g.as_str()).collect();
        let hosts: Vec<&String> = hosts.iter().filter(|host| *host != "*").collect();
        make(&source.name, &parents, &hosts, &names);
    }
}

impl Virtual<'_> {
    /// The Services that hosts of the mesh are.
    fn services_of(&self, hosts: &[String], imported: &mut Imported) -> Vec<Value> {
        let mut parents = Vec::new();
        for host in hosts {
            match Named::read(host, self.source, self.services) {
                Some(named) => {
                    let mut parent = named.reference(self.source.namespace());
                    parent.insert("group".into(), "".into());
                    parent.insert("kind".into(), "Service".into());
                    parents.push(parent.into());
                }
                None => {
                    let why = format!(
                        "`{host}` is no Service of this cluster, and a route of the mesh is about Services"
                    );
                    imported.lose(
                        &self.id,
                        "spec.hosts",
                        &why,
                        "write an Egress for a host outside: docs/features/egress.md",
                    );
                }
            }
        }
        parents
    }

    /// `namespace/name` or `name`.
    fn gateway(&self, named: &str) -> Value {
        let (namespace, name) = match named.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, named),
        };
        let mut parent = json!({ "kind": "Gateway", "name": name });
        if let Some(namespace) = namespace
            && Some(namespace) != self.source.namespace()
        {
            parent["namespace"] = namespace.into();
        }
        parent
    }

    /// Makes a route with the rules that are for these gateways.
    fn route(
        &self,
        name: &str,
        parents: &[Value],
        hosts: &[&String],
        rules: &[Value],
        gateways: &[&str],
        imported: &mut Imported,
    ) {
        if parents.is_empty() {
            return;
        }
        let mut ready = Rules::default();
        for (number, rule) in rules.iter().enumerate() {
            let at = format!("spec.http[{number}]");
            self.rule(name, &at, rule.clone(), gateways, &mut ready, imported);
        }
        let Rules {
            ours,
            read,
            filters,
        } = ready;
        if ours.is_empty() {
            return;
        }
        let mut spec = json!({ "parentRefs": parents, "rules": ours });
        if !hosts.is_empty() {
            spec["hostnames"] = json!(hosts);
        }
        let namespace = self.source.namespace();
        let grants = grants::note("HTTPRoute", namespace, &spec);
        let mut route = object("HTTPRoute", namespace, name, spec);
        route["apiVersion"] = "gateway.networking.k8s.io/v1".into();
        let made = imported.make(&self.id, route);
        made.notes.extend(grants);
        if read
            .iter()
            .any(|(_, one): &(String, Match)| one.is_prefix())
        {
            made.notes
                .push("prefixes go by elements of the path: /a matches /a/b, and not /ab".into());
        }
        for (filter, spec) in filters {
            imported.make(&self.id, object("HTTPFilter", namespace, &filter, spec));
        }
        // Proxies go by what is more specific, Istio by the order.
        for (later, (place, one)) in read.iter().enumerate() {
            let mut before = read.iter().take(later);
            let earlier = before.find(|(other_place, other)| {
                rule_of(other_place) != rule_of(place) && one.outranks(other) && one.may_meet(other)
            });
            if let Some((other, _)) = earlier {
                let why = format!(
                    "it is tried before {other}, and wins here where both match; in Istio the first did"
                );
                imported.lose(
                    &self.id,
                    place,
                    &why,
                    "make the first one's matches as specific: docs/features/routing.md",
                );
            }
        }
    }

    /// A rule, as one or, where conditions are beside matches, one for each match.
    fn rule(
        &self,
        route: &str,
        at: &str,
        mut rule: Value,
        gateways: &[&str],
        rules: &mut Rules,
        imported: &mut Imported,
    ) {
        let id = &self.id;
        take(&mut rule, "name");
        let mut matches = Vec::new();
        let given = list(&mut rule, "match");
        let is_everything = given.is_empty();
        for (number, mut one) in given.into_iter().enumerate() {
            let at = format!("{at}.match[{number}]");
            let only = texts(&mut one, "gateways");
            if only.is_empty() || only.iter().any(|g| gateways.contains(&g.as_str())) {
                matches.extend(Match::read(id, &at, one, imported).map(|one| (at, one)));
            }
        }
        if is_everything {
            matches.push((at.to_owned(), Match::default()));
        }
        if matches.is_empty() {
            return;
        }
        let mut fields = Map::new();
        let mut own = Map::new();
        let (prefix, exact) = (
            matches.iter().all(|(_, m)| m.is_prefix()),
            matches.iter().all(|(_, m)| m.is_exact()),
        );
        let steps = steps::of_rule(self, at, &mut rule, &mut own, (prefix, exact), imported);
        let backends = self.backends(at, &mut rule, imported);
        if !backends.is_empty() {
            fields.insert("backendRefs".into(), backends.into());
        }
        let mut timeouts = Map::new();
        time(
            id,
            at,
            &mut rule,
            "timeout",
            &mut timeouts,
            "request",
            imported,
        );
        retries(id, at, &mut rule, (&mut fields, &mut timeouts), imported);
        nest(&mut fields, "timeouts", timeouts);
        lose_rest(imported, id, at, &rule, SEE);
        let (plain, conditional): (Vec<_>, Vec<_>) = matches
            .into_iter()
            .partition(|(_, one)| one.condition().is_none());
        let mut groups: Vec<Vec<(String, Match)>> =
            conditional.into_iter().map(|one| vec![one]).collect();
        if !plain.is_empty() {
            groups.push(plain);
        }
        for group in groups {
            let mut fields = fields.clone();
            let mut own = own.clone();
            if let Some(condition) = group.first().and_then(|(_, one)| one.condition()) {
                own.insert("match".into(), condition.into());
            }
            let mut steps = steps.clone();
            if !own.is_empty() {
                let filter = format!("{route}-{}", rules.filters.len() + 1);
                let reference =
                    json!({ "group": "tulle.dev", "kind": "HTTPFilter", "name": filter });
                steps.insert(
                    0,
                    json!({ "type": "ExtensionRef", "extensionRef": reference }),
                );
                rules.filters.push((filter, own.into()));
            }
            if !steps.is_empty() {
                fields.insert("filters".into(), steps.into());
            }
            let written: Vec<Value> = group.iter().map(|(_, one)| one.written()).collect();
            if written
                .iter()
                .any(|one| one.as_object().is_some_and(|m| !m.is_empty()))
            {
                fields.insert("matches".into(), written.into());
            }
            rules.ours.push(fields.into());
            rules.read.extend(group);
        }
    }

    /// Backends with their weights, and what is done to the requests of each.
    pub(super) fn backends(
        &self,
        at: &str,
        rule: &mut Value,
        imported: &mut Imported,
    ) -> Vec<Value> {
        let all = list(rule, "route");
        let one = all.len() == 1;
        let mut backends = Vec::new();
        for (number, mut route) in all.into_iter().enumerate() {
            let at = format!("{at}.route[{number}]");
            let weight = take(&mut route, "weight");
            let filters = steps::headers(&mut route);
            let destination = take(&mut route, "destination").unwrap_or_default();
            if let Some(mut backend) =
                self.destination(&format!("{at}.destination"), destination, imported)
            {
                // Beside others one without a weight gets nothing.
                if !one {
                    backend.insert("weight".into(), weight.unwrap_or_else(|| 0.into()));
                }
                if !filters.is_empty() {
                    backend.insert("filters".into(), filters.into());
                }
                backends.push(backend.into());
            }
            lose_rest(imported, &self.id, &at, &route, SEE);
        }
        backends
    }

    /// A Service with its port; that of a subset is another one.
    pub(super) fn destination(
        &self,
        at: &str,
        mut destination: Value,
        imported: &mut Imported,
    ) -> Option<Map<String, Value>> {
        let host = text(&mut destination, "host").unwrap_or_default();
        let subset = text(&mut destination, "subset");
        let port = take(&mut destination, "port/number");
        take(&mut destination, "port");
        lose_rest(imported, &self.id, at, &destination, SEE);
        let Some(mut named) = Named::read(&host, self.source, self.services) else {
            let why =
                format!("`{host}` is no Service of this cluster, and a route leads to Services");
            imported.lose(
                &self.id,
                &format!("{at}.host"),
                &why,
                "make a Service for it",
            );
            return None;
        };
        let known = named.find(self.services);
        let Some(port) = port.or_else(|| known?.only_port().map(Value::from)) else {
            let why = match known {
                Some(_) => format!("{} has several ports, and none is named", named.name),
                None => format!(
                    "the Service {} is not among the objects, and a backend needs its port",
                    named.name
                ),
            };
            imported.lose(
                &self.id,
                &format!("{at}.port"),
                &why,
                "give the Services, too, or name the port",
            );
            return None;
        };
        if let Some(subset) = subset {
            named.name = subset_name(&named.name, &subset);
        }
        let mut backend = named.reference(self.source.namespace());
        backend.insert("port".into(), port);
        Some(backend)
    }
}

/// The place of a match's rule.
fn rule_of(place: &str) -> &str {
    place.split(".match").next().unwrap_or(place)
}

/// Reads Envoy's names for what is tried again; routes know statuses alone.
fn retries(
    id: &str,
    at: &str,
    rule: &mut Value,
    (fields, timeouts): (&mut Map<String, Value>, &mut Map<String, Value>),
    imported: &mut Imported,
) {
    let Some(mut theirs) = take(rule, "retries") else {
        return;
    };
    let at = format!("{at}.retries");
    let attempts = take(&mut theirs, "attempts")
        .and_then(|n| n.as_u64())
        .unwrap_or(2);
    time(
        id,
        &at,
        &mut theirs,
        "perTryTimeout",
        timeouts,
        "backendRequest",
        imported,
    );
    if attempts == 0 {
        for name in ["retryOn", "backoff"] {
            take(&mut theirs, name);
        }
        return lose_rest(imported, id, &at, &theirs, SEE);
    }
    let mut ours = Map::new();
    ours.insert("attempts".into(), attempts.min(10).into());
    time(
        id,
        &at,
        &mut theirs,
        "backoff",
        &mut ours,
        "backoff",
        imported,
    );
    let mut codes = Vec::new();
    let asked = text(&mut theirs, "retryOn").unwrap_or_default();
    for condition in asked.split(',').map(str::trim).filter(|c| !c.is_empty()) {
        match condition {
            "5xx" => codes.extend([500, 501, 502, 503, 504, 505]),
            "gateway-error" => codes.extend([502, 503, 504]),
            "retriable-4xx" => codes.push(409),
            // A connection that fails is tried again anyway.
            "connect-failure" | "refused-stream" | "reset" | "reset-before-request" => {}
            _ => match condition.parse::<u64>() {
                Ok(code @ 400..=599) => codes.push(code),
                _ => imported.lose(
                    id,
                    &format!("{at}.retryOn"),
                    &format!("`{condition}` is not known to a route"),
                    "`retry` of a TrafficPolicy knows gRPC's: docs/manifests/traffic.md",
                ),
            },
        }
    }
    codes.sort_unstable();
    codes.dedup();
    if !codes.is_empty() {
        ours.insert("codes".into(), json!(codes));
    }
    fields.insert("retry".into(), ours.into());
    lose_rest(imported, id, &at, &theirs, "leave it out");
}
