//! Answers of the proxy itself, and the orderly end of a connection.

use super::{Conversation, Next, RefusedRequest, RequestInfo};
use crate::context::RequestFacts;
use crate::decision::ConnectionContext;
use crate::decision::request::Decision;
use crate::filter::ResponseEdits;
use crate::http::reply;
use crate::telemetry::access_log;
use crate::telemetry::grpc_status::ResponseStatus;
use crate::telemetry::reason::{Failure, Reason};
use crate::worker::WorkerConfig;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};
use tulle_http1::Method;
use tulle_net::Buf;

impl Conversation<'_> {
    pub(super) async fn refuse_begun(&mut self, refused: &RefusedRequest) -> Next {
        let decision = refused.decision.as_ref();
        let (config, asked) = (&refused.config, &refused.asked);
        let (failure, target) = (&refused.failure, &refused.target);
        self.refuse(config, asked, decision, failure, target, None)
            .await
    }

    /// Answers in place of the upstream.
    pub(super) async fn refuse(
        &mut self,
        config: &WorkerConfig,
        asked: &RequestInfo,
        decision: Option<&Decision>,
        failure: &Failure,
        target: &[u8],
        edits: Option<&ResponseEdits>,
    ) -> Next {
        let reset = failure.status() == 0;
        let status = match failure.status() {
            0 => failure.reason.status(),
            status => status,
        };
        let series = match decision {
            Some(decision) => decision.series.clone(),
            None => self.scope.series(self.worker, config),
        };
        let now = Instant::now();
        let answer = match asked.came_as.grpc {
            true => ResponseStatus::to_call(status, None, failure.reason),
            false => status.into(),
        };
        let took = (asked.started, now);
        series.request(answer, failure.reason, took, (0, 0));
        let labels = &series.labels;
        let grpc = asked.came_as.grpc && !failure.reason.is_response();
        self.end_span(asked, labels, answer, failure, now);
        let source = labels.source.as_ref().map(|id| id.as_str());
        if !failure.reason.is_response() {
            let facts = RequestFacts {
                method: asked.method.as_str().as_bytes(),
                target,
                upstream: asked.line.as_ref().and_then(|line| line.upstream),
                grpc: answer.grpc,
            };
            let service = &labels.destination_service;
            self.worker
                .request_failed(source, service, &facts, status, failure);
        }
        if let Some(line) = &asked.line {
            let ended = access_log::ExchangeEnd {
                answer,
                reason: failure.reason,
                started: asked.started,
                first_byte: Some(now),
                now,
                received: 0,
                sent: 0,
                upstream: line.upstream,
                upstream_time: None,
            };
            let lines = self.worker.log_rules();
            self.worker
                .log
                .request(line, &ended, labels, lines.as_deref());
        }
        if reset {
            return Next::Abort;
        }
        let is_gone = self.is_application_gone(failure);
        if is_gone {
            self.down.take_no_more_streams();
        }
        // An unread body would be taken for the next request, and so would bytes that a client sent
        // into a refused tunnel. Where the destination was unknown, the next connection may find
        // it.
        let close = is_gone
            || asked.has_body
            || failure.reason == Reason::NotReady
            || asked.method == Method::Connect
            || !asked.keep_alive
            || asked.minor == 0
            || self.worker.is_draining();
        let mut out = Buf::new();
        if grpc {
            reply::write_grpc(failure, out.storage());
        } else {
            reply::write(
                status,
                failure,
                close && !self.single,
                asked.method,
                out.storage(),
            );
        }
        if let Some(edits) = edits {
            let head = tulle_http1::head_len(out.as_slice());
            edits.apply(&mut out, head);
        }
        match self.send(out).await {
            Ok(()) if close => Next::Close,
            Ok(()) => Next::Continue,
            Err(_) => Next::Abort,
        }
    }

    /// Whether nobody accepts connections at the application's port, as when its pod ends before
    /// the sidecar does. Each request on this connection would fail; the client's next connection
    /// may reach another endpoint.
    fn is_application_gone(&self, failure: &Failure) -> bool {
        failure.reason == Reason::ConnectFailed
            && matches!(self.scope, ConnectionContext::Inbound(_))
    }

    /// Answers bytes that are not even a request.
    pub(super) async fn refuse_unread(&mut self, status: u16, failure: &Failure) -> Next {
        let series = self.scope.series(self.worker, &self.worker.config());
        reply::refused_unread(self.worker, &series, status, failure);
        if failure.reason != Reason::ClientClosed {
            let mut out = Buf::new();
            reply::write(status, failure, !self.single, Method::Get, out.storage());
            // The client may be gone, and nobody else waits for the answer.
            let _ = self.send(out).await;
        }
        Next::Close
    }

    async fn send(&mut self, mut out: Buf) -> std::io::Result<()> {
        self.deadline.arm(Duration::from_secs(5));
        poll_fn(|cx| {
            loop {
                if self.deadline.poll_expired(cx) {
                    return Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()));
                }
                if out.is_empty() {
                    return self.down.poll_flush(cx);
                }
                match self.down.poll_write(cx, out.as_slice(), self.single) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(count)) => out.consume(count),
                }
            }
        })
        .await
    }

    /// Ends the connection so that the client can read the last response: half-close, then read and
    /// drop the remaining bytes, within bounds. Closing with unread bytes would reset the
    /// connection and could destroy the response on its way.
    pub(super) async fn finish(&mut self) {
        const LIMIT: usize = 256 * 1024;
        self.received.release();
        self.deadline.arm(Duration::from_secs(2));
        let mut dropped = 0;
        let mut shut = false;
        poll_fn(|cx| {
            if !shut {
                match self.down.poll_shutdown(cx) {
                    Poll::Pending => {}
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Ready(Ok(())) => shut = true,
                }
            }
            if self.single {
                return Poll::Ready(());
            }
            loop {
                if self.deadline.poll_expired(cx) || dropped > LIMIT {
                    return Poll::Ready(());
                }
                match self.down.poll_read(cx, &mut self.received) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(count)) if count > 0 => {
                        dropped += count;
                        self.received.release();
                    }
                    Poll::Ready(_) => return Poll::Ready(()),
                }
            }
        })
        .await;
    }
}
