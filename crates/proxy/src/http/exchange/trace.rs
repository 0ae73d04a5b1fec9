//! The trace of a request: reads its context, writes it for the next hop, and records the span.

use super::{Conversation, RequestInfo};
use crate::decision::ConnectionContext;
use crate::telemetry::grpc_status::ResponseStatus;
use crate::telemetry::metrics::Labels;
use crate::telemetry::reason::Failure;
use crate::telemetry::span::{self, Ending, Span, TraceSpanKind};
use crate::telemetry::trace_context::{self, Decision, Onward};
use std::time::Instant;
use tulle_http1::RequestHead;
use tulle_model::resource::Tracing;

impl Conversation<'_> {
    /// Decides the trace context of the forwarded request; `None`: it keeps the one it came with.
    #[cold]
    pub(super) fn trace(
        &self,
        tracing: &Tracing,
        head: &RequestHead,
        bytes: &[u8],
        asked: &mut RequestInfo,
    ) -> Option<Onward> {
        let (kind, first) = match self.scope {
            ConnectionContext::Outbound(_) | ConnectionContext::Egress(_) => {
                (TraceSpanKind::Client, true)
            }
            ConnectionContext::Gateway(_) => (TraceSpanKind::Server, true),
            ConnectionContext::Inbound(scope) => (TraceSpanKind::Server, !scope.is_mutual()),
        };
        let context = trace_context::read(tulle_http1::headers(bytes));
        let onward = span::decide(tracing, context, first, || self.worker.random())?;
        if onward.decision != Decision::Drop {
            let mut span = Span::begin(&onward, kind, head, bytes);
            span.scheme = self.scope.entry().0;
            span.client = self.scope.client();
            asked.span.set(Some(span));
        }
        Some(onward)
    }

    /// Ends the span of a request.
    pub(super) fn end_span(
        &self,
        asked: &RequestInfo,
        labels: &Labels,
        answer: ResponseStatus,
        failure: &Failure,
        now: Instant,
    ) {
        // A request has one span at most.
        if let Some(mut span) = asked.span.take() {
            span.end(&Ending {
                took: now.duration_since(asked.started),
                answer,
                failure,
                labels,
            });
            self.worker.spans.push(*span);
        }
    }
}
