//! Notices that a client goes away while its request waits.

use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use tulle_net::Buf;

/// Ends when the client has gone: its stream or connection is reset.
///
/// At most one buffer is read ahead. A client may half-close and still wait for its answer; a connection that was
/// merely closed looks the same.
pub(super) fn departure<'a>(
    down: &'a mut Link,
    received: &'a mut Buf,
) -> impl Future<Output = Failure> + 'a {
    let mut ended = false;
    poll_fn(move |cx| {
        let gone = |e: io::Error| Poll::Ready(Failure::new(Reason::ClientClosed, e.to_string()));
        if let Poll::Ready(error) = down.poll_reset(cx) {
            return gone(error);
        }
        if !ended && received.is_empty() {
            match down.poll_read(cx, received) {
                Poll::Ready(Err(error)) => return gone(error),
                Poll::Ready(Ok(0)) => ended = true,
                Poll::Ready(Ok(_)) | Poll::Pending => {}
            }
        }
        Poll::Pending
    })
}
