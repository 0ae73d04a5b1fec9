//! Adds containers to a pod: the sidecar, the init container before it, their volumes.

use super::{Options, Settings};
use crate::names::{
    AUDIENCE, HEALTH_PORT, IDENTITY_DIRECTORY, INIT, METRICS_PORT, SIDECAR, SIDECAR_UID,
    STATE_DIRECTORY, TRUST_BUNDLE,
};
use serde_json::{Map, Value, json};
use tulle_model::bootstrap::Probe;
use tulle_redirect::DNS_PORT;

/// The port's name, to which PodMonitors refer.
pub(crate) const METRICS_PORT_NAME: &str = "tulle-metrics";
const IDENTITY_VOLUME: &str = "tulle-identity";
const STATE_VOLUME: &str = "tulle-state";
/// How long a token is good, in seconds. The kubelet replaces it after four fifths of that.
const TOKEN_SECONDS: u32 = 3600;
/// Flag of the init container: ports that clients reach directly.
const EXCLUDE_INBOUND: &str = "--exclude-inbound-ports";

pub(super) fn sidecar(settings: &Settings, options: &Options, config: &Value) -> Value {
    let mut sidecar = json!({
        "name": SIDECAR,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": ["--config-env", "TULLE_CONFIG"],
        "env": [
            field("POD_NAME", "metadata.name"),
            field("POD_NAMESPACE", "metadata.namespace"),
            field("POD_IP", "status.podIP"),
            field("SERVICE_ACCOUNT", "spec.serviceAccountName"),
            {"name": "TULLE_CONFIG", "value": config.to_string()},
        ],
        "ports": [
            {"name": METRICS_PORT_NAME, "containerPort": METRICS_PORT, "protocol": "TCP"},
            {"name": "tulle-health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
        ],
        "readinessProbe": ready(5, 3),
        "resources": resources(options),
        "securityContext": unprivileged(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts(),
    });
    add_log_level(&mut sidecar, options);
    if options.native_sidecar {
        // The sidecar starts before the application, stops after it, and a Job ends without it.
        sidecar["restartPolicy"] = "Always".into();
        sidecar["startupProbe"] = ready(1, 120);
    } else if options.hold_application {
        // The kubelet starts the next container when this has ended.
        let wait = ["/usr/local/bin/tulle-proxy", "--wait-ready"];
        sidecar["lifecycle"] = json!({"postStart": {"exec": {"command": wait}}});
    }
    sidecar
}

/// Tells a proxy a level of its own, if it has one.
pub(crate) fn add_log_level(container: &mut Value, options: &Options) {
    if let (Some(level), Some(env)) = (&options.log_level, container["env"].as_array_mut()) {
        env.push(json!({"name": "TULLE_LOG", "value": level}));
    }
}

/// A proxy has no rights.
pub(crate) fn unprivileged() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "privileged": false,
        "readOnlyRootFilesystem": true,
        "runAsGroup": SIDECAR_UID,
        "runAsNonRoot": true,
        "runAsUser": SIDECAR_UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// Where a proxy sees [`volumes`].
pub(crate) fn mounts() -> Value {
    json!([
        {"name": IDENTITY_VOLUME, "mountPath": IDENTITY_DIRECTORY, "readOnly": true},
        {"name": STATE_VOLUME, "mountPath": STATE_DIRECTORY},
    ])
}

/// The sidecar's configuration. The kubelet replaces `$(NAME)` in a value by the variable of that name above
/// it.
pub(super) fn config(settings: &Settings, options: &Options, probes: &[Probe]) -> Value {
    let trust_domain = &settings.trust_domain;
    let mut config = json!({
        "identity": format!("spiffe://{trust_domain}/ns/$(POD_NAMESPACE)/sa/$(SERVICE_ACCOUNT)"),
        "control": {
            "address": settings.controller,
            "trustBundle": format!("{IDENTITY_DIRECTORY}/ca.crt"),
            "serviceAccountToken": format!("{IDENTITY_DIRECTORY}/token"),
            "service": "$(POD_NAME).$(POD_NAMESPACE)",
            "snapshot": format!("{STATE_DIRECTORY}/snapshot"),
            "identityCache": format!("{STATE_DIRECTORY}/identity"),
        },
        "listeners": [
            {"address": "[::]:15001", "kind": "outbound"},
            {"address": "[::]:15006", "kind": "inbound"},
        ],
        "metrics": format!("[::]:{METRICS_PORT}"),
        "health": format!("[::]:{HEALTH_PORT}"),
        // The application's clients reach it there, so a port on loopback only counts as not well.
        "application": "$(POD_IP)",
        "workers": options.workers,
    });
    if options.dns {
        config["dns"] = json!({
            "addresses": [format!("127.0.0.1:{DNS_PORT}"), format!("[::1]:{DNS_PORT}")],
        });
    }
    if !probes.is_empty() {
        config["probes"] = literal(json!(probes));
    }
    config
}

/// Makes texts of a pod's author mean themselves in the value of a variable, where the kubelet would expand `$(POD_IP)` and make `$` of
/// `$$`. It leaves those of probes and annotations as they are.
pub(super) fn literal(value: Value) -> Value {
    match value {
        Value::String(text) => text.replace('$', "$$").into(),
        Value::Array(items) => items.into_iter().map(literal).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter();
            Value::Object(fields.map(|(name, field)| (name, literal(field))).collect())
        }
        other => other,
    }
}

/// A variable that Kubernetes fills in from a field of the pod.
pub(crate) fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

pub(crate) fn ready(period_s: u32, failures: u32) -> Value {
    json!({
        "httpGet": {"path": "/ready", "port": HEALTH_PORT, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": 3,
    })
}

pub(crate) fn resources(options: &Options) -> Value {
    let given = &options.resources;
    let named = |cpu: &str, memory: &str| {
        let mut named = Map::new();
        for (name, value) in [("cpu", cpu), ("memory", memory)] {
            if !value.is_empty() {
                named.insert(name.into(), value.into());
            }
        }
        Value::Object(named)
    };
    json!({
        "requests": named(&given.cpu_request, &given.memory_request),
        "limits": named(&given.cpu_limit, &given.memory_limit),
    })
}

/// Makes the redirection rules in the pod's namespace and ends; or makes sure that the node has.
pub(super) fn init(settings: &Settings, options: &Options) -> Value {
    let Some(image) = &settings.init_image else {
        return made_sure(settings);
    };
    let lists = &options.redirection;
    let ports = |ports: &[u16]| ports.iter().map(u16::to_string).collect::<Vec<_>>();
    let mut args = vec!["redirect".to_owned()];
    for (flag, values) in [
        (EXCLUDE_INBOUND, ports(&lists.exclude_inbound_ports)),
        (
            "--exclude-outbound-ports",
            ports(&lists.exclude_outbound_ports),
        ),
        (
            "--exclude-outbound-ranges",
            lists.exclude_outbound_ranges.clone(),
        ),
        (
            "--include-outbound-ranges",
            lists.include_outbound_ranges.clone(),
        ),
    ] {
        if !values.is_empty() {
            args.push(format!("{flag}={}", values.join(",")));
        }
    }
    if options.dns {
        args.push("--dns".to_owned());
    }
    json!({
        "name": INIT,
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": args,
        "resources": init_resources(),
        // The one capability that rules of the pod's own network namespace take.
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "runAsGroup": 0,
            "runAsNonRoot": false,
            "runAsUser": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

/// Reads back which ports clients reach directly, from the arguments that [`init`] wrote.
pub(crate) fn excluded_inbound(args: &[String]) -> Vec<u16> {
    let mut args = args.iter();
    let list = args.find_map(|arg| arg.strip_prefix(EXCLUDE_INBOUND)?.strip_prefix('='));
    list.and_then(|list| super::ports(list).ok())
        .unwrap_or_default()
}

/// Ends well only where the CNI plugin has made the rules.
fn made_sure(settings: &Settings) -> Value {
    json!({
        "name": INIT,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": ["--check-redirect", "$(POD_IP)"],
        "env": [field("POD_IP", "status.podIP")],
        "resources": init_resources(),
        "securityContext": unprivileged(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

fn init_resources() -> Value {
    json!({
        "requests": {"cpu": "10m", "memory": "16Mi"},
        "limits": {"memory": "64Mi"},
    })
}

/// The volumes of the sidecar: its token with the certificates it trusts, and a directory in memory.
pub(crate) fn volumes() -> Vec<Value> {
    vec![
        json!({
            "name": IDENTITY_VOLUME,
            "projected": {"sources": [
                {"serviceAccountToken": {
                    "audience": AUDIENCE,
                    "expirationSeconds": TOKEN_SECONDS,
                    "path": "token",
                }},
                {"configMap": {"name": TRUST_BUNDLE, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            ]},
        }),
        json!({"name": STATE_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}),
    ]
}
