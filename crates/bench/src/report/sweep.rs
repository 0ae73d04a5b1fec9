//! The report of `sweep`: the eight published charts for each rate, and a table for each mode.

use super::axis::Axis;
use super::cells::{Row, name, remarks};
use super::lines::{Line, Plot, Point};
use super::number;
use super::page::{Cell, Chart, Page, Section, Table};
use crate::results::stats::{NO_MESH, SUBJECT, Spread};
use crate::results::{Results, Sample, Scenario, figure};

/// Figures that are drawn against the number of connections, in the order published.
const CHARTS: [(&str, &str, &str, &str); 9] = [
    ("p50", figure::P50_MS, "P50 latency", "ms"),
    ("p90", figure::P90_MS, "P90 latency", "ms"),
    ("p99", figure::P99_MS, "P99 latency", "ms"),
    ("p999", figure::P999_MS, "P99.9 latency", "ms"),
    (
        "client-cpu",
        "client_cpu_milli",
        "Client’s sidecar: CPU",
        "mCPU",
    ),
    (
        "server-cpu",
        "server_cpu_milli",
        "Server’s sidecar: CPU",
        "mCPU",
    ),
    (
        "client-memory",
        "client_rss_mib",
        "Client’s sidecar: memory",
        "MiB",
    ),
    (
        "server-memory",
        "server_rss_mib",
        "Server’s sidecar: memory",
        "MiB",
    ),
    ("rps", figure::RPS, "Throughput", "/s"),
];
const BASELINE: &str = "baseline";
const BOTH: &str = "both";

/// Returns the whole page.
pub(super) fn page(results: &Results) -> Page {
    let mut sections = Vec::new();
    for rate in distinct(results, "qps") {
        let of_rate = |s: &&Scenario| label(s, "qps") == rate;
        let scenarios: Vec<&Scenario> = results.scenarios.iter().filter(of_rate).collect();
        for mode in modes(results) {
            sections.extend(section(results, &scenarios, mode, rate));
        }
    }
    Page {
        title: "Two pods, 2 to 64 connections",
        what: "Fortio client → Fortio server, with and without sidecars between them: the latency the client saw, and the CPU and memory of the sidecars. Nothing is divided by anything.",
        lead: lead(results),
        sections,
    }
}

fn label<'a>(scenario: &'a Scenario, key: &str) -> &'a str {
    scenario.labels.get(key).map_or("", String::as_str)
}

fn distinct<'a>(results: &'a Results, key: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    for scenario in &results.scenarios {
        let value = label(scenario, key);
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// Returns the modes with sidecars; both first. The baseline is a line in each chart and a row in each
/// table.
fn modes(results: &Results) -> Vec<&str> {
    let mut modes = distinct(results, "mode");
    modes.retain(|mode| *mode != BASELINE);
    modes.sort_by_key(|mode| *mode != BOTH);
    if modes.is_empty() {
        modes.push(BASELINE);
    }
    modes
}

fn connections(scenario: &Scenario) -> f64 {
    label(scenario, "connections").parse().unwrap_or(0.0)
}

fn at(rate: &str) -> String {
    match rate.parse::<f64>() {
        Ok(rate) if rate > 0.0 => format!("{} requests/s", number::tick(rate)),
        _ => "the highest rate".to_owned(),
    }
}

fn in_words(mode: &str) -> &str {
    match mode {
        BOTH => "both sidecars",
        "clientsidecar" => "the client’s sidecar alone",
        "serversidecar" => "the server’s sidecar alone",
        BASELINE => "no sidecars",
        other => other,
    }
}

/// Every peer that was measured in a mode, with its scenario for each number of connections.
fn measured<'a>(
    results: &'a Results,
    scenarios: &[&'a Scenario],
    mode: &str,
) -> Vec<(&'a str, Vec<&'a Scenario>)> {
    let mut peers: Vec<(&str, Vec<&Scenario>)> = Vec::new();
    for scenario in scenarios {
        let wanted = [mode, BASELINE].contains(&label(scenario, "mode"));
        for peer in results.peers(&scenario.name).into_iter().filter(|_| wanted) {
            match peers.iter_mut().find(|(name, _)| *name == peer) {
                Some((_, of)) => of.push(scenario),
                None => peers.push((peer, vec![scenario])),
            }
        }
    }
    for (_, scenarios) in &mut peers {
        scenarios.sort_by(|a, b| f64::total_cmp(&connections(a), &connections(b)));
    }
    peers.sort_by_key(|(peer, _)| (*peer == NO_MESH, *peer != SUBJECT, *peer));
    peers
}

fn section(results: &Results, scenarios: &[&Scenario], mode: &str, rate: &str) -> Option<Section> {
    let peers = measured(results, scenarios, mode);
    if peers.is_empty() {
        return None;
    }
    let mut charts = Vec::new();
    // With a sidecar at one end only, only the latencies differ; the charts of both tell the story.
    for chart in CHARTS {
        let throughput = chart.1 == figure::RPS;
        if throughput && rate.parse::<f64>().is_ok_and(|rate| rate > 0.0) {
            continue;
        }
        charts.extend(draw(results, &peers, mode, rate, chart));
    }
    let wanted = |s: &&Scenario| [mode, BASELINE].contains(&label(s, "mode"));
    let all = scenarios.iter().copied().filter(wanted);
    let samples = all.flat_map(|s| results.for_scenario(&s.name));
    let place = |sample: &Sample| {
        let scenario = scenarios.iter().find(|s| s.name == sample.scenario)?;
        Some(format!("{} connections", label(scenario, "connections")))
    };
    let remarks = remarks(results, samples, place);
    Some(Section {
        title: format!("{}, {}", number::capital(&at(rate)), in_words(mode)),
        charts,
        tables: tables(results, &peers, mode, rate),
        aside: mode != BOTH,
        remarks,
        ..Section::default()
    })
}

fn draw(
    results: &Results,
    peers: &[(&str, Vec<&Scenario>)],
    mode: &str,
    rate: &str,
    (file, figure, title, unit): (&str, &str, &str, &'static str),
) -> Option<Chart> {
    let mut lines = Vec::new();
    let mut several = false;
    for (peer, scenarios) in peers {
        let point = |scenario: &&Scenario| {
            let s: Spread = Row::new(results, &scenario.name, peer).spread(figure)?;
            several |= s.count > 1;
            Some(Point {
                x: connections(scenario),
                y: s.median,
                low: s.min,
                high: s.max,
            })
        };
        let points: Vec<Point> = scenarios.iter().filter_map(point).collect();
        if !points.is_empty() {
            lines.push(Line {
                peer: (*peer).to_owned(),
                label: Some(name(results, peer)),
                points,
                dots: true,
            });
        }
    }
    let mut ticks: Vec<f64> = lines.iter().flat_map(|l| &l.points).map(|p| p.x).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    if ticks.is_empty() {
        return None;
    }
    let all = lines.iter().flat_map(|l| &l.points);
    let high = all.map(|p| p.high).fold(0.0, f64::max);
    let described: Vec<String> = lines
        .iter()
        .map(|line| {
            let at = |p: &Point| format!("{} at {}", number::number(p.y), number::tick(p.x));
            let points: Vec<String> = line.points.iter().map(at).collect();
            format!(
                "{}: {}",
                line.label.as_deref().unwrap_or(""),
                points.join(", ")
            )
        })
        .collect();
    let better = if figure == figure::RPS {
        "higher"
    } else {
        "lower"
    };
    let runs = match several {
        true => "; median, band: all runs",
        false => "",
    };
    let plot = Plot {
        title: title.to_owned(),
        subtitle: format!("{unit} at {}{runs}; {better} is better", at(rate)),
        x: Axis::values(&ticks),
        y: Axis::from_zero(high, unit),
        x_label: "connections",
        lines,
        limit: None,
        description: format!("In {unit}, by connections. {}.", described.join("; ")),
    };
    Some(Chart {
        name: format!("{mode}-qps{rate}-{file}"),
        title: format!("{title} at {}", at(rate)),
        svg: plot.draw(),
        tall: true,
    })
}

/// Tables of the client's measurements, then of the sidecars' usage.
fn tables(
    results: &Results,
    peers: &[(&str, Vec<&Scenario>)],
    mode: &str,
    rate: &str,
) -> Vec<Table> {
    let seen = [
        ("requests/s", figure::RPS),
        ("P50 ms", figure::P50_MS),
        ("P90 ms", figure::P90_MS),
        ("P99 ms", figure::P99_MS),
        ("P99.9 ms", figure::P999_MS),
    ];
    let taken = [
        ("client’s sidecar mCPU", "client_cpu_milli"),
        ("server’s sidecar mCPU", "server_cpu_milli"),
        ("client’s sidecar MiB", "client_rss_mib"),
        ("server’s sidecar MiB", "server_rss_mib"),
        ("CPU µs/request", figure::CPU_US_PER_REQUEST),
    ];
    let table = |caption: &str, figures: &[(&str, &str)], honest: bool| {
        let mut head = vec!["peer".to_owned(), "connections".to_owned()];
        head.extend(figures.iter().map(|(title, _)| (*title).to_owned()));
        let last = ["errors", "identities proven", "runs"];
        head.extend(
            last.iter()
                .filter(|_| honest)
                .map(|&title| title.to_owned()),
        );
        let row = |scenario: &Scenario, peer: &str| {
            let row = Row::new(results, &scenario.name, peer);
            let at = number::tick(connections(scenario));
            let mut cells = vec![row.name(), Cell::figure(at)];
            cells.extend(figures.iter().map(|(_, figure)| row.figure(figure)));
            if honest {
                cells.extend([row.errors(), row.identities(), row.runs()]);
            }
            (connections(scenario), cells)
        };
        // Rows are sorted by connections, so that comparable figures stand together.
        let with_sidecars = |peer: &str| honest || peer != NO_MESH;
        let rows = peers.iter().filter(|(peer, _)| with_sidecars(peer));
        let rows = rows.flat_map(|(peer, of)| of.iter().map(|s| row(s, peer)));
        let mut rows: Vec<(f64, Vec<Cell>)> = rows.collect();
        rows.sort_by(|a, b| f64::total_cmp(&a.0, &b.0));
        let mut table = Table {
            head,
            rows: rows.into_iter().map(|(_, cells)| cells).collect(),
            ..Table::default()
        }
        .without_empty_columns(2);
        let runs = table.runs_in_words().map(|words| format!("; {words}"));
        table.caption = format!(
            "{}, {}: {caption}{}.",
            number::capital(&at(rate)),
            in_words(mode),
            runs.unwrap_or_default()
        );
        table
    };
    let tables = [
        table("what the client saw", &seen, true),
        table("what the sidecars took", &taken, false),
    ];
    let says = |table: &Table| table.head.len() > 2;
    tables.into_iter().filter(says).collect()
}

/// The result in words: what two sidecars add at the first rate and the most connections.
fn lead(results: &Results) -> String {
    let Some(rate) = distinct(results, "qps").into_iter().next() else {
        return String::new();
    };
    let of_rate = |s: &&Scenario| label(s, "qps") == rate;
    let scenarios: Vec<&Scenario> = results.scenarios.iter().filter(of_rate).collect();
    let peers = measured(results, &scenarios, BOTH);
    let last = |peer: &str| {
        let found = peers.iter().find(|(name, _)| *name == peer);
        found.and_then(|(_, scenarios)| scenarios.last().copied())
    };
    let Some(most) = last(SUBJECT) else {
        return "No run with two sidecars of Tulle was done: there is no result.".to_owned();
    };
    let mut sentences = Vec::new();
    let show = |peer: &str, scenario: &Scenario| {
        let row = Row::new(results, &scenario.name, peer);
        let [p50, p99] = [figure::P50_MS, figure::P99_MS].map(|f| row.spread(f));
        Some((p50?, p99?))
    };
    for (peer, _) in &peers {
        // An interrupted study has fewer connections of some peers: those figures are no comparison.
        let same = |s: &&Scenario| label(s, "connections") == label(most, "connections");
        let scenario = last(peer).filter(same);
        let Some((p50, p99)) = scenario.and_then(|scenario| show(peer, scenario)) else {
            continue;
        };
        let whose = match *peer {
            NO_MESH => "no sidecars".to_owned(),
            peer => format!("two sidecars of {}", name(results, peer)),
        };
        sentences.push(format!(
            "{whose} {} ms and {} ms",
            number::median(&p50),
            number::median(&p99)
        ));
    }
    if sentences.is_empty() {
        return format!(
            "At {} over {} connections no run with two sidecars or none was valid: there is no result.",
            at(rate),
            number::tick(connections(most))
        );
    }
    format!(
        "At {} over {} connections the client saw these medians and 99th percentiles: {}.",
        at(rate),
        number::tick(connections(most)),
        sentences.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::super::{fixture, markdown};
    use super::*;

    #[test]
    fn captions_speak_of_medians_where_there_are_several_runs() {
        let mut results = fixture::sweep();
        let (several, one) = (
            "what the client saw; medians (least–largest).",
            "what the client saw; each figure is of one run.",
        );
        let band = "; median, band: all runs; lower is better";
        let shown = |results: &Results| {
            let page = page(results);
            let charts = page.sections.iter().flat_map(|s| &s.charts);
            let charts = charts.map(|chart| chart.svg.inline()).collect::<String>();
            (markdown::summary(results, &page), charts)
        };
        let (text, charts) = shown(&results);
        assert!(text.contains(several) && !text.contains(one), "{text}");
        assert!(text.contains("Medians of interleaved runs"), "{text}");
        assert!(charts.contains(band));

        results.samples.retain(|s| s.repeat == 0);
        results.summarise();
        let (text, charts) = shown(&results);
        assert!(text.contains(one), "{text}");
        assert!(!text.contains("least–largest"), "{text}");
        assert!(!text.contains("Medians of interleaved runs"), "{text}");
        assert!(!charts.contains(band));
    }

    #[test]
    fn the_result_in_words_compares_the_same_number_of_connections() {
        let mut results = fixture::sweep();
        assert!(lead(&results).contains("two sidecars of Envoy"));
        let left_out = |s: &Sample| s.peer == "envoy" && s.scenario.ends_with("-c64");
        results.samples.retain(|s| !left_out(s));
        results.summarise();
        let lead = lead(&results);
        assert!(lead.contains("over 64 connections"), "{lead}");
        assert!(!lead.contains("Envoy"), "{lead}");
    }
}
