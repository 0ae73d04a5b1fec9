//! Samples of what failed on an edge: the newest kinds of failure, each with how often it came.

use std::sync::Arc;

/// Kinds of failure that are kept of an edge.
const MAX_SAMPLES: usize = 8;

/// Requests that failed alike.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) at: f64,
    /// Empty: the application's own answer.
    pub(crate) reason: String,
    pub(crate) status: u16,
    pub(crate) grpc_status: Option<u32>,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) detail: String,
    pub(crate) upstream: String,
    /// The proxy that tells.
    pub(crate) proxy: Arc<str>,
    pub(crate) count: u64,
}

/// The samples of an edge.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Sample>);

impl Samples {
    /// Adds one; returns how many more there are than before.
    pub(crate) fn add(&mut self, sample: Sample) -> usize {
        let alike = |known: &&mut Sample| {
            (&known.reason, known.status) == (&sample.reason, sample.status)
                && (&known.method, &known.path) == (&sample.method, &sample.path)
                && (&known.upstream, &known.proxy) == (&sample.upstream, &sample.proxy)
        };
        if let Some(known) = self.0.iter_mut().find(alike) {
            known.count += sample.count;
            known.at = known.at.max(sample.at);
            known.detail = sample.detail;
            return 0;
        }
        if self.0.len() < MAX_SAMPLES {
            self.0.push(sample);
            return 1;
        }
        let oldest = self.0.iter_mut().min_by(|a, b| a.at.total_cmp(&b.at));
        if let Some(oldest) = oldest {
            *oldest = sample;
        }
        0
    }

    /// Forgets those before a time; returns how many.
    pub(crate) fn forget(&mut self, before: f64) -> usize {
        let were = self.0.len();
        self.0.retain(|sample| sample.at >= before);
        were - self.0.len()
    }

    /// Moves those after a time to it: the clock was ahead then.
    pub(crate) fn set_back(&mut self, time: f64) {
        for sample in &mut self.0 {
            sample.at = sample.at.min(time);
        }
    }

    /// Returns those after a time, the newest first.
    pub(crate) fn since(&self, time: f64) -> Vec<Sample> {
        let mut all: Vec<Sample> = self.0.iter().filter(|s| s.at >= time).cloned().collect();
        all.sort_by(|a, b| b.at.total_cmp(&a.at));
        all
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: f64, path: &str) -> Sample {
        Sample {
            at,
            path: path.into(),
            count: 1,
            ..Sample::default()
        }
    }

    #[test]
    fn failures_that_are_alike_are_counted_and_the_oldest_kind_gives_way() {
        let mut samples = Samples::default();
        assert_eq!(samples.add(sample(1.0, "/a")), 1);
        assert_eq!(samples.add(sample(9.0, "/a")), 0);
        for i in 0..20 {
            samples.add(sample(2.0 + f64::from(i) / 10.0, &format!("/{i}")));
        }
        let all = samples.since(0.0);
        assert_eq!(all.len(), MAX_SAMPLES);
        assert_eq!((all[0].path.as_str(), all[0].count), ("/a", 2));
        assert_eq!(samples.forget(5.0), MAX_SAMPLES - 1);
    }
}
