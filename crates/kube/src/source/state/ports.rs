//! Reads which ports of Services and pods are TCP, opaque, or reached past the sidecar. Pure.

use crate::inject::{self, containers};
use crate::names::{EXCLUDE_INBOUND_PORTS, HEALTH_PORT, INIT, METRICS_PORT, OPAQUE_PORTS};
use crate::pod::PodSpec;
use k8s_openapi::api::core::v1::ServicePort;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tulle_model::manifest::WorkloadPort;
use tulle_model::namespaced::Namespaced;
use tulle_redirect::{PodRules, REDIRECTION};

/// UDP passes by untouched, and nobody asks for anything else.
pub(super) fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|p| p == "TCP")
}

/// Reads the list of ports in an annotation; without it there are none.
///
/// # Errors
/// Why the list cannot be read.
fn annotated_ports(metadata: &ObjectMeta, key: &str) -> Result<Vec<u16>, String> {
    let annotations = metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(key));
    text.map_or_else(|| Ok(Vec::new()), |text| inject::ports(text))
}

/// Returns the ports that clients reach past the sidecar of a pod. An unreadable annotation adds none: the
/// webhook has refused such pods.
///
/// The installation's ports are read where the webhook wrote them, for the init container or the CNI plugin: a
/// pod keeps the rules that it started with when the installation's value changes.
pub(super) fn direct_ports(metadata: &ObjectMeta, spec: &PodSpec) -> Vec<u16> {
    let mut ports = annotated_ports(metadata, EXCLUDE_INBOUND_PORTS).unwrap_or_default();
    let init = spec.all_containers().filter(|c| c.name == INIT);
    let args = init.filter_map(|c| c.args.as_deref());
    ports.extend(args.flat_map(containers::excluded_inbound));
    let annotations = metadata.annotations.as_ref();
    let rules = annotations.and_then(|all| PodRules::parse(all.get(REDIRECTION)?).ok());
    ports.extend(
        rules
            .into_iter()
            .flat_map(|rules| rules.exceptions.exclude_inbound_ports),
    );
    ports.extend([METRICS_PORT, HEALTH_PORT]);
    // The webhook's list has the annotation's ports, too.
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// The ports that an object's annotation says are opaque. An unreadable annotation gives none: the
/// webhook has refused such pods, and `tulle check` names such Services.
pub(super) fn opaque_ports(kind: &str, key: &Namespaced, metadata: &ObjectMeta) -> Vec<u16> {
    annotated_ports(metadata, OPAQUE_PORTS).unwrap_or_else(|why| {
        let object = format!("{kind}/{key}");
        tracing::warn!(
            object,
            "without effect: the annotation {OPAQUE_PORTS}: {why}"
        );
        Vec::new()
    })
}

/// A port of a Service; `opaque` are those of which its annotation says that nobody reads their bytes.
pub(super) fn service_port(port: &ServicePort, opaque: &[u16]) -> Option<(String, WorkloadPort)> {
    let name = port.name.clone().unwrap_or_default();
    let app_protocol = match port.app_protocol.as_deref() {
        Some("https") => Some("tls"),
        Some("kubernetes.io/ws") => Some("http"),
        Some("kubernetes.io/wss") => Some("tls"),
        other => other,
    };
    let number = u16::try_from(port.port).ok()?;
    let app_protocol = match opaque.contains(&number) {
        // TLS of the application is opaque already, and may be routed by server name.
        true => app_protocol.filter(|p| *p == "tls").or(Some("tcp")),
        false => app_protocol,
    };
    let made = WorkloadPort {
        name: port.name.clone(),
        port: number,
        target_port: None,
        app_protocol: app_protocol.map(str::to_owned),
        proxy_protocol: false,
    };
    Some((name, made))
}
