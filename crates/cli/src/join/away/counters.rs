//! Computes what proxies of this host counted between two looks at them. Pure.

use super::ledger::{Pair, cut};
use crate::metrics::{edges, is_answered, is_denied, is_tcp_unreached};
use std::collections::{BTreeMap, HashMap};
use tulle_api::away::Sums;
use tulle_model::samples::MetricSample;

const REQUESTS: &str = "istio_requests_total";
const TCP_FAILURES: &str = "tulle_tcp_failures_total";
const CONNECTIONS: &str = "istio_tcp_connections_opened_total";

/// A series of one process: when a proxy starts again it counts from the beginning.
type Series = (i32, String, BTreeMap<String, String>);

/// The counters as they were seen last.
#[derive(Debug, Default)]
pub(super) struct Counters(HashMap<Series, f64>);

impl Counters {
    /// Takes the counters of all proxies, each with its process, and returns what they have counted since the last time.
    pub(super) fn advance(&mut self, seen: Vec<(i32, Vec<MetricSample>)>) -> BTreeMap<Pair, Sums> {
        let mut now = HashMap::new();
        let mut counted = Vec::new();
        let processes: Vec<i32> = seen.iter().map(|(process, _)| *process).collect();
        for (process, samples) in seen {
            for mut sample in samples {
                // Gauges and summaries count nothing.
                if !sample.name.ends_with("_total") && !sample.name.ends_with("_bucket") {
                    continue;
                }
                let series = (process, sample.name.clone(), sample.labels.clone());
                let before = self.0.get(&series).copied().unwrap_or_default();
                now.insert(series, sample.value);
                sample.value -= before;
                if sample.value > 0.0 {
                    counted.push(sample);
                }
            }
        }
        // A process that did not answer is there all the same, unless others have taken its place.
        let silent = std::mem::take(&mut self.0).into_iter();
        now.extend(
            silent.filter(|((process, ..), _)| !processes.contains(process) && alive(*process)),
        );
        self.0 = now;
        sum(&counted)
    }
}

fn alive(process: i32) -> bool {
    crate::proc::ProcessId::from_pid(process).is_some()
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)] // counters, whole and positive
fn sum(counted: &[MetricSample]) -> BTreeMap<Pair, Sums> {
    let mut sums: BTreeMap<Pair, Sums> = BTreeMap::new();
    for edge in edges(counted) {
        let requests = edge.requests + edge.connections;
        let good = edge.success_rate.map_or(requests as f64, |rate| {
            (rate * edge.requests as f64).round() + edge.connections as f64
        });
        let sum = sums
            .entry((edge.source, edge.destination_service))
            .or_default();
        sum.requests += requests;
        sum.denied += edge.denied;
        sum.failed += requests
            .saturating_sub(good as u64)
            .saturating_sub(edge.denied);
    }
    add_reasons(&mut sums, counted);
    sums
}

/// Adds reasons as whoever gave them says: the called side of what it refused, the caller of what reached nobody. What is in
/// no edge is counted, too.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // counters, whole and positive
fn add_reasons(sums: &mut BTreeMap<Pair, Sums>, counted: &[MetricSample]) {
    let mut opened = opened_beyond(counted);
    for sample in counted {
        let reason = match sample.name.as_str() {
            REQUESTS => sample.label("response_flags"),
            TCP_FAILURES => sample.label("reason"),
            _ => continue,
        };
        let by_called = sample.label("reporter") == "destination";
        if matches!(reason, "" | "-") || is_answered(sample) || is_denied(reason) != by_called {
            continue;
        }
        let pair = pair(sample);
        let count = sample.value as u64;
        let opened = opened.get_mut(&pair);
        let sum = sums.entry(pair).or_default();
        *sum.reasons.entry(cut(reason)).or_default() += count;
        if by_called || !is_beyond(sample) {
            continue;
        }
        if sample.label("request_protocol") != "tcp" {
            // It is in no edge, since it reached nobody or was not answered.
            sum.requests += count;
            sum.failed += count;
        } else if is_tcp_unreached(sample) {
            // An edge leaves it out. One that began before the last look was counted then.
            let new = opened.map_or(0, |opened| {
                let new = count.min(*opened);
                *opened -= new;
                new
            });
            sum.requests += new;
            sum.failed += count;
        }
    }
}

/// Connections that began, to anyone who is no member of the mesh.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // counters, whole and positive
fn opened_beyond(counted: &[MetricSample]) -> BTreeMap<Pair, u64> {
    let mut opened = BTreeMap::new();
    for sample in counted {
        let by_caller = sample.label("reporter") == "source";
        if sample.name == CONNECTIONS && by_caller && is_beyond(sample) {
            *opened.entry(pair(sample)).or_default() += sample.value as u64;
        }
    }
    opened
}

fn pair(sample: &MetricSample) -> Pair {
    (
        known(sample.label("source_principal")).to_owned(),
        known(sample.service()).to_owned(),
    )
}

/// Whether it was for anyone who is no member of the mesh.
fn is_beyond(sample: &MetricSample) -> bool {
    known(sample.label("destination_principal")).is_empty()
}

fn known(name: &str) -> &str {
    if name == "unknown" { "" } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::samples::parse;

    fn text(good: u64, denied: u64, lost: u64) -> Vec<MetricSample> {
        let edge = "source_principal=\"spiffe://t/svc/a\",destination_service=\"b\",destination_principal=\"spiffe://t/svc/b\"";
        let nobody = "source_principal=\"spiffe://t/svc/a\",destination_service=\"c\",destination_principal=\"unknown\"";
        parse(&format!(
            "istio_requests_total{{reporter=\"source\",{edge},response_code=\"200\"}} {good}\n\
             istio_requests_total{{reporter=\"destination\",{edge},response_code=\"200\",response_flags=\"-\"}} {good}\n\
             istio_requests_total{{reporter=\"destination\",{edge},response_code=\"403\",response_flags=\"denied\"}} {denied}\n\
             istio_requests_total{{reporter=\"source\",{nobody},response_code=\"503\",response_flags=\"no_endpoint\"}} {lost}\n\
             tulle_connections 7\n"
        ))
    }

    #[test]
    fn what_is_new_is_counted_once() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut counters = Counters::default();
        counters.advance(vec![(own, text(5, 1, 0))]);
        let counted = counters.advance(vec![(own, text(8, 3, 2))]);
        let b = &counted[&("spiffe://t/svc/a".to_owned(), "b".to_owned())];
        assert_eq!((b.requests, b.failed, b.denied), (5, 0, 2));
        assert_eq!(b.reasons, BTreeMap::from([("denied".to_owned(), 2)]));
        let c = &counted[&("spiffe://t/svc/a".to_owned(), "c".to_owned())];
        assert_eq!((c.requests, c.failed, c.denied), (2, 2, 0));
        assert_eq!(c.reasons["no_endpoint"], 2);
        // A proxy that did not answer this time has counted on.
        assert!(counters.advance(Vec::new()).is_empty());
        let counted = counters.advance(vec![(own, text(9, 3, 2))]);
        assert_eq!(counted.values().map(|s| s.requests).sum::<u64>(), 1);
        // Another process begins with nothing.
        let counted = counters.advance(vec![(own + 1, text(2, 0, 0))]);
        assert_eq!(counted.values().map(|s| s.requests).sum::<u64>(), 2);
    }

    #[test]
    fn counters_beyond_32_bits_are_read_whole() {
        let own = i32::try_from(std::process::id()).unwrap();
        let (mut counters, many) = (Counters::default(), 1 << 32);
        counters.advance(vec![(own, text(5, 1, 0))]);
        let counted = counters.advance(vec![(own, text(many + 8, 2 * many + 1, many))]);
        let b = &counted[&("spiffe://t/svc/a".to_owned(), "b".to_owned())];
        assert_eq!((b.requests, b.denied), (3 * many + 3, 2 * many));
        assert_eq!(b.reasons["denied"], 2 * many);
        let c = &counted[&("spiffe://t/svc/a".to_owned(), "c".to_owned())];
        assert_eq!((c.requests, c.failed), (many, many));
    }

    const CALLER: &str = "spiffe://t/svc/a";

    /// A sample of the caller for somebody who is no member of the mesh.
    fn beyond(name: &str, more: &str, count: u32) -> String {
        format!(
            "{name}{{reporter=\"source\",source_principal=\"{CALLER}\",destination_service=\"c\",\
             destination_principal=\"unknown\",connection_security_policy=\"none\",{more}}} {count}\n"
        )
    }

    /// Connections that a proxy has opened, and failures of them by reason.
    fn connections(opened: u32, failures: &[(&str, u32)]) -> Vec<MetricSample> {
        let mut text = beyond(
            CONNECTIONS,
            "request_protocol=\"tcp\",response_flags=\"-\"",
            opened,
        );
        for (reason, count) in failures {
            let more = format!("request_protocol=\"tcp\",reason=\"{reason}\"");
            text.push_str(&beyond(TCP_FAILURES, &more, *count));
        }
        parse(&text)
    }

    fn of_c(counted: &BTreeMap<Pair, Sums>) -> &Sums {
        &counted[&(CALLER.to_owned(), "c".to_owned())]
    }

    #[test]
    fn answers_of_routes_are_no_failed_requests() {
        let reasons = [
            "redirected",
            "responded",
            "cors_preflight",
            "fault_injected",
        ];
        let text = reasons.map(|reason| {
            let more = format!("response_code=\"301\",response_flags=\"{reason}\"");
            beyond(REQUESTS, &more, 3)
        });
        assert_eq!(sum(&parse(&text.concat())), BTreeMap::new());
    }

    #[test]
    fn connections_that_reached_somebody_are_counted_once_and_did_not_fail() {
        let reasons = [
            "idle_timeout",
            "upstream_reset",
            "client_closed",
            "request_timeout",
        ];
        let counted = sum(&connections(5, &reasons.map(|reason| (reason, 1))));
        let c = of_c(&counted);
        assert_eq!((c.requests, c.failed, c.denied), (5, 0, 0));
        assert_eq!(c.reasons, reasons.map(|r| (r.to_owned(), 1)).into());
    }

    #[test]
    fn connections_that_reached_nobody_failed() {
        let failures = [("no_endpoint", 2), ("egress_denied", 1)];
        let counted = sum(&connections(5, &failures));
        let c = of_c(&counted);
        assert_eq!((c.requests, c.failed, c.reasons.len()), (5, 3, 2));
    }

    #[test]
    fn connections_that_began_before_the_last_look_are_counted_once() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut counters = Counters::default();
        let mut sums = Sums::default();
        let looks = [
            connections(3, &[]),
            connections(3, &[("tls_failed", 1)]),
            connections(4, &[("tls_failed", 2)]),
        ];
        for look in looks {
            sums.add(of_c(&counters.advance(vec![(own, look)])));
        }
        assert_eq!((sums.requests, sums.failed), (4, 2));
        assert_eq!(sums.reasons["tls_failed"], 2);
    }

    #[test]
    fn requests_without_an_answer_failed() {
        let more = "request_protocol=\"http\",reason=\"upstream_reset\"";
        let counted = sum(&parse(&beyond(TCP_FAILURES, more, 2)));
        let c = of_c(&counted);
        assert_eq!((c.requests, c.failed), (2, 2));
        assert_eq!(c.reasons["upstream_reset"], 2);
    }
}
