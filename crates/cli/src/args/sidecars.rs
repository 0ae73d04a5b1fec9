//! The options of `tulle up` and `tulle join` that choose sidecars.

use crate::data_plane::DataPlane;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Which sidecars workloads have.
#[derive(Debug, Clone, Args)]
pub(crate) struct Sidecars {
    /// Sidecars of the workloads: `tulle` (Tulle's own), `envoy`, or, on a mesh's first host,
    /// `none`
    #[arg(
        long,
        value_name = "WHICH",
        value_enum,
        default_value = "tulle",
        hide_possible_values = true
    )]
    pub(crate) data_plane: DataPlane,
    /// Envoy program for `--data-plane envoy` (default: `envoy` on the PATH)
    #[arg(long, value_name = "PATH", env = "TULLE_ENVOY", hide_env_values = true)]
    pub(crate) envoy: Option<PathBuf>,
}

impl Sidecars {
    /// Returns the words of a command line that mean the same.
    pub(super) fn words(&self) -> Vec<OsString> {
        let which = self.data_plane.to_possible_value();
        let which = which.filter(|_| self.data_plane != DataPlane::default());
        let which = which.map(|w| ["--data-plane".into(), w.get_name().into()]);
        let envoy = self.envoy.as_ref();
        let envoy = envoy.map(|e| ["--envoy".into(), e.clone().into()]);
        which.into_iter().chain(envoy).flatten().collect()
    }
}
