//! A way through an egress gateway: the sidecar asks by HTTP CONNECT, then the bytes are the server's.

use super::Lease;
use super::link::{Link, Tunnel};
use crate::config::head_limits;
use crate::context::WorkerContext;
use crate::telemetry::reason::{Failure, Reason};
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use tulle_http1::{Method, Parsed};
use tulle_model::resource::Target;
use tulle_net::Buf;

/// Asks an endpoint of the gateway for a way to `authority`.
///
/// # Errors
/// The gateway refuses.
pub async fn open(
    context: &WorkerContext,
    mut lease: Lease,
    gateway: &Target,
    authority: &str,
) -> Result<Link, Failure> {
    let cut = |e: io::Error| {
        let text = format!("egress gateway {}: {e}", gateway.service);
        Failure::new(Reason::UpstreamReset, text)
    };
    let request = format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n");
    send(&mut lease.link, request.as_bytes())
        .await
        .map_err(cut)?;
    let limits = head_limits::of_mesh(&context.snapshot().mesh, true);
    let mut received = Buf::new();
    loop {
        let before = received.len();
        let count = poll_fn(|cx| lease.link.poll_read(cx, &mut received))
            .await
            .map_err(cut)?;
        if count == 0 {
            return Err(cut(io::ErrorKind::UnexpectedEof.into()));
        }
        if !head_limits::may_complete(received.as_slice(), before, &limits) {
            continue;
        }
        let parsed = tulle_http1::parse_response(received.as_slice(), &limits, Method::Connect);
        match parsed {
            Ok(Parsed::Partial) => {}
            Ok(Parsed::Complete(head)) if (200..300).contains(&head.status) => {
                received.consume(head.len);
                let link = std::mem::replace(&mut lease.link, Link::Closed);
                let tunnel = Tunnel::new(link, received, Box::new(lease));
                return Ok(Link::Tunnel(Box::new(tunnel)));
            }
            Ok(Parsed::Complete(head)) => {
                let bytes = received.as_slice().get(..head.len).unwrap_or_default();
                let mut fields = tulle_http1::headers(bytes);
                let reason = fields.find(|(n, _)| n.eq_ignore_ascii_case(b"x-tulle-reason"));
                let reason = reason.map_or("-".into(), |(_, v)| String::from_utf8_lossy(v));
                let denied = matches!(head.status, 403);
                let text = format!(
                    "egress gateway {} refuses {authority}: {} {reason}",
                    gateway.service, head.status
                );
                let reason = match denied {
                    true => Reason::EgressDenied,
                    false => Reason::ConnectFailed,
                };
                return Err(Failure::new(reason, text));
            }
            Err(bad) => {
                let text = format!("egress gateway {}: {bad}", gateway.service);
                return Err(Failure::new(Reason::BadResponse, text));
            }
        }
    }
}

/// Writes all of `bytes`, and flushes.
///
/// # Errors
/// The connection broke.
pub async fn send(link: &mut Link, bytes: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    poll_fn(|cx| {
        loop {
            let rest = bytes.get(sent..).unwrap_or_default();
            if rest.is_empty() {
                return link.poll_flush(cx);
            }
            match link.poll_write(cx, rest, false) {
                Poll::Ready(Ok(count)) if count > 0 => sent += count,
                Poll::Ready(Ok(_)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}
