//! Does the controller do its work, and does the API server ask it?

use super::gather::{Facts, named};
use super::{Outcome, Report};
use crate::kube::proxy::now;
use crate::kube::workloads::{is_ready, items, tag, text};
use crate::output::coarse;
use serde_json::Value;
use std::time::UNIX_EPOCH;
use tulle_kube::controller::Options;
use tulle_kube::names::{CONTROLLER, SIDECAR, WEBHOOK};
use tulle_tls::TrustBundle;

/// Restarts that are no accident.
const RESTARTS: u64 = 3;
/// Seconds of a root's life that are left when it is time to replace it.
const ROOT_LEFT: i64 = 30 * 86_400;
/// What the set of objects alone says of services is not so where services are the cluster's.
const OF_HOSTS: [&str; 6] = ["TL0010", "TL0011", "TL0018", "TL0020", "TL0044", "TL0045"];

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let home = &facts.home;
    match named(&facts.namespaces, home) {
        Some(_) => report.ok("TK020", home.as_str()),
        None => report.error(
            "TK020",
            format!("there is no namespace {home}: nothing is installed"),
        ),
    }
    smi_metrics(facts, report);
    let Some(controller) = &facts.controller else {
        report.error("TK021", format!("there is none in {home}"));
        webhooks(facts, report);
        return;
    };
    deployment(facts, controller, report);
    answers(facts, controller, report);
    settings(facts, report);
    match &facts.cluster_role {
        Some(_) => report.ok("TK028", "there"),
        None => report.error("TK028", format!("there is no ClusterRole {CONTROLLER}")),
    }
    let endpoints = of_service(facts, CONTROLLER).flat_map(|s| items(s, "/endpoints"));
    let is_ready = |e: &&Value| e.pointer("/conditions/ready") != Some(&Value::Bool(false));
    let here = |s: &Value| text(s, "/metadata/namespace") == home;
    match endpoints.filter(is_ready).count() {
        0 if facts.slices.iter().any(here) => {
            report.error("TK029", "it has no endpoint that is ready");
        }
        0 => report.ok("TK029", "not looked at: another namespace was asked about"),
        count => report.ok("TK029", format!("{count} ready")),
    }
    webhooks(facts, report);
    root(facts, report);
    kinds(facts, report);
    objects(facts, report);
}

/// While it does not answer, discovery and the end of namespaces are held up for all.
fn smi_metrics(facts: &Facts, report: &mut Report) {
    let Some(api_service) = &facts.api_service else {
        return;
    };
    let mut conditions = items(api_service, "/status/conditions");
    match conditions.find(|c| text(c, "/type") == "Available") {
        Some(c) if text(c, "/status") == "True" => report.ok("TK040", "answers"),
        Some(c) => report.error("TK040", text(c, "/message")),
        None => report.error("TK040", "the API server has not looked at it yet"),
    }
}

fn of_service<'a>(facts: &'a Facts, name: &str) -> impl Iterator<Item = &'a Value> {
    let of = format!("{name}-");
    facts.slices.iter().filter(move |s| {
        text(s, "/metadata/namespace") == facts.home && text(s, "/metadata/name").starts_with(&of)
    })
}

fn deployment(facts: &Facts, controller: &Value, report: &mut Report) {
    let number = |pointer: &str| controller.pointer(pointer).and_then(Value::as_u64);
    let wanted = number("/spec/replicas").unwrap_or(1);
    match number("/status/readyReplicas").unwrap_or_default() {
        0 => report.error(
            "TK021",
            format!("none of {wanted} is ready: no pod of the mesh can start"),
        ),
        ready if ready < wanted => {
            report.warning("TK021", format!("{ready} of {wanted} are ready"))
        }
        ready => report.ok("TK021", format!("{ready} of {wanted} are ready")),
    }
    let is_its = |pod: &&Value| {
        text(pod, "/metadata/namespace") == facts.home
            && text(pod, "/metadata/labels/app.kubernetes.io~1name") == CONTROLLER
    };
    let pods: Vec<&Value> = facts.pods.iter().filter(is_its).collect();
    let not_ready = pods.iter().filter(|pod| !is_ready(pod));
    let not_ready =
        not_ready.map(|pod| format!("pod {} is not ready", text(pod, "/metadata/name")));
    report.each(
        "TK022",
        Outcome::Warning,
        not_ready.collect(),
        "all are ready",
    );
    let restarted = pods.iter().filter_map(|pod| {
        let statuses = items(pod, "/status/containerStatuses");
        let count = statuses
            .filter_map(|s| s.get("restartCount")?.as_u64())
            .sum::<u64>();
        let name = text(pod, "/metadata/name");
        (count >= RESTARTS).then(|| format!("pod {name}: {count}"))
    });
    report.each(
        "TK023",
        Outcome::Warning,
        restarted.collect(),
        "few or none",
    );
}

fn answers(facts: &Facts, controller: &Value, report: &mut Report) {
    let image = text(controller, "/spec/template/spec/containers/0/image");
    let own = env!("CARGO_PKG_VERSION");
    match &facts.status {
        Some(Ok(status)) => {
            let (objects, proxies) = (status.objects, status.proxies.len());
            report.ok(
                "TK024",
                format!("{objects} objects, {proxies} proxies connected"),
            );
            if status.version == own {
                report.ok("TK025", own);
            } else {
                let text = format!("it is {}, this command {own}", status.version);
                report.warning("TK025", text);
            }
        }
        Some(Err(why)) => {
            report.error("TK024", why.as_str());
            report.warning(
                "TK025",
                format!("it does not say; its image is {}", tag(image)),
            );
        }
        None => {}
    }
}

fn settings(facts: &Facts, report: &mut Report) {
    let Some(map) = &facts.settings else {
        return report.error("TK026", "there is no ConfigMap tulle-settings");
    };
    let options: Options = match serde_json::from_str(text(map, "/data/settings.json")) {
        Ok(options) => options,
        Err(e) => return report.error("TK026", format!("they are not usable: {e}")),
    };
    report.ok("TK026", "usable");
    let set = &options.sidecars.trust_domain;
    match &facts.status {
        Some(Ok(status)) if status.trust_domain != *set => report.error(
            "TK027",
            format!(
                "the controller runs with {}, the settings say {set}",
                status.trust_domain
            ),
        ),
        _ => report.ok("TK027", set.as_str()),
    }
}

fn webhooks(facts: &Facts, report: &mut Report) {
    let Some(webhook) = named(&facts.mutating, WEBHOOK) else {
        return report.error(
            "TK030",
            format!("there is no {WEBHOOK}: no pod gets a sidecar"),
        );
    };
    let each: Vec<&Value> = items(webhook, "/webhooks").collect();
    let open = each.iter().filter(|w| text(w, "/failurePolicy") != "Fail");
    let open = open.map(|w| format!("{} lets pods start without a sidecar", text(w, "/name")));
    report.each("TK030", Outcome::Warning, open.collect(), WEBHOOK);
    let bundles = each.iter().map(|w| text(w, "/clientConfig/caBundle"));
    let known = bundles.clone().all(|b| !b.is_empty());
    let right = facts
        .bundle()
        .is_none_or(|root| bundles.clone().all(|b| same(b, root)));
    match (known, right) {
        (false, _) => report.error("TK031", "it has no certificate to trust it by"),
        (true, false) => report.error(
            "TK031",
            "it trusts another certificate than the mesh's root",
        ),
        (true, true) => report.ok("TK031", "by the mesh's root"),
    }
    let elsewhere = each.iter().filter(|w| {
        text(w, "/clientConfig/service/name") != CONTROLLER || facts.controller.is_none()
    });
    let elsewhere = elsewhere.map(|w| format!("{} asks nobody that is there", text(w, "/name")));
    report.each("TK032", Outcome::Error, elsewhere.collect(), &facts.home);
    match &facts.trial {
        Some(Ok(true)) => report.ok("TK033", "in a dry run"),
        Some(Ok(false)) => {
            report.error("TK033", format!("a pod that asked for it got no {SIDECAR}"))
        }
        Some(Err(why)) => report.error("TK033", why.as_str()),
        None => {}
    }
    let ours = facts
        .validating
        .iter()
        .filter(|w| text(w, "/metadata/name").contains("tulle"));
    let unknown = ours
        .filter(|w| items(w, "/webhooks").any(|w| text(w, "/clientConfig/caBundle").is_empty()));
    let unknown = unknown.map(|w| {
        format!(
            "the API server cannot trust {}: nothing of its kinds is accepted",
            text(w, "/metadata/name")
        )
    });
    report.each(
        "TK034",
        Outcome::Error,
        unknown.collect(),
        "the API server trusts them",
    );
}

/// Whether base64 of PEM has a root of a bundle: while a root is replaced there are two.
fn same(base64: &str, bundle: &str) -> bool {
    use base64::Engine as _;
    let decoded = base64::engine::general_purpose::STANDARD.decode(base64);
    let known = TrustBundle::from_pem(&decoded.unwrap_or_default());
    let (Ok(known), Ok(bundle)) = (known, TrustBundle::from_pem(bundle.as_bytes())) else {
        return false;
    };
    known
        .fingerprints()
        .any(|k| bundle.fingerprints().any(|b| b == k))
}

/// When the last certificate of a bundle ends, in seconds since 1970.
fn end(bundle: &str) -> Option<i64> {
    let bundle = TrustBundle::from_pem(bundle.as_bytes()).ok()?;
    let ends = bundle.roots().iter().map(|root| root.not_after);
    let last = ends.max()?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(last.as_secs()).ok()
}

fn root(facts: &Facts, report: &mut Report) {
    let Some(bundle) = facts.bundle() else {
        return report.error("TK035", "nobody has published one");
    };
    match end(bundle).map(|end| end - now()) {
        None => report.error(
            "TK035",
            "the trust bundle has no certificate that can be read",
        ),
        Some(left) if left <= 0 => report.error("TK035", "it has expired"),
        Some(left) if left < ROOT_LEFT => {
            report.warning("TK035", format!("valid for {}", coarse(left)))
        }
        Some(left) => report.ok("TK035", format!("valid for {}", coarse(left))),
    }
    let bundles = facts.bundles_by_namespace();
    let ends = |n: &&Value| text(n, "/status/phase") == "Terminating";
    let mut wrong = Vec::new();
    for namespace in facts.namespaces.iter().filter(|n| !ends(n)) {
        let name = text(namespace, "/metadata/name");
        match bundles.get(name) {
            None => wrong.push(format!("namespace {name} has none")),
            Some(other) if *other != bundle => {
                wrong.push(format!("namespace {name} has another than {}", facts.home));
            }
            Some(_) => {}
        }
    }
    let well = format!("the same in {} namespaces", bundles.len());
    report.each("TK036", Outcome::Warning, wrong, &well);
}

fn kinds(facts: &Facts, report: &mut Report) {
    let ours = facts
        .crds
        .iter()
        .filter(|c| text(c, "/spec/group").ends_with("tulle.dev"));
    let ours: Vec<&Value> = ours.collect();
    let waiting = ours.iter().filter(|crd| {
        let mut conditions = items(crd, "/status/conditions");
        !conditions.any(|c| text(c, "/type") == "Established" && text(c, "/status") == "True")
    });
    let waiting = waiting.map(|c| format!("{} is not served", text(c, "/metadata/name")));
    let well = match ours.len() {
        0 => "none of Tulle's are installed".to_owned(),
        count => format!("{count} are served"),
    };
    report.each("TK037", Outcome::Error, waiting.collect(), &well);
}

fn objects(facts: &Facts, report: &mut Report) {
    if let Some(lease) = &facts.leader {
        match text(lease, "/spec/holderIdentity") {
            "" => report.warning("TK038", "there is none"),
            holder => report.ok("TK038", holder),
        }
    } else {
        report.ok("TK038", "none is needed");
    }
    let wrong = facts
        .problems
        .iter()
        .filter(|p| !OF_HOSTS.contains(&p.code));
    let wrong = wrong.map(ToString::to_string).collect();
    report.each(
        "TK039",
        Outcome::Error,
        wrong,
        "nothing is wrong between them",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(report: &Report, id: &str) -> Outcome {
        let mut all = report.0.iter().filter(|f| f.id == id);
        all.next()
            .unwrap_or_else(|| panic!("no {id} in {report:?}"))
            .outcome
    }

    #[test]
    fn nothing_installed_is_an_error_that_says_so() {
        let facts = Facts {
            home: "tulle-system".into(),
            ..Facts::default()
        };
        let mut report = Report::default();
        check(&facts, &mut report);
        for id in ["TK020", "TK021", "TK030"] {
            assert_eq!(found(&report, id), Outcome::Error, "{id}");
        }
    }

    #[test]
    fn what_is_half_there_is_found_out() {
        let facts = Facts {
            home: "tulle-system".into(),
            namespaces: vec![
                json!({ "metadata": { "name": "tulle-system" } }),
                json!({ "metadata": { "name": "shop" } }),
            ],
            controller: Some(
                json!({ "spec": { "replicas": 2 }, "status": { "readyReplicas": 1 } }),
            ),
            settings: Some(json!({ "data": { "settings.json": "{}" } })),
            mutating: vec![json!({ "metadata": { "name": WEBHOOK }, "webhooks": [
                { "name": "a", "failurePolicy": "Ignore", "clientConfig": { "service": { "name": "x" } } },
            ] })],
            validating: vec![json!({ "metadata": { "name": "tulle-objects" }, "webhooks": [{}] })],
            bundles: vec![
                json!({ "metadata": { "namespace": "tulle-system" }, "data": { "ca.crt": "none" } }),
            ],
            crds: vec![
                json!({ "metadata": { "name": "meshes.tulle.dev" }, "spec": { "group": "tulle.dev" } }),
            ],
            api_service: Some(json!({ "status": { "conditions": [
                { "type": "Available", "status": "False", "message": "no endpoints" },
            ] } })),
            status: Some(Err("no".into())),
            trial: Some(Ok(false)),
            ..Facts::default()
        };
        let mut report = Report::default();
        check(&facts, &mut report);
        for id in [
            "TK024", "TK026", "TK028", "TK031", "TK032", "TK033", "TK034", "TK035", "TK037",
            "TK040",
        ] {
            assert_eq!(found(&report, id), Outcome::Error, "{id}");
        }
        for id in ["TK021", "TK025", "TK030", "TK036"] {
            assert_eq!(found(&report, id), Outcome::Warning, "{id}");
        }
        assert_eq!(found(&report, "TK020"), Outcome::Ok);
    }
}
