//! CPU and memory of sidecars, as the kubelets of their nodes have them
//! (`/stats/summary`, which any cluster's metrics are made of).

use super::Kubectl;
use super::place::Pod;
use crate::results::Series;
use serde_json::Value;
use std::collections::BTreeMap;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// One look of a kubelet at a container.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    /// Seconds since 1970, by the kubelet's clock.
    at: f64,
    /// CPU time since the container began, in seconds.
    cpu: f64,
    mib: f64,
}

/// Usage of sidecars over time, by application.
#[derive(Debug, Default)]
pub(super) struct Seen {
    points: BTreeMap<&'static str, Vec<Point>>,
}

/// Usage of a sidecar over some time.
#[derive(Debug, Clone, PartialEq)]
pub struct Used {
    /// Cores, on average.
    pub cores: f64,
    /// Memory, on average.
    pub mib: f64,
    /// Memory, at most.
    pub peak_mib: f64,
    /// The whole series.
    pub series: Series,
}

impl Seen {
    /// Asks the kubelets. One that does not answer is asked again the next time.
    pub(super) fn look(&mut self, kubectl: &Kubectl, pods: &BTreeMap<&'static str, Pod>) {
        let mut nodes: Vec<&str> = pods.values().map(|pod| pod.node.as_str()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        for node in nodes {
            let path = format!("/api/v1/nodes/{node}/proxy/stats/summary");
            if let Ok(summary) = kubectl.json(&["get", "--raw", &path]) {
                self.take(&summary, pods);
            }
        }
    }

    fn take(&mut self, summary: &Value, pods: &BTreeMap<&'static str, Pod>) {
        let all = summary["pods"].as_array().into_iter().flatten();
        for stats in all {
            let name = stats.pointer("/podRef/name").and_then(Value::as_str);
            let Some((app, pod)) = pods.iter().find(|(_, pod)| Some(&*pod.name) == name) else {
                continue;
            };
            let mut containers = stats["containers"].as_array().into_iter().flatten();
            let sidecar = containers.find(|c| c["name"].as_str() == pod.sidecar.as_deref());
            let Some(point) = sidecar.and_then(point) else {
                continue;
            };
            let points = self.points.entry(app).or_default();
            if points.last().is_none_or(|last| last.at < point.at) {
                points.push(point);
            }
        }
    }

    /// Returns the usage between two times; none if the kubelet sampled fewer than two times between them.
    pub(super) fn used(&self, app: &str, begin: f64, end: f64) -> Option<Used> {
        let points = self.points.get(app)?.iter();
        let points: Vec<&Point> = points.filter(|p| p.at >= begin && p.at <= end).collect();
        let (first, last) = (points.first()?, points.last()?);
        if last.at <= first.at {
            return None;
        }
        let mut series = Series {
            sidecar: app.to_owned(),
            ..Series::default()
        };
        for pair in points.windows(2) {
            let [before, point] = pair else { continue };
            series.at_s.push(point.at - begin);
            series
                .cpu_cores
                .push((point.cpu - before.cpu) / (point.at - before.at));
            series.rss_mib.push(point.mib);
        }
        #[allow(clippy::cast_precision_loss)] // looks of minutes
        let count = points.len() as f64;
        Some(Used {
            cores: (last.cpu - first.cpu) / (last.at - first.at),
            mib: points.iter().map(|p| p.mib).sum::<f64>() / count,
            peak_mib: points.iter().map(|p| p.mib).fold(0.0, f64::max),
            series,
        })
    }
}

/// Seconds since 1970 of a time as Kubernetes writes it.
#[allow(clippy::cast_precision_loss)] // seconds with a millionth
fn seconds(text: &str) -> Option<f64> {
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    Some(time.unix_timestamp_nanos() as f64 / 1e9)
}

#[allow(clippy::cast_precision_loss)] // nanoseconds of days, bytes of a container
fn point(container: &Value) -> Option<Point> {
    let number = |pointer: &str| container.pointer(pointer)?.as_u64().map(|n| n as f64);
    Some(Point {
        at: seconds(container.pointer("/cpu/time")?.as_str()?)?,
        cpu: number("/cpu/usageCoreNanoSeconds")? / 1e9,
        mib: number("/memory/workingSetBytes")? / f64::from(1 << 20),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pods() -> BTreeMap<&'static str, Pod> {
        let summary = json!({
            "metadata": { "name": "server-1" }, "status": { "podIP": "10.0.0.1" },
            "spec": { "nodeName": "n", "containers": [{ "name": "app" }, { "name": "tulle-proxy" }] },
        });
        BTreeMap::from([("server", super::super::place::read(&summary).unwrap())])
    }

    fn summary(second: u32, cpu_ms: u64, mib: u64) -> Value {
        let container = |name: &str, cpu_ms: u64| {
            json!({
                "name": name,
                "cpu": {
                    "time": format!("2026-01-01T00:00:{second:02}Z"),
                    "usageCoreNanoSeconds": cpu_ms * 1_000_000,
                },
                "memory": { "workingSetBytes": mib << 20 },
            })
        };
        json!({ "pods": [
            { "podRef": { "name": "other" }, "containers": [container("tulle-proxy", 1)] },
            { "podRef": { "name": "server-1" },
              "containers": [container("app", 7), container("tulle-proxy", cpu_ms)] },
        ] })
    }

    #[test]
    fn cpu_is_what_was_used_between_two_looks() {
        let mut seen = Seen::default();
        // The kubelet says the same until it has looked again.
        for (second, cpu, mib) in [
            (0, 0, 4),
            (10, 100, 5),
            (10, 100, 5),
            (20, 2100, 6),
            (30, 4100, 10),
        ] {
            seen.take(&summary(second, cpu, mib), &pods());
        }
        let begin = seconds("2026-01-01T00:00:05Z").unwrap();
        let used = seen.used("server", begin, begin + 25.0).unwrap();
        assert!((used.cores - 0.2).abs() < 1e-9);
        assert_eq!((used.mib, used.peak_mib), (7.0, 10.0));
        assert_eq!(used.series.at_s, [15.0, 25.0]);
        assert_eq!(seen.used("server", begin, begin + 6.0), None, "looked once");
        assert_eq!(seen.used("client", begin, begin + 25.0), None);
    }
}
