//! Starts everything: workers on their threads, control and administration on the main one. Ends it
//! in order.

use crate::admin::Admin;
use crate::admin::application_metrics::Scraper;
use crate::admin::probe::Probes;
use crate::context::lookups::Lookups;
use crate::context::memory_limit;
use crate::control::client::{self, ControlClient};
use crate::control::file;
use crate::control::file::Source;
use crate::control::publish::{Current, Publisher};
use crate::dns::Dns;
use crate::export;
use crate::listener::passed;
use crate::listener::sockets::Sockets;
use crate::report::Reporting;
use crate::takeover::{self, Listeners};
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::export_totals::ExportTotals;
use crate::worker::{Command, Worker};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tulle_model::bootstrap::Bootstrap;
use tulle_net::{memory, moderation, passing, socket, task, thread};

/// Tasks a worker runs before it polls for events: enough that a burst leaves in one write per
/// connection.
const TASKS_PER_TURN: u32 = 256;

/// Longest that the end waits for collectors.
const LAST_EXPORT: Duration = Duration::from_secs(2);
/// How often a process that has time looks whether it still has.
const PRESSED_LOOK: Duration = Duration::from_secs(1);

/// Why the proxy could not start.
#[derive(Debug)]
pub enum StartError {
    /// The file is not valid.
    Config(String),
    /// A listener could not be bound.
    Listen(SocketAddr, std::io::Error),
    /// The admin socket could not be created.
    Socket(PathBuf, std::io::Error),
    /// A thread or event loop could not be created.
    System(std::io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(why) => f.write_str(why),
            Self::Listen(address, error) => write!(
                f,
                "cannot listen on {address}: {error}; is another proxy running? (`ss -ltnp`)"
            ),
            Self::Socket(path, error) => write!(f, "cannot make {}: {error}", path.display()),
            Self::System(error) => write!(f, "cannot start a worker: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// Tells of each SIGUSR1.
fn nudges() -> Result<Arc<Notify>, StartError> {
    let nudges = Arc::new(Notify::new());
    let mut signals = signal(SignalKind::user_defined1()).map_err(StartError::System)?;
    let told = Arc::clone(&nudges);
    task::start(async move {
        while signals.recv().await.is_some() {
            told.notify_one();
        }
    });
    Ok(nudges)
}

/// Runs one proxy until a signal ends it ([`Ending`]), then drains.
///
/// # Errors
/// The proxy could not start.
pub fn run(source: &Source) -> Result<(), StartError> {
    let bootstrap = source.read().map_err(StartError::Config)?;
    socket::raise_descriptor_limit();
    memory_limit::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(StartError::System)?;
    runtime.block_on(run_main(source, bootstrap))
}

async fn run_main(source: &Source, bootstrap: Bootstrap) -> Result<(), StartError> {
    // Whoever started this proxy may tell it something from now on, and the signal would end it.
    let nudges = nudges()?;
    let heir_socket = bootstrap.heir_socket.clone();
    let predecessor = match &heir_socket {
        Some(path) => takeover::predecessor(path).await,
        None => None,
    };
    // A process before has these addresses and hands them over.
    for listener in bootstrap.listeners.iter().filter(|_| predecessor.is_none()) {
        socket::check_free(listener.address)
            .map_err(|e| StartError::Listen(listener.address, e))?;
    }
    let gateway_sockets = match bootstrap.gateway_sockets {
        Some(number) => Some(passing::inherited(number).map_err(|e| {
            let why =
                format!("gatewaySockets: descriptor {number} is no inherited Unix socket: {e}");
            StartError::Config(why)
        })?),
        None => None,
    };
    // A process takes over while the one before still answers there.
    let beside = gateway_sockets.is_some() || heir_socket.is_some();
    let admin_listener = bind(bootstrap.admin, beside).await?;
    let metrics_listener = bind(bootstrap.metrics, beside).await?;
    let health_listener = match bootstrap.health {
        Some(address) => Some(bind(address, beside).await?),
        None => None,
    };
    let socket_listener = match &bootstrap.admin_socket {
        Some(path) => Some(bind_socket(path)?),
        None => None,
    };
    // At once: another process may take its place while this one starts.
    let admin_socket = bootstrap.admin_socket.clone();
    let admin_socket = admin_socket.map(|path| (file_of(&path), path));

    let log = AccessLog::start().map_err(StartError::System)?;
    let (spans, logs) = (Arc::new(ExportTotals::default()), Arc::default());
    let mut publisher = Publisher::new(bootstrap.identity.clone());
    let current = publisher.current();
    current.set_taking_over(predecessor.is_some());
    if bootstrap.control.is_none() {
        file::apply(&bootstrap, &mut publisher).map_err(StartError::Config)?;
        if let Some(files) = &bootstrap.certificates {
            file::load_certificates(files, &mut publisher).map_err(StartError::Config)?;
        }
    } else {
        publisher.set_mesh(&bootstrap.mesh);
    }
    let (lookups, asked) = client::lookups();
    let lookups = bootstrap.control.is_some().then_some(lookups);
    let count = match bootstrap.workers {
        0 => allowed_cores(),
        count => usize::from(count),
    };
    let mut workers = Vec::new();
    for index in 0..count {
        let started = start_worker(index, &current, &log, &spans, lookups.clone());
        workers.push(started.await?);
    }
    let dns = bootstrap.dns.as_ref().map(|settings| {
        let dns = Dns::new(settings, current.clone(), lookups.clone());
        (dns, settings.addresses.clone())
    });
    let listeners = Listeners {
        workers: workers.clone(),
        listeners: bootstrap.listeners.clone(),
        dns: dns.clone(),
        current: current.clone(),
        controlled: bootstrap.control.is_some(),
    };
    if predecessor.is_none() {
        let listens = listeners.listen(Sockets::new()).await;
        listens.map_err(|(at, e)| StartError::Listen(at, e))?;
    }
    publisher.set_workers(workers.clone());
    let mut signals = Signals::new().map_err(StartError::System)?;
    let admin = Admin {
        current: current.clone(),
        workers: Arc::new(workers.clone()),
        log: log.clone(),
        spans: spans.clone(),
        logs: Arc::clone(&logs),
        controlled: bootstrap.control.is_some(),
        gateways: bootstrap.gateway_names().map(str::to_owned).collect(),
        engine: None,
        dns: dns.map(|(dns, _)| dns),
        probes: Some(Arc::new(Probes::new(&bootstrap))),
        application: Scraper::new(&bootstrap).map(Arc::new),
    };
    let mut answering = vec![
        task::start(admin.clone().serve_loopback(admin_listener)),
        task::start(admin.clone().serve_metrics(metrics_listener)),
    ];
    if let Some(listener) = health_listener {
        answering.push(task::start(admin.clone().serve_health(listener)));
    }
    if let Some(listener) = socket_listener {
        task::start(admin.clone().serve_socket(listener));
    }
    if let Some(from) = gateway_sockets {
        let gateway = bootstrap.identity.name().to_owned();
        passed::start(from, gateway, workers.clone()).map_err(StartError::System)?;
    }
    tracing::info!(identity = %bootstrap.identity, workers = count, "started");
    task::start(release_memory());

    let drain = Duration::from_millis(bootstrap.drain_timeout_ms.into());
    let exports = export::Sources {
        current: current.clone(),
        instance: client::instance(&bootstrap),
        workers: workers.clone(),
        spans,
        page: metrics_page(admin.clone()),
        log,
        logs,
    };
    let exports = exports.start();
    let mut client = None;
    match bootstrap.control.clone() {
        Some(control) => {
            let (wants, wanted) = watch::channel(None);
            task::start(Reporting::new(admin, &bootstrap, wanted).run());
            let new = ControlClient::new(&bootstrap, control, publisher)
                .with_reports(wants)
                .with_nudges(nudges);
            client = Some(task::start(new.run(asked)));
        }
        None => {
            if let Source::File(path) = source {
                task::start(file::watch(path.clone(), bootstrap, publisher));
            }
        }
    }
    let succession = async {
        let Some(path) = &heir_socket else {
            return std::future::pending().await;
        };
        if let Some(before) = predecessor {
            let taken = listeners.take_over(before).await;
            taken.map_err(|(at, e)| StartError::Listen(at, e))?;
        }
        match bind_socket(path) {
            Ok(heirs) => listeners.serve(heirs).await,
            // It serves all the same.
            Err(error) => tracing::error!(%error, "no other process can take over from this one"),
        }
        std::future::pending::<Result<(), StartError>>().await
    };
    // Its end tells the process that has taken over that it is the only one from now on.
    let ending = tokio::select! {
        ending = signals.next() => ending,
        ended = succession => {
            ended?;
            Ending::Drain
        }
    };
    current.set_draining();
    if ending == Ending::Succeeded {
        current.set_succeeded();
        // Half of all questions would come to this process instead of the one that serves.
        answering.iter().for_each(JoinHandle::abort);
    }
    if let Some(until) = finish(ending, drain, &workers, &listeners, &mut signals).await {
        let left = until.saturating_duration_since(Instant::now());
        tokio::select! {
            () = exports.end(left.min(LAST_EXPORT)) => {}
            _ = signals.next() => tracing::warn!("second signal: what is not exported yet is lost"),
        }
    }
    if let Some(client) = client {
        // It saves what is in force when it ends, which it does for no other reason.
        client.abort();
        let _ = client.await;
    }
    if let Some((made, path)) = admin_socket
        && file_of(&path) == made
    {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Returns device and number of a file. The socket may have been removed with its directory, or be that of the process that took
/// over.
fn file_of(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Binds an address of administration, if need be `beside` another process of this user that has done so.
///
/// # Errors
/// It cannot be bound.
pub async fn bind(address: SocketAddr, beside: bool) -> Result<TcpListener, StartError> {
    let bound = match beside {
        true => socket::listen(address),
        false => TcpListener::bind(socket::available(address)).await,
    };
    bound.map_err(|e| StartError::Listen(address, e))
}

/// Creates the Unix socket of administration, for its owner alone.
///
/// # Errors
/// It cannot be created.
pub fn bind_socket(path: &Path) -> Result<UnixListener, StartError> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |e| StartError::Socket(path.to_owned(), e);
    // Removes a socket file left by a proxy that was killed.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Starts a worker's thread and waits until it runs.
async fn start_worker(
    index: usize,
    current: &Current,
    log: &AccessLog,
    spans: &Arc<ExportTotals>,
    lookups: Option<Lookups>,
) -> Result<mpsc::UnboundedSender<Command>, StartError> {
    let (commands, received) = mpsc::unbounded_channel();
    let (ready, started) = oneshot::channel();
    let (current, log, spans) = (current.clone(), log.clone(), spans.clone());
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(TASKS_PER_TURN)
            .on_thread_park(moderation::before_waiting)
            .build_local(tokio::runtime::LocalOptions::default());
        match runtime {
            Ok(runtime) => runtime.block_on(async {
                let worker = Worker::new(current.get(), log, spans, lookups);
                // The starter waits for this answer.
                let _ = ready.send(Ok(()));
                worker.run(received).await;
            }),
            Err(error) => drop(ready.send(Err(StartError::System(error)))),
        }
    };
    thread::start(format!("worker-{index}"), Box::new(run)).map_err(StartError::System)?;
    match started.await {
        Ok(Ok(())) => Ok(commands),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(StartError::System(std::io::Error::other(
            "the worker ended at once",
        ))),
    }
}

/// Makes the page that a scraper would get.
fn metrics_page(admin: Admin) -> export::Page {
    Box::new(move || {
        let admin = admin.clone();
        Box::pin(async move { admin.metrics_page().await })
    })
}

/// Releases memory periodically. Start-up, a new certificate and a configuration push run code that
/// is then unused for long, and bursts free memory.
async fn release_memory() {
    let mut turns = tokio::time::interval(memory::LOOK);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut code = memory::CodePages::default();
    loop {
        turns.tick().await;
        if code.due() {
            memory::release_code_pages();
        }
        memory::release_free();
    }
}

/// One worker when the CPU limit is at most one core, else one per core it allows.
pub fn allowed_cores() -> usize {
    // It takes cgroup quotas and the affinity mask into account; quotas are rounded down.
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// How this process is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Finish what is open within the drain timeout: SIGTERM or SIGINT.
    Drain,
    /// Finish it however long it lasts, because another process has taken over: SIGQUIT. SIGTERM then sets the limit.
    Succeeded,
}

/// The signals that end this process.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
}

impl Signals {
    /// Listens to the signals from now on.
    ///
    /// # Errors
    /// The system does not allow it.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// Waits for a signal.
    pub async fn next(&mut self) -> Ending {
        tokio::select! {
            // Where both have come, SIGTERM is about what SIGQUIT began.
            biased;
            _ = self.quit.recv() => Ending::Succeeded,
            _ = self.terminate.recv() => Ending::Drain,
            _ = self.interrupt.recv() => Ending::Drain,
        }
    }
}

/// Takes nothing new, and finishes open exchanges. Returns when all that is left to do must have ended; nothing if a second signal
/// came.
async fn finish(
    ending: Ending,
    limit: Duration,
    workers: &[mpsc::UnboundedSender<Command>],
    listeners: &Listeners,
    signals: &mut Signals,
) -> Option<Instant> {
    let until = |limit| Instant::now() + limit;
    let mut end = (ending == Ending::Drain).then(|| until(limit));
    tracing::info!(limit = ?end.map(|_| limit), "draining");
    let mut drained = pin!(async { tokio::join!(drain(workers), listeners.leave()) });
    let mut pressed = pin!(pressed(&listeners.current));
    loop {
        tokio::select! {
            _ = &mut drained => {
                tracing::info!("drained");
                return Some(end.unwrap_or_else(|| until(limit)));
            }
            () = task::wait_until(end.map(Into::into)) => {
                tracing::warn!("some connections did not end in time and are cut");
                return end;
            }
            why = &mut pressed, if end.is_none() => {
                tracing::warn!(why, ?limit, "what is under way has a limit now");
                end = Some(until(limit));
            }
            ending = signals.next() => match (ending, end) {
                // It says nothing new.
                (Ending::Succeeded, _) => {}
                (Ending::Drain, None) => end = Some(until(limit)),
                (Ending::Drain, Some(_)) => {
                    tracing::warn!("second signal: closing open connections now");
                    return None;
                }
            },
        }
    }
}

/// Waits until a process from which another has taken over does harm by staying; returns how.
async fn pressed(current: &Current) -> &'static str {
    loop {
        if memory_limit::is_short() {
            return "memory is short, which both processes share";
        }
        if current.refused().configuration.is_some() {
            return "it refuses newer configuration";
        }
        tokio::time::sleep(PRESSED_LOOK).await;
    }
}

/// Has every worker take nothing new, and waits until its last connection has ended.
async fn drain(workers: &[mpsc::UnboundedSender<Command>]) {
    let mut answers = Vec::new();
    for worker in workers {
        let (reply, answer) = oneshot::channel();
        if worker.send(Command::Drain(reply)).is_ok() {
            answers.push(answer);
        }
    }
    for answer in answers {
        // A worker that has ended has nothing to finish.
        let _ = answer.await;
    }
}
