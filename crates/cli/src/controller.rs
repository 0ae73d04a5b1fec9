//! `tulle controller`: the controller as a process of its own, so that it can end and come back
//! without the mesh noticing.

use crate::args::ControllerArgs;
use crate::failure::{Failure, OrFail, Result};
use std::pin::Pin;
use tokio::signal::unix::{SignalKind, signal};
use tulle_control::jwks::LEAST_REFRESH;
use tulle_control::{Controller, ControllerConfig, HOST_AWAY, StoreKind, memory_limit};

/// Lines on standard error.
pub(crate) fn start_logging() -> Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TULLE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        // It would say so on standard error, which is the log: on a full disk that is a panic.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .try_init()
        .map_err(|e| Failure::new("cannot start logging").because(e))
}

/// Runs something on as many threads as a controller takes.
pub(crate) fn block_on(run: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(4)
        .enable_all()
        .build()
        .or_fail(|| "cannot start the runtime".to_owned())?;
    let run: Pin<Box<dyn Future<Output = Result<()>>>> = Box::pin(run);
    runtime.block_on(run)
}

/// Returns a future that completes at SIGTERM or SIGINT.
pub(crate) fn told_to_end() -> Result<impl Future<Output = ()>> {
    let signals = || "cannot wait for signals".to_owned();
    let mut terminate = signal(SignalKind::terminate()).or_fail(signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).or_fail(signals)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Runs until it is told to end.
pub(crate) fn main(args: &ControllerArgs) -> Result<()> {
    start_logging()?;
    block_on(async {
        let end = told_to_end()?;
        memory_limit::start();
        let mut running = Controller::start(ControllerConfig {
            state_dir: args.dir.clone(),
            listen: args.listen,
            socket: args.socket.clone(),
            store: StoreKind::Embedded,
            metrics: None,
            host_away: HOST_AWAY,
            least_key_refresh: LEAST_REFRESH,
        })
        .await
        .or_fail(|| "the controller cannot start".to_owned())?;
        tracing::info!(address = %running.local_addr(), "the controller answers");
        let failed = tokio::select! {
            () = end => None,
            why = running.failed() => Some(why),
        };
        // Whoever asked for the write that failed gets the answer.
        running.shutdown().await;
        match failed {
            None => Ok(()),
            Some(why) => Err(Failure::new("the controller ended and must be restarted")
                .because(why)
                .fix("the supervisor of `tulle up` restarts it; restart it yourself if you started it")),
        }
    })
}
