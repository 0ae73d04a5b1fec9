//! Does each sidecar do its work?

use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::workloads::{items, text};
use crate::output::coarse;
use crate::proxies::{Meshed, ProxyReport, now, refused};
use serde_json::Value;
use std::collections::BTreeMap;
use tulle_kube::inject::differences;
use tulle_kube::names::{INIT, SIDECAR};
use tulle_model::manifest::MeshSpec;

/// Restarts that are no accident.
const RESTARTS: u64 = 3;

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let pods = || facts.meshed.iter();
    let each = |wrong: &dyn Fn(&Meshed) -> Option<String>| {
        let found =
            pods().filter_map(|(pod, _)| Some(format!("pod {}: {}", pod.shown(), wrong(pod)?)));
        found.collect::<Vec<_>>()
    };
    let count = |does: &dyn Fn(&Meshed) -> bool| match facts.meshed.len() {
        0 => "no pod has a sidecar".to_owned(),
        all => format!(
            "{} of {all} do",
            pods().filter(|(pod, _)| does(pod)).count()
        ),
    };
    let not = each(&|p| (!p.sidecar_runs).then(|| waits(facts, p)));
    report.each("TK060", Outcome::Error, not, &count(&|p| p.sidecar_runs));
    let not = each(&|p| (p.sidecar_runs && !p.sidecar_ready).then(|| "it is not ready".into()));
    report.each("TK061", Outcome::Error, not, &count(&|p| p.sidecar_ready));
    let often = each(&|p| (p.restarts >= RESTARTS).then(|| format!("{} restarts", p.restarts)));
    report.each("TK062", Outcome::Warning, often, "few or none");
    report.each(
        "TK063",
        Outcome::Warning,
        killed(facts),
        "none was killed for its memory",
    );
    report.each("TK064", Outcome::Error, rules(facts), "failed in no pod");
    said(facts, report);
    versions(facts, report);
    let not =
        each(&|p| (p.sidecar_ready && !p.ready).then(|| "the application is not ready".into()));
    report.each("TK072", Outcome::Warning, not, &count(&|p| p.ready));
    connected(facts, report);
    older(facts, report);
}

/// Pods that were made before a setting of sidecars, with what they have otherwise.
fn older(facts: &Facts, report: &mut Report) {
    let Some(options) = facts.options() else {
        return; // TK026 says why
    };
    // A Mesh that cannot be read has no effect: TK093.
    let mesh: MeshSpec = serde_json::from_value(facts.mesh.clone()).unwrap_or_default();
    let settings = options.sidecars.of_mesh(&mesh);
    let ended = |pod: &&Value| !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    let older = facts.pods.iter().filter(ended).filter_map(|pod| {
        let other = differences(pod, &settings);
        (!other.is_empty()).then(|| {
            let place = text(pod, "/metadata/namespace");
            format!(
                "pod {place}/{}: {}",
                text(pod, "/metadata/name"),
                other.join("; ")
            )
        })
    });
    let well = "every sidecar has those of now";
    report.each("TK079", Outcome::Warning, older.collect(), well);
}

/// Why a sidecar does not run: what it or the container before it waits for.
fn waits(facts: &Facts, meshed: &Meshed) -> String {
    let is_it = |pod: &&Value| {
        text(pod, "/metadata/namespace") == meshed.namespace
            && text(pod, "/metadata/name") == meshed.name
    };
    let pod = facts.pods.iter().find(is_it);
    let mut states = [INIT, SIDECAR]
        .into_iter()
        .filter_map(|name| Some((name, state(pod?, name)?)));
    states
        .find_map(|(name, state)| {
            let reason = text(state, "/state/waiting/reason");
            let is_one = !matches!(reason, "" | "PodInitializing");
            is_one.then(|| {
                let image = text(state, "/image");
                format!("it does not run: {name} waits: {reason} ({image})")
            })
        })
        .unwrap_or_else(|| "it does not run".to_owned())
}

fn killed(facts: &Facts) -> Vec<String> {
    let each = facts.pods.iter().filter_map(|pod| {
        let own = state(pod, SIDECAR)?;
        let reason = text(own, "/lastState/terminated/reason");
        (reason == "OOMKilled").then(|| {
            format!(
                "pod {}/{}",
                text(pod, "/metadata/namespace"),
                text(pod, "/metadata/name")
            )
        })
    });
    each.collect()
}

fn state<'a>(pod: &'a Value, container: &str) -> Option<&'a Value> {
    let mut all =
        items(pod, "/status/initContainerStatuses").chain(items(pod, "/status/containerStatuses"));
    all.find(|s| text(s, "/name") == container)
}

fn rules(facts: &Facts) -> Vec<String> {
    let each = facts.pods.iter().filter_map(|pod| {
        let init = state(pod, INIT)?;
        let ended = init
            .pointer("/state/terminated/exitCode")
            .or(init.pointer("/lastState/terminated/exitCode"));
        let code = ended.and_then(Value::as_i64)?;
        (code != 0).then(|| {
            let name = text(pod, "/metadata/name");
            format!(
                "pod {}/{name}: {INIT} ended with {code}",
                text(pod, "/metadata/namespace")
            )
        })
    });
    each.collect()
}

/// Checks the proxies' reports on themselves.
fn said(facts: &Facts, report: &mut Report) {
    let root = facts.roots_of_sidecars();
    let (mut silent, mut not_accepted, mut none_yet) = (vec![], vec![], vec![]);
    let (mut certificates, mut identities, mut roots) = (vec![], vec![], vec![]);
    let mut left = i64::MAX;
    for (pod, said) in facts.meshed.iter().filter(|(pod, _)| pod.sidecar_runs) {
        let name = format!("pod {}", pod.shown());
        let ProxyReport {
            config,
            certificates: own,
        } = match said {
            Ok(said) => said,
            Err(why) => {
                silent.push(format!("{name}: {why}"));
                continue;
            }
        };
        if let Some(why) = refused(config) {
            not_accepted.push(format!("{name}: {why}"));
        }
        if config
            .get("generation")
            .and_then(Value::as_u64)
            .unwrap_or_default()
            == 0
        {
            none_yet.push(name.clone());
        }
        let wanted = format!("/ns/{}/sa/{}", pod.namespace, pod.account);
        let id = text(own, "/spiffe_id");
        if !id.is_empty() && !id.ends_with(&wanted) {
            identities.push(format!("{name}: it is {id}, its pod is {wanted}"));
        }
        let at = |member: &str| own.get(member).and_then(Value::as_i64);
        match (at("not_before"), at("not_after")) {
            (Some(from), Some(to)) => {
                left = left.min(to - now());
                if to <= now() {
                    certificates.push(format!("{name}: it has expired"));
                } else if now() > from + (to - from) * 9 / 10 {
                    certificates.push(format!("{name}: valid for {} only", coarse(to - now())));
                }
            }
            _ => certificates.push(format!("{name}: it has none")),
        }
        let trusted = items(own, "/trust_bundle").map(|r| text(r, "/fingerprint").to_owned());
        let trusted: Vec<String> = trusted.collect();
        if !trusted.is_empty() && !root.is_empty() && !trusted.iter().any(|t| root.contains(t)) {
            roots.push(format!(
                "{name}: it trusts none of the roots that are given"
            ));
        }
    }
    report.each("TK065", Outcome::Error, silent, "all do");
    report.each("TK066", Outcome::Error, not_accepted, "by all");
    report.each("TK067", Outcome::Error, none_yet, "to all");
    let well = match left {
        i64::MAX => "none was looked at".to_owned(),
        left => format!("all are valid, for {} at least", coarse(left)),
    };
    report.each("TK068", Outcome::Error, certificates, &well);
    report.each(
        "TK069",
        Outcome::Error,
        identities,
        "those of their pods' service accounts",
    );
    report.each("TK070", Outcome::Error, roots, "those that are given");
}

fn versions(facts: &Facts, report: &mut Report) {
    let Some(Ok(status)) = &facts.status else {
        return;
    };
    let mut others: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (pod, _) in &facts.meshed {
        if pod.version != status.version {
            others.entry(&pod.version).or_default().push(pod.shown());
        }
    }
    let other = others.into_iter().map(|(version, pods)| {
        let some: Vec<String> = pods.iter().take(3).cloned().collect();
        format!("{} are {version}, such as {}", pods.len(), some.join(" "))
    });
    report.each("TK071", Outcome::Warning, other.collect(), &status.version);
}

/// The controller knows proxies by identity; replicas of it know each its own.
fn connected(facts: &Facts, report: &mut Report) {
    let Some(Ok(status)) = &facts.status else {
        return;
    };
    let replicas = facts
        .controller
        .as_ref()
        .and_then(|c| c.pointer("/spec/replicas")?.as_u64());
    if replicas.unwrap_or(1) > 1 {
        return report.ok("TK073", "not looked at: there are several controllers");
    }
    let mut missing = Vec::new();
    for (pod, _) in facts.meshed.iter().filter(|(pod, _)| pod.sidecar_ready) {
        let id = format!("/ns/{}/sa/{}", pod.namespace, pod.account);
        if !status.proxies.iter().any(|p| p.spiffe_id.ends_with(&id)) {
            missing.push(format!("pod {}", pod.shown()));
        }
    }
    report.each(
        "TK073",
        Outcome::Warning,
        missing,
        &format!("{} proxies", status.proxies.len()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tulle_api::v1::ControllerStatus;

    fn meshed(name: &str) -> Meshed {
        Meshed {
            namespace: "shop".into(),
            name: name.into(),
            workload: format!("deployment/{name}"),
            account: "web".into(),
            labels: Vec::new(),
            ready: true,
            sidecar_ready: true,
            sidecar_runs: true,
            version: "0.1.0".into(),
            restarts: 0,
            gateway: false,
        }
    }

    fn wrong(facts: &Facts) -> Vec<&'static str> {
        let mut report = Report::default();
        check(facts, &mut report);
        let wrong = report.0.iter().filter(|f| f.outcome != Outcome::Ok);
        wrong.map(|f| f.id).collect()
    }

    #[test]
    fn a_pod_that_is_older_than_a_setting_of_the_mesh_is_named() {
        let settings = json!({
            "namespace": "tulle-system",
            "sidecars": { "image": "p", "controller": "c:1", "trustDomain": "cluster.local" },
        });
        let config = json!({ "workers": 0 }).to_string();
        let pod = |name: &str, phase: &str, memory: &str| {
            json!({
                "metadata": { "namespace": "shop", "name": name }, "status": { "phase": phase },
                "spec": { "initContainers": [{
                    "name": SIDECAR, "resources": { "limits": { "memory": memory } },
                    "env": [{ "name": "TULLE_CONFIG", "value": config }],
                }] },
            })
        };
        let mut facts = Facts {
            settings: Some(json!({ "data": { "settings.json": settings.to_string() } })),
            mesh: json!({ "sidecar": { "memoryLimit": "64Mi" } }),
            pods: vec![
                pod("old", "Running", "128Mi"),
                pod("new", "Running", "64Mi"),
                pod("done", "Succeeded", "128Mi"),
            ],
            ..Facts::default()
        };
        let found = Report::wrong(|report| older(&facts, report));
        let found: Vec<&str> = found.iter().map(|f| &*f.finding).collect();
        assert_eq!(
            found,
            ["pod shop/old: memory limit: 128Mi, new pods have 64Mi"]
        );
        facts.mesh = json!({});
        let found = Report::wrong(|report| older(&facts, report));
        assert!(found[0].finding.starts_with("pod shop/new: "), "{found:?}");
    }

    #[test]
    fn a_proxy_that_is_well_is_not_found_and_one_that_is_not_is() {
        let own = |id: &str, to: i64| ProxyReport {
            config: json!({ "generation": 3, "refused": { "configuration": null } }),
            certificates: json!({ "spiffe_id": id, "not_before": now() - 60, "not_after": to }),
        };
        let good = own("spiffe://t/ns/shop/sa/web", now() + 3600);
        let mut facts = Facts {
            meshed: vec![(meshed("a"), Ok(good))],
            ..Facts::default()
        };
        assert!(wrong(&facts).is_empty(), "{:?}", wrong(&facts));

        let mut bad = own("spiffe://t/ns/shop/sa/other", now() - 1);
        bad.config = json!({ "refused": { "configuration": "no" } });
        facts.meshed = vec![
            (meshed("a"), Ok(bad)),
            (
                Meshed {
                    sidecar_runs: false,
                    sidecar_ready: false,
                    restarts: 9,
                    ..meshed("b")
                },
                Err(String::new()),
            ),
            (
                Meshed {
                    sidecar_ready: false,
                    version: "0.0.9".into(),
                    ..meshed("c")
                },
                Err("silent".into()),
            ),
            (
                Meshed {
                    ready: false,
                    ..meshed("d")
                },
                Err("silent".into()),
            ),
        ];
        facts.status = Some(Ok(ControllerStatus {
            version: "0.1.0".into(),
            ..Default::default()
        }));
        facts.pods = vec![json!({
            "metadata": { "namespace": "shop", "name": "a" },
            "status": { "initContainerStatuses": [
                { "name": INIT, "state": { "terminated": { "exitCode": 1 } } },
                { "name": SIDECAR, "lastState": { "terminated": { "reason": "OOMKilled" } } },
            ] },
        })];
        facts.pods.push(json!({
            "metadata": { "namespace": "shop", "name": "b" },
            "status": { "initContainerStatuses": [
                { "name": INIT, "image": "r/tulle-init:1", "state": { "waiting": { "reason": "ErrImagePull" } } },
                { "name": SIDECAR, "image": "r/tulle-proxy:1", "state": { "waiting": { "reason": "PodInitializing" } } },
            ] },
        }));
        assert_eq!(
            waits(&facts, &meshed("b")),
            "it does not run: tulle-init waits: ErrImagePull (r/tulle-init:1)"
        );
        assert_eq!(waits(&facts, &meshed("c")), "it does not run");
        assert_eq!(
            wrong(&facts),
            [
                "TK060", "TK061", "TK062", "TK063", "TK064", "TK065", "TK065", "TK066", "TK067",
                "TK068", "TK069", "TK071", "TK072", "TK073", "TK073",
            ]
        );
    }
}
