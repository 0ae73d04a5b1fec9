//! Holds what every unit of the mesh (workload, gateway) shares: where things are, who to tell.
//!
//! The supervisor is one thread, so this is shared by `Rc` and nothing in it is locked.

use super::direct_places::Direct;
use super::fixed_ports::FixedPorts;
use super::host_authority::HostCertifier;
use super::last_known::LastKnown;
use super::line::Line;
use super::logs;
use super::ports::{Pool, Reserved};
use super::process::SupervisedProcess;
use super::state::Mode;
use crate::client::{self, Objects, Rpc};
use crate::data_plane::{DataPlane, EnvoyPrograms};
use crate::failure::{Failure, OrFail, Result};
use crate::paths::Paths;
use crate::proc::MARK;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::Permissions;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command as StdCommand;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::{Notify, watch};
use tulle_api::v1::{JoinToken, JoinTokenRequest, PlacedPort, Placement};
use tulle_control::host_services::HostServices;
use tulle_model::manifest::MeshSpec;
use tulle_redirect::{Hosts, LaunchSpec, Network, RESOLV_CONF};

/// How long a call to the controller may take before the mesh goes on without it.
pub(crate) const CONTROLLER_TIME: Duration = Duration::from_secs(5);
/// Environment variable by which `tulle join` gets its token; no child has a use for it.
const TOKEN: &str = "TULLE_TOKEN";
/// Environment variables that Tulle's own programs keep.
const KEPT_VARIABLES: [&str; 3] = ["PATH", "TULLE_LOG", "RUST_BACKTRACE"];
/// Variables that applications get from the environment of `tulle up`. The supervisor corrects those that
/// name a user where the application runs as another one.
const APPLICATIONS_VARIABLES: [&str; 8] = [
    "PATH", "LANG", "LC_ALL", "TZ", "HOME", "USER", "LOGNAME", "SHELL",
];

/// Variables of an environment, by name.
pub(crate) type Variables = BTreeMap<OsString, OsString>;

/// Shared by all units.
pub(crate) struct Context {
    /// Where files are.
    pub(crate) paths: Paths,
    /// How workloads are separated.
    pub(crate) mode: Mode,
    /// The sidecars' program.
    pub(crate) data_plane: DataPlane,
    /// The addresses of services, in a mesh without sidecars.
    pub(crate) direct: RefCell<Direct>,
    /// The network, in namespace mode.
    pub(crate) network: Option<Network>,
    /// Name of this host in placements.
    pub(crate) node: String,
    /// Numbers the reports of placements.
    pub(crate) reports: Reports,
    /// Where sidecars find the controller.
    pub(crate) controller: SocketAddr,
    /// Where the console answers, if it does.
    pub(crate) console: Option<SocketAddr>,
    /// Sessions of the console may change the mesh.
    pub(crate) console_actions: bool,
    /// Where other hosts find the controller, if they can reach it at all.
    pub(crate) for_hosts: SocketAddr,
    /// Address that other sidecars reach this host's listeners on.
    pub(crate) reachable: watch::Sender<IpAddr>,
    /// The controller's commands.
    pub(crate) objects: Objects,
    /// The line to it.
    pub(crate) line: Arc<Line>,
    /// Sidecars are to look for the controller anew.
    pub(crate) nudge: Notify,
    /// `tulle-proxy`.
    pub(crate) proxy: PathBuf,
    /// The programs that replace the sidecar beside workloads, where sidecars are Envoy.
    pub(crate) envoy: Option<EnvoyPrograms>,
    /// Something of the state has changed.
    pub(crate) changed: Rc<Notify>,
    /// The mesh's settings.
    pub(crate) mesh: RefCell<MeshSpec>,
    /// The authority of a host that joined, over its own workloads.
    pub(crate) certifier: Option<Rc<HostCertifier>>,
    /// The knowledge that such a host had last.
    pub(crate) last_known: Option<Rc<LastKnown>>,
    /// Services for the proxies of such a host.
    pub(crate) host_services: Option<Arc<HostServices>>,
    /// The fingerprint of the authority, from the controller.
    pub(crate) ca_fingerprint: RefCell<String>,
    /// Warnings for the operator, each once.
    pub(crate) warnings: RefCell<BTreeSet<String>>,
    /// Ports of workloads, by name and port, that are not where the mesh knows them, until the controller has told it.
    pub(crate) moved: RefCell<BTreeMap<(String, u16), Moved>>,
    /// Users of their own that applications and sidecars have, by name.
    pub(crate) users: RefCell<BTreeMap<String, u32>>,
    /// Which numbers are taken.
    pub(crate) numbers: RefCell<Numbers>,
    /// Ports for listeners on the host.
    pub(crate) ports: Pool,
    /// Ports for listeners that other hosts reach.
    pub(crate) inbound_ports: Pool,
    /// Ports that gateways keep.
    pub(crate) fixed_ports: FixedPorts,
}

/// A port that another process took while this host was off.
#[derive(Debug)]
pub(crate) struct Moved {
    before: SocketAddr,
    now: SocketAddr,
}

/// Numbers from which addresses are made. A service keeps its number while the mesh is up, so
/// that a client's open connections and caches stay right.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    workloads: BTreeSet<u16>,
    services: BTreeMap<String, u16>,
}

impl Numbers {
    /// A number that no living workload has.
    pub(crate) fn take(&mut self) -> u16 {
        let free = (0..u16::MAX).find(|n| !self.workloads.contains(n));
        let number = free.unwrap_or(u16::MAX);
        self.workloads.insert(number);
        number
    }

    /// Gives it back.
    pub(crate) fn give_back(&mut self, number: u16) {
        self.workloads.remove(&number);
    }

    /// The service's number.
    pub(crate) fn service(&mut self, name: &str) -> u16 {
        let next = u16::try_from(self.services.len()).unwrap_or(u16::MAX);
        *self.services.entry(name.to_owned()).or_insert(next)
    }
}

/// Numbers reports of placements. The controller ignores a report that comes after one with a higher number.
pub(crate) struct Reports {
    /// Identifies this start of the supervisor.
    reporter: String,
    count: Cell<u64>,
}

impl Reports {
    pub(crate) fn new(reporter: String) -> Self {
        Self {
            reporter,
            count: Cell::default(),
        }
    }

    /// Makes a report of a placement that was read just now. A placement that is read later gets a higher number,
    /// whichever report is sent first.
    pub(crate) fn numbered(&self, placement: Placement) -> Placement {
        self.count.set(self.count.get() + 1);
        Placement {
            reporter: self.reporter.clone(),
            sequence: self.count.get(),
            ..placement
        }
    }
}

impl Context {
    /// Tells the operator once.
    pub(crate) fn warn(&self, text: String) {
        tracing::warn!("{text}");
        self.warnings.borrow_mut().insert(text);
        self.changed.notify_one();
    }

    /// Whether sidecars in namespaces answer the DNS of their applications.
    pub(crate) fn answers_dns(&self) -> bool {
        let settings = self.mesh.borrow().settings();
        self.envoy.is_none() && settings.is_ok_and(|s| s.dns)
    }

    /// Addresses by which clients in namespaces know a service. The hosts file names them.
    pub(crate) fn service_addresses(&self, service: &str) -> Result<Vec<IpAddr>> {
        let Some(network) = &self.network else {
            return Ok(Vec::new());
        };
        if !self.data_plane.has_sidecars() {
            self.write_hosts()?;
            return Ok(Vec::new());
        }
        let number = self.numbers.borrow_mut().service(service);
        let (v4, v6) = network
            .plan()
            .service(number)
            .ok_or_else(|| Failure::new("the mesh has no address left for another service"))?;
        self.write_hosts()?;
        Ok([Some(v4.into()), v6.map(IpAddr::from)]
            .into_iter()
            .flatten()
            .collect())
    }

    /// Writes the names of all services for the namespaces.
    pub(crate) fn write_hosts(&self) -> Result<()> {
        let Some(network) = &self.network else {
            return Ok(());
        };
        let mut hosts = Hosts::new();
        for (service, address) in self.direct.borrow().addresses() {
            hosts
                .insert(address, [service])
                .or_fail(|| format!("cannot give the service {service} a name"))?;
        }
        for (service, number) in &self.numbers.borrow().services {
            let Some((v4, v6)) = network.plan().service(*number) else {
                continue;
            };
            for address in [Some(IpAddr::from(v4)), v6.map(IpAddr::from)] {
                let Some(address) = address else { continue };
                hosts
                    .insert(address, [service])
                    .or_fail(|| format!("cannot give the service {service} a name"))?;
            }
        }
        let what = || "cannot write the names of the services".to_owned();
        hosts.write(&self.paths.hosts()).or_fail(what)?;
        std::fs::write(self.paths.resolv_conf(), RESOLV_CONF).or_fail(what)?;
        // Whatever the umask: applications are other users than this one.
        for file in [self.paths.hosts(), self.paths.resolv_conf()] {
            std::fs::set_permissions(file, Permissions::from_mode(0o644)).or_fail(what)?;
        }
        Ok(())
    }

    /// Tells the controller where a workload runs.
    pub(crate) async fn report(&self, placement: Placement) -> Result<()> {
        self.send_report(self.reports.numbered(placement)).await
    }

    /// Sends a report that has its number.
    pub(crate) async fn send_report(&self, placement: Placement) -> Result<()> {
        let name = placement.workload.clone();
        let mut objects = self.objects.clone();
        let call = objects.report_placement(placement);
        match tokio::time::timeout(CONTROLLER_TIME, call).await {
            Ok(answer) => answer
                .rpc(|| format!("cannot tell the controller where {name} runs"))
                .map(drop),
            Err(_) => Err(Failure::new(format!(
                "cannot tell the controller where {name} runs: it does not answer"
            ))),
        }
    }

    /// A one-time token with which a proxy of this identity gets its certificate.
    pub(crate) async fn token(&self, identity: &str, patience: Duration) -> Result<JoinToken> {
        let what = || format!("cannot get a join token for {identity}");
        let mut objects = self.objects.clone();
        let request = JoinTokenRequest {
            identity: identity.to_owned(),
            ttl_seconds: 300,
        };
        let call = objects.create_join_token(request);
        match tokio::time::timeout(patience, call).await {
            Ok(answer) => answer.rpc(what),
            Err(_) => Err(Failure::new(what()).because("the controller does not answer")),
        }
    }

    /// The mark of this mesh, and only the named variables of this process's environment, which may hold secrets.
    fn variables<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Variables {
        // `tulle join` may have got its token by one; no child has a use for it.
        let named = names.into_iter().filter(|name| *name != TOKEN);
        let named = named.filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
        let mark = (MARK.into(), self.paths.run.clone().into());
        named.chain([mark]).collect()
    }

    /// Completes the command of a launch, with its output in a log. Until it is the program, it is one of Tulle's own,
    /// with variables and mark as such.
    fn command(
        &self,
        command: std::io::Result<StdCommand>,
        program: &Path,
        log: &Path,
    ) -> std::result::Result<Command, String> {
        let mut command =
            command.map_err(|e| format!("cannot start {}: {e}", program.display()))?;
        let log_error = |e| format!("cannot write {}: {e}", log.display());
        let out = logs::open(log).map_err(log_error)?;
        let err = logs::open(log).map_err(log_error)?;
        command
            .envs(self.variables(KEPT_VARIABLES))
            .stdin(std::process::Stdio::null())
            .stdout(out)
            .stderr(err);
        Ok(command.into())
    }

    /// The command of a program of Tulle's own, which may inherit files.
    pub(crate) fn own_command(
        &self,
        launch: &LaunchSpec,
        program: &Path,
        log: &Path,
        passed: Vec<OwnedFd>,
    ) -> std::result::Result<Command, String> {
        let variables = self.variables(KEPT_VARIABLES);
        let command = launch.command_passing(program, variables, passed);
        self.command(command, program, log)
    }

    /// The command of an application, which may ask for more variables, and has some of its own, which win.
    pub(crate) fn application_command(
        &self,
        launch: &LaunchSpec,
        program: &Path,
        log: &Path,
        passed: &[String],
        own: Variables,
    ) -> std::result::Result<Command, String> {
        let passed = passed.iter().map(String::as_str);
        let mut variables = self.variables(APPLICATIONS_VARIABLES.into_iter().chain(passed));
        variables.extend(own);
        self.command(launch.command(program, variables), program, log)
    }

    /// A port of one of this host's addresses, for a child of this process.
    pub(crate) fn free_port(&self, address: IpAddr) -> Result<Reserved> {
        self.ports.take(address)
    }

    /// A port at which sidecars of other hosts reach one of this host: on a host that joined the one that it had before,
    /// which is what the others know for as long as no controller tells them another.
    pub(crate) fn inbound_port(&self, workload: &str, port: u16) -> Result<Reserved> {
        let address = *self.reachable.borrow();
        let Some(known) = &self.last_known else {
            return self.inbound_ports.take(address);
        };
        let before = known.port(workload, port);
        let needed = self.line.is_away();
        let again = before.and_then(|p| self.inbound_ports.take_again(address, p, needed));
        let taken = match again {
            Some(reserved) => reserved,
            None => self
                .inbound_ports
                .take_beside(address, |port| known.has_port(port))?,
        };
        let (key, now) = ((workload.to_owned(), port), taken.address());
        match before.filter(|before| needed && *before != now.port()) {
            Some(before) => {
                let before = SocketAddr::new(address, before);
                let moved = Moved { before, now };
                tracing::warn!("{}", moved_text(&key, &moved));
                self.moved.borrow_mut().insert(key, moved);
                self.changed.notify_one();
            }
            None => {
                known.note_ports([(workload, port, now.port())]);
                if self.moved.borrow_mut().remove(&key).is_some() {
                    self.changed.notify_one();
                }
            }
        }
        Ok(taken)
    }

    /// Warnings for the operator.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let (warnings, moved) = (self.warnings.borrow(), self.moved.borrow());
        let moved = moved.iter().map(|(key, moved)| moved_text(key, moved));
        warnings.iter().cloned().chain(moved).collect()
    }

    /// The controller tells the mesh where the ports are that have moved. Until then the ones that it knew were kept: they
    /// are the right ones for a start without it, and may be free by then.
    pub(crate) fn note_moved(&self) {
        let moved = std::mem::take(&mut *self.moved.borrow_mut());
        let ports = moved.iter();
        let ports =
            ports.map(|((workload, port), moved)| (workload.as_str(), *port, moved.now.port()));
        if let Some(known) = &self.last_known {
            known.note_ports(ports);
        }
    }
}

fn moved_text((workload, port): &(String, u16), Moved { before, now }: &Moved) -> String {
    format!(
        "port {port} of {workload} is at {now}, for another process has {before}, where the mesh knows it; calls to it \
         fail until the controller answers (--inbound-ports gives a host ports that nothing else takes)"
    )
}

/// Placement of a workload that has ended.
pub(crate) fn gone(workload: &str, node: &str) -> Placement {
    Placement {
        workload: workload.to_owned(),
        node: node.to_owned(),
        gone: true,
        ..Default::default()
    }
}

/// One port of a placement.
pub(crate) fn placed(port: u16, endpoint: SocketAddr, target: SocketAddr) -> PlacedPort {
    PlacedPort {
        port: port.into(),
        endpoint: endpoint.to_string(),
        target: target.to_string(),
        mutual_tls: true,
    }
}

/// The client for a mesh's own controller.
pub(crate) fn objects(paths: &Paths) -> Objects {
    client::lazy(&paths.socket())
}

/// The state of a unit's process before and after it is kept.
pub(crate) fn process_of(kept: Option<&SupervisedProcess>) -> super::state::Process {
    kept.map(SupervisedProcess::process).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_placement_that_was_read_earlier_is_an_older_report_though_it_is_sent_later() {
        let reports = Reports::new("r".to_owned());
        let read = |not_ready| {
            reports.numbered(Placement {
                not_ready,
                ..Placement::default()
            })
        };
        // A task that sends it runs later.
        let again = read(true);
        let again = async move { again };
        let news = read(false);
        let again = again.await;
        assert_eq!((news.not_ready, again.not_ready), (false, true));
        assert_eq!(news.reporter, again.reporter);
        assert!(again.sequence < news.sequence);
    }

    #[test]
    fn numbers_are_given_once_and_again_when_free() {
        let mut numbers = Numbers::default();
        assert_eq!((numbers.take(), numbers.take(), numbers.take()), (0, 1, 2));
        numbers.give_back(1);
        assert_eq!((numbers.take(), numbers.take()), (1, 3));
        assert_eq!(numbers.service("b"), 0);
        assert_eq!(numbers.service("a"), 1);
        assert_eq!(numbers.service("b"), 0);
    }
}
