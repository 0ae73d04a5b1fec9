//! Writes a study's results into one directory while the study runs.
//!
//! Each sample is appended to `samples.jsonl` at once, and `results.json` is written anew every few
//! seconds: nothing done is lost, and a study of thousands of samples does not write them all
//! thousands of times. [`Recorder::finish`] makes everything else from `results.json` alone, so
//! that [`command`] can make it again.

//!
//! Files in the order of a report: `pair`, `seeds`, `sweep` say what each study's report has
//! (`page`), from `cells`, `charts` and `histograms`; charts are `bars` and `lines` on an `axis`,
//! written by `svg` and coloured by `look`; `html`, `markdown` and `csv` are the files, `docs` puts
//! parts of them into documents.

mod axis;
mod bars;
mod cells;
mod charts;
pub mod command;
mod csv;
mod docs;
mod env;
#[cfg(test)]
mod fixture;
mod histograms;
mod html;
mod lines;
mod look;
mod markdown;
mod number;
mod page;
mod pair;
mod progress;
mod repro;
mod seeds;
mod svg;
mod sweep;
#[cfg(test)]
mod tests;

use crate::environment::Environment;
use crate::failure::{Failure, OrFail, Result};
use crate::results::stats::Summary;
use crate::results::{Results, SCHEMA, Sample, Scenario};
use crate::verdict::BudgetVerdict;
use progress::Progress;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The source of all other files.
const RESULTS: &str = "results.json";
/// Samples in the order they were measured, one a line; gone when `results.json` has them all.
const SAMPLES: &str = "samples.jsonl";
/// How old `results.json` may get while samples come in.
const REWRITE: Duration = Duration::from_secs(10);

/// The description of a study before anything is measured.
pub struct Study {
    /// `pair`, `seeds` or `sweep`.
    pub name: &'static str,
    /// The options that it was started with.
    pub options: serde_json::Value,
    /// The versions of the programs that take part.
    pub versions: BTreeMap<String, String>,
    /// Notes that a fair reader needs, such as missing abilities of a peer.
    pub notes: Vec<String>,
    /// Everything that is configured, by file name.
    pub configurations: BTreeMap<String, String>,
    /// The scenarios to measure; the headline first.
    pub scenarios: Vec<Scenario>,
}

/// Keeps samples and shows progress.
pub struct Recorder {
    directory: PathBuf,
    results: Results,
    progress: Progress,
    written: Option<Instant>,
}

impl Recorder {
    /// Results go to `out`, or to a new directory below `bench-out`.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new(study: Study, out: Option<&Path>) -> Result<Self> {
        let (date, stamp) = env::now();
        let directory = out.map_or_else(
            || Path::new("bench-out").join(format!("{}-{stamp}", study.name)),
            Path::to_owned,
        );
        fs::create_dir_all(&directory)
            .or_fail(|| format!("cannot make {}", directory.display()))?;
        // Remove the samples of an earlier study in the same directory.
        let _ = fs::remove_file(directory.join(SAMPLES));
        let results = Results {
            schema: SCHEMA,
            study: study.name.to_owned(),
            date,
            environment: Environment::read(),
            command: repro::command(),
            directory: repro::directory(),
            planned: 0,
            done: 0,
            options: study.options,
            versions: study.versions,
            notes: study.notes,
            configurations: study.configurations,
            scenarios: study.scenarios,
            verdicts: Vec::new(),
            headline: Summary::default(),
            summaries: BTreeMap::new(),
            samples: Vec::new(),
        };
        Ok(Self {
            directory,
            results,
            progress: Progress::new(),
            written: None,
        })
    }

    /// Where everything goes.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// How many measurements there will be, and how long they will take.
    pub fn plan(&mut self, measurements: usize, time: Duration) {
        self.results.planned += measurements;
        self.progress.expect(time);
    }

    /// Shows the current measurement.
    pub fn begin(&mut self, what: &str) {
        self.progress.begin(what);
    }

    /// A measurement is done that was expected to take this long.
    pub fn done(&mut self, estimate: Duration) {
        self.results.done += 1;
        self.progress.done(estimate);
    }

    /// Something a fair reader must know that showed only while measuring. Once is enough.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.results.notes.contains(&text) {
            self.results.notes.push(text);
        }
    }

    /// A configuration that is known only when its program starts.
    pub fn configuration(&mut self, file: impl Into<String>, text: impl Into<String>) {
        self.results.configurations.insert(file.into(), text.into());
    }

    /// Keeps a sample, on disk too: nothing done is lost, whatever comes next.
    ///
    /// # Errors
    /// The results cannot be written.
    pub fn record(&mut self, sample: Sample) -> Result<()> {
        self.progress.sample(&sample, &self.results);
        let path = self.directory.join(SAMPLES);
        let mut line =
            serde_json::to_string(&sample).or_fail(|| "cannot encode a sample".to_owned())?;
        line.push('\n');
        fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .or_fail(|| format!("cannot write {}", path.display()))?;
        self.results.samples.push(sample);
        if self.written.is_none_or(|at| at.elapsed() >= REWRITE) {
            self.results.summarise();
            write(&self.directory, RESULTS, &to_json(&self.results)?)?;
            self.written = Some(Instant::now());
        }
        Ok(())
    }

    /// Returns the results so far, with their summaries.
    pub fn results(&mut self) -> &Results {
        self.results.summarise();
        &self.results
    }

    /// Keeps what came of holding the results against something.
    pub fn judged(&mut self, verdicts: Vec<BudgetVerdict>) {
        self.results.verdicts.extend(verdicts);
    }

    /// A further file beside the report's own, such as a CSV in somebody else's format.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn attach(&self, name: &str, text: &str) -> Result<()> {
        write(&self.directory, name, text)
    }

    /// Writes every file of the report, also when not everything was measured: the files say so.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn finish(mut self) -> Result<(Results, PathBuf)> {
        self.progress.finish();
        self.results.summarise();
        render(&self.directory, &self.results)?;
        let path = self.directory.join(SAMPLES);
        let _ = fs::remove_file(path);
        Ok((self.results, self.directory))
    }

    /// [`Recorder::finish`] after a study that ended well, was interrupted, or failed: in each case
    /// what was done is kept. Says where.
    ///
    /// # Errors
    /// The study's own, with where the rest is; or a file cannot be written.
    pub fn conclude(self, outcome: Result<()>) -> Result<(Results, PathBuf)> {
        let (results, directory) = self.finish()?;
        if let Err(failure) = outcome {
            let (done, planned) = (results.done, results.planned);
            let text = format!(
                "{failure}\n{done} of {planned} measurements are done and kept in {}",
                directory.display()
            );
            return Err(Failure::new(failure.kind, text));
        }
        anstream::println!("report: {}", directory.join("report.html").display());
        Ok((results, directory))
    }
}

/// Writes every file that is made from results alone.
fn render(directory: &Path, results: &Results) -> Result<page::Page> {
    let page = page_of(results);
    write(directory, RESULTS, &to_json(results)?)?;
    write(directory, "report.html", &html::page(results, &page))?;
    write(directory, "summary.md", &markdown::summary(results, &page))?;
    write(directory, "results.csv", &csv::samples(results))?;
    write(directory, "env.json", &env::json(results))?;
    write(directory, "repro.sh", &repro::script(results))?;
    make_executable(&directory.join("repro.sh"))?;
    for (name, endings) in [
        ("charts", &["svg"][..]),
        ("histograms", &["hgrm", "hlog"]),
        ("series", &["csv"]),
    ] {
        remove(&directory.join(name), endings)?;
    }
    for section in &page.sections {
        for chart in &section.charts {
            let name = format!("{}.svg", file_name(&chart.name));
            let text = chart.svg.file(&source(results, section));
            write(&directory.join("charts"), &name, &text)?;
        }
    }
    for (into, files) in [
        ("histograms", histograms::files(results)),
        ("series", csv::series(results)),
    ] {
        for (name, text) in files {
            write(&directory.join(into), &name, &text)?;
        }
    }
    Ok(page)
}

fn page_of(results: &Results) -> page::Page {
    match results.study.as_str() {
        "seeds" => seeds::page(results),
        "sweep" => sweep::page(results),
        _ => pair::page(results),
    }
}

/// Notes on figures of any study; there are medians only where something was repeated.
fn common_notes(results: &Results) -> [String; 3] {
    let mut summaries = results.summaries.values().chain([&results.headline]);
    let repeated = summaries.any(|summary| {
        let mut spreads = summary.peers.values().flat_map(BTreeMap::values);
        spreads.any(|spread| spread.count > 1)
    });
    let (runs, ratios) = match repeated {
        true => (
            "Medians of interleaved runs, another peer first in each; in brackets, or as whiskers and bands, the least and the largest run.",
            "Absolute figures belong to this machine at that time. Ratios are taken between runs of the same repeat, and then their median: they hold elsewhere much better.",
        ),
        false => (
            "Each figure is of one run: nothing shows how far runs differ.",
            "Absolute figures belong to this machine at that time. Ratios are taken between runs of the same repeat: they hold elsewhere much better.",
        ),
    };
    [
        runs,
        ratios,
        "A run that lost requests, or whose mutual TLS was not proven, is invalid: it is listed and in no median.",
    ]
    .map(str::to_owned)
}

fn verdict_in_words(verdict: &BudgetVerdict) -> String {
    let (found, against) = (verdict.findings.len(), &verdict.against);
    match found {
        0 => format!("{} figures are within {against}.", verdict.checked),
        _ => format!(
            "{found} of {} figures are not within {against}.",
            verdict.checked
        ),
    }
}

/// Returns the source lines for a chart that is shown alone: the measured scenario, the time and the
/// machine.
fn source(results: &Results, section: &page::Section) -> [String; 2] {
    let machine = results.environment.machine();
    let mut when = format!("tulle bench {}, {}, {machine}", results.study, results.date);
    if results.incomplete().is_some() {
        when += ", incomplete";
    }
    [section.title.clone(), when]
}

/// The file of a chart beside a document, where several studies share a directory.
fn picture(results: &Results, chart: &page::Chart) -> String {
    format!("{}-{}.svg", mark(results), file_name(&chart.name))
}

/// Where in a document a study goes. What is measured apart does not replace each other: `seeds` has a place for either
/// application, `sweep` one for gRPC beside its own. What was measured in a cluster has places of its own, too.
fn mark(results: &Results) -> String {
    let has = |key: &str, value: &str| {
        let mut labels = results.scenarios.iter().map(|s| s.labels.get(key));
        labels.any(|label| label.is_some_and(|label| label == value))
    };
    let name = match &*results.study {
        "seeds" if has("app", "spring") => "spring",
        "sweep" if has("protocol", "grpc") => "grpc",
        study => study,
    };
    match results.options["kubernetes"] == true {
        true => format!("cluster-{name}"),
        false => name.to_owned(),
    }
}

/// Letters, digits, points and dashes.
fn file_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-' || c == '_';
    let name: String = name
        .chars()
        .map(|c| if plain(c) { c } else { '-' })
        .collect();
    name.trim_start_matches('.').to_owned()
}

/// `1.40.0` of what a program says about itself.
fn short_version(text: &str) -> &str {
    let start = |(i, c): (usize, char)| {
        let before = text[..i].chars().next_back();
        let word = before.is_some_and(|b| b.is_ascii_alphanumeric() && b != 'v' || b == '.');
        let end = |c: char| !c.is_ascii_digit() && c != '.';
        let rest = &text[i..];
        let found = &rest[..rest.find(end).unwrap_or(rest.len())];
        (c.is_ascii_digit() && !word && found.contains('.')).then_some(found)
    };
    let found = text.char_indices().find_map(start);
    found.map_or(text, |version| version.trim_end_matches('.'))
}

/// Removes the files of an earlier report from a directory, and nothing else.
fn remove(directory: &Path, endings: &[&str]) -> Result<()> {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let ending = path.extension().and_then(|e| e.to_str());
        if ending.is_some_and(|e| endings.contains(&e)) {
            fs::remove_file(&path).or_fail(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

fn make_executable(path: &Path) -> Result<()> {
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, mode).or_fail(|| format!("cannot make {} executable", path.display()))
}

/// Whole or not at all: a reader, or a kill, never sees half a file.
fn write(directory: &Path, name: &str, text: &str) -> Result<()> {
    let path = directory.join(name);
    let mut new = path.clone().into_os_string();
    new.push(".new");
    let parent = path.parent().unwrap_or(directory);
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(&new, text))
        .and_then(|()| fs::rename(&new, &path))
        .or_fail(|| format!("cannot write {}", path.display()))
}

fn to_json(results: &Results) -> Result<String> {
    let what = || "cannot encode the results".to_owned();
    let mut json = serde_json::to_value(results).or_fail(what)?;
    if let Some(why) = results.incomplete() {
        json["incomplete"] = why.into();
    }
    let text = serde_json::to_string_pretty(&json).or_fail(what)?;
    Ok(text + "\n")
}
