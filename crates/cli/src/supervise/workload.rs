//! One workload: its namespace, its sidecar, its process, in that order; and back.
//!
//! The application is started when its sidecar is ready, so its first connection finds the mesh.

mod command;
mod placement;
mod readiness;

use super::context::{Context, gone, process_of};
use super::process::{Make, SupervisedProcess};
use super::proxy::{Description, RunningProxy};
use super::workload_plan::{Planner, WorkloadPlan};
use super::{state, user};
use crate::failure::{OrFail, Result};
use command::Starter;
use rustix::process::Signal;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tulle_api::v1::Placement;
use tulle_model::manifest::WorkloadSpec;

/// How long an application may take to end after SIGTERM.
const APP_GRACE: Duration = Duration::from_secs(10);
/// Between looks at something that is not ready yet.
const SOON: Duration = Duration::from_millis(100);
/// Time between the report that it is going and its end, so that callers hear of it.
const FAREWELL: Duration = Duration::from_millis(100);
/// How often a sidecar may end before its ports are chosen anew; at first, and at most.
const IMPATIENT: u32 = 3;
const PATIENT: u32 = 24;
/// Pause before something that failed to be set up is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// A workload that is kept running.
pub(crate) struct RunningWorkload {
    /// The spec that it was started with.
    pub(crate) spec: WorkloadSpec,
    state: Rc<RefCell<state::Workload>>,
    placement: Rc<RefCell<Option<Placement>>>,
    succeed: Rc<Notify>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl RunningWorkload {
    /// Starts it, after an earlier one of the same name has ended.
    pub(crate) fn start(
        context: &Rc<Context>,
        name: &str,
        spec: WorkloadSpec,
        earlier: Option<JoinHandle<()>>,
    ) -> Self {
        let service = spec.service.clone().unwrap_or_else(|| name.to_owned());
        let state = Rc::new(RefCell::new(state::Workload {
            name: name.to_owned(),
            service: service.clone(),
            sidecar: context.data_plane.has_sidecars().then(Default::default),
            message: "waiting to start".into(),
            ..state::Workload::default()
        }));
        let placement = Rc::new(RefCell::new(None));
        let (stop, stopped) = watch::channel(false);
        let succeed = Rc::new(Notify::new());
        let unit = Unit {
            context: Rc::clone(context),
            name: name.to_owned(),
            service,
            spec: spec.clone(),
            state: Rc::clone(&state),
            placement: Rc::clone(&placement),
            app_changed: Rc::default(),
            succeed: Rc::clone(&succeed),
        };
        let task = tokio::task::spawn_local(async move {
            if let Some(earlier) = earlier {
                let _ = earlier.await;
            }
            unit.run(stopped).await;
        });
        Self {
            spec,
            state,
            placement,
            succeed,
            stop,
            task,
        }
    }

    /// Has a new process of its sidecar take over, with the connections that wait to be accepted, while its application goes on. The
    /// old one ends when the new one is ready, and no sooner.
    pub(crate) fn succeed(&self) {
        self.succeed.notify_one();
    }

    /// Its present state.
    pub(crate) fn state(&self) -> state::Workload {
        self.state.borrow().clone()
    }

    /// Where it runs, once that is decided: for a controller that must be told again.
    pub(crate) fn placement(&self) -> Option<Placement> {
        self.placement.borrow().clone()
    }

    /// Has its sidecar connect to the controller anew. One that is not ready yet is about to.
    pub(crate) fn nudge(&self) {
        let state = self.state.borrow();
        let Some(sidecar) = &state.sidecar else {
            return;
        };
        let ready = sidecar.process.id.filter(|_| sidecar.ready);
        // Until the present one has taken over, the one before serves; then it finishes what it began.
        for id in ready.into_iter().chain(sidecar.process.earlier()) {
            id.signal(Signal::USR1);
        }
    }

    /// Asks it to end; the task ends when it has.
    pub(crate) fn stop(self) -> JoinHandle<()> {
        let _ = self.stop.send(true);
        self.task
    }
}

/// Finds its place. It is a task of its own, which goes on when the workload is deleted meanwhile: otherwise nobody would
/// know of the namespace that it makes.
type Settling = JoinHandle<Result<WorkloadPlan>>;

struct Unit {
    context: Rc<Context>,
    name: String,
    service: String,
    spec: WorkloadSpec,
    state: Rc<RefCell<state::Workload>>,
    placement: Rc<RefCell<Option<Placement>>>,
    /// Its process has started or ended.
    app_changed: Rc<Notify>,
    /// Another process of its sidecar is to take over.
    succeed: Rc<Notify>,
}

impl Unit {
    async fn run(self, mut stopped: watch::Receiver<bool>) {
        let mut settling = None;
        let mut leaving = None;
        let mut plan = None;
        let mut sidecar = None;
        let mut app = None;
        tokio::select! {
            () = self.live(&mut settling, &mut leaving, &mut plan, &mut sidecar, &mut app) => {}
            _ = stopped.wait_for(|s| *s) => {}
        }
        self.update(|s| {
            s.ready = false;
            s.message = "stopping".into();
        });
        // Unreachable first, so that callers go elsewhere while requests in flight end. The sidecar knows its ports until it
        // has ended: a caller that has not heard yet is served.
        let placement = self.placement.borrow_mut().take();
        if let Some(mut placement) = placement {
            placement.not_ready = true;
            self.tell(placement).await;
            // The controller refuses the report of one whose object was deleted, and has told its callers just now.
            if app.is_some() {
                sleep(FAREWELL).await;
            }
        }
        if let Some(app) = app {
            app.stop().await;
        }
        if let Some(sidecar) = sidecar {
            sidecar.stop().await;
        }
        self.tell(gone(&self.name, &self.context.node)).await;
        // A place that was being given up is gone before another unit of this name looks for one.
        if let Some(leaving) = leaving {
            let _ = leaving.await;
        }
        // A namespace that was being made is removed once it is there.
        if let Some(settling) = settling
            && let Ok(Ok(made)) = settling.await
        {
            plan = Some(made);
        }
        if let Some(plan) = plan {
            self.planner().leave(plan).await;
        }
        user::give_back(&self.context, &self.name);
    }

    /// Everything until it is told to stop. What was started is left in the arguments.
    async fn live(
        &self,
        settling: &mut Option<Settling>,
        leaving: &mut Option<JoinHandle<()>>,
        plan: &mut Option<WorkloadPlan>,
        sidecar: &mut Option<RunningProxy>,
        app: &mut Option<SupervisedProcess>,
    ) {
        let mut patience = IMPATIENT;
        loop {
            let why = match self.set_up(settling, plan, sidecar).await {
                Ok(()) if self.sidecar_is_ready(plan, sidecar, patience).await => break,
                // Its ports may have been taken by somebody else: other ones are tried.
                Ok(()) => "its sidecar does not get ready".to_owned(),
                Err(failure) => failure.to_string(),
            };
            tracing::warn!(workload = self.name, "{why}");
            patience = (patience * 2).min(PATIENT);
            self.update(|s| s.message = why);
            if let Some(sidecar) = sidecar.take() {
                sidecar.stop().await;
            }
            if let Some(plan) = plan.take() {
                // A task of its own, as settling is: nobody else would give the number back, or wait for the namespace's end.
                let planner = self.planner();
                let task = tokio::task::spawn_local(async move { planner.leave(plan).await });
                let _ = leaving.insert(task).await;
                *leaving = None;
            }
            sleep(RETRY).await;
        }
        let Some(plan) = plan.as_ref() else { return };
        if !self.spec.command.is_empty() {
            *app = Some(self.start_app(plan));
        }
        self.watch(plan, sidecar.as_ref(), app.as_ref()).await;
    }

    /// Waits for it if there is to be one; false if it ended too often on the host, where ports are
    /// shared.
    async fn sidecar_is_ready(
        &self,
        plan: &Option<WorkloadPlan>,
        sidecar: &Option<RunningProxy>,
        patience: u32,
    ) -> bool {
        let (Some(plan), Some(sidecar)) = (plan, sidecar) else {
            return !self.context.data_plane.has_sidecars();
        };
        while let Err(why) = sidecar.ready().await {
            let state = sidecar.state(false);
            let ended = state.process.restarts;
            self.show(Some(state), None, Err(why), String::new());
            if plan.namespace.is_none() && ended >= patience {
                return false;
            }
            sleep(SOON).await;
        }
        true
    }

    async fn set_up(
        &self,
        settling: &mut Option<Settling>,
        plan: &mut Option<WorkloadPlan>,
        sidecar: &mut Option<RunningProxy>,
    ) -> Result<()> {
        let planner = self.planner();
        let task = tokio::task::spawn_local(async move { planner.settle().await });
        let found = settling.insert(task).await;
        *settling = None;
        let what = || format!("cannot find a place for {}", self.name);
        let found = plan.insert(found.or_fail(what)??);
        self.update(|s| {
            s.endpoints.clone_from(&found.endpoints);
            s.addresses.clone_from(&found.addresses);
            s.namespace = found.namespace.as_ref().map(|n| n.name.clone());
            s.message = if self.context.data_plane.has_sidecars() {
                "its sidecar is starting".into()
            } else {
                "it is starting".into()
            };
        });
        self.report(found).await?;
        if !self.context.data_plane.has_sidecars() {
            return Ok(());
        }
        let description = Description {
            name: self.name.clone(),
            identity: self
                .spec
                .identity
                .clone()
                .unwrap_or_else(|| self.service.clone()),
            workload: Some(self.name.clone()),
            namespace: found.namespace.as_ref().map(|n| n.name.clone()),
            dns: found.dns.clone(),
            listeners: found.listeners.clone(),
            metrics: found.metrics,
            scraped: found.scraped,
            admin: found.admin,
            _reserved: std::mem::take(&mut found.reserved),
            passes_listeners: None,
        };
        *sidecar = Some(RunningProxy::start(&self.context, description)?);
        Ok(())
    }

    fn planner(&self) -> Planner {
        Planner {
            context: Rc::clone(&self.context),
            name: self.name.clone(),
            service: self.service.clone(),
            spec: self.spec.clone(),
        }
    }

    fn start_app(&self, plan: &WorkloadPlan) -> SupervisedProcess {
        let changed = Rc::clone(&self.app_changed);
        let starter = self.starter(plan);
        let make: Make = Box::new(move |_| {
            let command = starter.command();
            Box::pin(async move { command })
        });
        SupervisedProcess::start(self.name.clone(), APP_GRACE, changed, make)
    }

    fn starter(&self, plan: &WorkloadPlan) -> Starter {
        Starter {
            context: Rc::clone(&self.context),
            name: self.name.clone(),
            namespace: plan.namespace.as_ref().map(|n| n.name.clone()),
            spec: self.spec.clone(),
            upstreams: plan.upstreams.clone(),
        }
    }

    /// Probes, and tells the controller of it, until it is told to stop.
    async fn watch(
        &self,
        plan: &WorkloadPlan,
        sidecar: Option<&RunningProxy>,
        app: Option<&SupervisedProcess>,
    ) {
        let (callable, wanted) = watch::channel(false);
        let (announced, told) = watch::channel(false);
        tokio::select! {
            () = self.probe(plan, sidecar, app, callable, told) => {}
            () = self.announce(wanted, announced) => {}
            () = self.follow_address(plan, sidecar) => {}
        }
    }

    /// Makes what was found visible: also why a new sidecar has not taken over, while the one before serves.
    fn show(
        &self,
        sidecar: Option<state::Proxy>,
        app: Option<&SupervisedProcess>,
        answer: std::result::Result<(), String>,
        pending: String,
    ) {
        let has_app = !self.spec.command.is_empty();
        self.update(|s| {
            s.ready = answer.is_ok();
            s.sidecar = sidecar;
            s.app = has_app.then(|| process_of(app));
            s.message = answer.err().unwrap_or(pending);
        });
    }

    fn update(&self, change: impl FnOnce(&mut state::Workload)) {
        let mut state = self.state.borrow_mut();
        let before = state.clone();
        change(&mut state);
        if *state != before {
            self.context.changed.notify_one();
        }
    }
}
