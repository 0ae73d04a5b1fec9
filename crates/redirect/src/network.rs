//! One network for each mesh: a namespace for each workload and one for the bridge.
//!
//! ```text
//!  host                 namespace tulle-MESH          namespace tulle-MESH.WORKLOAD
//!  tulle-MESH ───────── uplink ─┐
//!                               br0 ── w0 ─────────── eth0   (one for each workload)
//! ```
//!
//! The bridge has a namespace of its own for two reasons. The host's firewall sees bridged frames
//! wherever `br_netfilter` is loaded (Docker loads it and drops them), and must not filter between
//! workloads. And the host gains one link and nothing else. It is also the place to watch all
//! traffic between workloads: `ip netns exec tulle-MESH tcpdump -i br0`.
//!
//! No state is stored: every resource with the mesh's name is the mesh's. Mesh names have no dot,
//! so no mesh's prefix is another's.

use crate::address::{AddressPlan, Subnet4};
use crate::command::{CommandError, ip, ip_batch, ip_json};
use crate::links::{BRIDGE, delete_link, ensure_pair, find_link, interface_up, port_up};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

/// Directory where iproute2 keeps named namespaces.
pub(crate) const NAMESPACES: &str = "/var/run/netns";
const UPLINK: &str = "uplink";
const WORKLOAD_LINK: &str = "eth0";
/// The kernel's limit for the name of an interface, without its terminating zero.
const LONGEST_LINK: usize = 15;

/// The network of one mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    mesh: String,
    plan: AddressPlan,
}

/// A workload's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Its name for `ip netns`.
    pub name: String,
    /// Its IPv4 address.
    pub v4: Ipv4Addr,
    /// Its IPv6 address; none where the kernel has disabled IPv6.
    pub v6: Option<Ipv6Addr>,
}

/// Resources that [`Network::remove_all`] found and removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Names of namespaces.
    pub namespaces: Vec<String>,
    /// Names of links on the host.
    pub links: Vec<String>,
    /// Number of killed processes in the namespaces.
    pub processes: usize,
}

/// Why the network could not be created, read or removed.
#[derive(Debug)]
pub enum NetworkError {
    /// A name that is not valid in a namespace's name.
    Name {
        /// "mesh" or "workload".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Every candidate network overlaps a route of the host.
    NoFreeSubnet,
    /// More workloads than addresses.
    Index {
        /// The workload.
        workload: String,
        /// Its index.
        index: u16,
    },
    /// `ip` is missing or failed.
    Command {
        /// The failed step, and its object.
        doing: String,
        /// How it failed.
        source: CommandError,
    },
    /// The list of namespaces cannot be read.
    List(io::Error),
    /// A process survives SIGKILL.
    Survivors {
        /// The namespace.
        namespace: String,
        /// The processes.
        pids: Vec<u32>,
    },
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { what, name } => write!(
                f,
                "{name:?} cannot name a {what}; use lower-case letters, digits and `-`{}",
                if *what == "mesh" {
                    ", at most 32"
                } else {
                    ", `_`, `.`, at most 200"
                }
            ),
            Self::NoFreeSubnet => write!(
                f,
                "no free private network: every candidate overlaps a route of this host (`ip route show table all`); narrow those routes or use loopback mode"
            ),
            Self::Index { workload, index } => {
                write!(
                    f,
                    "workload {workload} has index {index}, more than the network has addresses"
                )
            }
            Self::Command { doing, source } => write!(f, "cannot {doing}: {source}"),
            Self::List(source) => write!(
                f,
                "cannot list network namespaces in {NAMESPACES}: {source}"
            ),
            Self::Survivors { namespace, pids } => write!(
                f,
                "processes {pids:?} in namespace {namespace} do not end although killed (waiting for a device?); end them, then try again"
            ),
        }
    }
}

impl std::error::Error for NetworkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Command { source, .. } => Some(source),
            Self::List(source) => Some(source),
            _ => None,
        }
    }
}

/// Adds the failed step to a command's error.
trait While<T> {
    fn to(self, doing: impl FnOnce() -> String) -> Result<T, NetworkError>;
}

impl<T> While<T> for Result<T, CommandError> {
    fn to(self, doing: impl FnOnce() -> String) -> Result<T, NetworkError> {
        self.map_err(|source| NetworkError::Command {
            doing: doing(),
            source,
        })
    }
}

impl Network {
    /// Returns the network of this mesh: the existing one, or else one that overlaps no route of
    /// the host. It creates nothing yet; hold a [`crate::Claim`] until the network is created.
    pub fn new(mesh: &str) -> Result<Self, NetworkError> {
        check_mesh(mesh)?;
        Ok(Self {
            mesh: mesh.to_owned(),
            plan: choose_plan(&host_link(mesh))?,
        })
    }

    /// The addresses of this network.
    pub fn plan(&self) -> &AddressPlan {
        &self.plan
    }

    /// Name of the link on the host.
    pub fn host_link(&self) -> String {
        host_link(&self.mesh)
    }

    /// Name of the namespace that holds the bridge.
    pub fn bridge_namespace(&self) -> String {
        bridge_namespace(&self.mesh)
    }

    /// Creates the bridge, its namespace and the host's link to it, as far as they are missing.
    pub fn ensure(&self) -> Result<(), NetworkError> {
        let doing = || format!("set up the bridge of mesh {}", self.mesh);
        let (link, switch) = (self.host_link(), self.bridge_namespace());
        ensure_namespace(&switch)?;
        if find_link(Some(&switch), BRIDGE).to(doing)?.is_none() {
            // The bridge needs no timers and no learning: no loop is possible, and IPv6 neighbour
            // discovery must reach everyone from the first packet.
            ip(&[
                "-netns",
                &switch,
                "link",
                "add",
                BRIDGE,
                "type",
                "bridge",
                "stp_state",
                "0",
                "forward_delay",
                "0",
                "mcast_snooping",
                "0",
            ])
            .to(doing)?;
        }
        ensure_pair((None, &link), (&switch, UPLINK)).to(doing)?;
        ip_batch(Some(&switch), &port_up(UPLINK)).to(doing)?;
        let (v4, v6) = self.plan.host();
        ip_batch(None, &interface_up(&link, v4, v6)).to(doing)
    }

    /// Creates a workload's namespace and joins it to the bridge, as far as that is missing. With
    /// another index the workload moves to the other addresses.
    pub fn add_workload(&self, workload: &str, index: u16) -> Result<Namespace, NetworkError> {
        let name = self.namespace_name(workload)?;
        let (v4, v6) = self
            .plan
            .workload(index)
            .ok_or_else(|| NetworkError::Index {
                workload: workload.to_owned(),
                index,
            })?;
        let doing = || format!("set up the network of workload {workload}");
        let (switch, port) = (self.bridge_namespace(), format!("w{index}"));
        ensure_namespace(&name)?;
        ensure_pair((Some(&switch), &port), (&name, WORKLOAD_LINK)).to(doing)?;
        ip_batch(Some(&switch), &port_up(&port)).to(doing)?;
        let mut lines = vec!["link set dev lo up".to_owned()];
        lines.extend(interface_up(WORKLOAD_LINK, v4, v6));
        ip_batch(Some(&name), &lines).to(doing)?;
        Ok(Namespace { name, v4, v6 })
    }

    /// Gives a workload's namespace a route out of the mesh, by the host. Its rules must be in
    /// place ([`crate::Redirection::keep_within`]): otherwise every process could use it.
    pub fn lead_out(&self, namespace: &Namespace) -> Result<(), NetworkError> {
        let (v4, v6) = self.plan.host();
        let route =
            |all: &str, via: IpAddr| format!("route replace {all} via {via} dev {WORKLOAD_LINK}");
        let mut lines = vec![route("0.0.0.0/0", v4.into())];
        if let (Some(v6), Some(_)) = (v6, namespace.v6) {
            lines.push(route("::/0", v6.into()));
        }
        let doing = || format!("route namespace {} out of the mesh", namespace.name);
        ip_batch(Some(&namespace.name), &lines).to(doing)
    }

    /// Kills all processes in a workload's namespace and removes it. Does nothing if there is none.
    pub fn remove_workload(&self, workload: &str) -> Result<(), NetworkError> {
        let name = self.namespace_name(workload)?;
        if all_namespaces()?.contains(&name) {
            remove_namespace(&name)?;
        }
        Ok(())
    }

    /// Workloads of this mesh that have a namespace, in alphabetical order.
    pub fn list(&self) -> Result<Vec<String>, NetworkError> {
        let prefix = workload_prefix(&self.mesh);
        let all = all_namespaces()?;
        Ok(all
            .iter()
            .filter_map(|n| n.strip_prefix(&prefix))
            .map(str::to_owned)
            .collect())
    }

    /// Removes every namespace and link of a mesh and kills the processes there. It needs no record
    /// of how they were created, also after a partial creation. Continues after a failure, and
    /// reports the first at the end.
    pub fn remove_all(mesh: &str) -> Result<Removed, NetworkError> {
        check_mesh(mesh)?;
        let (prefix, switch) = (workload_prefix(mesh), bridge_namespace(mesh));
        let mut removed = Removed::default();
        let mut first_error = None;
        // The link would go with the bridge's namespace, but only after a while.
        let link = host_link(mesh);
        let doing = || format!("remove the link {link}");
        if find_link(None, &link).to(doing)?.is_some() {
            delete_link(None, &link).to(doing)?;
            removed.links.push(link.clone());
        }
        for name in all_namespaces()? {
            if name == switch || name.starts_with(&prefix) {
                match remove_namespace(&name) {
                    Ok(killed) => {
                        removed.processes += killed;
                        removed.namespaces.push(name);
                    }
                    Err(error) => first_error = first_error.or(Some(error)),
                }
            }
        }
        first_error.map_or(Ok(removed), Err)
    }

    fn namespace_name(&self, workload: &str) -> Result<String, NetworkError> {
        check_name("workload", workload, 200, |b| {
            matches!(b, b'-' | b'_' | b'.')
        })?;
        Ok(workload_prefix(&self.mesh) + workload)
    }
}

fn check_mesh(mesh: &str) -> Result<(), NetworkError> {
    check_name("mesh", mesh, 32, |b| b == b'-')
}

fn check_name(
    what: &'static str,
    name: &str,
    longest: usize,
    also: impl Fn(u8) -> bool,
) -> Result<(), NetworkError> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || also(b);
    if (1..=longest).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    Err(NetworkError::Name {
        what,
        name: name.to_owned(),
    })
}

fn bridge_namespace(mesh: &str) -> String {
    format!("tulle-{mesh}")
}

fn workload_prefix(mesh: &str) -> String {
    format!("tulle-{mesh}.")
}

fn host_link(mesh: &str) -> String {
    let name = format!("tulle-{mesh}");
    if name.len() <= LONGEST_LINK {
        return name;
    }
    // FNV-1a, since the name must be the same for every version of Tulle that may clean up.
    let hash = mesh.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("tulle-{hash:08x}")
}

fn ensure_namespace(name: &str) -> Result<(), NetworkError> {
    let doing = || format!("make the network namespace {name}");
    if all_namespaces()?.iter().any(|n| n == name) {
        if ip(&["-netns", name, "link", "show"]).is_ok() {
            return Ok(());
        }
        // A crash left the file without the namespace mounted on it.
        ip(&["netns", "delete", name]).to(doing)?;
    }
    ip(&["netns", "add", name]).to(doing)?;
    Ok(())
}

fn all_namespaces() -> Result<Vec<String>, NetworkError> {
    let entries = match std::fs::read_dir(NAMESPACES) {
        // The directory is created with the first namespace.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(NetworkError::List)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(NetworkError::List)?;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns the path of a named namespace.
pub(crate) fn namespace_path(name: &str) -> PathBuf {
    PathBuf::from(NAMESPACES).join(name)
}

fn remove_namespace(name: &str) -> Result<usize, NetworkError> {
    let killed = kill_inside(name)?;
    // Deleting one end of a pair deletes the other at once. Deleting the namespace would do so
    // later, too late for a caller that creates the same names again. A failure only means that
    // there is no link.
    let _ = delete_link(Some(name), WORKLOAD_LINK);
    ip(&["netns", "delete", name]).to(|| format!("remove the network namespace {name}"))?;
    Ok(killed)
}

/// Kills every process in a namespace, which lives on without a name as long as it has a process.
fn kill_inside(name: &str) -> Result<usize, NetworkError> {
    let mut killed = std::collections::BTreeSet::new();
    // A killed process may have forked just before, so repeat until none is left.
    for _ in 0..200 {
        // A half-made namespace has no process.
        let Ok(text) = ip(&["netns", "pids", name]) else {
            return Ok(0);
        };
        let pids: Vec<u32> = text
            .split_whitespace()
            .filter_map(|p| p.parse().ok())
            .collect();
        let others = pids
            .iter()
            .copied()
            .filter(|pid| *pid != std::process::id());
        let others: Vec<u32> = others.collect();
        if others.is_empty() {
            return Ok(killed.len());
        }
        for pid in others {
            let pid_of = i32::try_from(pid).ok().and_then(Pid::from_raw);
            // A process that is gone already is fine.
            let _ = pid_of.map(|p| kill_process(p, Signal::KILL));
            killed.insert(pid);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(NetworkError::Survivors {
        namespace: name.to_owned(),
        pids: killed.into_iter().collect(),
    })
}

fn choose_plan(link: &str) -> Result<AddressPlan, NetworkError> {
    let doing = || "read the addresses and routes of this host".to_owned();
    let existing = ip_json(&["-4", "addr", "show"]).to(doing)?;
    let existing = existing
        .iter()
        .filter(|l| l["ifname"] == link)
        .filter_map(|l| l["addr_info"].as_array())
        .flatten()
        .filter_map(|a| a["local"].as_str()?.parse::<Ipv4Addr>().ok())
        .map(Subnet4::from_address)
        .next();
    let routes4 = routes(
        &ip_json(&["-4", "route", "show", "table", "all"]).to(doing)?,
        link,
    );
    let has_v6 = ipv6_is_on();
    let routes6 = match has_v6 {
        true => routes(
            &ip_json(&["-6", "route", "show", "table", "all"]).to(doing)?,
            link,
        ),
        false => Vec::new(),
    };
    pick(existing, has_v6, &routes4, &routes6).ok_or(NetworkError::NoFreeSubnet)
}

/// Returns the existing network, or else the first candidate that overlaps no route.
fn pick(
    existing: Option<Subnet4>,
    has_v6: bool,
    routes4: &[(Ipv4Addr, u8)],
    routes6: &[(Ipv6Addr, u8)],
) -> Option<AddressPlan> {
    let free = |plan: &AddressPlan| match existing {
        Some(existing) => plan.subnet4 == existing,
        None => {
            !routes4
                .iter()
                .any(|(address, prefix)| plan.subnet4.overlaps(*address, *prefix))
                && !plan.subnet6.is_some_and(|subnet| {
                    routes6
                        .iter()
                        .any(|(address, prefix)| subnet.overlaps(*address, *prefix))
                })
        }
    };
    let plan = AddressPlan::candidates().find(free)?;
    Some(if has_v6 {
        plan
    } else {
        AddressPlan {
            subnet6: None,
            ..plan
        }
    })
}

/// Returns the destinations of routes, except the default one and the mesh's own.
fn routes<A: std::str::FromStr>(routes: &[Value], link: &str) -> Vec<(A, u8)> {
    let parse = |text: &str| {
        let (address, prefix) = text.split_once('/').unwrap_or((text, "255"));
        Some((address.parse().ok()?, prefix.parse().ok()?))
    };
    let others = routes.iter().filter(|route| route["dev"] != link);
    others
        .filter_map(|route| route["dst"].as_str())
        .filter_map(parse)
        .collect()
}

fn ipv6_is_on() -> bool {
    let read = |which: &str| {
        std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"))
    };
    // New namespaces and links inherit from "default".
    ["all", "default"]
        .iter()
        .all(|which| read(which).is_ok_and(|text| text.trim() == "0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_fit_and_do_not_collide() {
        assert_eq!(host_link("tulle"), "tulle-tulle");
        assert_eq!(host_link("123456789"), "tulle-123456789");
        let (a, b) = (
            host_link("a-rather-long-name-1"),
            host_link("a-rather-long-name-2"),
        );
        assert_ne!(a, b);
        assert_eq!(a.len(), 14);
        assert!(!bridge_namespace("a-b").starts_with(&workload_prefix("a")));
        assert!(!(workload_prefix("a-b") + "x").starts_with(&workload_prefix("a")));
    }

    #[test]
    fn names_that_would_leave_the_directory_or_the_mesh_are_refused() {
        for mesh in ["", "a.b", "A", "../x", "a/b", &"x".repeat(33)] {
            assert!(check_mesh(mesh).is_err(), "{mesh}");
        }
        let network = Network {
            mesh: "m".into(),
            plan: AddressPlan::candidates().next().unwrap(),
        };
        assert_eq!(
            network.namespace_name("reviews-v1.0").unwrap(),
            "tulle-m.reviews-v1.0"
        );
        for workload in ["", "a/b", "a b", "a\n"] {
            assert!(network.namespace_name(workload).is_err(), "{workload}");
        }
    }

    #[test]
    fn picks_the_first_free_network() {
        let route = |text: &str| (text.parse().unwrap(), 16);
        let four = |plan: Option<AddressPlan>| plan.unwrap().subnet4.to_string();
        assert_eq!(four(pick(None, true, &[], &[])), "10.77.0.0/16");
        assert_eq!(
            four(pick(None, true, &[route("10.77.0.0")], &[])),
            "10.78.0.0/16"
        );
        let vpn = ("10.0.0.0".parse().unwrap(), 8);
        assert_eq!(four(pick(None, true, &[vpn], &[])), "100.64.0.0/16");
        let six = ("fd74:756c:6c65:a4d::".parse().unwrap(), 64);
        assert_eq!(four(pick(None, true, &[], &[six])), "10.78.0.0/16");
        assert_eq!(
            four(pick(Some(Subnet4::new(10, 99)), true, &[vpn], &[])),
            "10.99.0.0/16"
        );
        assert_eq!(pick(None, false, &[], &[]).unwrap().subnet6, None);
        assert_eq!(
            pick(None, true, &[("0.0.0.0".parse().unwrap(), 0)], &[]),
            None
        );
    }

    #[test]
    fn reads_routes() {
        let all = [
            json!({"dst": "default", "dev": "eth0"}),
            json!({"dst": "10.77.0.0/16", "dev": "tulle-x"}),
            json!({"dst": "10.88.0.0/16", "dev": "docker0"}),
            json!({"type": "local", "dst": "192.0.2.2", "dev": "eth0"}),
        ];
        let expected: Vec<(Ipv4Addr, u8)> = vec![
            ("10.88.0.0".parse().unwrap(), 16),
            ("192.0.2.2".parse().unwrap(), 255),
        ];
        assert_eq!(routes::<Ipv4Addr>(&all, "tulle-x"), expected);
    }
}
