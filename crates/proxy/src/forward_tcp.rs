//! Opaque TCP: bytes both ways, each direction closed by itself.

use crate::balance::Port;
use crate::link::Link;
use crate::metrics::Series;
use crate::reason::{Failure, Reason};
use crate::upstream::{Lease, Upstream};
use crate::worker::Worker;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tulle_net::{Buf, Deadline};
use tulle_transport::StreamKind;

/// Endpoints tried when a connection cannot be made.
const CONNECT_TRIES: usize = 3;
/// Read ahead of the other side at most.
const READ_AHEAD: usize = 64 * 1024;

/// Carries a connection to one of a service's endpoints.
pub async fn to_service(worker: &Rc<Worker>, mut down: Link, received: Buf, port: &Port) {
    let mut tries = port.endpoint_count().clamp(1, CONNECT_TRIES);
    let lease = loop {
        let lease = match port.pick(worker) {
            Ok(upstream) => lease(worker, upstream).await,
            Err(failure) => Err(failure),
        };
        tries -= 1;
        match lease {
            Err(_) if tries > 0 => {}
            done => break done,
        }
    };
    match lease {
        Ok(lease) => run(worker, down, received, lease, &port.tcp).await,
        Err(failure) => refuse(worker, &mut down, &failure, &port.tcp),
    }
}

/// Carries a connection to one endpoint.
pub async fn to_endpoint(
    worker: &Rc<Worker>,
    mut down: Link,
    received: Buf,
    upstream: &Rc<Upstream>,
    series: &Rc<Series>,
) {
    match lease(worker, upstream).await {
        Ok(lease) => run(worker, down, received, lease, series).await,
        Err(failure) => refuse(worker, &mut down, &failure, series),
    }
}

async fn lease(worker: &Rc<Worker>, upstream: &Rc<Upstream>) -> Result<Lease, Failure> {
    match upstream.checkout(worker, StreamKind::Tcp) {
        Some(lease) => Ok(lease),
        None => upstream.connect(worker, StreamKind::Tcp).await,
    }
}

fn refuse(worker: &Rc<Worker>, down: &mut Link, failure: &Failure, series: &Series) {
    series.tcp_opened();
    series.tcp_closed(failure.reason);
    let source = series.labels.source.as_ref().map(|id| id.as_str());
    worker.failed(source, &series.labels.destination_service, b"", 0, failure);
    down.abort();
}

async fn run(
    worker: &Rc<Worker>,
    mut down: Link,
    received: Buf,
    mut lease: Lease,
    series: &Series,
) {
    series.tcp_opened();
    let idle = worker.config().snapshot.mesh.idle_timeout_ms;
    let deadline = worker.deadlines.register();
    let mut pipe = Pipe::new(received, Buf::new(), idle);
    let result = pipe.run(&mut down, &mut lease.link, &deadline).await;
    series.tcp_bytes(pipe.up.bytes, pipe.down.bytes);
    let reason = match result {
        Ok(()) => Reason::Ok,
        Err(reason) => {
            // A reset on one side is a reset on the other: nobody takes a cut for an end.
            down.abort();
            lease.link.abort();
            reason
        }
    };
    series.tcp_closed(reason);
}

/// Two directions.
pub struct Pipe {
    up: Direction,
    down: Direction,
    idle: Duration,
}

#[derive(Default)]
struct Direction {
    buf: Buf,
    bytes: u64,
    ended: bool,
    shut: bool,
}

impl Direction {
    fn new(buf: Buf) -> Self {
        Self {
            buf,
            ..Self::default()
        }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Link,
        to: &mut Link,
        moved: &mut bool,
    ) -> Poll<io::Result<()>> {
        loop {
            while !self.buf.is_empty() {
                let count = ready!(to.poll_write(cx, self.buf.as_slice(), false))?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.buf.consume(count);
                self.bytes += count as u64;
                *moved = true;
            }
            if self.ended {
                if !self.shut {
                    ready!(to.poll_shutdown(cx))?;
                    self.shut = true;
                    *moved = true;
                }
                return Poll::Ready(Ok(()));
            }
            if self.buf.len() < READ_AHEAD {
                match from.poll_read(cx, &mut self.buf) {
                    Poll::Pending => {
                        ready!(to.poll_flush(cx))?;
                        return Poll::Pending;
                    }
                    Poll::Ready(count) => self.ended = count? == 0,
                }
            }
        }
    }
}

impl Pipe {
    /// A pipe with bytes already received from either side.
    pub fn new(from_down: Buf, from_up: Buf, idle_timeout_ms: u32) -> Self {
        Self {
            up: Direction::new(from_down),
            down: Direction::new(from_up),
            idle: Duration::from_millis(idle_timeout_ms.into()),
        }
    }

    /// Carries bytes until both sides have ended.
    ///
    /// # Errors
    /// A side broke, or nothing moved for the idle timeout.
    pub async fn run(
        &mut self,
        down: &mut Link,
        up: &mut Link,
        deadline: &Deadline,
    ) -> Result<(), Reason> {
        deadline.arm(self.idle);
        poll_fn(|cx| {
            let mut moved = false;
            let upward = self.up.poll(cx, down, up, &mut moved);
            let downward = self.down.poll(cx, up, down, &mut moved);
            match (upward, downward) {
                (Poll::Ready(Err(_)), _) => return Poll::Ready(Err(Reason::ClientClosed)),
                (_, Poll::Ready(Err(_))) => return Poll::Ready(Err(Reason::UpstreamReset)),
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => return Poll::Ready(Ok(())),
                _ => {}
            }
            if moved {
                deadline.arm(self.idle);
            }
            if deadline.poll_expired(cx) {
                return Poll::Ready(Err(Reason::IdleTimeout));
            }
            Poll::Pending
        })
        .await
    }
}
