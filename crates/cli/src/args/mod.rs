//! The command line as a whole: its commands, and the options that all of them have.
//!
//! The arguments of a command are in the file of its group; what it does is in the module of its name.

pub(crate) mod about;
mod at;
pub(crate) mod cluster;
pub(crate) mod console;
pub(crate) mod diagnosis;
mod duration;
pub(crate) mod identity;
pub(crate) mod import;
pub(crate) mod install;
pub(crate) mod internal;
pub(crate) mod join;
pub(crate) mod objects;
pub(crate) mod output;
pub(crate) mod plugin;
pub(crate) mod policies;
pub(crate) mod proxies;
pub(crate) mod service;
pub(crate) mod sidecars;
pub(crate) mod traffic;
pub(crate) mod up;
pub(crate) mod workloads;

use crate::examples;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Tulle: a light service mesh.
#[derive(Debug, Parser)]
#[command(
    name = "tulle",
    version,
    about,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = examples::ALL
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(flatten)]
    pub(crate) cluster: cluster::Which,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that select the mesh.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Global {
    /// Use another mesh, with its durable files in this directory
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "TULLE_STATE",
        hide_env_values = true,
        help_heading = "Which mesh",
        display_order = 1000
    )]
    pub(crate) state: Option<PathBuf>,
    /// Use another mesh, of this name
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        env = "TULLE_NAME",
        hide_env_values = true,
        help_heading = "Which mesh",
        display_order = 1000
    )]
    pub(crate) name: Option<String>,
}

/// The commands of `tulle`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a mesh on this host: controller, workloads, sidecars, gateways
    #[command(after_help = examples::UP)]
    Up(up::Up),
    /// Stop the mesh and remove everything it made, even after a crash
    #[command(after_help = examples::DOWN)]
    Down(up::Down),
    /// Show services, proxies, and who talks to whom
    #[command(after_help = examples::STATUS)]
    Status(diagnosis::Status),
    /// Store manifests and apply them to the mesh at once
    #[command(after_help = examples::APPLY)]
    Apply(objects::Apply),
    /// Show stored objects
    #[command(after_help = examples::GET)]
    Get(objects::Get),
    /// Remove stored objects
    #[command(after_help = examples::DELETE)]
    Delete(objects::Delete),
    /// Restart workloads or gateways in order
    #[command(after_help = examples::RESTART)]
    Restart(workloads::Restart),
    /// Start the mesh of this host at boot, by systemd or OpenRC
    #[command(subcommand)]
    Service(service::Service),
    /// Manage certificates and keys for gateway listeners
    #[command(subcommand)]
    Secret(objects::Secret),
    /// Find present and coming problems, with cause and fix
    #[command(after_help = examples::CHECK)]
    Check(diagnosis::Check),
    /// Explain why a service may or may not call another, and show the last failure
    #[command(after_help = examples::WHY)]
    Why(diagnosis::Why),
    /// Prove statements about who may call whom, or show a call that contradicts them
    #[command(after_help = examples::PROVE)]
    Prove(policies::Prove),
    /// Print the smallest policies that allow what is seen for a while
    #[command(after_help = examples::LEARN)]
    Learn(policies::Learn),
    /// Translate another mesh's objects into Tulle's, and name what is lost
    #[command(after_help = examples::IMPORT)]
    Import(import::Import),
    /// Try plugins in JavaScript
    #[command(subcommand)]
    Plugin(plugin::Plugin),
    /// Run a command as a workload's application would: through its sidecar
    #[command(after_help = examples::EXEC)]
    Exec(workloads::Exec),
    /// Print the output of a workload or its sidecar
    #[command(after_help = examples::LOGS)]
    Logs(workloads::Logs),
    /// Run workloads of a mesh whose controller is on another host
    #[command(after_help = examples::JOIN)]
    Join(join::Join),
    /// Manage the one-time tokens with which hosts join
    #[command(subcommand)]
    Token(identity::Token),
    /// Show the certificate authority or replace its root
    #[command(subcommand)]
    Ca(identity::Ca),
    /// Revoke identities and certificates, and show which are revoked
    #[command(subcommand)]
    Identity(identity::Identity),
    /// Print the Kubernetes objects of Tulle, for `kubectl apply -f -`, or apply them
    #[command(after_help = examples::INSTALL)]
    Install(install::Install),
    /// Remove the mesh from a cluster
    #[command(after_help = examples::UNINSTALL)]
    Uninstall(install::Uninstall),
    /// Print or apply the Kubernetes objects of this version, with the settings of the installed mesh
    #[command(after_help = examples::UPGRADE)]
    Upgrade(install::Upgrade),
    /// Add sidecars to the pods of manifests, or the label that asks for them, and print the
    /// manifests
    #[command(after_help = examples::INJECT)]
    Inject(cluster::Inject),
    /// Choose which namespaces of a cluster get sidecars
    #[command(subcommand)]
    Namespace(cluster::Namespace),
    /// Show configuration, certificates and errors of proxies
    #[command(subcommand)]
    Proxy(proxies::Proxy),
    /// Show success rates, requests a second and latencies of workloads
    #[command(after_help = examples::STAT)]
    Stat(traffic::Stat),
    /// Make namespaces of a cluster strict, and show which traffic that would refuse
    #[command(after_help = examples::HARDEN)]
    Harden(cluster::Harden),
    /// Show who talks to whom, with which identity
    #[command(after_help = examples::EDGES)]
    Edges(traffic::Edges),
    /// Show requests of a workload as they complete
    #[command(after_help = examples::TAP)]
    Tap(traffic::Tap),
    /// Count requests of a workload by path as they complete
    #[command(after_help = examples::TOP)]
    Top(traffic::Tap),
    /// Open the mesh's own dashboard, or forward a local port to another one in the cluster
    #[command(after_help = examples::DASHBOARD)]
    Dashboard(console::Dashboard),
    /// Print the metrics of all proxies on one page, or choose which namespaces of a cluster Prometheus scrapes
    #[command(after_help = examples::METRICS)]
    Metrics(proxies::Metrics),
    /// Collect diagnostics of a mesh
    #[command(subcommand)]
    Support(diagnosis::Support),
    /// Print the versions of this command and of the controller
    Version(about::Version),
    /// Open the documentation that is on this host, in English or Chinese
    #[command(after_help = examples::DOCS)]
    Docs(about::Docs),
    /// Measure the data plane beside its peers
    #[command(disable_help_flag = true)]
    Bench {
        /// A study and its options; `tulle bench --help` lists them
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGUMENTS"
        )]
        words: Vec<std::ffi::OsString>,
    },
    /// Print completions for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// Shell to complete in
        shell: about::Shell,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::time::Duration;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn up_takes_files_and_global_options_after_it() {
        let cli = Cli::try_parse_from(["tulle", "up", "a.yaml", "--state", "/x", "--for", "3s"]);
        let cli = cli.unwrap();
        assert_eq!(cli.global.state, Some("/x".into()));
        let Command::Up(up) = cli.command else {
            panic!("not up")
        };
        assert_eq!(up.files, [PathBuf::from("a.yaml")]);
        assert_eq!(up.run_for, Some(Duration::from_secs(3)));
    }
}
