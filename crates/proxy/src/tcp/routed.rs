//! Which service a connection without HTTP goes to, and its way there.

use super::first_bytes::{self, First};
use super::forward::{self, Opaque};
use crate::balance::Port;
use crate::decision::outbound;
use crate::telemetry::reason::Failure;
use crate::upstream::link::Link;
use crate::worker::Worker;
use std::rc::Rc;
use std::time::Duration;
use tulle_net::Buf;

/// Routes a connection to a port of a service: by the service's own routes, or else by its traffic
/// split. `None`: to the service itself.
pub async fn of_service(
    worker: &Rc<Worker>,
    link: &mut Link,
    received: &mut Buf,
    port: &Port,
) -> Option<Result<Rc<Port>, Failure>> {
    let config = worker.config();
    let service = config.snapshot.services.get(&*port.service)?;
    let mut targets = None;
    if let Some(routes) = &service.connections {
        if routes.has_tls(port.number) {
            let patience = Duration::from_millis(config.snapshot.mesh.detect_timeout_ms.into());
            if let First::Tls(name) = first_bytes::look(worker, link, received, patience).await {
                targets = routes.by_name(port.number, "", name.as_deref());
            }
        }
        targets = targets.or_else(|| routes.by_port(port.number, ""));
    }
    let targets = targets.or(service.split.as_deref())?;
    Some(outbound::pick(targets, worker, &config, port.number))
}

/// Carries a connection where its route says, as long as it stays `allowed`. See
/// [`forward::to_service`].
pub async fn forward(
    worker: &Rc<Worker>,
    mut link: Link,
    opaque: Opaque,
    chosen: Result<Rc<Port>, Failure>,
    allowed: impl Fn() -> Result<(), Failure>,
) -> Option<(Link, Buf)> {
    match chosen {
        Ok(port) => {
            let carried = forward::to_service(worker, link, opaque, &port, allowed);
            Box::pin(carried).await
        }
        Err(failure) => {
            let series = outbound::unrouted_tcp(worker, &worker.config());
            forward::refuse_named(worker, &mut link, &failure, &series, opaque);
            None
        }
    }
}
