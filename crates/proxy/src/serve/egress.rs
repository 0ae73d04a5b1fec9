//! Connections of the application to addresses of no service. Those a rule allows leave the mesh:
//! directly, as TLS, or through an egress gateway.
//!
//! The address is always the one that the application dialled. A name it gives (Host, or the server
//! name of its TLS) is only compared with the rules. A rule without networks therefore trusts
//! applications to dial the address of the name they give. The exceptions: TLS begins here, where
//! the server must prove its name, or an egress gateway looks the name up itself.

use crate::config::egress_rule::Spoken;
use crate::decision::ConnectionContext;
use crate::decision::egress::{self, EgressContext};
use crate::decision::outbound;
use crate::http::exchange;
use crate::tcp::first_bytes::{self, First};
use crate::tcp::forward::{self, Opaque};
use crate::telemetry::outside_peers::OutsidePeer;
use crate::telemetry::reason::Failure;
use crate::upstream::link::Link;
use crate::worker::Worker;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpStream;
use tulle_net::Buf;

/// Serves a connection of the application to an address of no service.
pub async fn serve(worker: &Rc<Worker>, tcp: TcpStream, destination: SocketAddr) {
    let config = worker.config();
    let snapshot = &config.snapshot;
    let port = destination.port();
    let (mut known, mut look) = (false, false);
    if let Some(egress) = &snapshot.egress {
        for rule in egress.towards(&snapshot.identity, destination) {
            known = true;
            look |= rule.looks_inside(port);
        }
    }
    // A connection to be refused is looked at, too: a client of HTTP can be told why, and TLS has a
    // name.
    look |= !known && !snapshot.mesh.allow_egress;
    let (mut link, mut received) = (Link::Tcp(tcp), Buf::new());
    let patience = Duration::from_millis(snapshot.mesh.detect_timeout_ms.into());
    drop(config);
    let first = match look {
        true => first_bytes::look(worker, &mut link, &mut received, patience).await,
        false => First::Opaque,
    };
    let spoken = match first {
        First::Http => {
            let scope = ConnectionContext::Egress(EgressContext::new(destination, None));
            return Box::pin(exchange::serve(worker, link, received, &scope)).await;
        }
        First::Tls(name) => Spoken::Tls(name),
        // A malformed hello has no name that could be trusted.
        First::Opaque | First::Malformed(_) => Spoken::Opaque,
    };
    Box::pin(carry(worker, link, received, destination, &spoken)).await;
}

/// Refuses a connection to an address whose owner is unknown. Clients of HTTP are told why.
pub async fn refuse(
    worker: &Rc<Worker>,
    tcp: TcpStream,
    destination: SocketAddr,
    failure: Failure,
) {
    let (mut link, mut received) = (Link::Tcp(tcp), Buf::new());
    let patience = worker.config().snapshot.mesh.detect_timeout_ms;
    let patience = Duration::from_millis(patience.into());
    let first = first_bytes::look(worker, &mut link, &mut received, patience).await;
    if first == First::Http {
        let scope =
            ConnectionContext::Egress(EgressContext::new(destination, Some(failure.detail.into())));
        return Box::pin(exchange::serve(worker, link, received, &scope)).await;
    }
    let series = outbound::unrouted_tcp(worker, &worker.config());
    forward::refuse(worker, &mut link, &failure, &series, None);
}

/// Carries a connection that is not HTTP.
async fn carry(
    worker: &Rc<Worker>,
    mut link: Link,
    received: Buf,
    destination: SocketAddr,
    spoken: &Spoken,
) {
    let judge = |worker: &Worker| {
        let config = worker.config();
        egress::decide(worker, &config, destination, spoken)
    };
    let opaque = Opaque {
        received,
        server_name: match spoken {
            Spoken::Tls(Some(name)) => Some(name.as_str().into()),
            _ => None,
        },
        ..Opaque::default()
    };
    match judge(worker) {
        Ok((upstream, series, ruled)) => {
            if !ruled {
                worker.outside.let_through(OutsidePeer::server(destination));
            }
            let allowed = || judge(worker).map(drop);
            Box::pin(forward::to_endpoint(
                worker, link, opaque, &upstream, &series, allowed,
            ))
            .await;
        }
        Err(failure) => {
            worker.outside.refused(OutsidePeer::server(destination));
            let series = outbound::unrouted_tcp(worker, &worker.config());
            forward::refuse_named(worker, &mut link, &failure, &series, opaque);
        }
    }
}
