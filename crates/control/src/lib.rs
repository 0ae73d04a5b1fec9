//! The controller of a mesh: keeps its objects, is its certificate authority and tells each proxy
//! what it needs to know.
//!
//! ```text
//!  objects ──> state ──> store (durable)
//!                │
//!                ├─────> index ──> hub ──> serve/config ──> proxies
//!                └─────> ca, tokens ─────> serve/certificates
//! ```
//!
//! `tulle controller` runs it; this crate parses no arguments and prints nothing. It forwards no
//! traffic: when it is gone, proxies go on with what they have. [`host_services`] runs on hosts that joined.

pub mod ca;
pub mod cluster;
pub mod feed;
mod history;
pub mod host_services;
mod hub;
pub mod index;
pub mod jwks;
pub mod lookup;
pub mod memory_limit;
pub mod metrics;
mod objects;
pub mod observe;

mod reports;
mod scrape;
mod serve;
mod state;
pub mod store;
pub mod tokens;

pub use objects::{name_in_place, read as read_object, restricts_callers, target_in_place};
pub use serve::CertificatePace;
pub use state::{ConsoleDoor, HOST_AWAY};

use ca::{Authority, AuthorityError};
use serve::{LocalListener, Router, TlsListener};
use state::MeshState;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::{Embedded, Memory, Store, StoreError};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tulle_api::v1;

/// Name of the store in the state directory.
const STORE_FILE: &str = "store.redb";
/// How long a shutdown waits for requests in flight.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for an answer's head of those who may ask for more than a certificate.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Finds proxies of a cluster that went without a word. On hosts the kernel looks for them
/// ([`tulle_net::socket::KeepAlive`]), which costs a slow line half as much.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Limits of one connection.
#[derive(Clone, Copy)]
struct Limits {
    /// Requests at a time.
    requests: u32,
    /// Time limit of one request, from its head to the head of its answer.
    request_timeout: Duration,
    /// Bytes on their way to us that nobody has read yet, per request and per connection.
    window: u32,
    /// Time between pings of HTTP/2.
    keepalive: Option<Duration>,
}

/// The operator's.
const OPERATOR: Limits = Limits {
    requests: 128,
    request_timeout: REQUEST_TIMEOUT,
    window: 1024 * 1024,
    keepalive: Some(KEEPALIVE),
};
/// Limits of a proxy or host with a certificate. A proxy has one stream; a host asks for several
/// things.
const MEMBER: Limits = Limits {
    requests: 32,
    request_timeout: REQUEST_TIMEOUT,
    window: 256 * 1024,
    keepalive: Some(KEEPALIVE),
};
/// Limits of a peer without a certificate: it asks for one, in at most 32 KiB.
const STRANGER: Limits = Limits {
    requests: 4,
    request_timeout: serve::accept::STRANGER_TIMEOUT,
    window: 64 * 1024,
    keepalive: Some(KEEPALIVE),
};

/// Where objects, placements, join tokens and the certificate authority are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreKind {
    /// In memory: everything, the certificate authority too, is lost with the process.
    Memory,
    /// In a file of the state directory.
    #[default]
    Embedded,
}

/// How a controller runs.
#[derive(Debug, Clone)]
pub struct ControllerConfig {
    /// Holds the store. Made (0700) if it does not exist.
    pub state_dir: PathBuf,
    /// Address for proxies and hosts: gRPC over TLS.
    pub listen: SocketAddr,
    /// Unix socket for the operator, in a directory only its owner can enter (made if it does not
    /// exist).
    pub socket: PathBuf,
    /// Where everything is kept.
    pub store: StoreKind,
    /// Prometheus text at `/metrics`; on a host on loopback only.
    pub metrics: Option<SocketAddr>,
    /// How long a host may be without a session before nobody is sent to its workloads.
    pub host_away: Duration,
    /// Least time between two fetches of a set of keys; [`jwks::LEAST_REFRESH`] but in tests.
    pub least_key_refresh: Duration,
    /// Proxies are asked to report what they count, for [`observe::Observer`].
    pub observe: bool,
}

/// Why a controller does not start.
#[derive(Debug)]
pub enum StartError {
    /// The store.
    Store(StoreError),
    /// The certificate authority.
    Authority(AuthorityError),
    /// The state directory.
    StateDirectory {
        /// Path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A TCP address.
    Listen {
        /// Address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The operator's socket.
    Socket {
        /// Path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The metrics address is not a loopback address.
    MetricsAddress(SocketAddr),
    /// TLS cannot be set up.
    Tls(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(e) => e.fmt(f),
            Self::Authority(e) => e.fmt(f),
            Self::StateDirectory { path, source } => write!(
                f,
                "the state directory {} cannot be made: {source}",
                path.display()
            ),
            Self::Listen { address, source } => write!(
                f,
                "cannot listen on {address}: {source}. Choose another address, or stop what uses it"
            ),
            Self::Socket { path, source } => {
                write!(f, "cannot use the socket {}: {source}", path.display())
            }
            Self::MetricsAddress(address) => write!(
                f,
                "metrics on {address}: the controller shows them on a loopback address only"
            ),
            Self::Tls(why) => write!(f, "TLS cannot be set up: {why}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A controller.
#[derive(Debug)]
pub struct Controller;

/// A controller that runs. Dropping it stops it at once; [`RunningController::shutdown`] lets requests finish.
#[derive(Debug)]
pub struct RunningController {
    local_addr: SocketAddr,
    metrics_addr: Option<SocketAddr>,
    ca_fingerprint: String,
    shutdown: watch::Sender<bool>,
    servers: JoinSet<()>,
    helpers: JoinSet<()>,
    failure: Option<Failure>,
    feed: feed::Feed,
    observer: Option<observe::Observer>,
}

impl Controller {
    /// Starts a controller on the present tokio runtime. When it returns, all its sockets answer.
    ///
    /// # Errors
    /// Something that it needs is not available; nothing is left running.
    pub async fn start(config: ControllerConfig) -> Result<RunningController, StartError> {
        // Others on the host's network have no business with it; in a cluster it is a pod's.
        if let Some(address) = config.metrics.filter(|address| !address.ip().is_loopback()) {
            return Err(StartError::MetricsAddress(address));
        }
        let (state, failure) = load(&config)?;
        Self::run(config, state, failure).await
    }

    /// Starts a controller of a cluster. Nothing is kept in the state directory.
    ///
    /// # Errors
    /// Something that it needs is not available; nothing is left running.
    pub async fn start_in_cluster(
        config: ControllerConfig,
        cluster: cluster::Cluster,
    ) -> Result<RunningController, StartError> {
        let authority =
            Authority::from_roots(cluster.roots.clone()).map_err(StartError::Authority)?;
        let state = MeshState::of_cluster(authority, &cluster);
        Self::run(config, state, None).await
    }

    async fn run(
        config: ControllerConfig,
        state: MeshState,
        failure: Option<Failure>,
    ) -> Result<RunningController, StartError> {
        // The limits of connections count on it: where a system allows 1,024 at first, a flood would take them all.
        tulle_net::socket::raise_descriptor_limit();
        let metrics = match config.metrics {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let state = Arc::new(state);
        let tcp = listen(config.listen).await?;
        let unix = LocalListener::bind(&config.socket).await;
        let unix = unix.map_err(|source| StartError::Socket {
            path: config.socket.clone(),
            source,
        })?;
        let address = |listener: &TcpListener| {
            listener.local_addr().map_err(|source| StartError::Listen {
                address: config.listen,
                source,
            })
        };
        let local_addr = address(&tcp)?;
        let metrics_addr = metrics.as_ref().map(address).transpose()?;
        let tls = TlsListener::new(tcp, &state).map_err(StartError::Tls)?;

        if config.observe {
            state.observe();
        }
        let (shutdown, down) = watch::channel(false);
        let router = Router::new(&state, &down);
        let mut servers = JoinSet::new();
        let mut helpers = JoinSet::new();
        let mut server = |limits| {
            let (ready, connections) = mpsc::channel(16);
            servers.spawn(serve(router.clone(), limits, connections, down.clone()));
            ready
        };
        let in_cluster = state.accounts().is_some();
        let members = Limits {
            keepalive: MEMBER.keepalive.filter(|_| in_cluster),
            ..MEMBER
        };
        helpers.spawn(tls.run(server(members), server(STRANGER), down.clone()));
        helpers.spawn(unix.run(server(OPERATOR)));
        let hosts = state.clone();
        helpers.spawn(async move { hosts.watch_hosts(config.host_away).await });
        let following = state.clone();
        helpers.spawn(async move { following.follow_issuer().await });
        let keeping = state.clone();
        helpers.spawn(async move { keeping.keep_issuer_roots().await });
        let rotating = state.clone();
        helpers.spawn(async move { rotating.keep_rotating().await });
        let keys = jwks::follow(state.clone(), config.least_key_refresh, down.clone());
        servers.spawn(keys);
        let observer = config
            .observe
            .then(|| observe::Observer::new(state.clone()));
        if let Some(observer) = observer.clone() {
            helpers.spawn(observer.keep());
        }
        if let Some(listener) = metrics {
            helpers.spawn(scrape::serve(listener, state.clone()));
        }
        Ok(RunningController {
            local_addr,
            metrics_addr,
            ca_fingerprint: state.authority().fingerprint().to_owned(),
            shutdown,
            servers,
            helpers,
            failure,
            observer,
            feed: feed::Feed(state),
        })
    }
}

impl RunningController {
    /// Where proxies and hosts connect.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Where metrics are, if anywhere.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics_addr
    }

    /// Returns the feed for the state of a cluster.
    pub fn feed(&self) -> feed::Feed {
        self.feed.clone()
    }

    /// Returns who answers questions about the mesh, if the configuration wants it.
    pub fn observer(&self) -> Option<observe::Observer> {
        self.observer.clone()
    }

    /// Lets the operator open sessions of the console. The first call holds.
    pub fn offer_console(&self, door: ConsoleDoor) {
        let _ = self.feed.0.console.set(door);
    }

    /// SHA-256 of the root certificate in lower-case hex.
    pub fn ca_fingerprint(&self) -> &str {
        &self.ca_fingerprint
    }

    /// Waits until the store can no longer be written, and says why. Only starting again helps:
    /// until then every change is refused.
    pub async fn failed(&mut self) -> String {
        if let Some(failure) = &mut self.failure
            && let Ok(why) = failure.wait_for(Option::is_some).await
        {
            return why.clone().unwrap_or_default();
        }
        std::future::pending().await
    }

    /// Stops taking connections, lets requests finish (five seconds at most), ends streams with a
    /// reason and closes the store.
    pub async fn shutdown(mut self) {
        // The servers hold receivers, so this fails only when they ended already.
        let _ = self.shutdown.send(true);
        let drained = async { while self.servers.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            tracing::warn!("some connections did not end in time and are cut");
        }
        self.servers.shutdown().await;
        self.helpers.shutdown().await;
    }
}

type Failure = watch::Receiver<Option<String>>;

fn load(config: &ControllerConfig) -> Result<(MeshState, Option<Failure>), StartError> {
    let mut failure = None;
    let store: Arc<dyn Store> = match config.store {
        StoreKind::Memory => Arc::new(Memory::new()),
        StoreKind::Embedded => {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&config.state_dir)
                .map_err(|source| StartError::StateDirectory {
                    path: config.state_dir.clone(),
                    source,
                })?;
            let path = config.state_dir.join(STORE_FILE);
            let store = Embedded::open(&path).map_err(StartError::Store)?;
            failure = Some(store.failure());
            Arc::new(store)
        }
    };
    let authority = Authority::open(&*store).map_err(StartError::Authority)?;
    let state = MeshState::load(store, authority).map_err(StartError::Store)?;
    Ok((state, failure))
}

/// Judges objects as if they were applied to a mesh that has nothing yet.
///
/// # Errors
/// Why they would be refused.
pub fn judge(objects: &[v1::Object]) -> Result<Vec<v1::Finding>, String> {
    let state = MeshState::in_memory().map_err(|e| e.to_string())?;
    let asked = v1::ApplyRequest {
        objects: objects.to_vec(),
        dry_run: true,
        ..Default::default()
    };
    let judged = state.apply(&state::Actor::Operator, &asked);
    Ok(judged.map_err(|e| e.to_string())?.findings)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| StartError::Listen { address, source })
}

async fn serve(
    router: Router,
    limits: Limits,
    connections: mpsc::Receiver<io::Result<serve::accept::Connection>>,
    mut down: watch::Receiver<bool>,
) {
    let server = Server::builder()
        .timeout(limits.request_timeout)
        .max_concurrent_streams(limits.requests)
        .initial_stream_window_size(limits.window)
        .initial_connection_window_size(limits.window)
        .http2_keepalive_interval(limits.keepalive)
        .http2_keepalive_timeout(Some(KEEPALIVE));
    let shutdown = async move {
        // An error means that the controller was dropped: then it ends too.
        let _ = down.wait_for(|down| *down).await;
    };
    let connections = ReceiverStream::new(connections);
    let served = server.serve_with_incoming_shutdown(router, connections, shutdown);
    if let Err(error) = served.await {
        tracing::error!(%error, "a server of the controller ended");
    }
}
