//! Transparent redirection: which TCP connections of a namespace go to the sidecar.
//!
//! The same rules in two tongues: those of `nft`, and of `iptables` for kernels without nf_tables. UDP
//! is never touched, but for DNS where the sidecar answers it, and where a workload is kept in its
//! networks.
//!
//! A connection's first destination stays with the kernel: the sidecar asks for it with
//! `SO_ORIGINAL_DST` (IPv4) or `IP6T_SO_ORIGINAL_DST` (IPv6).
//!
//! The sidecar must reach the application from a loopback address (connect to `127.0.0.1` or
//! `::1`, or bind to them first): its connections from there are left alone. Those it makes to
//! an address of its own namespace in any other way are taken for what they are when a workload
//! calls its own service, a call to be received like any other, and go to the inbound port.

use crate::command::{self, CommandError};
use crate::network::Namespace;
use crate::{iptables, nft};
use std::net::IpAddr;
use std::path::Path;

/// Where the sidecar of a pod or workload answers DNS.
pub const DNS_PORT: u16 = 15053;

/// What to redirect. The default is that of a workload in a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirection {
    /// Where the sidecar takes the application's own connections.
    pub outbound_port: u16,
    /// Where the sidecar takes connections to the application.
    pub inbound_port: u16,
    /// Where the sidecar answers the application's DNS; none: DNS passes by, as all UDP.
    pub dns_port: Option<u16>,
    /// The user the sidecar runs as, and nothing else may.
    pub sidecar_uid: u32,
    /// Ports that keep their own listener: metrics and health of the sidecar, SSH.
    pub exclude_inbound_ports: Vec<u16>,
    /// Ports that others may not reach, although they would be redirected to the sidecar, which
    /// can reach the loopback listener behind them. Its own two ports need not be named.
    pub refuse_inbound_ports: Vec<u16>,
    /// Destination ports the application reaches directly.
    pub exclude_outbound_ports: Vec<u16>,
    /// Destination networks (address and prefix length) the application reaches directly.
    pub exclude_outbound_ranges: Vec<(IpAddr, u8)>,
    /// The only destination networks that are not reached directly; empty: all.
    pub include_outbound_ranges: Vec<(IpAddr, u8)>,
    /// Networks that hold everything but the sidecar: what is not redirected and would leave them is
    /// refused. Empty: it is let be.
    pub keep_within: Vec<(IpAddr, u8)>,
}

impl Default for Redirection {
    fn default() -> Self {
        Self {
            outbound_port: 15001,
            inbound_port: 15006,
            dns_port: None,
            sidecar_uid: 1500,
            exclude_inbound_ports: vec![22, 15020, 15021],
            refuse_inbound_ports: vec![15000],
            exclude_outbound_ports: vec![22],
            exclude_outbound_ranges: Vec::new(),
            include_outbound_ranges: Vec::new(),
            keep_within: Vec::new(),
        }
    }
}

/// Which of the kernel's packet filters has the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// nf_tables; where that cannot be had, the older one.
    #[default]
    Auto,
    /// nf_tables, by `nft`.
    Nft,
    /// What `iptables` of this machine writes to.
    Iptables,
}

/// The network namespace that a command is for.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// The caller's.
    Here,
    /// A workload's.
    In(&'a Namespace),
}

impl Place<'_> {
    /// Runs a program there with `input` on its standard input; its output.
    pub(crate) fn run(
        self,
        program: &'static str,
        args: &[&str],
        input: &str,
    ) -> Result<String, CommandError> {
        let Self::In(namespace) = self else {
            return command::run(program, args, input);
        };
        let path = command::find(program)?;
        let path = path.to_string_lossy();
        let inside = ["netns", "exec", &namespace.name, path.as_ref()];
        command::run("ip", &[&inside[..], args].concat(), input)
    }
}

/// Whether the kernel has IPv6. Not asked by a socket: that one of this process is refused says
/// nothing of what an application may do.
fn has_ipv6() -> bool {
    Path::new("/proc/self/net/if_inet6").exists()
}

/// The rules as a script for `nft -f`, for this kernel.
pub(crate) fn nft_rules(redirection: &Redirection) -> String {
    nft::rules(redirection, has_ipv6())
}

/// Applies the rules in a workload's namespace, replacing those of an earlier call.
///
/// # Errors
/// A program is missing or refused.
pub fn apply_redirection(
    namespace: &Namespace,
    backend: Backend,
    redirection: &Redirection,
) -> Result<(), CommandError> {
    apply(Place::In(namespace), backend, redirection)
}

/// Applies the rules in the namespace of the calling process, which already is a pod's.
///
/// # Errors
/// A program is missing or refused.
pub fn apply_redirection_here(
    backend: Backend,
    redirection: &Redirection,
) -> Result<(), CommandError> {
    apply(Place::Here, backend, redirection)
}

fn apply(
    place: Place<'_>,
    backend: Backend,
    redirection: &Redirection,
) -> Result<(), CommandError> {
    let by_nft = || place.run("nft", &["-f", "-"], &nft_rules(redirection));
    let by_iptables = || iptables::apply(place, redirection, has_ipv6());
    match backend {
        Backend::Nft => by_nft().map(drop),
        Backend::Iptables => by_iptables(),
        // What `nft` refuses it has not begun.
        Backend::Auto => by_nft().map(drop).or_else(|nft| {
            by_iptables().map_err(|iptables| CommandError::Neither {
                nft: Box::new(nft),
                iptables: Box::new(iptables),
            })
        }),
    }
}

/// Whether the namespace of the calling process has rules of ours.
///
/// # Errors
/// Neither of the two is there, and why.
pub fn find_redirection_here() -> Result<(), CommandError> {
    let family = if has_ipv6() { "inet" } else { "ip" };
    let by_nft = Place::Here.run("nft", &["list", "table", family, "tulle"], "");
    by_nft.map(drop).or_else(|nft| {
        iptables::find(Place::Here, has_ipv6()).map_err(|iptables| CommandError::Neither {
            nft: Box::new(nft),
            iptables: Box::new(iptables),
        })
    })
}
