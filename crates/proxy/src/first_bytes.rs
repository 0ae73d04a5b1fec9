//! Waiting for the first bytes of a connection, until they tell what it speaks.

use crate::detect::{self, Detected};
use crate::link::Link;
use crate::sni::{self, Sni};
use crate::worker::Worker;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tulle_net::Buf;

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
    poll_fn(|cx| {
        loop {
            match sni::server_name(received.as_slice()) {
                Sni::Name(name) => return Poll::Ready(First::Tls(Some(name))),
                Sni::Absent => return Poll::Ready(First::Tls(None)),
                Sni::Malformed(why) => return Poll::Ready(First::Malformed(why)),
                Sni::NotTls => match detect::detect(received.as_slice()) {
                    Detected::Http => return Poll::Ready(First::Http),
                    Detected::NeedsMore => {}
                    _ => return Poll::Ready(First::Opaque),
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
