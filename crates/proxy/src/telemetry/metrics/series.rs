//! Requests and connections with the same labels: who called whom, and how.

use crate::telemetry::grpc_status::ResponseStatus;
use crate::telemetry::reason::Reason;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::Workload;
pub use tulle_model::samples::BUCKETS_MS;

/// Outcomes of a series that are told apart by their status; further ones are counted by its class. A status is chosen by
/// the application, or by whoever may say to it what to answer.
pub(super) const MAX_OUTCOMES: usize = 64;

/// The proxy that reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reporter {
    /// The client's sidecar or a gateway.
    Source,
    /// The server's sidecar.
    Destination,
}

/// The labels of a series.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels {
    /// The proxy that reports.
    pub reporter: Reporter,
    /// The caller's identity; `None`: outside the mesh.
    pub source: Option<SpiffeId>,
    /// The caller's workload; `None`: unknown.
    pub source_workload: Option<Arc<Workload>>,
    /// The service called.
    pub destination_service: Arc<str>,
    /// The identity that answers; `None`: outside the mesh or not known.
    pub destination: Option<SpiffeId>,
    /// The workload that answers; `None`: unknown.
    pub destination_workload: Option<Arc<Workload>>,
    /// Whether the connection between the two is mutual TLS.
    pub mutual_tls: bool,
    /// Whether it is opaque TCP rather than HTTP.
    pub tcp: bool,
}

/// Requests with the same labels.
pub struct RequestSeries {
    /// Its labels.
    pub labels: Labels,
    pub(super) outcomes: RefCell<Vec<Outcome>>,
    pub(super) tcp: TcpCounters,
    pub(super) touched: Cell<Instant>,
    /// Whether sizes are counted.
    sized: bool,
}

pub(super) struct Outcome {
    pub(super) answer: StatusGroup,
    pub(super) reason: Reason,
    pub(super) histogram: Histogram,
    /// `None`: sizes are not counted.
    pub(super) sizes: Option<Box<Sizes>>,
}

/// Answers that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusGroup {
    /// Answers with this status.
    Status(ResponseStatus),
    /// Answers of a class, of the status that stands for that of a gRPC call, too: 1 for 1xx, 6 for all from 600 on.
    Class {
        /// Its first digit.
        digit: u16,
        /// Whether they are answers to calls of gRPC.
        grpc: bool,
    },
}

impl StatusGroup {
    /// The class of an answer. A TCP connection has none: its outcomes are as few as reasons.
    fn class(answer: ResponseStatus) -> Self {
        match answer.status {
            0 => Self::Status(answer),
            _ => Self::Class {
                digit: (answer.as_http() / 100).min(6),
                grpc: answer.grpc.is_some(),
            },
        }
    }

    /// Whether requests were answered, and not a TCP connection ended.
    pub fn is_response(self) -> bool {
        !matches!(self, Self::Status(ResponseStatus { status: 0, .. }))
    }

    /// Whether calls of gRPC were answered.
    pub fn is_grpc(self) -> bool {
        match self {
            Self::Status(answer) => answer.grpc.is_some(),
            Self::Class { grpc, .. } => grpc,
        }
    }

    /// The status of the calls of gRPC, if it is told.
    pub fn grpc_status(self) -> Option<u8> {
        match self {
            Self::Status(answer) => answer.grpc,
            Self::Class { .. } => None,
        }
    }

    /// The first digit of HTTP's status for the same result.
    pub fn first_digit(self) -> u16 {
        match self {
            Self::Status(answer) => answer.as_http() / 100,
            Self::Class { digit, .. } => digit,
        }
    }
}

/// The label `response_code`.
impl fmt::Display for StatusGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(answer) => answer.status.fmt(f),
            Self::Class { digit: 6.., .. } => f.write_str("other"),
            Self::Class { digit, .. } => write!(f, "{digit}xx"),
        }
    }
}

/// How long requests took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    /// How many ended in each of [`BUCKETS_MS`], none of them counted twice.
    pub buckets: [u64; BUCKETS_MS.len()],
    /// How many there were, those that took longer among them.
    pub count: u64,
    pub(super) sum: f64,
}

/// The sizes of bodies in bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sizes {
    /// Requests' bodies.
    pub request: Histogram,
    /// Responses' bodies.
    pub response: Histogram,
}

#[derive(Default)]
pub(super) struct TcpCounters {
    pub(super) opened: Cell<u64>,
    pub(super) closed: Cell<u64>,
    pub(super) sent: Cell<u64>,
    pub(super) received: Cell<u64>,
}

fn add(cell: &Cell<u64>, count: u64) {
    cell.set(cell.get().wrapping_add(count));
}

impl Histogram {
    fn observe(&mut self, value: f64) {
        // Buckets are cumulative only when they are shown: one increment per request.
        if let Some(bucket) = BUCKETS_MS.iter().position(|&bound| value <= bound) {
            self.buckets[bucket] += 1;
        }
        self.count += 1;
        self.sum += value;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
    }
}

impl Sizes {
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are 9 PB")]
    fn observe(&mut self, (request, response): (u64, u64)) {
        self.request.observe(request as f64);
        self.response.observe(response as f64);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.request.merge(&other.request);
        self.response.merge(&other.response);
    }
}

impl Outcome {
    fn observe(&mut self, ms: f64, bytes: (u64, u64)) {
        self.histogram.observe(ms);
        if let Some(sizes) = &mut self.sizes {
            sizes.observe(bytes);
        }
    }
}

impl RequestSeries {
    pub(super) fn new(labels: Labels, sized: bool) -> Rc<Self> {
        Rc::new(Self {
            labels,
            outcomes: RefCell::new(Vec::new()),
            tcp: TcpCounters::default(),
            touched: Cell::new(Instant::now()),
            sized,
        })
    }

    /// Counts one request that began at `started` and ended `now`, with the bytes of its body and of its
    /// response's.
    pub fn request(
        &self,
        answer: ResponseStatus,
        reason: Reason,
        (started, now): (Instant, Instant),
        bytes: (u64, u64),
    ) {
        let ms = now.duration_since(started).as_secs_f64() * 1000.0;
        self.touched.set(now);
        let outcomes = &mut *self.outcomes.borrow_mut();
        // A handful of outcomes per series: a scan is faster than hashing.
        let exact = StatusGroup::Status(answer);
        let known =
            |answer: StatusGroup| move |o: &Outcome| o.answer == answer && o.reason == reason;
        let mut place = outcomes.iter().position(known(exact));
        let mut counted = exact;
        if place.is_none() && outcomes.len() >= MAX_OUTCOMES {
            counted = StatusGroup::class(answer);
            place = outcomes.iter().position(known(counted));
        }
        match place.and_then(|place| outcomes.get_mut(place)) {
            Some(outcome) => outcome.observe(ms, bytes),
            None => {
                let sized = self.sized && counted.is_response();
                let mut outcome = Outcome {
                    answer: counted,
                    reason,
                    histogram: Histogram::default(),
                    sizes: sized.then(Box::default),
                };
                outcome.observe(ms, bytes);
                outcomes.push(outcome);
            }
        }
    }

    /// Counts a TCP connection that began.
    pub fn tcp_opened(&self) {
        add(&self.tcp.opened, 1);
        self.touched.set(Instant::now());
    }

    /// Counts bytes of a TCP connection: `received` from the caller, `sent` to it.
    pub fn tcp_bytes(&self, received: u64, sent: u64) {
        add(&self.tcp.received, received);
        add(&self.tcp.sent, sent);
    }

    /// Counts a TCP connection that ended.
    pub fn tcp_closed(&self, reason: Reason) {
        add(&self.tcp.closed, 1);
        self.touched.set(Instant::now());
        if reason != Reason::Ok {
            let now = Instant::now();
            self.request(0.into(), reason, (now, now), (0, 0));
        }
    }
}
