//! Can this cluster have a mesh?

use super::gather::{Facts, named};
use super::{Outcome, Report};
use crate::kube::workloads::{is_ready, tag, text};
use crate::proxies::now;
use serde_json::Value;
use tulle_kube::names::{CONTROLLER, SIDECAR};

/// Native sidecars are on by default from here on.
const NATIVE_SIDECARS: (u64, u64) = (1, 29);
/// Clocks may differ by so many seconds; certificates allow for a minute.
const APART: i64 = 60;
/// A kubelet writes its lease every ten seconds; one that is late has other troubles.
const LEASE: i64 = 40;
const OTHER_MESHES: [(&str, &str); 6] = [
    ("istio", "Istio"),
    ("linkerd", "Linkerd"),
    ("kuma", "Kuma"),
    ("osm-", "Open Service Mesh"),
    ("fsm-", "FSM"),
    ("consul-connect", "Consul"),
];

pub(super) fn check(facts: &Facts, pre: bool, report: &mut Report) {
    let version = text(&facts.version, "/gitVersion");
    report.ok("TK001", format!("answers at {}", facts.server));
    match number(version) {
        v if v >= NATIVE_SIDECARS => report.ok("TK002", version),
        v if v >= (1, 24) => report.warning("TK002", format!("{version} has no native sidecars")),
        _ => report.error("TK002", format!("{version} is older than 1.24")),
    }
    nodes(facts, report);
    let wanted = [
        "admissionregistration.k8s.io/v1",
        "authentication.k8s.io/v1",
        "authorization.k8s.io/v1",
        "discovery.k8s.io/v1",
        "coordination.k8s.io/v1",
        "rbac.authorization.k8s.io/v1",
    ];
    let missing = wanted
        .iter()
        .filter(|g| !facts.groups.iter().any(|f| f == *g));
    let missing = missing.map(|g| format!("there is no {g}")).collect();
    report.each(
        "TK008",
        Outcome::Error,
        missing,
        "all that are needed are there",
    );
    if pre {
        let not = facts.not_allowed.clone();
        report.each("TK009", Outcome::Error, not, "you may install Tulle");
    }
    clocks(facts, report);
    gateway_api(facts, report);
    other_meshes(facts, report);
    pod_security(facts, report);
    if pre {
        match &facts.controller {
            None => report.ok("TK016", "there is none"),
            Some(found) => {
                let image = text(found, "/spec/template/spec/containers/0/image");
                report.warning(
                    "TK016",
                    format!("{} is installed in {}", tag(image), facts.home),
                );
            }
        }
    }
}

/// `(1, 34)` of `v1.34.2+k3s1`.
fn number(version: &str) -> (u64, u64) {
    let mut parts = version.trim_start_matches('v').split('.');
    let mut next = || {
        parts
            .next()
            .and_then(|p| p.parse().ok())
            .unwrap_or_default()
    };
    (next(), next())
}

fn nodes(facts: &Facts, report: &mut Report) {
    let of = |pointer: &'static str, wrong: &dyn Fn(&str) -> bool| {
        let each = facts.nodes.iter();
        let wrong = each.filter(|n| wrong(text(n, pointer)));
        wrong
            .map(|n| format!("node {}: {}", text(n, "/metadata/name"), text(n, pointer)))
            .collect::<Vec<_>>()
    };
    let count = format!("{} nodes", facts.nodes.len());
    let old = of("/status/nodeInfo/kubeletVersion", &|v| {
        number(v) < NATIVE_SIDECARS
    });
    report.each(
        "TK003",
        Outcome::Warning,
        old,
        &format!("{count} know native sidecars"),
    );
    let old = of("/status/nodeInfo/kernelVersion", &|v| number(v) < (5, 4));
    report.each(
        "TK004",
        Outcome::Error,
        old,
        &format!("{count} have Linux 5.4 or newer"),
    );
    let other = of("/status/nodeInfo/architecture", &|a| {
        !matches!(a, "amd64" | "arm64" | "arm")
    });
    report.each(
        "TK005",
        Outcome::Warning,
        other,
        &format!("{count} are amd64, arm64 or arm"),
    );
    let other = of("/status/nodeInfo/operatingSystem", &|os| os != "linux");
    report.each(
        "TK006",
        Outcome::Warning,
        other,
        &format!("{count} run Linux"),
    );
    let not_ready = facts.nodes.iter().filter(|n| !is_ready(n));
    let not_ready = not_ready
        .map(|n| format!("node {}", text(n, "/metadata/name")))
        .collect();
    report.each(
        "TK007",
        Outcome::Warning,
        not_ready,
        &format!("{count}, all"),
    );
}

fn clocks(facts: &Facts, report: &mut Report) {
    match facts.ahead {
        Some(ahead) if ahead.abs() > APART => report.warning(
            "TK010",
            format!("{ahead} s ahead of the API server's: ages are shown wrongly"),
        ),
        Some(_) => report.ok("TK010", "as the API server's"),
        None => report.warning("TK010", "the API server does not say its time"),
    }
    let server = now() - facts.ahead.unwrap_or_default();
    let mut apart = Vec::new();
    for lease in &facts.node_leases {
        let renewed: Result<k8s_openapi::jiff::Timestamp, _> =
            text(lease, "/spec/renewTime").parse();
        let Ok(renewed) = renewed else { continue };
        let behind = server - renewed.as_second();
        if !(-APART..=APART + LEASE).contains(&behind) {
            let name = text(lease, "/metadata/name");
            apart.push(format!(
                "node {name}: {behind} s behind the API server, or it has stopped"
            ));
        }
    }
    report.each("TK011", Outcome::Warning, apart, "as the API server's");
}

fn gateway_api(facts: &Facts, report: &mut Report) {
    let Some(crd) = named(&facts.crds, "httproutes.gateway.networking.k8s.io") else {
        return report.ok(
            "TK012",
            "not installed; Tulle's and SMI's objects do without",
        );
    };
    let at = "/metadata/annotations/gateway.networking.k8s.io~1bundle-version";
    let version = text(crd, at);
    match number(version) {
        v if v >= (1, 2) => report.ok("TK012", version),
        _ => report.warning(
            "TK012",
            format!("its version is {version:?}, older than 1.2"),
        ),
    }
}

fn other_meshes(facts: &Facts, report: &mut Report) {
    let names = facts.mutating.iter().map(|w| text(w, "/metadata/name"));
    let found = names.filter_map(|name| {
        let (_, mesh) = OTHER_MESHES.iter().find(|(part, _)| name.contains(part))?;
        Some(format!("{mesh} injects sidecars, too (webhook {name})"))
    });
    report.each(
        "TK013",
        Outcome::Warning,
        found.collect(),
        "none injects sidecars",
    );
}

/// The init container makes rules, which takes a capability that the lower levels forbid.
fn pod_security(facts: &Facts, report: &mut Report) {
    let uses_init = facts.settings.as_ref().is_none_or(|settings| {
        let settings: Value =
            serde_json::from_str(text(settings, "/data/settings.json")).unwrap_or_default();
        settings.pointer("/sidecars/initImage").is_some()
    });
    let mut wrong = Vec::new();
    for name in facts.injected().filter(|_| uses_init) {
        let namespace = named(&facts.namespaces, name).unwrap_or(&Value::Null);
        let level = text(
            namespace,
            "/metadata/labels/pod-security.kubernetes.io~1enforce",
        );
        if matches!(level, "baseline" | "restricted") {
            wrong.push(format!(
                "namespace {name} enforces {level}, which forbids the init container"
            ));
        }
    }
    report.each(
        "TK014",
        Outcome::Error,
        wrong,
        "allows the sidecars where they are wanted",
    );
}

/// Whether a container, of another mesh or of ours, is a sidecar.
pub(super) fn is_sidecar_of_other(name: &str) -> bool {
    matches!(
        name,
        "istio-proxy" | "linkerd-proxy" | "kuma-sidecar" | "envoy" | "sidecar" | "consul-dataplane"
    ) && name != SIDECAR
        && name != CONTROLLER
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(version: &str, architecture: &str) -> Value {
        json!({
            "metadata": { "name": "n" },
            "status": {
                "nodeInfo": {
                    "kubeletVersion": version, "kernelVersion": "6.1.0-4-amd64",
                    "architecture": architecture, "operatingSystem": "linux",
                },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        })
    }

    fn ids(report: &Report, outcome: Outcome) -> Vec<&'static str> {
        let found = report.0.iter().filter(|f| f.outcome == outcome);
        found.map(|f| f.id).collect()
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(number("v1.34.2+k3s1"), (1, 34));
        assert_eq!(number("6.1.0-amd64"), (6, 1));
        assert_eq!(number(""), (0, 0));
    }

    #[test]
    fn an_old_cluster_is_found_out() {
        let mut facts = Facts {
            version: json!({ "gitVersion": "v1.27.0" }),
            nodes: vec![node("v1.27.0", "riscv64")],
            mutating: vec![json!({ "metadata": { "name": "istio-sidecar-injector" } })],
            not_allowed: vec!["you may not create secrets".into()],
            ahead: Some(3600),
            ..Facts::default()
        };
        let mut report = Report::default();
        check(&facts, true, &mut report);
        assert_eq!(
            ids(&report, Outcome::Warning),
            ["TK002", "TK003", "TK005", "TK010", "TK013"]
        );
        let errors = ids(&report, Outcome::Error);
        assert!(
            errors.contains(&"TK008") && errors.contains(&"TK009"),
            "{errors:?}"
        );

        facts.namespaces = vec![json!({ "metadata": { "name": "shop", "labels": {
            "tulle.dev/inject": "enabled", "pod-security.kubernetes.io/enforce": "restricted",
        } } })];
        let mut report = Report::default();
        check(&facts, false, &mut report);
        assert!(ids(&report, Outcome::Error).contains(&"TK014"));
    }
}
