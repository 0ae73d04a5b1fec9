//! `tulle up` and `tulle down`, and how a mesh runs on this host.

use super::console::{ConsoleChoice, console};
use super::duration::duration;
use super::sidecars::Sidecars;
use crate::port_range::PortRange;
use clap::Args;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Options that say how a mesh runs on this host.
#[derive(Debug, Clone, Args)]
pub(crate) struct MeshOptions {
    /// Use loopback listeners for declared upstreams instead of network namespaces (the only way
    /// without root)
    #[arg(long)]
    pub(crate) loopback: bool,
    #[command(flatten)]
    pub(crate) sidecars: Sidecars,
    /// Address where the controller listens (default: port 15010 of the mesh's bridge or of
    /// 127.0.0.1)
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// Address at which other hosts of the mesh reach this one, with --loopback
    #[arg(long, value_name = "IP", requires = "loopback")]
    pub(crate) advertise: Option<IpAddr>,
    /// With --loopback: ports at which other hosts of the mesh reach this one's Workloads (default:
    /// any free ones)
    #[arg(long, value_name = "FIRST-LAST", requires = "loopback")]
    pub(crate) inbound_ports: Option<PortRange>,
    /// Loopback address of the console, or `off` (default: 127.0.0.1:15012, or a free port if that is
    /// taken)
    #[arg(long, value_name = "ADDRESS|off", value_parser = console)]
    pub(crate) console: Option<ConsoleChoice>,
    /// Allow the console to change the mesh, not only to show it
    #[arg(long)]
    pub(crate) console_actions: bool,
}

impl MeshOptions {
    /// Returns the words of a command line that mean the same.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words = self.sidecars.words();
        let mut add = |option: &str, value: Option<OsString>| {
            if let Some(value) = value {
                words.extend([option.into(), value]);
            }
        };
        let text = |value: Option<String>| value.map(OsString::from);
        add("--listen", text(self.listen.map(|a| a.to_string())));
        add("--advertise", text(self.advertise.map(|a| a.to_string())));
        add(
            "--inbound-ports",
            text(self.inbound_ports.map(|p| p.to_string())),
        );
        add("--console", text(self.console.map(|c| c.to_string())));
        for (option, given) in [
            ("--loopback", self.loopback),
            ("--console-actions", self.console_actions),
        ] {
            if given {
                words.push(option.into());
            }
        }
        words
    }
}

/// `tulle up`
#[derive(Debug, Clone, Args)]
pub(crate) struct Up {
    /// Manifests to start (default: the objects stored before)
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Return when every service answers, and keep the mesh running
    #[arg(long, short)]
    pub(crate) detach: bool,
    /// Stop by itself after this long, such as 30s or 5m
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) run_for: Option<Duration>,
    #[command(flatten)]
    pub(crate) options: MeshOptions,
    /// Send a request through each gateway's routes and show who talked to whom, and how
    #[arg(long)]
    pub(crate) verify: bool,
    /// Keep stored objects that are not in FILES
    #[arg(long)]
    pub(crate) keep: bool,
    /// Time until every service must answer
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "120s")]
    pub(crate) timeout: Duration,
    /// Run as a service of the machine does: log to standard error, and let stored objects stay while
    /// FILES are unchanged
    #[arg(long, requires = "files", conflicts_with_all = ["detach", "verify", "keep"])]
    pub(crate) service: bool,
    /// With --service: log to this file instead, and to FILE.1 what was before
    #[arg(long, value_name = "FILE", requires = "service")]
    pub(crate) log_file: Option<PathBuf>,
    /// This process is the detached supervisor
    #[arg(skip)]
    pub(crate) detached: bool,
}

/// `tulle down`
#[derive(Debug, Clone, Args)]
pub(crate) struct Down {
    /// Time that requests in flight have to complete before everything is killed
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
    /// Also remove the durable files: CA and stored objects
    #[arg(long)]
    pub(crate) purge: bool,
}
