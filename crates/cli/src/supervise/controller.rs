//! The controller as a child: where it listens, its start, and the objects it is given first.

use super::context::Context;
use super::ports::{self, Pool, Reserved};
use super::process::{Make, SupervisedProcess};
use super::state::{Mode, ProcessPhase};
use crate::args::console::ConsoleChoice;
use crate::args::sidecars::Sidecars;
use crate::args::up::MeshOptions;
use crate::client::{Objects, Rpc};
use crate::data_plane::{DataPlane, EnvoyPrograms};
use crate::failure::{Failure, OrFail, Result};
use crate::paths::Paths;
use crate::port_range::PortRange;
use crate::programs::Program;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tulle_api::v1::{Applied, ApplyRequest, DeleteRequest, ListRequest, Object, StatusRequest};
use tulle_redirect::{Claim, LaunchSpec, Network, available};

const PORT: u16 = 15010;
const CONSOLE_PORT: u16 = 15012;
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const START_TIME: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(5);

/// Removed last, in this order: what others refer to.
const LAST: [&str; 4] = ["Secret", "Gateway", "Workload", "Mesh"];

/// Decided before anything is made.
pub(crate) struct Plan {
    /// How workloads are separated.
    pub(crate) mode: Mode,
    /// The sidecars' program.
    pub(crate) data_plane: DataPlane,
    /// The network, in namespace mode.
    pub(crate) network: Option<Network>,
    /// Held until the network is made.
    pub(crate) claim: Cell<Option<Claim>>,
    /// Where the controller listens; none on a host that joined.
    pub(crate) listen: Option<SocketAddr>,
    /// Holds the controller's port, unless the operator named it.
    pub(crate) _reserved: Option<Reserved>,
    /// Where the console answers, if it does.
    pub(crate) console: Option<SocketAddr>,
    /// Sessions of the console may change the mesh.
    pub(crate) console_actions: bool,
    /// Holds its port, unless the operator named it.
    pub(crate) _console_reserved: Option<Reserved>,
    /// Where sidecars find the controller.
    pub(crate) controller: SocketAddr,
    /// Where other hosts find the controller, if they can reach it at all.
    pub(crate) for_hosts: SocketAddr,
    /// Where other sidecars reach listeners on the host.
    pub(crate) reachable: IpAddr,
    /// Ports of those listeners; none: any free ones.
    pub(crate) inbound_ports: Option<PortRange>,
    /// The proxy's program.
    pub(crate) proxy: PathBuf,
    /// Those of Envoy sidecars.
    pub(crate) envoy: Option<EnvoyPrograms>,
}

/// Decides how the mesh runs on this host.
pub(crate) fn plan(paths: &Paths, up: &MeshOptions) -> Result<Plan> {
    let mode = if up.loopback || !available().is_complete() {
        Mode::Loopback
    } else {
        Mode::Namespaces
    };
    if up.inbound_ports.is_some() && !up.sidecars.data_plane.has_sidecars() {
        return Err(
            Failure::usage("--inbound-ports has no effect with --data-plane none")
                .because("without sidecars callers connect to the applications' own ports"),
        );
    }
    let claim = (mode == Mode::Namespaces).then(Claim::take);
    let network = match mode {
        Mode::Loopback => None,
        Mode::Namespaces => {
            Some(Network::new(&paths.name).or_fail(|| "cannot plan the network".to_owned())?)
        }
    };
    let host = network
        .as_ref()
        .map_or(LOCALHOST, |n| n.plan().host().0.into());
    let (listen, reserved) = match up.listen {
        Some(listen) => {
            let reachable = listen.ip().is_unspecified() || listen.ip() == host;
            if mode == Mode::Namespaces && !reachable {
                return Err(Failure::usage(format!(
                    "the controller cannot listen on {listen}"
                ))
                .because("sidecars in namespaces reach the host only at its address on the bridge")
                .fix(format!("--listen 0.0.0.0:{PORT}, or --loopback")));
            }
            match listen.port() {
                // Decided here and not by the kernel: the port must be the same after a restart.
                0 => chosen(listen.ip())?,
                _ => (listen, None),
            }
        }
        None => default_address(host)?,
    };
    let (console, console_reserved) = console_address(up)?;
    let reachable = up.advertise.unwrap_or(host);
    let at = |ip: IpAddr| match listen.ip().is_unspecified() {
        true => SocketAddr::new(ip, listen.port()),
        false => listen,
    };
    Ok(Plan {
        mode,
        data_plane: up.sidecars.data_plane,
        network,
        claim: Cell::new(claim),
        listen: Some(listen),
        _reserved: reserved,
        console,
        console_actions: up.console_actions,
        _console_reserved: console_reserved,
        controller: at(host),
        for_hosts: at(reachable),
        reachable,
        inbound_ports: up.inbound_ports,
        proxy: usable_proxy(paths)?,
        envoy: envoy_programs(paths, &up.sidecars)?,
    })
}

/// Why it is loopback mode, if nobody asked for it.
pub(crate) fn mode_note(up: &MeshOptions) -> Option<String> {
    let here = available();
    (!up.loopback && !here.is_complete()).then(|| {
        format!(
            "loopback mode (declared upstreams only): {}",
            here.why_not.join("; ")
        )
    })
}

/// 15010 unless somebody has it, another mesh for instance. On a bridge that is not there yet
/// nobody can have it.
fn default_address(host: IpAddr) -> Result<(SocketAddr, Option<Reserved>)> {
    let default = SocketAddr::new(host, PORT);
    match Reserved::bind_again(default) {
        Ok(reserved) => Ok((default, Some(reserved))),
        Err(e) if e.kind() == std::io::ErrorKind::AddrNotAvailable => Ok((default, None)),
        Err(_) => chosen(host),
    }
}

/// 15012 of loopback unless the operator says otherwise or somebody has it. The port is the same after a restart of the
/// controller.
fn console_address(up: &MeshOptions) -> Result<(Option<SocketAddr>, Option<Reserved>)> {
    let default = SocketAddr::new(LOCALHOST, CONSOLE_PORT);
    let (address, reserved) = match up.console {
        Some(ConsoleChoice::Off) if up.console_actions => {
            return Err(Failure::usage(
                "--console-actions has no effect with --console off",
            ));
        }
        Some(ConsoleChoice::Off) => return Ok((None, None)),
        Some(ConsoleChoice::At(address)) if address.port() == 0 => chosen(address.ip())?,
        Some(ConsoleChoice::At(address)) => {
            ports::free(address)?;
            (address, None)
        }
        None => match Reserved::bind_again(default) {
            Ok(reserved) => (default, Some(reserved)),
            Err(_) => chosen(LOCALHOST)?,
        },
    };
    Ok((Some(address), reserved))
}

fn chosen(host: IpAddr) -> Result<(SocketAddr, Option<Reserved>)> {
    let reserved = Pool::new().take(host)?;
    Ok((reserved.address(), Some(reserved)))
}

/// Programs that sidecars' user runs.
pub(super) const COPIED: [&str; 3] = ["proxy", "agent", "envoy"];

/// The proxy as its user can run it.
pub(crate) fn usable_proxy(paths: &Paths) -> Result<PathBuf> {
    usable(paths, "proxy", Program::PROXY.find()?)
}

/// The agent as its user can run it.
pub(crate) fn usable_agent(paths: &Paths) -> Result<PathBuf> {
    usable(paths, "agent", Program::AGENT.find()?)
}

/// The agent and Envoy as their user can run them, where sidecars are Envoy.
pub(crate) fn envoy_programs(paths: &Paths, sidecars: &Sidecars) -> Result<Option<EnvoyPrograms>> {
    if sidecars.data_plane != DataPlane::Envoy {
        return Ok(None);
    }
    Ok(Some(EnvoyPrograms {
        agent: usable_agent(paths)?,
        envoy: usable(paths, "envoy", find_envoy(sidecars.envoy.as_deref())?)?,
    }))
}

fn find_envoy(named: Option<&Path>) -> Result<PathBuf> {
    let found = match named {
        Some(named) => Some(named.to_owned()),
        None => {
            let on_path = std::env::var_os("PATH").unwrap_or_default();
            let mut on_path = std::env::split_paths(&on_path).map(|d| d.join("envoy"));
            on_path.find(|p| p.is_file())
        }
    };
    found
        .as_ref()
        .and_then(|p| p.canonicalize().ok())
        .filter(|p| p.is_file())
        .ok_or_else(|| {
            let found = found.map_or("it is not on the PATH".to_owned(), |p| {
                format!("{} is not a program", p.display())
            });
            Failure::new("cannot find Envoy")
                .because(found)
                .fix("install Envoy 1.40, or name its program with --envoy or TULLE_ENVOY")
        })
}

/// The program itself, or a copy where it can be reached.
fn usable(paths: &Paths, program: &str, found: PathBuf) -> Result<PathBuf> {
    match paths.program_copy(program) {
        Some(copy) if !anyone_can_run(&found) => copy_program(&found, &copy),
        _ => Ok(found),
    }
}

/// Every directory on the way and the file itself let others through.
fn anyone_can_run(program: &Path) -> bool {
    program
        .ancestors()
        .all(|p| fs::metadata(p).is_ok_and(|m| m.permissions().mode() & 0o001 != 0))
}

fn copy_program(from: &Path, to: &Path) -> Result<PathBuf> {
    let what = || {
        format!(
            "cannot copy {} to {} for the users that sidecars run as",
            from.display(),
            to.display()
        )
    };
    // A running copy cannot be written over, but it can be replaced.
    let new = to.with_extension("new");
    fs::copy(from, &new).or_fail(what)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).or_fail(what)?;
    fs::rename(&new, to).or_fail(what)?;
    Ok(to.to_owned())
}

/// Starts it and keeps it running.
pub(crate) fn start(context: &Rc<Context>, listen: SocketAddr) -> SupervisedProcess {
    let changed = Rc::clone(&context.changed);
    let context = Rc::clone(context);
    let make: Make = Box::new(move |_| {
        let command = command(&context, listen);
        Box::pin(async move { command })
    });
    SupervisedProcess::start("controller".into(), GRACE, changed, make)
}

fn command(
    context: &Context,
    listen: SocketAddr,
) -> std::result::Result<tokio::process::Command, String> {
    let own = own_program();
    let log = context.paths.log("controller");
    let mut command = context.own_command(&LaunchSpec::default(), &own, &log, Vec::new())?;
    command
        .arg("controller")
        .arg("--dir")
        .arg(context.paths.controller_state())
        .arg("--listen")
        .arg(listen.to_string())
        .arg("--socket")
        .arg(context.paths.socket());
    if let Some(console) = context.console {
        command.arg("--console").arg(console.to_string());
        if context.console_actions {
            command.arg("--console-actions");
        }
    }
    Ok(command)
}

/// Returns the path of this program: of what is installed there now, if it was replaced. The link is for
/// one that was removed.
fn own_program() -> PathBuf {
    let own = std::env::current_exe().ok().map(replaced);
    let own = own.filter(|p| p.exists());
    own.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

/// The kernel marks the path of a running program whose file is no longer there.
fn replaced(own: PathBuf) -> PathBuf {
    let path = own.to_str().and_then(|p| p.strip_suffix(" (deleted)"));
    path.map(PathBuf::from).unwrap_or(own)
}

/// Waits until it answers.
pub(crate) async fn wait(context: &Context, kept: Option<&SupervisedProcess>) -> Result<()> {
    let until = Instant::now() + START_TIME;
    let mut objects = context.objects.clone();
    loop {
        let failed = match objects.status(StatusRequest::default()).await {
            Ok(status) => {
                *context.ca_fingerprint.borrow_mut() = status.into_inner().ca_fingerprint;
                return Ok(());
            }
            Err(status) => crate::client::failure("the controller does not answer", &status),
        };
        let process = kept.map(SupervisedProcess::process).unwrap_or_default();
        let again = process.phase == ProcessPhase::Restarting && process.restarts >= 3;
        if again || Instant::now() >= until {
            let log = context.paths.log("controller");
            let last = last_lines(&log, 5);
            return Err(match process.last_exit {
                Some(exit) => Failure::new(format!("the controller keeps ending ({exit})"))
                    .because(format!("the end of its log:\n{last}")),
                None => failed,
            }
            .fix(format!("see {}", log.display())));
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// The end of a text file; empty if it cannot be read.
pub(crate) fn last_lines(file: &Path, count: usize) -> String {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(count);
    lines.get(from..).unwrap_or_default().join("\n")
}

/// Sorts objects so that those which refer to others are removed first.
pub(crate) fn sort_for_removal<T>(objects: &mut [T], kind: impl Fn(&T) -> &str) {
    objects.sort_by_key(|o| LAST.iter().position(|k| *k == kind(o)));
}

/// Stores objects, all or none of them; then removes those that are gone, given by kind and name in the order of
/// their removal.
///
/// A mesh has at most one Mesh: one that is gone is deleted in the very step that stores another. So a mesh goes by one
/// of them at any time, and by the one before if the objects are refused. A crash after that step leaves the new objects
/// beside what is still to be removed; the next start does both again, and finds them half done.
pub(crate) async fn replace(
    objects: &mut Objects,
    wanted: Vec<Object>,
    gone: Vec<(String, String)>,
) -> Result<Vec<Applied>> {
    let mesh = gone.iter().find(|(kind, _)| kind == "Mesh");
    let request = ApplyRequest {
        objects: wanted,
        replaces_mesh: mesh.map(|(_, name)| name.clone()).unwrap_or_default(),
        ..Default::default()
    };
    let answer = objects
        .apply(request)
        .await
        .rpc(|| "the manifests were refused; nothing was stored".to_owned())?;
    let mut results = answer.results;
    for (kind, name) in gone {
        results.push(remove(objects, kind, name).await?);
    }
    Ok(results)
}

/// Removes an object. It may be gone already.
async fn remove(objects: &mut Objects, kind: String, name: String) -> Result<Applied> {
    let request = DeleteRequest {
        kind: kind.clone(),
        name: name.clone(),
    };
    objects
        .delete(request)
        .await
        .rpc(|| format!("cannot remove {kind}/{name}"))?;
    Ok(Applied {
        kind,
        name,
        outcome: "removed".into(),
    })
}

/// Stores the objects; then removes those that are not among them, unless they are to be kept or
/// belong to another host.
pub(crate) async fn prepare_objects(
    objects: &mut Objects,
    wanted: Vec<Object>,
    keep: bool,
) -> Result<Vec<Applied>> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let named: BTreeSet<(String, String)> = wanted
        .iter()
        .map(|o| (o.kind.clone(), o.name.clone()))
        .collect();
    if keep {
        return replace(objects, wanted, Vec::new()).await;
    }
    let stored = objects
        .list(ListRequest::default())
        .await
        .rpc(|| "cannot list the stored objects".to_owned())?;
    let joined = format!("\"{}\"", super::objects::NODE_LABEL);
    let gone = stored.objects.into_iter();
    let gone = gone.filter(|o| !o.json.contains(&joined));
    let gone = gone.map(|o| (o.kind, o.name));
    let mut gone: Vec<_> = gone.filter(|object| !named.contains(object)).collect();
    sort_for_removal(&mut gone, |(kind, _)| kind);
    replace(objects, wanted, gone).await
}
