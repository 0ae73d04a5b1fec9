//! One mesh, started and asked as anybody would: by `tulle up`, `tulle status` and `tulle down`.

use super::plane::Plane;
use crate::failure::{Failure, OrFail, Result};
use crate::interrupt::Interrupt;
use crate::janitor::{self, JanitorWatch, Thing};
use crate::peer::http;
use crate::process::{Process, family};
use serde::Deserialize;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long services may take to answer: a Java program on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Requests in flight are of no more use; nothing is to be left.
const DOWN: [&str; 4] = ["down", "--purge", "--timeout", "10s"];

/// A mesh that is up. It goes down with this value.
pub(super) struct Mesh {
    /// `tulle`, and the options that say which mesh.
    tulle: PathBuf,
    which: [String; 4],
    up: bool,
    _watch: JanitorWatch,
}

/// The parts of `tulle status` that the study reads.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Status {
    /// Services with their workloads.
    pub(super) services: Vec<Service>,
    /// Sidecars and gateways' proxies.
    pub(super) proxies: Vec<Proxy>,
    /// Callers and services that talked.
    pub(super) edges: Vec<Edge>,
    /// Warnings for the operator.
    pub(super) warnings: Vec<String>,
}

/// A service.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Service {
    /// Its workloads.
    pub(super) workloads: Vec<Workload>,
}

/// A workload.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Workload {
    /// Name.
    pub(super) name: String,
    /// Its process.
    pub(super) pid: Option<u32>,
}

/// A proxy.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Proxy {
    /// Workload, or `gateway.<name>`.
    pub(super) workload: String,
    /// Its process; with Envoy that of its agent.
    pub(super) pid: Option<u32>,
    /// How often it was started again.
    pub(super) restarts: u32,
    /// Where it is asked.
    pub(super) admin_socket: PathBuf,
}

/// A caller and a service that talked, and how.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Edge {
    /// SPIFFE id of the caller; empty for a client outside the mesh.
    pub(super) source: String,
    /// SPIFFE id of the called side.
    pub(super) destination: String,
    /// `mutual_tls` or `plaintext`.
    pub(super) security: String,
    /// HTTP requests.
    pub(super) requests: u64,
    /// Requests refused by policy.
    pub(super) denied: u64,
}

/// Settings to start a mesh with.
pub(super) struct Start<'a> {
    /// This program.
    pub(super) tulle: &'a Path,
    /// Envoy, for its rounds.
    pub(super) envoy: Option<&'a Path>,
    /// Which sidecars.
    pub(super) plane: Plane,
    /// Its manifests.
    pub(super) manifest: &'a str,
}

impl Mesh {
    /// Starts it; returns when every service answers.
    pub(super) fn up(start: &Start<'_>, place: &Path, interrupt: &Interrupt) -> Result<Self> {
        let file = place.join("mesh.yaml");
        fs::write(&file, start.manifest).or_fail(|| format!("cannot write {}", file.display()))?;
        let mut command = Command::new(start.tulle);
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let name = format!("bench-{}", std::process::id());
        let which = ["--name", &name, "--state", &text(&place.join("state"))].map(str::to_owned);
        let down = DOWN.map(str::to_owned).into_iter().chain(which.clone());
        let down = std::iter::once(text(start.tulle)).chain(down);
        let mesh = Self {
            tulle: start.tulle.to_owned(),
            which,
            up: true,
            _watch: janitor::watch(Thing::Command(down.collect())),
        };
        command
            .arg("up")
            .arg(&file)
            .arg("--detach")
            .args(["--timeout", &format!("{}s", PATIENCE.as_secs())])
            .args(&mesh.which);
        match start.plane {
            Plane::Tulle => {}
            Plane::None => drop(command.args(["--data-plane", "none"])),
            Plane::Envoy => {
                command.args(["--data-plane", "envoy"]);
                if let Some(envoy) = start.envoy {
                    command.arg("--envoy").arg(envoy);
                }
            }
        }
        let log = place.join("up.log");
        let _ = fs::remove_file(&log);
        let mut up = Process::start("tulle up", command, &[], &log)?;
        let status = up.wait(PATIENCE + Duration::from_secs(30), interrupt)?;
        if status.success() {
            return Ok(mesh);
        }
        Err(Failure::failed(format!(
            "the mesh did not come up ({status}): {}",
            up.tail()
        )))
    }

    /// Returns the current output of `tulle status`.
    pub(super) fn status(&self) -> Result<Status> {
        let mut command = Command::new(&self.tulle);
        command.args(["status", "-o", "json"]).args(&self.which);
        let output = command
            .stdin(Stdio::null())
            .output()
            .or_fail(|| "cannot run `tulle status`".to_owned())?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::failed(format!("`tulle status`: {}", text.trim())));
        }
        serde_json::from_slice(&output.stdout)
            .or_fail(|| "cannot read the output of `tulle status`".to_owned())
    }

    /// Ends it and removes everything of it.
    pub(super) fn down(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.up = false;
        let mut command = Command::new(&self.tulle);
        command.args(DOWN).args(&self.which).stdin(Stdio::null());
        // A Ctrl-C of the terminal must not keep it from its work.
        command.process_group(0);
        let output = command
            .output()
            .or_fail(|| "cannot run `tulle down`".to_owned())?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(Failure::failed(format!("`tulle down`: {}", text.trim())))
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        if self.up {
            let _ = self.end();
        }
    }
}

impl Status {
    /// The process of a workload's sidecar, or of the ingress.
    pub(super) fn proxy(&self, name: &str) -> Result<u32> {
        let found = self.proxies.iter().find(|p| p.workload == name);
        found
            .and_then(|p| p.pid)
            .ok_or_else(|| Failure::failed(format!("the proxy of {name} has no process")))
    }

    /// The metrics of a workload's sidecar.
    pub(super) fn metrics(&self, workload: &str) -> std::result::Result<String, String> {
        let found = self.proxies.iter().find(|p| p.workload == workload);
        let proxy = found.ok_or_else(|| format!("{workload} has no sidecar"))?;
        http::get_unix(&proxy.admin_socket, "/metrics")
    }

    /// The processes of a workload.
    pub(super) fn app(&self, name: &str) -> Vec<u32> {
        let workloads = self.services.iter().flat_map(|s| &s.workloads);
        let found = workloads.filter(|w| w.name == name).filter_map(|w| w.pid);
        found.flat_map(family).collect()
    }
}

/// A loopback port that is free now.
pub(super) fn free_port() -> Result<u16> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let what = || "cannot find a free port".to_owned();
    let listener = TcpListener::bind(any).or_fail(what)?;
    Ok(listener.local_addr().or_fail(what)?.port())
}
