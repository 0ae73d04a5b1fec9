//! What is chosen at installation: the values of the Helm chart, and of `tulle install --values`.
//!
//! The comments here are those of the chart's `values.yaml`, and its schema is made of these types.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tulle_model::manifest::{MeshSpec, MtlsMode, MtlsSpec};
use tulle_redirect::Exceptions;

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Values {
    /// Of all identities; cannot change later.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[a-z0-9._-]+$"))]
    pub trust_domain: String,
    /// What holds for the whole mesh, as the `spec` of a Mesh (docs/features). What an
    /// object of the kind Mesh in the cluster says of it goes before. By default callers without a sidecar are let in and workloads reach what
    /// is outside; for a cluster that begins strict: `mtls: { mode: strict }` and `allowEgress: false`.
    pub mesh: MeshSpec,
    /// Where the images are.
    pub images: Images,
    /// The controller.
    pub controller: Controller,
    /// Rules of pods are made by their nodes, and pods need no NET_ADMIN (docs/kubernetes/cni.md).
    pub cni: Cni,
    /// What holds for each sidecar, unless annotations of its pod say otherwise (docs/kubernetes.md).
    pub sidecar: Sidecar,
    /// Who signs certificates of workloads: `certManager` or `vault`; neither: a root of the mesh's own.
    pub issuer: Issuer,
    /// Who else is told of traffic (docs/kubernetes/monitoring.md).
    pub monitoring: Monitoring,
    /// Where the controller may run Gateways (docs/kubernetes/gateways.md).
    pub gateways: Gateways,
    /// The admission webhook (docs/kubernetes/install.md#webhook).
    pub webhook: Webhook,
    /// Who reaches the controller's ports, where the cluster's network enforces NetworkPolicies
    /// (docs/kubernetes/rights.md).
    pub network_policy: NetworkPolicy,
}

impl Default for Values {
    fn default() -> Self {
        Self {
            trust_domain: "cluster.local".into(),
            // What runs already shall go on when it joins, and nothing of a cluster says yet who may call whom.
            mesh: MeshSpec {
                permissive_mode: true,
                mtls: MtlsSpec {
                    mode: MtlsMode::Permissive,
                },
                allow_egress: true,
                ..MeshSpec::default()
            },
            images: Images::default(),
            controller: Controller::default(),
            cni: Cni::default(),
            sidecar: Sidecar::default(),
            issuer: Issuer::default(),
            monitoring: Monitoring::default(),
            gateways: Gateways::default(),
            webhook: Webhook::default(),
            network_policy: NetworkPolicy::default(),
        }
    }
}

/// Where the controller may run Gateways.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Gateways {
    /// Namespaces where the controller may read Secrets and keep Deployments, beside its own. They must exist.
    #[schemars(inner(regex(pattern = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")))]
    pub namespaces: Vec<String>,
    /// The same in every namespace: the controller then reads all Secrets of the cluster.
    pub all_namespaces: bool,
}

/// The admission webhook.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Webhook {
    /// Authorities (PEM) of the API server's client certificate. Who shows none of theirs is refused. Empty:
    /// everybody is answered. No API server shows a certificate unless it is told to.
    #[serde(rename = "clientCA")]
    #[schemars(regex(pattern = r"^(-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s-]+)?$"))]
    pub client_ca: String,
}

/// Who reaches the controller's ports. Kubelets reach the pods of their node anyway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NetworkPolicy {
    /// Whether there is a NetworkPolicy. Without one everybody reaches every port.
    pub enabled: bool,
    /// Who asks for configuration and certificates, as the `from` of a NetworkPolicy; an empty list: anybody.
    pub proxies: Vec<Map<String, Value>>,
    /// Where the API server asks from, likewise. No cluster says it by itself, so the default is anybody.
    pub api_server: Vec<Map<String, Value>>,
    /// Who scrapes metrics, likewise.
    pub metrics: Vec<Map<String, Value>>,
}

impl Default for NetworkPolicy {
    fn default() -> Self {
        let pods = || vec![fields(json!({ "namespaceSelector": {} }))];
        Self {
            enabled: true,
            proxies: pods(),
            api_server: Vec::new(),
            metrics: pods(),
        }
    }
}

/// Who else is told of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Monitoring {
    /// SMI's metrics API is served through the API server. While no controller answers, that is in the way of
    /// `kubectl api-resources` and of the end of namespaces.
    pub smi_metrics: bool,
    /// PodMonitors for sidecars, gateways and the controller. Needs the kinds of the Prometheus operator.
    pub pod_monitors: bool,
}

/// Where the images are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Images {
    /// HOST/PATH of those that have no repository of their own.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._:/-]+$"))]
    pub registry: String,
    /// Tag of those that have none of their own; empty: the version of the chart.
    #[schemars(regex(pattern = TAG))]
    pub tag: String,
    /// When they are pulled.
    pub pull_policy: PullPolicy,
    /// Secrets for the controller's image, each as `name: SECRET`. A sidecar's image is pulled with those of
    /// its own pod.
    pub pull_secrets: Vec<PullSecret>,
    /// `tulle`, the controller.
    pub controller: Image,
    /// `tulle-proxy`, sidecars and gateways.
    pub proxy: Image,
    /// `tulle-init`, what makes the rules of a pod.
    pub init: Image,
    /// `tulle-cni`, what has nodes make them.
    pub cni: Image,
}

impl Default for Images {
    fn default() -> Self {
        Self {
            registry: "localhost".into(),
            tag: String::new(),
            pull_policy: PullPolicy::IfNotPresent,
            pull_secrets: Vec::new(),
            controller: Image::default(),
            proxy: Image::default(),
            init: Image::default(),
            cni: Image::default(),
        }
    }
}

const TAG: &str = r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$";

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Image {
    /// Empty: by its name in the registry above.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._:/-]*$"))]
    pub repository: String,
    /// Empty: the tag above.
    #[schemars(regex(pattern = TAG))]
    pub tag: String,
    /// `sha256:..`; wins over tags.
    #[schemars(regex(pattern = r"^(sha256:[0-9a-f]{64})?$"))]
    pub digest: String,
}

/// The CNI plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cni {
    /// Whether nodes have it.
    pub enabled: bool,
    /// Where the nodes' container runtime reads CNI configurations.
    #[schemars(regex(pattern = r"^/.+$"))]
    pub configurations: String,
    /// Where it finds CNI plugins.
    #[schemars(regex(pattern = r"^/.+$"))]
    pub programs: String,
}

impl Default for Cni {
    fn default() -> Self {
        Self {
            enabled: false,
            configurations: "/etc/cni/net.d".into(),
            programs: "/opt/cni/bin".into(),
        }
    }
}

/// When images are pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// A Secret in the controller's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullSecret {
    /// Its name.
    pub name: String,
}

/// The controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Controller {
    /// How many. Two or more serve alike, and one takes over when another is gone.
    #[schemars(range(min = 0, max = 100))]
    pub replicas: u32,
    /// Of its container, as Kubernetes has them. Measured: 22 MiB resident in a small cluster, 36 MiB with 200
    /// services of ten endpoints and 50 sidecars.
    pub resources: Map<String, Value>,
    /// Where there are several: how many may be away when nodes are drained.
    pub disruption_budget: DisruptionBudget,
    /// As many as their load takes; then `replicas` has no meaning.
    pub autoscaling: Autoscaling,
    /// Of its pods, as Kubernetes has it. Several rather run on different nodes.
    pub affinity: Map<String, Value>,
    /// Of its pods, as Kubernetes has them.
    pub topology_spread_constraints: Vec<Map<String, Value>>,
    /// Labels of nodes that it may run on.
    pub node_selector: Map<String, Value>,
    /// Of its pods, as Kubernetes has them.
    pub tolerations: Vec<Map<String, Value>>,
    /// Name of a PriorityClass, such as `system-cluster-critical`.
    pub priority_class_name: String,
    /// Of its pods.
    pub pod_annotations: Map<String, Value>,
    /// Of its pods.
    pub pod_labels: Map<String, Value>,
}

impl Default for Controller {
    fn default() -> Self {
        let labels = json!({ "app.kubernetes.io/name": crate::names::CONTROLLER });
        Self {
            replicas: 1,
            resources: fields(json!({
                "requests": { "cpu": "50m", "memory": "64Mi" },
                "limits": { "memory": "512Mi" },
            })),
            disruption_budget: DisruptionBudget::default(),
            autoscaling: Autoscaling::default(),
            affinity: fields(json!({ "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{
                    "weight": 100,
                    "podAffinityTerm": {
                        "labelSelector": { "matchLabels": labels },
                        "topologyKey": "kubernetes.io/hostname",
                    },
                }],
            } })),
            topology_spread_constraints: Vec::new(),
            node_selector: Map::new(),
            tolerations: Vec::new(),
            priority_class_name: String::new(),
            pod_annotations: Map::new(),
            pod_labels: Map::new(),
        }
    }
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// How many controllers may be away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DisruptionBudget {
    /// Whether there is one.
    pub enabled: bool,
    /// How many.
    #[schemars(range(min = 1, max = 100))]
    pub max_unavailable: u32,
}

impl Default for DisruptionBudget {
    fn default() -> Self {
        Self {
            enabled: true,
            max_unavailable: 1,
        }
    }
}

/// As many controllers as their load takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Autoscaling {
    /// Needs the cluster's metrics server.
    pub enabled: bool,
    /// At least.
    #[schemars(range(min = 1, max = 100))]
    pub min_replicas: u32,
    /// At most.
    #[schemars(range(min = 1, max = 100))]
    pub max_replicas: u32,
    /// CPU that they take on average, as a percentage of what `resources` requests.
    #[schemars(range(min = 1, max = 1000))]
    pub target_cpu_utilization: u32,
}

impl Default for Autoscaling {
    fn default() -> Self {
        Self {
            enabled: false,
            min_replicas: 2,
            max_replicas: 5,
            target_cpu_utilization: 80,
        }
    }
}

/// What holds for each sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Sidecar {
    /// An init container that goes on running; `false`: an ordinary one, for clusters before 1.29.
    pub native_sidecar: bool,
    /// Where it is an ordinary one: the application starts when it is ready.
    pub hold_application: bool,
    /// Of its container; empty: none. Measured: 3 MiB resident when idle, 9 MiB with 200
    /// connections (docs/performance.md). Without a limit of CPU it never waits while the node is idle.
    pub resources: Resources,
    /// How much it logs.
    pub log_level: LogLevel,
    /// Worker threads; 0: as many as the limit of CPU allows.
    #[schemars(range(min = 0, max = tulle_model::bootstrap::MAX_WORKERS))]
    pub workers: u16,
    /// What does not go through it.
    pub redirection: Exceptions,
    /// Pods are annotated for Prometheus.
    pub metrics: bool,
}

impl Default for Sidecar {
    fn default() -> Self {
        Self {
            native_sidecar: true,
            hold_application: true,
            resources: Resources::default(),
            log_level: LogLevel::Info,
            workers: 0,
            redirection: Exceptions::default(),
            metrics: true,
        }
    }
}

/// Of a sidecar's container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Resources {
    /// What is set aside.
    pub requests: Quantities,
    /// What is not exceeded.
    pub limits: Quantities,
}

impl Default for Resources {
    fn default() -> Self {
        let usual = crate::inject::Resources::default();
        Self {
            requests: Quantities {
                cpu: usual.cpu_request,
                memory: usual.memory_request,
            },
            limits: Quantities {
                cpu: usual.cpu_limit,
                memory: usual.memory_limit,
            },
        }
    }
}

/// Amounts; empty: none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Quantities {
    /// Such as `100m`.
    #[schemars(regex(pattern = r"^([0-9]+m|[0-9]+(\.[0-9]{1,3})?)?$"))]
    pub cpu: String,
    /// Such as `64Mi`.
    #[schemars(regex(pattern = r"^([0-9]+(k|M|G|T|Ki|Mi|Gi|Ti)?)?$"))]
    pub memory: String,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

/// Who signs certificates of workloads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(extend("allOf" = one_issuer()))]
pub struct Issuer {
    /// CertificateRequests of cert-manager, in the controller's namespace.
    pub cert_manager: CertManager,
    /// The PKI engine of Vault or OpenBao.
    pub vault: Vault,
    /// ConfigMap in the controller's namespace with `ca.crt`: for Vault the authority of its server, for
    /// cert-manager the roots, if its issuer does not say them.
    pub ca: String,
}

/// Not both; and Vault's own certificate must be known. [`super::choice`] says it in words.
fn one_issuer() -> Value {
    let named = |issuer: &str, field: &str| json!({ "properties": { issuer: { "properties": { field: { "minLength": 1 } } } } });
    let vault = named("vault", "address");
    json!([
        { "not": { "allOf": [named("certManager", "name"), vault] } },
        { "if": vault, "then": { "properties": { "ca": { "minLength": 1 } } } },
    ])
}

/// cert-manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CertManager {
    /// Name of the issuer; empty: not cert-manager.
    pub name: String,
    /// `Issuer`, `ClusterIssuer`, or the kind of an issuer of others.
    pub kind: String,
    /// Its API group.
    pub group: String,
}

impl Default for CertManager {
    fn default() -> Self {
        Self {
            name: String::new(),
            kind: "ClusterIssuer".into(),
            group: "cert-manager.io".into(),
        }
    }
}

/// Vault or OpenBao.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Vault {
    /// Such as `https://vault.vault.svc:8200`; empty: not Vault.
    #[schemars(regex(pattern = r"^(https://.+)?$"))]
    pub address: String,
    /// The PKI engine and the role that signs.
    pub sign: VaultRole,
    /// Kubernetes authentication, and the controller's role there.
    pub auth: VaultRole,
}

impl Default for Vault {
    fn default() -> Self {
        Self {
            address: String::new(),
            sign: VaultRole::of("pki"),
            auth: VaultRole::of("kubernetes"),
        }
    }
}

/// A role of Vault.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct VaultRole {
    /// Where the engine or method is mounted.
    #[schemars(length(min = 1))]
    pub mount: String,
    /// The role.
    #[schemars(length(min = 1))]
    pub role: String,
}

impl VaultRole {
    fn of(mount: &str) -> Self {
        Self {
            mount: mount.into(),
            role: "tulle".into(),
        }
    }
}
