//! Connections of the application: finds their service, and carries them there.

use crate::balance::Port;
use crate::codec::detect::FirstLineReader;
use crate::decision::ConnectionContext;
use crate::decision::outbound::{OutboundContext, of_no_port};
use crate::http::exchange;
use crate::serve::egress;
use crate::tcp::first_bytes::{self, Plain};
use crate::tcp::forward::{self, Opaque};
use crate::tcp::routed;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::worker::Worker;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tulle_model::resource::Protocol;
use tulle_net::{Buf, socket};

/// Serves a redirected connection by its original destination.
pub fn serve_redirected(worker: Rc<Worker>, tcp: TcpStream) -> impl Future<Output = ()> {
    let destination = original_destination(&tcp);
    // A block: see `serve`.
    async move {
        let Some(destination) = destination else {
            return;
        };
        let port = destination.port();
        let service: Arc<str> = match Box::pin(owner(&worker, destination)).await {
            Ok(Some(service)) => service.into(),
            Ok(None) => return Box::pin(egress::serve(&worker, tcp, destination)).await,
            Err(failure) => {
                return Box::pin(egress::refuse(&worker, tcp, destination, failure)).await;
            }
        };
        serve(worker, tcp, service, port).await;
    }
}

fn original_destination(tcp: &TcpStream) -> Option<SocketAddr> {
    let destination = match socket::original_destination(tcp) {
        Ok(address) => socket::canonical(address),
        Err(error) => {
            tracing::warn!(%error, "a connection to the outbound listener was not redirected");
            return None;
        }
    };
    // A client connected to the listener itself: forwarding would come back here for ever.
    let local = tcp.local_addr().map(socket::canonical);
    (!local.is_ok_and(|local| local == destination)).then_some(destination)
}

/// The service that owns an address. Asks the controller the first time, and waits while it can answer.
async fn owner(worker: &Worker, destination: SocketAddr) -> Result<Option<String>, Failure> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let name = format!("address/{}", destination.ip());
    let known = || {
        let config = worker.config();
        let owner = config.snapshot.addresses.get(&destination.ip())?;
        match owner {
            Some(service) if !config.snapshot.services.contains_key(service) => None,
            owner => Some(owner.clone()),
        }
    };
    let answer = async {
        loop {
            let changed = worker.changed();
            let owner = known();
            let Some(lookups) = &worker.lookups else {
                return Ok(owner.flatten());
            };
            let config = worker.config();
            let snapshot = &config.snapshot;
            if let Some(owner) = owner {
                // The controller records for siblings the services this workload uses.
                if owner.is_some() && snapshot.unused.contains(name.as_str()) {
                    lookups.ask(&name);
                }
                return Ok(owner);
            }
            lookups.ask(&name);
            if let Some(why) = &snapshot.away {
                let text = format!(
                    "the controller is away and has not named the owner of {}: {why}; see `tulle check`",
                    destination.ip()
                );
                return Err(Failure::new(Reason::NotReady, text));
            }
            drop(config);
            changed.await;
        }
    };
    let timeout = tokio::time::timeout(PATIENCE, answer).await;
    timeout.unwrap_or_else(|_| {
        let text = format!(
            "no answer of the controller within {PATIENCE:?} on who owns {}; see `tulle check`",
            destination.ip()
        );
        Err(Failure::new(Reason::NotReady, text))
    })
}

/// Serves a connection to a port of a service.
pub fn serve(
    worker: Rc<Worker>,
    tcp: TcpStream,
    service: Arc<str>,
    port: u16,
) -> impl Future<Output = ()> {
    let scope = OutboundContext::new(service, port);
    let known = scope.port(&worker, &worker.config());
    let mut link = Link::Tcp(tcp);
    if known.is_none() {
        let text = format!("service {} has no port {port}", scope.service());
        let failure = Failure::new(Reason::NoPort, text);
        let series = of_no_port(&worker, &worker.config(), scope.service().clone(), true);
        forward::refuse(&worker, &mut link, &failure, &series, None);
    }
    let scope = ConnectionContext::Outbound(scope);
    // A block, because a function would keep its arguments twice, for as long as it runs.
    async move {
        let Some(known) = known else { return };
        let mut received = Buf::new();
        let spoken = match known.protocol {
            Protocol::Http | Protocol::Http2 | Protocol::Grpc => Plain::Http,
            Protocol::Detect => {
                let patience = worker.config().snapshot.mesh.detect_timeout_ms;
                let patience = Duration::from_millis(patience.into());
                first_bytes::plain(&worker, &mut link, &mut received, patience).await
            }
            Protocol::Tcp | Protocol::Tls => Plain::Opaque(None),
        };
        if let Plain::Opaque(watch) = spoken {
            let carried = carry(&worker, link, received, watch, &known);
            match Box::pin(carried).await {
                Some(late) => (link, received) = late,
                None => return,
            }
        }
        // Each request looks the port up again. A port held by a connection would keep removed
        // endpoints in use.
        drop(known);
        exchange::serve(&worker, link, received, &scope).await;
    }
}

/// Carries opaque bytes where the service's routes say, or to the service. Gives the connection
/// back if its first bytes come late and are a request's.
async fn carry(
    worker: &Rc<Worker>,
    mut link: Link,
    mut received: Buf,
    watch: Option<FirstLineReader>,
    known: &Rc<Port>,
) -> Option<(Link, Buf)> {
    let routed = routed::of_service(worker, &mut link, &mut received, known).await;
    let opaque = Opaque {
        received,
        watch,
        ..Opaque::default()
    };
    match routed {
        Some(chosen) => routed::forward(worker, link, opaque, chosen, || Ok(())).await,
        None => forward::to_service(worker, link, opaque, known, || Ok(())).await,
    }
}
