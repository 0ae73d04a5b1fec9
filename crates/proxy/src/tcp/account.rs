//! One connection of opaque bytes as counters, `/errors` and the access log see it.

use crate::telemetry::access_log::{ConnectionLine, ExchangeEnd};
use crate::telemetry::metrics::RequestSeries;
use crate::telemetry::reason::{Failure, Reason};
use crate::worker::Worker;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// One connection as counters, `/errors` and the access log see it.
pub(super) struct Account<'a> {
    worker: &'a Worker,
    series: &'a RequestSeries,
    started: Instant,
    client: Option<IpAddr>,
    pub(super) server_name: Option<Box<str>>,
    pub(super) upstream: Option<SocketAddr>,
    received: u64,
    sent: u64,
}

impl<'a> Account<'a> {
    pub(super) fn open(
        worker: &'a Worker,
        series: &'a RequestSeries,
        client: Option<IpAddr>,
    ) -> Self {
        series.tcp_opened();
        Self {
            worker,
            series,
            started: Instant::now(),
            client,
            server_name: None,
            upstream: None,
            received: 0,
            sent: 0,
        }
    }

    /// No byte has gone to either side.
    pub(super) fn is_silent(&self) -> bool {
        (self.received, self.sent) == (0, 0)
    }

    /// Counts while the connection lasts: it may live longer than anyone watches its counters.
    pub(super) fn moved(&mut self, up: u64, down: u64) {
        self.received += up;
        self.sent += down;
        self.series.tcp_bytes(up, down);
    }

    pub(super) fn close(self, failure: &Failure) {
        self.series.tcp_closed(failure.reason);
        let labels = &self.series.labels;
        if failure.reason != Reason::Ok {
            let source = labels.source.as_ref().map(|id| id.as_str());
            self.worker
                .failed(source, &labels.destination_service, b"", 0, failure);
        }
        if self.worker.logs() {
            let ended = ExchangeEnd {
                answer: 0.into(),
                reason: failure.reason,
                started: self.started,
                first_byte: None,
                now: Instant::now(),
                received: self.received,
                sent: self.sent,
                upstream: self.upstream,
                upstream_time: None,
            };
            let client = self.client.map(|client| client.to_string());
            let line = ConnectionLine {
                client: client.as_deref(),
                server_name: self.server_name.as_deref(),
            };
            let lines = self.worker.log_rules_at_random();
            self.worker
                .log
                .connection(&line, &ended, labels, lines.as_deref());
        }
    }
}
