//! Proxies for tests.

use super::Meshed;

/// A proxy that is well; without a namespace it is a host's.
pub(crate) fn proxy(namespace: &str, name: &str) -> Meshed {
    let kind = match namespace {
        "" => "workload",
        _ => "deployment",
    };
    Meshed {
        namespace: namespace.into(),
        name: name.into(),
        workload: format!("{kind}/{name}"),
        account: name.into(),
        labels: Vec::new(),
        ready: true,
        sidecar_ready: true,
        sidecar_runs: true,
        version: "1.2.3".into(),
        restarts: 0,
        gateway: false,
    }
}
