//! Whole reports of every study: what they must have, not how they look. To look at them, set
//! `TULLE_BENCH_REPORTS` to a directory.

use super::*;
use std::collections::BTreeSet;

fn rendered(results: &Results) -> (tempfile::TempDir, PathBuf) {
    let temporary = tempfile::tempdir().unwrap();
    let directory = match std::env::var_os("TULLE_BENCH_REPORTS") {
        Some(directory) => Path::new(&directory).join(&results.study),
        None => temporary.path().to_owned(),
    };
    fs::create_dir_all(&directory).unwrap();
    render(&directory, results).unwrap();
    (temporary, directory)
}

fn read(directory: &Path, name: &str) -> String {
    fs::read_to_string(directory.join(name)).unwrap()
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Parses it, and says which colours of peers are used for lines and bars.
fn peers_of(svg: &str) -> BTreeSet<String> {
    let document = roxmltree::Document::parse(svg).unwrap_or_else(|e| panic!("{e}: {svg}"));
    let shapes = document
        .descendants()
        .filter(|node| ["polyline", "rect"].contains(&node.tag_name().name()));
    shapes
        .filter_map(|node| node.attribute("class"))
        .flat_map(|class| class.split(' '))
        .filter_map(|class| class.strip_prefix("p-").map(str::to_owned))
        .collect()
}

fn set_of(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// But for the last digit of numbers, which JSON does not keep.
fn same(a: &[Sample], b: &[Sample]) -> bool {
    let key = |s: &Sample| {
        (
            s.scenario.clone(),
            s.peer.clone(),
            s.repeat,
            s.histogram.clone(),
        )
    };
    a.iter().map(key).eq(b.iter().map(key))
}

/// Everything that is true of every report.
fn check(results: &Results) -> (tempfile::TempDir, PathBuf) {
    let (temporary, directory) = rendered(results);
    for name in names(&directory.join("charts")) {
        let svg = read(&directory.join("charts"), &name);
        assert!(!peers_of(&svg).is_empty(), "{name} is empty");
        let document = roxmltree::Document::parse(&svg).unwrap();
        let text = |tag: &str| {
            let mut nodes = document
                .descendants()
                .filter(|n| n.has_tag_name(("http://www.w3.org/2000/svg", tag)));
            nodes
                .next()
                .and_then(|n| n.text())
                .unwrap_or_default()
                .to_owned()
        };
        assert!(
            !text("title").is_empty() && !text("desc").is_empty(),
            "{name}"
        );
        assert!(svg.contains(&format!("tulle bench {}, 2026-11-21", results.study)));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
        // Inside the picture.
        for node in document.descendants() {
            for attribute in ["x", "x1", "x2", "cx"] {
                if let Some(value) = node.attribute(attribute) {
                    let value: f64 = value.parse().unwrap();
                    assert!((0.0..=svg::WIDTH).contains(&value), "{name}: {value}");
                }
            }
        }
    }
    let html = read(&directory, "report.html");
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..roxmltree::ParsingOptions::default()
    };
    let page = roxmltree::Document::parse_with_options(&html, options).unwrap();
    let all = |tag: &str| {
        page.descendants()
            .filter(|n| n.tag_name().name() == tag)
            .count()
    };
    assert_eq!(all("script") + all("link") + all("img"), 0);
    assert_eq!(all("svg"), names(&directory.join("charts")).len());
    for outside in ["http://", "https://", "url(", "@import"] {
        let without_namespace = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!without_namespace.contains(outside), "{outside}");
    }
    let summary = read(&directory, "summary.md");
    for peer in results.samples.iter().map(|s| &s.peer) {
        let name = cells::name(results, peer);
        assert!(html.contains(&name) && summary.contains(&name), "{name}");
    }
    for note in &results.notes {
        assert!(summary.contains(note));
    }
    let csv = read(&directory, "results.csv");
    assert_eq!(csv.lines().count(), results.samples.len() + 1);
    let json: serde_json::Value = serde_json::from_str(&read(&directory, "env.json")).unwrap();
    assert_eq!(json["machine"]["cpus"], 2);
    let again: Results = serde_json::from_str(&read(&directory, "results.json")).unwrap();
    assert!(same(&again.samples, &results.samples));
    let mode = fs::metadata(directory.join("repro.sh"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o111, 0o111);
    assert!(read(&directory, "repro.sh").contains(&format!(
        "cd /home/me/tulle || exit\nexec target/release/tulle bench {} --quick",
        results.study
    )));
    (temporary, directory)
}

#[test]
fn pair_shows_every_peer_and_averages_no_invalid_run() {
    let results = fixture::pair();
    let (_temporary, directory) = check(&results);
    let summary = read(&directory, "summary.md");
    let row = |name: &str| {
        let mut rows = summary
            .lines()
            .filter(|l| l.starts_with(&format!("| {name} ")));
        rows.next().unwrap().to_owned()
    };
    let cells = |name: &str| {
        let row = row(name);
        let cells = row
            .trim_matches('|')
            .split('|')
            .map(|c| c.trim().to_owned());
        cells.collect::<Vec<_>>()
    };
    let cpu: f64 = cells("**Tulle**")[1]
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!((13.0..17.0).contains(&cpu), "{cpu}");
    assert_eq!(cells("Envoy")[2], "1");
    let second = summary.split("MiB are of the larger").nth(1).unwrap();
    let runs = |name: &str| {
        let mut rows = second
            .lines()
            .filter(|l| l.starts_with(&format!("| {name} ")));
        let row = rows.next().unwrap().trim_matches([' ', '|']);
        row.rsplit('|').next().unwrap().trim().to_owned()
    };
    assert_eq!(runs("Envoy"), "4 of 5");
    assert_eq!(runs("HAProxy"), "0 of 5");
    assert_eq!(runs("nginx"), "5");
    let proven = |name: &str| second.lines().any(|l| l.contains(name));
    assert!(proven("SPIFFE ids, 5 of 5") && proven("certificates, 5 of 5"));
    assert_eq!(cells("HAProxy")[1], "–");
    assert!(!summary.contains("999,999"));
    assert_eq!(summary.matches("17 requests were lost").count(), 6);
    let html = read(&directory, "report.html");
    assert_eq!(html.matches("17 requests were lost").count(), 6);
    assert!(html.contains("no valid run"));
    assert!(summary.contains("load generator saturated") && summary.contains("(so in 5 runs)"));

    for text in [&html, &summary] {
        assert!(text.contains("1 of 9 figures are not within the budgets"));
        assert!(text.contains("pipy was not measured"));
    }

    let chart = |name: &str| peers_of(&read(&directory.join("charts"), name));
    let sidecars = ["envoy", "envoy-wasmless-h2", "nginx", "tulle"];
    assert_eq!(chart("saturated-200B-cpu.svg"), set_of(&sidecars));
    let mut all = set_of(&sidecars);
    all.insert("none".into());
    assert_eq!(chart("saturated-200B-latency.svg"), all);
    assert_eq!(chart("saturated-200B-rps.svg"), all);
    let every = ["envoy", "envoy-wasmless-h2", "haproxy", "nginx", "tulle"];
    assert_eq!(chart("idle-start.svg"), set_of(&every));
    let histograms = names(&directory.join("histograms"));
    assert!(histograms.contains("saturated-200B-nginx.hgrm"));
    assert!(histograms.contains("saturated-200B-nginx.hlog"));
    assert!(!histograms.contains("saturated-200B-haproxy.hlog"));
}

#[test]
fn seeds_has_the_published_table_and_charts() {
    let results = fixture::seeds();
    let (_temporary, directory) = check(&results);
    let summary = read(&directory, "summary.md");
    let head = summary.lines().find(|l| l.starts_with("| mesh")).unwrap();
    let columns: Vec<&str> = head.split('|').map(str::trim).collect();
    let published = [
        "mesh",
        "sidecar max CPU",
        "TPS",
        "P90 ms",
        "P95 ms",
        "P99 ms",
        "sidecar CPU %",
        "sidecar MiB",
    ];
    assert_eq!(columns[1..9], published);
    // Once, although its samples stand in both limits' scenarios.
    let table = summary
        .split("## ")
        .find(|s| s.starts_with("Path gateway-ratings\n"))
        .unwrap();
    let published = table.split("who was busy").next().unwrap();
    assert_eq!(
        published
            .lines()
            .filter(|l| l.starts_with("| no mesh"))
            .count(),
        1
    );
    assert_eq!(
        published
            .lines()
            .filter(|l| l.starts_with("| Envoy"))
            .count(),
        2
    );
    // Each sidecar of the fixture is at its limit.
    assert!(!summary.contains("something else held"));
    let mut idle = results.clone();
    for sample in idle.samples.iter_mut().filter(|s| s.peer == "envoy") {
        sample.figures.insert("sidecar_cpu_percent".into(), 20.0);
    }
    idle.summarise();
    let text = markdown::summary(&idle, &page_of(&idle));
    assert!(text.contains("Envoy: the sidecar of gateway used 20% of a core, its limit is 50%"));
    assert!(!text.contains("Tulle: the sidecar of gateway used"));
    let charts = names(&directory.join("charts"));
    for share in ["0.5", "0.25"] {
        for chart in [
            "tps",
            "latency",
            "gateway-cpu",
            "gateway-memory",
            "ratings-cpu",
            "ratings-memory",
        ] {
            let name = format!("gateway-ratings-{share}-{chart}.svg");
            assert!(charts.contains(&name), "{name} {charts:?}");
        }
    }
    let latency = read(&directory.join("charts"), "ratings-0.25-latency.svg");
    assert_eq!(peers_of(&latency), set_of(&["envoy", "none", "tulle"]));
    let series = names(&directory.join("series"));
    assert!(
        series.contains("gateway-ratings-0.5-envoy-run3-ratings.csv"),
        "{series:?}"
    );
}

#[test]
fn sweep_has_the_eight_charts_and_says_it_is_incomplete() {
    let results = fixture::sweep();
    let (_temporary, directory) = check(&results);
    let charts = names(&directory.join("charts"));
    for chart in [
        "p50",
        "p90",
        "p99",
        "p999",
        "client-cpu",
        "server-cpu",
        "client-memory",
        "server-memory",
    ] {
        for rate in ["1000", "max"] {
            let name = format!("both-qps{rate}-{chart}.svg");
            assert!(charts.contains(&name), "{name} {charts:?}");
            let peers = peers_of(&read(&directory.join("charts"), &name));
            assert!(peers.contains("tulle") && peers.contains("envoy"));
            assert_eq!(peers.contains("none"), chart.starts_with('p'), "{name}");
        }
    }
    let incomplete = "incomplete: interrupted after 180 of 200 measurements";
    for name in ["summary.md", "env.json", "results.json", "repro.sh"] {
        assert!(read(&directory, name).contains(incomplete), "{name}");
    }
    assert!(read(&directory, "report.html").contains(&incomplete[1..]));
}

#[test]
fn a_study_without_any_sample_still_has_a_report() {
    for mut results in [fixture::pair(), fixture::seeds(), fixture::sweep()] {
        results.samples.clear();
        results.summarise();
        let temporary = tempfile::tempdir().unwrap();
        render(temporary.path(), &results).unwrap();
        assert!(read(temporary.path(), "report.html").contains("there is no result"));
    }
}

#[test]
fn documents_get_tables_and_pictures() {
    let results = fixture::pair();
    let temporary = tempfile::tempdir().unwrap();
    let document = temporary.path().join("benchmarks.md");
    let marks = "# B\n<!-- bench:pair:begin -->\n<!-- bench:pair:end -->\n<!-- figure:begin -->\nold\n<!-- figure:end -->\nend\n";
    fs::write(&document, marks).unwrap();
    let page = page_of(&results);
    let pictures = temporary.path().join("benchmarks");
    fs::create_dir(&pictures).unwrap();
    for stale in ["pair-stale.svg", "sweep-other.svg"] {
        fs::write(pictures.join(stale), "").unwrap();
    }
    docs::put_excerpt(&document, &results, &page).unwrap();
    docs::put_figure(&document, &results).unwrap();
    let text = read(temporary.path(), "benchmarks.md");
    assert!(text.contains("AMD EPYC, 2 CPUs, 8 GiB"), "{text}");
    assert!(!text.contains("old") && text.ends_with("<!-- figure:end -->\nend\n"));
    let pictured: Vec<&str> = text.split("src=\"benchmarks/").skip(1).collect();
    let pictured: BTreeSet<String> = pictured
        .iter()
        .map(|rest| rest[..rest.find('"').unwrap()].to_owned())
        .collect();
    let mut expected = names(&pictures);
    assert!(!expected.contains("pair-stale.svg"));
    assert!(expected.remove("sweep-other.svg"));
    assert_eq!(pictured, expected);
    let figure = text.split("<!-- figure:begin -->").nth(1).unwrap();
    assert!(figure.contains("| **Tulle** "), "{figure}");
    assert!(figure.contains("Envoy 1.40.0, HAProxy 2.6.12"), "{figure}");
    // Twice is the same as once.
    docs::put_excerpt(&document, &results, &page).unwrap();
    docs::put_figure(&document, &results).unwrap();
    assert_eq!(read(temporary.path(), "benchmarks.md"), text);

    let mut spring = fixture::seeds();
    assert_eq!(mark(&spring), "seeds");
    for scenario in &mut spring.scenarios {
        scenario.labels.insert("app".into(), "spring".into());
    }
    assert_eq!(mark(&spring), "spring");
    let mut cluster = fixture::sweep();
    cluster.options["kubernetes"] = true.into();
    assert_eq!(mark(&cluster), "cluster-sweep");
    for scenario in &mut cluster.scenarios {
        scenario.labels.insert("protocol".into(), "grpc".into());
    }
    assert_eq!(mark(&cluster), "cluster-grpc");

    let wrong = docs::put_figure(&document, &fixture::sweep()).unwrap_err();
    assert_eq!(wrong.kind, crate::FailureKind::Usage);
    let wrong = docs::put_excerpt(&document, &fixture::sweep(), &page).unwrap_err();
    assert!(
        wrong.to_string().contains("<!-- bench:sweep:begin -->"),
        "{wrong}"
    );
}

#[test]
fn a_report_made_again_leaves_no_stale_files() {
    let temporary = tempfile::tempdir().unwrap();
    let charts = temporary.path().join("charts");
    fs::create_dir(&charts).unwrap();
    for name in ["stale.svg", "mine.txt"] {
        fs::write(charts.join(name), "").unwrap();
    }
    render(temporary.path(), &fixture::pair()).unwrap();
    let names = names(&charts);
    assert!(!names.contains("stale.svg") && names.contains("mine.txt"));
}

#[test]
fn what_a_killed_study_had_measured_is_found() {
    let whole = fixture::pair();
    let temporary = tempfile::tempdir().unwrap();
    let mut results = whole.clone();
    results.samples.truncate(10);
    results.done = 10;
    write(temporary.path(), RESULTS, &to_json(&results).unwrap()).unwrap();
    let lines: Vec<String> = whole.samples[..12]
        .iter()
        .map(|s| serde_json::to_string(s).unwrap())
        .collect();
    let half = serde_json::to_string(&whole.samples[12]).unwrap();
    let text = format!("{}\n{}", lines.join("\n"), &half[..half.len() / 2]);
    write(temporary.path(), SAMPLES, &text).unwrap();
    let options = command::Options {
        directory: temporary.path().to_owned(),
        docs: None,
        readme: None,
    };
    command::run(&options).unwrap();
    let found: Results = serde_json::from_str(&read(temporary.path(), RESULTS)).unwrap();
    assert!(same(&found.samples, &whole.samples[..12]));
    assert!(read(temporary.path(), "summary.md").contains("incomplete: interrupted after"));
}

#[test]
fn a_directory_without_results_is_an_error_of_the_input() {
    let temporary = tempfile::tempdir().unwrap();
    let options = command::Options {
        directory: temporary.path().to_owned(),
        docs: None,
        readme: None,
    };
    let failure = command::run(&options).unwrap_err();
    assert_eq!(failure.kind, crate::FailureKind::Input);
    assert!(failure.to_string().contains("results.json"), "{failure}");
    write(temporary.path(), RESULTS, "{\"schema\": 99}").unwrap();
    let failure = command::run(&options).unwrap_err();
    assert!(failure.to_string().contains("it has 99"), "{failure}");
}

#[test]
fn versions_in_short() {
    for (long, short) in [
        ("nginx version: nginx/1.22.1", "1.22.1"),
        ("version: 2d9a3c/1.40.0/Clean", "1.40.0"),
        ("HAProxy version 2.6.12-1+deb12u2 2025/04/16", "2.6.12"),
        ("fortio v1.68.2", "1.68.2"),
        ("tulle-proxy 0.1.0", "0.1.0"),
        ("–", "–"),
    ] {
        assert_eq!(short_version(long), short);
    }
}

#[test]
fn a_recorder_keeps_what_is_done_whatever_ends_the_study() {
    let temporary = tempfile::tempdir().unwrap();
    let whole = fixture::pair();
    let study = Study {
        name: "pair",
        options: serde_json::Value::Null,
        versions: whole.versions.clone(),
        notes: Vec::new(),
        configurations: BTreeMap::new(),
        scenarios: whole.scenarios.clone(),
    };
    let mut recorder = Recorder::new(study, Some(temporary.path())).unwrap();
    recorder.plan(40, Duration::from_secs(40));
    for sample in &whole.samples[..7] {
        recorder.record(sample.clone()).unwrap();
        recorder.done(Duration::from_secs(1));
    }
    // A kill at this moment would leave these files.
    assert_eq!(read(temporary.path(), SAMPLES).lines().count(), 7);
    let early: Results = serde_json::from_str(&read(temporary.path(), RESULTS)).unwrap();
    assert_eq!(early.samples.len(), 1);
    recorder.note("said once");
    recorder.note("said once");
    let interrupted = Failure::new(crate::FailureKind::Interrupted, "interrupted");
    let failure = recorder.conclude(Err(interrupted)).unwrap_err();
    assert_eq!(failure.kind, crate::FailureKind::Interrupted);
    assert!(
        failure
            .to_string()
            .contains("7 of 40 measurements are done"),
        "{failure}"
    );
    let kept: Results = serde_json::from_str(&read(temporary.path(), RESULTS)).unwrap();
    assert!(same(&kept.samples, &whole.samples[..7]));
    assert_eq!(kept.notes, ["said once"]);
    assert!(!temporary.path().join(SAMPLES).exists());
    assert!(read(temporary.path(), "report.html").contains("ncomplete: interrupted after 7 of 40"));
}
