//! MeshConfig, which becomes a Mesh.

use super::fields::{carry, duration, list, lose_rest, nest, take, text};
use super::imported::{Imported, object};
use super::source::Source;
use serde_json::{Map, Value};

/// Fields about what a Mesh does in any case, or about their own programs: nothing is lost with them.
const MOOT: [&str; 15] = [
    "featureFlags",
    "sidecar/enablePrivilegedInitContainer",
    "sidecar/envoyImage",
    "sidecar/envoyWindowsImage",
    "sidecar/initContainerImage",
    "sidecar/sidecarImage",
    "sidecar/sidecarClass",
    "sidecar/sidecarDrivers",
    "sidecar/configResyncInterval",
    "sidecar/localProxyMode",
    "observability/enableDebugServer",
    "observability/tracing/enable",
    "certificate/certKeyBitSize",
    "traffic/inboundExternalAuthorization/enable",
    "traffic/inboundExternalAuthorization/statPrefix",
];

/// Flags without which objects of these kinds have no effect.
const POLICIES: [(&str, &str); 3] = [
    ("enableEgressPolicy", "Egresses"),
    ("enableIngressBackendPolicy", "IngressBackends"),
    ("enableAccessControlPolicy", "AccessControls"),
];

pub(super) fn import(mut source: Source, imported: &mut Imported) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = source.id;
    let mut mesh = Map::new();
    let mut notes = Vec::new();
    let is_off = |spec: &Value, pointer: &str| spec.pointer(pointer) == Some(&Value::Bool(false));
    // Settings of what is switched off say nothing.
    if is_off(&spec, "/observability/tracing/enable") {
        take(&mut spec, "observability/tracing");
    }
    if is_off(&spec, "/traffic/inboundExternalAuthorization/enable") {
        take(&mut spec, "traffic/inboundExternalAuthorization");
    }
    for (flag, kinds) in POLICIES {
        if is_off(&spec, &format!("/featureFlags/{flag}")) {
            imported.lose(
                &id,
                &format!("spec.featureFlags.{flag}"),
                &format!("{kinds} had no effect, and here they have"),
                &format!("apply no {kinds}"),
            );
        }
    }
    for path in MOOT {
        take(&mut spec, path);
    }
    carry(
        &mut spec,
        "traffic/enablePermissiveTrafficPolicyMode",
        &mut mesh,
        "permissiveMode",
    );
    carry(&mut spec, "traffic/enableEgress", &mut mesh, "allowEgress");
    // A new mesh in a cluster has both, and would keep what is not said.
    for name in ["permissiveMode", "allowEgress"] {
        mesh.entry(name).or_insert_with(|| false.into());
    }
    if let Some(level) = text(&mut spec, "sidecar/logLevel") {
        let (level, same) = log_level(&level);
        mesh.insert("logLevel".into(), level.into());
        if !same {
            notes.push(format!("logLevel: the nearest level is {level}"));
        }
    }
    let mut limits = Map::new();
    carry(
        &mut spec,
        "sidecar/resources/limits/cpu",
        &mut limits,
        "cpuLimit",
    );
    carry(
        &mut spec,
        "sidecar/resources/limits/memory",
        &mut limits,
        "memoryLimit",
    );
    nest(&mut mesh, "sidecar", limits);
    if let Some(dns) = take(&mut spec, "sidecar/localDNSProxy") {
        mesh.insert("dns".into(), (dns["enable"] == true).into());
    }
    if let Some(lifetime) = text(&mut spec, "certificate/serviceCertValidityDuration") {
        match duration(&lifetime) {
            Some(lifetime) => {
                let mut certificates = Map::new();
                certificates.insert("lifetime".into(), lifetime.into());
                nest(&mut mesh, "certificates", certificates);
            }
            None => imported.lose(
                &id,
                "spec.certificate.serviceCertValidityDuration",
                &format!("{lifetime} is no duration of whole milliseconds"),
                "set certificates.lifetime of the Mesh",
            ),
        }
    }
    values(&mut spec, &mut notes);
    elsewhere(&id, &mut spec, imported);
    lose_rest(
        imported,
        &id,
        "spec",
        &spec,
        "leave it out: see the table MeshConfig of docs/from-osm.md",
    );
    notes.push(
        "a new mesh also takes plaintext, which OSM refuses: `tulle harden` makes namespaces strict when all have moved".into(),
    );
    let made = imported.make(&id, object("Mesh", None, "mesh", mesh.into()));
    made.notes = notes;
}

/// Takes out fields that are values of the installation here.
fn values(spec: &mut Value, notes: &mut Vec<String>) {
    for (path, value) in [
        (
            "traffic/outboundIPRangeExclusionList",
            "excludeOutboundRanges",
        ),
        (
            "traffic/outboundIPRangeInclusionList",
            "includeOutboundRanges",
        ),
        ("traffic/outboundPortExclusionList", "excludeOutboundPorts"),
        ("traffic/inboundPortExclusionList", "excludeInboundPorts"),
    ] {
        let items: Vec<String> = list(spec, path).iter().map(plain).collect();
        if !items.is_empty() {
            notes.push(format!(
                "tulle install --set 'sidecar.redirection.{value}={{{}}}'",
                items.join(",")
            ));
        }
    }
    let mut requests = take(spec, "sidecar/resources/requests").unwrap_or_default();
    for name in ["cpu", "memory"] {
        if let Some(value) = take(&mut requests, name) {
            let value = plain(&value);
            notes.push(format!(
                "tulle install --set sidecar.resources.requests.{name}={value}"
            ));
        }
    }
    if let Some(level) = text(spec, "observability/osmLogLevel") {
        notes.push(format!("the controller's log had the level {level}"));
    }
}

/// Takes out fields that other objects say here.
fn elsewhere(id: &str, spec: &mut Value, imported: &mut Imported) {
    for (path, why, instead) in [
        (
            "observability/tracing",
            "sidecars speak OTLP, not Zipkin's protocol",
            "set tracing.endpoint of the Mesh to a collector's port for OTLP",
        ),
        (
            "traffic/inboundExternalAuthorization",
            "who decides about requests is said for each service",
            "make an Authentication with externalAuth for the services that need it",
        ),
        (
            "certificate/ingressGateway",
            "certificates are for workloads of the mesh",
            "serve the way in by a Gateway or an Ingress of the class `tulle`, or let it in by an IngressBackend with sources of kind IPRange",
        ),
        (
            "traffic/networkInterfaceExclusionList",
            "traffic is told apart by networks, not by interfaces",
            "set sidecar.redirection.excludeOutboundRanges of the installation's values",
        ),
        (
            "sidecar/maxDataPlaneConnections",
            "a controller takes as many sidecars as its memory allows",
            "set controller.resources.limits.memory of the installation's values",
        ),
        (
            "sidecar/tlsMinProtocolVersion",
            "sidecars speak TLS 1.3 to each other",
            "leave it out",
        ),
        (
            "sidecar/tlsMaxProtocolVersion",
            "sidecars speak TLS 1.3 to each other",
            "leave it out",
        ),
    ] {
        // An empty text or list is a default.
        let found = take(spec, path);
        let is_default = |v: &Value| v.as_array().is_some_and(Vec::is_empty) || v == "" || v == 0;
        if found.is_some_and(|v| !is_default(&v)) {
            imported.lose(
                id,
                &format!("spec.{}", path.replace('/', ".")),
                why,
                instead,
            );
        }
    }
}

/// A level of Envoy's or Pipy's log, and whether ours is the same.
pub(super) fn log_level(theirs: &str) -> (&'static str, bool) {
    match theirs {
        "trace" => ("trace", true),
        "debug" => ("debug", true),
        "info" => ("info", true),
        "warn" | "warning" => ("warn", true),
        "error" => ("error", true),
        "critical" | "off" | "disabled" => ("error", false),
        _ => ("info", false),
    }
}

/// A scalar as one writes it.
fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}
