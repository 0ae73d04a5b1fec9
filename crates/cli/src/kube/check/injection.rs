//! Do the pods that should have sidecars have them, and only they?

use super::cluster::is_sidecar_of_other;
use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::namespace::wish;
use crate::kube::workloads::{containers, items, text, workload};
use crate::proxies::Meshed;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tulle_kube::inject::is_known_annotation;
use tulle_kube::names::{INIT, INJECT, METRICS, OPAQUE_PORTS, PROFILE, SIDECAR, SIDECAR_UID};

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let odd = facts
        .asked()
        .filter(|n| !matches!(wish(n), "" | "enabled" | "disabled"));
    let odd = odd.map(|n| format!("namespace {} says {:?}", text(n, "/metadata/name"), wish(n)));
    report.each("TK050", Outcome::Error, odd.collect(), "understood");
    report.each("TK096", Outcome::Warning, misspelt(facts), "all are known");

    let injected: BTreeSet<&str> = facts.injected().collect();
    let living: Vec<&Value> = facts.pods.iter().filter(|p| lives(p)).collect();
    let (mut without, mut unasked, mut both, mut on_node) = (vec![], vec![], vec![], vec![]);
    let (mut as_sidecar, mut may_change, mut of_node) = (vec![], vec![], vec![]);
    for pod in living {
        let namespace = text(pod, "/metadata/namespace");
        let name = format!("pod {namespace}/{}", text(pod, "/metadata/name"));
        let wanted = match wish(pod) {
            "" => injected.contains(namespace),
            own => own == "enabled",
        };
        let host = pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true));
        let has = containers(pod).any(|c| text(c, "/name") == SIDECAR);
        match (wanted, has, host) {
            (true, false, true) => on_node.push(name.clone()),
            (true, false, false) => without.push(name.clone()),
            (false, true, _) => unasked.push(name.clone()),
            _ => {}
        }
        if !has {
            continue;
        }
        if let Some(other) = containers(pod).find(|c| is_sidecar_of_other(text(c, "/name"))) {
            both.push(format!("{name}: {}", text(other, "/name")));
        }
        let pods_user = pod.pointer("/spec/securityContext/runAsUser");
        for container in applications(pod) {
            let what = format!("{name}, container {}", text(container, "/name"));
            let user = container
                .pointer("/securityContext/runAsUser")
                .or(pods_user);
            if user.and_then(Value::as_u64) == Some(SIDECAR_UID.into()) {
                as_sidecar.push(what.clone());
            }
            if rules(container) {
                may_change.push(what.clone());
            }
            if items(container, "/ports").any(|p| p.get("hostPort").is_some()) {
                of_node.push(what);
            }
        }
    }
    report.each(
        "TK051",
        Outcome::Warning,
        without,
        "every pod that should have one has one",
    );
    report.each("TK052", Outcome::Warning, unasked, "none");
    report.each("TK053", Outcome::Error, refused(facts), "none is refused");
    report.each("TK054", Outcome::Error, both, "none");
    report.each("TK055", Outcome::Error, as_sidecar, "none is");
    report.each("TK056", Outcome::Warning, may_change, "none may");
    report.each(
        "TK057",
        Outcome::Warning,
        shared(facts),
        "no two workloads share one",
    );
    report.each(
        "TK058",
        Outcome::Warning,
        on_node,
        "none where sidecars are wanted",
    );
    report.each(
        "TK059",
        Outcome::Warning,
        of_node,
        "none is used by the mesh's pods",
    );
}

/// Labels and annotations of the mesh that nobody reads: of namespaces, of Services, and of pods by what
/// made them.
fn misspelt(facts: &Facts) -> Vec<String> {
    let keys = |object: &Value, place: &str| -> Vec<String> {
        let all = object.pointer(&format!("/metadata/{place}"));
        let all = all.and_then(Value::as_object).into_iter().flatten();
        let own = all.map(|(key, _)| key.clone());
        own.filter(|key| key.starts_with("tulle.dev/")).collect()
    };
    let mut found = BTreeSet::new();
    for namespace in facts.asked() {
        let both = [keys(namespace, "labels"), keys(namespace, "annotations")].concat();
        let odd = both.into_iter();
        let odd = odd.filter(|key| ![INJECT, METRICS, PROFILE].contains(&key.as_str()));
        let name = text(namespace, "/metadata/name");
        found.extend(odd.map(|key| format!("namespace {name}: {key}")));
    }
    for pod in facts.pods.iter().filter(|p| lives(p) && !is_of_mesh(p)) {
        let labels = keys(pod, "labels").into_iter().filter(|key| key != INJECT);
        let annotations = keys(pod, "annotations").into_iter();
        let odd = labels.chain(annotations.filter(|key| !is_known_annotation(key)));
        let name = format!("{}/{}", text(pod, "/metadata/namespace"), workload(pod));
        found.extend(odd.map(|key| format!("pods of {name}: {key}")));
    }
    for service in facts.services.iter().filter(|s| !is_of_mesh(s)) {
        let both = [keys(service, "labels"), keys(service, "annotations")].concat();
        let odd = both.into_iter().filter(|key| key != OPAQUE_PORTS);
        let (place, name) = ("/metadata/namespace", "/metadata/name");
        let name = format!("{}/{}", text(service, place), text(service, name));
        found.extend(odd.map(|key| format!("service {name}: {key}")));
    }
    found.into_iter().collect()
}

fn is_of_mesh(pod: &Value) -> bool {
    text(pod, "/metadata/labels/app.kubernetes.io~1part-of") == "tulle"
}

fn lives(pod: &Value) -> bool {
    !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
        && pod.pointer("/metadata/deletionTimestamp").is_none()
}

/// The containers that are not the mesh's.
fn applications(pod: &Value) -> impl Iterator<Item = &Value> {
    containers(pod).filter(|c| !matches!(text(c, "/name"), SIDECAR | INIT))
}

/// Whether a container may change what redirects its traffic.
fn rules(container: &Value) -> bool {
    container.pointer("/securityContext/privileged") == Some(&Value::Bool(true))
        || items(container, "/securityContext/capabilities/add")
            .any(|c| matches!(c.as_str(), Some("NET_ADMIN" | "SYS_ADMIN" | "ALL")))
}

/// Deployments whose pods the webhook refuses, with its reason.
fn refused(facts: &Facts) -> Vec<String> {
    let each = facts.deployments.iter().filter_map(|deployment| {
        let mut conditions = items(deployment, "/status/conditions");
        let failure = conditions.find(|c| {
            text(c, "/type") == "ReplicaFailure" && text(c, "/message").contains("tulle")
        })?;
        Some(format!(
            "deployment {}/{}: {}",
            text(deployment, "/metadata/namespace"),
            text(deployment, "/metadata/name"),
            text(failure, "/message")
        ))
    });
    each.collect()
}

/// Service accounts of several workloads of the mesh.
fn shared(facts: &Facts) -> Vec<String> {
    let mut users: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for Meshed {
        namespace,
        account,
        workload,
        ..
    } in facts.meshed.iter().map(|(pod, _)| pod)
    {
        users
            .entry((namespace, account))
            .or_default()
            .insert(workload);
    }
    let several = users
        .into_iter()
        .filter(|(_, workloads)| workloads.len() > 1);
    several
        .map(|((namespace, account), workloads)| {
            let workloads: Vec<&str> = workloads.into_iter().take(5).collect();
            format!("{namespace}/{account} is that of {}", workloads.join(", "))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_that_nobody_reads_are_told_and_only_of_the_namespace_that_is_asked_about() {
        let labelled =
            |name: &str, labels: Value| json!({ "metadata": { "name": name, "labels": labels } });
        let mut facts = Facts {
            namespaces: vec![
                labelled(
                    "shop",
                    json!({ "tulle.dev/injection": "enabled", "tulle.dev/profile": "strict" }),
                ),
                labelled(
                    "apps",
                    json!({ "tulle.dev/Inject": "enabled", "tulle.dev/inject": "on" }),
                ),
            ],
            pods: vec![json!({ "metadata": {
                "namespace": "shop", "name": "a", "labels": { "tulle.dev/inject": "enabled", "app": "a" },
                "annotations": { "tulle.dev/cpu-limit": "1", "tulle.dev/cpu": "1", "other.dev/cpu": "1" },
            } })],
            services: vec![json!({ "metadata": {
                "namespace": "shop", "name": "s",
                "annotations": { "tulle.dev/opaque-ports": "80", "tulle.dev/opaque-port": "80" },
            } })],
            ..Facts::default()
        };
        let found = |facts: &Facts, id: &str| {
            let wrong = Report::wrong(|report| check(facts, report));
            let of_id = wrong.into_iter().filter(|f| f.id == id);
            of_id.map(|f| f.finding).collect::<Vec<_>>()
        };
        let expected = [
            "namespace apps: tulle.dev/Inject",
            "namespace shop: tulle.dev/injection",
            "pods of shop/pod/a: tulle.dev/cpu",
            "service shop/s: tulle.dev/opaque-port",
        ];
        assert_eq!(found(&facts, "TK096"), expected);
        assert_eq!(found(&facts, "TK050").len(), 1);
        facts.within = Some("shop".into());
        assert_eq!(found(&facts, "TK096"), expected[1..]);
        assert!(found(&facts, "TK050").is_empty());
    }

    #[test]
    fn pods_are_as_they_should_be_or_not() {
        let pod = |name: &str, labels: Value, spec: Value| json!({ "metadata": { "namespace": "shop", "name": name, "labels": labels }, "spec": spec });
        let sidecar = json!({ "name": SIDECAR });
        let facts = Facts {
            namespaces: vec![
                json!({ "metadata": { "name": "shop", "labels": { "tulle.dev/inject": "enabled" } } }),
                json!({ "metadata": { "name": "odd", "labels": { "tulle.dev/inject": "true" } } }),
            ],
            pods: vec![
                pod("a", json!({}), json!({ "containers": [{ "name": "app" }] })),
                pod("b", json!({}), json!({ "hostNetwork": true })),
                pod(
                    "c",
                    json!({ "tulle.dev/inject": "disabled" }),
                    json!({ "initContainers": [sidecar] }),
                ),
                pod(
                    "d",
                    json!({}),
                    json!({
                        "initContainers": [sidecar],
                        "containers": [
                            { "name": "istio-proxy" },
                            { "name": "app", "securityContext": { "runAsUser": 1500, "capabilities": { "add": ["NET_ADMIN"] } },
                              "ports": [{ "hostPort": 80 }] },
                        ],
                    }),
                ),
            ],
            deployments: vec![json!({
                "metadata": { "namespace": "shop", "name": "w" },
                "status": { "conditions": [{ "type": "ReplicaFailure",
                    "message": "admission webhook \"pod.tulle.dev\" denied the request: Tulle: …" }] },
            })],
            ..Facts::default()
        };
        let mut report = Report::default();
        check(&facts, &mut report);
        let wrong = report.0.iter().filter(|f| f.outcome != Outcome::Ok);
        let wrong: Vec<&str> = wrong.map(|f| f.id).collect();
        assert_eq!(
            wrong,
            [
                "TK050", "TK051", "TK052", "TK053", "TK054", "TK055", "TK056", "TK058", "TK059"
            ]
        );
    }
}
