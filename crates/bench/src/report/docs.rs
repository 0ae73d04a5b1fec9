//! Tables and pictures in documents, between marks: what is outside them is left as it is.

use super::page::Page;
use super::{mark, markdown, pair, picture, source, write};
use crate::failure::{Failure, FailureKind, OrFail, Result};
use crate::results::Results;
use std::fs;
use std::path::Path;

/// Puts words, tables and pictures between `bench:STUDY:begin` and `:end` (`bench:spring:…` for
/// `seeds` with the Spring applications, `bench:grpc:…` for `sweep` over gRPC, `bench:cluster-STUDY:…` for one in a cluster). The pictures go into a directory named as the document,
/// beside it.
pub(super) fn put_excerpt(document: &Path, results: &Results, page: &Page) -> Result<()> {
    let stem = document.file_stem().unwrap_or_default().to_string_lossy();
    let text = markdown::excerpt(results, page, &stem);
    let [begin, end] = ["begin", "end"].map(|w| format!("<!-- bench:{}:{w} -->", mark(results)));
    put(document, &begin, &end, &text)?;
    let directory = document.with_extension("");
    // Pictures of an earlier run that this one does not have.
    let prefix = format!("{}-", mark(results));
    for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&prefix) && name.ends_with(".svg") {
            fs::remove_file(entry.path())
                .or_fail(|| format!("cannot remove {}", entry.path().display()))?;
        }
    }
    for section in &page.sections {
        for chart in section.pictures() {
            let name = picture(results, chart);
            let text = chart.svg.file(&source(results, section));
            write(&directory, &name, &text)?;
        }
    }
    Ok(())
}

/// The table of a pair, between `figure:begin` and `figure:end`.
pub(super) fn put_figure(document: &Path, results: &Results) -> Result<()> {
    if results.study != "pair" {
        let text = format!(
            "{} has the figures of `pair`; this is a result of `{}`",
            document.display(),
            results.study
        );
        return Err(Failure::new(FailureKind::Usage, text));
    }
    let [begin, end] = ["begin", "end"].map(|w| format!("<!-- figure:{w} -->"));
    put(document, &begin, &end, &pair::readme(results))
}

fn put(document: &Path, begin: &str, end: &str, text: &str) -> Result<()> {
    let what = || format!("cannot read {}", document.display());
    let old = fs::read_to_string(document)
        .or_fail(what)
        .map_err(|f| Failure::new(FailureKind::Input, f.to_string()))?;
    let new = between(&old, begin, end, text).ok_or_else(|| {
        let text = format!(
            "{} has no place for this: it needs a line `{begin}` and after it a line `{end}`",
            document.display()
        );
        Failure::new(FailureKind::Input, text)
    })?;
    let name = document.file_name().unwrap_or_default().to_string_lossy();
    let parent = document.parent().unwrap_or(Path::new(""));
    write(parent, &name, &new)
}

fn between(old: &str, begin: &str, end: &str, text: &str) -> Option<String> {
    let (before, rest) = old.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!(
        "{before}{begin}\n{}\n{end}{after}",
        text.trim_end()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let old = "a\n<b>\nold\n<e>\nz\n";
        let new = between(old, "<b>", "<e>", "new\n\n").unwrap();
        assert_eq!(new, "a\n<b>\nnew\n<e>\nz\n");
        assert_eq!(between(&new, "<b>", "<e>", "new").unwrap(), new);
        assert_eq!(between("a <e> <b>", "<b>", "<e>", "new"), None);
    }
}
