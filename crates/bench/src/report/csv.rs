//! `results.csv`, a line for every sample with all its figures, and the series of every sidecar.

use crate::results::{Results, Sample};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// `results.csv`.
pub(super) fn samples(results: &Results) -> String {
    let keys = |of: &dyn Fn(&Sample) -> Vec<String>| -> BTreeSet<String> {
        results.samples.iter().flat_map(of).collect()
    };
    let figures = keys(&|s| s.figures.keys().cloned().collect());
    let labels: BTreeSet<&String> = results
        .scenarios
        .iter()
        .flat_map(|s| s.labels.keys())
        .collect();
    let mut text = String::from("study,scenario,peer,run,valid");
    for name in labels.iter().copied().chain(&figures) {
        let _ = write!(text, ",{}", field(name));
    }
    text += ",invalid,remarks\n";
    for sample in &results.samples {
        let _ = write!(
            text,
            "{},{},{},{},{}",
            field(&results.study),
            field(&sample.scenario),
            field(&sample.peer),
            sample.repeat + 1,
            sample.invalid.is_none()
        );
        let scenario = results.scenarios.iter().find(|s| s.name == sample.scenario);
        for label in &labels {
            let value = scenario.and_then(|s| s.labels.get(*label));
            let _ = write!(text, ",{}", field(value.map_or("", String::as_str)));
        }
        for figure in &figures {
            match sample.figure(figure) {
                Some(value) => drop(write!(text, ",{value}")),
                None => text.push(','),
            }
        }
        let invalid = sample.invalid.as_deref().unwrap_or("");
        let remarks = sample.remarks.join("; ");
        let _ = writeln!(text, ",{},{}", field(invalid), field(&remarks));
    }
    text
}

/// File names below `series`, and texts: one for each sidecar of each sample.
pub(super) fn series(results: &Results) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for sample in &results.samples {
        for series in &sample.series {
            let name = format!(
                "{}-{}-run{}-{}",
                sample.scenario,
                sample.peer,
                sample.repeat + 1,
                series.sidecar
            );
            let mut text = String::from("seconds,cpu_cores,rss_mib\n");
            for (i, at) in series.at_s.iter().enumerate() {
                let value = |of: &[f64]| of.get(i).map_or(String::new(), |v| format!("{v:.4}"));
                let (cpu, rss) = (value(&series.cpu_cores), value(&series.rss_mib));
                let _ = writeln!(text, "{at:.3},{cpu},{rss}");
            }
            files.push((format!("{}.csv", super::file_name(&name)), text));
        }
    }
    files
}

/// Quoted where it must be.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
