//! The supervisor behind `tulle up`: keeps controller, workloads, sidecars and gateways as the
//! stored objects say, until it is told to stop.
//!
//! It holds no configuration of its own. The controller is a child like any other (it may be
//! killed and comes back); traffic never passes through here, so the mesh outlives a busy or
//! stuck supervisor, and its end is cleared up by the [`janitor`].

pub(crate) mod context;
mod controller;
mod direct;
mod direct_places;
pub(crate) mod fixed_ports;
pub(crate) mod gateway;
pub(crate) mod host_authority;
pub(crate) mod janitor;
pub(crate) mod last_known;
pub(crate) mod leftovers;
pub(crate) mod line;
mod listening;
mod lock;
pub(crate) mod logs;
mod objects;
mod pace;
pub(crate) mod ports;
pub(crate) mod preflight;
mod probe;
pub(crate) mod process;
mod process_group;
mod proxy;
pub(crate) mod state;
mod targets;
mod user;
pub(crate) mod workload;
mod workload_plan;

use crate::failure::{Failure, OrFail, Result};
use crate::paths::Paths;
use crate::proc::{MARK, ProcessId};
use context::Context;
use gateway::RunningGateway;
use objects::{Change, Wanted};
use process::SupervisedProcess;
use state::{Phase, ProcessPhase, RunState};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tulle_api::v1::Object;
use workload::RunningWorkload;

pub(crate) use controller::{
    Plan, envoy_programs, mode_note, plan, prepare_objects, replace, sort_for_removal,
    usable_agent, usable_proxy,
};
pub(crate) use lock::Lock;
pub(crate) use objects::{NODE_LABEL, RESTART_MARK, SIDECAR_MARK};

/// Between looks at the size of logs.
const REST_PERIOD: Duration = Duration::from_secs(10);
/// Pause before a janitor that could not be started is tried again.
const JANITOR_PAUSE: Duration = Duration::from_secs(1);
/// Changes of state that come together are written together.
const TOGETHER: Duration = Duration::from_millis(20);

/// The running mesh.
pub(crate) struct Supervisor {
    context: Rc<Context>,
    janitor: Janitor,
    /// None on a host that joined: its controller is elsewhere.
    controller: Option<SupervisedProcess>,
    wanted: Wanted,
    workloads: BTreeMap<String, RunningWorkload>,
    gateways: BTreeMap<String, RunningGateway>,
    /// The mark of each unit's last restart, by kind and name.
    restarts: BTreeMap<(&'static str, String), String>,
    /// Units that were told to end, by kind and name: a new one of that name waits for it.
    leaving: BTreeMap<(&'static str, String), JoinHandle<()>>,
    phase: watch::Sender<Phase>,
    synced: bool,
    /// The controller has not answered for a while.
    is_away: bool,
    answered: Rc<Cell<bool>>,
    targets: targets::Targets,
    /// Work to be done before the controller is listened to.
    first: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Supervisor {
    /// Refuses a second mesh in the same place and clears up after one that crashed. The lock is to
    /// be kept for as long as the mesh is up.
    pub(crate) fn make_room(paths: &Paths) -> Result<Lock> {
        paths.create()?;
        let lock = Lock::take_to_supervise(paths)?;
        let state = RunState::read(paths)
            .map_err(|f| f.fix("end what is left of that mesh with `tulle down`"))?;
        // One without a lock is of another version.
        if let Some(state) = state {
            if state.supervisor.is_alive() {
                return Err(lock::up_already(&state.supervisor.pid.to_string()));
            }
            // It is clearing up, and would take what is made now for what was left.
            let until = Instant::now() + janitor::TIME;
            while state.janitor.id.is_some_and(ProcessId::is_alive) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let removed = janitor::clear(paths)?;
        if !removed.is_nothing() {
            tracing::warn!("cleared up after a crash: {removed}");
        }
        paths.create()?;
        Ok(lock)
    }

    /// Starts janitor and, with a plan for one, the controller; waits until it answers. None: it
    /// was interrupted and has ended what it started.
    pub(crate) async fn start(
        context: Rc<Context>,
        plan: &Plan,
        interrupted: impl Future<Output = ()>,
    ) -> Result<Option<Self>> {
        let mut supervisor = Self {
            janitor: Janitor::start(&context.paths)?,
            controller: None,
            wanted: Wanted::new(&context.node),
            workloads: BTreeMap::new(),
            gateways: BTreeMap::new(),
            restarts: BTreeMap::new(),
            leaving: BTreeMap::new(),
            phase: watch::Sender::new(Phase::Starting),
            synced: false,
            is_away: false,
            answered: Rc::default(),
            targets: targets::Targets::default(),
            first: None,
            context,
        };
        supervisor.publish()?;
        match supervisor.start_rest(plan, interrupted).await {
            Ok(true) => Ok(Some(supervisor)),
            Ok(false) => supervisor.end().await.map(|()| None),
            Err(failure) => {
                supervisor.end().await?;
                Err(failure)
            }
        }
    }

    /// False when interrupted.
    async fn start_rest(
        &mut self,
        plan: &Plan,
        interrupted: impl Future<Output = ()>,
    ) -> Result<bool> {
        if let Some(network) = self.context.network.clone() {
            let made = tokio::task::spawn_blocking(move || {
                network
                    .ensure()
                    .or_fail(|| "cannot make the network of the mesh".to_owned())
            });
            made.await
                .unwrap_or_else(|e| Err(Failure::new("cannot make the network").because(e)))?;
            drop(plan.claim.take());
            self.context.write_hosts()?;
        }
        if let Some(listen) = plan.listen {
            self.controller = Some(controller::start(&self.context, listen));
            // Only here: half a network could not be told from one that is still being made.
            tokio::select! {
                ready = controller::wait(&self.context, self.controller.as_ref()) => ready?,
                () = interrupted => return Ok(false),
            }
        }
        self.publish().map(|()| true)
    }

    /// Whether every service has answered at some time; may be asked after the end.
    pub(crate) fn answered(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.answered)
    }

    /// Follows the mesh's life.
    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Begins without a controller, with what a joined host knew last. `first` ends when a controller was told what is new
    /// here.
    pub(crate) fn begin_alone(
        &mut self,
        known: Vec<Object>,
        first: impl Future<Output = ()> + 'static,
    ) {
        self.context.line.set_away(true);
        self.first = Some(Box::pin(first));
        self.change(Change::Known(known));
    }

    /// Ends what was started, without having run.
    pub(crate) async fn give_up(self) -> Result<()> {
        self.end().await
    }

    /// Keeps the mesh as the objects say until `stop` is done, then ends it in order.
    pub(crate) async fn run(mut self, stop: impl Future<Output = ()>) -> Result<()> {
        direct::warn(&self.context);
        let (tell, mut changes) = mpsc::channel(64);
        let watcher = objects::Watcher::new(&self.context, tell);
        let first = self.first.take();
        let watcher = tokio::task::spawn_local(async move {
            if let Some(first) = first {
                first.await;
            }
            watcher.run().await;
        });
        let releases = tokio::task::spawn_local(crate::controller::release_memory());
        let mut rest = interval(REST_PERIOD);
        rest.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut trimmer = logs::Trimmer::default();
        let changed = Rc::clone(&self.context.changed);
        let nudge = Rc::clone(&self.context);
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(change) = changes.recv() => self.change(change),
                () = changed.notified() => sleep(TOGETHER).await,
                () = nudge.nudge.notified() => self.nudge(),
                _ = rest.tick() => trimmer.trim_all(&self.context.paths.logs()),
                () = self.janitor.ended() => {
                    // The mesh runs without a janitor, too: one that cannot be started now, for want of
                    // memory say, is started later.
                    if let Err(failure) = self.janitor.restart(&self.context.paths) {
                        tracing::error!("{failure}; trying again soon");
                        sleep(JANITOR_PAUSE).await;
                    }
                }
            }
            if *self.phase.borrow() == Phase::Starting && self.synced && self.all_ready() {
                self.phase.send_replace(Phase::Running);
                self.answered.set(true);
                tracing::info!("every service answers");
            }
            if let Err(failure) = self.publish() {
                tracing::error!("{failure}");
            }
        }
        watcher.abort();
        releases.abort();
        self.end().await
    }

    fn change(&mut self, change: Change) {
        if matches!(change, Change::Away) {
            self.is_away = true;
            self.context.line.set_away(true);
            self.nudge();
            return;
        }
        let connected = matches!(change, Change::All(_));
        let known = matches!(change, Change::Known(_));
        self.wanted.change(change);
        if let Some(last) = self.context.last_known.as_ref().filter(|_| !known) {
            last.note_objects(self.wanted.all());
        }
        if let Some(mesh) = self.wanted.mesh() {
            *self.context.mesh.borrow_mut() = mesh;
        }
        self.context.direct.borrow_mut().workloads = self.wanted.workloads();
        self.reconcile_workloads();
        self.reconcile_gateways();
        if known {
            (self.synced, self.is_away) = (true, true);
        }
        if connected {
            self.synced = true;
            self.report_again();
            self.context.note_moved();
            self.context.line.set_away(false);
            if std::mem::take(&mut self.is_away) {
                self.nudge();
            }
        }
    }

    /// The line to the controller was gone, or has become another: sidecars of a host that joined look for it anew.
    fn nudge(&self) {
        if !self.context.node.is_empty() && self.context.envoy.is_none() {
            self.workloads.values().for_each(RunningWorkload::nudge);
        }
    }

    /// A controller that was away may have missed where workloads run.
    fn report_again(&self) {
        for placement in self
            .workloads
            .values()
            .filter_map(RunningWorkload::placement)
        {
            let context = Rc::clone(&self.context);
            // A report that the workload makes before the task runs is newer.
            let report = context.reports.numbered(placement);
            tokio::task::spawn_local(async move {
                if let Err(failure) = context.send_report(report).await {
                    tracing::warn!("{failure}");
                }
            });
        }
    }

    /// Whether somebody asked to restart it since it was started. A mark that is gone asks nothing.
    fn must_restart(
        &self,
        marks: &BTreeMap<String, String>,
        kind: &'static str,
        name: &str,
    ) -> bool {
        let last = self.restarts.get(&(kind, name.to_owned()));
        marks.get(name).is_some_and(|mark| last != Some(mark))
    }

    /// Remembers the mark of the restart that a unit is started after.
    fn note_restart(&mut self, marks: &BTreeMap<String, String>, kind: &'static str, name: &str) {
        if let Some(mark) = marks.get(name) {
            self.restarts.insert((kind, name.to_owned()), mark.clone());
        }
    }

    fn reconcile_workloads(&mut self) {
        let wanted = self.wanted.workloads();
        let marks = self.wanted.marks("Workload", RESTART_MARK);
        let sidecar_marks = self.wanted.marks("Workload", SIDECAR_MARK);
        let changed = |name: &str, running: &RunningWorkload| {
            wanted.get(name) != Some(&running.spec) || self.must_restart(&marks, "workload", name)
        };
        let old: Vec<String> = self
            .workloads
            .iter()
            .filter(|(name, running)| changed(name, running))
            .map(|(name, _)| name.clone())
            .collect();
        for name in old {
            if let Some(running) = self.workloads.remove(&name) {
                tracing::info!(workload = name, "stopping");
                self.leaving.insert(("workload", name), running.stop());
            }
        }
        for (name, spec) in wanted {
            if let Some(running) = self.workloads.get(&name) {
                if self.must_restart(&sidecar_marks, "sidecar", &name) {
                    running.succeed();
                    self.note_restart(&sidecar_marks, "sidecar", &name);
                }
                continue;
            }
            tracing::info!(workload = name, "starting");
            self.note_restart(&marks, "workload", &name);
            self.note_restart(&sidecar_marks, "sidecar", &name);
            let earlier = self.leaving.remove(&("workload", name.clone()));
            let running = RunningWorkload::start(&self.context, &name, spec, earlier);
            self.workloads.insert(name, running);
        }
    }

    fn reconcile_gateways(&mut self) {
        let wanted = self.wanted.gateways();
        let marks = self.wanted.marks("Gateway", RESTART_MARK);
        let ended = |name: &&String| !wanted.contains_key(*name);
        let old: Vec<String> = self.gateways.keys().filter(ended).cloned().collect();
        for name in old {
            if let Some(running) = self.gateways.remove(&name) {
                tracing::info!(gateway = name, "stopping");
                self.leaving.insert(("gateway", name), running.stop());
            }
        }
        for (name, spec) in wanted {
            if let Some(running) = self.gateways.get(&name) {
                running.listen_as(&spec);
                if self.must_restart(&marks, "gateway", &name) {
                    running.succeed();
                    self.note_restart(&marks, "gateway", &name);
                }
                continue;
            }
            tracing::info!(gateway = name, "starting");
            self.note_restart(&marks, "gateway", &name);
            let earlier = self.leaving.remove(&("gateway", name.clone()));
            let running = RunningGateway::start(&self.context, &name, &spec, earlier);
            self.gateways.insert(name, running);
        }
    }

    fn all_ready(&self) -> bool {
        self.state().all_ready()
    }

    /// Gateways first, so that no new request comes; workloads together; the controller last.
    async fn end(mut self) -> Result<()> {
        self.phase.send_replace(Phase::Stopping);
        if let Err(failure) = self.publish() {
            tracing::error!("{failure}");
        }
        tracing::info!("stopping");
        let gateways = std::mem::take(&mut self.gateways);
        let stopping: Vec<_> = gateways.into_values().map(RunningGateway::stop).collect();
        wait_all(stopping).await;
        let workloads = std::mem::take(&mut self.workloads);
        let mut stopping: Vec<_> = workloads.into_values().map(RunningWorkload::stop).collect();
        stopping.extend(std::mem::take(&mut self.leaving).into_values());
        wait_all(stopping).await;
        if let Some(controller) = self.controller.take() {
            controller.stop().await;
        }
        self.janitor.finish(&self.context.paths).await
    }

    fn state(&self) -> RunState {
        let context = &self.context;
        RunState {
            version: env!("CARGO_PKG_VERSION").into(),
            mesh: context.paths.name.clone(),
            supervisor: ProcessId::current(),
            janitor: state::Process {
                id: self.janitor.id,
                phase: ProcessPhase::Running,
                restarts: self.janitor.restarts,
                ..state::Process::default()
            },
            node: context.node.clone(),
            mode: context.mode,
            data_plane: context.data_plane,
            phase: *self.phase.borrow(),
            controller_address: context.controller,
            controller_away: !context.node.is_empty() && context.line.is_away(),
            console: context.console,
            address_for_hosts: context.for_hosts,
            ca_fingerprint: context.ca_fingerprint.borrow().clone(),
            controller: context::process_of(self.controller.as_ref()),
            workloads: self
                .workloads
                .values()
                .map(RunningWorkload::state)
                .collect(),
            gateways: self.gateways.values().map(RunningGateway::state).collect(),
            warnings: context.warnings(),
        }
    }

    fn publish(&self) -> Result<()> {
        let state = self.state();
        state.write(&self.context.paths)?;
        self.targets.write(&state, &self.context.paths)
    }
}

async fn wait_all(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        // A unit that panicked has ended too; the janitor removes what it left.
        let _ = task.await;
    }
}

/// The child that clears up.
struct Janitor {
    child: Child,
    id: Option<ProcessId>,
    restarts: u32,
    /// Closed by the kernel when this process ends, however that comes.
    alive: OwnedFd,
    wait: OwnedFd,
}

impl Janitor {
    fn start(paths: &Paths) -> Result<Self> {
        let (wait, alive) = std::io::pipe().or_fail(|| "cannot make a pipe".to_owned())?;
        let (wait, alive) = (OwnedFd::from(wait), OwnedFd::from(alive));
        let child = Self::spawn(paths, &wait)?;
        Ok(Self {
            id: child
                .id()
                .and_then(|pid| ProcessId::from_pid(pid.cast_signed())),
            child,
            restarts: 0,
            alive,
            wait,
        })
    }

    fn spawn(paths: &Paths, wait: &OwnedFd) -> Result<Child> {
        let what = || "cannot start the janitor".to_owned();
        Command::new("/proc/self/exe")
            .arg0("tulle")
            .arg("janitor")
            .args([
                paths.name.as_ref(),
                paths.state.as_os_str(),
                paths.run.as_os_str(),
            ])
            .env_remove(MARK)
            .current_dir("/")
            .stdin(wait.try_clone().or_fail(what)?)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .process_group(0) // out of reach of a Ctrl-C at the terminal
            .spawn()
            .or_fail(what)
    }

    /// Waits for an end that must not come while the mesh is up.
    async fn ended(&mut self) {
        let _ = self.child.wait().await;
    }

    fn restart(&mut self, paths: &Paths) -> Result<()> {
        self.child = Self::spawn(paths, &self.wait)?;
        self.id = self
            .child
            .id()
            .and_then(|pid| ProcessId::from_pid(pid.cast_signed()));
        self.restarts = self.restarts.saturating_add(1);
        Ok(())
    }

    /// Lets it clear up, and does so here if it cannot.
    async fn finish(mut self, paths: &Paths) -> Result<()> {
        drop(self.alive);
        match timeout(janitor::TIME, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            _ => janitor::clear(paths).map(drop),
        }
    }
}
