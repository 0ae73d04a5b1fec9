//! Records what the supervisor knows about itself and its children, in a file that other commands read.
//!
//! The file is replaced whole, so a reader never sees half of it. It also holds what a later
//! `down` needs to end the mesh: process ids together with their start times, since an id alone
//! may by then belong to somebody else.

use crate::data_plane::DataPlane;
use crate::failure::{Failure, OrFail, Result};
use crate::paths::Paths;
use crate::proc::ProcessId;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// How workloads are separated and reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// One network namespace per workload, transparent redirection.
    Namespaces,
    /// Everything on loopback, declared upstreams.
    Loopback,
}

/// Life of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// Not every service has answered yet.
    Starting,
    /// Every service has answered.
    Running,
    /// Draining.
    Stopping,
}

/// Life of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProcessPhase {
    /// Not started yet.
    #[default]
    Waiting,
    /// Alive.
    Running,
    /// Ended; started again after a pause.
    Restarting,
    /// Ended on purpose.
    Stopped,
}

/// A child.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Its id and start time while it lives.
    pub(crate) id: Option<ProcessId>,
    /// The one before, which goes on until this one has taken over.
    #[serde(default)]
    pub(crate) before: Option<ProcessId>,
    /// Processes from which this one has taken over, while they finish what they began.
    #[serde(default)]
    pub(crate) leaving: Vec<ProcessId>,
    /// The phase of its life.
    pub(crate) phase: ProcessPhase,
    /// How often it was started again.
    pub(crate) restarts: u32,
    /// How it ended last, or why it could not be started.
    pub(crate) last_exit: Option<String>,
}

impl Process {
    /// Lists the processes beside the present one that still serve somebody.
    pub(crate) fn earlier(&self) -> impl Iterator<Item = ProcessId> {
        self.before.iter().chain(&self.leaving).copied()
    }
}

/// A proxy: sidecar or gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Proxy {
    /// Its process.
    pub(crate) process: Process,
    /// It has its certificate and configuration.
    pub(crate) ready: bool,
    /// Its SPIFFE id.
    pub(crate) identity: String,
    /// A new process can take over from it while its application goes on.
    #[serde(default)]
    pub(crate) replaceable: bool,
    /// Where it is asked.
    pub(crate) admin_socket: PathBuf,
    /// Where its administration is, seen from where it runs.
    pub(crate) admin: Option<SocketAddr>,
    /// Where this host reaches its metrics.
    pub(crate) metrics: Option<SocketAddr>,
}

/// A workload and its sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Workload {
    /// Name.
    pub(crate) name: String,
    /// Service it belongs to.
    pub(crate) service: String,
    /// Its process; none when it was already running.
    pub(crate) app: Option<Process>,
    /// Its sidecar, if it has one.
    pub(crate) sidecar: Option<Proxy>,
    /// Its probe passed.
    pub(crate) ready: bool,
    /// Why it is not ready.
    pub(crate) message: String,
    /// `ip:port` of each port, as other sidecars reach it.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Addresses of its service and its own.
    pub(crate) addresses: Vec<IpAddr>,
    /// Its network namespace.
    pub(crate) namespace: Option<String>,
}

/// A gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Gateway {
    /// Name.
    pub(crate) name: String,
    /// Its proxy.
    pub(crate) proxy: Proxy,
    /// Where it listens.
    pub(crate) listeners: Vec<SocketAddr>,
    /// Why it is not ready.
    pub(crate) message: String,
}

/// The whole file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunState {
    /// Version of the supervisor.
    pub(crate) version: String,
    /// Name of the mesh.
    pub(crate) mesh: String,
    /// The supervisor.
    pub(crate) supervisor: ProcessId,
    /// The janitor.
    pub(crate) janitor: Process,
    /// Name of this host if it joined another host's mesh.
    pub(crate) node: String,
    /// How workloads are separated.
    pub(crate) mode: Mode,
    /// The sidecars' program.
    pub(crate) data_plane: DataPlane,
    /// The phase of its life.
    pub(crate) phase: Phase,
    /// Where the controller listens.
    pub(crate) controller_address: SocketAddr,
    /// A host that joined has not heard it for a while.
    #[serde(default)]
    pub(crate) controller_away: bool,
    /// Where the console answers, if it does.
    #[serde(default)]
    pub(crate) console: Option<SocketAddr>,
    /// Where other hosts find the controller, if they can reach it at all.
    pub(crate) address_for_hosts: SocketAddr,
    /// SHA-256 of the CA's certificate.
    pub(crate) ca_fingerprint: String,
    /// The controller.
    pub(crate) controller: Process,
    /// Workloads by name.
    pub(crate) workloads: Vec<Workload>,
    /// Gateways by name.
    pub(crate) gateways: Vec<Gateway>,
    /// Warnings for the operator.
    pub(crate) warnings: Vec<String>,
}

impl RunState {
    /// Returns the processes that a run has written down, if there is one: some may be gone.
    pub(crate) fn recorded(paths: &Paths) -> Vec<ProcessId> {
        let state = Self::read(paths).ok().flatten();
        state.map(|state| state.children()).unwrap_or_default()
    }

    /// Every process that is alive, the supervisor and its janitor excepted.
    fn children(&self) -> Vec<ProcessId> {
        let apps = self.workloads.iter().filter_map(|w| w.app.as_ref());
        let sidecars = self.workloads.iter().filter_map(|w| w.sidecar.as_ref());
        let sidecars = sidecars.map(|s| &s.process);
        let gateways = self.gateways.iter().map(|g| &g.proxy.process);
        apps.chain(sidecars)
            .chain(gateways)
            .chain([&self.controller])
            .flat_map(|p| p.id.into_iter().chain(p.earlier()))
            .collect()
    }

    /// Everything that was asked for answers.
    pub(crate) fn all_ready(&self) -> bool {
        self.workloads.iter().all(|w| w.ready) && self.gateways.iter().all(|g| g.proxy.ready)
    }

    /// Lists the workloads and gateways that are not ready, each with its reason.
    pub(crate) fn not_ready(&self) -> Vec<String> {
        let line = |kind: &str, name: &str, message: &str| format!("{kind} {name}: {message}");
        let workloads = self.workloads.iter().filter(|w| !w.ready);
        let gateways = self.gateways.iter().filter(|g| !g.proxy.ready);
        workloads
            .map(|w| line("workload", &w.name, &w.message))
            .chain(gateways.map(|g| line("gateway", &g.name, &g.message)))
            .collect()
    }

    /// Replaces the file.
    pub(crate) fn write(&self, paths: &Paths) -> Result<()> {
        let file = paths.run_state();
        let what = || format!("cannot write {}", file.display());
        let text = serde_json::to_string_pretty(self).or_fail(what)?;
        let new = file.with_extension("json.new");
        let mut out = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)
            .or_fail(what)?;
        out.write_all(text.as_bytes()).or_fail(what)?;
        fs::rename(&new, &file).or_fail(what)
    }

    /// Reads the file, whether or not the supervisor still lives. None: no mesh.
    pub(crate) fn read(paths: &Paths) -> Result<Option<Self>> {
        let file = paths.run_state();
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => {
                return Err(Failure::new(format!("cannot read {}", file.display()))
                    .because(e)
                    .fix("run this as the user who ran `tulle up`"));
            }
        };
        let state = serde_json::from_str(&text)
            .or_fail(|| format!("{} is not as this version writes it", file.display()))
            .map_err(|f| f.fix("stop the mesh with the version of tulle that started it"))?;
        Ok(Some(state))
    }

    /// The mesh that is up, or a failure that says how to start one.
    pub(crate) fn of_running(paths: &Paths) -> Result<Self> {
        let none = || {
            Failure::new("no mesh is up here").because(format!("looked in {}", paths.run.display()))
        };
        let hint = "start one with `tulle up FILE`, or name another with --state or --name";
        match Self::read(paths)? {
            None => Err(none().fix(hint)),
            Some(state) if !state.supervisor.is_alive() => Err(Failure::new("the mesh is not up")
                .because("its supervisor ended without being told to")
                .fix("clear up with `tulle down`, then `tulle up`; `tulle logs supervisor` shows why it ended")),
            Some(state) => Ok(state),
        }
    }
}
