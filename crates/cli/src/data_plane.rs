//! The sidecars that a host has.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The program of the sidecars on this host. Gateways are always Tulle's own proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DataPlane {
    /// Sidecars are `tulle-proxy`.
    #[default]
    Tulle,
    /// Sidecars are Envoy, each with an agent of ours.
    Envoy,
    /// There are no sidecars: plaintext, and nobody decides who may call.
    None,
}

impl DataPlane {
    /// Whether workloads have sidecars.
    pub(crate) fn has_sidecars(self) -> bool {
        self != Self::None
    }
}

/// The programs that replace `tulle-proxy` where sidecars are Envoy.
#[derive(Debug, Clone)]
pub(crate) struct EnvoyPrograms {
    /// `tulle-envoy`.
    pub(crate) agent: PathBuf,
    /// Envoy.
    pub(crate) envoy: PathBuf,
}
