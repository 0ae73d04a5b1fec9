//! The life of a joined host, step by step: it gets its certificate, brings its workloads, runs them until it is to end,
//! and leaves.

use super::brought::{self, Brought, News};
use super::enrol::{Node, Over, OwnFiles};
use super::given::{self, Given, label};
use super::{How, address, away, refused};
use crate::args::join::{Join, JoinOptions};
use crate::client::Objects;
use crate::failure::{OrFail, Result};
use crate::output::{one_line, progress};
use crate::paths::Paths;
use crate::supervise::context::Context;
use crate::supervise::host_authority::HostCertifier;
use crate::supervise::last_known::{KnownController, LastKnown};
use crate::supervise::line::Line;
use crate::supervise::state::Mode;
use crate::supervise::{Plan, Supervisor, envoy_programs, usable_proxy};
use crate::up::log::{self, Also};
use crate::up::signals::Signals;
use crate::up::{OfHost, context, end_early, fresh_logs, notify, stop, stopping};
use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinHandle, LocalSet, spawn_local};
use tonic::transport::Channel;
use tulle_control::host_services::HostServices;

/// Words at the end.
const LEFT: &str = "left the mesh; nothing is left of it here but the identity to come back with";
const STAYS: &str = "ended without leaving the mesh; the same command starts this host again";
/// Patience with services that do not answer yet.
const PATIENCE: Duration = Duration::from_secs(120);

/// Enrols and runs the workloads. `begun` tells that the controller has accepted them, or is not there to.
pub(super) fn run(
    paths: &Paths,
    args: &Join,
    given: Given,
    how: How,
    begun: &Cell<bool>,
) -> Result<()> {
    fresh_logs(paths)?;
    log::start(paths, Also::named(args.service, args.log_file.as_deref())?)?;
    let plan = plan(paths, &args.options, &how)?;
    let local = LocalSet::new();
    crate::run_to_end(local.run_until(supervise(paths, args, given, how, &plan, begun)))
}

/// Decides how the workloads run on this host. Its controller is elsewhere, and so is the console.
fn plan(paths: &Paths, options: &JoinOptions, how: &How) -> Result<Plan> {
    Ok(Plan {
        mode: Mode::Loopback,
        data_plane: options.sidecars.data_plane,
        network: None,
        claim: Cell::default(),
        listen: None,
        _reserved: None,
        console: None,
        console_actions: false,
        _console_reserved: None,
        controller: how.controller.address,
        for_hosts: how.controller.address,
        reachable: options.advertise.unwrap_or(how.own),
        inbound_ports: options.inbound_ports,
        proxy: usable_proxy(paths)?,
        envoy: envoy_programs(paths, &options.sidecars)?,
    })
}

/// Takes the steps, from the certificate to the last words.
async fn supervise(
    paths: &Paths,
    args: &Join,
    given: Given,
    how: How,
    plan: &Plan,
    begun: &Cell<bool>,
) -> Result<()> {
    let ca = how.controller.fingerprint.clone();
    let line = Arc::clone(&how.controller.line);
    let last_known = Rc::clone(&how.last_known);
    let certifier = HostCertifier::at(paths.host_authority(), paths.host_issued());
    let certifier = Rc::new(certifier);
    let node = enter(paths, how, Rc::clone(&certifier)).await?;
    let brought = brought_before(paths, &node)?;
    if node.joins() && is_another_mesh(last_known.joined().as_ref(), &ca) {
        away::forget(&paths.away())?;
    }
    let news = news(given, &brought, node.name());
    let client = node.objects();
    let renewing = spawn_local(Rc::clone(&node).renew());
    let services = Arc::new(HostServices::default());
    let of_host = OfHost {
        certifier,
        last_known: Rc::clone(&last_known),
        services: Arc::clone(&services),
    };
    let context = context(
        paths,
        plan,
        node.name().to_owned(),
        node.objects(),
        Arc::clone(&line),
        Some(of_host),
    );
    let has_run = !last_known.objects().is_empty();
    last_known.note_manifests(&of_service(args)?);
    if !node.is_alone() {
        note_answer(paths, args, plan, &ca, &last_known);
    }
    *context.ca_fingerprint.borrow_mut() = ca;
    let beside = Beside::start(&context, &last_known, args.options.advertise.is_some());
    let telling = spawn_local(tell_services(services, node.channel(), line.clone()));
    let signals = Signals::listen()?;
    let Some(mut supervisor) = Supervisor::start(context, plan, signals.first()).await? else {
        progress("interrupted while it started; nothing is left of it here");
        return Ok(());
    };
    if node.is_alone() {
        let all = news.beside(last_known.objects());
        let later = brought::bring_later(client.clone(), news, brought);
        supervisor.begin_alone(all, later);
    } else {
        let may_be_refused = args.service && has_run;
        supervisor = bring(supervisor, &client, news, brought, may_be_refused).await?;
    }
    begun.set(true);
    let over = Rc::new(Cell::new(None));
    let stop = until_end(
        stop(args.run_for, PATIENCE, supervisor.phases(), signals.clone()),
        renewing,
        Rc::clone(&over),
        beside.keeping.abort_handle(),
    );
    let ended = run_until(stop, paths, args, supervisor, &signals).await;
    beside.end();
    telling.abort();
    let leaves = !args.stay && !args.service && !line.is_away();
    let has_left = leaves && brought::leave(client, paths.brought()).await;
    let over = over.take();
    let is_dismissed = over.as_ref().is_some_and(|over| over.is_dismissed);
    if has_left || is_dismissed {
        last_known.forget();
    }
    if is_dismissed {
        forget_counts(paths);
    }
    ended?;
    if let Some(over) = over {
        return Err(over.failure);
    }
    progress(if has_left { LEFT } else { STAYS });
    Ok(())
}

/// Gets the certificate, or goes on with the one that was kept, and says which.
async fn enter(paths: &Paths, how: How, certifier: Rc<HostCertifier>) -> Result<Rc<Node>> {
    let last_known = Rc::clone(&how.last_known);
    let was_joined = last_known.joined().is_some();
    let own_files = OwnFiles {
        identity: how.kept,
        certifier,
        last_known: how.last_known,
    };
    let address = how.controller.address;
    let node = Node::enter(how.controller, how.token.as_deref(), how.away, own_files).await;
    // Nothing is known any more where the mesh has dismissed this host.
    if node.is_err() && was_joined && last_known.joined().is_none() {
        forget_counts(paths);
    }
    let node = node?;
    progress(&entered(&node, address));
    Ok(node)
}

/// Removes the counts of a mesh that has dismissed this host.
fn forget_counts(paths: &Paths) {
    if let Err(failure) = away::forget(&paths.away()) {
        tracing::warn!("{failure}");
    }
}

/// Whether the mesh with this authority may be another than the one of which this host was: that is to hear nothing of what was
/// counted before. One that gets a new token because its certificate has expired is of the same mesh.
fn is_another_mesh(before: Option<&KnownController>, fingerprint: &str) -> bool {
    before.is_none_or(|known| known.fingerprint != fingerprint)
}

fn entered(node: &Node, controller: SocketAddr) -> String {
    match node.is_alone() {
        true => format!(
            "no controller answers at {controller}: {} starts with what it knew last",
            node.identity()
        ),
        false => format!("joined as {}", node.identity()),
    }
}

/// Reads what this host has brought to its mesh before. To one that it joins just now it has brought nothing.
fn brought_before(paths: &Paths, node: &Node) -> Result<Brought> {
    match node.joins() {
        true => Brought::begin(paths.brought()),
        false => Brought::read(paths.brought()),
    }
}

/// Compares the workloads that this host is given with what it has brought.
fn news(given: Given, brought: &Brought, node: &str) -> News {
    match given {
        Given::Manifests(mut manifests) => brought.news(label(&mut manifests, node)),
        Given::Before(refused) => {
            let refused = one_line(&refused.to_string());
            tracing::error!("this host starts what it ran before: {refused}");
            brought.no_news()
        }
    }
}

/// Files of the manifests that a service has read, as any other command finds them.
fn of_service(args: &Join) -> Result<Vec<PathBuf>> {
    let files = args.files.iter().filter(|_| args.service);
    let absolute = files
        .map(|file| std::path::absolute(file).or_fail(|| format!("cannot use {}", file.display())));
    absolute.collect()
}

/// Notes that this controller has answered, and where: a later start may do without it, and needs no token.
fn note_answer(paths: &Paths, args: &Join, plan: &Plan, ca: &str, last_known: &LastKnown) {
    if args.service {
        given::remove_token(&paths.host_token());
    }
    last_known.note_address(plan.reachable);
    last_known.note_controller(KnownController {
        name: args.options.controller.clone(),
        fingerprint: ca.to_owned(),
        address: plan.controller,
    });
}

/// Tells proxies of services, over one subscription of this host.
async fn tell_services(services: Arc<HostServices>, channel: Channel, line: Arc<Line>) {
    services.follow(channel, async || line.back().await).await;
}

/// Tasks beside the supervisor, for as long as the host is up.
struct Beside {
    /// Keeps the configurations of sidecars.
    keeping: JoinHandle<()>,
    /// Follows this host's address.
    following: JoinHandle<()>,
    /// Keeps what is counted while the controller is away.
    counting: JoinHandle<()>,
}

impl Beside {
    /// Starts them. `advertised`: others reach this host at an address that was named.
    fn start(context: &Rc<Context>, last_known: &Rc<LastKnown>, advertised: bool) -> Self {
        Self {
            keeping: spawn_local(Rc::clone(last_known).keep(Rc::clone(context))),
            following: spawn_local(address::follow(Rc::clone(context), advertised)),
            counting: spawn_local(away::keep(Rc::clone(context))),
        }
    }

    /// Ends them, all but the keeping of configurations, which has ended when the end began.
    fn end(&self) {
        self.following.abort();
        self.counting.abort();
    }
}

/// Brings what is new to the controller. Where it takes none of it the host ends, unless it may be refused
/// (`may_be_refused`): then it starts what it ran before, and tries again.
async fn bring(
    supervisor: Supervisor,
    client: &Objects,
    news: News,
    mut brought: Brought,
    may_be_refused: bool,
) -> Result<Supervisor> {
    match brought.bring(client.clone(), &news).await {
        Ok(_) => {
            spawn_local(brought::name_deleted(client.clone(), news.known));
        }
        Err(status) if may_be_refused => {
            tracing::error!(%status, "{}; this host starts what it ran before", brought::REFUSED);
            spawn_local(brought::bring_again(client.clone(), news, brought));
        }
        Err(status) => {
            supervisor.give_up().await?;
            return Err(refused(&status));
        }
    }
    Ok(supervisor)
}

/// Done when this host is to end: it is told to, or its certificate is renewed no more, which `over` then explains.
async fn until_end(
    stop: impl Future<Output = ()>,
    renewing: JoinHandle<Over>,
    over: Rc<Cell<Option<Over>>>,
    keeper: AbortHandle,
) {
    tokio::select! {
        () = stop => {}
        ended = renewing => over.set(ended.ok()),
    }
    // From here on sidecars hear how the others of this host end.
    keeper.abort();
    stopping();
}

/// Runs the workloads until `stop` is done, and shows how they are to whoever started them.
async fn run_until(
    stop: impl Future<Output = ()>,
    paths: &Paths,
    args: &Join,
    supervisor: Supervisor,
    signals: &Signals,
) -> Result<()> {
    let follow = notify::follow(paths.clone(), PATIENCE, supervisor.phases());
    spawn_local(follow);
    let view =
        (!args.service).then(|| spawn_local(crate::up::view(paths.clone(), supervisor.phases())));
    let ended = end_early(paths, supervisor.run(stop), signals).await;
    if let Some(view) = view {
        view.abort();
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_is_known_by_its_authority() {
        let known = |fingerprint: &str| KnownController {
            name: "mesh.example:15010".to_owned(),
            fingerprint: fingerprint.to_owned(),
            address: ([192, 0, 2, 1], 15010).into(),
        };
        assert!(!is_another_mesh(Some(&known("0a")), "0a"));
        assert!(is_another_mesh(Some(&known("0a")), "0b"));
        assert!(is_another_mesh(None, "0a"));
    }
}
