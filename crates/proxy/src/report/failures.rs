//! Samples of what failed.

use crate::context::Recent;
use tulle_api::v1;

/// Most samples of a report.
const MAX_SAMPLES: usize = 32;
/// Most bytes of a detail.
const MAX_DETAIL: usize = 512;

/// Makes one sample of requests that failed alike; the newest ones, if there are too many.
pub fn together(mut failures: Vec<Recent>) -> Vec<v1::FailedRequest> {
    failures.sort_by(|a, b| b.time.total_cmp(&a.time));
    let mut samples: Vec<v1::FailedRequest> = Vec::new();
    for failure in failures {
        let sample = sample(failure);
        let alike = |known: &v1::FailedRequest| {
            (&known.source, &known.destination_service)
                == (&sample.source, &sample.destination_service)
                && (&known.method, &known.path) == (&sample.method, &sample.path)
                && (&known.reason, known.status) == (&sample.reason, sample.status)
                && known.upstream == sample.upstream
        };
        if let Some(known) = samples.iter().position(alike) {
            samples[known].count += 1;
        } else if samples.len() < MAX_SAMPLES {
            samples.push(sample);
        }
    }
    samples
}

fn sample(failure: Recent) -> v1::FailedRequest {
    let mut path = failure.path;
    path.truncate(path.find('?').unwrap_or(path.len()));
    let mut detail = failure.detail;
    detail.truncate(detail.floor_char_boundary(MAX_DETAIL));
    v1::FailedRequest {
        at_unix_seconds: failure.time,
        source: failure.source,
        destination_service: failure.destination,
        method: failure.method,
        path,
        status: failure.code.into(),
        reason: match failure.reason {
            "-" => String::new(),
            reason => reason.to_owned(),
        },
        detail,
        upstream: failure.upstream.map(|a| a.to_string()).unwrap_or_default(),
        count: 1,
        grpc_status: failure.grpc.map_or(0, |status| u32::from(status) + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recent(time: f64, path: &str) -> Recent {
        Recent {
            time,
            source: "spiffe://t/svc/a".into(),
            destination: "b".into(),
            method: "GET".into(),
            path: path.into(),
            code: 403,
            reason: "denied",
            detail: "é".repeat(1000),
            upstream: None,
            grpc: Some(7),
        }
    }

    #[test]
    fn alike_failures_are_one_sample_without_its_query() {
        let all = vec![
            recent(1.0, "/x?a=1"),
            recent(3.0, "/x?a=2"),
            recent(2.0, "/y"),
        ];
        let samples = together(all);
        let told = |s: &v1::FailedRequest| (s.path.clone(), s.count, s.at_unix_seconds);
        let told: Vec<_> = samples.iter().map(told).collect();
        assert_eq!(told, [("/x".into(), 2, 3.0), ("/y".into(), 1, 2.0)]);
        assert_eq!(samples[0].grpc_status, 8);
        assert!(samples[0].detail.len() <= MAX_DETAIL);
    }

    #[test]
    fn a_flood_of_different_failures_is_bounded() {
        let all = (0..500).map(|i| recent(f64::from(i), &format!("/{i}")));
        let samples = together(all.collect());
        assert_eq!(samples.len(), MAX_SAMPLES);
        assert_eq!(samples[0].path, "/499");
    }
}
