//! Shows what hosts counted while they could not reach the controller, as they told it afterwards.

use crate::output::clock;
use serde::Serialize;
use tulle_api::away::{Hour, Sums};
use tulle_api::v1;

/// Pairs that a line names.
const NAMED: usize = 3;

/// One time away of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Away {
    /// The host.
    pub(crate) host: String,
    /// Its begin, in Unix seconds.
    pub(crate) from: i64,
    /// Its end.
    pub(crate) until: i64,
    /// All pairs together.
    #[serde(flatten)]
    pub(crate) sums: Sums,
    /// Pairs with the most refusals, failures and requests.
    pub(crate) edges: Vec<AwayEdge>,
    /// Pairs that are in the sums alone, at least.
    pub(crate) more_edges: u32,
    /// Hour by hour.
    pub(crate) hours: Vec<Hour>,
    /// The host is still telling.
    pub(crate) partly: bool,
}

/// A caller and a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct AwayEdge {
    /// SPIFFE id; empty: outside the mesh.
    pub(crate) source: String,
    /// The service that was called; empty: not one of the mesh.
    pub(crate) destination_service: String,
    #[serde(flatten)]
    pub(crate) sums: Sums,
}

impl Away {
    /// Reads the controller's answer.
    pub(crate) fn read(told: v1::AwayPeriod) -> Self {
        let names = told.names;
        let name = |number: u32| names.get(number as usize).cloned().unwrap_or_default();
        let sums = |told: Option<v1::AwaySums>| {
            let told = told.unwrap_or_default();
            let reasons = told.reasons.iter();
            Sums {
                requests: told.requests,
                failed: told.failed,
                denied: told.denied,
                reasons: reasons.map(|r| (name(r.code), r.count)).collect(),
            }
        };
        let edges = told.edges.into_iter().map(|edge| AwayEdge {
            source: name(edge.source),
            destination_service: name(edge.service),
            sums: sums(edge.sums),
        });
        Self {
            edges: edges.collect(),
            hours: told.hours.into_iter().map(Hour::from).collect(),
            sums: sums(told.sums),
            host: told.host,
            from: told.from_unix_seconds,
            until: told.until_unix_seconds,
            more_edges: told.more_edges,
            partly: told.partly,
        }
    }

    /// The line that an operator reads.
    pub(super) fn line(&self) -> String {
        let short = |id: &str| match id.rsplit_once("/svc/") {
            Some((_, name)) => name.to_owned(),
            None if id.is_empty() => "a client outside the mesh".to_owned(),
            None => id.to_owned(),
        };
        let refused = self.edges.iter().filter(|e| e.sums.denied > 0);
        let refused: Vec<String> = refused
            .take(NAMED)
            .map(|e| {
                let reasons = e
                    .sums
                    .reasons
                    .keys()
                    .filter(|r| crate::metrics::is_denied(r));
                let reasons: Vec<&str> = reasons.map(String::as_str).collect();
                let to = &e.destination_service;
                format!("{} {} -> {to}", reasons.join(", "), short(&e.source))
            })
            .collect();
        let refused = match refused.is_empty() {
            true => String::new(),
            false => format!(" ({})", refused.join("; ")),
        };
        let Sums {
            requests,
            failed,
            denied,
            ..
        } = self.sums;
        let partly = if self.partly { " so far" } else { "" };
        format!(
            "while {} was away, from {} to {} UTC: {requests} requests, {failed} failed, {denied} denied{refused}{partly}",
            self.host,
            clock(self.from),
            clock(self.until)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_away_is_one_line() {
        let sums = |requests, denied| v1::AwaySums {
            requests,
            failed: 1,
            denied,
            reasons: vec![v1::AwayReason {
                code: 2,
                count: denied,
            }],
        };
        let told = v1::AwayPeriod {
            host: "edge-2".into(),
            from_unix_seconds: 1_700_000_000,
            until_unix_seconds: 1_700_003_661,
            names: ["spiffe://t/svc/a", "b", "denied"]
                .map(String::from)
                .to_vec(),
            sums: Some(sums(12_000, 3)),
            edges: vec![v1::AwayEdge {
                source: 0,
                service: 1,
                sums: Some(sums(12_000, 3)),
            }],
            ..Default::default()
        };
        assert_eq!(
            Away::read(told).line(),
            "while edge-2 was away, from 2023-11-14 22:13:20 to 2023-11-14 23:14:21 UTC: \
             12000 requests, 1 failed, 3 denied (denied a -> b)"
        );
    }
}
