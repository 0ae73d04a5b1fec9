//! Exports metrics: the page that a scraper would get, in OTLP's words. All values are cumulative, so a report that
//! is lost costs nothing but its point in time.

use crate::control::publish::Current;
use crate::export::collector::{Client, Signal};
use crate::export::own::{resource, scope, text};
use prost::Message;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tulle_api::otlp::common::KeyValue;
use tulle_api::otlp::metrics as otlp;
use tulle_api::otlp::metrics::metric::Data;
use tulle_model::samples::{self, MetricSample};

/// Makes the page of all metrics.
pub(crate) type Page = Box<dyn Fn() -> Pin<Box<dyn Future<Output = String> + Send>> + Send + Sync>;

/// Sends the metrics as often as the Mesh says, and once more at the end or when another process has taken over.
pub(super) async fn run(
    current: Current,
    instance: String,
    page: Page,
    mut end: watch::Receiver<bool>,
) {
    let started = SystemTime::now();
    let mut client: Option<Client> = None;
    let mut last = Instant::now();
    loop {
        let changes = current.changed();
        let changed = changes.notified();
        let snapshot = current.get();
        let wanted = snapshot.mesh.otlp.as_ref().filter(|o| o.metrics_ms > 0);
        let interval = wanted.map(|otlp| Duration::from_millis(otlp.metrics_ms.into()));
        let due = last + interval.unwrap_or_default();
        let ended = tokio::select! {
            _ = end.wait_for(|end| *end) => true,
            // The process that has taken over counts under the same name.
            () = std::future::ready(()), if current.is_succeeded() => true,
            // Settings may be others now.
            () = changed => continue,
            () = sleep_until(due), if interval.is_some() => false,
        };
        if let Some(otlp) = wanted {
            let settings = &otlp.collector;
            client = client.filter(|client| client.is_for(settings));
            let points = Points::now(started);
            let message = otlp::ExportMetricsServiceRequest {
                resource_metrics: vec![otlp::ResourceMetrics {
                    resource: Some(resource(&snapshot, settings, &instance)),
                    scope_metrics: vec![otlp::ScopeMetrics {
                        scope: Some(scope()),
                        metrics: points.metrics(&page().await),
                    }],
                }],
            };
            let message = message.encode_to_vec().into();
            let sent = match client.take().map_or_else(|| Client::new(settings), Ok) {
                Ok(new) => client.insert(new).send(Signal::Metrics, message).await,
                Err(why) => {
                    tracing::warn!(error = %why, "metrics for the collector");
                    Ok(0)
                }
            };
            if let Err(error) = sent {
                tracing::warn!(error = %error.why, "metrics for the collector");
            }
        } else {
            client = None;
        }
        last = Instant::now();
        if ended {
            return;
        }
    }
}

/// Turns Prometheus text into metrics with one point in time.
struct Points {
    start: u64,
    now: u64,
}

/// A metric of the text.
#[derive(Default)]
struct Family<'a> {
    kind: &'a str,
    help: &'a str,
    samples: Vec<MetricSample>,
}

impl Points {
    fn now(started: SystemTime) -> Self {
        let nanos = |time: SystemTime| {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        };
        Self {
            start: nanos(started),
            now: nanos(SystemTime::now()),
        }
    }

    fn metrics(&self, page: &str) -> Vec<otlp::Metric> {
        let families = families(page);
        let metrics = families.into_iter().filter(|(_, f)| !f.samples.is_empty());
        let metrics = metrics.map(|(name, family)| otlp::Metric {
            name: name.to_owned(),
            description: family.help.to_owned(),
            unit: unit(name).to_owned(),
            data: Some(self.data(name, family)),
        });
        metrics.collect()
    }

    fn data(&self, name: &str, family: Family<'_>) -> Data {
        let cumulative = otlp::AggregationTemporality::Cumulative.into();
        match family.kind {
            "histogram" => Data::Histogram(otlp::Histogram {
                data_points: self.histogram(name, family.samples),
                aggregation_temporality: cumulative,
            }),
            "counter" => Data::Sum(otlp::Sum {
                data_points: self.numbers(family.samples),
                aggregation_temporality: cumulative,
                is_monotonic: true,
            }),
            _ => Data::Gauge(otlp::Gauge {
                data_points: self.numbers(family.samples),
            }),
        }
    }

    fn numbers(&self, samples: Vec<MetricSample>) -> Vec<otlp::NumberDataPoint> {
        let points = samples.into_iter().map(|sample| otlp::NumberDataPoint {
            start_time_unix_nano: self.start,
            time_unix_nano: self.now,
            as_double: sample.value,
            attributes: attributes(&sample.labels),
        });
        points.collect()
    }

    /// One point for each set of labels. Prometheus' buckets count what is below their bound, OTLP's what is
    /// between two.
    fn histogram(&self, name: &str, samples: Vec<MetricSample>) -> Vec<otlp::HistogramDataPoint> {
        let mut points: BTreeMap<BTreeMap<String, String>, otlp::HistogramDataPoint> =
            BTreeMap::new();
        for mut sample in samples {
            let part = sample
                .name
                .strip_prefix(name)
                .unwrap_or_default()
                .to_owned();
            let bound = sample.labels.remove("le");
            let point =
                points
                    .entry(sample.labels)
                    .or_insert_with_key(|labels| otlp::HistogramDataPoint {
                        start_time_unix_nano: self.start,
                        time_unix_nano: self.now,
                        attributes: attributes(labels),
                        ..otlp::HistogramDataPoint::default()
                    });
            match (
                part.as_str(),
                bound.and_then(|bound| bound.parse::<f64>().ok()),
            ) {
                ("_bucket", Some(bound)) => {
                    let below: u64 = point.bucket_counts.iter().sum();
                    let counted = whole(sample.value).saturating_sub(below);
                    point.bucket_counts.push(counted);
                    if bound.is_finite() {
                        point.explicit_bounds.push(bound);
                    }
                }
                ("_sum", _) => point.sum = Some(sample.value),
                ("_count", _) => point.count = whole(sample.value),
                _ => {}
            }
        }
        points.into_values().collect()
    }
}

/// The samples by metric, in the order of their names.
fn families(page: &str) -> BTreeMap<&str, Family<'_>> {
    let mut families: BTreeMap<&str, Family<'_>> = BTreeMap::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            families.entry(name).or_default().help = help;
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            families.entry(name).or_default().kind = kind.trim();
        } else if let Some(sample) = samples::parse_line(line) {
            // The name stands at the beginning of the line, too, which lives longer.
            let name = line.get(..sample.name.len()).unwrap_or_default();
            let parts = ["_bucket", "_sum", "_count"];
            let of_histogram = parts
                .iter()
                .filter_map(|part| name.strip_suffix(part))
                .find(|name| families.get(name).is_some_and(|f| f.kind == "histogram"));
            let family = families.entry(of_histogram.unwrap_or(name)).or_default();
            family.samples.push(sample);
        }
    }
    families
}

fn attributes(labels: &BTreeMap<String, String>) -> Vec<KeyValue> {
    labels
        .iter()
        .map(|(name, value)| text(name, value))
        .collect()
}

/// The unit by the name's ending, in UCUM's words as OpenTelemetry wants it.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    match name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("milliseconds") => "ms",
        Some("bytes") => "By",
        _ => "",
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // counters, whole and positive
fn whole(value: f64) -> u64 {
    value.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_api::otlp::common::any_value::Value;

    const PAGE: &str = "\
# HELP a_total Things.
# TYPE a_total counter
a_total{x=\"1\",y=\"q\\\"\"} 2
a_total{x=\"2\"} 3
# HELP d_milliseconds Times.
# TYPE d_milliseconds histogram
d_milliseconds_bucket{x=\"1\",le=\"0.5\"} 1
d_milliseconds_bucket{x=\"1\",le=\"1\"} 4
d_milliseconds_bucket{x=\"1\",le=\"+Inf\"} 6
d_milliseconds_sum{x=\"1\"} 12.5
d_milliseconds_count{x=\"1\"} 6
# TYPE g gauge
g 7
# TYPE empty counter
";

    #[test]
    fn a_page_has_the_same_numbers_in_otlp() {
        let metrics = Points { start: 1, now: 2 }.metrics(PAGE);
        let names: Vec<_> = metrics.iter().map(|m| (&*m.name, &*m.unit)).collect();
        assert_eq!(
            names,
            [("a_total", ""), ("d_milliseconds", "ms"), ("g", "")]
        );
        let Some(Data::Sum(sum)) = &metrics[0].data else {
            panic!("{metrics:?}");
        };
        assert!(sum.is_monotonic);
        assert_eq!(sum.aggregation_temporality, 2);
        let point = &sum.data_points[0];
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (1, 2));
        assert_eq!(point.as_double, 2.0);
        let value = point.attributes[1].value.clone().unwrap().value.unwrap();
        assert_eq!(value, Value::StringValue("q\"".into()));
        let Some(Data::Histogram(histogram)) = &metrics[1].data else {
            panic!("{metrics:?}");
        };
        let point = &histogram.data_points[0];
        assert_eq!(point.bucket_counts, [1, 3, 2], "each bucket alone");
        assert_eq!(point.explicit_bounds, [0.5, 1.0]);
        assert_eq!((point.count, point.sum), (6, Some(12.5)));
        assert_eq!(point.attributes.len(), 1, "`le` is no label of the metric");
        let Some(Data::Gauge(gauge)) = &metrics[2].data else {
            panic!("{metrics:?}");
        };
        assert_eq!(gauge.data_points[0].as_double, 7.0);
    }
}
