//! Commands of a cluster, for the mesh of this host: the same views of the proxies, found by the supervisor's
//! file and asked over their own sockets.

mod dashboard;
mod source;
mod support;

use crate::args::{Cli, Command};
use crate::failure::Result;
use crate::paths::Paths;
use crate::proxies::{self, MeshName};
use crate::traffic;
pub(crate) use source::HostMesh;

/// The name of the mesh.
pub(crate) fn name(paths: &Paths) -> MeshName {
    MeshName::Host {
        name: paths.name.clone(),
    }
}

/// Says on a terminal that the mesh of this host is asked. `tulle status` has it in its first line.
pub(crate) fn say_which(cli: &Cli, paths: &Paths, other: Option<&str>) {
    if !matches!(cli.command, Command::Status(_)) {
        proxies::say_which(&name(paths), other);
    }
}

/// Runs a command that asks proxies.
pub(crate) async fn run(paths: &Paths, command: &Command) -> Result<()> {
    match command {
        Command::Support(command) => support::support(paths, command).await,
        Command::Dashboard(args) => dashboard::dashboard(paths, args).await,
        command => {
            let mesh = HostMesh::open(paths).await?;
            mesh.say_elsewhere();
            traffic::run(&mesh, command).await
        }
    }
}
