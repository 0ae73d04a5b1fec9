//! `tulle dashboard` on a host: asks the controller for a session of its console.

use crate::args::console::Dashboard;
use crate::browser;
use crate::client::{self, Rpc};
use crate::failure::{Failure, Result};
use crate::paths::Paths;
use crate::supervise::state::RunState;
use std::time::Duration;
use tulle_api::v1::CreateConsoleSessionRequest;

/// Longest wait for the controller.
const TIME: Duration = Duration::from_secs(5);

/// Opens it.
pub(crate) async fn dashboard(paths: &Paths, args: &Dashboard) -> Result<()> {
    if args.what.is_some() {
        return Err(no_other(paths));
    }
    let state = RunState::of_running(paths)?;
    if !state.node.is_empty() {
        return Err(Failure::new("the dashboard is on the controller's host")
            .because(format!("this host joined its mesh as {}", state.node))
            .fix("run `tulle dashboard` there"));
    }
    if state.console.is_none() {
        return Err(Failure::new("the mesh has no dashboard")
            .because("it was started with --console off")
            .fix("start it without that option"));
    }
    let mut objects = client::lazy(&paths.socket());
    let request = CreateConsoleSessionRequest {
        user: browser::user(),
    };
    let asked = tokio::time::timeout(TIME, objects.create_console_session(request)).await;
    let what = || "cannot open a session of the dashboard".to_owned();
    let session = match asked {
        Ok(answer) => answer.rpc(what)?,
        Err(_) => return Err(Failure::new(what()).because("the controller does not answer")),
    };
    browser::present(&session.url, session.ttl_seconds, args)
}

/// Says where the figures of other dashboards are instead.
fn no_other(paths: &Paths) -> Failure {
    Failure::usage("the mesh of a host has no other dashboard to lead to")
        .because("Grafana and Prometheus are Services of a cluster")
        .fix(format!(
            "`tulle dashboard` opens the mesh's own; Prometheus finds the proxies by {}; --context NAME asks a cluster",
            paths.metrics_targets().display()
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    #[test]
    fn it_says_where_prometheus_looks() {
        let paths = Paths {
            name: "a".into(),
            state: "/s".into(),
            run: "/r".into(),
        };
        let failure = no_other(&paths);
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.to_string().contains("/r/metrics/targets.json"));
    }
}
