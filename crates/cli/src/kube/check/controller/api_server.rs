//! Does the API server reach the controller and trust it: its webhooks, the metrics API, and the Service before both?

use super::root::untrusted;
use crate::kube::check::gather::{Facts, named};
use crate::kube::check::{Outcome, Report};
use crate::kube::workloads::{items, text};
use serde_json::Value;
use tulle_kube::names::{CONTROLLER, SIDECAR, WEBHOOK};

/// The webhook and the sidecars reach the controller through its Service, whatever namespace is asked about.
pub(super) fn endpoints(facts: &Facts, report: &mut Report) {
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

/// While it does not answer, discovery and the end of namespaces are held up for all.
pub(super) fn smi_metrics(facts: &Facts, report: &mut Report) {
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

pub(super) fn webhooks(facts: &Facts, report: &mut Report) {
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
