//! Does the controller do its work, and does the API server ask it?

mod api_server;
mod root;

use super::gather::{Facts, named};
use super::{Outcome, Report};
use crate::kube::workloads::{is_ready, items, tag, text};
use api_server::{endpoints, smi_metrics, webhooks};
use serde_json::Value;
use tulle_kube::controller::ControllerOptions;
use tulle_kube::names::CONTROLLER;

/// Restarts that are no accident.
const RESTARTS: u64 = 3;

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
    root::check(facts, report);
    kinds(facts, report);
    objects(facts, report);
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
mod tests;
