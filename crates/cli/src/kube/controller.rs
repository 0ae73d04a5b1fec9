//! `tulle cluster-controller`: the controller in its pod.

use crate::controller::{block_on, start_logging, told_to_end};
use crate::failure::{Failure, OrFail, Result};
use std::path::{Path, PathBuf};
use tulle_kube::controller::{ControllerOptions, start};
use tulle_kube::install::RUN_DIRECTORY;

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
        end.await;
        running.shutdown().await;
        Ok(())
    })
}
