//! The peers: how the sidecars of each are configured and started, and how their mutual TLS is
//! proven. All of them are made from the same model, [`Topology`].

mod choose;
mod envoy;
mod feature;
mod haproxy;
mod hop;
pub mod http;
mod nginx;
mod none;
mod pipy;
mod pki;
pub mod refusal;
mod running;
mod topology;
mod tulle;

pub use choose::{NAMES, parse};
pub use envoy::Envoy;
pub use haproxy::HaProxy;
pub use nginx::Nginx;
pub use none::None;
pub use pipy::Pipy;
pub use running::Running;
pub use topology::{CLIENT, Mode, Ports, SERVER, STRANGER, Topology};
pub use tulle::Tulle;
pub(crate) use tulle::count;

use crate::failure::{Failure, FailureKind, OrFail, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tulle_model::resource::Protocol;

/// One way to get from the client to the server.
pub trait Peer {
    /// Returns the name for `--vs`.
    fn name(&self) -> &'static str;

    /// Returns the version of the program.
    ///
    /// # Errors
    /// It cannot be run.
    fn version(&self) -> Result<String>;

    /// Returns the differences from other peers and the missing abilities, a sentence each, for the report.
    fn notes(&self) -> Vec<String>;

    /// Returns the part of `x-forwarded-client-cert` that the server finds when the client has called; none
    /// if this peer does not set it.
    fn told_caller(&self) -> Option<String> {
        Option::None
    }

    /// Whether it has a place in the measurements of opaque TCP.
    fn relays_tcp(&self) -> bool {
        false
    }

    /// Its sidecars for a topology, the server's first; none without sidecars. Writes their files.
    ///
    /// # Errors
    /// The topology asks for what it cannot do, or a file cannot be written.
    fn sidecars(&self, topology: &Topology) -> Result<Vec<Sidecar>>;

    /// Returns the evidence, after `answered` answered requests since the sidecars were started, that each
    /// was mutual TLS between the right identities. With one sidecar there is no mutual TLS; then the
    /// evidence shows that the requests went through it. The sidecars must still run.
    ///
    /// # Errors
    /// It was not, in words; the sample is then invalid.
    fn prove(&self, topology: &Topology, answered: u64)
    -> std::result::Result<Vec<String>, String>;
}

/// A sidecar to be started.
pub struct Sidecar {
    /// `client` or `server`.
    pub role: &'static str,
    /// Starts it in the foreground.
    pub command: Command,
    /// Its configuration, for the report: file name to text.
    pub files: BTreeMap<String, String>,
}

impl Sidecar {
    /// One that is configured by one file, which `command` is given.
    ///
    /// # Errors
    /// The file cannot be written.
    fn new(
        topology: &Topology,
        role: &'static str,
        name: String,
        text: String,
        command: impl FnOnce(PathBuf) -> Command,
    ) -> Result<Self> {
        let path = write(topology, &name, &text)?;
        Ok(Self {
            role,
            command: command(path),
            files: BTreeMap::from([(name, text)]),
        })
    }
}

/// Refuses what a peer is not configured for.
fn only_http(peer: &str, topology: &Topology) -> Result<()> {
    let protocol = topology.protocol;
    if protocol == Protocol::Http {
        return Ok(());
    }
    let text = format!(
        "the peer {peer} is configured for HTTP/1.1, not for {protocol:?}: measure TCP with haproxy-tcp, gRPC with haproxy or envoy"
    );
    Err(Failure::new(FailureKind::Usage, text))
}

/// The evidence without sidecars.
fn baseline() -> Vec<String> {
    vec!["no mutual TLS: this is the baseline".to_owned()]
}

/// The evidence where only one side has a sidecar: that it was not passed by.
fn one_sidecar(
    topology: &Topology,
    counter: &str,
    counted: u64,
    answered: u64,
) -> std::result::Result<Vec<String>, String> {
    let mode = topology.mode.name();
    if counted < answered {
        return Err(format!(
            "{answered} requests were answered; the sidecar of {mode} has seen {counted} ({counter})"
        ));
    }
    Ok(vec![format!(
        "{mode}: one sidecar, so no mutual TLS to prove; {counter} {counted}"
    )])
}

/// Writes a file of a topology.
fn write(topology: &Topology, name: &str, text: &str) -> Result<PathBuf> {
    let path = topology.path(name);
    fs::write(&path, text).or_fail(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
