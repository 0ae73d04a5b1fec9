//! The kinds of documents. One list defines all of them.

use super::*;
use crate::document::{Node, Report, decode, to_yaml};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A kind of document.
pub(super) struct Kind {
    /// The values of `apiVersion`.
    pub(super) versions: &'static [&'static str],
    /// The value of `kind`.
    pub(super) written: &'static str,
    /// The name used here, which differs where two APIs use one word.
    pub(super) name: &'static str,
    pub(super) read: fn(&Node, &mut Report) -> Option<Object>,
}

fn one<M: DeserializeOwned>(
    root: &Node,
    report: &mut Report,
    check: fn(&M, &mut Report),
) -> Option<M> {
    let manifest = decode(root, unsupported::explain, report)?;
    check(&manifest, report);
    Some(manifest)
}

macro_rules! kinds {
    ($(
        $(#[$doc:meta])+
        $variant:ident($manifest:ty), $written:literal, $name:literal, $versions:expr, $check:path;
    )+) => {
        /// Any accepted document.
        #[allow(clippy::large_enum_variant)] // few at a time, and not moved about
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Object {
            $($(#[$doc])+ $variant($manifest),)+
        }

        pub(super) static KINDS: &[Kind] = &[$(Kind {
            versions: &$versions,
            written: $written,
            name: $name,
            read: |root, report| one(root, report, $check).map(Object::$variant),
        },)+];

        impl Object {
            /// The kind, such as `HTTPRoute`; unique among all APIs.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)+
                }
            }

            /// Name and labels.
            pub fn metadata(&self) -> &Metadata {
                match self {
                    $(Self::$variant(manifest) => &manifest.metadata,)+
                }
            }

            /// Returns the metadata, to be changed.
            pub fn metadata_mut(&mut self) -> &mut Metadata {
                match self {
                    $(Self::$variant(manifest) => &mut manifest.metadata,)+
                }
            }

            /// The stored form. Equal objects give the same bytes.
            pub fn to_json(&self) -> String {
                fn json<M: Serialize>(manifest: &M) -> String {
                    serde_json::to_string(manifest).expect("structs with text keys have a JSON form")
                }
                match self {
                    $(Self::$variant(manifest) => json(manifest),)+
                }
            }

            /// Returns a YAML document that [`parse`] reads as the same object.
            pub fn to_yaml(&self) -> String {
                let yaml = match self {
                    $(Self::$variant(manifest) => to_yaml(manifest),)+
                };
                yaml.expect("structs with text keys have a YAML form")
            }
        }
    };
}

const TULLE: &str = "tulle.dev/v1alpha1";
const GATEWAY: &str = "gateway.networking.k8s.io/v1";
const GATEWAY_ALPHA3: &str = "gateway.networking.k8s.io/v1alpha3";
const GATEWAY_ALPHA2: &str = "gateway.networking.k8s.io/v1alpha2";

kinds! {
    /// Settings of the whole mesh; at most one.
    Mesh(Manifest<MeshSpec>), "Mesh", "Mesh", [TULLE], check::mesh;
    /// A process and its sidecar.
    Workload(Manifest<WorkloadSpec>), "Workload", "Workload", [TULLE], check::workload;
    /// An entry for clients outside the mesh (Gateway API).
    Gateway(Manifest<GatewaySpec>), "Gateway", "Gateway", [GATEWAY], check::routing::gateway;
    /// HTTP routing (Gateway API).
    HttpRoute(Manifest<HttpRouteSpec>), "HTTPRoute", "HTTPRoute", [GATEWAY],
        check::routing::http_route;
    /// gRPC routing (Gateway API).
    GrpcRoute(Manifest<GrpcRouteSpec>), "GRPCRoute", "GRPCRoute", [GATEWAY],
        check::routing::grpc_route;
    /// TLS by server name (Gateway API).
    TlsRoute(Manifest<TlsRouteSpec>), "TLSRoute", "TLSRoute",
        [GATEWAY, GATEWAY_ALPHA3, GATEWAY_ALPHA2], check::routing::tls_route;
    /// TCP by port (Gateway API).
    TcpRoute(Manifest<TcpRouteSpec>), "TCPRoute", "TCPRoute",
        [GATEWAY, GATEWAY_ALPHA3, GATEWAY_ALPHA2], check::routing::tcp_route;
    /// Identities that may call another (SMI).
    TrafficTarget(Manifest<TrafficTargetSpec>), "TrafficTarget", "TrafficTarget",
        ["access.smi-spec.io/v1alpha3"], check::smi::traffic_target;
    /// Named kinds of request (SMI).
    HttpRouteGroup(Manifest<HttpRouteGroupSpec>), "HTTPRouteGroup", "HTTPRouteGroup",
        ["specs.smi-spec.io/v1alpha4"], check::smi::http_route_group;
    /// Ports, for TrafficTargets (SMI).
    SmiTcpRoute(Manifest<SmiTcpRouteSpec>), "TCPRoute", "TCPRoute.specs.smi-spec.io",
        ["specs.smi-spec.io/v1alpha4"], check::smi::tcp_route;
    /// A service's requests by weight (SMI).
    TrafficSplit(Manifest<TrafficSplitSpec>), "TrafficSplit", "TrafficSplit",
        ["split.smi-spec.io/v1alpha4", "split.smi-spec.io/v1alpha2"], check::smi::traffic_split;
    /// How clients treat a service.
    TrafficPolicy(Manifest<TrafficPolicySpec>), "TrafficPolicy", "TrafficPolicy", [TULLE],
        check::traffic::traffic_policy;
    /// How often a service may be called.
    RateLimit(Manifest<RateLimitSpec>), "RateLimit", "RateLimit", [TULLE],
        check::access::rate_limit;
    /// Filters of a route beyond Gateway API.
    HttpFilter(Manifest<HttpFilterSpec>), "HTTPFilter", "HTTPFilter", [TULLE],
        check::filters::http_filter;
    /// Callers of a service, and the requests they may send.
    AuthorizationPolicy(Manifest<AuthorizationPolicySpec>), "AuthorizationPolicy",
        "AuthorizationPolicy", [TULLE], check::access::authorization_policy;
    /// Proof that requests must carry beside the identity of their workload.
    Authentication(Manifest<AuthenticationSpec>), "Authentication", "Authentication", [TULLE],
        check::access::authentication;
    /// A script that reads and edits a service's requests and responses.
    Plugin(Manifest<PluginSpec>), "Plugin", "Plugin", [TULLE], check::plugin::plugin;
    /// Services that somebody else's ingress may call.
    IngressBackend(Manifest<AccessSpec>), "IngressBackend", "IngressBackend", [TULLE],
        check::access::access;
    /// Services that other clients outside the mesh may call.
    AccessControl(Manifest<AccessSpec>), "AccessControl", "AccessControl", [TULLE],
        check::access::access;
    /// Destinations outside the mesh that workloads may reach.
    Egress(Manifest<EgressSpec>), "Egress", "Egress", [TULLE], check::access::egress;
    /// Keys and certificates.
    Secret(Secret), "Secret", "Secret", ["v1"], check::secret::secret;
    /// Texts.
    ConfigMap(ConfigMap), "ConfigMap", "ConfigMap", ["v1"], check::secret::config_map;
}

/// Returns the names of all kinds, in the order of the documentation.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}
