//! The trace a request belongs to: what it says of it, what it says when it goes on, and what is remembered.

use super::{Asked, Conversation};
use crate::decision::Scope;
use crate::telemetry::grpc_status::Answer;
use crate::telemetry::metrics::Labels;
use crate::telemetry::reason::Failure;
use crate::telemetry::span::{self, Ending, Kind, Span};
use crate::telemetry::trace_context::{self, Decision, Onward};
use std::time::Instant;
use tulle_http1::RequestHead;
use tulle_model::resource::Tracing;

impl Conversation<'_> {
    /// What the request says of its trace when it goes on; `None`: what it said already.
    #[cold]
    pub(super) fn trace(
        &self,
        tracing: &Tracing,
        head: &RequestHead,
        bytes: &[u8],
        asked: &mut Asked,
    ) -> Option<Onward> {
        let (kind, first) = match self.scope {
            Scope::Outbound(_) | Scope::Egress(_) => (Kind::Client, true),
            Scope::Gateway(_) => (Kind::Server, true),
            Scope::Inbound(scope) => (Kind::Server, !scope.is_mutual()),
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

    /// The request is over.
    pub(super) fn end_span(
        &self,
        asked: &Asked,
        labels: &Labels,
        answer: Answer,
        failure: &Failure,
        now: Instant,
    ) {
        // There is one at most.
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
