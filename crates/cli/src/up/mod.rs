//! `tulle up`: from manifests to a running mesh, here in the foreground or detached.

mod detach;
pub(crate) mod log;
pub(crate) mod notify;
pub(crate) mod signals;
mod verify;
mod view;

use crate::apply::{judge_alone, outcome, warn};
use crate::args::Global;
use crate::args::up::Up;
use crate::client;
use crate::client::Objects;
use crate::failure::{Failure, OrFail, Result};
use crate::findings;
use crate::manifests::{self, Manifests};
use crate::output::{self, line, progress};
use crate::paths::Paths;
use crate::proc::ProcessId;
use crate::service_record::{ServiceRecord, bring};
use crate::supervise::context::{Context, Reports};
use crate::supervise::fixed_ports::FixedPorts;
use crate::supervise::host_authority::HostCertifier;
use crate::supervise::last_known::LastKnown;
use crate::supervise::line::Line;
use crate::supervise::preflight::Host;
use crate::supervise::state::{Mode, Phase, RunState};
use crate::supervise::{Plan, Supervisor, janitor, mode_note, plan, ports, prepare_objects};
use log::Also;
use signals::Signals;
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, watch};
use tokio::task::LocalSet;
use tulle_api::v1::Applied;
use tulle_control::host_services::HostServices;
use tulle_model::manifest::MeshSpec;

/// Starts a mesh.
pub(crate) fn up(paths: &Paths, global: &Global, args: &Up) -> Result<()> {
    if args.service {
        let given = Given::for_service(paths, args)?;
        let _lock = Supervisor::make_room(paths)?;
        fresh_logs(paths)?;
        return crate::run_to_end(supervise(paths, args, given));
    }
    // Manifests are checked before anything is touched, so that a mistake in one costs nothing.
    let manifests = manifests::read(&args.files)?;
    if !args.detached {
        let mut found = manifests.findings_beside(&[]);
        findings::add(&mut found, judge_alone(&manifests)?);
        Host::starting(paths, None).check(&manifests)?;
        warn(&found);
        if let Some(note) = mode_note(&args.options) {
            anstream::eprintln!("note: {note}");
        }
    }
    if args.detach {
        return detach::detach(paths, global, args);
    }
    let _lock = Supervisor::make_room(paths)?;
    fresh_logs(paths)?;
    crate::run_to_end(supervise(paths, args, Given::whole(manifests)))
}

/// The objects that a mesh starts with.
struct Given {
    manifests: Manifests,
    /// Why a service starts what was stored instead of its manifests.
    refused: Option<Failure>,
    /// A service of these manifests was here before, so there is something stored to start.
    has_stored: bool,
}

impl Given {
    fn whole(manifests: Manifests) -> Self {
        Self {
            manifests,
            refused: None,
            has_stored: false,
        }
    }

    /// Reads a service's manifests. They count only if they have changed since they were applied, and are
    /// right: what was acknowledged is stored, and comes back whatever has become of the files.
    fn for_service(paths: &Paths, args: &Up) -> Result<Self> {
        let before = ServiceRecord::read(paths);
        // Where no file brought anything, an empty one takes nothing away.
        let read = match before {
            Some(_) => manifests::read_full,
            None => manifests::read,
        };
        let new = read(&args.files).and_then(|manifests| {
            if before.as_ref().is_some_and(|b| b.is_of(&manifests)) {
                return Ok(Manifests::default());
            }
            judge_alone(&manifests)?;
            Host::starting(paths, None).check(&manifests)?;
            Ok(manifests)
        });
        let mut given = Self {
            has_stored: before.is_some(),
            ..Self::whole(Manifests::default())
        };
        given.take(new)?;
        Ok(given)
    }

    /// Takes these manifests, or what is stored if they are refused.
    fn take(&mut self, new: Result<Manifests>) -> Result<()> {
        self.manifests = match new {
            Err(failure) if self.has_stored => {
                self.refused = Some(failure);
                Manifests::default()
            }
            new => new?,
        };
        Ok(())
    }

    fn check_ports(&mut self, mode: Mode) -> Result<()> {
        let mut objects = self.manifests.objects.iter();
        let checked = objects.try_for_each(|object| {
            ports::check(object, mode, &[]).map_err(|f| f.about(&object.id()))
        });
        match checked {
            Ok(()) => Ok(()),
            Err(failure) => self.take(Err(failure)),
        }
    }

    /// Stores them.
    async fn prepare(
        mut self,
        objects: &mut Objects,
        paths: &Paths,
        args: &Up,
    ) -> Result<Vec<Applied>> {
        if !args.service {
            if !args.files.is_empty() {
                // A service that comes later begins with its own.
                ServiceRecord::forget(paths)?;
            }
            return prepare_objects(objects, self.manifests.to_api(), args.keep).await;
        }
        let mut results = Vec::new();
        if !self.manifests.objects.is_empty() {
            match bring(objects, paths, &args.files, &self.manifests).await {
                Ok(done) => results = done,
                Err(failure) => self.take(Err(failure))?,
            }
        }
        if let Err(failure) = ServiceRecord::note_files(paths, &args.files) {
            let why = output::one_line(&failure.to_string());
            tracing::warn!("a reload would read the files of the start before: {why}");
        }
        for result in results.iter().filter(|r| r.outcome != "unchanged") {
            tracing::info!("{}", outcome(result));
        }
        if let Some(refused) = self.refused {
            let refused = output::one_line(&refused.to_string());
            tracing::error!("the mesh starts with what was stored before: {refused}");
        }
        Ok(Vec::new())
    }
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

async fn supervise(paths: &Paths, args: &Up, mut given: Given) -> Result<()> {
    log::start(paths, Also::named(args.service, args.log_file.as_deref())?)?;
    if args.service
        && let Some(note) = mode_note(&args.options)
    {
        tracing::warn!("{note}");
    }
    let plan = plan(paths, &args.options)?;
    given.check_ports(plan.mode)?;
    let local = LocalSet::new();
    local
        .run_until(async {
            let signals = Signals::listen()?;
            let context = context(
                paths,
                &plan,
                String::new(),
                client::lazy(&paths.socket()),
                Arc::default(),
                None,
            );
            let started = Supervisor::start(Rc::clone(&context), &plan, signals.first()).await?;
            let Some(supervisor) = started else {
                return interrupted(args);
            };
            let mut objects = context.objects.clone();
            let stored = tokio::select! {
                stored = given.prepare(&mut objects, paths, args) => stored.map(Some),
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
            } else {
                let follow = notify::follow(paths.clone(), args.timeout, supervisor.phases());
                tokio::task::spawn_local(follow);
            }
            if args.detached || args.service {
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
    output::progress_over("stopping: requests in flight may end; Ctrl-C again cuts them off");
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

/// The parts of a context that only a host has that joined its mesh.
pub(crate) struct OfHost {
    /// Its authority over its own workloads.
    pub(crate) certifier: Rc<HostCertifier>,
    /// The knowledge that it had last.
    pub(crate) last_known: Rc<LastKnown>,
    /// Services for its proxies.
    pub(crate) services: Arc<HostServices>,
}

/// Builds, from a plan, the context that all units share.
pub(crate) fn context(
    paths: &Paths,
    plan: &Plan,
    node: String,
    objects: client::Objects,
    line: Arc<Line>,
    of_host: Option<OfHost>,
) -> Rc<Context> {
    let of_host = of_host.map(|o| (o.services, (o.certifier, o.last_known)));
    let (host_services, of_host) = of_host.unzip();
    let (certifier, last_known) = of_host.unzip();
    Rc::new(Context {
        paths: paths.clone(),
        mode: plan.mode,
        data_plane: plan.data_plane,
        direct: RefCell::default(),
        network: plan.network.clone(),
        node,
        reports: Reports::new(reporter()),
        controller: plan.controller,
        console: plan.console,
        console_actions: plan.console_actions,
        for_hosts: plan.for_hosts,
        reachable: watch::Sender::new(plan.reachable),
        objects,
        line,
        nudge: Notify::new(),
        proxy: plan.proxy.clone(),
        envoy: plan.envoy.clone(),
        changed: Rc::new(Notify::new()),
        mesh: RefCell::new(MeshSpec::default()),
        certifier,
        last_known,
        host_services,
        ca_fingerprint: RefCell::new(String::new()),
        warnings: RefCell::default(),
        moved: RefCell::default(),
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
