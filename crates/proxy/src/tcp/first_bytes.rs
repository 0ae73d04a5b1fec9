//! Waiting for the first bytes of a connection, until they tell what it speaks.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::detect::{Detected, Watch};
use crate::codec::sni::{self, Sni};
use crate::upstream::link::Link;
use crate::worker::Worker;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tulle_net::Buf;

/// Bytes that are held back while they may become a request: no line that a sensible client sends is
/// longer. What goes on is read all the same (`detect`).
const HELD: usize = 16 * 1024;
/// First byte of a TLS handshake.
const HANDSHAKE: u8 = 22;

/// What a connection speaks.
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

/// Waits no longer than `patience` for the first byte; a TLS hello that has begun is given as long
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

/// What a connection without TLS of ours speaks.
#[derive(Debug)]
pub enum Plain {
    /// HTTP.
    Http,
    /// Something else, or nothing yet. With whatever must go on reading, until it is certain that
    /// no request begins.
    Opaque(Option<Watch>),
}

/// Tells HTTP from anything else. Silence, or the beginning of a line, is waited for no longer than
/// `patience`: the server may have to speak first.
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
    watch: Watch,
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
