//! Tells the controller what this proxy counts, and answers its questions.
//!
//! Only when the controller asks for it, over the connection that brings the configuration. A report has what changed
//! since the one before, so a proxy that does nothing sends next to nothing. The controller may be away or slow: then
//! reports are left out, and what was counted meanwhile is in the next one. Requests pay nothing for it: the numbers are
//! those of the metrics.

mod counts;
mod failures;
mod process;
mod questions;
mod taps;

use crate::admin::{Admin, ask};
use crate::balance;
use crate::control::client::{WantedReports, instance};
use crate::control::random::fraction;
use crate::telemetry::logging;
use crate::telemetry::metrics::WorkerReport;
use crate::worker::Command;
use counts::Counts;
use process::ProcessUsage;
use questions::Questions;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use taps::Taps;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tulle_api::v1;
use tulle_api::v1::telemetry_client::TelemetryClient;
use tulle_model::bootstrap::{Bootstrap, ListenerKind};

/// Messages that wait for the controller; what does not fit is left out.
const WAITING: usize = 4;
/// Longest silence of a proxy with nothing to tell, and of one whose line is spared.
const BEAT: Duration = Duration::from_secs(30);
const SPARING_BEAT: Duration = Duration::from_mins(10);
/// Time before a stream that ended is opened again.
const AGAIN: Duration = Duration::from_secs(5);
/// Most endpoints that a report calls left out.
const LEFT_OUT: usize = 64;
/// Most bytes of a message.
const MAX_MESSAGE: usize = 64 * 1024;
/// Most bytes of what varies in one: the rest has room beside it.
const MAX_PART: usize = 40 * 1024;

/// Sends to the controller. A channel has room for 32 messages from the beginning, so they are boxed.
type Sender = mpsc::Sender<Box<v1::FromProxy>>;

/// The task.
pub struct Reporting {
    admin: Admin,
    wanted: watch::Receiver<Option<WantedReports>>,
    reporter: v1::Reporter,
    counts: Counts,
    usage: ProcessUsage,
    /// Time of the newest failure that was told.
    told: f64,
    sent: Instant,
    beat: Duration,
    questions: Questions,
}

impl Reporting {
    /// Creates a task that has told nothing.
    pub fn new(
        admin: Admin,
        bootstrap: &Bootstrap,
        wanted: watch::Receiver<Option<WantedReports>>,
    ) -> Self {
        Self {
            questions: Questions::new(admin.clone()),
            admin,
            wanted,
            reporter: reporter(bootstrap),
            counts: Counts::default(),
            usage: ProcessUsage::now(),
            told: 0.0,
            sent: Instant::now(),
            beat: beat(bootstrap),
        }
    }

    /// Runs until the client of the controller ends.
    pub async fn run(mut self) {
        let mut wanted = self.wanted.clone();
        loop {
            let Ok(now) = wanted.wait_for(Option::is_some).await.map(|w| w.clone()) else {
                return;
            };
            let Some(now) = now else { continue };
            wanted.mark_unchanged();
            let ended = tokio::select! {
                status = self.session(now) => status,
                changed = wanted.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            tracing::debug!(status = %ended, "the controller takes no reports");
            // The controller asks the one that came last.
            if self.admin.current.is_succeeded() {
                return;
            }
            if ended.code() == Code::Unimplemented {
                // It does not know reports. The next one may.
                if wanted.changed().await.is_err() {
                    return;
                }
                continue;
            }
            sleep(AGAIN.mul_f64(f64::from(fraction()) + 0.5)).await;
        }
    }

    /// One stream; why it ended.
    async fn session(&mut self, wanted: WantedReports) -> Status {
        let (sender, messages) = mpsc::channel(WAITING);
        let first = v1::FromProxy {
            reporter: Some(self.reporter.clone()),
            ..Default::default()
        };
        // The channel has room for the first message.
        let _ = sender.try_send(Box::new(first));
        let mut client =
            TelemetryClient::new(wanted.channel).max_decoding_message_size(MAX_MESSAGE);
        let asked = client
            .report(ReceiverStream::new(messages).map(|message| *message))
            .await;
        let mut asked = match asked {
            Ok(asked) => asked.into_inner(),
            Err(status) => return status,
        };
        // Numbers from while nobody listened would look like one burst.
        self.counts.skip(&self.numbers().await);
        self.usage = ProcessUsage::now();
        self.told = self.told.max(unix_seconds());
        self.sent = Instant::now();
        let mut taps = Taps::new(self.admin.log.taps().clone(), sender.clone());
        let begin = self.sent + wanted.every.mul_f64(f64::from(fraction()));
        let mut turns = interval_at(begin, wanted.every.max(Duration::from_secs(1)));
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = turns.tick() => self.turn(&sender).await,
                message = asked.message() => match message {
                    Ok(Some(message)) => {
                        if let Some(question) = message.question {
                            self.questions.answer(question, &sender);
                        }
                        if let Some(tap) = message.tap {
                            taps.begin(tap);
                        }
                        taps.end(message.end_tap);
                    }
                    Ok(None) => return Status::unavailable("the stream ended"),
                    Err(status) => return status,
                },
            }
        }
    }

    /// Sends what changed, if the controller takes it.
    async fn turn(&mut self, sender: &Sender) {
        let Ok(place) = sender.try_reserve() else {
            return;
        };
        let numbers = self.numbers().await;
        let edges = self.counts.changes(&numbers, MAX_PART);
        let since = self.sent.elapsed();
        if edges.is_empty() && since < self.beat {
            return;
        }
        let failed = match counts::any_failed(&edges) {
            true => self.failures().await,
            false => Vec::new(),
        };
        let usage = ProcessUsage::now();
        let milliseconds = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let interval = v1::Interval {
            milliseconds: milliseconds(since),
            edges,
            cpu_milliseconds: milliseconds(usage.cpu.saturating_sub(self.usage.cpu)),
            resident_bytes: usage.resident,
            connections: u32::try_from(numbers.internals.open).unwrap_or(u32::MAX),
            log_level: logging::level().to_owned(),
            left_out: self.left_out(),
        };
        self.usage = usage;
        self.sent = Instant::now();
        place.send(Box::new(v1::FromProxy {
            interval: Some(interval),
            failed,
            ..Default::default()
        }));
    }

    /// Endpoints that this proxy passes over.
    fn left_out(&self) -> Vec<String> {
        let snapshot = self.admin.current.get();
        let left_out = balance::show::left_out(&snapshot).take(LEFT_OUT);
        left_out.map(|address| address.to_string()).collect()
    }

    async fn numbers(&self) -> WorkerReport {
        let mut numbers = WorkerReport::default();
        for worker in self.admin.workers.iter() {
            if let Some(part) = ask(worker, Command::Metrics).await {
                numbers.merge(part);
            }
        }
        numbers
    }

    /// Returns the failures since the last call.
    async fn failures(&mut self) -> Vec<v1::FailedRequest> {
        let mut all = Vec::new();
        for worker in self.admin.workers.iter() {
            let since = |reply| Command::FailuresSince(self.told, reply);
            all.extend(ask(worker, since).await.unwrap_or_default());
        }
        let times = all.iter().map(|recent| recent.time);
        self.told = times.fold(self.told, f64::max);
        failures::together(all)
    }
}

fn beat(bootstrap: &Bootstrap) -> Duration {
    let sparing = bootstrap.control.as_ref().is_some_and(|c| c.sparing);
    if sparing { SPARING_BEAT } else { BEAT }
}

fn reporter(bootstrap: &Bootstrap) -> v1::Reporter {
    let is_gateway = |kind: &ListenerKind| matches!(kind, ListenerKind::Gateway { .. });
    let gateway = bootstrap.gateway_sockets.is_some()
        || bootstrap.listeners.iter().any(|l| is_gateway(&l.kind));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    v1::Reporter {
        instance: instance(bootstrap),
        version: env!("CARGO_PKG_VERSION").into(),
        kind: if gateway { "gateway" } else { "sidecar" }.into(),
        host: host.trim().into(),
        #[allow(clippy::cast_possible_truncation)] // seconds of this century
        started_at_unix_seconds: unix_seconds() as i64,
        beat_seconds: u32::try_from(beat(bootstrap).as_secs()).unwrap_or_default(),
    }
}

fn unix_seconds() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use tulle_net::socket::KeepAlive;

    /// Headers of IP and TCP, with timestamps: all there is of a question, of its answer and of an acknowledgement.
    const PACKET: u64 = 52;
    /// Around a message: the head of gRPC, of a frame of HTTP/2, and of a record of TLS with its tag.
    const AROUND: u64 = 5 + 9 + 5 + 1 + 16;
    const HOUR: u64 = 3600;
    /// An hour of 0.1 kbit/s.
    const TENTH: u64 = HOUR * 100 / 8;

    /// Bytes of an hour in which each end of a connection asks when nothing was said for so long.
    fn questions(often: KeepAlive) -> u64 {
        let both_ends = 2 * (PACKET + PACKET);
        both_ends * HOUR / often.idle.as_secs()
    }

    /// `mesh::slow_link` measures a host in seconds. What happens every few minutes is added up here.
    #[test]
    fn an_idle_host_with_a_sidecar_costs_a_tenth_of_a_kilobit_a_second() {
        // Every field, so that who adds one comes by here. Nothing failed, so nothing is left out.
        let interval = v1::Interval {
            milliseconds: u32::try_from(SPARING_BEAT.as_millis()).unwrap(),
            edges: Vec::new(),
            cpu_milliseconds: 60_000,
            resident_bytes: 64 << 20,
            connections: 1000,
            log_level: "debug".into(),
            left_out: Vec::new(),
        };
        let message = v1::FromProxy {
            interval: Some(interval),
            ..Default::default()
        };
        let message = u64::try_from(message.encoded_len()).unwrap();
        assert!(message <= 32, "{message} bytes");
        // The other end acknowledges it.
        let report = PACKET + AROUND + message + PACKET;
        let sidecar = questions(KeepAlive::PROXY_OF_HOST) + report * HOUR / SPARING_BEAT.as_secs();
        let supervisor = questions(KeepAlive::HOST);
        // 37,440 + 4,110 bytes: half of what is promised.
        assert!(supervisor + sidecar <= TENTH, "{supervisor} + {sidecar}");
        assert!(sidecar <= TENTH / 10, "{sidecar} of each further sidecar");
    }
}
