//! Whether a workload is ready: its sidecar is asked, its process runs, its probe answers; and how often that is looked at.

use super::{SOON, Unit};
use crate::supervise::pace::Pace;
use crate::supervise::probe::{self, Question};
use crate::supervise::process::SupervisedProcess;
use crate::supervise::process_group::run_whole;
use crate::supervise::proxy::RunningProxy;
use crate::supervise::workload_plan::WorkloadPlan;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::sleep;

/// Looks in a row at which its sidecar is not ready: then callers no longer come, and later it is
/// looked for less often.
const ABSENT: u32 = 3;
const LONG_ABSENT: u32 = 50;
/// How long an `exec` probe may take.
const PROBE_TIME: Duration = Duration::from_secs(10);

impl Unit {
    /// Probes until it is told to stop.
    pub(super) async fn probe(
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
}
