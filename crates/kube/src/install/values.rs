//! The values of an installation: those of the Helm chart, and of `tulle install --values`.
//!
//! The comments here are those of the chart's `values.yaml`, and its schema is made of these types.

use crate::inject::PullSecret;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tulle_model::manifest::{MeshSpec, MtlsMode, MtlsSpec};
use tulle_redirect::Exceptions;

/// All values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Values {
    /// The trust domain of all identities. It cannot change later.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[a-z0-9._-]+$"))]
    pub trust_domain: String,
    /// Settings of the whole mesh, as the `spec` of a Mesh (docs/features). Fields that a Mesh object in the cluster
    /// sets take precedence. By default callers without a sidecar are let in, and workloads reach destinations outside
    /// the mesh. For a cluster that begins strict: `mtls: { mode: strict }` and `allowEgress: false`.
    pub mesh: MeshSpec,
    /// Where the images are.
    pub images: Images,
    /// The controller.
    pub controller: Controller,
    /// The web page that shows the mesh (docs/console.md).
    pub console: Console,
    /// Nodes make the rules of pods, and pods need no NET_ADMIN (docs/kubernetes/cni.md).
    pub cni: Cni,
    /// Settings of all sidecars. Annotations of a pod take precedence for its own (docs/kubernetes.md).
    pub sidecar: Sidecar,
    /// The issuer of workloads' certificates: `certManager` or `vault`; neither: the mesh's own root.
    pub issuer: Issuer,
    /// Other systems that read metrics of traffic (docs/kubernetes/monitoring.md).
    pub monitoring: Monitoring,
    /// Where the controller may run Gateways (docs/kubernetes/gateways.md).
    pub gateways: Gateways,
    /// The admission webhook (docs/kubernetes/install.md#webhook).
    pub webhook: Webhook,
    /// Peers that reach the controller's ports, where the cluster's network enforces NetworkPolicies
    /// (docs/kubernetes/rights.md).
    pub network_policy: NetworkPolicy,
}

impl Default for Values {
    fn default() -> Self {
        Self {
            trust_domain: "cluster.local".into(),
            // Existing traffic goes on when its workloads join the mesh, and nothing says yet who may call whom.
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
            console: Console::default(),
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

/// The web page that shows the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Console {
    /// Proxies report what they count, and `tulle dashboard` opens the page, for users who may get and list
    /// meshes.tulle.dev. The controller then needs up to 40 MiB more.
    pub enabled: bool,
    /// Sessions may change levels of proxies' logs, not only look.
    pub actions: bool,
}

impl Default for Console {
    fn default() -> Self {
        Self {
            enabled: true,
            actions: false,
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
    /// Authorities (PEM) of the API server's client certificate. A client without a certificate of theirs is refused.
    /// Empty: everybody is answered. An API server shows a certificate only if it is configured to.
    #[serde(rename = "clientCA")]
    #[schemars(regex(pattern = r"^(-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s-]+)?$"))]
    pub client_ca: String,
}

/// Peers that reach the controller's ports. Kubelets reach the pods of their node anyway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NetworkPolicy {
    /// Whether there is a NetworkPolicy. Without one everybody reaches every port.
    pub enabled: bool,
    /// Peers that ask for configuration and certificates, as the `from` of a NetworkPolicy; an empty list: anybody.
    pub proxies: Vec<Map<String, Value>>,
    /// Peers from which the API server connects, as the `from` of a NetworkPolicy. Clusters do not publish these
    /// addresses, so the default is anybody.
    pub api_server: Vec<Map<String, Value>>,
    /// Peers that scrape metrics, as the `from` of a NetworkPolicy.
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

/// Other systems that read metrics of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Monitoring {
    /// Serves SMI's metrics API through the API server. While no controller answers, `kubectl api-resources` reports
    /// errors and namespaces cannot be deleted.
    pub smi_metrics: bool,
    /// PodMonitors for sidecars, gateways and the controller. Needs the kinds of the Prometheus operator.
    pub pod_monitors: bool,
}

/// Where the images are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Images {
    /// HOST/PATH of all images without a repository of their own.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._:/-]+$"))]
    pub registry: String,
    /// Tag of all images without a tag of their own; empty: the version of the chart.
    #[schemars(regex(pattern = TAG))]
    pub tag: String,
    /// When images are pulled.
    pub pull_policy: PullPolicy,
    /// Secrets for the images of the controller, the CNI plugin and Gateways, each as `name: SECRET`. They are in the
    /// namespaces of these pods. A sidecar's image is pulled with the secrets of its own pod.
    pub pull_secrets: Vec<PullSecret>,
    /// `tulle`, the controller.
    pub controller: Image,
    /// `tulle-proxy`, sidecars and gateways.
    pub proxy: Image,
    /// `tulle-init`, which makes the rules of a pod.
    pub init: Image,
    /// `tulle-cni`, with which nodes make the rules.
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

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Image {
    /// Repository of the image; empty: the image's name in the registry above.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._:/-]*$"))]
    pub repository: String,
    /// Tag of the image; empty: the tag above.
    #[schemars(regex(pattern = TAG))]
    pub tag: String,
    /// Digest of the image, as `sha256:..`; it takes precedence over tags.
    #[schemars(regex(pattern = r"^(sha256:[0-9a-f]{64})?$"))]
    pub digest: String,
}

/// The CNI plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cni {
    /// Whether nodes run the plugin.
    pub enabled: bool,
    /// Where the nodes' container runtime reads CNI configurations.
    #[schemars(regex(pattern = r"^/.+$"))]
    pub configurations: String,
    /// Where the nodes' container runtime finds CNI plugins.
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

/// The controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Controller {
    /// Number of controllers. All of two or more serve, and when the one that leads is gone, another takes over.
    #[schemars(range(min = 0, max = 100))]
    pub replicas: u32,
    /// Resources of its container, as in Kubernetes. Measured: 22 MiB resident in a small cluster, 36 MiB with 200
    /// services of ten endpoints and 50 sidecars.
    pub resources: Map<String, Value>,
    /// With several controllers: how many may be away when nodes are drained.
    pub disruption_budget: DisruptionBudget,
    /// Scales the number of controllers with their load; then `replicas` has no meaning.
    pub autoscaling: Autoscaling,
    /// Affinity of its pods, as in Kubernetes. The default prefers different nodes for several pods.
    pub affinity: Map<String, Value>,
    /// Topology spread constraints of its pods, as in Kubernetes.
    pub topology_spread_constraints: Vec<Map<String, Value>>,
    /// Labels of nodes that it may run on.
    pub node_selector: Map<String, Value>,
    /// Tolerations of its pods, as in Kubernetes.
    pub tolerations: Vec<Map<String, Value>>,
    /// Name of a PriorityClass, such as `system-cluster-critical`.
    pub priority_class_name: String,
    /// Annotations of its pods.
    pub pod_annotations: Map<String, Value>,
    /// Labels of its pods.
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
    /// Whether there is a PodDisruptionBudget.
    pub enabled: bool,
    /// The most controllers that may be away.
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

/// Scales the number of controllers with their load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Autoscaling {
    /// Whether the number follows the load; needs the cluster's metrics server.
    pub enabled: bool,
    /// The fewest controllers.
    #[schemars(range(min = 1, max = 100))]
    pub min_replicas: u32,
    /// The most controllers.
    #[schemars(range(min = 1, max = 100))]
    pub max_replicas: u32,
    /// The average CPU use to aim for, as a percentage of what `resources` requests.
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

/// Settings of all sidecars.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Sidecar {
    /// The sidecar is an init container that goes on running. `false`: an ordinary one, for clusters before 1.29.
    pub native_sidecar: bool,
    /// With an ordinary container: the application starts when the sidecar is ready.
    pub hold_application: bool,
    /// Resources of its container; empty: none. Measured: 3 MiB resident when idle, 9 MiB with 200 connections
    /// (docs/performance.md). Without a CPU limit it never waits while the node is idle.
    pub resources: Resources,
    /// How much it logs; `info`: what the Mesh says.
    pub log_level: LogLevel,
    /// Worker threads; 0: as many as the CPU limit allows.
    #[schemars(range(min = 0, max = tulle_model::bootstrap::MAX_WORKERS))]
    pub workers: u16,
    /// Traffic that does not pass through it.
    pub redirection: Exceptions,
    /// Annotates pods for Prometheus.
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

/// Resources of a sidecar's container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Resources {
    /// Resources that are reserved.
    pub requests: Quantities,
    /// Resources that the container cannot exceed.
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
    /// CPU, such as `100m`.
    #[schemars(regex(pattern = r"^([0-9]+m|[0-9]+(\.[0-9]{1,3})?)?$"))]
    pub cpu: String,
    /// Memory, such as `64Mi`.
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

/// The issuer of workloads' certificates.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(extend("allOf" = one_issuer()))]
pub struct Issuer {
    /// CertificateRequests of cert-manager, in the controller's namespace.
    pub cert_manager: CertManager,
    /// The PKI engine of Vault or OpenBao.
    pub vault: Vault,
    /// ConfigMap in the controller's namespace with `ca.crt`: for Vault the authority of its server, for cert-manager
    /// the roots, if its issuer does not return them.
    pub ca: String,
}

/// The schema of rules between fields: not both issuers, and Vault's own certificate must be known. [`super::choice`]
/// says it in words.
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
    /// Address, such as `https://vault.vault.svc:8200`; empty: not Vault.
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
            sign: VaultRole::new("pki"),
            auth: VaultRole::new("kubernetes"),
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
    fn new(mount: &str) -> Self {
        Self {
            mount: mount.into(),
            role: "tulle".into(),
        }
    }
}
