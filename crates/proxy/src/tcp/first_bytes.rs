//! Waits for the first bytes of a connection, until they show its protocol.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::detect::{Detected, FirstLineReader};
use crate::codec::sni::{self, Sni};
use crate::upstream::link::Link;
use crate::worker::Worker;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tulle_net::Buf;

/// Bytes that are held back while they may become a request: no line of a sensible client is
/// longer. Longer lines are forwarded, and `detect` still reads them.
const HELD: usize = 16 * 1024;
/// First byte of a TLS handshake.
const HANDSHAKE: u8 = 22;

/// The protocol of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum First {
    /// TLS; the name of the server it asks for, in lower case.
    Tls(Option<String>),
    /// HTTP/1.1.
    Http,
    /// Something else, or nothing yet: the server may have to speak first.
    Opaque,
    /// TLS that no server should accept, and why.
    Malformed(&'static str),
}

/// Waits no longer than `patience` for the first byte. A TLS hello that has begun may take as long
/// as a head.
pub async fn look(
    worker: &Rc<Worker>,
    link: &mut Link,
    received: &mut Buf,
    patience: Duration,
) -> First {
    let deadline = worker.deadlines.register();
    let header = worker.config().snapshot.mesh.header_timeout_ms;
    deadline.arm(patience);
    let mut begun = false;
    let mut read = Reading::default();
    poll_fn(|cx| {
        loop {
            match sni::server_name(received.as_slice()) {
                Sni::Name(name) => return Poll::Ready(First::Tls(Some(name))),
                Sni::Absent => return Poll::Ready(First::Tls(None)),
                Sni::Malformed(why) => return Poll::Ready(First::Malformed(why)),
                Sni::NotTls => match read.on(received) {
                    Detected::Http => return Poll::Ready(First::Http),
                    Detected::NeedsMore => {}
                    Detected::Opaque | Detected::Watched => return Poll::Ready(First::Opaque),
                },
                Sni::NeedsMore => {}
            }
            if !begun && received.as_slice().first() == Some(&HANDSHAKE) {
                begun = true;
                deadline.arm(Duration::from_millis(header.into()).max(patience));
            }
            if deadline.poll_expired(cx) {
                worker.metrics.internal(|i| i.detect_timeouts += 1);
                return Poll::Ready(First::Opaque);
            }
            match link.poll_read(cx, received) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => return Poll::Ready(First::Opaque),
            }
        }
    })
    .await
}

/// The protocol of a connection that has not begun our TLS.
#[derive(Debug)]
pub enum Plain {
    /// HTTP.
    Http,
    /// Something else, or nothing yet. The watch reads on until it is certain that no request
    /// begins.
    Opaque(Option<FirstLineReader>),
}

/// Tells HTTP from anything else. It waits no longer than `patience` for the end of a line, or for
/// any byte: the server may have to speak first.
pub async fn plain(
    worker: &Rc<Worker>,
    link: &mut Link,
    received: &mut Buf,
    patience: Duration,
) -> Plain {
    let deadline = worker.deadlines.register();
    deadline.arm(patience);
    let mut read = Reading::default();
    poll_fn(|cx| {
        loop {
            match read.on(received) {
                Detected::Http => return Poll::Ready(Plain::Http),
                Detected::Opaque => return Poll::Ready(Plain::Opaque(None)),
                Detected::Watched => return read.goes_on(),
                Detected::NeedsMore => {}
            }
            if received.len() >= HELD {
                return read.goes_on();
            }
            if deadline.poll_expired(cx) {
                worker.metrics.internal(|i| i.detect_timeouts += 1);
                return read.goes_on();
            }
            match link.poll_read(cx, received) {
                Poll::Pending if patience.is_zero() => return read.goes_on(),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(Ok(_)) if read.watch.end() == Detected::Http => {
                    return Poll::Ready(Plain::Http);
                }
                Poll::Ready(_) => return Poll::Ready(Plain::Opaque(None)),
            }
        }
    })
    .await
}

/// Bytes that grow while they are read.
#[derive(Default)]
struct Reading {
    watch: FirstLineReader,
    read: usize,
}

impl Reading {
    fn on(&mut self, received: &Buf) -> Detected {
        let new = received.as_slice().get(self.read..).unwrap_or_default();
        self.read += new.len();
        self.watch.read(new)
    }

    fn goes_on(&mut self) -> Poll<Plain> {
        Poll::Ready(Plain::Opaque(Some(std::mem::take(&mut self.watch))))
    }
}
