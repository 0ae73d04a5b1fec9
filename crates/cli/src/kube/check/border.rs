//! Checks which traffic crosses the border of the mesh, and which traffic is refused there.

use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::outside::profile;
use crate::kube::workloads::text;
use crate::proxies::now;
use crate::traffic::Peer;

/// How long ago a refusal may be to be told: what was mended before is no news.
const RECENT: i64 = 15 * 60;

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let (strictness, outside) = (&facts.strictness, &facts.outside);
    let refused = |p: &&Peer| p.refused > 0 && now() - p.last <= RECENT;
    let calls = |p: &Peer| format!("{} → {} port {}", p.peer, p.own(), p.port);
    let reaches = |p: &Peer| format!("{} → {} port {}", p.own(), p.peer, p.port);

    let plain = outside.plaintext.iter();
    let open = |p: &&Peer| p.allowed > 0 && !strictness.refuses_plaintext(&p.namespace);
    let open = plain.clone().filter(open);
    let open = open.map(|p| {
        format!(
            "{}: {} connections, the last {}",
            calls(p),
            p.allowed,
            p.ago()
        )
    });
    report.each(
        "TK074",
        Outcome::Warning,
        open.collect(),
        "nobody calls in plaintext",
    );
    let kept = plain.filter(refused);
    let kept = kept.map(|p| format!("{}: {} refused, the last {}", calls(p), p.refused, p.ago()));
    report.each(
        "TK075",
        Outcome::Warning,
        kept.collect(),
        "none in the last 15 minutes",
    );

    let leaving = outside.egress.iter();
    let open = |p: &&Peer| p.allowed > 0 && !strictness.refuses_egress(&p.namespace);
    let open = leaving.clone().filter(open);
    let open = open.map(|p| {
        format!(
            "{}: {} connections, the last {}",
            reaches(p),
            p.allowed,
            p.ago()
        )
    });
    // The mesh allows it, so it is no error.
    report.each(
        "TK076",
        Outcome::Ok,
        open.collect(),
        "nothing without an Egress",
    );
    let kept = leaving.filter(refused);
    let kept = kept.map(|p| {
        format!(
            "{}: {} refused, the last {}",
            reaches(p),
            p.refused,
            p.ago()
        )
    });
    report.each(
        "TK077",
        Outcome::Warning,
        kept.collect(),
        "none in the last 15 minutes",
    );

    let odd = facts.asked();
    let odd = odd.filter(|n| !matches!(profile(n), "" | "strict" | "permissive"));
    let odd = odd.map(|n| {
        let name = text(n, "/metadata/name");
        format!(
            "namespace {name} says {:?}, which is taken for strict",
            profile(n)
        )
    });
    report.each("TK078", Outcome::Warning, odd.collect(), "understood");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::outside::Strictness;
    use crate::traffic::Outside;
    use serde_json::json;

    fn peer(namespace: &str, allowed: u64, refused: u64, last: i64) -> Peer {
        Peer {
            namespace: namespace.into(),
            workload: "deployment/web".into(),
            peer: "apps/deployment/client".into(),
            port: 80,
            allowed,
            refused,
            last,
        }
    }

    #[test]
    fn what_is_open_is_told_and_what_is_closed_as_long_as_somebody_tries() {
        let labels = json!({ "tulle.dev/profile": "Strict" });
        let facts = Facts {
            namespaces: vec![json!({ "metadata": { "name": "odd", "labels": labels } })],
            strictness: Strictness {
                namespaces: ["strict".to_owned()].into(),
                ..Strictness::default()
            },
            outside: Outside {
                plaintext: vec![
                    peer("shop", 2, 0, 0),
                    // This call came before the workload was strict.
                    peer("strict", 2, 0, 0),
                    peer("strict", 0, 1, now()),
                    peer("strict", 0, 1, now() - 2 * RECENT),
                ],
                egress: vec![peer("shop", 1, 0, 0), peer("strict", 1, 1, now())],
                unknown: Vec::new(),
            },
            ..Facts::default()
        };
        let mut report = Report::default();
        check(&facts, &mut report);
        let all: Vec<_> = report.0.iter().map(|f| (f.id, f.outcome)).collect();
        let expected = [
            ("TK074", Outcome::Warning),
            ("TK075", Outcome::Warning),
            ("TK076", Outcome::Ok),
            ("TK077", Outcome::Warning),
            ("TK078", Outcome::Warning),
        ];
        assert_eq!(all, expected);
        let text = &report.0[0].finding;
        assert!(
            text.starts_with("apps/deployment/client → shop/deployment/web port 80: 2"),
            "{text}"
        );
        assert!(report.0[2].finding.starts_with("shop/deployment/web → "));
    }
}
