//! Connections that come through a load balancer: reads the PROXY header first.

use crate::codec::proxy_protocol::{self, ProxyHeader};
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::worker::Worker;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tulle_net::{Buf, socket};

/// Reads the header and removes it from `received`. Returns the client it names; `None`: the load
/// balancer speaks for itself.
///
/// # Errors
/// There is no header, or it is malformed, or it did not come in time.
pub async fn receive(
    worker: &Rc<Worker>,
    link: &mut Link,
    received: &mut Buf,
) -> Result<Option<SocketAddr>, Failure> {
    let deadline = worker.deadlines.register();
    let limit = worker.config().snapshot.mesh.header_timeout_ms;
    let limit = Duration::from_millis(limit.into());
    deadline.arm(limit);
    let refused = |reason, text: String| Poll::Ready(Err(Failure::new(reason, text)));
    poll_fn(|cx| {
        loop {
            match proxy_protocol::parse(received.as_slice()) {
                ProxyHeader::Complete { length, client } => {
                    received.consume(length);
                    return Poll::Ready(Ok(client.map(socket::canonical)));
                }
                ProxyHeader::Invalid(why) => {
                    let text = format!(
                        "{why}; proxyProtocol is set for this port: let only a load balancer that \
                         sends it connect"
                    );
                    return refused(Reason::BadRequest, text);
                }
                ProxyHeader::NeedsMore => {}
            }
            if deadline.poll_expired(cx) {
                let text = format!("no complete PROXY header within {limit:?}");
                return refused(Reason::HeaderTimeout, text);
            }
            match link.poll_read(cx, received) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => {
                    let text = "the client ended the connection inside its PROXY header";
                    return refused(Reason::ClientClosed, text.to_owned());
                }
            }
        }
    })
    .await
}
