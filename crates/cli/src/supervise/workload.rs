//! One workload: its namespace, its sidecar, its process, in that order; and back.
//!
//! The application is started when its sidecar is ready, so its first connection finds the mesh.

use super::context::{Context, gone, process_of};
use super::pace::Pace;
use super::probe::{self, Question};
use super::process::{Make, SupervisedProcess, run_whole};
use super::proxy::{Description, RunningProxy};
use super::state;
use super::user::{self, Account, Data, Names};
use super::workload_plan::{Planner, WorkloadPlan};
use crate::failure::{OrFail, Result};
use rustix::process::Signal;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tulle_api::v1::Placement;
use tulle_model::manifest::WorkloadSpec;
use tulle_redirect::LaunchSpec;

/// How long an application may take to end after SIGTERM.
const APP_GRACE: Duration = Duration::from_secs(10);
/// Between looks at something that is not ready yet.
const SOON: Duration = Duration::from_millis(100);
/// Looks in a row at which its sidecar is not ready: then callers no longer come, and later it is
/// looked for less often.
const ABSENT: u32 = 3;
const LONG_ABSENT: u32 = 50;
/// Time between the report that it is going and its end, so that callers hear of it.
const FAREWELL: Duration = Duration::from_millis(100);
/// How often a sidecar may end before its ports are chosen anew; at first, and at most.
const IMPATIENT: u32 = 3;
const PATIENT: u32 = 24;
/// How long an `exec` probe may take.
const PROBE_TIME: Duration = Duration::from_secs(10);
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

/// The endpoint at the new address, if it is at the old one.
fn moved(endpoint: &str, old: IpAddr, new: IpAddr) -> String {
    match endpoint.parse::<SocketAddr>() {
        Ok(at) if at.ip() == old => SocketAddr::new(new, at.port()).to_string(),
        _ => endpoint.to_owned(),
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
        let mut plan = None;
        let mut sidecar = None;
        let mut app = None;
        tokio::select! {
            () = self.live(&mut settling, &mut plan, &mut sidecar, &mut app) => {}
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

    /// Tells the controller where it is.
    async fn tell(&self, placement: Placement) {
        if let Err(failure) = self.context.report(placement).await {
            // Expected of a workload whose object was deleted.
            tracing::debug!("{failure}");
        }
    }

    /// Everything until it is told to stop. What was started is left in the arguments.
    async fn live(
        &self,
        settling: &mut Option<Settling>,
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
                self.planner().leave(plan).await;
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

    /// Tells the controller where it runs; that it may be called comes later.
    async fn report(&self, plan: &WorkloadPlan) -> Result<()> {
        let placement = Placement {
            workload: self.name.clone(),
            node: self.context.node.clone(),
            ports: plan.ports.clone(),
            addresses: plan.addresses.iter().map(ToString::to_string).collect(),
            not_ready: true,
            ..Default::default()
        };
        *self.placement.borrow_mut() = Some(placement.clone());
        if self.context.line.is_away() {
            // It is told as soon as it is back.
            return Ok(());
        }
        self.context.report(placement).await
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

    /// Moves to this host's address whenever that becomes another. The controller is told by whoever finds that
    /// it can be reached again.
    async fn follow_address(&self, plan: &WorkloadPlan, sidecar: Option<&RunningProxy>) {
        let mut addresses = self.context.reachable.subscribe();
        let on_host = plan.namespace.is_none().then_some(plan.endpoints.first());
        let (Some(Some(mut old)), Some(sidecar)) =
            (on_host.map(|e| e.map(SocketAddr::ip)), sidecar)
        else {
            return std::future::pending().await;
        };
        loop {
            let new = *addresses.borrow_and_update();
            if new != old {
                tracing::warn!(workload = self.name, %old, %new, "moves to this host's new address");
                if let Some(placement) = self.placement.borrow_mut().as_mut() {
                    for port in &mut placement.ports {
                        port.endpoint = moved(&port.endpoint, old, new);
                    }
                }
                self.update(|s| {
                    let endpoints = s.endpoints.iter_mut();
                    endpoints
                        .filter(|e| e.ip() == old)
                        .for_each(|e| e.set_ip(new));
                });
                sidecar.move_to(old, new);
                old = new;
            }
            if addresses.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Tells the controller each time it becomes callable or no longer is, until it is heard.
    async fn announce(&self, mut wanted: watch::Receiver<bool>, announced: watch::Sender<bool>) {
        // The controller may have received a report although its answer was lost.
        let mut doubtful = false;
        while wanted.changed().await.is_ok() {
            loop {
                let callable = *wanted.borrow_and_update();
                if callable == *announced.borrow() && !doubtful {
                    break;
                }
                let placement = self.placement.borrow_mut().as_mut().map(|placement| {
                    placement.not_ready = !callable;
                    placement.clone()
                });
                let Some(placement) = placement else { return };
                match self.context.report(placement).await {
                    Ok(()) => {
                        doubtful = false;
                        announced.send_replace(callable);
                    }
                    Err(failure) => {
                        tracing::warn!(workload = self.name, "{failure}");
                        doubtful = true;
                        sleep(RETRY).await;
                        self.context.line.back().await;
                    }
                }
            }
        }
    }

    /// Probes until it is told to stop.
    async fn probe(
        &self,
        plan: &WorkloadPlan,
        sidecar: Option<&RunningProxy>,
        app: Option<&SupervisedProcess>,
        callable: watch::Sender<bool>,
        mut announced: watch::Receiver<bool>,
    ) {
        let probe = self.spec.readiness_probe.as_ref();
        let question = Question::for_probe(probe, &self.spec.ports, plan.app);
        let mut pace = Pace::new(probe, Instant::now());
        let mut last = Err("it is starting".to_owned());
        // How often in a row it was not there to be asked.
        let mut absent = 0_u32;
        loop {
            let mut proxy = match sidecar {
                Some(sidecar) => sidecar.take_over().await,
                None => Ok(()),
            };
            let state = sidecar.map(|s| s.state(proxy.is_ok()));
            let is_followed = sidecar.is_some_and(RunningProxy::has_predecessor);
            let mut pending = String::new();
            if is_followed && let Err(why) = std::mem::replace(&mut proxy, Ok(())) {
                // The process before serves until this one does.
                pending = why;
            }
            let runs = proxy.and_then(|()| self.alive(app));
            absent = match &runs {
                Ok(()) => 0,
                Err(_) => absent.saturating_add(1),
            };
            match runs {
                Err(why) => {
                    pace.restart(Instant::now());
                    last = Err(why);
                }
                Ok(()) if pace.is_due(Instant::now()) => {
                    last = self.ask(plan, &question).await;
                    pace.tried(last.is_ok(), Instant::now());
                }
                Ok(()) => {}
            }
            let good = last.is_ok();
            if good || pace.is_gone() || absent >= ABSENT || self.alive(app).is_err() {
                callable.send_if_modified(|now| std::mem::replace(now, good) != good);
            }
            let answer = match &last {
                // It is told as soon as it is back.
                Ok(()) if self.context.line.is_away() => Ok(()),
                Ok(()) => tokio::time::timeout(SOON, announced.wait_for(|a| *a))
                    .await
                    .map(drop)
                    .map_err(|_| "it answers, but the controller does not know yet".to_owned()),
                Err(why) => Err(match pace.start_failed() {
                    Some(count) => self.failed_to_start(app, why, count),
                    None => why.clone(),
                }),
            };
            let pause = match absent {
                0 if is_followed => SOON,
                // The controller has not heard of it.
                0 if good && answer.is_err() => SOON,
                0 => pace.left(Instant::now()),
                1..LONG_ABSENT => SOON,
                _ => Duration::from_secs(1),
            };
            self.show(state, app, answer, pending);
            tokio::select! {
                () = sleep(pause) => {}
                // Callers should hear of its end at once.
                () = self.app_changed.notified() => {}
                () = self.succeed.notified() => {
                    if let Some(sidecar) = sidecar.filter(|s| s.is_replaceable()) {
                        tracing::info!(workload = self.name, "a new process of its sidecar takes over");
                        sidecar.succeed();
                        // Another task starts it.
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
    }

    /// Returns the message without a growing count, so that it stays the same and is shown once.
    fn failed_to_start(&self, app: Option<&SupervisedProcess>, why: &str, count: u32) -> String {
        let more = match (app, self.spec.address) {
            (None, Some(address)) => format!("is it running at {address}?"),
            _ => format!("see `tulle logs {}`", self.name),
        };
        format!("{why} ({count} times or more; {more})")
    }

    fn alive(&self, app: Option<&SupervisedProcess>) -> std::result::Result<(), String> {
        let Some(app) = app else { return Ok(()) };
        let process = app.process();
        match (process.id, process.last_exit) {
            (Some(_), _) => Ok(()),
            (None, Some(why)) if self.context.paths.log(&self.name).exists() => Err(format!(
                "it does not run: {why}; see `tulle logs {}`",
                self.name
            )),
            (None, Some(why)) => Err(format!("it does not run: {why}")),
            (None, None) => Err("it is starting".into()),
        }
    }

    async fn ask(
        &self,
        plan: &WorkloadPlan,
        question: &Question,
    ) -> std::result::Result<(), String> {
        let Question::Exec(command) = question else {
            let namespace = plan.namespace.as_ref().map(|n| n.name.clone());
            return probe::ask(question.clone(), namespace).await;
        };
        let mut starter = self.starter(plan);
        starter.spec.command.clone_from(command);
        let mut command = starter.command()?;
        match tokio::time::timeout(PROBE_TIME, run_whole(&mut command)).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(format!("its probe ends with {status}")),
            Ok(Err(e)) => Err(format!("its probe cannot be run: {e}")),
            Err(_) => Err("its probe does not end within 10s".into()),
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

/// Makes the commands of an application: the program itself, and its probes.
struct Starter {
    context: Rc<Context>,
    name: String,
    namespace: Option<String>,
    spec: WorkloadSpec,
    upstreams: BTreeMap<String, String>,
}

impl Starter {
    fn command(&self) -> std::result::Result<tokio::process::Command, String> {
        let Self { context, spec, .. } = self;
        let (program, arguments) = spec
            .command
            .split_first()
            .ok_or_else(|| "there is no command".to_owned())?;
        let account = user::account(context, &self.name, spec.user.as_deref());
        let account = account.map_err(|f| f.to_string())?;
        let data = user::data(context, &self.name, account.as_ref()).map_err(|f| f.to_string())?;
        let names = user::names(context, &self.name, account.as_ref(), &data);
        let names = names.map_err(|f| f.to_string())?;
        let log = context.paths.log(&self.name);
        let launch = self.launch(account.as_ref(), &data, names);
        let mut command =
            context.application_command(&launch, Path::new(program), &log, &spec.pass_env)?;
        if let Some(account) = &account {
            let given = user::give_log(&log, account);
            given.map_err(|e| format!("cannot give {} away: {e}", log.display()))?;
            settle_in(&mut command, &self.name, account, &data.seen);
        }
        command
            .args(arguments)
            .env("STATE_DIRECTORY", &data.seen)
            .envs(&self.upstreams);
        for variable in &spec.env {
            command.env(&variable.name, expand(&variable.value, &self.upstreams));
        }
        if let Some(directory) = &spec.working_directory {
            let directory = PathBuf::from(directory);
            if !directory.is_dir() {
                return Err(format!(
                    "its working directory {} does not exist",
                    directory.display()
                ));
            }
            command.current_dir(directory);
        }
        Ok(command)
    }

    fn launch(&self, account: Option<&Account>, data: &Data, names: Names) -> LaunchSpec {
        let paths = &self.context.paths;
        let namespaced = self.namespace.is_some();
        LaunchSpec {
            namespace: self.namespace.clone(),
            hosts: namespaced.then(|| paths.hosts()),
            resolv_conf: namespaced.then(|| paths.resolv_conf()),
            passwd: names.passwd,
            group: names.group,
            directory: (data.seen != data.directory)
                .then(|| (data.directory.clone(), data.seen.clone())),
            user: account.filter(|a| !a.is_root()).map(|a| a.ids),
            bind_low_ports: namespaced,
            ..LaunchSpec::default()
        }
    }
}

/// Sets the variables that describe the user to this account's.
fn settle_in(
    command: &mut tokio::process::Command,
    workload: &str,
    account: &Account,
    data: &Path,
) {
    if account.is_root() {
        return;
    }
    let own = (workload, data.to_owned());
    let (name, home) = account
        .known
        .as_ref()
        .map_or(own, |(n, h)| (n.as_str(), h.clone()));
    command.env("HOME", home);
    for variable in ["USER", "LOGNAME"] {
        command.env(variable, name);
    }
}

/// Replaces `$(NAME)` by the upstream's address; `$$` stands for one `$`. What is not known stays.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        if let Some(after) = from.strip_prefix("$$") {
            out.push('$');
            rest = after;
            continue;
        }
        let known = from
            .strip_prefix("$(")
            .and_then(|t| t.split_once(')'))
            .and_then(|(name, after)| Some((variables.get(name)?, after)));
        match known {
            Some((value, after)) => {
                out.push_str(value);
                rest = after;
            }
            None => {
                out.push('$');
                rest = from.get(1..).unwrap_or_default();
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_and_unknown_ones_stay() {
        let variables = BTreeMap::from([("RATINGS".to_owned(), "127.0.0.1:7".to_owned())]);
        let expand = |text| super::expand(text, &variables);
        assert_eq!(expand("http://$(RATINGS)/x"), "http://127.0.0.1:7/x");
        assert_eq!(
            expand("$(NONE) $ $$(RATINGS) $("),
            "$(NONE) $ $(RATINGS) $("
        );
        assert_eq!(expand(""), "");
    }
}
