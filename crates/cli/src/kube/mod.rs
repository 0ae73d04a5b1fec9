//! Tulle on Kubernetes: what is installed, the programs of its pods, and the commands that look at a
//! mesh there and change it.

mod check;
mod cluster;
pub(crate) mod controller;
mod dashboard;
mod fault_place;
mod harden;
mod identity;
mod images;
mod inject;
pub(crate) mod install;
mod kubeconfig;
mod namespace;
mod nodes;
mod outside;
mod present;
mod proxy;
pub(crate) mod redirect;
mod rollout;
mod scrape;
mod status;
pub(crate) mod stream;
mod support;
mod tap;
mod traffic;
pub(crate) mod uninstall;
mod upgrade;
mod values;
mod why;
mod workloads;

use crate::args::{Cli, Command};
use crate::failure::{Failure, Result};
use crate::supervise::state::RunState;
use cluster::Cluster;
use std::path::Path;
use std::process::ExitCode;
use tulle_kube::root::HOLD;

/// Whether the program was called as `kubectl tulle`.
pub(crate) fn is_plugin() -> bool {
    let name = std::env::args_os().next().unwrap_or_default();
    is_plugins(Path::new(&name))
}

fn is_plugins(name: &Path) -> bool {
    name.file_stem() == Some("kubectl-tulle".as_ref())
}

/// Commands that are about a cluster and nothing else.
pub(crate) async fn run(cli: &Cli) -> Result<Option<ExitCode>> {
    let cluster = || open(cli);
    match &cli.command {
        Command::Uninstall(args) => uninstall::uninstall(&cluster().await?, args).await?,
        Command::Namespace(command) => namespace::namespace(&cluster().await?, command).await?,
        Command::Proxy(command) => proxy::proxy(&cluster().await?, command).await?,
        Command::Upgrade(args) => upgrade::upgrade(&cluster().await?, &cli.cluster, args).await?,
        Command::Inject(args) => inject::inject(&cli.cluster, args).await?,
        Command::Stat(args) => traffic::stat(&cluster().await?, args).await?,
        Command::Harden(args) => {
            return harden::harden(&cluster().await?, args).await.map(Some);
        }
        Command::Edges(args) => traffic::edges(&cluster().await?, args).await?,
        Command::Tap(args) => tap::tap(&cluster().await?, args).await?,
        Command::Top(args) => tap::top(&cluster().await?, args).await?,
        Command::Dashboard(args) => dashboard::dashboard(&cluster().await?, args).await?,
        Command::Metrics(command) => scrape::metrics(&cluster().await?, command).await?,
        Command::Support(command) => support::support(&cluster().await?, command).await?,
        _ => return Ok(None),
    }
    Ok(Some(ExitCode::SUCCESS))
}

/// Commands that a mesh on a host has too, where the one in a cluster is meant.
pub(crate) async fn run_shared(cli: &Cli) -> Result<Option<ExitCode>> {
    let shared = matches!(
        &cli.command,
        Command::Get(_)
            | Command::Why(_)
            | Command::Check(_)
            | Command::Ca(_)
            | Command::Identity(_)
            | Command::Status(_)
            | Command::Version(_)
    );
    if !shared || !is_meant(cli) {
        return Ok(None);
    }
    let cluster = || open(cli);
    match &cli.command {
        // The controller of a cluster stores none.
        Command::Get(_) => {
            return Err(Failure::new("objects of a cluster are in its API server")
                .fix("`kubectl get tulle --all-namespaces`, or `kubectl get` of a kind"));
        }
        Command::Status(args) => status::status(&cluster().await?, args).await?,
        Command::Version(args) => status::version(&cluster().await?, args).await?,
        Command::Ca(args) => {
            let cluster = cluster().await?;
            crate::ca::ca(async || cluster.objects().await, args, HOLD).await?;
        }
        Command::Identity(args) => identity::identity(&cluster().await?, args).await?,
        Command::Check(args) => return check::check(&cluster().await?, args).await.map(Some),
        Command::Why(args) => return why::why(&cluster().await?, args).await.map(Some),
        _ => return Ok(None),
    }
    Ok(Some(ExitCode::SUCCESS))
}

async fn open(cli: &Cli) -> Result<Cluster> {
    let cluster = Cluster::open(&cli.cluster).await?;
    if crate::output::is_terminal() {
        anstream::eprintln!("cluster {} ({})", cluster.context, cluster.server);
    }
    Ok(cluster)
}

/// Which mesh is meant: what is named or asked about; called as a plugin the cluster's; the one that is up on this
/// host; the cluster's if there is a kubeconfig; else that of this host.
fn is_meant(cli: &Cli) -> bool {
    if cli.cluster.context.is_some() || cli.cluster.kubeconfig.is_some() {
        return true;
    }
    if matches!(&cli.command, Command::Check(args) if args.pre || args.proxy) {
        return true;
    }
    if cli.global.state.is_some() || cli.global.name.is_some() {
        return false;
    }
    if is_plugin() {
        return true;
    }
    let here = crate::choose(&cli.global);
    if here.is_ok_and(|paths| matches!(RunState::read(&paths), Ok(Some(_)) | Err(_))) {
        return false;
    }
    has_kubeconfig()
}

fn has_kubeconfig() -> bool {
    if let Some(named) = std::env::var_os("KUBECONFIG").filter(|v| !v.is_empty()) {
        return std::env::split_paths(&named).any(|file| file.is_file());
    }
    let home = std::env::var_os("HOME").unwrap_or_default();
    !home.is_empty() && Path::new(&home).join(".kube/config").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_makes_it_a_plugin() {
        assert!(is_plugins(Path::new("/usr/local/bin/kubectl-tulle")));
        assert!(!is_plugins(Path::new("/usr/local/bin/tulle")));
    }
}
