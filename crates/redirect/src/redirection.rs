//! Transparent redirection: which TCP connections of a namespace go to the sidecar.
//!
//! The same rules in two formats: for `nft`, and for `iptables` on kernels without nf_tables. UDP
//! is never touched, except for DNS where the sidecar answers it, and where a workload is kept in
//! its networks.
//!
//! The kernel keeps a connection's first destination: the sidecar reads it with `SO_ORIGINAL_DST`
//! (IPv4) or `IP6T_SO_ORIGINAL_DST` (IPv6).
//!
//! The sidecar must reach the application from a loopback address (connect to `127.0.0.1` or `::1`,
//! or bind to them first): these connections are not redirected. Any other connection to an address
//! of its own namespace looks like a workload's call to its own service, and goes to the inbound
//! port.

use crate::command::{self, CommandError};
use crate::network::Namespace;
use crate::{iptables, nft};
use std::net::IpAddr;
use std::path::Path;

/// Port on which the sidecar of a pod or workload answers DNS.
pub const DNS_PORT: u16 = 15053;

/// Settings of a redirection. The default is that of a workload in a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirection {
    /// Port where the sidecar accepts the application's own connections.
    pub outbound_port: u16,
    /// Port where the sidecar accepts connections to the application.
    pub inbound_port: u16,
    /// Port where the sidecar answers the application's DNS; none: DNS is not redirected, like all
    /// UDP.
    pub dns_port: Option<u16>,
    /// The user of the sidecar alone.
    pub sidecar_uid: u32,
    /// Ports that keep their own listener: metrics and health of the sidecar.
    pub exclude_inbound_ports: Vec<u16>,
    /// Ports that are closed to others. Redirection would otherwise expose the loopback listeners
    /// behind them through the sidecar. Its own two ports need not be named.
    pub refuse_inbound_ports: Vec<u16>,
    /// Destination ports the application reaches directly.
    pub exclude_outbound_ports: Vec<u16>,
    /// Destination networks (address and prefix length) the application reaches directly.
    pub exclude_outbound_ranges: Vec<(IpAddr, u8)>,
    /// The only destination networks that are not reached directly; empty: all.
    pub include_outbound_ranges: Vec<(IpAddr, u8)>,
    /// Networks that only the sidecar may leave: other traffic that is not redirected and would
    /// leave them is refused. Empty: it is allowed.
    pub keep_within: Vec<(IpAddr, u8)>,
}

impl Default for Redirection {
    fn default() -> Self {
        Self {
            outbound_port: 15001,
            inbound_port: 15006,
            dns_port: None,
            sidecar_uid: 1500,
            exclude_inbound_ports: vec![15020, 15021],
            refuse_inbound_ports: vec![15000],
            exclude_outbound_ports: Vec::new(),
            exclude_outbound_ranges: Vec::new(),
            include_outbound_ranges: Vec::new(),
            keep_within: Vec::new(),
        }
    }
}

/// Which of the kernel's packet filters has the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FilterBackend {
    /// nf_tables; where it is not usable, the older one.
    #[default]
    Auto,
    /// nf_tables, by `nft`.
    Nft,
    /// The packet filter that this machine's `iptables` uses.
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
    /// Runs a program there with `input` on its standard input; returns its output.
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

/// Whether the kernel has IPv6. A socket would not tell: this process may be refused one that an
/// application may have.
pub(crate) fn has_ipv6() -> bool {
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
    backend: FilterBackend,
    redirection: &Redirection,
) -> Result<(), CommandError> {
    apply(Place::In(namespace), backend, redirection)
}

/// Applies the rules in the namespace of the calling process, which already is a pod's.
///
/// # Errors
/// A program is missing or refused.
pub fn apply_redirection_here(
    backend: FilterBackend,
    redirection: &Redirection,
) -> Result<(), CommandError> {
    apply(Place::Here, backend, redirection)
}

fn apply(
    place: Place<'_>,
    backend: FilterBackend,
    redirection: &Redirection,
) -> Result<(), CommandError> {
    let by_nft = || place.run("nft", &["-f", "-"], &nft_rules(redirection));
    let by_iptables = || iptables::apply(place, redirection, has_ipv6());
    match backend {
        FilterBackend::Nft => by_nft().map(drop),
        FilterBackend::Iptables => by_iptables(),
        // A script that `nft` refuses has changed nothing.
        FilterBackend::Auto => by_nft().map(drop).or_else(|nft| {
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
/// Neither of the two has them, and why.
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
