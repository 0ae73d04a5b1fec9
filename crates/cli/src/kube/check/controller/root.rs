//! Is the mesh's root valid, the same in all namespaces, and the one by which the API server trusts the controller?

use crate::kube::check::gather::Facts;
use crate::kube::check::{Outcome, Report};
use crate::kube::workloads::text;
use crate::output::coarse;
use crate::proxies::now;
use serde_json::Value;
use std::time::UNIX_EPOCH;
use tulle_tls::TrustBundle;

/// Seconds of a root's life that are left when it is time to replace it.
const ROOT_LEFT: i64 = 30 * 86_400;

pub(super) fn check(facts: &Facts, report: &mut Report) {
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

/// When the last certificate of a bundle ends, in seconds since 1970.
fn end(bundle: &str) -> Option<i64> {
    let bundle = TrustBundle::from_pem(bundle.as_bytes()).ok()?;
    let ends = bundle.roots().iter().map(|root| root.not_after);
    let last = ends.max()?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(last.as_secs()).ok()
}

/// Returns the fault in the CA bundle (base64 of PEM) by which the API server trusts the controller.
pub(super) fn untrusted(facts: &Facts, bundle: &str) -> Option<&'static str> {
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
