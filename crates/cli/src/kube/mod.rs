//! Tulle on Kubernetes: what is installed, the programs of its pods, and the commands that look at a
//! mesh there and change it.

mod check;
mod cluster;
mod console;
pub(crate) mod controller;
mod dashboard;
mod fault;
mod fix;
mod gateway_classes;
mod harden;
mod identity;
mod images;
mod inject;
pub(crate) mod install;
mod kubeconfig;
mod namespace;
mod nodes;
mod other_mesh;
mod outside;
mod present;
pub(crate) mod redirect;
mod rollout;
mod scrape;
mod source;
mod status;
pub(crate) mod stream;
mod support;
pub(crate) mod uninstall;
mod upgrade;
mod values;
mod why;
mod workloads;

use crate::args::proxies::Metrics;
use crate::args::{Cli, Command};
use crate::failure::{Failure, Result};
use crate::proxies::{ProxySource, say_which};
use crate::traffic;
use cluster::Cluster;
use std::process::ExitCode;
use tulle_kube::root::HOLD;

/// Commands that are about a cluster and nothing else.
pub(crate) async fn run(cli: &Cli) -> Result<Option<ExitCode>> {
    let cluster = || open(cli, None);
    match &cli.command {
        Command::Uninstall(args) => uninstall::uninstall(&cluster().await?, args).await?,
        Command::Namespace(command) => namespace::namespace(&cluster().await?, command).await?,
        Command::Upgrade(args) => upgrade::upgrade(&cluster().await?, &cli.cluster, args).await?,
        Command::Inject(args) => inject::inject(&cli.cluster, args).await?,
        Command::Harden(args) => {
            return harden::harden(&cluster().await?, args).await.map(Some);
        }
        Command::Import(args) if args.cluster => {
            return other_mesh::import(&cluster().await?, args).await.map(Some);
        }
        Command::Metrics(Metrics {
            change: Some(change),
            ..
        }) => scrape::change(&cluster().await?, change).await?,
        _ => return Ok(None),
    }
    Ok(Some(ExitCode::SUCCESS))
}

/// Commands that a mesh on a host has too, asked of a cluster. `other`: how to ask the host instead.
pub(crate) async fn run_shared(cli: &Cli, other: Option<&str>) -> Result<ExitCode> {
    // The controller of a cluster stores none.
    if let Command::Get(_) = &cli.command {
        return Err(Failure::new("objects of a cluster are in its API server")
            .fix("`kubectl get tulle --all-namespaces`, or `kubectl get` of a kind"));
    }
    let cluster = open(cli, other).await?;
    match &cli.command {
        Command::Status(args) => status::status(&cluster, args).await?,
        Command::Version(args) => status::version(&cluster, args).await?,
        Command::Ca(args) => crate::ca::ca(async || cluster.objects().await, args, HOLD).await?,
        Command::Identity(args) => identity::identity(&cluster, args).await?,
        Command::Check(args) => return check::check(&cluster, args).await,
        Command::Why(args) => return why::why(&cluster, args).await,
        Command::Learn(args) => {
            crate::learn::learn(&cluster, &mut cluster.objects().await?, args).await?;
        }
        Command::Prove(args) => {
            return crate::prove::running(&mut cluster.objects().await?, args).await;
        }
        Command::Dashboard(args) => dashboard::dashboard(&cluster, args).await?,
        Command::Support(command) => support::support(&cluster, command).await?,
        command => traffic::run(&cluster, command).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn open(cli: &Cli, other: Option<&str>) -> Result<Cluster> {
    let cluster = Cluster::open(&cli.cluster).await?;
    say_which(&cluster.mesh(), other);
    Ok(cluster)
}
