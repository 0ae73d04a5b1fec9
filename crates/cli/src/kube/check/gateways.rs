//! Checks that the controller has the rights that Gateways need where they are, and nowhere else.

use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::workloads::{items, text};
use crate::output::coarse;
use crate::proxies::now;
use serde_json::Value;
use std::collections::BTreeMap;
use tulle_kube::gateway::{NOT_PERMITTED, ROLE};
use tulle_model::samples;

/// The gateways' metric of the end of their certificates.
const NOT_AFTER: &str = "tulle_gateway_certificate_not_after_seconds";
/// Seconds that should be left when a certificate is replaced.
const LEAST_LEFT: i64 = 86_400;

pub(super) fn check(facts: &Facts, report: &mut Report) {
    certificates(facts, report);
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

/// Checks the certificates that gateways report as served. A Secret's status does not change as time
/// passes.
#[allow(clippy::cast_possible_truncation)] // seconds since 1970
fn certificates(facts: &Facts, report: &mut Report) {
    let mut until: BTreeMap<(String, String), i64> = BTreeMap::new();
    let all = samples::parse(&facts.gateway_metrics);
    for sample in all.iter().filter(|s| s.name == NOT_AFTER) {
        let listener = (
            sample.label("gateway").to_owned(),
            sample.label("listener").to_owned(),
        );
        let at = sample.value as i64;
        let known = until.entry(listener).or_insert(at);
        *known = at.min(*known);
    }
    let left = until.into_iter().map(|(of, at)| (of, at - now()));
    let (mut expired, mut soon) = (Vec::new(), Vec::new());
    for ((gateway, listener), left) in left {
        let who = format!("Gateway {gateway}, listener {listener}");
        match left {
            ..=0 => expired.push(format!("{who}: it has expired, and clients refuse it")),
            1..LEAST_LEFT => soon.push(format!("{who}: valid for {} only", coarse(left))),
            _ => {}
        }
    }
    if expired.is_empty() || !soon.is_empty() {
        report.each(
            "TK097",
            Outcome::Warning,
            soon,
            "none has expired or soon will",
        );
    }
    if !expired.is_empty() {
        report.each("TK097", Outcome::Error, expired, "");
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

    #[test]
    fn certificates_that_have_expired_or_soon_will_are_told() {
        let line = |listener: &str, left: i64| {
            format!(
                "{NOT_AFTER}{{gateway=\"edge.shop\",listener=\"{listener}\"}} {}\n",
                now() + left
            )
        };
        let lines = [
            line("a", 9 * 86_400),
            line("b", 3600),
            line("b", 5 * 86_400),
            line("c", -1),
        ];
        let facts = Facts {
            gateway_metrics: lines.concat(),
            ..Facts::default()
        };
        let found = found(&facts);
        let expected = [
            (
                Outcome::Warning,
                "Gateway edge.shop, listener b: valid for ",
            ),
            (
                Outcome::Error,
                "Gateway edge.shop, listener c: it has expired",
            ),
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((outcome, text), (is, begins)) in found.iter().zip(expected) {
            assert!(*outcome == is && text.starts_with(begins), "{found:?}");
        }
    }

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
