//! The controller itself: its settings, Service and Deployment.

use super::{
    ISSUER_DIRECTORY, ISSUER_VOLUME, Installation, RUN_DIRECTORY, SETTINGS_FILE, metadata,
};
use crate::controller::Options;
use crate::names::{CONTROLLER, CONTROLLER_PORT, HEALTH_PORT, WEBHOOK_PORT};
use serde_json::{Value, json};

const SETTINGS: &str = "tulle-settings";

pub(super) fn objects(installation: &Installation) -> [Value; 3] {
    let namespace = &installation.namespace;
    let settings = Options {
        namespace: namespace.clone(),
        mesh: installation.mesh.clone(),
        sidecars: installation.sidecars.clone(),
        issuer: installation.issuer.clone(),
    };
    let settings = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": metadata(SETTINGS, Some(namespace)),
        // A type of ours always becomes JSON.
        "data": { "settings.json": json!(settings).to_string() },
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": metadata(CONTROLLER, Some(namespace)),
        "spec": {
            "selector": { "app.kubernetes.io/name": CONTROLLER },
            "ports": [
                { "name": "grpc", "port": CONTROLLER_PORT, "targetPort": CONTROLLER_PORT, "appProtocol": "tls" },
                { "name": "webhook", "port": 443, "targetPort": WEBHOOK_PORT, "appProtocol": "tls" },
            ],
        },
    });
    let mut controller = deployment(installation);
    if let Some(config_map) = &installation.issuer_ca {
        mount_issuer_ca(&mut controller, config_map);
    }
    [settings, service, controller]
}

/// Adds the issuer's authorities to the controller's pod.
fn mount_issuer_ca(deployment: &mut Value, config_map: &str) {
    let pod = &mut deployment["spec"]["template"]["spec"];
    let volume = json!({ "name": ISSUER_VOLUME, "configMap": { "name": config_map } });
    let mount = json!({ "name": ISSUER_VOLUME, "mountPath": ISSUER_DIRECTORY, "readOnly": true });
    if let Some(volumes) = pod["volumes"].as_array_mut() {
        volumes.push(volume);
    }
    if let Some(mounts) = pod["containers"][0]["volumeMounts"].as_array_mut() {
        mounts.push(mount);
    }
}

fn deployment(installation: &Installation) -> Value {
    let labels = json!({
        "app.kubernetes.io/name": CONTROLLER,
        "app.kubernetes.io/part-of": "tulle",
    });
    let health = |path: &str| json!({ "path": path, "port": HEALTH_PORT });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": metadata(CONTROLLER, Some(&installation.namespace)),
        "spec": {
            "replicas": installation.replicas,
            "selector": { "matchLabels": { "app.kubernetes.io/name": CONTROLLER } },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "serviceAccountName": CONTROLLER,
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                        "fsGroup": 65532, "seccompProfile": { "type": "RuntimeDefault" },
                    },
                    "containers": [{
                        "name": "controller",
                        "image": installation.controller_image,
                        "imagePullPolicy": installation.sidecars.image_pull_policy,
                        "args": ["cluster-controller", "--settings", SETTINGS_FILE],
                        "ports": [
                            { "name": "grpc", "containerPort": CONTROLLER_PORT },
                            { "name": "webhook", "containerPort": WEBHOOK_PORT },
                            { "name": "health", "containerPort": HEALTH_PORT },
                        ],
                        "readinessProbe": { "httpGet": health("/ready"), "periodSeconds": 2 },
                        "livenessProbe": { "httpGet": health("/live"), "periodSeconds": 10 },
                        "resources": {
                            "requests": { "cpu": "50m", "memory": "64Mi" },
                            "limits": { "memory": "512Mi" },
                        },
                        "securityContext": {
                            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                            "capabilities": { "drop": ["ALL"] },
                        },
                        "volumeMounts": [
                            { "name": "settings", "mountPath": "/etc/tulle", "readOnly": true },
                            { "name": "run", "mountPath": RUN_DIRECTORY },
                        ],
                    }],
                    "volumes": [
                        { "name": "settings", "configMap": { "name": SETTINGS } },
                        { "name": "run", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
                    ],
                },
            },
        },
    })
}
