//! What a study leaves behind: a directory with everything, written as it goes along.

pub mod env;
mod progress;

use crate::failure::{OrFail, Result};
use crate::results::{Results, SCHEMA, Sample, Scenario};
use crate::stats::Summary;
use progress::Progress;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is known before anything is measured.
pub struct Study {
    /// `pair`, `seeds` or `sweep`.
    pub name: &'static str,
    /// What it was asked to do.
    pub options: serde_json::Value,
    /// Of every program that takes part.
    pub versions: BTreeMap<String, String>,
    /// What a fair reader must know; what a peer cannot do.
    pub notes: Vec<String>,
    /// Everything that is configured, by file name.
    pub configurations: BTreeMap<String, String>,
    /// What is measured; the headline first.
    pub scenarios: Vec<Scenario>,
}

/// Keeps samples and shows progress.
pub struct Recorder {
    directory: PathBuf,
    results: Results,
    progress: Progress,
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
        let results = Results {
            schema: SCHEMA,
            study: study.name.to_owned(),
            date,
            environment: env::Environment::read(),
            options: study.options,
            versions: study.versions,
            notes: study.notes,
            configurations: study.configurations,
            scenarios: study.scenarios,
            headline: Summary::default(),
            summaries: BTreeMap::new(),
            samples: Vec::new(),
        };
        Ok(Self {
            directory,
            results,
            progress: Progress::new(),
        })
    }

    /// How long everything will take.
    pub fn expect(&mut self, time: Duration) {
        self.progress.expect(time);
    }

    /// What is measured now.
    pub fn begin(&mut self, what: &str) {
        self.progress.begin(what);
    }

    /// A cell is done that was expected to take this long.
    pub fn done(&mut self, estimate: Duration) {
        self.progress.done(estimate);
    }

    /// Keeps a sample, on disk too: nothing done is lost, whatever comes next.
    ///
    /// # Errors
    /// The results cannot be written.
    pub fn record(&mut self, sample: Sample) -> Result<()> {
        self.progress.line(&progress::describe(&sample));
        self.results.samples.push(sample);
        self.summarise();
        self.write("results.json", &to_json(&self.results)?)
    }

    /// Writes every file of the report.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn finish(mut self) -> Result<(Results, PathBuf)> {
        self.progress.finish();
        self.summarise();
        self.write("results.json", &to_json(&self.results)?)?;
        Ok((self.results, self.directory))
    }

    fn summarise(&mut self) {
        let results = &mut self.results;
        for scenario in &results.scenarios {
            let of_it = results
                .samples
                .iter()
                .filter(|s| s.scenario == scenario.name);
            let summary = Summary::of(of_it);
            results.summaries.insert(scenario.name.clone(), summary);
        }
        let first = results.scenarios.first();
        let headline = first.and_then(|s| results.summaries.get(&s.name));
        results.headline = headline.cloned().unwrap_or_default();
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.directory.join(name);
        // Whole or not at all: a reader, or a kill, never sees half a file.
        let new = path.with_extension("new");
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .or_fail(|| format!("cannot write {}", path.display()))
    }
}

fn to_json(results: &Results) -> Result<String> {
    serde_json::to_string_pretty(results).or_fail(|| "cannot encode the results".to_owned())
}
