//! `tulle service upgrade`: the programs that were installed meanwhile take over, one process after another.
//!
//! The supervisor itself, which no request passes, and its janitor stay until the service is restarted.

use crate::client::Objects;
use crate::data_plane::DataPlane;
use crate::failure::{Failure, Result};
use crate::join;
use crate::output::line;
use crate::paths::Paths;
use crate::restart::{Part, renew};
use crate::supervise::state::{RunState, Workload};
use crate::supervise::{context, usable_agent, usable_proxy};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use tulle_api::v1::StatusRequest;

const LOOK: Duration = Duration::from_millis(100);

/// Replaces the controller, then each gateway, then the sidecar of each workload, or the workload with it where a sidecar cannot hand
/// its listeners over.
pub(crate) async fn upgrade(paths: &Paths, patience: Duration) -> Result<()> {
    let before = RunState::of_running(paths)?;
    // Where sidecars run copies of programs, these are of the old ones.
    usable_proxy(paths)?;
    if before.data_plane == DataPlane::Envoy {
        usable_agent(paths)?;
    }
    let mut objects = match before.node.is_empty() {
        true => context::objects(paths),
        false => join::service::objects(paths)?,
    };
    controller(paths, &before, &mut objects, patience).await?;
    let gateways = before.gateways.iter();
    let gateways = gateways.map(|g| (format!("Gateway/{}", g.name), Part::All));
    let workloads = before.workloads.iter();
    let workloads = workloads.map(|w| (format!("Workload/{}", w.name), part(w)));
    for (id, part) in gateways.chain(workloads) {
        renew(paths, &mut objects, &id, part, patience).await?;
    }
    let own = env!("CARGO_PKG_VERSION");
    if before.version != own {
        line(&format!(
            "the supervisor is still of {}: it is of {own} when the service is restarted, or at the next boot",
            before.version
        ));
    }
    Ok(())
}

/// The part of a workload that is a program of Tulle's, if the supervisor can replace it alone. One of an earlier version cannot.
fn part(workload: &Workload) -> Part {
    match &workload.sidecar {
        Some(sidecar) if sidecar.replaceable => Part::Sidecar,
        _ => Part::All,
    }
}

/// The supervisor starts it again, from where the program is now. Traffic does not need it meanwhile.
async fn controller(
    paths: &Paths,
    before: &RunState,
    objects: &mut Objects,
    patience: Duration,
) -> Result<()> {
    let Some(old) = before.controller.id else {
        return Ok(());
    };
    old.signal(Signal::TERM);
    let until = Instant::now() + patience;
    loop {
        let now = RunState::of_running(paths)?;
        if now.controller.id.is_some_and(|id| id != old)
            && let Ok(status) = objects.status(StatusRequest::default()).await
        {
            let version = status.into_inner().version;
            line(&format!("controller restarted, of version {version}"));
            return Ok(());
        }
        if Instant::now() >= until {
            let what = format!(
                "the controller does not answer within {}s",
                patience.as_secs()
            );
            return Err(Failure::new(what)
                .because(now.controller.last_exit.unwrap_or_default())
                .fix("traffic goes on; `tulle logs controller` shows why"));
        }
        tokio::time::sleep(LOOK).await;
    }
}
