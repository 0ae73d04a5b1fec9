//! The console: a web page that shows the mesh as it is, on a loopback address of the controller.
//!
//! ```text
//!  browser ──> listen ──> route: guard ──> sessions ──> page, api, events, tap, actions
//!                                                             │
//!                                                   tulle_control::observe
//! ```
//!
//! It shows what an [`Observer`] knows and keeps nothing but sessions. It speaks no TLS, because nobody but this host
//! reaches it, and has no users of its own: whoever may command the mesh makes a one-time code.

mod actions;
mod api;
mod events;
mod guard;
mod listen;
mod page;
mod query;
mod response;
mod route;
mod sessions;
mod stream;
mod tap;

pub use sessions::ConsoleClock;

use events::Feed;
use guard::Guard;
use route::Router;
use sessions::{CODE_LIFETIME, Sessions};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use stream::Streams;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tulle_control::observe::{Observer, Refusal};

/// Longest wait for streams at the end.
const LAST_WORDS: Duration = Duration::from_millis(1500);

/// Says which user a bearer token is of, if that user may look at the mesh.
pub type ConsoleVisitors = Arc<
    dyn Fn(String) -> Pin<Box<dyn Future<Output = Result<String, Refusal>> + Send>> + Send + Sync,
>;

/// How a console runs.
#[derive(Clone)]
pub struct ConsoleConfig {
    /// A loopback address.
    pub listen: SocketAddr,
    /// Browsers may name another port: a port-forward leads here.
    pub forwarded: bool,
    /// Sessions may change the mesh, not only look at it.
    pub actions: bool,
    /// Reviews tokens, in a cluster.
    pub visitors: Option<ConsoleVisitors>,
    /// Time of codes and sessions.
    pub clock: ConsoleClock,
}

impl fmt::Debug for ConsoleConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsoleConfig")
            .field("listen", &self.listen)
            .field("forwarded", &self.forwarded)
            .field("actions", &self.actions)
            .finish_non_exhaustive()
    }
}

/// A console that runs. Dropping it ends it at once.
pub struct RunningConsole {
    address: SocketAddr,
    sessions: Sessions,
    down: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl fmt::Debug for RunningConsole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningConsole")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Makes codes that open sessions.
#[derive(Clone)]
pub struct ConsoleCodes {
    address: SocketAddr,
    sessions: Sessions,
}

impl fmt::Debug for ConsoleCodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsoleCodes")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl ConsoleCodes {
    /// Returns a URL that opens one session for this user, within [`ConsoleCodes::LIFETIME`].
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn url(&self, user: &str) -> Result<String, String> {
        let code = self.sessions.code(user);
        let code = code.map_err(|_| "the system has no random numbers".to_owned())?;
        Ok(format!("http://{}/#code={code}", self.address))
    }

    /// How long a URL may be used.
    pub const LIFETIME: Duration = CODE_LIFETIME;
}

impl RunningConsole {
    /// Starts a console on the present tokio runtime. When it returns, its port answers.
    ///
    /// # Errors
    /// The address is not a loopback address, or nobody can listen there.
    pub async fn start(config: ConsoleConfig, observer: Observer) -> io::Result<Self> {
        if !config.listen.ip().is_loopback() {
            let why = format!("{} is not a loopback address", config.listen);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let listener = TcpListener::bind(config.listen).await?;
        let address = listener.local_addr()?;
        let (down, watched) = watch::channel(false);
        let sessions = Sessions::new(config.clock);
        let feed = Feed::new(observer.clone());
        let (bodies, reviews) = Router::places();
        let router = Arc::new(Router {
            observer,
            guard: Guard {
                port: (!config.forwarded).then_some(address.port()),
            },
            sessions: sessions.clone(),
            feed: feed.clone(),
            streams: Streams::new(watched.clone()),
            actions: config.actions,
            visitors: config.visitors,
            bodies,
            reviews,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(feed.run());
        tasks.spawn(listen::serve(listener, router, watched));
        Ok(Self {
            address,
            sessions,
            down,
            tasks,
        })
    }

    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns what makes codes.
    pub fn codes(&self) -> ConsoleCodes {
        ConsoleCodes {
            address: self.address,
            sessions: self.sessions.clone(),
        }
    }

    /// Tells streams that it ends, and ends.
    pub async fn shutdown(mut self) {
        self.down.send_replace(true);
        self.tasks.shutdown().await;
        // Each connection has a receiver and drops it when it has ended.
        let _ = tokio::time::timeout(LAST_WORDS, self.down.closed()).await;
    }
}
