//! Gateways of a cluster (Gateway API): what runs for each, what it serves, and what is said of it.
//!
//! ```text
//!  source ──classes, Gateways, ReferenceGrants, attached routes──> View ──> plan ──told──> index
//!  watch ──Services and Deployments of gateways ───────────────┐             ├──objects──> Deployment, Service ..
//!        ──Secrets that they refer to, one by one ─────────────┴──> Own ─────┴──status──> crate::status ──> Gateway
//! ```
//!
//! Gateway API's kinds are watched once, by [`crate::source`]: what a route is told of a gateway and what
//! the gateway does are of the same moment. All replicas of the controller tell their index; only the
//! leader writes. [`plan`] is pure.

pub(crate) mod attach;
mod certificate;
mod follow;
mod listeners;
mod objects;
mod plan;
mod ports;
mod status;
mod told;
pub(crate) mod view;
mod watch;
mod write;

pub use follow::{MISSING, Surroundings, follow};
pub(crate) use objects::{METRICS_PORT_NAME, labels};
pub use view::View;

use crate::names::CONTROLLER_NAME;
use serde_json::{Value, json};

/// The class that is always there.
pub const CLASS: &str = "tulle";
const GROUP: &str = "gateway.networking.k8s.io";
const API_VERSION: &str = "gateway.networking.k8s.io/v1";

/// What of Gateway API is supported, as its conformance tests name it.
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

/// What the controller may do for gateways beyond reading and writing about Gateway API: read the
/// Secrets they refer to, and keep what they run as.
pub fn rights() -> Vec<Value> {
    let all = ["get", "list", "watch", "create", "patch", "delete"];
    vec![
        json!({ "apiGroups": [GROUP], "resources": ["gatewayclasses"], "verbs": ["create"] }),
        json!({ "apiGroups": [""], "resources": ["secrets", "configmaps"], "verbs": ["get", "list", "watch"] }),
        json!({ "apiGroups": [""], "resources": ["services", "serviceaccounts"], "verbs": all }),
        json!({ "apiGroups": ["apps"], "resources": ["deployments"], "verbs": all }),
        json!({ "apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": all }),
    ]
}
