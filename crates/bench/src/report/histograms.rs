//! Latencies in the two formats of HdrHistogram's tools: an interval log with every run, and the
//! percentile distribution of all runs together.

use crate::results::{Results, Sample};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use hdrhistogram::serialization::{Deserializer, V2DeflateSerializer};
use std::fmt::Write as _;
use std::time::Duration;

/// The latencies of one sample, in microseconds.
pub(super) fn decode(sample: &Sample) -> Option<Histogram<u64>> {
    let bytes = STANDARD.decode(sample.histogram.as_ref()?).ok()?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).ok()
}

/// Merges the histograms of all valid samples.
pub(super) fn merged<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<Histogram<u64>> {
    let mut whole = Histogram::<u64>::new(3).ok()?;
    whole.auto(true);
    for sample in samples.filter(|s| s.invalid.is_none()) {
        if let Some(histogram) = decode(sample) {
            whole.add(histogram).ok()?;
        }
    }
    (!whole.is_empty()).then_some(whole)
}

/// File names below `histograms`, and texts.
pub(super) fn files(results: &Results) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for scenario in &results.scenarios {
        for peer in results.peers(&scenario.name) {
            let samples = || {
                results
                    .for_scenario(&scenario.name)
                    .filter(|s| s.peer == peer)
            };
            let name = super::file_name(&format!("{}-{peer}", scenario.name));
            if let Some(histogram) = merged(samples()) {
                files.push((format!("{name}.hgrm"), percentiles(&histogram)));
            }
            let valid = samples().filter(|s| s.invalid.is_none());
            if let Some(log) = interval_log(valid) {
                files.push((format!("{name}.hlog"), log));
            }
        }
    }
    files
}

fn interval_log<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<String> {
    let mut text = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment("latencies in microseconds; an interval is a run");
    let mut log = builder.begin_log_with(&mut text, &mut serializer).ok()?;
    let mut any = false;
    for sample in samples {
        let Some(histogram) = decode(sample) else {
            continue;
        };
        any = true;
        let start = Duration::from_secs(u64::from(sample.repeat));
        let tag = format!("run-{}", sample.repeat + 1);
        log.write_histogram(&histogram, start, Duration::from_secs(1), Tag::new(&tag))
            .ok()?;
    }
    any.then(|| String::from_utf8(text).ok()).flatten()
}

/// Prints percentiles as HdrHistogram does, in milliseconds.
fn percentiles(histogram: &Histogram<u64>) -> String {
    let mut text = format!(
        "{:>12} {:>14} {:>10} {:>14}\n\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    );
    let mut total = 0;
    let ms = |value: f64| value / 1000.0;
    for step in histogram.iter_quantiles(5) {
        total += step.count_since_last_iteration();
        let (value, quantile) = (
            ms(step.value_iterated_to() as f64),
            step.quantile_iterated_to(),
        );
        let _ = write!(text, "{value:12.3} {quantile:2.12} {total:10}");
        if quantile < 1.0 {
            let _ = write!(text, " {:14.2}", 1.0 / (1.0 - quantile));
        }
        text.push('\n');
    }
    let _ = write!(
        text,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]\n#[Max     = {:12.3}, Total count    = {:12}]\n#[Buckets = {:12}, SubBuckets     = {:12}]\n",
        ms(histogram.mean()),
        ms(histogram.stdev()),
        ms(histogram.max() as f64),
        histogram.len(),
        histogram.buckets(),
        2048
    );
    text
}

#[cfg(test)]
pub(super) fn encode(histogram: &Histogram<u64>) -> String {
    use hdrhistogram::serialization::{Serializer, V2Serializer};
    let mut bytes = Vec::new();
    V2Serializer::new()
        .serialize(histogram, &mut bytes)
        .unwrap();
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    fn sample(repeat: u32, values: &[u64]) -> Sample {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        for value in values {
            histogram.record(*value).unwrap();
        }
        Sample {
            repeat,
            histogram: Some(encode(&histogram)),
            ..Sample::default()
        }
    }

    #[test]
    fn runs_are_added_and_what_is_invalid_is_not() {
        let mut lost = sample(2, &[9_000_000]);
        lost.invalid = Some("lost".into());
        let samples = [sample(0, &[1000; 90]), sample(1, &[2000; 10]), lost];
        let whole = merged(samples.iter()).unwrap();
        assert_eq!(whole.len(), 100);
        assert_eq!(whole.max(), 2000);
        let text = percentiles(&whole);
        assert!(text.contains("Total count    =          100"), "{text}");
        assert!(
            text.lines()
                .any(|l| l.trim_start().starts_with("1.000 0.5")),
            "{text}"
        );
        assert!(merged(samples[2..].iter()).is_none());
        let broken = Sample {
            histogram: Some("!".into()),
            ..Sample::default()
        };
        assert!(merged([broken].iter()).is_none());
    }

    #[test]
    fn the_log_is_read_by_others() {
        let log = interval_log([sample(0, &[1000]), sample(1, &[2000])].iter()).unwrap();
        let mut tags = Vec::new();
        for entry in IntervalLogIterator::new(log.as_bytes()) {
            if let LogEntry::Interval(interval) = entry.unwrap() {
                tags.push(interval.tag().unwrap().as_str().to_owned());
                let bytes = STANDARD.decode(interval.encoded_histogram()).unwrap();
                let histogram: Histogram<u64> = Deserializer::new()
                    .deserialize(&mut bytes.as_slice())
                    .unwrap();
                assert_eq!(histogram.len(), 1);
            }
        }
        assert_eq!(tags, ["run-1", "run-2"]);
    }
}
