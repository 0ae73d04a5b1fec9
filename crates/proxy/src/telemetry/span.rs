//! One proxy's part of a traced request: whether there is a span, its contents, and the queue for
//! the exporter (`export`).
//!
//! A decision that comes with a request is followed. Without one the first proxy of the mesh on the
//! way decides and passes its decision on, so that a trace is recorded as a whole or not at all.
//! Spans wait in a ring of their worker; a request takes no lock.

use crate::telemetry::export_totals::{BATCH, ExportTotals};
use crate::telemetry::grpc_status::ResponseStatus;
use crate::telemetry::metrics::Labels;
use crate::telemetry::reason::Failure;
use crate::telemetry::trace_context::{Decision, Form, Ids, Onward, TraceContext};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};
use tulle_http1::RequestHead;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::Tracing;

/// Spans a worker holds until the exporter takes them.
const RING: usize = 2 * BATCH;
/// Bytes kept of a text that the client has chosen.
const MAX_TEXT: usize = 512;

/// The side of a call that a proxy stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceSpanKind {
    /// The server's, or a gateway.
    Server,
    /// The client's.
    Client,
}

/// A request as this proxy saw it.
#[derive(Debug)]
pub struct Span {
    /// The trace, and this span.
    pub ids: Ids,
    /// The span that called; 0: the trace begins here.
    pub parent: u64,
    /// The side of the call.
    pub kind: TraceSpanKind,
    /// The request's method.
    pub method: String,
    /// Path without the query, which may hold secrets.
    pub path: String,
    /// Host, and port if it came with one.
    pub authority: String,
    /// `http` or `https`, as the client sees it.
    pub scheme: &'static str,
    /// The client's address, if it is known here.
    pub client: Option<IpAddr>,
    /// When the head was complete.
    pub started: SystemTime,
    /// Time until the response's last byte was sent on.
    pub took: Duration,
    /// The endpoint asked last.
    pub upstream: Option<SocketAddr>,
    /// Times it was sent.
    pub sent: u32,
    /// The answer; its status is 0 if there was none.
    pub answer: ResponseStatus,
    /// The failure; `None`: there was none.
    pub failure: Option<(&'static str, String)>,
    /// The caller; `None`: outside the mesh.
    pub source: Option<SpiffeId>,
    /// The identity that answered; `None`: outside the mesh or not known.
    pub destination: Option<SpiffeId>,
    /// The service called.
    pub service: Arc<str>,
}

/// End of a request.
pub struct Ending<'a> {
    /// How long it took.
    pub took: Duration,
    /// The answer to the client.
    pub answer: ResponseStatus,
    /// Cause.
    pub failure: &'a Failure,
    /// Identities of caller and service.
    pub labels: &'a Labels,
}

/// Decides the trace context of the forwarded request; `None`: it keeps the one it came with.
/// `first`: no proxy of the mesh has seen the request before.
pub fn decide(
    tracing: &Tracing,
    context: Option<TraceContext>,
    first: bool,
    mut random: impl FnMut() -> u64,
) -> Option<Onward> {
    let decision = match context.and_then(|c| c.decision) {
        Some(Decision::Drop) => return None,
        Some(record) => record,
        // Where no trace begins, nobody is told so.
        None if !first || tracing.sampling_ppm == 0 => return None,
        None if random() % 1_000_000 < tracing.sampling_ppm.into() => Decision::Record,
        None => Decision::Drop,
    };
    let mut id = || random().max(1);
    let known = context.and_then(|c| c.ids);
    let ids = match known {
        // We record no span, so the caller's stays the parent.
        Some(ids) if decision == Decision::Drop => ids,
        Some(ids) => Ids { span: id(), ..ids },
        None => Ids {
            trace: u128::from(id()) << 64 | u128::from(id()),
            span: id(),
            short: false,
        },
    };
    Some(Onward {
        form: context.map_or(Form::W3c, |c| c.form),
        ids,
        parent: match (known, decision) {
            (Some(_), Decision::Drop) | (None, _) => 0,
            (Some(caller), _) => caller.span,
        },
        decision,
        random: context.is_some_and(|c| c.random),
        begins: known.is_none(),
    })
}

impl Span {
    /// Begins the span of a request that is forwarded with this context.
    pub fn begin(
        onward: &Onward,
        kind: TraceSpanKind,
        head: &RequestHead,
        bytes: &[u8],
    ) -> Box<Self> {
        Box::new(Self {
            ids: onward.ids,
            parent: onward.parent,
            kind,
            method: text(head.method_text.slice(bytes)),
            path: text(head.path.slice(bytes)),
            authority: text(head.authority.slice(bytes)),
            scheme: "http",
            client: None,
            started: SystemTime::now(),
            took: Duration::ZERO,
            upstream: None,
            sent: 0,
            answer: 0.into(),
            failure: None,
            source: None,
            destination: None,
            service: "".into(),
        })
    }

    /// Ends the span.
    pub fn end(&mut self, ending: &Ending<'_>) {
        let Failure { reason, detail, .. } = ending.failure;
        let labels = ending.labels;
        self.took = ending.took;
        self.answer = ending.answer;
        self.failure = (!reason.is_response()).then(|| (reason.code(), text(detail.as_bytes())));
        self.source = labels.source.clone();
        self.destination = labels.destination.clone();
        self.service = labels.destination_service.clone();
    }

    /// Returns why it counts as failed: our reason, or else the status, as OpenTelemetry's
    /// conventions for HTTP and gRPC say. A client's error is not a failure of the server.
    pub fn error(&self) -> Option<String> {
        let server = self.kind == TraceSpanKind::Server;
        if let Some((code, _)) = self.failure {
            return Some(code.to_owned());
        }
        let ResponseStatus { status, grpc } = self.answer;
        let failed = match grpc {
            _ if server => self.answer.as_http() >= 500,
            Some(code) => code != 0,
            None => status >= 400,
        };
        failed.then(|| grpc.map_or_else(|| status.to_string(), |code| code.to_string()))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..MAX_TEXT).unwrap_or(bytes)).into_owned()
}

/// Finished spans of a worker.
pub struct Ring {
    spans: RefCell<VecDeque<Span>>,
    totals: Arc<ExportTotals>,
}

impl Ring {
    /// Creates an empty ring.
    pub fn new(totals: Arc<ExportTotals>) -> Self {
        let spans = RefCell::default();
        Self { spans, totals }
    }

    /// Adds a span; the oldest is dropped if there are too many.
    pub fn push(&self, span: Span) {
        let mut spans = self.spans.borrow_mut();
        if spans.len() >= RING {
            spans.pop_front();
            self.totals.dropped.fetch_add(1, Ordering::Relaxed);
        }
        spans.push_back(span);
        if spans.len() == BATCH {
            self.totals.batch.notify_one();
        }
    }

    /// Takes all spans.
    pub fn take(&self) -> VecDeque<Span> {
        self.spans.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Reporter;
    use crate::telemetry::reason::Reason;
    use std::collections::BTreeMap;
    use tulle_http1::{Limits, Parsed, parse_request};
    use tulle_model::resource::OtlpProtocol;

    fn tracing(sampling: u32) -> Tracing {
        Tracing {
            endpoint: "otel:4317".into(),
            protocol: OtlpProtocol::Grpc,
            roots: String::new(),
            sampling_ppm: sampling,
            attributes: BTreeMap::new(),
        }
    }

    fn counter() -> impl FnMut() -> u64 {
        let mut last = 0;
        move || {
            last += 1;
            last
        }
    }

    const CALLER: Ids = Ids {
        trace: 7,
        span: 8,
        short: false,
    };

    fn context(form: Form, ids: Option<Ids>, decision: Option<Decision>) -> Option<TraceContext> {
        Some(TraceContext {
            form,
            ids,
            decision,
            random: false,
        })
    }

    #[test]
    fn a_decision_that_came_is_followed_wherever_it_came_from() {
        for first in [true, false] {
            for sampling in [0, 1_000_000] {
                let tracing = tracing(sampling);
                let said = |d| context(Form::W3c, Some(CALLER), Some(d));
                let onward = decide(&tracing, said(Decision::Record), first, counter()).unwrap();
                assert_eq!(
                    (onward.ids.trace, onward.ids.span, onward.parent),
                    (7, 1, 8)
                );
                assert!(!onward.begins);
                assert_eq!(
                    decide(&tracing, said(Decision::Drop), first, counter()),
                    None
                );
            }
        }
    }

    #[test]
    fn without_a_decision_the_first_proxy_decides_and_says_so() {
        let all = decide(&tracing(1_000_000), None, true, counter()).unwrap();
        assert_eq!(
            (all.decision, all.parent, all.begins),
            (Decision::Record, 0, true)
        );
        let none = decide(&tracing(1), None, true, || 1).unwrap();
        assert_eq!(none.decision, Decision::Drop);
        assert_eq!(decide(&tracing(1_000_000), None, false, counter()), None);
        assert_eq!(decide(&tracing(0), None, true, counter()), None);
        // B3 may leave the decision open, and may decide without ids.
        let open = context(Form::B3, Some(CALLER), None);
        let dropped = decide(&tracing(1), open, true, || 1).unwrap();
        assert_eq!((dropped.ids, dropped.decision), (CALLER, Decision::Drop));
        let asked = context(Form::B3Multi, None, Some(Decision::Debug));
        let begun = decide(&tracing(0), asked, false, counter()).unwrap();
        assert_eq!(
            (begun.form, begun.decision, begun.begins),
            (Form::B3Multi, Decision::Debug, true)
        );
    }

    #[test]
    fn about_as_many_are_recorded_as_was_said() {
        let tracing = tracing(250_000);
        let mut state = 1u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 20
        };
        let recorded = (0..10_000)
            .filter_map(|_| decide(&tracing, None, true, &mut random))
            .filter(|onward| onward.decision == Decision::Record)
            .count();
        assert!((2000..3000).contains(&recorded), "{recorded}");
    }

    fn span(kind: TraceSpanKind) -> Box<Span> {
        let request = b"GET /a?secret HTTP/1.1\r\nHost: b:80\r\n\r\n";
        let Ok(Parsed::Complete(head)) = parse_request(request, &Limits::default()) else {
            panic!("refused");
        };
        let onward = decide(&tracing(1_000_000), None, true, counter()).unwrap();
        Span::begin(&onward, kind, &head, request)
    }

    fn error(kind: TraceSpanKind, status: u16, grpc: Option<u8>, reason: Reason) -> Option<String> {
        let mut span = span(kind);
        let failure = Failure::new(reason, "detail");
        let labels = Labels {
            reporter: Reporter::Source,
            source: None,
            source_workload: None,
            destination_service: "b".into(),
            destination: None,
            destination_workload: None,
            mutual_tls: true,
            tcp: false,
        };
        span.end(&Ending {
            took: Duration::ZERO,
            answer: ResponseStatus { status, grpc },
            failure: &failure,
            labels: &labels,
        });
        span.error()
    }

    #[test]
    fn what_counts_as_failed() {
        use TraceSpanKind::{Client, Server};
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(error(Server, 200, None, Reason::Ok), None);
        assert_eq!(error(Server, 404, None, Reason::Ok), None);
        assert_eq!(error(Client, 404, None, Reason::Ok), some("404"));
        assert_eq!(error(Server, 503, None, Reason::Ok), some("503"));
        assert_eq!(error(Server, 403, None, Reason::Denied), some("denied"));
        assert_eq!(error(Server, 302, None, Reason::Redirected), None);
        assert_eq!(error(Server, 200, Some(5), Reason::Ok), None);
        assert_eq!(error(Client, 200, Some(5), Reason::Ok), some("5"));
        assert_eq!(error(Server, 200, Some(14), Reason::Ok), some("14"));
        assert_eq!(error(Client, 200, Some(0), Reason::Ok), None);
    }

    #[test]
    fn the_query_stays_here_and_texts_are_short() {
        assert_eq!(span(TraceSpanKind::Client).path, "/a");
        assert_eq!(text(&[b'x'; 2 * MAX_TEXT]).len(), MAX_TEXT);
    }

    #[test]
    fn the_oldest_goes_when_nobody_takes_them() {
        let totals = Arc::new(ExportTotals::default());
        let ring = Ring::new(totals.clone());
        for _ in 0..RING + 3 {
            ring.push(*span(TraceSpanKind::Client));
        }
        assert_eq!(ring.take().len(), RING);
        assert_eq!(ring.take().len(), 0);
        let text = totals.metrics("traces", "Spans");
        assert!(text.contains("tulle_traces_dropped_total 3\n"));
    }
}
