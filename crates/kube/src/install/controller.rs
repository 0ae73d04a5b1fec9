//! The controller itself: its settings, Service and Deployment.

use super::monitors::METRICS;
use super::smi_metrics;
use super::template::{OpenValue, SPREAD, either, namespace, not, or, set, text, value, when};
use super::{ISSUER_DIRECTORY, ISSUER_VOLUME, RUN_DIRECTORY, SETTINGS_FILE, namespaced, selector};
use crate::names::SETTINGS;
use crate::names::{
    CONTROLLER, CONTROLLER_METRICS_PORT, CONTROLLER_PORT, HEALTH_PORT, METRICS_API_PORT,
    WEBHOOK_PORT,
};
use crate::scrape;
use serde_json::{Value, json};

/// File with the controller's token, for Vault.
const SERVICE_ACCOUNT_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

pub(super) fn templates() -> [Value; 3] {
    let settings = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": namespaced(SETTINGS),
        "data": { "settings.json": OpenValue::Json("settings".into(), settings()).open() },
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": namespaced(CONTROLLER),
        "spec": {
            "selector": selector(),
            "ports": [
                { "name": "grpc", "port": CONTROLLER_PORT, "targetPort": CONTROLLER_PORT, "appProtocol": "tls" },
                { "name": "webhook", "port": 443, "targetPort": WEBHOOK_PORT, "appProtocol": "tls" },
                when(smi_metrics::is_on(), json!({
                    "name": "smi-metrics", "port": METRICS_API_PORT, "targetPort": METRICS_API_PORT,
                    "appProtocol": "tls",
                })),
            ],
        },
    });
    [settings, service, deployment()]
}

/// An image by its digest, or else by its tag.
pub(super) fn image(which: &str, name: &str) -> Value {
    let own = |field: &str| format!("images.{which}.{field}");
    let registry = text(&[value("images.registry"), "/".into(), name.into()]);
    let tag = or(&own("tag"), or("images.tag", OpenValue::Version.open()));
    text(&[
        or(&own("repository"), registry),
        either(
            set(&own("digest")),
            text(&["@".into(), value(&own("digest"))]),
            text(&[":".into(), tag]),
        ),
    ])
}

/// Builds the controller's settings, [`crate::controller::ControllerOptions`].
fn settings() -> Value {
    let port = format!(".svc:{CONTROLLER_PORT}");
    let of_sidecars = |field: &str| value(&format!("sidecar.{field}"));
    json!({
        "namespace": namespace(),
        "mesh": value("mesh"),
        "sidecars": {
            "image": image("proxy", "tulle-proxy"),
            "initImage": when(not(set("cni.enabled")), image("init", "tulle-init")),
            "imagePullPolicy": value("images.pullPolicy"),
            "imagePullSecrets": when(set("images.pullSecrets"), value("images.pullSecrets")),
            "controller": text(&[format!("{CONTROLLER}.").into(), namespace(), port.into()]),
            "trustDomain": value("trustDomain"),
            "nativeSidecar": of_sidecars("nativeSidecar"),
            "holdApplication": of_sidecars("holdApplication"),
            "resources": {
                "cpuRequest": of_sidecars("resources.requests.cpu"),
                "cpuLimit": of_sidecars("resources.limits.cpu"),
                "memoryRequest": of_sidecars("resources.requests.memory"),
                "memoryLimit": of_sidecars("resources.limits.memory"),
            },
            "logLevel": of_sidecars("logLevel"),
            "workers": of_sidecars("workers"),
            "redirection": of_sidecars("redirection"),
            "metrics": of_sidecars("metrics"),
        },
        "issuer": either(
            set("issuer.certManager.name"),
            json!({ "certManager": cert_manager() }),
            when(set("issuer.vault.address"), json!({ "vault": vault() })),
        ),
        "console": {
            "enabled": value("console.enabled"),
            "actions": value("console.actions"),
        },
        "smiMetrics": when(smi_metrics::is_on(), true.into()),
        "webhookClientCA": when(set("webhook.clientCA"), value("webhook.clientCA")),
    })
}

fn ca_file() -> String {
    format!("{ISSUER_DIRECTORY}/ca.crt")
}

fn cert_manager() -> Value {
    json!({
        "name": value("issuer.certManager.name"),
        "kind": value("issuer.certManager.kind"),
        "group": value("issuer.certManager.group"),
        "roots": when(set("issuer.ca"), ca_file().into()),
    })
}

fn vault() -> Value {
    json!({
        "address": value("issuer.vault.address"),
        "mount": value("issuer.vault.sign.mount"),
        "role": value("issuer.vault.sign.role"),
        "ca": ca_file(),
        "auth": { "kubernetes": {
            "mount": value("issuer.vault.auth.mount"),
            "role": value("issuer.vault.auth.role"),
            "token": SERVICE_ACCOUNT_TOKEN,
        } },
    })
}

/// Returns a security context that the level "restricted" accepts.
pub(super) fn pod_security() -> Value {
    json!({
        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
        "fsGroup": 65532, "seccompProfile": { "type": "RuntimeDefault" },
    })
}

pub(super) fn container_security() -> Value {
    json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"] },
    })
}

fn deployment() -> Value {
    let labels = json!({
        "app.kubernetes.io/name": CONTROLLER,
        "app.kubernetes.io/part-of": "tulle",
        SPREAD: value("controller.podLabels"),
    });
    let mut annotations = json!({
        // The controller reads its settings once.
        "checksum/settings": OpenValue::Digest("settings".into(), settings()).open(),
        SPREAD: value("controller.podAnnotations"),
    });
    for (key, value) in scrape::annotations(CONTROLLER_METRICS_PORT) {
        annotations[key] = value.into();
    }
    let ca = |place: Value| when(set("issuer.ca"), place);
    let if_set = |path: &str| when(set(path), value(path));
    let health = |path: &str| json!({ "path": path, "port": HEALTH_PORT });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": namespaced(CONTROLLER),
        "spec": {
            "replicas": when(not(set("controller.autoscaling.enabled")), value("controller.replicas")),
            // Nodes lead the API server to a new pod's webhooks a moment after it is ready; until then a
            // rollout is not done, and an old pod stays.
            "minReadySeconds": 2,
            "selector": { "matchLabels": selector() },
            "template": {
                "metadata": { "labels": labels, "annotations": annotations },
                "spec": {
                    "serviceAccountName": CONTROLLER,
                    "imagePullSecrets": if_set("images.pullSecrets"),
                    "priorityClassName": if_set("controller.priorityClassName"),
                    "nodeSelector": if_set("controller.nodeSelector"),
                    "tolerations": if_set("controller.tolerations"),
                    "affinity": if_set("controller.affinity"),
                    "topologySpreadConstraints": if_set("controller.topologySpreadConstraints"),
                    "securityContext": pod_security(),
                    "containers": [{
                        "name": "controller",
                        "image": image("controller", "tulle"),
                        "imagePullPolicy": value("images.pullPolicy"),
                        "args": ["cluster-controller", "--settings", SETTINGS_FILE],
                        "ports": [
                            { "name": "grpc", "containerPort": CONTROLLER_PORT },
                            { "name": "webhook", "containerPort": WEBHOOK_PORT },
                            { "name": "health", "containerPort": HEALTH_PORT },
                            { "name": METRICS, "containerPort": CONTROLLER_METRICS_PORT },
                        ],
                        "readinessProbe": { "httpGet": health("/ready"), "periodSeconds": 2 },
                        "livenessProbe": { "httpGet": health("/live"), "periodSeconds": 10 },
                        "resources": value("controller.resources"),
                        "securityContext": container_security(),
                        "volumeMounts": [
                            { "name": "settings", "mountPath": "/etc/tulle", "readOnly": true },
                            { "name": "run", "mountPath": RUN_DIRECTORY },
                            ca(json!({ "name": ISSUER_VOLUME, "mountPath": ISSUER_DIRECTORY, "readOnly": true })),
                        ],
                    }],
                    "volumes": [
                        { "name": "settings", "configMap": { "name": SETTINGS } },
                        { "name": "run", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
                        ca(json!({ "name": ISSUER_VOLUME, "configMap": { "name": value("issuer.ca") } })),
                    ],
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::choice::Choice;
    use super::super::objects;
    use crate::controller::ControllerOptions;
    use crate::inject::Settings;
    use serde_json::{Value, json};

    fn read(values: Value) -> (ControllerOptions, Value) {
        let objects = objects("home", &Choice::from_layers(&[values]).unwrap());
        let found = |kind: &str, name: &str| {
            let mut all = objects.iter();
            let found = all.find(|o| o["kind"] == kind && o["metadata"]["name"] == name);
            found.unwrap().clone()
        };
        let text = found("ConfigMap", "tulle-settings");
        let options =
            serde_json::from_str(text["data"]["settings.json"].as_str().unwrap()).unwrap();
        (options, found("Deployment", "tulle-controller"))
    }

    #[test]
    fn the_controller_reads_what_was_chosen() {
        let (options, _) = read(json!({ "monitoring": { "smiMetrics": true } }));
        assert!(options.smi_metrics);
        let pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        let (options, _) = read(json!({ "webhook": { "clientCA": pem } }));
        assert_eq!(options.webhook_client_ca, pem);
        let console = json!({ "console": { "enabled": false, "actions": true } });
        let (options, _) = read(console);
        assert!(!options.console.enabled && options.console.actions);
        let (options, _) = read(json!({}));
        assert!(options.console.enabled && !options.console.actions);
        assert!(!options.smi_metrics);
        assert_eq!(options.webhook_client_ca, "");
        let usual: Settings = serde_json::from_value(json!({
            "image": concat!("localhost/tulle-proxy:", env!("CARGO_PKG_VERSION")),
            "initImage": concat!("localhost/tulle-init:", env!("CARGO_PKG_VERSION")),
            "controller": "tulle-controller.home.svc:15010",
            "trustDomain": "cluster.local",
        }))
        .unwrap();
        assert_eq!(options.sidecars, usual);
        assert_eq!(options.issuer, None);

        let digest = format!("sha256:{}", "0".repeat(64));
        let (options, deployment) = read(json!({
            "images": {
                "registry": "r", "tag": "1", "proxy": { "repository": "s/p", "digest": digest },
                "pullSecrets": [{ "name": "registry" }],
            },
            "issuer": { "vault": { "address": "https://v:8200" }, "ca": "authority" },
        }));
        assert_eq!(options.sidecars.image, format!("s/p@{digest}"));
        assert_eq!(options.sidecars.image_pull_secrets[0].name, "registry");
        assert_eq!(
            options.sidecars.init_image.as_deref(),
            Some("r/tulle-init:1")
        );
        assert!(options.issuer.is_some());
        let volume = deployment.pointer("/spec/template/spec/volumes/2/configMap/name");
        assert_eq!(volume, Some(&"authority".into()));
    }
}
