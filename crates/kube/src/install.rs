//! What a cluster needs for Tulle, as objects for `kubectl apply`.

use crate::controller::Options;
use crate::inject::Settings;
use crate::issuer::IssuerSettings;
use crate::names::{
    CONTROLLER, CONTROLLER_PORT, HEALTH_PORT, INJECT, LEASE, VALIDATOR, WEBHOOK, WEBHOOK_PORT,
};
use crate::{root, validate};
use serde_json::{Value, json};

/// Where the settings are in the controller's file system.
pub const SETTINGS_FILE: &str = "/etc/tulle/settings.json";
/// Where it keeps its socket.
pub const RUN_DIRECTORY: &str = "/run/tulle";
/// Where it finds the authorities that another issuer needs.
pub const ISSUER_DIRECTORY: &str = "/etc/tulle-issuer";
/// The volume that has them.
pub const ISSUER_VOLUME: &str = "issuer";
const SETTINGS: &str = "tulle-settings";
/// The role for what Gateways take.
const GATEWAYS: &str = "tulle-gateways";
/// Namespaces of the cluster itself. A webhook that fails there would keep it from healing.
const NEVER: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// API groups whose objects say something of the mesh.
const GROUPS: [&str; 5] = [
    "tulle.dev",
    "gateway.networking.k8s.io",
    "access.smi-spec.io",
    "specs.smi-spec.io",
    "split.smi-spec.io",
];

/// What is chosen at installation.
#[derive(Debug, Clone)]
pub struct Installation {
    /// Where the controller runs.
    pub namespace: String,
    /// Its image.
    pub controller_image: String,
    /// How many of it.
    pub replicas: u32,
    /// The `spec` of the Mesh.
    pub mesh: serde_json::Map<String, Value>,
    /// What sidecars are made with.
    pub sidecars: Settings,
    /// Who signs workloads' certificates, if the mesh's own root does not.
    pub issuer: Option<IssuerSettings>,
    /// ConfigMap in the controller's namespace with the authorities (`ca.crt`) that it needs.
    pub issuer_ca: Option<String>,
}

/// All objects, in the order in which they can be made.
pub fn objects(installation: &Installation) -> Vec<Value> {
    let namespace = &installation.namespace;
    let settings = Options {
        namespace: namespace.clone(),
        mesh: installation.mesh.clone(),
        sidecars: installation.sidecars.clone(),
        issuer: installation.issuer.clone(),
    };
    let mut objects = vec![
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": namespace,
                "labels": {
                    "app.kubernetes.io/part-of": "tulle",
                    "pod-security.kubernetes.io/enforce": "restricted",
                },
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": metadata(CONTROLLER, Some(namespace)),
        }),
    ];
    objects.extend(rights(namespace));
    objects.extend(gateway_rights(namespace));
    if let Some(IssuerSettings::CertManager(_)) = &installation.issuer {
        objects.extend(rights_to_request(namespace));
    }
    objects.push(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": metadata(SETTINGS, Some(namespace)),
        // A type of ours always becomes JSON.
        "data": { "settings.json": json!(settings).to_string() },
    }));
    objects.push(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": metadata(CONTROLLER, Some(namespace)),
        "spec": {
            "selector": { "app.kubernetes.io/name": CONTROLLER },
            "ports": [
                { "name": "grpc", "port": CONTROLLER_PORT, "targetPort": CONTROLLER_PORT, "appProtocol": "tls" },
                { "name": "webhook", "port": 443, "targetPort": WEBHOOK_PORT, "appProtocol": "tls" },
            ],
        },
    }));
    let mut controller = deployment(installation);
    if let Some(config_map) = &installation.issuer_ca {
        mount_issuer_ca(&mut controller, config_map);
    }
    objects.push(controller);
    objects.push(webhook(namespace));
    objects.push(validate::configuration(namespace));
    objects
}

pub(crate) fn metadata(name: &str, namespace: Option<&str>) -> Value {
    let mut metadata = json!({
        "name": name,
        "labels": {
            "app.kubernetes.io/name": name,
            "app.kubernetes.io/part-of": "tulle",
            "app.kubernetes.io/managed-by": "tulle",
        },
    });
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    metadata
}

/// What the controller may do: see where things are, say whose a token is, publish its root.
fn rights(namespace: &str) -> Vec<Value> {
    let subject = json!([{ "kind": "ServiceAccount", "name": CONTROLLER, "namespace": namespace }]);
    let reference = |kind: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": CONTROLLER });
    vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": metadata(CONTROLLER, None),
            "rules": [
                { "apiGroups": [""], "resources": ["services", "pods", "nodes", "namespaces"], "verbs": ["get", "list", "watch"] },
                { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"] },
                { "apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"] },
                // Server-side apply is a patch, and a create where there is nothing yet.
                { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"] },
                { "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [crate::names::TRUST_BUNDLE], "verbs": ["get", "patch"] },
                { "apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list", "watch"] },
                { "apiGroups": GROUPS, "resources": ["*"], "verbs": ["get", "list", "watch"] },
                { "apiGroups": GROUPS, "resources": ["*/status"], "verbs": ["patch"] },
                { "apiGroups": ["admissionregistration.k8s.io"], "resources": ["mutatingwebhookconfigurations"], "resourceNames": [WEBHOOK], "verbs": ["get", "update"] },
                { "apiGroups": ["admissionregistration.k8s.io"], "resources": ["validatingwebhookconfigurations"], "resourceNames": [VALIDATOR], "verbs": ["get", "update"] },
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": metadata(CONTROLLER, None),
            "roleRef": reference("ClusterRole"), "subjects": subject,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": metadata(CONTROLLER, Some(namespace)),
            "rules": [
                { "apiGroups": [""], "resources": ["secrets"], "verbs": ["create"] },
                { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"] },
                { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [LEASE], "verbs": ["get", "list", "watch", "patch", "update"] },
                { "apiGroups": [""], "resources": ["secrets"], "resourceNames": [root::SECRET], "verbs": ["get", "list", "watch", "update"] },
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": metadata(CONTROLLER, Some(namespace)),
            "roleRef": reference("Role"), "subjects": subject,
        }),
    ]
}

/// Apart, so that who has no Gateways can leave it out, or bind it in some namespaces only.
fn gateway_rights(namespace: &str) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": metadata(GATEWAYS, None),
            "rules": crate::gateway::rights(),
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": metadata(GATEWAYS, None),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": GATEWAYS },
            "subjects": [{ "kind": "ServiceAccount", "name": CONTROLLER, "namespace": namespace }],
        }),
    ]
}

/// To ask cert-manager.
fn rights_to_request(namespace: &str) -> [Value; 2] {
    let name = "tulle-issuer";
    [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": metadata(name, Some(namespace)),
            "rules": [{
                "apiGroups": ["cert-manager.io"], "resources": ["certificaterequests"],
                "verbs": ["create", "get", "delete"],
            }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": metadata(name, Some(namespace)),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": CONTROLLER, "namespace": namespace }],
        }),
    ]
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

/// Two questions, so that no pod is asked about that neither itself nor its namespace wants injected:
/// when the controller is away, such pods must still start.
fn webhook(namespace: &str) -> Value {
    let never: Vec<&str> = NEVER.into_iter().chain([namespace]).collect();
    let not_ours = json!({
        "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": never,
    });
    let is = |value: &str| json!({ "key": INJECT, "operator": "In", "values": [value] });
    let is_not = |values: &[&str]| json!({ "key": INJECT, "operator": "NotIn", "values": values });
    let one = |name: &str, namespaces: Vec<Value>, pods: Vec<Value>| {
        json!({
            "name": format!("{name}.tulle.dev"),
            "admissionReviewVersions": ["v1"],
            "clientConfig": { "service": {
                "namespace": namespace, "name": CONTROLLER, "path": "/inject", "port": 443,
            } },
            "failurePolicy": "Fail",
            "reinvocationPolicy": "IfNeeded",
            "sideEffects": "None",
            "timeoutSeconds": 10,
            "rules": [{
                "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["pods"], "scope": "Namespaced",
            }],
            "namespaceSelector": { "matchExpressions": namespaces },
            "objectSelector": { "matchExpressions": pods },
        })
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": metadata(WEBHOOK, None),
        "webhooks": [
            one("namespace", vec![not_ours.clone(), is("enabled")], vec![is_not(&["disabled"])]),
            one("pod", vec![not_ours, is_not(&["enabled"])], vec![is("enabled")]),
        ],
    })
}
