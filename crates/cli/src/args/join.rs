//! `tulle join`: how a host joins the mesh of another.

use super::duration::duration;
use super::sidecars::Sidecars;
use crate::port_range::PortRange;
use clap::Args;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The trust domain of a mesh that names none.
const DEFAULT_TRUST_DOMAIN: &str = "tulle.local";

/// How a host joins the mesh of another.
#[derive(Debug, Clone, Args)]
pub(crate) struct JoinOptions {
    /// Address of the controller
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) controller: String,
    /// One-time token, for the first time only: a host keeps its identity. As an argument other users of
    /// this host can read it until it is spent
    #[arg(long, env = "TULLE_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// File with the token; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,
    /// Fingerprint of the mesh's CA, printed with the token
    #[arg(long, value_name = "SHA256")]
    pub(crate) ca_fingerprint: String,
    /// Trust domain of the mesh
    #[arg(long, value_name = "DOMAIN", default_value = DEFAULT_TRUST_DOMAIN)]
    pub(crate) trust_domain: String,
    #[command(flatten)]
    pub(crate) sidecars: Sidecars,
    /// Address of this host that other hosts reach (default: the one used to reach the controller)
    #[arg(long, value_name = "IP")]
    pub(crate) advertise: Option<IpAddr>,
    /// Ports at which other hosts reach the Workloads of this one (default: any free ones)
    #[arg(long, value_name = "FIRST-LAST")]
    pub(crate) inbound_ports: Option<PortRange>,
}

impl JoinOptions {
    /// Returns the words of a command line that mean the same. The token is none of them: others can read those.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["--controller".into(), self.controller.clone().into()];
        words.extend([
            "--ca-fingerprint".into(),
            self.ca_fingerprint.clone().into(),
        ]);
        if self.trust_domain != DEFAULT_TRUST_DOMAIN {
            words.extend(["--trust-domain".into(), self.trust_domain.clone().into()]);
        }
        words.extend(self.sidecars.words());
        let advertise = self.advertise.map(|a| ("--advertise", a.to_string()));
        let ports = self
            .inbound_ports
            .map(|p| ("--inbound-ports", p.to_string()));
        for (option, value) in advertise.into_iter().chain(ports) {
            words.extend([option.into(), value.into()]);
        }
        words
    }
}

/// `tulle join`
#[derive(Debug, Clone, Args)]
pub(crate) struct Join {
    /// Manifests of the workloads to run here
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) options: JoinOptions,
    /// Leave the Workloads of this host in the mesh when it ends, as a machine does that is shut down: the next start needs no
    /// controller
    #[arg(long)]
    pub(crate) stay: bool,
    /// Stop by itself after this long, such as 30s or 5m
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) run_for: Option<Duration>,
    /// Run as a service of the machine does: log to standard error, stay in the mesh at the end, and let a mistake in
    /// FILES keep nothing from starting that ran before
    #[arg(long)]
    pub(crate) service: bool,
    /// With --service: log to this file instead, and to FILE.1 what was before
    #[arg(long, value_name = "FILE", requires = "service")]
    pub(crate) log_file: Option<PathBuf>,
}
