//! Is the CNI plugin on every node, where pods rely on it?

use super::Report;
use super::gather::Facts;
use crate::kube::workloads::{is_ready, text};
use serde_json::Value;
use tulle_kube::names::CNI;

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let settings = facts.options();
    let relied_on = settings.is_some_and(|s| s.sidecars.init_image.is_none());
    let Some(daemon_set) = &facts.cni else {
        match relied_on {
            true => report.error(
                "TK041",
                format!("there is no DaemonSet {CNI}/{CNI}: no pod of the mesh can start"),
            ),
            false => report.ok("TK041", "not used: pods make their own rules"),
        }
        return;
    };
    let number = |pointer: &str| {
        daemon_set
            .pointer(pointer)
            .and_then(Value::as_u64)
            .unwrap_or(0)
    };
    let (wanted, ready) = (
        number("/status/desiredNumberScheduled"),
        number("/status/numberReady"),
    );
    if wanted == ready {
        return report.ok("TK041", format!("on all of {wanted} nodes"));
    }
    let not_ready = facts
        .pods
        .iter()
        .filter(|pod| text(pod, "/metadata/namespace") == CNI && !is_ready(pod));
    let nodes: Vec<&str> = not_ready.map(|pod| text(pod, "/spec/nodeName")).collect();
    let which = if nodes.is_empty() {
        String::new()
    } else {
        format!(": not on {}", nodes.join(" "))
    };
    report.error("TK041", format!("on {ready} of {wanted} nodes{which}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Outcome;
    use serde_json::json;

    fn found(facts: &Facts) -> (Outcome, String) {
        let mut report = Report::default();
        check(facts, &mut report);
        assert_eq!(report.0.len(), 1);
        (report.0[0].outcome, report.0[0].finding.clone())
    }

    #[test]
    fn pods_rely_on_it_or_not() {
        let mut facts = Facts::default();
        assert_eq!(found(&facts).0, Outcome::Ok);
        let settings = json!({
            "namespace": "tulle-system",
            "sidecars": { "image": "i", "controller": "c:1", "trustDomain": "t" },
        });
        facts.settings = Some(json!({ "data": { "settings.json": settings.to_string() } }));
        assert_eq!(found(&facts).0, Outcome::Error);
        let with =
            |ready: u64| json!({ "status": { "desiredNumberScheduled": 2, "numberReady": ready } });
        facts.cni = Some(with(2));
        assert_eq!(found(&facts).0, Outcome::Ok);
        facts.cni = Some(with(1));
        facts.pods = vec![json!({
            "metadata": { "namespace": CNI, "name": "a" }, "spec": { "nodeName": "two" },
        })];
        let (outcome, said) = found(&facts);
        assert_eq!(outcome, Outcome::Error);
        assert_eq!(said, "on 1 of 2 nodes: not on two");
    }
}
