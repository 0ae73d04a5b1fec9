//! The report of `seeds`: the published table for each path, and the published charts for each path
//! and limit.

use super::cells::{IN_BRACKETS, RATIO, Row, beside, name, remarks};
use super::charts::{self, Figure, Over};
use super::number;
use super::page::{Cell, Chart, Page, Section, Table};
use crate::results::stats::{NO_MESH, SUBJECT};
use crate::results::{Results, Scenario, figure};

const RATE: Figure = Figure {
    name: "tps",
    title: "Transactions per second",
    subtitle: "answered at the ingress; higher is better",
    unit: "/s",
    figures: &[(figure::RPS, "")],
};
const CPU: Figure = Figure {
    name: "cpu",
    title: "Sidecars’ CPU per transaction",
    subtitle: "both workloads’ sidecars, µs; lower is better",
    unit: "µs",
    figures: &[(figure::CPU_US_PER_REQUEST, "")],
};
/// The sidecars whose CPU and memory over time are drawn, as published.
const SIDECARS: [&str; 2] = ["gateway", "ratings"];

/// Returns the whole page.
pub(super) fn page(results: &Results) -> Page {
    let mut paths: Vec<&str> = results.scenarios.iter().map(path).collect();
    paths.dedup();
    let mut seen = Vec::new();
    paths.retain(|path| {
        let new = !seen.contains(path);
        seen.push(path);
        new
    });
    let mut sections = Vec::new();
    for path in &paths {
        let scenarios = results.scenarios.iter().filter(|s| self::path(s) == *path);
        let scenarios: Vec<&Scenario> = scenarios
            .filter(|s| results.for_scenario(&s.name).next().is_some())
            .collect();
        if scenarios.is_empty() {
            continue;
        }
        sections.push(overview(results, path, &scenarios));
        sections.extend(scenarios.iter().map(|s| limited(results, path, s)));
    }
    Page {
        title: "Two paths through bookinfo",
        what: "ingress → API gateway → ratings, and ingress → ratings, with every sidecar limited to a share of a core: how much a mesh can carry before its sidecars are the bottleneck.",
        lead: lead(results),
        sections,
    }
}

fn path(scenario: &Scenario) -> &str {
    let label = scenario.labels.get("path");
    let before = scenario.name.split('@').next();
    label.map_or(before.unwrap_or(""), String::as_str)
}

fn cpu(scenario: &Scenario) -> &str {
    let label = scenario.labels.get("cpu");
    let after = scenario.name.split('@').nth(1);
    label.map_or(after.unwrap_or("?"), String::as_str)
}

/// Returns the workload whose sidecar the published table shows.
fn shown(path: &str) -> &'static str {
    if path.starts_with("gateway") {
        "gateway"
    } else {
        "ratings"
    }
}

/// The table of a path.
fn overview(results: &Results, path: &str, scenarios: &[&Scenario]) -> Section {
    let head = [
        "mesh",
        "sidecar max CPU",
        "TPS",
        "P90 ms",
        "P95 ms",
        "P99 ms",
        "sidecar CPU %",
        "sidecar MiB",
        "P99.9 ms",
        "CPU ms per transaction, all sidecars",
        "CPU µs per transaction, this sidecar",
        "errors",
    ];
    let mut rows = Vec::new();
    let mut baseline = false;
    // No mesh first, then each limit, as published.
    for scenario in scenarios {
        if results.peers(&scenario.name).contains(&NO_MESH) && !baseline {
            baseline = true;
            rows.push(published(results, path, scenario, NO_MESH));
        }
    }
    for scenario in scenarios {
        let peers = results.peers(&scenario.name);
        let meshes = peers.into_iter().filter(|peer| *peer != NO_MESH);
        rows.extend(meshes.map(|peer| published(results, path, scenario, peer)));
    }
    let mut table = Table {
        head: head.map(str::to_owned).to_vec(),
        rows,
        ..Table::default()
    }
    .without_empty_columns(8);
    let runs = table.runs_in_words().map(|words| format!(": {words}"));
    table.caption = format!("Path {path}{}.", runs.unwrap_or_default());
    if baseline {
        table.caption +=
            " A baseline has no sidecars to limit: it is measured once in each repeat.";
    }
    let labels = |key: &str| scenarios.first().and_then(|s| s.labels.get(key).cloned());
    let mut text = Vec::new();
    if table.has("sidecar CPU") || table.has("sidecar MiB") {
        let whose = shown(path);
        text.push(format!("CPU and memory are of the sidecar of {whose}."));
    }
    if let (Some(app), Some(load), Some(connections)) =
        (labels("app"), labels("load"), labels("connections"))
    {
        text.push(format!(
            "Application: {app}. Load: {load}, {connections} connections."
        ));
    }
    if let Some(way_in) = labels("way_in") {
        text.push(format!("Way in: {way_in}."));
    }
    let who = bottleneck(results, path, scenarios);
    Section {
        title: format!("Path {path}"),
        text: text.join(" "),
        tables: std::iter::once(table).chain(who).collect(),
        ..Section::default()
    }
}

fn published(results: &Results, path: &str, scenario: &Scenario, peer: &str) -> Vec<Cell> {
    let row = Row::new(results, &scenario.name, peer);
    let limit = if peer == NO_MESH {
        Cell::none()
    } else {
        Cell::figure(cpu(scenario))
    };
    let own = format!("{}_cpu_us_per_request", shown(path));
    let total = row.spread(figure::CPU_US_PER_REQUEST);
    vec![
        row.name(),
        limit,
        row.figure(figure::RPS),
        row.figure(figure::P90_MS),
        row.figure(figure::P95_MS),
        row.figure(figure::P99_MS),
        row.figure("sidecar_cpu_percent"),
        row.figure("sidecar_mib"),
        row.figure(figure::P999_MS),
        Cell::spread(total, 0.001),
        row.figure(&own),
        row.errors(),
    ]
}

/// Returns a table of the CPU that each process used, so that a reader sees the limiting one, and of the
/// proven identities.
fn bottleneck(results: &Results, path: &str, scenarios: &[&Scenario]) -> Option<Table> {
    let columns = [
        ("gateway’s sidecar", "gateway_cpu_cores"),
        ("ratings’ sidecar", "ratings_cpu_cores"),
        ("ingress", "ingress_cores"),
        ("gateway", "app_gateway_cores"),
        ("ratings", "app_ratings_cores"),
        ("load generator", figure::LOAD_CORES),
    ];
    let mut head = vec!["mesh".to_owned(), "sidecar max CPU".to_owned()];
    head.extend(columns.iter().map(|(title, _)| (*title).to_owned()));
    head.extend(["machine idle", "identities proven", "runs"].map(str::to_owned));
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let mut baseline = false;
    for scenario in scenarios {
        let mut peers = results.peers(&scenario.name);
        peers.sort_by_key(|peer| *peer != NO_MESH);
        for peer in peers {
            if peer == NO_MESH && std::mem::replace(&mut baseline, true) {
                continue;
            }
            let row = Row::new(results, &scenario.name, peer);
            let percent = |figure: &str| {
                let spread = row.spread(figure);
                spread.map_or_else(Cell::none, |s| {
                    Cell::figure(format!("{:.0}%", s.median * 100.0))
                })
            };
            let limit = if peer == NO_MESH {
                "–"
            } else {
                cpu(scenario)
            };
            let mut cells = vec![row.name(), Cell::figure(limit)];
            cells.extend(columns.iter().map(|(_, figure)| percent(figure)));
            cells.extend([percent("machine_idle"), row.identities(), row.runs()]);
            rows.push(cells);
        }
    }
    let mut table = Table {
        head,
        rows,
        ..Table::default()
    }
    .without_empty_columns(2);
    let busy = columns.iter().any(|(title, _)| table.has(title));
    let units = [
        (busy, "CPU in percent of one core"),
        (table.has("machine idle"), "idle in percent of the machine"),
    ];
    let units = units.into_iter().filter(|(has, _)| *has);
    let units: Vec<&str> = units.map(|(_, unit)| unit).collect();
    table.caption = match units.is_empty() {
        true => format!("Path {path}: what counts."),
        false => format!(
            "Path {path}: who was busy, and whether it counts. {}.",
            number::capital(&units.join("; "))
        ),
    };
    (table.head.len() > 2).then_some(table)
}

/// The charts of a path and a limit.
fn limited(results: &Results, path: &str, scenario: &Scenario) -> Section {
    let of = &scenario.name;
    let mut found: Vec<Chart> = charts::bars(results, of, &RATE).into_iter().collect();
    found.extend(charts::latencies(results, of));
    found.extend(charts::bars(results, of, &CPU));
    let limit = cpu(scenario).parse().ok();
    for sidecar in SIDECARS {
        if sidecar == "gateway" && shown(path) != sidecar {
            continue;
        }
        for over in [Over::Cpu, Over::Memory] {
            found.extend(charts::over_time(results, of, sidecar, over, limit));
        }
    }
    let mut notes = unreached(results, path, scenario);
    notes.extend(remarks(results, results.for_scenario(of), |_| None));
    Section {
        title: format!("Path {path}, each sidecar limited to {}", cores(scenario)),
        charts: found,
        remarks: notes,
        ..Section::default()
    }
}

/// Share of its limit that a sidecar uses when the limit is what holds it down.
const REACHED: f64 = 0.85;

/// Names peers whose sidecar stayed well below its limit. Their figures do not show the effect of the
/// limit.
fn unreached(results: &Results, path: &str, scenario: &Scenario) -> Vec<String> {
    let Ok(limit) = cpu(scenario).parse::<f64>() else {
        return Vec::new();
    };
    let peers = results.peers(&scenario.name);
    let one = |peer: &str| {
        let row = Row::new(results, &scenario.name, peer);
        let used = row.spread("sidecar_cpu_percent")?.median;
        (used < REACHED * limit * 100.0).then(|| {
            format!(
                "{}: the sidecar of {} used {}% of a core, its limit is {}%: something else held the transactions down",
                name(results, peer),
                shown(path),
                number::fixed(used, 0),
                number::tick(limit * 100.0)
            )
        })
    };
    peers.into_iter().filter_map(one).collect()
}

fn cores(scenario: &Scenario) -> String {
    match cpu(scenario).parse::<f64>() {
        Ok(1.0) => "1 core".to_owned(),
        Ok(cores) if cores > 1.0 => format!("{} cores", number::tick(cores)),
        _ => format!("{} core", cpu(scenario)),
    }
}

/// The result in words, for the path through the gateway.
fn lead(results: &Results) -> String {
    let Some(first) = results.scenarios.first() else {
        return String::new();
    };
    let mut sentences = Vec::new();
    let headline = path(first);
    for scenario in results.scenarios.iter().filter(|s| path(s) == headline) {
        let row = |peer| Row::new(results, &scenario.name, peer);
        let Some(rate) = row(SUBJECT).spread(figure::RPS) else {
            continue;
        };
        let beside = |figure, with_ratio| beside(results, &scenario.name, figure, with_ratio);
        sentences.push(format!(
            "On the path {headline} with {} for each sidecar, Tulle carried {} transactions/s{}",
            cores(scenario),
            number::median(&rate),
            beside(figure::RPS, true)
        ));
        if let Some(p99) = row(SUBJECT).spread(figure::P99_MS) {
            let (p99, beside) = (number::median(&p99), beside(figure::P99_MS, false));
            sentences.push(format!("99% came within {p99} ms{beside}"));
        }
    }
    if sentences.is_empty() {
        return format!("No run of Tulle on the path {headline} was valid: there is no result.");
    }
    if sentences.iter().any(|text| text.contains(RATIO)) {
        sentences.push(IN_BRACKETS.to_owned());
    }
    sentences.join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn captions_speak_of_the_rows_and_columns_that_their_tables_have() {
        let mut results = fixture::seeds();
        let captions = |results: &Results| -> Vec<String> {
            let section = page(results).sections.swap_remove(0);
            section.tables.into_iter().map(|t| t.caption).collect()
        };
        let baseline = "A baseline has no sidecars to limit: it is measured once in each repeat.";
        let busy =
            "Path gateway-ratings: who was busy, and whether it counts. CPU in percent of one core";
        assert_eq!(
            captions(&results),
            [
                format!("Path gateway-ratings: medians (least–largest). {baseline}"),
                format!("{busy}; idle in percent of the machine.")
            ]
        );
        assert!(lead(&results).contains(IN_BRACKETS));

        results
            .samples
            .retain(|s| s.repeat == 0 && s.peer == SUBJECT);
        for sample in &mut results.samples {
            sample.figures.remove("machine_idle");
        }
        results.summarise();
        assert_eq!(
            captions(&results),
            [
                "Path gateway-ratings: each figure is of one run.".to_owned(),
                format!("{busy}.")
            ]
        );
        assert!(!lead(&results).contains(IN_BRACKETS));
    }
}
