//! `tulle bench report`: a study's files again from its `results.json`, and its tables in documents.

use crate::failure::{Failure, FailureKind, OrFail, Result};
use crate::results::{Results, SCHEMA, Sample};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};

/// `tulle bench report`
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Directory that a study has written
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Markdown file to write tables and pictures into, between marks `bench:STUDY:begin` and `end`
    #[arg(long, value_name = "FILE")]
    pub docs: Option<PathBuf>,
    /// Markdown file to write the short table of `pair` into, between marks `figure:begin` and `end`
    #[arg(long, value_name = "FILE")]
    pub readme: Option<PathBuf>,
}

/// Makes the files again.
///
/// # Errors
/// The directory holds no results, or a file cannot be written.
pub fn run(options: &Options) -> Result<()> {
    let results = load(&options.directory)?;
    let page = super::render(&options.directory, &results)?;
    if let Some(document) = &options.docs {
        super::docs::put_excerpt(document, &results, &page)?;
    }
    if let Some(document) = &options.readme {
        super::docs::put_figure(document, &results)?;
    }
    let page = options.directory.join("report.html");
    anstream::println!("report: {}", page.display());
    Ok(())
}

/// `results.json`, and what a study that was killed had measured since it was last written.
fn load(directory: &Path) -> Result<Results> {
    let path = directory.join(super::RESULTS);
    let input = |why: &dyn std::fmt::Display| {
        let text = format!("{}: {why}", path.display());
        Failure::new(FailureKind::Input, text)
    };
    let text = fs::read_to_string(&path).map_err(|e| {
        input(&format!(
            "{e}; name the directory that a study printed at its end"
        ))
    })?;
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| input(&e))?;
    let schema = json.get("schema").and_then(serde_json::Value::as_u64);
    if schema != Some(u64::from(SCHEMA)) {
        let found = schema.map_or_else(|| "none".to_owned(), |s| s.to_string());
        return Err(input(&format!(
            "schema {SCHEMA} is wanted, it has {found}; measure again, or use the tulle that wrote it"
        )));
    }
    let mut results: Results = serde_json::from_value(json).map_err(|e| input(&e))?;
    let path = directory.join(super::SAMPLES);
    if path.exists() {
        let text =
            fs::read_to_string(&path).or_fail(|| format!("cannot read {}", path.display()))?;
        // A last line without its end was being written when the study was killed.
        let whole = text.lines().map_while(|l| serde_json::from_str(l).ok());
        let samples: Vec<Sample> = whole.collect();
        if samples.len() > results.samples.len() {
            results.samples = samples;
        }
    }
    results.summarise();
    Ok(results)
}
