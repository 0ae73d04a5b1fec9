//! Commands of `tulle service` on a host that joined: they ask the controller beside the supervisor, as the same host.

use super::brought::{Brought, name_deleted};
use super::enrol::{self, never_joined};
use super::given::{label, leave_token, remove_token, token, waiting_token, workloads};
use super::kept::Kept;
use super::{checked, refused};
use crate::args::service::ServiceJoin;
use crate::client::{Objects, is_away};
use crate::failure::{Failure, Result};
use crate::manifests;
use crate::output::line;
use crate::paths::Paths;
use crate::supervise::last_known::LastKnown;
use crate::supervise::preflight::Host;
use crate::supervise::state::RunState;
use std::path::{Path, PathBuf};

/// Refuses what `tulle join` would refuse, before a service of it is written. Returns the token, if one is given.
pub(crate) fn judge(paths: &Paths, args: &ServiceJoin) -> Result<Option<String>> {
    let manifests = workloads(manifests::read_full(&args.files)?)?;
    checked(&args.options)?;
    let here = args.service.installed.root.is_none();
    if here && RunState::of_running(paths).is_err() {
        Host::starting(paths, None).check(&manifests)?;
    }
    let token = token(&args.options)?;
    let kept = Kept::at(paths.host_identity());
    let is_for_here = here && !args.service.dry_run;
    if is_for_here && token.is_none() && !kept.file().exists() && waiting_token(paths)?.is_none() {
        return Err(never_joined(&kept));
    }
    Ok(token)
}

/// Has a token wait for the first start. `paths` are those of the service, `root` the top of its file system.
pub(crate) fn keep_token(paths: &Paths, root: Option<&Path>, token: &str) -> Result<()> {
    leave_token(&token_file(paths, root), token)
}

/// Removes a token that still waits.
pub(crate) fn forget_token(paths: &Paths, root: Option<&Path>) {
    remove_token(&token_file(paths, root));
}

fn token_file(paths: &Paths, root: Option<&Path>) -> PathBuf {
    let file = paths.host_token();
    match (root, file.strip_prefix("/")) {
        (Some(root), Ok(below)) => root.join(below),
        _ => file,
    }
}

/// The controller and the manifests of a host that runs as a service.
pub(crate) fn joined(paths: &Paths) -> Option<(String, Vec<PathBuf>)> {
    let known = LastKnown::read(paths).ok()?;
    Some((known.joined()?.name, known.manifests()))
}

/// The controller's objects service, for this host.
pub(crate) fn objects(paths: &Paths) -> Result<Objects> {
    let kept = Kept::at(paths.host_identity());
    let known = LastKnown::read(paths)?.joined();
    let known = known.ok_or_else(|| never_joined(&kept))?;
    enrol::objects(&known, &kept)
}

/// Has the mesh know the workloads of the manifests as they are now, and no others of this host.
pub(crate) async fn reload(paths: &Paths, state: &RunState) -> Result<()> {
    let files = LastKnown::read(paths)?.manifests();
    if files.is_empty() {
        return Err(Failure::new("there are no manifests to apply again")
            .because("no service has started this host")
            .fix("end `tulle join` and start it again, or install a service with `tulle service join`"));
    }
    let mut manifests = workloads(manifests::read_full(&files)?)?;
    let mut client = objects_or_away(paths, state).await?;
    let mut host = Host::running(paths, state);
    host.stored = crate::apply::stored(&mut client).await?;
    host.check(&manifests)?;
    let objects = label(&mut manifests, &state.node);
    let (results, known) = loop {
        let mut brought = Brought::read(paths.brought())?;
        let news = brought.news(objects.clone());
        let told = brought.bring(client.clone(), &news).await;
        // Otherwise the supervisor did so in between.
        if let Some(results) = told.map_err(|status| refused(&status))? {
            break (results, news.known);
        }
    };
    for done in results {
        line(&crate::apply::outcome(&done));
    }
    name_deleted(client, known).await;
    Ok(())
}

async fn objects_or_away(paths: &Paths, state: &RunState) -> Result<Objects> {
    let mut client = objects(paths)?;
    let asked = client.status(tulle_api::v1::StatusRequest::default()).await;
    match asked {
        Err(status) if is_away(&status) => Err(Failure::new(format!(
            "no controller answers at {}",
            state.controller_address
        ))
        .because(status.message())
        .fix("this host goes on as it is; reload when it answers")),
        _ => Ok(client),
    }
}

/// Takes the workloads of this host out of the mesh, and forgets what it knew. Returns whether the controller knows.
pub(crate) async fn leave(paths: &Paths) -> Result<bool> {
    let client = objects(paths);
    LastKnown::read(paths)?.forget();
    Ok(super::brought::leave(client?, paths.brought()).await)
}
