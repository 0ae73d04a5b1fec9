//! `tulle version`: of this command and of the mesh that is up.

use crate::args::about::Version;
use crate::client;
use crate::failure::Result;
use crate::output::{self, line};
use crate::paths::Paths;
use crate::proxies::MeshName;
use serde::Serialize;
use std::time::Duration;
use tulle_api::v1::StatusRequest;

#[derive(Serialize)]
struct Versions {
    #[serde(flatten)]
    mesh: MeshName,
    tulle: &'static str,
    controller: Option<String>,
}

/// Prints both.
pub(crate) async fn version(paths: &Paths, args: &Version) -> Result<()> {
    let mut objects = client::lazy(&paths.socket());
    let asked = tokio::time::timeout(
        Duration::from_secs(2),
        objects.status(StatusRequest::default()),
    );
    let controller = match asked.await {
        Ok(Ok(status)) => Some(status.into_inner().version),
        // No mesh is up, which is no failure here.
        _ => None,
    };
    let versions = Versions {
        mesh: MeshName::Host {
            name: paths.name.clone(),
        },
        tulle: env!("CARGO_PKG_VERSION"),
        controller,
    };
    if output::structured(&versions, args.format.output)? {
        return Ok(());
    }
    line(&format!("tulle {}", versions.tulle));
    let controller = versions.controller.as_deref();
    line(&format!("controller {}", controller.unwrap_or("not up")));
    Ok(())
}
