//! The targets of a command as they are typed.

use super::Meshed;
use crate::failure::{Failure, Result};

/// A target given as `deploy/web`, `pod/web-0`, `svc/web`, `sa/web`, on a host `workload/web`, `gateway/web`, or as a
/// name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    Pod(&'a str),
    Service(&'a str),
    Account(&'a str),
    /// Kind as in [`Meshed::workload`], and name.
    Workload(&'static str, &'a str),
    /// A pod, or whatever has pods by this name.
    Any(&'a str),
}

impl<'a> Target<'a> {
    /// Reads one as `kubectl` would.
    pub(crate) fn parse(text: &'a str) -> Result<Self> {
        let Some((kind, name)) = text.split_once('/') else {
            return Ok(Self::Any(text));
        };
        Ok(match kind.to_ascii_lowercase().as_str() {
            "pod" | "pods" | "po" => Self::Pod(name),
            "svc" | "service" | "services" => Self::Service(name),
            "sa" | "serviceaccount" | "serviceaccounts" => Self::Account(name),
            "deploy" | "deployment" | "deployments" => Self::Workload("deployment", name),
            "sts" | "statefulset" | "statefulsets" => Self::Workload("statefulset", name),
            "ds" | "daemonset" | "daemonsets" => Self::Workload("daemonset", name),
            "job" | "jobs" => Self::Workload("job", name),
            "wl" | "workload" | "workloads" => Self::Workload("workload", name),
            "gw" | "gateway" | "gateways" => Self::Workload("gateway", name),
            _ => {
                return Err(Failure::usage(format!("{kind:?} is not a kind with proxies"))
                    .fix("use pod/, deploy/, sts/, ds/, job/, svc/ or sa/ and a name; on a host workload/, gateway/ or svc/"));
            }
        })
    }

    /// Whether a proxy is meant. The source knows which proxies a service has.
    pub(crate) fn takes(&self, proxy: &Meshed) -> bool {
        match self {
            Self::Pod(name) => proxy.name == *name,
            Self::Account(name) => proxy.account == *name,
            Self::Workload(kind, name) => proxy.workload.split_once('/') == Some((*kind, *name)),
            Self::Any(name) => {
                proxy.name == *name || proxy.workload.split_once('/').map(|w| w.1) == Some(*name)
            }
            Self::Service(_) => false,
        }
    }
}
