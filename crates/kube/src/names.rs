//! Names that the API server, pods and programs of the mesh agree on.

use serde_json::{Value, json};

/// Label or annotation of a namespace or pod: `enabled` or `disabled`.
pub const INJECT: &str = "tulle.dev/inject";
/// Annotation of a pod that has a sidecar: how it came about.
pub const STATUS: &str = "tulle.dev/status";
/// Annotation of a pod or Service: ports whose bytes the mesh carries without reading them, as `8080, 9090`.
pub const OPAQUE_PORTS: &str = "tulle.dev/opaque-ports";
/// Annotation of a pod: ports that clients reach without its sidecar.
pub const EXCLUDE_INBOUND_PORTS: &str = "tulle.dev/exclude-inbound-ports";
/// Annotation of a pod whose application's metrics its sidecar serves: what `prometheus.io/*` said before,
/// as JSON.
pub const APPLICATION_METRICS: &str = "tulle.dev/application-metrics";
/// Annotation of the Secret with the root: asks to replace it, with at least so many seconds for each step.
pub const ROTATE: &str = "tulle.dev/rotate";
/// The sidecar's container.
pub const SIDECAR: &str = "tulle-proxy";
/// The container of an egress gateway: a member of the mesh like a sidecar, which serves no application.
pub const EGRESS_GATEWAY: &str = "egress-gateway";
/// The init container that makes the redirection rules, or makes sure that the node has.
pub const INIT: &str = "tulle-init";
/// How that init container ends where there are no rules.
pub const NOT_REDIRECTED: i32 = 79;
/// The DaemonSet of the CNI plugin, and its namespace: its pods have rights that the controller's need not.
pub const CNI: &str = "tulle-cni";
/// The audience of sidecars' tokens: no other receiver accepts them, and the controller accepts no others.
pub const AUDIENCE: &str = "tulle.dev";
/// In every namespace of the mesh: certificates that the controller may show.
pub const TRUST_BUNDLE: &str = "tulle-trust-bundle";
/// Where a sidecar finds its token and that bundle.
pub const IDENTITY_DIRECTORY: &str = "/var/run/secrets/tulle.dev";
/// Where a sidecar keeps what outlives its restart; in memory, of this pod only.
pub const STATE_DIRECTORY: &str = "/var/lib/tulle";
/// The user a sidecar runs as. Its connections are not redirected, so nobody else may be it.
pub const SIDECAR_UID: u32 = 1500;
/// Metrics of a sidecar.
pub const METRICS_PORT: u16 = 15020;
/// Health of a sidecar, and of the application on whose behalf it answers.
pub const HEALTH_PORT: u16 = 15021;
/// The controller: its Deployment, Service and account.
pub const CONTROLLER: &str = "tulle-controller";
/// Where sidecars reach the controller.
pub const CONTROLLER_PORT: u16 = 15010;
/// Metrics of the controller.
pub const CONTROLLER_METRICS_PORT: u16 = 15014;
/// Where the console is on the controller's loopback, which only a port-forward reaches.
pub const CONSOLE_PORT: u16 = 15012;
/// The service account whose tokens open sessions of the console.
pub const CONSOLE: &str = "tulle-console";
/// The audience of such a token: nothing else accepts it.
pub const CONSOLE_AUDIENCE: &str = "console.tulle.dev";
/// Where the API server asks about pods.
pub const WEBHOOK_PORT: u16 = 15017;
/// Where the API server asks for traffic metrics.
pub const METRICS_API_PORT: u16 = 15018;
/// The webhook's configuration.
pub const WEBHOOK: &str = "tulle-injector";
/// How objects of Gateway API name the controller: in a GatewayClass, and in the status of routes.
pub const CONTROLLER_NAME: &str = "tulle.dev/gateway-controller";
/// The Lease of the replica that writes.
pub const LEASE: &str = "tulle-controller";
/// Label of a namespace whose sidecars take no plaintext and let nothing leave the mesh without an Egress,
/// whatever the Mesh says: `strict`. `permissive` says nothing; anything else is taken for `strict`.
pub const PROFILE: &str = "tulle.dev/profile";
/// Label of a namespace, or annotation of a pod, whose annotations for Prometheus stay as they are:
/// `disabled`.
pub const METRICS: &str = "tulle.dev/metrics";
/// The configuration of the webhook for objects.
pub const VALIDATOR: &str = "tulle-validator";
/// The ConfigMap that it reads.
pub(crate) const SETTINGS: &str = "tulle-settings";

/// Builds the metadata of an object that is in no namespace.
pub(crate) fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "labels": {
            "app.kubernetes.io/name": name,
            "app.kubernetes.io/part-of": "tulle",
            "app.kubernetes.io/managed-by": "tulle",
        },
    })
}
