//! Does the controller do its work, and does the API server ask it?

use super::gather::{Facts, named};
use super::{Outcome, Report};
use crate::kube::workloads::{is_ready, items, tag, text};
use crate::output::coarse;
use crate::proxies::now;
use serde_json::Value;
use std::time::UNIX_EPOCH;
use tulle_kube::controller::ControllerOptions;
use tulle_kube::names::{CONTROLLER, SIDECAR, WEBHOOK};
use tulle_tls::TrustBundle;

/// Restarts that are no accident.
const RESTARTS: u64 = 3;
/// Seconds of a root's life that are left when it is time to replace it.
const ROOT_LEFT: i64 = 30 * 86_400;

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
    trust_domain(facts, report);
    match &facts.cluster_role {
        Some(_) => report.ok("TK028", "there"),
        None => report.error("TK028", format!("there is no ClusterRole {CONTROLLER}")),
    }
    endpoints(facts, report);
    webhooks(facts, report);
    root(facts, report);
    kinds(facts, report);
    objects(facts, report);
}

/// The webhook and the sidecars reach the controller through its Service, whatever namespace is asked about.
fn endpoints(facts: &Facts, report: &mut Report) {
    let Some(slices) = &facts.controller_slices else {
        return report.ok(
            "TK029",
            "not looked at: you may not list its EndpointSlices",
        );
    };
    let endpoints = slices.iter().flat_map(|s| items(s, "/endpoints"));
    let is_ready = |e: &&Value| e.pointer("/conditions/ready") != Some(&Value::Bool(false));
    match endpoints.filter(is_ready).count() {
        0 => report.error(
            "TK029",
            "it has no endpoint that is ready: the API server's webhook and sidecars reach nobody",
        ),
        count => report.ok("TK029", format!("{count} ready")),
    }
}

/// Compares the trust domain in the settings with the controller's and the sidecars'. A sidecar whose
/// settings name another one no longer starts.
fn trust_domain(facts: &Facts, report: &mut Report) {
    let Some(options) = facts.options() else {
        return;
    };
    let said = &options.sidecars.trust_domain;
    let mut others = Vec::new();
    if let Some(Ok(status)) = &facts.status
        && status.trust_domain != *said
    {
        others.push(format!(
            "the settings say {said}, and the controller goes on with {}",
            status.trust_domain
        ));
    }
    for (pod, own) in &facts.meshed {
        let id = own
            .as_ref()
            .map(|own| text(&own.certificates, "/spiffe_id"));
        let id = id.ok().and_then(|id| id.strip_prefix("spiffe://"));
        let domain = id.and_then(|id| id.split('/').next());
        if let Some(domain) = domain.filter(|domain| domain != said) {
            others.push(format!("pod {} is of {domain}, not of {said}", pod.shown()));
        }
    }
    report.each("TK092", Outcome::Error, others, said);
}

/// While it does not answer, discovery and the end of namespaces are held up for all.
fn smi_metrics(facts: &Facts, report: &mut Report) {
    let Some(api_service) = &facts.api_service else {
        return;
    };
    let mut conditions = items(api_service, "/status/conditions");
    match conditions.find(|c| text(c, "/type") == "Available") {
        Some(c) if text(c, "/status") == "True" => {
            let anybody = api_service.pointer("/spec/insecureSkipTLSVerify");
            let wrong = match anybody {
                Some(Value::Bool(true)) => Some("it trusts anybody (insecureSkipTLSVerify)"),
                _ => untrusted(facts, text(api_service, "/spec/caBundle")),
            };
            match wrong {
                Some(why) => report.error("TK040", why),
                None => report.ok("TK040", "answers, and is trusted by the mesh's root"),
            }
        }
        Some(c) => report.error("TK040", text(c, "/message")),
        None => report.error("TK040", "the API server has not looked at it yet"),
    }
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
    // A namespace may be asked about that is not the controller's.
    let all = facts.pods.iter().chain(&facts.own_pods);
    let pods: Vec<&Value> = all.filter(is_its).collect();
    if pods.is_empty() {
        let text = "not looked at: none of its pods is to be seen";
        report.ok("TK022", text);
        report.ok("TK023", text);
        return;
    }
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
    let options: ControllerOptions = match serde_json::from_str(text(map, "/data/settings.json")) {
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
    let mut bundles = each.iter().map(|w| text(w, "/clientConfig/caBundle"));
    match bundles.find_map(|bundle| untrusted(facts, bundle)) {
        Some(why) => report.error("TK031", why),
        None => report.ok("TK031", "by the mesh's root"),
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

/// Returns the fault in the CA bundle (base64 of PEM) by which the API server trusts the controller.
fn untrusted(facts: &Facts, bundle: &str) -> Option<&'static str> {
    if bundle.is_empty() {
        return Some("it has no certificate to trust it by");
    }
    let right = facts.bundle().is_none_or(|root| same(bundle, root));
    (!right).then_some("it trusts another certificate than the mesh's root")
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
    if let Some(Ok(status)) = &facts.status {
        let fit = "nothing is wrong between them";
        // The warnings are among the problems, too.
        let (keys, wrong) = (&status.warnings, status.problems.iter());
        let wrong = wrong.filter(|p| !keys.contains(p)).cloned().collect();
        report.each("TK039", Outcome::Error, wrong, fit);
        let well = "none is missing";
        report.each("TK046", Outcome::Warning, keys.clone(), well);
    }
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
    fn what_the_controller_says_of_objects_is_told() {
        let outcome = |problems: &[&str]| {
            let facts = Facts {
                status: Some(Ok(tulle_api::v1::ControllerStatus {
                    problems: problems.iter().map(ToString::to_string).collect(),
                    ..Default::default()
                })),
                ..Facts::default()
            };
            let mut report = Report::default();
            objects(&facts, &mut report);
            found(&report, "TK039")
        };
        assert_eq!(outcome(&[]), Outcome::Ok);
        let wrong = "TrafficPolicy/p.shop: service web.shop, which it is about, does not exist";
        assert_eq!(outcome(&[wrong]), Outcome::Error);
    }

    #[test]
    fn keys_that_are_not_fetched_are_a_warning() {
        let text = "Authentication/a.shop: the keys of https://a.example/ are not fetched";
        let status = tulle_api::v1::ControllerStatus {
            problems: vec![text.to_owned()],
            warnings: vec![text.to_owned()],
            ..Default::default()
        };
        let facts = Facts {
            status: Some(Ok(status)),
            ..Facts::default()
        };
        let mut report = Report::default();
        objects(&facts, &mut report);
        assert_eq!(found(&report, "TK039"), Outcome::Ok);
        assert_eq!(found(&report, "TK046"), Outcome::Warning);
    }

    #[test]
    fn the_metrics_api_is_trusted_by_the_meshs_root() {
        use super::super::testing::{ONE, TWO};
        use base64::Engine as _;
        let base64 = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
        let outcome = |spec: Value| {
            let facts = Facts {
                home: "tulle-system".into(),
                bundles: vec![json!({
                    "metadata": { "namespace": "tulle-system" }, "data": { "ca.crt": ONE },
                })],
                api_service: Some(json!({
                    "spec": spec,
                    "status": { "conditions": [{ "type": "Available", "status": "True" }] },
                })),
                ..Facts::default()
            };
            let mut report = Report::default();
            check(&facts, &mut report);
            found(&report, "TK040")
        };
        let both = base64(&format!("{TWO}{ONE}"));
        assert_eq!(outcome(json!({ "caBundle": base64(ONE) })), Outcome::Ok);
        assert_eq!(outcome(json!({ "caBundle": both })), Outcome::Ok);
        for wrong in [
            json!({}),
            json!({ "caBundle": base64(TWO) }),
            json!({ "insecureSkipTLSVerify": true }),
        ] {
            assert_eq!(outcome(wrong.clone()), Outcome::Error, "{wrong}");
        }
    }

    #[test]
    fn the_service_is_looked_at_whatever_namespace_is_asked_about() {
        let outcome = |slices: Option<Vec<Value>>| {
            let facts = Facts {
                within: Some("shop".into()),
                home: "tulle-system".into(),
                controller: Some(json!({})),
                controller_slices: slices,
                ..Facts::default()
            };
            let mut report = Report::default();
            check(&facts, &mut report);
            found(&report, "TK029")
        };
        let slice = |ready: bool| json!({ "endpoints": [{ "conditions": { "ready": ready } }] });
        assert_eq!(outcome(Some(vec![slice(true)])), Outcome::Ok);
        for none in [vec![], vec![slice(false)], vec![json!({})]] {
            assert_eq!(outcome(Some(none)), Outcome::Error);
        }
        // It may not be seen.
        assert_eq!(outcome(None), Outcome::Ok);
    }

    #[test]
    fn the_pods_are_looked_at_whatever_namespace_is_asked_about() {
        let found = |own_pods: Vec<Value>| {
            let facts = Facts {
                within: Some("shop".into()),
                home: "tulle-system".into(),
                pods: vec![json!({ "metadata": { "namespace": "shop", "name": "web" } })],
                own_pods,
                ..Facts::default()
            };
            let mut report = Report::default();
            deployment(&facts, &json!({}), &mut report);
            ["TK022", "TK023"].map(|id| {
                let mut all = report.0.iter().filter(|f| f.id == id);
                let found = all.next().unwrap();
                (found.outcome, found.finding.clone())
            })
        };
        let pod = |ready: &str, restarts: u64| {
            json!({
                "metadata": {
                    "namespace": "tulle-system", "name": "controller-1",
                    "labels": { "app.kubernetes.io/name": CONTROLLER },
                },
                "status": {
                    "conditions": [{ "type": "Ready", "status": ready }],
                    "containerStatuses": [{ "restartCount": restarts }],
                },
            })
        };
        let said = |outcome, finding: &str| (outcome, finding.to_owned());
        assert_eq!(
            found(vec![pod("True", 0)]),
            [
                said(Outcome::Ok, "all are ready"),
                said(Outcome::Ok, "few or none"),
            ]
        );
        assert_eq!(
            found(vec![pod("False", RESTARTS)]),
            [
                said(Outcome::Warning, "pod controller-1 is not ready"),
                said(Outcome::Warning, "pod controller-1: 3"),
            ]
        );
        // They may not be seen.
        let unseen = said(Outcome::Ok, "not looked at: none of its pods is to be seen");
        assert_eq!(found(vec![]), [unseen.clone(), unseen]);
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
