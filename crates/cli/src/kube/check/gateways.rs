//! Checks that the controller has the rights that Gateways need where they are, and nowhere else.

use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::workloads::{items, text};
use serde_json::Value;
use tulle_kube::gateway::{NOT_PERMITTED, ROLE};

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let wrong: Vec<String> = facts.gateways.iter().flat_map(refusals).collect();
    report.each("TK045", Outcome::Error, wrong, "no Gateway lacks them");
    if facts.gateways_everywhere && facts.gateways_chosen == Some(false) {
        let why = format!(
            "the controller may read the Secrets of all namespaces: an earlier installation left the ClusterRoleBinding \
             {ROLE}. Name the namespaces of Gateways in gateways.namespaces, then `kubectl delete clusterrolebinding {ROLE}`"
        );
        report.warning("TK045", why);
    }
}

/// Returns what a Gateway's status says about missing rights.
fn refusals(gateway: &Value) -> Vec<String> {
    let of = |place: &Value, who: &str| -> Vec<String> {
        let all = items(place, "/conditions");
        let refused = all.filter(|c| text(c, "/reason") == NOT_PERMITTED);
        let refused =
            refused.filter(|c| ["Programmed", "ResolvedRefs"].contains(&text(c, "/type")));
        refused
            .map(|c| format!("{who}: {}", text(c, "/message")))
            .collect()
    };
    let name = format!(
        "Gateway {}/{}",
        text(gateway, "/metadata/namespace"),
        text(gateway, "/metadata/name")
    );
    let status = &gateway["status"];
    let whole = of(status, &name);
    if !whole.is_empty() {
        return whole;
    }
    let listeners = items(status, "/listeners");
    listeners
        .flat_map(|l| of(l, &format!("{name}, listener {}", text(l, "/name"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn condition(kind: &str, reason: &str) -> Value {
        json!({ "type": kind, "status": "False", "reason": reason, "message": "no rights" })
    }

    fn found(facts: &Facts) -> Vec<(Outcome, String)> {
        let wrong = Report::wrong(|report| check(facts, report));
        wrong.into_iter().map(|f| (f.outcome, f.finding)).collect()
    }

    #[test]
    fn a_gateway_without_rights_is_told_once() {
        let gateway = |name: &str, whole: Value, listener: Value| {
            json!({
                "metadata": { "namespace": "infra", "name": name },
                "status": {
                    "conditions": [whole],
                    "listeners": [{ "name": "https", "conditions": [listener] }],
                },
            })
        };
        let good = || condition("Programmed", "Pending");
        let facts = Facts {
            gateways: vec![
                gateway(
                    "a",
                    condition("Programmed", NOT_PERMITTED),
                    condition("Programmed", NOT_PERMITTED),
                ),
                gateway("b", good(), condition("ResolvedRefs", NOT_PERMITTED)),
                gateway(
                    "c",
                    good(),
                    condition("ResolvedRefs", "InvalidCertificateRef"),
                ),
                json!({ "metadata": { "namespace": "infra", "name": "new" } }),
            ],
            ..Facts::default()
        };
        let expected = [
            "Gateway infra/a: no rights",
            "Gateway infra/b, listener https: no rights",
        ];
        assert_eq!(found(&facts), expected.map(|f| (Outcome::Error, f.into())));
    }

    #[test]
    fn rights_that_are_left_everywhere_are_told() {
        let facts = |everywhere, chosen| Facts {
            gateways_everywhere: everywhere,
            gateways_chosen: chosen,
            ..Facts::default()
        };
        let left = found(&facts(true, Some(false)));
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].0, Outcome::Warning);
        // Chosen; installed by Helm, which removes it itself; not there.
        for (everywhere, chosen) in [(true, Some(true)), (true, None), (false, Some(false))] {
            assert_eq!(found(&facts(everywhere, chosen)), []);
        }
    }
}
