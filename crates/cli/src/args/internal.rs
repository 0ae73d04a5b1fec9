//! Command lines that are not the user's: the supervisor, Helm and pods start them.

use super::Global;
use super::up::Up;
use clap::{Args, Parser, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Commands that the supervisor, Helm and pods start. They are not part of [`super::Cli`], so help and completions
/// leave them out.
#[derive(Debug, Parser)]
#[command(name = "tulle")]
pub(crate) enum Internal {
    /// The supervisor of `tulle up --detach`
    Supervisor {
        #[command(flatten)]
        global: Global,
        #[command(flatten)]
        up: Up,
    },
    /// The controller
    Controller(ControllerArgs),
    /// The controller of a cluster, in its pod
    ClusterController {
        /// Its settings, as JSON
        #[arg(long)]
        settings: PathBuf,
    },
    /// Removes the CNI plugin from the nodes, and then its DaemonSet, in a pod that Helm starts
    RemoveCni {
        /// Where the controllers are that have to be updated first
        #[arg(long)]
        once_updated: Option<String>,
    },
    /// Removes the objects that the controller has made, in a pod that Helm starts
    AfterHelm {
        /// Where the controller was
        #[arg(long)]
        namespace: String,
    },
    /// Makes the redirection rules of a pod, as its init container
    Redirect(RedirectArgs),
    /// Connects standard input and output to the controller's socket, in the controller's pod
    ControlStream,
    /// Becomes the agent of an Envoy: a supervisor of the version before starts it so
    EnvoyAgent {
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Clears up after a mesh whose supervisor and janitor are gone, as an init system's last step
    ClearUp {
        #[command(flatten)]
        global: Global,
    },
    /// Clears up after the supervisor, however it ended
    Janitor {
        /// Name of the mesh
        mesh: String,
        /// Its durable files
        durable: PathBuf,
        /// Its other files
        run: PathBuf,
    },
}

impl Internal {
    /// Whether this is the first word of such a command line.
    pub(crate) fn begins_with(word: &std::ffi::OsStr) -> bool {
        use clap::CommandFactory;
        Self::command()
            .get_subcommands()
            .any(|c| word == c.get_name())
    }
}

/// `tulle controller`
#[derive(Debug, Clone, Args)]
pub(crate) struct ControllerArgs {
    /// Directory of the CA and the stored objects
    #[arg(long = "dir", value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Address that sidecars connect to
    #[arg(long)]
    pub(crate) listen: SocketAddr,
    /// Unix socket for commands
    #[arg(long)]
    pub(crate) socket: PathBuf,
    /// Loopback address of the console (default: none)
    #[arg(long)]
    pub(crate) console: Option<SocketAddr>,
    /// Allow the console to change the mesh
    #[arg(long, requires = "console")]
    pub(crate) console_actions: bool,
}

/// Arguments of `tulle redirect`.
#[derive(Debug, Args)]
pub(crate) struct RedirectArgs {
    /// The kernel's packet filter; auto: nft, or else iptables
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) backend: RedirectBackend,
    /// Ports of the pod that clients reach directly
    #[arg(long, value_delimiter = ',')]
    pub(crate) exclude_inbound_ports: Vec<u16>,
    /// Ports that the application reaches directly
    #[arg(long, value_delimiter = ',')]
    pub(crate) exclude_outbound_ports: Vec<u16>,
    /// Networks that the application reaches directly
    #[arg(long, value_delimiter = ',')]
    pub(crate) exclude_outbound_ranges: Vec<String>,
    /// The only networks that are reached through the sidecar
    #[arg(long, value_delimiter = ',')]
    pub(crate) include_outbound_ranges: Vec<String>,
    /// Redirect the application's DNS to the sidecar
    #[arg(long)]
    pub(crate) dns: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum RedirectBackend {
    Auto,
    Nft,
    Iptables,
}
