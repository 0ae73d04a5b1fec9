//! `tulle-proxy --config FILE`: what a proxy knows before it talks to anyone.
//!
//! With `control` the resources come from the controller; without it they stand in the file, so
//! one proxy runs alone (tests, benchmarks, gateways, debugging). Either way they are the same types. Reading the
//! file is the caller's.

use crate::identity::SpiffeId;
use crate::resource::{Egress, Gateway, Inbound, MeshSettings, Service};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;

mod application_metrics;
mod check;
mod listener;
mod probe;

pub use application_metrics::ApplicationMetrics;
pub use listener::{Listener, ListenerKind};
pub use probe::{Probe, ProbeCheck, ProbeHeader};

/// Most worker threads.
pub const MAX_WORKERS: u16 = 256;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bootstrap {
    /// This proxy's identity; also its workload name in metrics.
    pub identity: SpiffeId,
    /// Certificate files. Reloaded when they change. Exactly one of `certificates` and `control`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<CertificateFiles>,
    /// The controller to take certificates and resources from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
    /// Worker threads; 0: one for each core the CPU limit allows.
    #[serde(default)]
    pub workers: u16,
    /// Read-only administration, loopback only.
    #[serde(default = "admin")]
    pub admin: SocketAddr,
    /// Unix socket (0600) for administration that changes state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_socket: Option<PathBuf>,
    /// Prometheus text at `/metrics`.
    #[serde(default = "metrics")]
    pub metrics: SocketAddr,
    /// Address of readiness at `/ready` and of the application's `probes`, for every client that can connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<SocketAddr>,
    /// Where the application is asked; the request comes from a loopback address in any case.
    #[serde(default = "localhost")]
    pub application: IpAddr,
    /// Health checks of the application that are answered at `health`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<Probe>,
    /// The application's metrics, which are served at `metrics`, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_metrics: Option<ApplicationMetrics>,
    /// Where the sidecar of an application listens.
    #[serde(default)]
    pub listeners: Vec<Listener>,
    /// Number of an inherited Unix socket over which another process passes the listening sockets of
    /// the gateway that `identity` names. They come and go while the proxy serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_sockets: Option<u16>,
    /// Unix socket (0600) at which the next process of this proxy takes the listening sockets of the present one over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heir_socket: Option<PathBuf>,
    /// Where the application's DNS is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<Dns>,
    /// How long SIGTERM waits for requests in flight, in milliseconds.
    #[serde(default = "drain")]
    pub drain_timeout_ms: u32,
    /// Settings of the mesh. With `control`, those until the controller's arrive.
    #[serde(default)]
    pub mesh: MeshSettings,
    /// Destinations (without `control`).
    #[serde(default)]
    pub services: Vec<Service>,
    /// The application behind this proxy (without `control`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inbound: Option<Inbound>,
    /// Gateways served here (without `control`).
    #[serde(default)]
    pub gateways: Vec<Gateway>,
    /// Destinations outside the mesh that may be reached (without `control`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
}

impl Bootstrap {
    /// Returns the names of the gateways that this proxy serves; one with several listeners may come more than once.
    pub fn gateway_names(&self) -> impl Iterator<Item = &str> {
        let configured = self.listeners.iter().filter_map(|l| match &l.kind {
            ListenerKind::Gateway { gateway, .. } => Some(gateway.as_str()),
            _ => None,
        });
        let passed = self.gateway_sockets.map(|_| self.identity.name());
        configured.chain(passed)
    }
}

fn localhost() -> IpAddr {
    Ipv4Addr::LOCALHOST.into()
}
fn loopback(port: u16) -> SocketAddr {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into()
}
fn admin() -> SocketAddr {
    loopback(15000)
}
fn metrics() -> SocketAddr {
    SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 15020).into()
}
fn drain() -> u32 {
    10_000
}

/// Where the application's DNS is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Dns {
    /// Addresses to answer on, over UDP and TCP; loopback only.
    pub addresses: Vec<SocketAddr>,
    /// Resolvers for names that are not the mesh's; none: those of `/etc/resolv.conf`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resolvers: Vec<SocketAddr>,
}

/// PEM files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CertificateFiles {
    /// Chain, leaf first.
    pub certificate: PathBuf,
    /// PKCS#8 key of the leaf.
    pub key: PathBuf,
    /// Roots that peers are verified against.
    pub trust_bundle: PathBuf,
}

/// How to reach and trust the controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Control {
    /// `host:port` of its gRPC port; the host is an address or a name.
    pub address: String,
    /// SHA-256 of the root certificate's DER, lower-case hex. Exactly one of `ca_fingerprint` and
    /// `trust_bundle`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ca_fingerprint: String,
    /// File with the roots that the controller's certificate may have (PEM); read for each
    /// connection, so that it can be replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_bundle: Option<PathBuf>,
    /// The workload or service whose inbound ports this proxy serves, or the workload that a gateway
    /// is. Default: the identity's last segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// File with the one-time join token; read when there is no certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_token_file: Option<PathBuf>,
    /// File with a token of the pod's Kubernetes service account; read for each certificate. Not with
    /// `join_token_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_token: Option<PathBuf>,
    /// Last good resources, so that a restart needs no controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<PathBuf>,
    /// Where key and certificate outlive a restart: `/proc/self/fd/N` of an inherited memfd keeps
    /// the key in memory only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_cache: Option<PathBuf>,
    /// Number of an inherited Unix socket, over which the supervisor of a host that joined certifies this
    /// proxy while no controller answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_authority: Option<u16>,
    /// Number of another inherited Unix socket, over which that supervisor tells this proxy of services: so a change
    /// crosses the line to the controller once for all proxies of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_services: Option<u16>,
    /// The way to the controller may be slow and costly: nothing crosses it only to see whether it is there but a few
    /// packets in minutes, and whoever started this proxy sends SIGUSR1 when the way was gone or has become another.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sparing: bool,
}
