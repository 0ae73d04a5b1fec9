//! The kinds that are read as objects of the mesh.

use kube::api::ApiResource;
use std::collections::BTreeSet;

/// API group of Ingresses and their classes.
pub const NETWORKING: &str = "networking.k8s.io";

/// The kinds that are not known yet; empty when all are.
pub type Missing = BTreeSet<&'static str>;

/// A kind of the API server.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// API group.
    pub group: &'static str,
    /// Versions that are understood, the best first.
    pub versions: &'static [&'static str],
    /// The plural, as in URLs.
    pub plural: &'static str,
    /// The kind, as in objects.
    pub kind: &'static str,
}

pub(crate) const GATEWAY: &str = "gateway.networking.k8s.io";
const TULLE: &str = "tulle.dev";
const V1: &[&str] = &["v1"];
const ALPHA: &[&str] = &["v1alpha1"];

const fn kind(
    group: &'static str,
    versions: &'static [&'static str],
    plural: &'static str,
    kind: &'static str,
) -> Kind {
    Kind {
        group,
        versions,
        plural,
        kind,
    }
}

/// All kinds that are watched when their definitions exist.
pub static KINDS: [Kind; 23] = [
    kind(GATEWAY, V1, "gatewayclasses", "GatewayClass"),
    kind(GATEWAY, V1, "gateways", "Gateway"),
    kind(GATEWAY, V1, "httproutes", "HTTPRoute"),
    kind(GATEWAY, V1, "grpcroutes", "GRPCRoute"),
    kind(
        GATEWAY,
        &["v1", "v1alpha3", "v1alpha2"],
        "tlsroutes",
        "TLSRoute",
    ),
    kind(
        GATEWAY,
        &["v1", "v1alpha3", "v1alpha2"],
        "tcproutes",
        "TCPRoute",
    ),
    kind(
        GATEWAY,
        &["v1", "v1beta1"],
        "referencegrants",
        "ReferenceGrant",
    ),
    kind(
        "access.smi-spec.io",
        &["v1alpha3"],
        "traffictargets",
        "TrafficTarget",
    ),
    kind(
        "specs.smi-spec.io",
        &["v1alpha4"],
        "httproutegroups",
        "HTTPRouteGroup",
    ),
    kind("specs.smi-spec.io", &["v1alpha4"], "tcproutes", "TCPRoute"),
    kind(
        "split.smi-spec.io",
        &["v1alpha4", "v1alpha2"],
        "trafficsplits",
        "TrafficSplit",
    ),
    kind(TULLE, ALPHA, "meshes", "Mesh"),
    kind(TULLE, ALPHA, "trafficpolicies", "TrafficPolicy"),
    kind(TULLE, ALPHA, "ratelimits", "RateLimit"),
    kind(TULLE, ALPHA, "httpfilters", "HTTPFilter"),
    kind(TULLE, ALPHA, "authorizationpolicies", "AuthorizationPolicy"),
    kind(TULLE, ALPHA, "authentications", "Authentication"),
    kind(TULLE, ALPHA, "plugins", "Plugin"),
    kind(TULLE, ALPHA, "ingressbackends", "IngressBackend"),
    kind(TULLE, ALPHA, "accesscontrols", "AccessControl"),
    kind(TULLE, ALPHA, "egresses", "Egress"),
    kind(NETWORKING, V1, "ingresses", "Ingress"),
    kind(NETWORKING, V1, "ingressclasses", "IngressClass"),
];

impl Kind {
    /// Name of its definition.
    pub fn definition(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// Whether the API server has it without a definition.
    pub(crate) fn is_built_in(&self) -> bool {
        self.group == NETWORKING
    }

    /// How it is asked for.
    pub fn resource(&self, version: &str) -> ApiResource {
        ApiResource {
            group: self.group.into(),
            version: version.into(),
            api_version: format!("{}/{version}", self.group),
            kind: self.kind.into(),
            plural: self.plural.into(),
        }
    }

    /// The kind of an object.
    pub fn find(group: &str, kind: &str) -> Option<&'static Self> {
        KINDS.iter().find(|k| k.group == group && k.kind == kind)
    }
}
