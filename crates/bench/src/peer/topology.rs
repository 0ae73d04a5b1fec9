//! Client, server and what stands between them: the model that every peer is configured from.

use super::pki;
use crate::failure::{Failure, OrFail, Result};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use tulle_model::bootstrap::{Bootstrap, CertificateFiles, Listener, ListenerKind};
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_model::resource::{
    Endpoint, Inbound, InboundPort, MeshSettings, Policy, PolicyRule, Protocol, Service,
    ServicePort,
};

/// Service of the client.
pub const CLIENT: &str = "client";
/// Service of the server.
pub const SERVER: &str = "echo";
/// An identity of the mesh that may not call the server.
pub const STRANGER: &str = "stranger";
/// The server's service port.
pub(super) const PORT: u16 = 80;

/// Which sidecars there are, in the words of Istio's study.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// No sidecars.
    Baseline,
    /// Only the client's, which speaks plaintext to the server.
    ClientSidecar,
    /// Only the server's, which takes plaintext from the client.
    ServerSidecar,
    /// Both, mutual TLS between them.
    Both,
}

impl Mode {
    /// Returns the name in Istio's study.
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::ClientSidecar => "clientsidecar",
            Self::ServerSidecar => "serversidecar",
            Self::Both => "both",
        }
    }

    /// Whether the client has one.
    pub fn has_client(self) -> bool {
        matches!(self, Self::ClientSidecar | Self::Both)
    }

    /// Whether the server has one.
    pub fn has_server(self) -> bool {
        matches!(self, Self::ServerSidecar | Self::Both)
    }
}

/// Loopback ports.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    /// The server's application.
    pub app: u16,
    /// The client's sidecar, for the client.
    pub client: u16,
    /// The server's sidecar, for the client's.
    pub server: u16,
    /// Administration of the client's sidecar.
    pub client_admin: u16,
    /// Administration of the server's sidecar.
    pub server_admin: u16,
    /// Metrics of the client's sidecar.
    pub client_metrics: u16,
    /// Metrics of the server's sidecar.
    pub server_metrics: u16,
}

impl Ports {
    /// Seven ports that nobody listens on, below those that the system gives to clients: between
    /// now and the start of a sidecar nobody is likely to take one.
    ///
    /// # Errors
    /// There are none.
    pub fn free() -> Result<Self> {
        let first = 10_000 + u16::try_from(std::process::id() % 2_000).unwrap_or(0) * 10;
        let blocks = (first..32_000)
            .step_by(10)
            .chain((10_000..first).step_by(10));
        let free = |port| TcpListener::bind(loopback(port)).is_ok();
        let mut bases = blocks.filter(|base| (*base..base + 7).all(free));
        bases.next().map(Self::from).ok_or_else(|| {
            Failure::failed("no seven loopback ports between 10000 and 32000 are free")
        })
    }

    /// Seven ports from `base` on.
    pub fn from(base: u16) -> Self {
        Self {
            app: base,
            client: base + 1,
            server: base + 2,
            client_admin: base + 3,
            server_admin: base + 4,
            client_metrics: base + 5,
            server_metrics: base + 6,
        }
    }
}

/// Client, server and the sidecars of one peer between them.
#[derive(Debug, Clone)]
pub struct Topology {
    /// Files of this peer: certificates, configurations, logs.
    pub directory: PathBuf,
    /// Which sidecars there are.
    pub mode: Mode,
    /// The protocol between client and server.
    pub protocol: Protocol,
    /// Where everything listens.
    pub ports: Ports,
    /// Threads of each sidecar.
    pub workers: u16,
}

impl Topology {
    /// Makes the directory and its certificates: `ca.crt`, and NAME`.crt` and NAME`.key` of
    /// [`CLIENT`], [`SERVER`] and [`STRANGER`]. The names of the services are also the common names
    /// of the subjects, for peers that cannot match a SPIFFE id. One worker.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn new(directory: &Path, mode: Mode, protocol: Protocol, ports: Ports) -> Result<Self> {
        fs::create_dir_all(directory).or_fail(|| format!("cannot make {}", directory.display()))?;
        pki::write(directory, &[CLIENT, SERVER, STRANGER])?;
        Ok(Self {
            directory: directory.to_owned(),
            mode,
            protocol,
            ports,
            workers: 1,
        })
    }

    /// A file of this peer.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Where the client's load goes.
    pub fn entry(&self) -> SocketAddr {
        loopback(match self.mode {
            Mode::Baseline => self.ports.app,
            Mode::ServerSidecar => self.ports.server,
            Mode::ClientSidecar | Mode::Both => self.ports.client,
        })
    }

    /// Returns each sidecar's configuration by role, the server's first.
    pub fn models(&self) -> Vec<(&'static str, Bootstrap)> {
        let server = self.mode.has_server().then(|| ("server", self.server()));
        let client = self.mode.has_client().then(|| ("client", self.client()));
        server.into_iter().chain(client).collect()
    }

    /// Returns the configuration of the client's sidecar.
    pub fn client(&self) -> Bootstrap {
        let behind_sidecar = self.mode.has_server();
        let to = if behind_sidecar {
            self.ports.server
        } else {
            self.ports.app
        };
        let service = Service {
            name: SERVER.into(),
            identities: vec![spiffe(SERVER)],
            ports: vec![ServicePort {
                port: PORT,
                protocol: self.protocol,
                endpoints: vec![Endpoint::new(loopback(to), behind_sidecar)],
                ..Default::default()
            }],
            ..Default::default()
        };
        let listener = Listener {
            address: loopback(self.ports.client),
            kind: ListenerKind::Upstream {
                service: SERVER.into(),
                port: PORT,
            },
        };
        Bootstrap {
            services: vec![service],
            ..self.sidecar(
                CLIENT,
                listener,
                self.ports.client_admin,
                self.ports.client_metrics,
            )
        }
    }

    /// Returns the configuration of the server's sidecar: only the client may call. If the client has no
    /// sidecar, anybody may call in plaintext, as in a mesh in permissive mode.
    pub fn server(&self) -> Bootstrap {
        let strict = self.mode.has_client();
        let allow = PolicyRule {
            name: "TrafficTarget/client-to-echo".into(),
            sources: vec![spiffe(CLIENT)],
            ..Default::default()
        };
        let inbound = Inbound {
            service: SERVER.into(),
            ports: vec![InboundPort::new(
                PORT,
                self.protocol,
                loopback(self.ports.app),
            )],
            policy: Policy {
                permissive: !strict,
                rules: if strict { vec![allow] } else { Vec::new() },
            },
            ..Default::default()
        };
        let listener = Listener {
            address: loopback(self.ports.server),
            kind: ListenerKind::InboundPort { port: PORT },
        };
        let mut sidecar = self.sidecar(
            SERVER,
            listener,
            self.ports.server_admin,
            self.ports.server_metrics,
        );
        sidecar.mesh.strict_mtls = strict;
        Bootstrap {
            inbound: Some(inbound),
            ..sidecar
        }
    }

    fn sidecar(&self, name: &str, listener: Listener, admin: u16, metrics: u16) -> Bootstrap {
        Bootstrap {
            identity: spiffe(name),
            certificates: Some(CertificateFiles {
                certificate: self.path(&format!("{name}.crt")),
                key: self.path(&format!("{name}.key")),
                trust_bundle: self.path("ca.crt"),
            }),
            control: None,
            workers: self.workers,
            admin: loopback(admin),
            admin_socket: None,
            metrics: loopback(metrics),
            health: None,
            application: Ipv4Addr::LOCALHOST.into(),
            probes: Vec::new(),
            application_metrics: None,
            listeners: vec![listener],
            gateway_sockets: None,
            heir_socket: None,
            dns: None,
            drain_timeout_ms: 1000,
            mesh: MeshSettings {
                log_level: "warn".into(),
                ..MeshSettings::default()
            },
            services: Vec::new(),
            inbound: None,
            gateways: Vec::new(),
            egress: None,
        }
    }
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// The identity of one of the constants above.
pub(super) fn spiffe(name: &str) -> SpiffeId {
    TrustDomain::default()
        .service(name)
        .unwrap_or_else(|e| unreachable!("a constant: {e}"))
}
