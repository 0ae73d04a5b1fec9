//! The controller's gRPC server: a TLS port for proxies and hosts, a Unix socket for the operator.
//!
//! In the order of a connection: `accept` (is there room, TLS, who is it), `router` (which service, and whether
//! this peer may use it at all), then `certificates`, `config`, `telemetry` or `objects`,
//! whose watches are in `watches`.

pub(crate) mod accept;
mod certificates;
mod config;
mod objects;
mod peer;
pub(crate) mod router;
pub(crate) mod session;
mod telemetry;
mod tls;
mod tokens;
mod watches;

use crate::state::Refused;
use tonic::Status;

pub(crate) use accept::{LocalListener, TlsListener};
pub(crate) use router::Router;
pub use tokens::CertificatePace;

/// Runs something that may wait for the disk, away from the threads that serve connections.
async fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|error| {
        tracing::error!(%error, "a request panicked");
        Status::internal("the controller failed; its log says why")
    })?;
    done.map_err(refused)
}

fn refused(refused: Refused) -> Status {
    let text = refused.to_string();
    match refused {
        Refused::Invalid(_) => Status::invalid_argument(text),
        Refused::NotFound(_) => Status::not_found(text),
        Refused::NotAllowed(_) => Status::permission_denied(text),
        Refused::Conflict(_) => Status::failed_precondition(text),
        Refused::TooMany(_) => Status::resource_exhausted(text),
        Refused::Failed(_) => Status::internal(text),
    }
}
