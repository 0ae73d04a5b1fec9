//! Mirroring: sends copies of requests to another service. Its answers are dropped, and the result
//! of a copy does not affect the request.
//!
//! A copy leaves when the request is complete: a cut copy would be another request. Its body is
//! bounded, and so is the number of copies under way.

use crate::balance::{EndpointHint, Port};
use crate::filter::mirror::Mirror;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::Lease;
use crate::worker::{Worker, WorkerConfig};
use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tulle_http1::{Body, Limits, Method, Parsed, request_line};
use tulle_net::Buf;
use tulle_transport::StreamKind;

/// A request with a longer body and head than this together is not copied.
const MAX_BYTES: usize = 64 * 1024;
/// Copies under way in a worker; more are left out.
const MAX_COPIES: u32 = 256;
/// Longest time of a copy.
const MAX_TIME: Duration = Duration::from_secs(15);

thread_local! {
    static UNDER_WAY: Cell<u32> = const { Cell::new(0) };
}

/// Copies of a request whose body is still coming.
#[derive(Default)]
pub struct Copies(Vec<Growing>);

struct Growing {
    bytes: Vec<u8>,
    send: oneshot::Sender<Vec<u8>>,
}

/// A request of which a copy is to be sent.
pub struct Original<'a> {
    /// All of it that is here, as it will be forwarded.
    pub message: &'a [u8],
    /// There is no more of it.
    pub whole: bool,
    /// Whether it asks for another protocol.
    pub upgrade: bool,
}

/// Begins a copy of a request.
pub fn copy(
    worker: &Rc<Worker>,
    config: &WorkerConfig,
    mirror: &Mirror,
    original: &Original<'_>,
    copies: &mut Option<Box<Copies>>,
) {
    let count = |what| worker.metrics.internal(|i| i.mirrored.add(what, 1));
    let port = worker
        .destination(config, mirror.service())
        .and_then(|d| d.port(mirror.port()).cloned());
    let Some(port) = port else {
        return count("no_service");
    };
    // After an upgrade the end of the request is unknown.
    if original.upgrade || original.message.len() > MAX_BYTES {
        return count("too_large");
    }
    let Some(place) = Place::take() else {
        return count("too_many");
    };
    let (send, bytes) = oneshot::channel();
    tokio::task::spawn_local(carry(worker.clone(), port, bytes, place));
    let growing = Growing {
        bytes: original.message.to_vec(),
        send,
    };
    if original.whole {
        return growing.finish();
    }
    copies.get_or_insert_default().0.push(growing);
}

impl Copies {
    /// Adds bytes of the request's body; `done`: they are the last.
    pub fn extend(&mut self, bytes: &[u8], done: bool) {
        self.0.retain_mut(|copy| {
            copy.bytes.extend_from_slice(bytes);
            // A copy that is dropped here is not sent.
            copy.bytes.len() <= MAX_BYTES
        });
        if done {
            self.0.drain(..).for_each(Growing::finish);
        }
    }
}

impl Growing {
    fn finish(self) {
        // The task waits for it as long as the worker lives.
        let _ = self.send.send(self.bytes);
    }
}

/// A place among the copies that may be under way.
struct Place;

impl Place {
    fn take() -> Option<Self> {
        let taken = UNDER_WAY.get();
        (taken < MAX_COPIES).then(|| {
            UNDER_WAY.set(taken + 1);
            Self
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        UNDER_WAY.set(UNDER_WAY.get().saturating_sub(1));
    }
}

async fn carry(worker: Rc<Worker>, port: Rc<Port>, bytes: oneshot::Receiver<Vec<u8>>, _: Place) {
    let result = match bytes.await {
        Ok(bytes) => tokio::time::timeout(MAX_TIME, exchange(&worker, &port, &bytes)).await,
        Err(_) => {
            let text = "the request was too large, or incomplete";
            Ok(Err(Failure::new(Reason::ClientClosed, text)))
        }
    };
    let outcome = match result {
        Ok(Ok(())) => "sent",
        Ok(Err(failure)) if failure.reason == Reason::ClientClosed => "too_large",
        Ok(Err(failure)) => {
            tracing::debug!(service = &*port.service, %failure, "a copy was lost");
            "failed"
        }
        Err(_) => "timeout",
    };
    worker.metrics.internal(|i| i.mirrored.add(outcome, 1));
}

async fn exchange(worker: &Rc<Worker>, port: &Port, bytes: &[u8]) -> Result<(), Failure> {
    let (kind, hint) = (StreamKind::Http, EndpointHint::default());
    let mut lease = port.lease(worker, kind, &hint, None, 0, pending()).await?;
    let result = send_and_drop(&mut lease, bytes).await;
    match result {
        Ok(true) => lease.put_back(Instant::now()),
        Ok(false) => lease.link.abort(),
        Err(error) => {
            lease.link.abort();
            return Err(Failure::new(Reason::UpstreamReset, error.to_string()));
        }
    }
    Ok(())
}

/// Sends a request and reads its response to the end. Returns whether the connection can be reused.
async fn send_and_drop(lease: &mut Lease, bytes: &[u8]) -> std::io::Result<bool> {
    let bad = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let limits = Limits::default();
    let method = Method::from_bytes(request_line(bytes).0);
    let mut sent = 0;
    let mut received = Buf::new();
    let mut response: Option<(Body, bool)> = None;
    poll_fn(|cx| {
        // Both directions at once: a server that answers early may wait for us to read.
        while sent < bytes.len() {
            let rest = bytes.get(sent..).unwrap_or_default();
            match lease.link.poll_write(cx, rest, true) {
                Poll::Pending => break,
                Poll::Ready(count) => sent += count?,
            }
        }
        if sent == bytes.len()
            && let Poll::Ready(result) = lease.link.poll_flush(cx)
        {
            result?;
        }
        loop {
            match &mut response {
                Some((body, keep)) => {
                    let count = body.advance(received.as_slice()).map_err(|_| bad())?;
                    received.consume(count);
                    if body.is_done() {
                        return Poll::Ready(Ok(*keep
                            && sent == bytes.len()
                            && received.is_empty()));
                    }
                }
                None => {
                    let head = tulle_http1::parse_response(received.as_slice(), &limits, method);
                    if let Parsed::Complete(head) = head.map_err(|_| bad())? {
                        received.consume(head.len);
                        if head.status >= 200 {
                            response = Some((Body::new(head.body), head.keep_alive));
                        } else if head.upgrade {
                            return Poll::Ready(Ok(false));
                        }
                        continue;
                    }
                }
            }
            match lease.link.poll_read(cx, &mut received)? {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(0) => {
                    return Poll::Ready(match &mut response {
                        Some((body, _)) => body.end_of_stream().map(|()| false).map_err(|_| bad()),
                        None => Err(std::io::ErrorKind::UnexpectedEof.into()),
                    });
                }
                Poll::Ready(_) => {}
            }
        }
    })
    .await
}
