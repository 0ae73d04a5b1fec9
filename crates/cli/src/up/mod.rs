//! `tulle up`: from manifests to a running mesh, here in the foreground or detached.

mod detach;
pub(crate) mod signals;
mod verify;
mod view;

use crate::apply::{judge_alone, outcome, warn};
use crate::args::{Global, Up};
use crate::client;
use crate::controller::log_level;
use crate::failure::{Failure, OrFail, Result};
use crate::findings;
use crate::manifests::{self, Manifests};
use crate::output::{self, line, progress};
use crate::paths::Paths;
use crate::proc::ProcessId;
use crate::supervise::context::Context;
use crate::supervise::fixed_ports::FixedPorts;
use crate::supervise::preflight::Host;
use crate::supervise::state::{Phase, RunState};
use crate::supervise::{Plan, Supervisor, janitor, mode_note, plan, ports, prepare_objects};
use signals::Signals;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::os::unix::fs::OpenOptionsExt;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, watch};
use tokio::task::LocalSet;
use tulle_model::manifest::MeshSpec;

/// Starts a mesh.
pub(crate) fn up(paths: &Paths, global: &Global, args: &Up) -> Result<()> {
    // Manifests are checked before anything is touched, so that a mistake in one costs nothing.
    let manifests = manifests::read(&args.files)?;
    if !args.detached {
        let mut found = manifests.findings_beside(&[]);
        findings::add(&mut found, judge_alone(&manifests)?);
        Host::starting(None).check(&manifests)?;
        warn(&found);
        if let Some(note) = mode_note(args) {
            anstream::eprintln!("note: {note}");
        }
    }
    if args.detach {
        return detach::detach(paths, global, args);
    }
    let _lock = Supervisor::make_room(paths)?;
    fresh_logs(paths)?;
    crate::run_to_end(supervise(paths, args, manifests))
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
        // The detached supervisor's, which is already writing it, and that of another which starts now.
        if detach::is_words(&entry.path(), paths) {
            continue;
        }
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
    let level = log_level()?;
    let made = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        // A log that cannot be written is no reason to write to the terminal, or to end.
        .log_internal_errors(false)
        .with_writer(std::sync::Mutex::new(file))
        .try_init();
    made.map_err(|e| Failure::new("cannot start logging").because(e))
}

async fn supervise(paths: &Paths, args: &Up, manifests: Manifests) -> Result<()> {
    log_to_file(paths)?;
    let plan = plan(paths, args)?;
    for object in &manifests.objects {
        ports::check(object, plan.mode, &[]).map_err(|f| f.about(&object.id()))?;
    }
    let local = LocalSet::new();
    local
        .run_until(async {
            let signals = Signals::listen()?;
            let context = context(paths, &plan, String::new(), client::lazy(&paths.socket()));
            let started = Supervisor::start(Rc::clone(&context), &plan, signals.first()).await?;
            let Some(supervisor) = started else {
                return interrupted(args);
            };
            let mut objects = context.objects.clone();
            let stored = tokio::select! {
                stored = prepare_objects(&mut objects, manifests.to_api(), args.keep) => stored.map(Some),
                () = signals.first() => Ok(None),
            };
            let supervisor = match stored {
                Ok(Some(results)) => {
                    if !args.detached {
                        let news = results.iter().filter(|r| r.outcome != "unchanged");
                        news.for_each(|r| line(&outcome(r)));
                    }
                    supervisor
                }
                Ok(None) => {
                    supervisor.give_up().await?;
                    return interrupted(args);
                }
                Err(failure) => {
                    supervisor.give_up().await?;
                    return Err(failure);
                }
            };
            let answered = supervisor.answered();
            let stop = stop(args.run_for, args.timeout, supervisor.phases(), signals.clone());
            if args.detached {
                tokio::task::spawn_local(leave_terminal(args.timeout, supervisor.phases()));
                return end_early(paths, supervisor.run(stop), &signals).await;
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
                stopping();
            };
            let ended = end_early(paths, supervisor.run(stop), &signals).await;
            view.abort();
            ended?;
            progress("the mesh is down; nothing is left of it");
            if args.run_for.is_some() && !answered.get() {
                return Err(Failure::new("not every service answered before the mesh stopped")
                    .fix("`tulle logs NAME` shows a workload's output; a longer --timeout gives services more time"));
            }
            Ok(())
        })
        .await
}

/// A detached supervisor's words are read by the command that started it.
fn interrupted(args: &Up) -> Result<()> {
    let text = "interrupted while it started; nothing is left of it";
    if args.detached {
        return Err(Failure::new(text));
    }
    progress(text);
    Ok(())
}

/// Says that the end has begun, over the `^C` that the terminal shows.
pub(crate) fn stopping() {
    let start = if output::is_progress_drawn() {
        "\r\x1b[K"
    } else {
        ""
    };
    progress(&format!(
        "{start}stopping: requests in flight may end; Ctrl-C again cuts them off"
    ));
}

/// Follows the mesh to its end; at a second signal the janitor ends it at once.
pub(crate) async fn end_early(
    paths: &Paths,
    run: impl Future<Output = Result<()>>,
    signals: &Signals,
) -> Result<()> {
    // Boxed, to be dropped here and not at the end of the scope.
    let mut run = Box::pin(run);
    tokio::select! {
        ended = &mut run => return ended,
        () = signals.second() => {}
    }
    let janitor = RunState::read(paths)?.and_then(|s| s.janitor.id);
    // The janitor sees the end of its pipe. From here on nothing on this thread runs that would
    // start again what the janitor kills.
    drop(run);
    let until = Instant::now() + janitor::TIME;
    while janitor.is_some_and(ProcessId::is_alive) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    janitor::clear(paths).map(drop)
}

/// A Ctrl-C while it starts still ends it; after that it must outlive the terminal.
async fn leave_terminal(patience: Duration, mut phases: watch::Receiver<Phase>) {
    let running = phases.wait_for(|p| *p == Phase::Running);
    let _ = tokio::time::timeout(patience, running).await;
    // The leader of a group (started by hand) has left already, as far as it can.
    let _ = rustix::process::setsid();
}

/// A name that no other start of a supervisor has had.
fn reporter() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_nanos();
    format!("{}.{now}", std::process::id())
}

/// Builds, from a plan, the context that all units share.
pub(crate) fn context(
    paths: &Paths,
    plan: &Plan,
    node: String,
    objects: client::Objects,
) -> Rc<Context> {
    Rc::new(Context {
        paths: paths.clone(),
        mode: plan.mode,
        data_plane: plan.data_plane,
        direct: RefCell::default(),
        network: plan.network.clone(),
        node,
        reporter: reporter(),
        reports: Cell::default(),
        controller: plan.controller,
        console: plan.console,
        console_actions: plan.console_actions,
        for_hosts: plan.for_hosts,
        reachable: plan.reachable,
        objects,
        proxy: plan.proxy.clone(),
        envoy: plan.envoy.clone(),
        changed: Rc::new(Notify::new()),
        mesh: RefCell::new(MeshSpec::default()),
        ca_fingerprint: RefCell::new(String::new()),
        warnings: RefCell::new(BTreeSet::new()),
        users: RefCell::default(),
        numbers: RefCell::default(),
        ports: ports::Pool::new(),
        inbound_ports: ports::Pool::within(plan.inbound_ports),
        fixed_ports: FixedPorts::read(paths.fixed_ports()),
    })
}

/// Done at the first signal to end, or when the time is over. The time counts from when every
/// service answered, or had its chance to.
pub(crate) async fn stop(
    run_for: Option<Duration>,
    patience: Duration,
    mut phases: watch::Receiver<Phase>,
    signals: Signals,
) {
    let over = async {
        let Some(run_for) = run_for else {
            return std::future::pending().await;
        };
        let running = phases.wait_for(|p| *p == Phase::Running);
        let _ = tokio::time::timeout(patience, running).await;
        tokio::time::sleep(run_for).await;
    };
    tokio::select! {
        () = over => tracing::info!("the time of --for is over; stopping"),
        () = signals.first() => {}
    }
}
