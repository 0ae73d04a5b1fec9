//! Turns samples into charts: the lines and bars.

use super::axis::Axis;
use super::bars::{Bars, Group};
use super::cells::{Row, name};
use super::histograms;
use super::lines::{Line, Plot, Point};
use super::number;
use super::page::Chart;
use crate::results::stats::Spread;
use crate::results::{Results, Sample, figure};
use hdrhistogram::Histogram;

/// The subject of a bar chart.
pub(super) struct Figure {
    /// The name of the file.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) subtitle: &'static str,
    pub(super) unit: &'static str,
    /// The figures to draw, each with its name when there are several.
    pub(super) figures: &'static [(&'static str, &'static str)],
}

/// One bar (or several) for each peer; none when nobody has such a figure.
pub(super) fn bars(results: &Results, scenario: &str, what: &Figure) -> Option<Chart> {
    let group = |peer: &str| {
        let row = Row::new(results, scenario, peer);
        let bar = |(figure, name): &(&str, &'static str)| Some((*name, row.spread(figure)?));
        let bars: Vec<(&'static str, Spread)> = what.figures.iter().filter_map(bar).collect();
        let invalid = results
            .for_scenario(scenario)
            .filter(|s| s.peer == peer)
            .all(|s| s.invalid.is_some());
        // Peers without such a figure (no sidecars: no CPU of theirs) are left out; peers that failed are
        // shown.
        (!bars.is_empty() || invalid).then(|| Group {
            peer: peer.to_owned(),
            label: name(results, peer),
            bars,
        })
    };
    let groups: Vec<Group> = results
        .peers(scenario)
        .into_iter()
        .filter_map(group)
        .collect();
    if groups.iter().all(|group| group.bars.is_empty()) {
        return None;
    }
    let bars = Bars {
        title: what.title.to_owned(),
        subtitle: what.subtitle.to_owned(),
        unit: what.unit,
        groups,
    };
    Some(Chart {
        name: format!("{scenario}-{}", what.name),
        title: bars.title.clone(),
        svg: bars.draw(),
        tall: false,
    })
}

/// Points of a percentile curve when there is no histogram.
const PERCENTILES: [(f64, &str); 5] = [
    (0.5, figure::P50_MS),
    (0.9, figure::P90_MS),
    (0.95, figure::P95_MS),
    (0.99, figure::P99_MS),
    (0.999, figure::P999_MS),
];

/// Latency by percentile, all valid runs of a peer together.
pub(super) fn latencies(results: &Results, scenario: &str) -> Option<Chart> {
    let mut lines = Vec::new();
    let mut most = 100.0_f64;
    for peer in results.peers(scenario) {
        let samples = results.for_scenario(scenario).filter(|s| s.peer == peer);
        let merged = histograms::merged(samples);
        let (points, dots) = match &merged {
            Some(histogram) => (curve(histogram, &mut most), false),
            None => {
                let row = Row::new(results, scenario, peer);
                let point = |(quantile, figure): &(f64, &str)| {
                    let s = row.spread(figure)?;
                    Some(Point {
                        x: *quantile,
                        y: s.median,
                        low: s.min,
                        high: s.max,
                    })
                };
                let points: Vec<Point> = PERCENTILES.iter().filter_map(point).collect();
                if !points.is_empty() {
                    most = most.max(2000.0);
                }
                (points, true)
            }
        };
        if !points.is_empty() {
            lines.push(Line {
                peer: peer.to_owned(),
                label: Some(name(results, peer)),
                points,
                dots,
            });
        }
    }
    if lines.is_empty() {
        return None;
    }
    let axis = latency_axis(lines.iter().flat_map(|line| &line.points));
    let described: Vec<String> = lines.iter().map(describe_curve).collect();
    let plot = Plot {
        title: "Latency by percentile".to_owned(),
        subtitle: "seen by the client; ms, logarithmic; lower is better".to_owned(),
        x: Axis::tail(most),
        y: axis,
        x_label: "share of requests answered at least as fast",
        lines,
        limit: None,
        description: described.join("; "),
    };
    Some(Chart {
        name: format!("{scenario}-latency"),
        title: plot.title.clone(),
        svg: plot.draw(),
        tall: true,
    })
}

/// A histogram counts microseconds and has no zero.
const ZERO_MS: f64 = 0.001;
/// The lowest tick of latencies: nothing that is measured here takes less through a proxy.
const LEAST_MS: f64 = 0.1;

/// Begins at the least latency that says something. A client that counts in whole milliseconds, as
/// JMeter does, reports zeros, and three empty decades below one millisecond.
fn latency_axis<'a>(points: impl Iterator<Item = &'a Point>) -> Axis {
    let (mut low, mut high) = (f64::INFINITY, ZERO_MS);
    for point in points {
        high = high.max(point.high);
        if point.low > ZERO_MS {
            low = low.min(point.low);
        }
    }
    let low = if low.is_finite() { low } else { LEAST_MS };
    Axis::log(low.max(LEAST_MS), high, "ms")
}

fn curve(histogram: &Histogram<u64>, most: &mut f64) -> Vec<Point> {
    // Beyond the last percentile there are still ten requests: one alone is chance.
    let count = histogram.len() as f64 / 10.0;
    let nines = count.log10().clamp(0.0, 6.0);
    *most = most.max(count);
    let steps = (nines * 24.0).floor();
    let mut points = Vec::new();
    let mut step = 0.0;
    while step <= steps {
        let quantile = 1.0 - 10f64.powf(-step / 24.0);
        let ms = histogram.value_at_quantile(quantile) as f64 / 1000.0;
        points.push(Point::new(quantile, ms.max(ZERO_MS)));
        step += 1.0;
    }
    points
}

fn describe_curve(line: &Line) -> String {
    let at = |quantile: f64| {
        let near = |p: &&Point| p.x >= quantile - 1e-9;
        let point = line.points.iter().find(near)?;
        Some(format!(
            "{}% {} ms",
            number::tick(quantile * 100.0),
            number::number(point.y)
        ))
    };
    let at: Vec<String> = [0.5, 0.99, 0.999].into_iter().filter_map(at).collect();
    format!("{}: {}", line.label.as_deref().unwrap_or(""), at.join(", "))
}

/// The subject of a chart over time.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Over {
    Cpu,
    Memory,
}

/// A sidecar's CPU or memory over time. The run with the median throughput is drawn strong, the
/// others stay in the background.
pub(super) fn over_time(
    results: &Results,
    scenario: &str,
    sidecar: &str,
    over: Over,
    limit: Option<f64>,
) -> Option<Chart> {
    let mut lines = Vec::new();
    for peer in results.peers(scenario) {
        let valid = results
            .for_scenario(scenario)
            .filter(|s| s.peer == peer && s.invalid.is_none());
        let samples: Vec<&Sample> = valid.collect();
        let typical = typical(&samples);
        for sample in samples {
            let Some(series) = sample.series.iter().find(|s| s.sidecar == sidecar) else {
                continue;
            };
            let values = match over {
                Over::Cpu => &series.cpu_cores,
                Over::Memory => &series.rss_mib,
            };
            let factor = if over == Over::Cpu { 100.0 } else { 1.0 };
            let pairs = series.at_s.iter().zip(values);
            let points = pairs.filter(|(at, value)| at.is_finite() && value.is_finite());
            let points: Vec<Point> = points.map(|(at, v)| Point::new(*at, v * factor)).collect();
            if !points.is_empty() {
                lines.push(Line {
                    peer: peer.to_owned(),
                    label: (Some(sample.repeat) == typical).then(|| name(results, peer)),
                    points,
                    dots: false,
                });
            }
        }
    }
    if lines.is_empty() {
        return None;
    }
    let values = || lines.iter().flat_map(|line| &line.points);
    let (end, mut high) = values().fold((0.0_f64, 0.0_f64), |(x, y), p| (x.max(p.x), y.max(p.y)));
    let limit = limit
        .filter(|_| over == Over::Cpu)
        .map(|cores| cores * 100.0);
    high = high.max(limit.unwrap_or(0.0));
    let (what, unit, file) = match over {
        Over::Cpu => ("CPU", "%", "cpu"),
        Over::Memory => ("memory", "MiB", "memory"),
    };
    let mut subtitle = match over {
        Over::Cpu => "share of one core".to_owned(),
        Over::Memory => "resident MiB".to_owned(),
    };
    if let Some(limit) = limit {
        subtitle += &format!(", dashed: its limit, {}%", number::tick(limit));
    }
    if lines.iter().any(|line| line.label.is_none()) {
        subtitle += "; strong: the median run";
    }
    let strong = lines.iter().filter(|line| line.label.is_some());
    let described: Vec<String> = strong
        .map(|line| {
            let sum: f64 = line.points.iter().map(|p| p.y).sum();
            let high = line.points.iter().map(|p| p.y).fold(0.0, f64::max);
            format!(
                "{}: {} {unit} on average, {} {unit} at most",
                line.label.as_deref().unwrap_or(""),
                number::number(sum / line.points.len() as f64),
                number::number(high)
            )
        })
        .collect();
    let plot = Plot {
        title: format!("{}’s sidecar: {what}", number::capital(sidecar)),
        subtitle,
        x: Axis::until(end, "s"),
        y: Axis::from_zero(high, unit),
        x_label: "time since the measurement began",
        lines,
        limit,
        description: described.join("; "),
    };
    Some(Chart {
        name: format!("{scenario}-{sidecar}-{file}"),
        title: plot.title.clone(),
        svg: plot.draw(),
        tall: true,
    })
}

/// The repeat whose throughput is the median one.
fn typical(samples: &[&Sample]) -> Option<u32> {
    let mut order: Vec<&&Sample> = samples.iter().collect();
    let rate = |s: &Sample| s.figure(figure::RPS).unwrap_or(0.0);
    order.sort_by(|a, b| f64::total_cmp(&rate(a), &rate(b)));
    order.get(order.len() / 2).map(|sample| sample.repeat)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First and last tick of the axis for these latencies in microseconds.
    fn ends(latencies: &[u64]) -> (String, String) {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        for latency in latencies {
            histogram.record_n(*latency, 100).unwrap();
        }
        let axis = latency_axis(curve(&histogram, &mut 0.0).iter());
        let text = |tick: Option<&(f64, String)>| tick.unwrap().1.clone();
        (text(axis.ticks.first()), text(axis.ticks.last()))
    }

    #[test]
    fn the_latency_axis_begins_where_latencies_say_something() {
        let ends = |latencies| {
            let (first, last) = ends(latencies);
            format!("{first} to {last}")
        };
        // JMeter: whole milliseconds, and zeros.
        assert_eq!(ends(&[1, 1000, 17_000, 190_000]), "1 to 200 ms");
        assert_eq!(ends(&[1, 3000, 17_000]), "2 to 20 ms");
        assert_eq!(ends(&[340, 900, 2100]), "0.2 to 5 ms");
        // Less than a tenth of a millisecond is not told apart.
        assert_eq!(ends(&[20, 900]), "0.1 to 1 ms");
        assert_eq!(ends(&[1]), "0.1 to 0.2 ms");
    }
}
