//! `tulle cluster-controller`: the controller in its pod.

use crate::controller::{block_on, start_logging, told_to_end};
use crate::failure::{Failure, OrFail, Result};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tulle_console::{ConsoleClock, ConsoleConfig, RunningConsole};
use tulle_kube::controller::{ControllerOptions, RunningInCluster, start};
use tulle_kube::install::RUN_DIRECTORY;
use tulle_kube::names::CONSOLE_PORT;

/// Runs until it is told to end.
pub(crate) fn main(settings: &Path) -> Result<()> {
    start_logging()?;
    let text = std::fs::read_to_string(settings)
        .or_fail(|| format!("cannot read {}", settings.display()))?;
    let options: ControllerOptions = serde_json::from_str(&text).map_err(|e| {
        Failure::input(format!("{} is invalid", settings.display()))
            .because(e)
            .fix("the file comes from the ConfigMap `tulle-settings`; `tulle install` prints a valid one")
    })?;
    block_on(async {
        let end = told_to_end()?;
        // The volume itself is open to the pod; the socket's directory must not be.
        let directory = PathBuf::from(RUN_DIRECTORY).join("private");
        let running = start(&options, directory).await;
        let running =
            running.map_err(|why| Failure::new("the controller cannot start").because(why))?;
        tracing::info!(
            address = %running.controller.local_addr(),
            ca = running.controller.ca_fingerprint(),
            "the controller answers"
        );
        let console = console(&options, &running).await;
        end.await;
        if let Some(console) = console {
            console.shutdown().await;
        }
        running.shutdown().await;
        Ok(())
    })
}

/// Starts the console on the pod's loopback, which only a port-forward reaches. The mesh goes on without one.
async fn console(
    options: &ControllerOptions,
    running: &RunningInCluster,
) -> Option<RunningConsole> {
    let observer = running.controller.observer()?;
    let visitors = running.visitors.clone();
    let config = ConsoleConfig {
        listen: (Ipv4Addr::LOCALHOST, CONSOLE_PORT).into(),
        forwarded: true,
        actions: options.console.actions,
        visitors: Some(Arc::new(move |token| {
            let visitors = visitors.clone();
            Box::pin(async move { visitors.review(token).await })
        })),
        clock: ConsoleClock::default(),
    };
    match RunningConsole::start(config, observer).await {
        Ok(console) => Some(console),
        Err(error) => {
            tracing::error!(%error, "there is no console: it cannot listen");
            None
        }
    }
}
