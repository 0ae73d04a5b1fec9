//! The kinds of manifest and their fields, as written by users.

use crate::identity::TrustDomain;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// Any accepted document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// Settings of the whole mesh; at most one.
    Mesh(Manifest<MeshSpec>),
    /// A process and its sidecar.
    Workload(Manifest<WorkloadSpec>),
    /// An entry for clients outside the mesh (Gateway API).
    Gateway(Manifest<GatewaySpec>),
    /// HTTP routing (Gateway API).
    HttpRoute(Manifest<HttpRouteSpec>),
    /// Who may call whom (SMI).
    TrafficTarget(Manifest<TrafficTargetSpec>),
    /// Named kinds of request (SMI).
    HttpRouteGroup(Manifest<HttpRouteGroupSpec>),
}

/// A document with its metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest<S> {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name and labels.
    pub metadata: Metadata,
    /// What it asks for.
    pub spec: S,
}

/// Name and labels.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// DNS label, unique within its kind.
    pub name: String,
    /// Ignored in standalone mode, where there is one namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Free.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Free.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Text or a number: `cpuLimit: 2` is as good as `cpuLimit: "2"`.
fn quantity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    deserializer.deserialize_any(TextOrNumber {
        expected: "a quantity such as `500m` or `64Mi`",
        fractions: true,
    })
}

/// A name, or a number without quotes.
fn user<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    deserializer.deserialize_any(TextOrNumber {
        expected: "the name or the number of a user",
        fractions: false,
    })
}

struct TextOrNumber {
    expected: &'static str,
    fractions: bool,
}

impl Visitor<'_> for TextOrNumber {
    type Value = Option<String>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }
    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(text.to_owned()))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Some(number.to_string()))
    }
    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Some(number.to_string()))
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        if self.fractions {
            return Ok(Some(number.to_string()));
        }
        Err(E::invalid_type(de::Unexpected::Float(number), &self))
    }
}

/// SMI writes headers as a list of one-entry mappings; a plain mapping is accepted too.
fn header_map<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct Headers;
    impl<'de> Visitor<'de> for Headers {
        type Value = BTreeMap<String, String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a mapping of header names to regular expressions")
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            BTreeMap::deserialize(MapAccessDeserializer::new(map))
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut all = BTreeMap::new();
            while let Some(some) = seq.next_element::<BTreeMap<String, String>>()? {
                for (name, value) in some {
                    if all.contains_key(&name) {
                        let message = format!("header `{name}` is given twice");
                        return Err(serde::de::Error::custom(message));
                    }
                    all.insert(name, value);
                }
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(Headers)
}

/// `tulle.dev/v1alpha1` Mesh. Durations are texts such as `24h`, `20s`, `100ms`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MeshSpec {
    /// Default `tulle.local`. Cannot change once identities are issued.
    #[serde(skip_serializing_if = "is_default")]
    pub trust_domain: TrustDomain,
    /// Any workload of the mesh may call any other; TrafficTargets are ignored. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub permissive_mode: bool,
    /// Plaintext from outside the mesh.
    #[serde(skip_serializing_if = "is_default")]
    pub mtls: MtlsSpec,
    /// Certificates of workloads.
    #[serde(skip_serializing_if = "is_default")]
    pub certificates: CertificateSpec,
    /// error, warn, info (default), debug or trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
    /// One JSON line per request. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub access_log: bool,
    /// Limits of each sidecar.
    #[serde(skip_serializing_if = "is_default")]
    pub sidecar: SidecarSpec,
    /// Timeouts.
    #[serde(skip_serializing_if = "is_default")]
    pub timeouts: TimeoutSpec,
    /// Limits of a message's head.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: LimitSpec,
    /// Let workloads reach addresses outside the mesh. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_egress: bool,
}

/// Plaintext from outside the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MtlsSpec {
    /// Default `strict`.
    #[serde(skip_serializing_if = "is_default")]
    pub mode: MtlsMode,
}

/// Whether plaintext is accepted on inbound ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MtlsMode {
    /// Refused.
    #[default]
    Strict,
    /// Accepted (as migration aid).
    Permissive,
}

/// Certificates of workloads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CertificateSpec {
    /// Default `24h`; at least `10s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<String>,
}

/// Limits of each sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SidecarSpec {
    /// Kubernetes quantity, such as `500m` or `2`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity")]
    pub cpu_limit: Option<String>,
    /// Kubernetes quantity, such as `64Mi`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity")]
    pub memory_limit: Option<String>,
    /// Worker threads. Default: 1 when the CPU limit is at most 1, else the limit rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u16>,
}

/// Timeouts, as duration texts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TimeoutSpec {
    /// Default `100ms`, at most `1s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol_detection: Option<String>,
    /// Default `10s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Default `5m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<String>,
    /// Default `15s`; `0s` means none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Default `5s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect: Option<String>,
}

/// Limits of a message's head.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LimitSpec {
    /// Default 32768.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header_bytes: Option<u32>,
    /// Default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header_count: Option<u32>,
}

/// `tulle.dev/v1alpha1` Workload.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadSpec {
    /// Service it belongs to. Default: the workload's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Identity `spiffe://<trust-domain>/svc/<identity>`. Default: the service's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Program and arguments to run. Exactly one of `command` and `address`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Address of something already running on this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Whom `command` runs as: a user's name or number. Default, under root: a user of its own.
    #[serde(
        default,
        deserialize_with = "user",
        skip_serializing_if = "Option::is_none"
    )]
    pub user: Option<String>,
    /// Working directory of `command`. Default: that of the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_directory: Option<String>,
    /// Environment of `command`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Ports it serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<WorkloadPort>,
    /// When it is ready to serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Probe>,
    /// What it calls; needed only in loopback mode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub upstreams: Vec<Upstream>,
}

/// An environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvVar {
    /// Name.
    pub name: String,
    /// Value. `$(NAME)` refers to an upstream's address variable in loopback mode.
    pub value: String,
}

/// A port of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadPort {
    /// Unique in the workload. Default: the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The port clients use and the application listens on.
    pub port: u16,
    /// Where the application listens, if not on `port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_port: Option<u16>,
    /// http, http2, kubernetes.io/h2c, grpc, tcp, tcp-server-first, tls. Default: detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}

/// A readiness probe; exactly one of the three.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Probe {
    /// 200–399 is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HttpGet>,
    /// Accepting is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpSocket>,
    /// Exit code 0 is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<Exec>,
    /// Seconds between tries. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<u32>,
    /// Tries before start-up has failed. Default 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_threshold: Option<u32>,
}

/// `GET path` on a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpGet {
    /// Path.
    pub path: String,
    /// Port.
    pub port: u16,
}

/// Connect to a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TcpSocket {
    /// Port.
    pub port: u16,
}

/// Run a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Exec {
    /// Program and arguments.
    pub command: Vec<String>,
}

/// A service the workload calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Upstream {
    /// Service name.
    pub service: String,
    /// Its port.
    pub port: u16,
    /// Loopback mode: environment variable that receives `host:port` to use for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// Loopback mode: fixed local port of the sidecar's listener. Default: a free one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_port: Option<u16>,
}

/// `gateway.networking.k8s.io/v1` Gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewaySpec {
    /// `tulle` (the default) is ours.
    #[serde(default = "tulle")]
    pub gateway_class_name: String,
    /// Where it listens.
    pub listeners: Vec<ListenerSpec>,
    /// Addresses to bind. Default 127.0.0.1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<GatewayAddress>,
}

fn tulle() -> String {
    "tulle".into()
}

/// An address to bind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayAddress {
    /// Only `IPAddress`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The address.
    pub value: IpAddr,
}

/// A listener of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListenerSpec {
    /// Unique in the gateway.
    pub name: String,
    /// Port.
    pub port: u16,
    /// Only `HTTP` for now.
    pub protocol: String,
    /// Exact or `*.suffix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
}

/// `gateway.networking.k8s.io/v1` HTTPRoute.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteSpec {
    /// Gateways or services it is attached to.
    pub parent_refs: Vec<ParentRef>,
    /// Exact or `*.suffix`; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hostnames: Vec<String>,
    /// Rules.
    pub rules: Vec<HttpRouteRule>,
}

/// What a route is attached to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParentRef {
    /// Default `gateway.networking.k8s.io`; empty for a Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// `Gateway` (default) or `Service`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its name.
    pub name: String,
    /// Ignored in standalone mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// A listener's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// A listener's or service's port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Matches and where matching requests go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteRule {
    /// One is enough; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<HttpRouteMatch>,
    /// Chosen by weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backend_refs: Vec<BackendRef>,
    /// Timeouts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<HttpRouteTimeouts>,
}

/// Timeouts of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteTimeouts {
    /// Duration text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

/// All given parts must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteMatch {
    /// Default: prefix `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<HttpPathMatch>,
    /// Header conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HttpHeaderMatch>,
    /// Method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// How a path is matched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpPathMatch {
    /// `Exact`, `PathPrefix` (default) or `RegularExpression`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Default `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// A header condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpHeaderMatch {
    /// `Exact` (default) or `RegularExpression`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Case-insensitive.
    pub name: String,
    /// The value.
    pub value: String,
}

/// A destination of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendRef {
    /// Only the core group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Only `Service`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Service name.
    pub name: String,
    /// Ignored in standalone mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Service port.
    pub port: u16,
    /// Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// `access.smi-spec.io/v1alpha3` TrafficTarget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficTargetSpec {
    /// Who is called.
    pub destination: IdentityRef,
    /// Who may call.
    pub sources: Vec<IdentityRef>,
    /// What may be called; empty: everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<TrafficTargetRule>,
}

/// An identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IdentityRef {
    /// Only `ServiceAccount`: standalone, the last segment of `/svc/<name>`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Ignored in standalone mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Destination port; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// What may be called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficTargetRule {
    /// Only `HTTPRouteGroup` for now.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Names of its matches; empty: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<String>,
}

/// `specs.smi-spec.io/v1alpha4` HTTPRouteGroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteGroupSpec {
    /// Named kinds of request.
    pub matches: Vec<HttpRouteGroupMatch>,
}

/// A named kind of request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteGroupMatch {
    /// Unique in its group.
    pub name: String,
    /// Methods, or `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// For the whole path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_regex: Option<String>,
    /// Header name to a regular expression for the whole value. A list of mappings is accepted too.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "header_map"
    )]
    pub headers: BTreeMap<String, String>,
}
