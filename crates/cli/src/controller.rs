//! `tulle controller`: the controller as a process of its own, so that it can end and come back
//! without the mesh noticing.

use crate::args::internal::ControllerArgs;
use crate::failure::{Failure, OrFail, Result};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;
use tracing_subscriber::filter::LevelFilter;
use tulle_api::v1::ConsoleSession;
use tulle_console::{ConsoleClock, ConsoleCodes, ConsoleConfig, RunningConsole};
use tulle_control::jwks::LEAST_REFRESH;
use tulle_control::{
    Controller, ControllerConfig, HOST_AWAY, RunningController, StoreKind, memory_limit,
};
use tulle_model::manifest::LOG_LEVELS;
use tulle_net::memory;

/// How much is logged: what `TULLE_LOG` says.
///
/// # Errors
/// There is no level of that name.
pub(crate) fn log_level() -> Result<LevelFilter> {
    let Some(level) = std::env::var_os("TULLE_LOG") else {
        return Ok(LevelFilter::INFO);
    };
    let known = level.to_str().filter(|level| LOG_LEVELS.contains(level));
    known
        .and_then(|level| LevelFilter::from_str(level).ok())
        .ok_or_else(|| {
            Failure::usage(format!(
                "TULLE_LOG={}: there is no such level",
                level.display()
            ))
            .fix(format!("it is one of {}", LOG_LEVELS.join(", ")))
        })
}

/// Lines on standard error.
pub(crate) fn start_logging() -> Result<()> {
    let level = log_level()?;
    tracing_subscriber::fmt()
        .with_max_level(level)
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
    runtime.spawn(release_memory());
    let run: Pin<Box<dyn Future<Output = Result<()>>>> = Box::pin(run);
    runtime.block_on(run)
}

/// Gives back what nothing needs any more, again and again. Starting and answering run much code once, and joining
/// hosts or a push of configuration allocate what is free soon after.
pub(crate) async fn release_memory() {
    let mut turns = tokio::time::interval(memory::LOOK);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut code = memory::CodePages::default();
    loop {
        turns.tick().await;
        if code.due() {
            memory::release_code_pages();
        }
        memory::trim();
    }
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
            observe: args.console.is_some(),
        })
        .await
        .or_fail(|| "the controller cannot start".to_owned())?;
        tracing::info!(address = %running.local_addr(), "the controller answers");
        let console = console(args, &running).await;
        let failed = tokio::select! {
            () = end => None,
            why = running.failed() => Some(why),
        };
        if let Some(console) = console {
            console.shutdown().await;
        }
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

/// Starts the console. The mesh goes on without one: whoever wants to open it is told why there is none.
async fn console(args: &ControllerArgs, running: &RunningController) -> Option<RunningConsole> {
    let (listen, observer) = (args.console?, running.observer()?);
    let config = ConsoleConfig {
        listen,
        forwarded: false,
        actions: args.console_actions,
        visitors: None,
        clock: ConsoleClock::default(),
    };
    match RunningConsole::start(config, observer).await {
        Ok(console) => {
            tracing::info!(address = %console.address(), "the console answers");
            let codes = console.codes();
            running.offer_console(Arc::new(move |user| session(&codes, user)));
            Some(console)
        }
        Err(error) => {
            let why = format!("the console cannot listen on {listen}: {error}");
            tracing::error!("{why}");
            running.offer_console(Arc::new(move |_| Err(why.clone())));
            None
        }
    }
}

fn session(codes: &ConsoleCodes, user: &str) -> std::result::Result<ConsoleSession, String> {
    let seconds = ConsoleCodes::LIFETIME.as_secs();
    Ok(ConsoleSession {
        url: codes.url(user)?,
        ttl_seconds: seconds.try_into().unwrap_or(u32::MAX),
    })
}
