//! Builds the objects that a gateway runs as: Deployment, Service, account and disruption budget. Pure.

use super::ports;
use crate::gateway_fields::{Class, Gateway, Key, Labels};
use crate::ingress;
use crate::inject::{Resources, Settings, containers, options::Options};
use crate::names::{
    EGRESS_GATEWAY, HEALTH_PORT, IDENTITY_DIRECTORY, METRICS_PORT, SIDECAR_UID, STATE_DIRECTORY,
};
use crate::scrape;
use aws_lc_rs::digest;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tulle_model::hex;

const PREFIX: &str = "tulle.dev/";
const SERVICE_TYPE: &str = "tulle.dev/service-type";
const REPLICAS: &str = "tulle.dev/replicas";
/// Annotations that gateways and sidecars have in common.
const OF_PROXIES: [&str; 6] = [
    "cpu-request",
    "cpu-limit",
    "memory-request",
    "memory-limit",
    "workers",
    "log-level",
];
/// More is nobody's intention, and one word in an annotation makes them all.
const MOST_REPLICAS: u32 = 1000;

/// The label by which everything of a gateway is found.
pub(super) const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
const NAME: &str = "app.kubernetes.io/name";
/// The port's name, to which PodMonitors refer.
pub(crate) const METRICS_PORT_NAME: &str = "metrics";
/// The name label of all our gateways.
pub(super) const APP: &str = "tulle-gateway";

/// The wishes of a Gateway's and its class's annotations about the objects it runs as.
#[derive(Debug, Clone)]
pub(super) struct GatewayParameters {
    egress: bool,
    service_type: String,
    replicas: Option<u32>,
    proxy: Options,
    /// Annotations about what the gateway does.
    pub(super) others: Labels,
}

impl GatewayParameters {
    /// # Errors
    /// A value is not understood.
    pub(super) fn from_gateway(
        class: &Class,
        gateway: &Gateway,
        settings: &Settings,
    ) -> Result<Self, String> {
        let own = |labels: &Labels| -> Labels {
            let ours = labels.iter().filter(|(key, _)| key.starts_with(PREFIX));
            ours.map(|(k, v)| (k.clone(), v.trim().to_owned()))
                .collect()
        };
        let mut given = own(&class.annotations);
        given.extend(own(&gateway.spec.infrastructure.annotations));
        let egress = gateway.is_egress();
        // The first is the default. Nobody outside the cluster has a use for an egress gateway.
        let (possible, use_one): (&[&str], _) = match egress {
            true => (&["ClusterIP"], "an egress gateway has ClusterIP"),
            false => (
                &["LoadBalancer", "NodePort", "ClusterIP"],
                "use LoadBalancer, NodePort or ClusterIP",
            ),
        };
        let service_type = given.remove(SERVICE_TYPE);
        let service_type = service_type.unwrap_or_else(|| possible[0].into());
        if !possible.contains(&service_type.as_str()) {
            return Err(format!("{SERVICE_TYPE} is {service_type:?}: {use_one}"));
        }
        let replicas = given.remove(REPLICAS).map(|text| {
            let number = text
                .parse()
                .ok()
                .filter(|n| (1..=MOST_REPLICAS).contains(n));
            number.ok_or_else(|| {
                format!("{REPLICAS} is {text:?}: use a number from 1 to {MOST_REPLICAS}")
            })
        });
        let of_proxies = OF_PROXIES.iter().filter_map(|name| {
            let key = format!("{PREFIX}{name}");
            let value = given.remove(&key)?;
            Some((key, value))
        });
        let of_proxies: BTreeMap<String, String> = of_proxies.collect();
        if let Some(other) = given.keys().next().filter(|_| egress) {
            return Err(format!(
                "{other} has no effect on an egress gateway: remove it"
            ));
        }
        // Values of the installation for sidecars are none for gateways: a CPU limit that suits a sidecar may
        // be below a gateway's request, and the API server refuses such a Deployment.
        let defaults = Settings {
            resources: Resources {
                cpu_request: "100m".into(),
                cpu_limit: String::new(),
                memory_request: "32Mi".into(),
                memory_limit: "512Mi".into(),
            },
            log_level: "info".into(),
            workers: 0,
            ..settings.clone()
        };
        let pod = json!({ "metadata": { "annotations": of_proxies } });
        Ok(Self {
            egress,
            service_type,
            replicas: replicas.transpose()?,
            proxy: Options::from_pod(&pod, &defaults).map_err(|e| e.to_string())?,
            others: given,
        })
    }
}

/// Returns the labels that select the pods of all gateways.
pub(crate) fn labels() -> Value {
    json!({ NAME: APP })
}

/// Longest name of a Service, and longest value of a label.
const LONGEST: usize = 63;

/// The name of all objects of a gateway. The name of a Gateway may have dots, begin with a digit or be
/// longer than the name of a Service.
fn name(gateway: &Key) -> String {
    let (name, suffix) = match ingress::class_of(gateway) {
        Some(class) => (class, "-ingress"),
        None => (gateway.name.as_str(), "-tulle"),
    };
    let is_letter = |text: &str| text.starts_with(|c: char| c.is_ascii_lowercase());
    if is_letter(name) && !name.contains('.') && name.len() + suffix.len() <= LONGEST {
        return format!("{name}{suffix}");
    }
    let dashed = name.replace('.', "-");
    let dashed = if is_letter(&dashed) {
        dashed
    } else {
        format!("gw-{dashed}")
    };
    let short = shortened(&dashed, name, LONGEST - suffix.len());
    format!("{short}{suffix}")
}

/// The value of the label by which everything of a gateway is found.
fn label(gateway: &Key) -> String {
    match gateway.name.len() {
        0..=LONGEST => gateway.name.clone(),
        _ => shortened(&gateway.name, &gateway.name, LONGEST),
    }
}

/// Shortens a text, with a digest that distinguishes it from others with the same beginning.
fn shortened(text: &str, whole: &str, most: usize) -> String {
    let hash = digest::digest(&digest::SHA256, whole.as_bytes());
    let hash = hex(hash.as_ref().get(..4).unwrap_or_default());
    let beginning = &text[..text.len().min(most - hash.len() - 1)];
    format!("{}-{hash}", beginning.trim_end_matches(['-', '.']))
}

/// Where all that belongs to a gateway is.
pub(super) fn place(gateway: &Key) -> Key {
    Key::new(&gateway.namespace, &name(gateway))
}

/// Returns the owner reference of a Gateway's objects.
pub(super) fn owner(key: &Key, gateway: &Gateway) -> Value {
    json!([{
        "apiVersion": super::API_VERSION, "kind": "Gateway",
        "name": key.name, "uid": gateway.uid, "controller": true,
    }])
}

/// All objects, in the order in which they are made. `pause`: pods wait before they end, which
/// clusters know from 1.30 on.
pub(super) fn objects(
    (key, gateway, owners): (&Key, &Gateway, &Value),
    ports: &BTreeSet<u16>,
    wishes: &GatewayParameters,
    settings: &Settings,
    pause: bool,
) -> Vec<Value> {
    let (name, label) = (name(key), label(key));
    let infrastructure = &gateway.spec.infrastructure;
    let mut labels = infrastructure.labels.clone();
    labels.extend(
        [
            (NAME, APP),
            ("app.kubernetes.io/part-of", "tulle"),
            ("app.kubernetes.io/managed-by", "tulle"),
            (GATEWAY_NAME, &label),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    let metadata = json!({
        "name": name, "namespace": key.namespace,
        "labels": labels, "annotations": infrastructure.annotations,
        "ownerReferences": owners,
    });
    let selector = json!({ NAME: APP, GATEWAY_NAME: label });
    let targets = ports::targets(ports);
    let mut pod_labels = labels;
    // A gateway is a proxy itself and needs no sidecar.
    pod_labels.insert(crate::names::INJECT.into(), "disabled".into());
    let mut pod_annotations = infrastructure.annotations.clone();
    if settings.metrics {
        pod_annotations.extend(scrape::annotations(METRICS_PORT));
    }
    let mut deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "selector": { "matchLabels": selector },
            // A new one is ready before an old one ends.
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } },
            "template": {
                "metadata": { "labels": pod_labels, "annotations": pod_annotations },
                "spec": pod(key, &name, &targets, wishes, settings, pause),
            },
        },
    });
    // Otherwise it is an autoscaler's or the user's to say.
    if let Some(replicas) = wishes.replicas {
        deployment["spec"]["replicas"] = replicas.into();
    }
    vec![
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata,
            "automountServiceAccountToken": false,
        }),
        service(gateway, &metadata, &selector, &targets, wishes),
        deployment,
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata,
            "spec": { "maxUnavailable": 1, "selector": { "matchLabels": selector } },
        }),
    ]
}

fn service(
    gateway: &Gateway,
    metadata: &Value,
    selector: &Value,
    targets: &BTreeMap<u16, u16>,
    wishes: &GatewayParameters,
) -> Value {
    let ports = targets.iter().map(|(port, target)| {
        json!({ "name": format!("port-{port}"), "port": port, "targetPort": target, "protocol": "TCP" })
    });
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {
            "type": wishes.service_type,
            "selector": selector,
            "ports": ports.collect::<Vec<_>>(),
        },
    });
    // Which of them is had, the status says.
    let wanted = gateway
        .spec
        .addresses
        .iter()
        .find_map(|a| a.value.as_deref());
    if let Some(wanted) = wanted.filter(|w| !w.is_empty()) {
        let field = match wishes.service_type.as_str() {
            "LoadBalancer" => "loadBalancerIP",
            _ => "clusterIP",
        };
        service["spec"][field] = wanted.into();
    }
    service
}

fn pod(
    key: &Key,
    account: &str,
    targets: &BTreeMap<u16, u16>,
    wishes: &GatewayParameters,
    settings: &Settings,
    pause: bool,
) -> Value {
    let trust_domain = &settings.trust_domain;
    let listeners = targets.iter().map(|(port, target)| {
        let address = format!("[::]:{target}");
        match wishes.egress {
            true => json!({ "address": address, "kind": "inboundPort", "port": target }),
            false => json!({
                "address": address, "kind": "gateway", "gateway": key.object_name().as_str(), "port": port,
            }),
        }
    });
    let config = json!({
        "identity": format!("spiffe://{trust_domain}/ns/{}/sa/{account}", key.namespace),
        "control": {
            "address": settings.controller,
            "trustBundle": format!("{IDENTITY_DIRECTORY}/ca.crt"),
            "serviceAccountToken": format!("{IDENTITY_DIRECTORY}/token"),
            "service": format!("$(POD_NAME).{}", key.namespace),
            "snapshot": format!("{STATE_DIRECTORY}/snapshot"),
            "identityCache": format!("{STATE_DIRECTORY}/identity"),
        },
        "listeners": listeners.collect::<Vec<_>>(),
        "metrics": format!("[::]:{METRICS_PORT}"),
        "health": format!("[::]:{HEALTH_PORT}"),
        "workers": wishes.proxy.workers,
    });
    let ports = targets.iter().map(|(port, target)| {
        json!({ "name": format!("port-{port}"), "containerPort": target, "protocol": "TCP" })
    });
    let own = [(METRICS_PORT_NAME, METRICS_PORT), ("health", HEALTH_PORT)];
    let own =
        own.map(|(name, port)| json!({ "name": name, "containerPort": port, "protocol": "TCP" }));
    let mut container = json!({
        "name": if wishes.egress { EGRESS_GATEWAY } else { "gateway" },
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": ["--config-env", "TULLE_CONFIG"],
        "env": [
            containers::field("POD_NAME", "metadata.name"),
            {"name": "TULLE_CONFIG", "value": config.to_string()},
        ],
        "ports": ports.chain(own).collect::<Vec<_>>(),
        "startupProbe": containers::ready(1, 120),
        "readinessProbe": containers::ready(2, 2),
        "resources": containers::resources(&wishes.proxy),
        "securityContext": containers::unprivileged(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": containers::mounts(),
    });
    containers::add_log_level(&mut container, &wishes.proxy);
    if pause {
        // Nodes and load balancers go on sending it clients until they learn that it ends.
        container["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": 5 } } });
    }
    let mut pod = json!({
        "serviceAccountName": account,
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": SIDECAR_UID, "runAsGroup": SIDECAR_UID,
            "fsGroup": SIDECAR_UID, "seccompProfile": { "type": "RuntimeDefault" },
        },
        // Two pods do not run on one node if there is a choice.
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": { NAME: APP, GATEWAY_NAME: label(key) } },
        }],
        "containers": [container],
        "volumes": containers::volumes(),
    });
    if !settings.image_pull_secrets.is_empty() {
        pod["imagePullSecrets"] = json!(settings.image_pull_secrets);
    }
    pod
}
