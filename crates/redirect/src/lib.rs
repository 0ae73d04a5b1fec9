//! Interception: an application's traffic reaches its sidecar without the application's knowledge.
//! Limits: how much of the machine a process may use.
//!
//! As root on Linux each workload gets its own network namespace, as a pod would: [`Network`] joins
//! the namespaces by a bridge, [`Redirection`] sends their TCP to the sidecar, [`Hosts`] gives the
//! services names, [`LaunchSpec`] starts a process inside, and [`Cgroup`] limits it. [`available`]
//! checks whether all this can work here. Without it the mesh runs in loopback mode and needs at
//! most [`Cgroup`] of this crate.
//!
//! All resources created here are found again by the name of the mesh, so removal needs no record
//! of them. The host gets one link and no packet filter rule.
//!
//! This crate has no egress to the outside (`docs/design/0004-interception.md` says how to allow
//! it), no DNS service, and no proxy.

mod address;
mod availability;
mod cgroup;
mod claim;
mod command;
mod direct;
mod exceptions;
pub mod exec_in;
mod hierarchy;
mod hosts;
mod iptables;
mod links;
mod network;
mod nft;
mod program;
mod redirection;

pub use address::{AddressPlan, Subnet4, Subnet6};
pub use availability::{Availability, available};
pub use cgroup::{Cgroup, CgroupError, ProcessLimits};
pub use claim::Claim;
pub use command::CommandError;
pub use direct::apply_direct;
pub use exceptions::{Exceptions, PodRules, REDIRECTION};
pub use exec_in::{ExecInError, LaunchSpec};
pub use hosts::{Hosts, HostsError, RESOLV_CONF};
pub use network::{Namespace, Network, NetworkError, Removed};
pub use program::{NoProgram, find_program};
pub use redirection::{
    DNS_PORT, FilterBackend, Redirection, apply_redirection, apply_redirection_here,
    find_redirection_here,
};
