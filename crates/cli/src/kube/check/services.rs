//! Are the services of the mesh's namespaces such that the mesh can carry them?

use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::workloads::{containers, items, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tulle_kube::inject::ports;
use tulle_kube::names::{OPAQUE_PORTS, SIDECAR};

/// Protocols that a port may say; those of Kubernetes with a prefix are let be.
const PROTOCOLS: [&str; 9] = [
    "http",
    "http2",
    "grpc",
    "tcp",
    "tcp-server-first",
    "tls",
    "https",
    "kubernetes.io/h2c",
    "kubernetes.io/ws",
];
/// MySQL, SMTP, FTP, POP3, IMAP, MongoDB's kin: the server speaks first.
const SERVER_FIRST: [u64; 6] = [21, 25, 110, 143, 587, 3306];
/// The time that Kubernetes gives session affinity where a Service says none.
const AFFINITY_SECONDS: u64 = 10800;
/// The sidecar's own.
const OWN: std::ops::RangeInclusive<u64> = 15000..=15090;

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let injected: BTreeSet<&str> = facts.injected().collect();
    let meshed = facts
        .services
        .iter()
        .filter(|s| injected.contains(text(s, "/metadata/namespace")));
    let services: Vec<&Value> = meshed.collect();
    let (mut odd, mut first, mut unnamed, mut empty) = (vec![], vec![], vec![], vec![]);
    let (mut mixed, mut apart, mut datagrams, mut own) = (vec![], vec![], vec![], vec![]);
    let mut guessed = vec![];
    let mut protocols: BTreeMap<(String, String), BTreeSet<&str>> = BTreeMap::new();
    for service in &services {
        let namespace = text(service, "/metadata/namespace");
        let name = named(service);
        let pods = behind(facts, service);
        let opaque = opaque(service).and_then(std::result::Result::ok);
        let opaque: BTreeSet<u64> = opaque.into_iter().flatten().map(u64::from).collect();
        odd.extend(wrong_opaque(service).map(|why| format!("{name}: {OPAQUE_PORTS}: {why}")));
        for port in items(service, "/spec/ports") {
            let number = port.get("port").and_then(Value::as_u64).unwrap_or_default();
            let what = format!("{name}, port {number}");
            if !matches!(text(port, "/protocol"), "" | "TCP") {
                datagrams.push(format!("{what}: {}", text(port, "/protocol")));
                continue;
            }
            let protocol = text(port, "/appProtocol");
            let known = protocol.is_empty()
                || PROTOCOLS.contains(&protocol)
                || protocol.starts_with("kubernetes.io/");
            if !known {
                odd.push(format!(
                    "{what}: {protocol:?} is taken for bytes or found out by looking"
                ));
            }
            let target = port.get("targetPort").and_then(Value::as_u64);
            if opaque.contains(&number) {
                // The annotation says that it is opaque: nothing is detected.
            } else if protocol.is_empty() && SERVER_FIRST.contains(&target.unwrap_or(number)) {
                first.push(format!(
                    "{what}: its protocol is not said, and its server may speak first"
                ));
            } else if protocol.is_empty() {
                guessed.push(format!("{what}: it has no appProtocol"));
            }
            if target.is_some_and(|t| OWN.contains(&t)) {
                own.push(format!("{what}: its target is the sidecar's"));
            }
            let wanted = text(port, "/targetPort");
            let has = |pod: &&&Value| {
                let mut ports = containers(pod).flat_map(|c| items(c, "/ports"));
                ports.any(|p| text(p, "/name") == wanted)
            };
            if !wanted.is_empty() && !pods.is_empty() && pods.iter().find(has).is_none() {
                unnamed.push(format!(
                    "{what}: no container of its pods has a port named {wanted}"
                ));
            }
            if let Some(selector) = service.pointer("/spec/selector") {
                let target = target.map_or_else(|| wanted.to_owned(), |t| t.to_string());
                let key = (format!("{namespace} {selector}"), target);
                protocols.entry(key).or_default().insert(protocol);
            }
        }
        let with = pods
            .iter()
            .filter(|p| containers(p).any(|c| text(c, "/name") == SIDECAR))
            .count();
        if with > 0 && with < pods.len() {
            mixed.push(format!(
                "{name}: {with} of {} pods have a sidecar",
                pods.len()
            ));
        }
        let external = text(service, "/spec/type") == "ExternalName";
        if !external && !has_endpoint(facts, service) {
            empty.push(name);
        }
    }
    for ((place, target), kinds) in protocols {
        if kinds.len() > 1 {
            let kinds: Vec<&str> = kinds
                .into_iter()
                .map(|k| if k.is_empty() { "none" } else { k })
                .collect();
            apart.push(format!(
                "container port {target} of {place}: {}",
                kinds.join(", ")
            ));
        }
    }
    let all = format!("{} services of the mesh", services.len());
    report.each("TK080", Outcome::Warning, odd, &all);
    report.each("TK081", Outcome::Warning, first, &all);
    report.each("TK082", Outcome::Error, unnamed, &all);
    report.each("TK083", Outcome::Warning, empty, &all);
    report.each("TK084", Outcome::Warning, mixed, &all);
    report.each("TK085", Outcome::Warning, apart, &all);
    report.each(
        "TK086",
        Outcome::Warning,
        datagrams,
        "no service has such a port",
    );
    report.each("TK087", Outcome::Error, own, "no service uses one");
    report.each("TK091", Outcome::Warning, guessed, &all);
    let found = |wrong: fn(&Value) -> Option<String>| -> Vec<String> {
        services.iter().filter_map(|s| wrong(s)).collect()
    };
    report.each("TK100", Outcome::Warning, found(moved_after), &all);
    report.each("TK101", Outcome::Warning, found(kept_on_node), &all);
}

/// The name of a service in findings.
fn named(service: &Value) -> String {
    let namespace = text(service, "/metadata/namespace");
    format!("service {namespace}/{}", text(service, "/metadata/name"))
}

/// Returns a finding about a time after which session affinity would move clients. The API server writes the default
/// into every Service with affinity, so the default is nobody's wish.
fn moved_after(service: &Value) -> Option<String> {
    let seconds = service.pointer("/spec/sessionAffinityConfig/clientIP/timeoutSeconds");
    let seconds = seconds.and_then(Value::as_u64)?;
    let wished =
        text(service, "/spec/sessionAffinity") == "ClientIP" && seconds != AFFINITY_SECONDS;
    let name = named(service);
    wished.then(|| format!("{name}: timeoutSeconds {seconds} has no effect: no client is moved"))
}

/// Returns a finding about a preference for endpoints of the caller's node, which is taken for one of its zone.
fn kept_on_node(service: &Value) -> Option<String> {
    let wished = text(service, "/spec/trafficDistribution") == "PreferSameNode";
    let name = named(service);
    wished.then(|| format!("{name}: PreferSameNode prefers the caller's zone, not its node"))
}

/// The ports that a Service's annotation says are opaque, if it has the annotation.
fn opaque(service: &Value) -> Option<std::result::Result<Vec<u16>, String>> {
    let annotations = service.pointer("/metadata/annotations")?;
    Some(ports(annotations.get(OPAQUE_PORTS)?.as_str()?))
}

/// Returns what is wrong with that annotation; `None`: nothing.
fn wrong_opaque(service: &Value) -> Option<String> {
    let said = match opaque(service)? {
        Ok(said) => said,
        Err(why) => return Some(format!("{why}; it has no effect")),
    };
    let own: BTreeSet<u64> = items(service, "/spec/ports")
        .filter_map(|p| p.get("port")?.as_u64())
        .collect();
    let other = said
        .into_iter()
        .find(|port| !own.contains(&u64::from(*port)))?;
    Some(format!("the Service has no port {other}"))
}

/// The living pods that a service selects.
fn behind<'a>(facts: &'a Facts, service: &Value) -> Vec<&'a Value> {
    let selector = service.pointer("/spec/selector").and_then(Value::as_object);
    let Some(selector) = selector.filter(|s| !s.is_empty()) else {
        return Vec::new();
    };
    let namespace = text(service, "/metadata/namespace");
    let selected = facts.pods.iter().filter(|pod| {
        let labels = pod.pointer("/metadata/labels");
        text(pod, "/metadata/namespace") == namespace
            && !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
            && selector
                .iter()
                .all(|(key, value)| labels.and_then(|l| l.get(key)) == Some(value))
    });
    selected.collect()
}

fn has_endpoint(facts: &Facts, service: &Value) -> bool {
    let mut own = facts.slices.iter().filter(|slice| {
        text(slice, "/metadata/namespace") == text(service, "/metadata/namespace")
            && text(slice, "/metadata/labels/kubernetes.io~1service-name")
                == text(service, "/metadata/name")
    });
    own.any(|slice| {
        items(slice, "/endpoints")
            .any(|e| e.pointer("/conditions/ready") != Some(&Value::Bool(false)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn services_that_the_mesh_cannot_carry_are_found() {
        let service = |name: &str, ports: Value| {
            json!({
                "metadata": { "namespace": "shop", "name": name },
                "spec": { "selector": { "app": "a" }, "ports": ports },
            })
        };
        let pod = |name: &str, container: &str| {
            json!({
                "metadata": { "namespace": "shop", "name": name, "labels": { "app": "a" } },
                "spec": { "containers": [{ "name": container, "ports": [{ "name": "http" }] }] },
            })
        };
        let mut facts = Facts {
            namespaces: vec![
                json!({ "metadata": { "name": "shop", "labels": { "tulle.dev/inject": "enabled" } } }),
            ],
            services: vec![service(
                "a",
                json!([{ "port": 80, "targetPort": "http", "appProtocol": "http" }]),
            )],
            slices: vec![json!({
                "metadata": { "namespace": "shop", "labels": { "kubernetes.io/service-name": "a" } },
                "endpoints": [{ "conditions": { "ready": true } }],
            })],
            pods: vec![pod("p", SIDECAR)],
            ..Facts::default()
        };
        let wrong = |facts: &Facts| {
            let wrong = Report::wrong(|report| check(facts, report)).into_iter();
            wrong.map(|f| f.id).collect::<Vec<_>>()
        };
        assert!(wrong(&facts).is_empty(), "{:?}", wrong(&facts));
        facts.pods.push(pod("q", "app"));
        facts.services.push(service(
            "b",
            json!([
                { "port": 80, "targetPort": "http", "appProtocol": "htp" },
                { "port": 3306 },
                { "port": 81, "targetPort": "web" },
                { "port": 53, "protocol": "UDP" },
                { "port": 82, "targetPort": 15006 },
            ]),
        ));
        let found = [
            "TK080", "TK081", "TK082", "TK083", "TK084", "TK084", "TK085", "TK086", "TK087",
            "TK091", "TK091",
        ];
        assert_eq!(wrong(&facts), found);
    }

    #[test]
    fn preferences_that_do_not_hold_are_told_of_services_in_the_mesh() {
        let said = |namespace: &str, spec: Value| {
            let facts = Facts {
                namespaces: vec![json!({ "metadata": {
                    "name": "shop", "labels": { "tulle.dev/inject": "enabled" },
                } })],
                services: vec![
                    json!({ "metadata": { "namespace": namespace, "name": "a" }, "spec": spec }),
                ],
                ..Facts::default()
            };
            let wrong = Report::wrong(|report| check(&facts, report)).into_iter();
            let own = wrong.filter(|f| ["TK100", "TK101"].contains(&f.id));
            own.map(|f| format!("{} {}", f.id, f.finding))
                .collect::<Vec<_>>()
        };
        let sticky = |affinity: &str, seconds: u64| {
            let config = json!({ "clientIP": { "timeoutSeconds": seconds } });
            json!({ "sessionAffinity": affinity, "sessionAffinityConfig": config })
        };
        assert_eq!(
            said("shop", sticky("ClientIP", 600)),
            ["TK100 service shop/a: timeoutSeconds 600 has no effect: no client is moved"]
        );
        let near = |which: &str| json!({ "trafficDistribution": which });
        assert_eq!(
            said("shop", near("PreferSameNode")),
            ["TK101 service shop/a: PreferSameNode prefers the caller's zone, not its node"]
        );
        for (namespace, spec) in [
            ("shop", sticky("ClientIP", 10800)),
            ("shop", sticky("None", 600)),
            ("shop", json!({ "sessionAffinity": "ClientIP" })),
            ("shop", near("PreferSameZone")),
            ("shop", near("PreferClose")),
            ("outside", sticky("ClientIP", 600)),
            ("outside", near("PreferSameNode")),
        ] {
            let found = said(namespace, spec.clone());
            assert!(found.is_empty(), "{namespace} {spec}: {found:?}");
        }
    }

    #[test]
    fn opaque_ports_of_a_service_are_its_ports() {
        let said = |ports: &str| {
            let facts = Facts {
                namespaces: vec![json!({ "metadata": {
                    "name": "shop", "labels": { "tulle.dev/inject": "enabled" },
                } })],
                services: vec![json!({
                    "metadata": {
                        "namespace": "shop", "name": "a", "annotations": { OPAQUE_PORTS: ports },
                    },
                    "spec": { "ports": [{ "port": 80 }, { "port": 3306 }] },
                })],
                ..Facts::default()
            };
            let wrong = Report::wrong(|report| check(&facts, report)).into_iter();
            let own = wrong.filter(|f| ["TK080", "TK081", "TK091"].contains(&f.id));
            own.map(|f| f.finding).collect::<Vec<_>>()
        };
        assert!(said("80, 3306").is_empty(), "{:?}", said("80, 3306"));
        let found = said("80,3306,81");
        assert_eq!(
            found,
            ["service shop/a: tulle.dev/opaque-ports: the Service has no port 81"]
        );
        let found = said("80,nonsense");
        assert!(found[0].contains("\"nonsense\" is no port"), "{found:?}");
        assert_eq!(found.len(), 3, "its ports are guessed: {found:?}");
    }
}
