//! Runs one Envoy as a sidecar: replaces `tulle-proxy`, with the same file.
//!
//! Envoy can neither enrol nor speak to the controller. The agent does so as `tulle-proxy` does
//! (same client, same identity cache, own key), keeps the resources, translates them and passes
//! them to its Envoy over a Unix socket. It reports untranslatable resources to the controller,
//! with the reason, and keeps the last good configuration. The agent ends when Envoy ends, and ends
//! Envoy on a signal.

mod child;
mod metrics;
mod model;
mod xds;

use child::Envoy;
use model::Model;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tulle_model::bootstrap::Bootstrap;
use tulle_net::socket;
use tulle_proxy::admin::{Admin, Engine};
use tulle_proxy::control::client::{self, ControlClient};
use tulle_proxy::control::file;
use tulle_proxy::control::publish::{Current, Publisher};
use tulle_proxy::report::Reporting;
use tulle_proxy::run as proxy;
use tulle_proxy::run::{Signals, StartError};
use tulle_proxy::telemetry::access_log::AccessLog;
use xds::Xds;

/// Interval between checks whether Envoy is ready.
const LOOK: Duration = Duration::from_millis(50);

/// Why an Envoy sidecar does not run.
#[derive(Debug)]
pub enum AgentError {
    /// Start failed, with an error of `tulle-proxy`.
    Start(StartError),
    /// The file has no `control` or no `adminSocket`.
    NotControlled,
    /// Envoy cannot be started.
    Envoy(PathBuf, std::io::Error),
    /// Envoy ended by itself.
    Ended(String),
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(error) => error.fmt(f),
            Self::NotControlled => f.write_str(
                "the file needs `control` and `adminSocket`; for an Envoy without a controller \
                 translate the file once",
            ),
            Self::Envoy(path, error) => write!(f, "cannot start {}: {error}", path.display()),
            Self::Ended(how) => write!(f, "Envoy ended with {how}; see its log above"),
        }
    }
}

impl std::error::Error for AgentError {}

impl From<StartError> for AgentError {
    fn from(error: StartError) -> Self {
        Self::Start(error)
    }
}

/// Runs until SIGTERM or SIGINT, then drains.
///
/// # Errors
/// It could not start, or Envoy ended.
pub fn run(config: &Path, program: &Path) -> Result<(), AgentError> {
    let bootstrap = file::read(config).map_err(StartError::Config)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(StartError::System)?;
    runtime.block_on(run_main(bootstrap, program))
}

async fn run_main(bootstrap: Bootstrap, program: &Path) -> Result<(), AgentError> {
    let (Some(control), Some(admin_socket)) = (&bootstrap.control, &bootstrap.admin_socket) else {
        return Err(AgentError::NotControlled);
    };
    for listener in &bootstrap.listeners {
        // Envoy would share the address with a process that uses it already.
        socket::check_free(listener.address)
            .map_err(|e| StartError::Listen(listener.address, e))?;
    }
    let directory = admin_socket.parent().unwrap_or(Path::new("."));
    let metrics_listener = proxy::bind(bootstrap.metrics, false).await?;
    let loopback_listener = proxy::bind(bootstrap.admin, false).await?;
    let socket_listener = proxy::bind_socket(admin_socket)?;
    let xds_socket = directory.join("xds.sock");
    let xds_listener = proxy::bind_socket(&xds_socket)?;

    let publisher = Publisher::new(bootstrap.identity.clone());
    let current = publisher.current();
    let xds = Xds::default();
    tokio::spawn(xds.clone().serve(xds_listener));
    tokio::spawn(xds.clone().watch(current.clone()));
    let model = Model::new(bootstrap.clone(), publisher, xds.clone());
    let (lookups, asked) = client::lookups();
    if model.is_transparent() {
        lookups.ask("catalog");
    }
    let client = ControlClient::new(&bootstrap, control.clone(), model);
    let (wants, wanted) = watch::channel(None);
    tokio::spawn(client.with_reports(wants).run(asked));

    let mut signals = Signals::new().map_err(StartError::System)?;
    let mut envoy = Envoy::start(program, directory, &bootstrap)
        .map_err(|e| AgentError::Envoy(program.to_owned(), e))?;
    let (missing, engine_missing) = watch::channel("Envoy has no configuration yet".to_owned());
    let (metrics, asked_metrics) = mpsc::channel(4);
    let admin = Admin {
        current: current.clone(),
        workers: std::sync::Arc::default(),
        log: AccessLog::start().map_err(StartError::System)?,
        spans: std::sync::Arc::default(),
        logs: std::sync::Arc::default(),
        controlled: true,
        gateways: std::sync::Arc::default(),
        engine: Some(Engine {
            missing: engine_missing,
            metrics,
        }),
        dns: None,
        probes: None,
        application: None,
    };
    tokio::spawn(admin.clone().serve_loopback(loopback_listener));
    tokio::spawn(admin.clone().serve_metrics(metrics_listener));
    tokio::spawn(Reporting::new(admin.clone(), &bootstrap, wanted).run());
    tokio::spawn(admin.serve_socket(socket_listener));
    let admin = envoy.admin();
    tokio::spawn(answer_metrics(
        admin.clone(),
        current.clone(),
        asked_metrics,
    ));
    tokio::spawn(async move {
        xds.accepted().await;
        while !admin.is_ready().await {
            tokio::time::sleep(LOOK).await;
        }
        missing.send_replace(String::new());
    });
    tracing::info!(identity = %bootstrap.identity, "started");

    tokio::select! {
        how = envoy.ended() => return Err(AgentError::Ended(how)),
        _ = signals.next() => {}
    }
    current.set_draining();
    let limit = Duration::from_millis(bootstrap.drain_timeout_ms.into());
    tracing::info!(?limit, "draining");
    tokio::select! {
        () = envoy.drain(limit) => {}
        _ = signals.next() => tracing::warn!("second signal: closing open connections now"),
    }
    envoy.end().await;
    drop(lookups);
    // The sockets may have been removed with their directory.
    let _ = std::fs::remove_file(admin_socket);
    let _ = std::fs::remove_file(xds_socket);
    Ok(())
}

async fn answer_metrics(
    admin: child::EnvoyAdmin,
    current: Current,
    mut asked: mpsc::Receiver<oneshot::Sender<String>>,
) {
    while let Some(reply) = asked.recv().await {
        let native = admin.metrics().await.unwrap_or_default();
        let text = metrics::istio(&native, &current.get()) + &native;
        // The requester may have gone.
        let _ = reply.send(text);
    }
}
