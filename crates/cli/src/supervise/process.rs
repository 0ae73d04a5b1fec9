//! Keeps one process running: starts it, starts it again when it ends, stops it with a grace, has another take over from it.
//!
//! Does not know what the process is. Children are in process groups of their own, so a Ctrl-C at
//! the terminal reaches only the supervisor, which stops them in order.

use super::process_group::{child_id, kill_group, spawn, terminate};
use super::state::{Process, ProcessPhase};
use crate::proc::{self, ProcessId};
use rustix::process::{Pid, Signal};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::process::ExitStatus;
use std::rc::Rc;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long a process from which another has taken over may finish what it began.
const LONGEST_FAREWELL: Duration = Duration::from_secs(600);
/// Having run this long, a process has started well and its next pause is the first again.
const SETTLED: Duration = Duration::from_secs(20);

/// Makes the command for each start; the number is how often it was started before.
pub(crate) type Make =
    Box<dyn FnMut(u32) -> Pin<Box<dyn Future<Output = Result<Command, String>>>>>;

/// A process that is kept running.
pub(crate) struct SupervisedProcess {
    process: Rc<RefCell<Process>>,
    at_once: Rc<Cell<bool>>,
    orders: mpsc::UnboundedSender<Order>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// A change from one process to the next.
enum Order {
    /// Another one is started, and this one goes on beside it.
    Succeed,
    /// This one has taken over, and the one before ends.
    Retire(Option<ProcessId>),
}

impl SupervisedProcess {
    /// Starts keeping. `changed` is told of every change of state.
    pub(crate) fn start(name: String, grace: Duration, changed: Rc<Notify>, make: Make) -> Self {
        let process = Rc::new(RefCell::new(Process::default()));
        let at_once = Rc::new(Cell::new(false));
        let (stop, stopped) = watch::channel(false);
        let (orders, received) = mpsc::unbounded_channel();
        let keeper = Keeper {
            at_once: Rc::clone(&at_once),
            predecessor: None,
            retiring: Vec::new(),
            orders: received,
            name,
            grace,
            changed,
            process: Rc::clone(&process),
        };
        let task = tokio::task::spawn_local(keeper.keep(make, stopped));
        Self {
            process,
            at_once,
            orders,
            stop,
            task,
        }
    }

    /// Starts another process, beside which this one goes on until [`Self::retire`]. If the other one ends it is started again, as any
    /// is, and this one stays.
    pub(crate) fn succeed(&self) {
        // The task ends only when it is told to stop.
        let _ = self.orders.send(Order::Succeed);
    }

    /// Has the process before finish what it began and end, if it still runs: what else it did, the present one does.
    pub(crate) fn retire(&self) {
        let _ = self.orders.send(Order::Retire(self.process.borrow().id));
    }

    /// Whether the process before still runs.
    pub(crate) fn has_predecessor(&self) -> bool {
        self.process.borrow().before.is_some()
    }

    /// The same for whoever makes the command of the next one.
    pub(crate) fn shared(&self) -> Rc<RefCell<Process>> {
        Rc::clone(&self.process)
    }

    /// Its present state.
    pub(crate) fn process(&self) -> Process {
        self.process.borrow().clone()
    }

    /// Kills it and starts it again without a pause: nothing is wrong with it.
    pub(crate) fn kill_and_start(&self) {
        if let Some(id) = self.process.borrow().id {
            self.at_once.set(true);
            id.signal(Signal::KILL);
        }
    }

    /// Ends it: SIGTERM, and SIGKILL after the grace.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.task.await;
    }
}

struct Keeper {
    name: String,
    grace: Duration,
    changed: Rc<Notify>,
    process: Rc<RefCell<Process>>,
    /// The next start needs no pause.
    at_once: Rc<Cell<bool>>,
    /// The process before, while it goes on.
    predecessor: Option<Child>,
    retiring: Vec<Retiring>,
    orders: mpsc::UnboundedReceiver<Order>,
}

/// A process that is ending.
struct Retiring {
    end: JoinHandle<()>,
    hurry: Rc<Notify>,
}

/// The next step after a process was started.
enum Then {
    /// It has ended, for this reason.
    Again(String),
    /// It goes on, and another is started.
    Another,
    Nothing,
}

impl Keeper {
    async fn keep(mut self, mut make: Make, mut stopped: watch::Receiver<bool>) {
        let mut pause = FIRST_PAUSE;
        for starts in 0.. {
            let started = Instant::now();
            let making = make(starts);
            let command = tokio::select! {
                command = self.meanwhile(making) => command,
                _ = stopped.wait_for(|s| *s) => break,
            };
            let then = match command.and_then(|c| spawn(c, &self.name)) {
                Ok(child) => self.follow(child, &mut stopped).await,
                Err(why) => Then::Again(why),
            };
            let ended = match then {
                Then::Again(ended) => ended,
                Then::Another => continue,
                Then::Nothing => break,
            };
            tracing::warn!(
                process = self.name,
                reason = ended,
                "ended; it is started again"
            );
            if started.elapsed() >= SETTLED {
                pause = FIRST_PAUSE;
            }
            self.update(|p| {
                p.id = None;
                p.phase = ProcessPhase::Restarting;
                p.restarts = p.restarts.saturating_add(1);
                p.last_exit = Some(ended);
            });
            if self.at_once.take() {
                continue;
            }
            tokio::select! {
                () = self.meanwhile(sleep(pause)) => {}
                _ = stopped.wait_for(|s| *s) => break,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        if let Some(before) = self.predecessor.take() {
            self.update(|p| p.before = None);
            self.end(before);
        }
        self.hurry();
        for retiring in self.retiring.drain(..) {
            let _ = retiring.end.await;
        }
        self.update(|p| {
            p.id = None;
            p.phase = ProcessPhase::Stopped;
        });
    }

    /// Until it has ended, or another one is to be started beside it.
    async fn follow(&mut self, mut child: Child, stopped: &mut watch::Receiver<bool>) -> Then {
        self.running(&child);
        let leader = child_id(&child);
        loop {
            tokio::select! {
                status = child.wait() => {
                    kill_group(leader, Signal::KILL);
                    return Then::Again(match status {
                        Ok(status) => describe(status),
                        Err(e) => e.to_string(),
                    });
                }
                () = ended(&mut self.predecessor) => self.predecessor_ended(),
                Some(order) = self.orders.recv() => match order {
                    Order::Retire(by) if by == self.process.borrow().id => self.retire(),
                    // The one that took over has ended meanwhile.
                    Order::Retire(_) => {}
                    Order::Succeed => {
                        // One that has not taken over yet makes room for the next one.
                        match self.predecessor {
                            None => {
                                self.predecessor = Some(child);
                                self.update(|p| p.before = p.id);
                            }
                            Some(_) => self.end(child),
                        }
                        self.update(|p| p.id = None);
                        return Then::Another;
                    }
                },
                _ = stopped.wait_for(|s| *s) => {
                    self.end(child);
                    return Then::Nothing;
                }
            }
        }
    }

    /// Waits for something, and sees the process before end meanwhile.
    async fn meanwhile<T>(&mut self, wait: impl Future<Output = T>) -> T {
        let mut wait = std::pin::pin!(wait);
        loop {
            tokio::select! {
                value = &mut wait => return value,
                () = ended(&mut self.predecessor) => self.predecessor_ended(),
            }
        }
    }

    fn predecessor_ended(&self) {
        tracing::warn!(process = self.name, "the one before ended by itself");
        self.update(|p| p.before = None);
    }

    /// Only one process at a time takes its leave: another upgrade ends the one of the upgrade before.
    fn retire(&mut self) {
        if let Some(before) = self.predecessor.take() {
            self.update(|p| p.leaving.extend(p.before.take()));
            self.hurry();
            self.end_within(before, LONGEST_FAREWELL);
        }
    }

    fn hurry(&self) {
        self.retiring.iter().for_each(|r| r.hurry.notify_one());
    }

    /// Ends it while something else goes on.
    fn end(&mut self, child: Child) {
        self.end_within(child, Duration::ZERO);
    }

    /// The same, after it had time to finish what it began.
    fn end_within(&mut self, mut child: Child, farewell: Duration) {
        let grace = self.grace;
        let hurry = Rc::new(Notify::new());
        let hurried = Rc::clone(&hurry);
        let (process, changed) = (Rc::clone(&self.process), Rc::clone(&self.changed));
        let end = tokio::task::spawn_local(async move {
            let leader = child_id(&child);
            // One of another version may know no more than SIGTERM.
            if !farewell.is_zero() && leader.is_some_and(|pid| proc::catches(pid, Signal::QUIT)) {
                kill_group(leader, Signal::QUIT);
                tokio::select! {
                    _ = child.wait() => kill_group(leader, Signal::KILL),
                    () = sleep(farewell) => {}
                    () = hurried.notified() => {}
                }
            }
            if child.id().is_some() {
                terminate(&mut child, grace).await;
            }
            let pid = leader.map(Pid::as_raw_pid);
            process.borrow_mut().leaving.retain(|p| Some(p.pid) != pid);
            changed.notify_one();
        });
        self.retiring.retain(|retiring| !retiring.end.is_finished());
        self.retiring.push(Retiring { end, hurry });
    }

    fn running(&self, child: &Child) {
        let id = child
            .id()
            .and_then(|pid| ProcessId::from_pid(pid.cast_signed()));
        tracing::info!(process = self.name, pid = child.id(), "started");
        self.update(|p| {
            p.id = id;
            p.phase = ProcessPhase::Running;
        });
    }

    fn update(&self, change: impl FnOnce(&mut Process)) {
        change(&mut self.process.borrow_mut());
        self.changed.notify_one();
    }
}

/// Waits until it has ended by itself.
async fn ended(child: &mut Option<Child>) {
    let Some(running) = child else {
        return std::future::pending().await;
    };
    let leader = child_id(running);
    let _ = running.wait().await;
    kill_group(leader, Signal::KILL);
    *child = None;
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests;
