//! The application's health checks go through its sidecar.
//!
//! The kubelet has no certificate of the mesh, so a request of its own would be refused; and its TCP
//! check would reach the sidecar, which accepts whatever the application does. Each check therefore
//! asks the sidecar under a path of its own (`/probe/CONTAINER/KIND`), so containers cannot collide,
//! and the sidecar asks the application. Checks by `exec` are within the pod already.

use super::{InjectionRefusal, Options};
use crate::names::HEALTH_PORT;
use serde_json::{Map, Value, json};
use tulle_model::bootstrap::{Probe, ProbeCheck, ProbeHeader};

const KINDS: [(&str, &str); 3] = [
    ("livenessProbe", "liveness"),
    ("readinessProbe", "readiness"),
    ("startupProbe", "startup"),
];
/// The kubelet's default for a check without a timeout (Kubernetes API, Probe).
const DEFAULT_TIMEOUT_S: u64 = 1;

/// Rewrites the checks of all containers; returns the checks that the sidecar has to make.
pub(super) fn rewrite(pod: &mut Value, options: &Options) -> Result<Vec<Probe>, InjectionRefusal> {
    let mut probes = Vec::new();
    // Native sidecars of the application's own have checks, too.
    for list in ["initContainers", "containers"] {
        let containers = pod
            .get_mut("spec")
            .and_then(|s| s.get_mut(list)?.as_array_mut());
        for container in containers.into_iter().flatten() {
            self::container(container, options, &mut probes)?;
        }
    }
    Ok(probes)
}

fn container(
    container: &mut Value,
    options: &Options,
    probes: &mut Vec<Probe>,
) -> Result<(), InjectionRefusal> {
    let Some(name) = container
        .get("name")
        .and_then(Value::as_str)
        .map(str::to_owned)
    else {
        return Ok(()); // the API server refuses it
    };
    let ports = container.get("ports").cloned().unwrap_or_default();
    for (field, kind) in KINDS {
        let Some(Value::Object(probe)) = container.get_mut(field) else {
            continue;
        };
        let place = || format!("container {name}: {field}");
        let Some(check) =
            check(probe, &ports).map_err(|why| InjectionRefusal(format!("{}: {why}", place())))?
        else {
            continue;
        };
        let (ProbeCheck::Http { port, .. }
        | ProbeCheck::Tcp { port }
        | ProbeCheck::Grpc { port, .. }) = &check;
        // An excluded port is reached without the sidecar.
        if options.redirection.exclude_inbound_ports.contains(port) {
            continue;
        }
        let path = format!("/probe/{name}/{kind}");
        let seconds = probe.get("timeoutSeconds").and_then(Value::as_u64);
        let timeout_ms = seconds.unwrap_or(DEFAULT_TIMEOUT_S).saturating_mul(1000);
        for by in ["httpGet", "tcpSocket", "grpc"] {
            probe.remove(by);
        }
        probe.insert(
            "httpGet".into(),
            json!({"path": path, "port": HEALTH_PORT, "scheme": "HTTP"}),
        );
        probes.push(Probe {
            path,
            check,
            timeout_ms: u32::try_from(timeout_ms).unwrap_or(u32::MAX),
        });
    }
    Ok(())
}

/// How a probe asks; `None` when it does not go through the network of this pod.
fn check(probe: &Map<String, Value>, ports: &Value) -> Result<Option<ProbeCheck>, String> {
    if let Some(get) = probe.get("httpGet") {
        if elsewhere(get) {
            return Ok(None);
        }
        let path = get
            .get("path")
            .and_then(Value::as_str)
            .filter(|p| !p.is_empty());
        let headers = get.get("httpHeaders").and_then(Value::as_array);
        let text = |header: &Value, member| {
            header
                .get(member)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let headers = headers.into_iter().flatten().map(|header| ProbeHeader {
            name: text(header, "name"),
            value: text(header, "value"),
        });
        return Ok(Some(ProbeCheck::Http {
            port: port(get, ports)?,
            path: match path {
                Some(path) if path.starts_with('/') => path.to_owned(),
                Some(path) => format!("/{path}"),
                None => "/".into(),
            },
            tls: get.get("scheme").and_then(Value::as_str) == Some("HTTPS"),
            headers: headers.collect(),
        }));
    }
    if let Some(socket) = probe.get("tcpSocket") {
        if elsewhere(socket) {
            return Ok(None);
        }
        return Ok(Some(ProbeCheck::Tcp {
            port: port(socket, ports)?,
        }));
    }
    if let Some(grpc) = probe.get("grpc") {
        let service = grpc.get("service").and_then(Value::as_str);
        return Ok(Some(ProbeCheck::Grpc {
            port: port(grpc, ports)?,
            service: service.unwrap_or_default().to_owned(),
        }));
    }
    Ok(None)
}

/// A check may be sent to another host than the pod.
fn elsewhere(check: &Value) -> bool {
    let host = check.get("host").and_then(Value::as_str);
    host.is_some_and(|host| !host.is_empty())
}

/// The port of a check: a number, or the name of one of the container's ports.
fn port(check: &Value, ports: &Value) -> Result<u16, String> {
    let number = |value: &Value| {
        let number = value.as_u64().and_then(|n| u16::try_from(n).ok());
        number.filter(|n| *n != 0)
    };
    let given = check.get("port").ok_or("it has no port")?;
    if let Some(number) = number(given) {
        return Ok(number);
    }
    let name = given.as_str().unwrap_or_default();
    // A text may also be a number.
    if let Some(number) = name.parse().ok().filter(|n| *n != 0) {
        return Ok(number);
    }
    let mut ports = ports.as_array().into_iter().flatten();
    let named = ports.find(|p| p.get("name").and_then(Value::as_str) == Some(name));
    let found = named.and_then(|p| number(p.get("containerPort")?));
    found.ok_or_else(|| {
        format!("port {given} is no number and no port of the container has this name")
    })
}
