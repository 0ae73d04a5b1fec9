//! Numbers that were counted since the report before.

use crate::telemetry::metrics::{
    BUCKETS_MS, Histogram, Labels, Reporter, StatusGroup, WorkerReport,
};
use crate::telemetry::reason::Reason;
use prost::Message;
use std::collections::HashMap;
use tulle_api::v1;
use tulle_model::identity::SpiffeId;

/// Most edges of a report; the next one has the others.
const MAX_EDGES: usize = 512;
/// Buckets, with the one of what took longer.
const BUCKETS: usize = BUCKETS_MS.len() + 1;

/// The numbers of an edge.
#[derive(Debug, Clone, Default, PartialEq)]
struct Counted {
    outcomes: Vec<(Outcome, u64)>,
    durations: [u64; BUCKETS],
    opened: u64,
    sent: u64,
    received: u64,
}

/// Results that requests are told apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Outcome {
    class: u16,
    grpc: bool,
    reason: Reason,
}

/// The numbers that were told, by edge. An edge that the metrics have forgotten is forgotten here, too.
#[derive(Default)]
pub struct Counts(HashMap<Labels, Counted>);

impl Counts {
    /// Takes these numbers as told.
    pub fn skip(&mut self, numbers: &WorkerReport) {
        self.0 = numbers
            .requests
            .keys()
            .map(|labels| (labels.clone(), counted(labels, numbers)))
            .collect();
    }

    /// Returns what changed since the last call, at most so many bytes of it.
    pub fn changes(&mut self, numbers: &WorkerReport, most: usize) -> Vec<v1::EdgeCounts> {
        let mut changes = Vec::new();
        let mut bytes = 0;
        let mut told = HashMap::with_capacity(numbers.requests.len());
        for labels in numbers.requests.keys() {
            let before = self.0.remove(labels).unwrap_or_default();
            let now = counted(labels, numbers);
            let change = (now != before).then(|| edge(labels, &now, &before));
            let length = change.as_ref().map_or(0, Message::encoded_len);
            let has_room = changes.len() < MAX_EDGES && bytes + length <= most;
            if has_room {
                changes.extend(change);
                bytes += length;
            }
            told.insert(labels.clone(), if has_room { now } else { before });
        }
        self.0 = told;
        changes
    }
}

/// Whether anything among these failed or was refused.
pub fn any_failed(edges: &[v1::EdgeCounts]) -> bool {
    let mut outcomes = edges.iter().flat_map(|edge| &edge.outcomes);
    outcomes.any(|o| o.status_class == 5 || !o.reason.is_empty())
}

fn counted(labels: &Labels, numbers: &WorkerReport) -> Counted {
    let mut counted = Counted::default();
    for (answer, reason, durations) in numbers.requests.get(labels).into_iter().flatten() {
        let outcome = outcome(*answer, *reason);
        match counted.outcomes.iter_mut().find(|(o, _)| *o == outcome) {
            Some((_, count)) => *count += durations.count,
            None => counted.outcomes.push((outcome, durations.count)),
        }
        if answer.is_response() {
            add(&mut counted.durations, durations);
        }
    }
    if let Some([opened, _, sent, received]) = numbers.tcp.get(labels) {
        (counted.opened, counted.sent, counted.received) = (*opened, *sent, *received);
    }
    counted
}

fn outcome(answer: StatusGroup, reason: Reason) -> Outcome {
    Outcome {
        class: answer.first_digit(),
        grpc: answer.is_grpc(),
        reason,
    }
}

fn add(sum: &mut [u64; BUCKETS], durations: &Histogram) {
    let within: u64 = durations.buckets.iter().sum();
    let longer = durations.count.saturating_sub(within);
    let all = durations.buckets.iter().chain([&longer]);
    for (sum, count) in sum.iter_mut().zip(all) {
        *sum += count;
    }
}

/// Numbers only grow. One that is less than before has begun anew.
fn since(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

fn edge(labels: &Labels, now: &Counted, before: &Counted) -> v1::EdgeCounts {
    let text = |id: &Option<SpiffeId>| id.as_ref().map(ToString::to_string).unwrap_or_default();
    let outcomes = now.outcomes.iter().filter_map(|(outcome, count)| {
        let known = before.outcomes.iter().find(|(o, _)| o == outcome);
        let count = since(*count, known.map_or(0, |(_, count)| *count));
        (count > 0).then(|| v1::OutcomeCount {
            status_class: outcome.class.into(),
            grpc: outcome.grpc,
            reason: match outcome.reason {
                Reason::Ok => String::new(),
                reason => reason.code().to_owned(),
            },
            count,
        })
    });
    let pairs = now.durations.iter().zip(before.durations).enumerate();
    let durations = pairs.filter_map(|(bucket, (now, before))| {
        let count = u32::try_from(since(*now, before)).unwrap_or(u32::MAX);
        (count > 0).then(|| [u32::try_from(bucket).unwrap_or_default(), count])
    });
    v1::EdgeCounts {
        at_source: labels.reporter == Reporter::Source,
        source: text(&labels.source),
        destination_service: labels.destination_service.to_string(),
        destination: text(&labels.destination),
        mutual_tls: labels.mutual_tls,
        tcp: labels.tcp,
        outcomes: outcomes.collect(),
        durations: durations.flatten().collect(),
        opened: since(now.opened, before.opened),
        sent_bytes: since(now.sent, before.sent),
        received_bytes: since(now.received, before.received),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Metrics;
    use std::time::{Duration, Instant};

    fn labels(service: &str) -> Labels {
        Labels {
            source_workload: None,
            destination_workload: None,
            reporter: Reporter::Source,
            source: Some(SpiffeId::parse("spiffe://t/svc/a").unwrap()),
            destination_service: service.into(),
            destination: None,
            mutual_tls: true,
            tcp: false,
        }
    }

    fn request(metrics: &Metrics, service: &str, status: u16, reason: Reason) {
        let start = Instant::now();
        let end = start + Duration::from_millis(3);
        let series = metrics.series(labels(service));
        series.request(status.into(), reason, (start, end), (0, 0));
    }

    #[test]
    fn a_report_has_what_changed_and_nothing_else() {
        let (metrics, mut counts) = (Metrics::default(), Counts::default());
        request(&metrics, "b", 200, Reason::Ok);
        counts.skip(&metrics.report());
        assert!(counts.changes(&metrics.report(), 1 << 20).is_empty());
        request(&metrics, "b", 204, Reason::Ok);
        request(&metrics, "b", 403, Reason::Denied);
        request(&metrics, "c", 200, Reason::Ok);
        let mut changes = counts.changes(&metrics.report(), 1 << 20);
        changes.sort_unstable_by(|a, b| a.destination_service.cmp(&b.destination_service));
        let [b, c] = &changes[..] else {
            panic!("{changes:?}")
        };
        let outcome = |o: &v1::OutcomeCount| (o.status_class, o.reason.clone(), o.count);
        let outcomes: Vec<_> = b.outcomes.iter().map(outcome).collect();
        assert_eq!(outcomes, [(2, String::new(), 1), (4, "denied".into(), 1)]);
        assert_eq!(b.durations, [2, 2], "two took from 1 to 5 ms");
        assert_eq!(
            (c.outcomes[0].count, c.destination_service.as_str()),
            (1, "c")
        );
        assert!(any_failed(&changes));
        assert!(!any_failed(&changes[1..]));
        assert!(counts.changes(&metrics.report(), 1 << 20).is_empty());
    }

    #[test]
    fn what_has_no_room_is_in_the_next_report() {
        let (metrics, mut counts) = (Metrics::default(), Counts::default());
        for service in ["b", "c", "d"] {
            request(&metrics, service, 200, Reason::Ok);
        }
        let one = counts.changes(&metrics.report(), 60);
        let two = counts.changes(&metrics.report(), 1 << 20);
        assert_eq!((one.len(), two.len()), (1, 2));
        assert!(!two.contains(&one[0]));
    }

    #[test]
    fn a_number_that_begins_anew_is_no_overflow() {
        assert_eq!(since(7, 5), 2);
        assert_eq!(since(3, 5), 3);
    }

    #[test]
    fn what_is_beyond_32_bits_is_told_whole() {
        let (metrics, mut counts) = (Metrics::default(), Counts::default());
        let much = (1 << 32) + 7;
        let series = metrics.series(Labels {
            tcp: true,
            ..labels("b")
        });
        series.tcp_opened();
        counts.skip(&metrics.report());
        series.tcp_bytes(much, 2 * much);
        let changes = counts.changes(&metrics.report(), 1 << 20);
        assert_eq!(
            (changes[0].received_bytes, changes[0].sent_bytes),
            (much, 2 * much)
        );
        request(&metrics, "c", 200, Reason::Ok);
        let mut numbers = metrics.report();
        for (_, _, histogram) in numbers.requests.values_mut().flatten() {
            histogram.count = much;
        }
        let changes = counts.changes(&numbers, 1 << 20);
        assert_eq!(changes[0].outcomes[0].count, much);
    }
}
