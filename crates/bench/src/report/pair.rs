//! The report of `pair`.

use super::cells::{IN_BRACKETS, RATIO, Row, beside, name, remarks};
use super::charts::{self, Figure};
use super::number;
use super::page::{Cell, Page, Section, Table};
use crate::results::stats::{NO_MESH, SUBJECT};
use crate::results::{Results, Scenario, figure};

const CPU: Figure = Figure {
    name: "cpu",
    title: "CPU per request",
    subtitle: "both sidecars, µs; lower is better",
    unit: "µs",
    figures: &[(figure::CPU_US_PER_REQUEST, "")],
};
const RATE: Figure = Figure {
    name: "rps",
    title: "Throughput",
    subtitle: "answered requests in a second; higher is better",
    unit: "/s",
    figures: &[(figure::RPS, "")],
};
const BULK_CPU: Figure = Figure {
    name: "bulk-cpu",
    title: "CPU per GiB",
    subtitle: "all sidecars, ms; lower is better",
    unit: "ms",
    figures: &[(figure::CPU_MS_PER_GIB, "")],
};
const BULK_RATE: Figure = Figure {
    name: "bulk",
    title: "Throughput",
    subtitle: "MiB in a second; higher is better",
    unit: "MiB/s",
    figures: &[(figure::MIB_PER_S, "")],
};
const MEMORY: Figure = Figure {
    name: "memory",
    title: "Memory of a sidecar",
    subtitle: "the larger of the two, resident MiB; lower is better",
    unit: "MiB",
    figures: &[
        (figure::RSS_IDLE_MIB, "idle"),
        (figure::RSS_PEAK_MIB, "peak"),
    ],
};
const START: Figure = Figure {
    name: "start",
    title: "From start to the first answer",
    subtitle: "both sidecars, ms; lower is better",
    unit: "ms",
    figures: &[(figure::START_MS, "")],
};
const CONNECTION: Figure = Figure {
    name: "connection",
    title: "Memory of an idle connection",
    subtitle: "in the client’s sidecar, KiB; lower is better",
    unit: "KiB",
    figures: &[(figure::IDLE_CONNECTION_KIB, "")],
};

/// Peers that the others are divided by, in the predecessor's order.
const DIVISORS: [&str; 2] = ["envoy", "nginx"];

/// Returns the whole page.
pub(super) fn page(results: &Results) -> Page {
    let sections = results.scenarios.iter().enumerate();
    let sections = sections.filter_map(|(i, scenario)| section(results, scenario, i == 0));
    Page {
        title: "The data plane alone",
        what: "client → sidecar ══ mutual TLS ══ sidecar → server: what a pair of sidecars costs each request, and how much memory it takes.",
        lead: lead(results),
        sections: sections.collect(),
    }
}

fn section(results: &Results, scenario: &Scenario, headline: bool) -> Option<Section> {
    let peers = results.peers(&scenario.name);
    if peers.is_empty() {
        return None;
    }
    // A fixed rate is the same for everybody, unless one does not reach it: the table says so.
    let fixed = scenario.name.starts_with("rate-");
    let mut shown = vec![&CPU, &BULK_CPU, &BULK_RATE];
    if !fixed {
        shown.push(&RATE);
    }
    let mut found: Vec<_> = shown
        .into_iter()
        .filter_map(|what| charts::bars(results, &scenario.name, what))
        .collect();
    found.extend(charts::latencies(results, &scenario.name));
    let has = |name: &str| {
        let mut samples = results.for_scenario(&scenario.name);
        samples.any(|s| s.figures.contains_key(name))
    };
    if headline || has(figure::RSS_IDLE_MIB) || has(figure::RSS_PEAK_MIB) {
        found.extend(charts::bars(results, &scenario.name, &MEMORY));
    }
    for what in [&START, &CONNECTION] {
        // The headline's table has what the scenario `idle` measures; the chart is there.
        if has(what.figures[0].0) {
            found.extend(charts::bars(results, &scenario.name, what));
        }
    }
    Some(Section {
        title: number::capital(&scenario.title),
        charts: found,
        tables: tables(results, &scenario.name, &peers),
        remarks: remarks(results, results.for_scenario(&scenario.name), |_| None),
        ..Section::default()
    })
}

/// Tables of cost and latency of a request, then of a sidecar's usage and whether its samples are valid.
fn tables(results: &Results, scenario: &str, peers: &[&str]) -> Vec<Table> {
    let divisors = DIVISORS.iter().filter(|peer| peers.contains(peer));
    let divisors: Vec<&str> = divisors.copied().collect();
    let bulk = [
        ("CPU ms/GiB", figure::CPU_MS_PER_GIB),
        ("MiB/s", figure::MIB_PER_S),
    ];
    let mut head = vec!["peer".to_owned(), "CPU µs/request, pair".to_owned()];
    let divided = divisors.iter();
    head.extend(divided.map(|peer| format!("÷ {}", name(results, peer))));
    head.extend(bulk.map(|(title, _)| title.to_owned()));
    let speed = [
        ("requests/s", figure::RPS),
        ("p50 ms", figure::P50_MS),
        ("p90 ms", figure::P90_MS),
        ("p99 ms", figure::P99_MS),
        ("p99.9 ms", figure::P999_MS),
        ("last client back ms", figure::LAST_BACK_MS),
        ("MiB/s beside", figure::BESIDE_MIB_PER_S),
    ];
    head.extend(speed.map(|(title, _)| title.to_owned()));
    let cost = |peer: &&str| {
        let row = Row::new(results, scenario, peer);
        let mut cells = vec![row.name(), row.figure(figure::CPU_US_PER_REQUEST)];
        let ratios = divisors.iter();
        cells.extend(ratios.map(|other| row.ratio(other, figure::CPU_US_PER_REQUEST)));
        cells.extend(bulk.map(|(_, figure)| row.figure(figure)));
        cells.extend(speed.map(|(_, figure)| row.figure(figure)));
        cells
    };
    let mut first = Table {
        head,
        rows: peers.iter().map(cost).collect(),
        ..Table::default()
    }
    .without_empty_columns(1);
    let runs = first.runs_in_words().map(number::capital);
    let ratios = first
        .has("÷")
        .then(|| "Ratios are taken run by run".to_owned());
    first.caption = sentences(runs.into_iter().chain(ratios));

    let sizes = [
        ("MiB idle", figure::RSS_IDLE_MIB),
        ("MiB peak", figure::RSS_PEAK_MIB),
        ("start ms", figure::START_MS),
        ("KiB/idle connection", figure::IDLE_CONNECTION_KIB),
    ];
    let mut head = vec!["peer".to_owned()];
    head.extend(sizes.map(|(title, _)| title.to_owned()));
    let last = [
        "busy: sidecars / load",
        "errors",
        "identities proven",
        "runs",
    ];
    head.extend(last.map(str::to_owned));
    let size = |peer: &&str| {
        let row = Row::new(results, scenario, peer);
        let mut cells = vec![row.name()];
        cells.extend(sizes.map(|(_, figure)| row.figure(figure)));
        cells.extend([busy(&row), row.errors(), row.identities(), row.runs()]);
        cells
    };
    let mut second = Table {
        head,
        rows: peers.iter().map(size).collect(),
        ..Table::default()
    }
    .without_empty_columns(1);
    let units = [
        ("MiB", "MiB are of the larger sidecar"),
        ("busy", "busy is in percent of one core"),
    ];
    let units = units.into_iter().filter(|(title, _)| second.has(title));
    let units: Vec<&str> = units.map(|(_, unit)| unit).collect();
    let units = Some(number::capital(&units.join("; "))).filter(|text| !text.is_empty());
    second.caption = sentences(units.into_iter());
    let says = |table: &Table| table.head.len() > 1;
    [first, second].into_iter().filter(says).collect()
}

fn sentences(texts: impl Iterator<Item = String>) -> String {
    texts.map(|text| text + ".").collect::<Vec<_>>().join(" ")
}

fn busy(row: &Row<'_>) -> Cell {
    let share = |figure: &str| {
        let spread = row.spread(figure);
        spread.map_or("–".to_owned(), |s| format!("{:.0}%", s.median * 100.0))
    };
    let both = [share(figure::SIDECAR_CORES), share(figure::LOAD_CORES)];
    if both.iter().all(|text| text == "–") {
        return Cell::none();
    }
    Cell::figure(both.join(" / "))
}

/// The result in words: cost, ratios, throughput, latency, memory.
fn lead(results: &Results) -> String {
    let Some(headline) = results.scenarios.first() else {
        return String::new();
    };
    let row = |peer| Row::new(results, &headline.name, peer);
    let subject = row(SUBJECT);
    let Some(cpu) = subject.spread(figure::CPU_US_PER_REQUEST) else {
        let valid = subject
            .summary
            .is_some_and(|s| s.peers.contains_key(SUBJECT));
        return match valid {
            true => format!(
                "{}: no CPU of a request was measured; the tables have what was.",
                number::capital(&headline.title)
            ),
            false => "No run of Tulle was valid: there is no result.".to_owned(),
        };
    };
    let beside = |figure, with_ratio| beside(results, &headline.name, figure, with_ratio);
    let mut text = format!(
        "{}: Tulle’s two sidecars took {} µs of CPU for each request{}",
        number::capital(&headline.title),
        number::median(&cpu),
        beside(figure::CPU_US_PER_REQUEST, true)
    );
    if let Some(rate) = subject.spread(figure::RPS) {
        let beside = beside(figure::RPS, true);
        text += &format!(" They carried {} requests/s{beside}", number::median(&rate));
    }
    if let Some(p99) = subject.spread(figure::P99_MS) {
        let beside = beside(figure::P99_MS, false);
        let p99 = number::median(&p99);
        text += &format!(" 99% of the answers came within {p99} ms{beside}");
    }
    let memory = [
        (figure::RSS_IDLE_MIB, "idle"),
        (figure::RSS_PEAK_MIB, "at most"),
    ];
    let memory = memory.iter().filter_map(|(figure, when)| {
        Some(format!(
            "{} MiB {when}",
            number::median(&subject.spread(figure)?)
        ))
    });
    let memory: Vec<String> = memory.collect();
    if !memory.is_empty() {
        text += &format!(" A sidecar of Tulle took {}.", memory.join(", "));
    }
    if text.contains(RATIO) {
        text = format!("{text} {IN_BRACKETS}");
    }
    text
}

/// The README's table: medians alone, and what they are of.
pub(super) fn readme(results: &Results) -> String {
    let headline = results.scenarios.first().map_or("", |s| s.name.as_str());
    let mut head: Vec<String> = [
        "",
        "CPU per request, both sidecars",
        "÷ Envoy",
        "requests/s",
        "p99",
        "memory of a sidecar: idle",
        "peak",
    ]
    .map(str::to_owned)
    .to_vec();
    let peers = results.peers(headline);
    let with_envoy = peers.contains(&"envoy");
    let row = |peer: &&str| {
        let row = Row::new(results, headline, peer);
        let shown = |figure: &str, unit: &str| {
            let space = if unit.is_empty() { "" } else { " " };
            let spread = row.spread(figure);
            spread.map_or_else(Cell::none, |s| {
                Cell::figure(format!("{}{space}{unit}", number::median(&s)))
            })
        };
        let cpu = figure::CPU_US_PER_REQUEST;
        let ratio = match crate::results::stats::ratio(
            results.for_scenario(headline),
            peer,
            "envoy",
            cpu,
        ) {
            Some(_) if *peer == "envoy" => "1".to_owned(),
            Some(ratio) => number::fixed(ratio.median, 2),
            None => "–".to_owned(),
        };
        vec![
            row.name(),
            shown(figure::CPU_US_PER_REQUEST, "µs"),
            Cell::figure(ratio),
            shown(figure::RPS, ""),
            shown(figure::P99_MS, "ms"),
            shown(figure::RSS_IDLE_MIB, "MiB"),
            shown(figure::RSS_PEAK_MIB, "MiB"),
        ]
    };
    let mut rows: Vec<Vec<Cell>> = peers.iter().map(row).collect();
    if !with_envoy {
        head.remove(2);
        for row in &mut rows {
            row.remove(2);
        }
    }
    let table = Table {
        head,
        rows,
        ..Table::default()
    };
    let runs = results
        .for_scenario(headline)
        .map(|s| s.repeat + 1)
        .max()
        .unwrap_or(0);
    let versions = peers.iter().filter(|p| ![SUBJECT, NO_MESH].contains(*p));
    let versions = versions.filter_map(|peer| {
        let version = results.versions.get(*peer)?;
        Some(format!(
            "{} {}",
            name(results, peer),
            super::short_version(version)
        ))
    });
    let mut of = versions.collect::<Vec<_>>().join(", ");
    if !of.is_empty() {
        of += "; ";
    }
    let machine = results.environment.machine();
    let figures = match runs {
        1 => "One run of each".to_owned(),
        _ => format!("Medians of {runs} interleaved runs"),
    };
    let ratios = match with_envoy {
        true => ", ratios taken run by run",
        false => "",
    };
    format!(
        "{}\n{figures}{ratios}; {of}{machine}; {}.\n",
        super::markdown::table(&table),
        results.date
    )
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    fn captions(results: &Results) -> Vec<Vec<String>> {
        let sections = page(results).sections.into_iter();
        let captions = |section: Section| -> Vec<String> {
            section.tables.into_iter().map(|t| t.caption).collect()
        };
        sections.map(captions).collect()
    }

    #[test]
    fn a_caption_speaks_of_the_columns_that_its_table_has() {
        let mut results = fixture::pair();
        let all = captions(&results);
        let [saturated, rate, idle] = &all[..] else {
            panic!("three scenarios: {all:?}");
        };
        let medians = "Medians (least–largest). Ratios are taken run by run.";
        let units = "MiB are of the larger sidecar; busy is in percent of one core.";
        assert_eq!(saturated[..], [medians, units]);
        assert_eq!(rate[..], [medians, ""]);
        assert_eq!(idle[..], ["MiB are of the larger sidecar."]);

        let others = ["tulle", "haproxy", "none"];
        results.samples.retain(|s| others.contains(&&*s.peer));
        results.summarise();
        assert_eq!(captions(&results)[0][0], "Medians (least–largest).");
        assert!(readme(&results).contains("\nMedians of 5 interleaved runs; "));
    }

    #[test]
    fn one_run_has_no_medians() {
        let mut results = fixture::pair();
        results.samples.retain(|s| s.repeat == 0);
        results.summarise();
        let first = &captions(&results)[0][0];
        assert_eq!(
            first,
            "Each figure is of one run. Ratios are taken run by run."
        );
        let summary = super::super::markdown::summary(&results, &page(&results));
        assert!(!summary.contains("Medians"), "{summary}");
        assert!(readme(&results).contains("\nOne run of each, ratios taken run by run; "));
    }

    #[test]
    fn a_valid_run_without_requests_is_not_called_invalid() {
        let mut results = fixture::pair();
        results.scenarios.retain(|s| s.name == "idle");
        results.samples.retain(|s| s.scenario == "idle");
        results.summarise();
        let lead = lead(&results);
        assert!(lead.contains("no CPU of a request was measured"), "{lead}");
    }

    #[test]
    fn brackets_are_explained_where_there_are_some() {
        let mut results = fixture::pair();
        assert!(lead(&results).contains(IN_BRACKETS));
        results.samples.retain(|s| s.peer == SUBJECT);
        results.summarise();
        assert!(!lead(&results).contains(IN_BRACKETS));
    }
}
