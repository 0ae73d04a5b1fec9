//! `tulle service` and its options.

use super::duration::duration;
use super::join::JoinOptions;
use super::output::Output;
use super::up::MeshOptions;
use crate::examples;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Init systems that `tulle service` writes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Init {
    Systemd,
    Openrc,
}

/// Where a service is installed.
#[derive(Debug, Clone, Args)]
pub(crate) struct Installed {
    /// Init system (default: the one that runs here)
    #[arg(long, value_name = "NAME", value_enum)]
    pub(crate) init: Option<Init>,
    /// Use the file system below this directory, such as an image's, and start nothing
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) root: Option<PathBuf>,
}

/// `tulle service`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Service {
    /// Write the service that starts these manifests at boot, and enable it
    #[command(after_help = examples::SERVICE_INSTALL)]
    Install(ServiceInstall),
    /// Write the service that has this host join another host's mesh at boot, and enable it
    #[command(after_help = examples::SERVICE_JOIN)]
    Join(ServiceJoin),
    /// Stop the service and remove what `install` has written
    #[command(after_help = examples::SERVICE)]
    Uninstall {
        #[command(flatten)]
        installed: Installed,
        /// Also remove a service that somebody else has written or changed
        #[arg(long)]
        force: bool,
    },
    /// Show whether the service is installed, enabled and active
    #[command(after_help = examples::SERVICE)]
    Status {
        #[command(flatten)]
        installed: Installed,
        #[command(flatten)]
        format: Output,
    },
    /// Apply the service's manifests as they are now, and delete the objects that they no longer have
    #[command(after_help = examples::SERVICE)]
    Reload,
    /// Run the programs that were installed meanwhile: controller, gateways, sidecars, one after another
    #[command(after_help = examples::SERVICE)]
    Upgrade {
        /// Time until each must answer again
        #[arg(long, value_name = "TIME", value_parser = duration, default_value = "120s")]
        timeout: Duration,
    },
}

/// `tulle service install`
#[derive(Debug, Clone, Args)]
pub(crate) struct ServiceInstall {
    /// Manifests of the mesh
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) service: ServiceOptions,
    #[command(flatten)]
    pub(crate) options: MeshOptions,
}

/// `tulle service join`
#[derive(Debug, Clone, Args)]
pub(crate) struct ServiceJoin {
    /// Manifests of the workloads to run here
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) service: ServiceOptions,
    #[command(flatten)]
    pub(crate) options: JoinOptions,
}

/// How a service is written.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServiceOptions {
    /// Also start it, and wait until every service answers
    #[arg(long, conflicts_with_all = ["dry_run", "root"])]
    pub(crate) now: bool,
    /// Print the service and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Replace a service that somebody else has written or changed
    #[arg(long)]
    pub(crate) force: bool,
    /// Log to this file instead of the journal (default with OpenRC: /var/log/NAME.log)
    #[arg(long, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) installed: Installed,
}
