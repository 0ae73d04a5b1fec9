//! `tulle up`: from manifests to a running mesh, here in the foreground or detached.

mod detach;
mod verify;
mod view;

use crate::apply::{outcome, warn};
use crate::args::{Global, Up};
use crate::client;
use crate::failure::{Failure, OrFail, Result};
use crate::manifests::{self, Manifests};
use crate::output::line;
use crate::paths::Paths;
use crate::supervise::context::Context;
use crate::supervise::state::Phase;
use crate::supervise::{Plan, Supervisor, plan, prepare_objects};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::os::unix::fs::OpenOptionsExt;
use std::rc::Rc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::LocalSet;
use tulle_model::manifest::MeshSpec;

/// Starts a mesh.
pub(crate) fn up(paths: &Paths, global: &Global, args: &Up) -> Result<()> {
    // Before anything is touched: a mistake in a manifest must cost nothing.
    let manifests = manifests::read(&args.files)?;
    if args.detached {
        return crate::runtime()?.block_on(supervise(paths, args, manifests));
    }
    warn(&manifests.warnings_beside(&[]));
    Supervisor::make_room(paths)?;
    fresh_logs(paths)?;
    if args.detach {
        return detach::detach(paths, global, args);
    }
    crate::runtime()?.block_on(supervise(paths, args, manifests))
}

/// Progress and status of a mesh without gateways of its own to verify.
pub(crate) async fn view(paths: Paths, phases: watch::Receiver<Phase>) {
    view::run(paths, Duration::from_secs(120), false, phases).await;
}

/// Logs tell of this mesh, not of the one before.
pub(crate) fn fresh_logs(paths: &Paths) -> Result<()> {
    let directory = paths.logs();
    let what = || format!("cannot clear {}", directory.display());
    for entry in std::fs::read_dir(&directory).or_fail(what)? {
        let entry = entry.or_fail(what)?;
        std::fs::remove_file(entry.path()).or_fail(what)?;
    }
    Ok(())
}

/// The supervisor's own log is a file: the screen shows the mesh.
pub(crate) fn log_to_file(paths: &Paths) -> Result<()> {
    let path = paths.log("supervisor");
    let file: File = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&path)
        .or_fail(|| format!("cannot write {}", path.display()))?;
    let filter = tracing_subscriber::EnvFilter::try_from_env("TULLE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let made = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_target(false)
        .with_writer(std::sync::Mutex::new(file))
        .try_init();
    made.map_err(|e| Failure::new("cannot start logging").because(e))
}

async fn supervise(paths: &Paths, args: &Up, manifests: Manifests) -> Result<()> {
    log_to_file(paths)?;
    let plan = plan(paths, args)?;
    let local = LocalSet::new();
    local
        .run_until(async {
            let context = context(paths, &plan, String::new(), client::lazy(&paths.socket()));
            for note in &plan.notes {
                context.warn(note.clone());
                if !args.detached {
                    anstream::eprintln!("note: {note}");
                }
            }
            let supervisor = Supervisor::start(Rc::clone(&context), &plan).await?;
            let mut objects = context.objects.clone();
            let stored = prepare_objects(&mut objects, manifests.to_api(), args.keep).await;
            let supervisor = match stored {
                Ok(results) => {
                    if !args.detached {
                        let news = results.iter().filter(|r| r.outcome != "unchanged");
                        news.for_each(|r| line(&outcome(r)));
                    }
                    supervisor
                }
                Err(failure) => {
                    supervisor.give_up().await?;
                    return Err(failure);
                }
            };
            let stop = stop(args.run_for, args.timeout, supervisor.phases())?;
            if args.detached {
                tokio::task::spawn_local(leave_terminal(args.timeout, supervisor.phases()));
                return supervisor.run(stop).await;
            }
            let view = view::run(
                paths.clone(),
                args.timeout,
                args.verify,
                supervisor.phases(),
            );
            let view = tokio::task::spawn_local(view);
            let stop = async {
                stop.await;
                line("stopping: requests in flight may end");
            };
            let ended = supervisor.run(stop).await;
            view.abort();
            ended?;
            line("the mesh is down; nothing is left of it");
            Ok(())
        })
        .await
}

/// A Ctrl-C while it starts still ends it; after that it must outlive the terminal.
async fn leave_terminal(patience: Duration, mut phases: watch::Receiver<Phase>) {
    let running = phases.wait_for(|p| *p == Phase::Running);
    let _ = tokio::time::timeout(patience, running).await;
    // The leader of a group (started by hand) has left already, as far as it can.
    let _ = rustix::process::setsid();
}

/// What all units share, for a plan.
pub(crate) fn context(
    paths: &Paths,
    plan: &Plan,
    node: String,
    objects: client::Objects,
) -> Rc<Context> {
    Rc::new(Context {
        paths: paths.clone(),
        mode: plan.mode,
        network: plan.network.clone(),
        node,
        controller: plan.controller,
        for_hosts: plan.for_hosts,
        reachable: plan.reachable,
        objects,
        proxy: plan.proxy.clone(),
        changed: Rc::new(Notify::new()),
        mesh: RefCell::new(MeshSpec::default()),
        ca_fingerprint: RefCell::new(String::new()),
        warnings: RefCell::new(BTreeSet::new()),
        numbers: RefCell::default(),
    })
}

/// Done at the first signal to end, or when the time is over. The time counts from when every
/// service answered, or had its chance to.
pub(crate) fn stop(
    run_for: Option<Duration>,
    patience: Duration,
    mut phases: watch::Receiver<Phase>,
) -> Result<impl Future<Output = ()>> {
    let signals = || "cannot wait for signals".to_owned();
    let mut interrupt = signal(SignalKind::interrupt()).or_fail(signals)?;
    let mut terminate = signal(SignalKind::terminate()).or_fail(signals)?;
    let mut hangup = signal(SignalKind::hangup()).or_fail(signals)?;
    Ok(async move {
        let over = async {
            let Some(run_for) = run_for else {
                return std::future::pending().await;
            };
            let running = phases.wait_for(|p| *p == Phase::Running);
            let _ = tokio::time::timeout(patience, running).await;
            tokio::time::sleep(run_for).await;
        };
        tokio::select! {
            () = over => tracing::info!("the time is over"),
            _ = interrupt.recv() => tracing::info!("interrupted"),
            _ = terminate.recv() => tracing::info!("told to end"),
            _ = hangup.recv() => tracing::info!("the terminal is gone"),
        }
    })
}
