//! Gateways of a cluster (Gateway API): what runs for each, what it serves, and its status.
//!
//! ```text
//!  source ──classes, Gateways, ReferenceGrants, attached routes──> View ──> plan ──told──> index
//!  watch ──Services and Deployments of gateways ───────────────┐             ├──objects──> Deployment, Service ..
//!        ──Secrets that they refer to, one by one ─────────────┴──> Own ─────┴──status──> crate::status ──> Gateway
//! ```
//!
//! Gateway API's kinds are watched once, by [`crate::source`]. So a route's status and the gateway's behaviour come
//! from the same moment. All replicas of the controller feed their index; only the leader writes. [`plan`] is pure.
//!
//! A Gateway of the class [`EGRESS_CLASS`] is an egress gateway, for callers in the mesh. It runs as the same
//! objects, and the index knows its pods as members of the mesh, not as a gateway with routes.

pub(crate) mod attach;
mod certificate;
mod follow;
mod gateway_spec;
mod ingress;
mod listeners;
mod objects;
mod plan;
mod ports;
mod status;
mod teller;
pub(crate) mod view;
mod watch;
mod write;

pub use crate::gateway_fields::EGRESS_CLASS;
pub use follow::{MISSING, Surroundings, follow};
pub(crate) use listeners::unserved_egress;
pub(crate) use objects::{METRICS_PORT_NAME, labels};
#[cfg(test)]
pub(crate) use teller::Told;
pub use view::{Texts, View};

use crate::gateway_fields::Key;
use crate::kinds::GATEWAY as GROUP;
use crate::names::CONTROLLER_NAME;
use serde_json::{Value, json};

/// The class of gateways for clients outside the mesh.
pub const CLASS: &str = "tulle";
/// The classes that are always there.
pub const CLASSES: [&str; 2] = [CLASS, EGRESS_CLASS];
/// The protocol of an egress gateway's listeners: CONNECT in the mesh's own TLS.
const CONNECT: &str = "tulle.dev/CONNECT";
const API_VERSION: &str = "gateway.networking.k8s.io/v1";

/// The features of Gateway API that are supported, as its conformance tests name them.
const FEATURES: [&str; 46] = [
    "GRPCRoute",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayInfrastructure",
    "GatewayPort8080",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteSchemeRedirect",
    "Mesh",
    "MeshClusterIPMatching",
    "MeshConsumerRoute",
    "MeshHTTPRouteBackendRequestHeaderModification",
    "MeshHTTPRouteNamedRouteRule",
    "MeshHTTPRouteQueryParamMatching",
    "MeshHTTPRouteRedirectPath",
    "MeshHTTPRouteRedirectPort",
    "MeshHTTPRouteRewritePath",
    "MeshHTTPRouteSchemeRedirect",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
];

/// Name of the ClusterRole with the rights that Gateways need, and of its bindings.
pub const ROLE: &str = "tulle-gateways";
/// Reason of a condition when the controller lacks rights in a namespace.
pub const NOT_PERMITTED: &str = "NotPermitted";

/// Returns the rights that the controller needs in namespaces of Gateways: to read the Secrets they refer to, and
/// to manage what they run as. Its own role lets it list and watch Services everywhere.
pub fn rights() -> Vec<Value> {
    let all = ["get", "list", "watch", "create", "patch", "delete"];
    let keep = ["get", "create", "patch", "delete"];
    vec![
        json!({ "apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"] }),
        json!({ "apiGroups": [""], "resources": ["services", "serviceaccounts"], "verbs": keep }),
        json!({ "apiGroups": ["apps"], "resources": ["deployments"], "verbs": all }),
        json!({ "apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": keep }),
    ]
}

/// Returns the name of the Service that a Gateway is reached by.
pub(crate) fn service_name(gateway: &Key) -> String {
    objects::place(gateway).name
}

/// Says that the controller lacks rights in a namespace, and what to do.
pub(crate) fn no_rights(namespace: &str) -> String {
    format!(
        "the controller lacks rights in the namespace {namespace}: add {namespace} to the value gateways.namespaces, \
         or set gateways.allNamespaces (docs/kubernetes/gateways.md#namespaces)"
    )
}
