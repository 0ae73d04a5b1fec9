//! `summary.md`, and the same tables and pictures for documents.

use super::cells;
use super::page::{Cell, Page, Section, Table};
use super::repro;
use super::svg::escape;
use crate::results::Results;
use std::fmt::Write as _;

/// `summary.md`.
pub(super) fn summary(results: &Results, page: &Page) -> String {
    let mut text = format!("# {}\n\n{}\n\n", page.title, page.what);
    if let Some(why) = results.incomplete() {
        let _ = write!(text, "**{why}**\n\n");
    }
    let _ = write!(text, "{}\n\n", page.lead);
    for section in &page.sections {
        let _ = write!(text, "## {}\n\n", section.title);
        if !section.text.is_empty() {
            let _ = write!(text, "{}\n\n", section.text);
        }
        tables_and_remarks(&mut text, section);
    }
    if !results.verdicts.is_empty() {
        text += "## Budgets\n\n";
        for verdict in &results.verdicts {
            let _ = writeln!(text, "- {}", super::verdict_in_words(verdict));
            for finding in &verdict.findings {
                let (what, allowed) = (&finding.what, &finding.allowed);
                let _ = writeln!(text, "  - {what}: {allowed}, measured {}", finding.measured);
            }
            for skipped in &verdict.skipped {
                let _ = writeln!(text, "  - not checked: {skipped}");
            }
        }
        text.push('\n');
    }
    let invalid: Vec<_> = results
        .samples
        .iter()
        .filter(|s| s.invalid.is_some())
        .collect();
    if !invalid.is_empty() {
        text += "## What does not count\n\n";
        for sample in invalid {
            let _ = writeln!(
                text,
                "- {}, {}, run {}: {}",
                cells::name(results, &sample.peer),
                sample.scenario,
                sample.repeat + 1,
                sample.invalid.as_deref().unwrap_or_default()
            );
        }
        text.push('\n');
    }
    text += "## What to know\n\n";
    for note in super::common_notes(results).iter().chain(&results.notes) {
        let _ = writeln!(text, "- {note}");
    }
    text += "\n## Where it ran\n\n";
    for (name, value) in results.environment.lines() {
        let _ = writeln!(text, "- {name}: {value}");
    }
    let _ = writeln!(text, "- measured: {}", results.date);
    for (name, version) in &results.versions {
        let _ = writeln!(text, "- {name}: {version}");
    }
    let command = repro::line(&results.command);
    let _ = write!(text, "\n## How to repeat it\n\n```sh\n{command}\n```\n");
    text
}

/// Returns the excerpt for a document: words, tables, and pictures that lie in `pictures`.
pub(super) fn excerpt(results: &Results, page: &Page, pictures: &str) -> String {
    let mut text = format!(
        "Measured {} on {}, Linux {}.\n\n",
        results.date,
        results.environment.machine(),
        results.environment.kernel
    );
    if let Some(why) = results.incomplete() {
        let _ = write!(text, "**{why}**\n\n");
    }
    let _ = write!(text, "{}\n\n", page.lead);
    for section in &page.sections {
        let _ = write!(text, "#### {}\n\n", section.title);
        tables_and_remarks(&mut text, section);
        // Two in a row where there is the place.
        for chart in section.pictures() {
            let file = super::picture(results, chart);
            let alt = escape(&format!("{}: {}", section.title, chart.title));
            let _ = writeln!(
                text,
                "<img src=\"{pictures}/{file}\" alt=\"{alt}\" width=\"49%\" align=\"top\">"
            );
        }
        if !section.pictures().is_empty() {
            text.push('\n');
        }
    }
    let invalid = results
        .samples
        .iter()
        .filter(|s| s.invalid.is_some())
        .count();
    if invalid > 0 {
        let _ = write!(
            text,
            "{invalid} of {} samples are invalid and in no median.\n\n",
            results.samples.len()
        );
    }
    text
}

fn tables_and_remarks(text: &mut String, section: &Section) {
    for one in &section.tables {
        if !one.caption.is_empty() {
            let _ = write!(text, "{}\n\n", one.caption);
        }
        let _ = writeln!(text, "{}", table(one));
    }
    for remark in &section.remarks {
        let _ = writeln!(text, "- {remark}");
    }
    if !section.remarks.is_empty() {
        text.push('\n');
    }
}

/// Aligned, so that it is readable as it is.
pub(super) fn table(table: &Table) -> String {
    let head: Vec<String> = table.head.iter().map(|text| clean(text)).collect();
    let rows: Vec<Vec<String>> = table
        .rows
        .iter()
        .map(|row| row.iter().map(cell).collect())
        .collect();
    let width = |i: usize| {
        let cells = rows.iter().filter_map(|row| row.get(i)).chain(head.get(i));
        cells
            .map(|text| text.chars().count())
            .max()
            .unwrap_or(0)
            .max(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let right = |i: usize| {
        let mut cells = table.rows.iter().filter_map(|row| row.get(i));
        cells.all(|cell| !cell.words)
    };
    let line = |cells: &[String]| {
        let padded = cells
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(i, (text, width))| {
                if right(i) {
                    format!("{text:>width$}")
                } else {
                    format!("{text:width$}")
                }
            });
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let mut text = line(&head);
    let rules = widths.iter().enumerate().map(|(i, width)| {
        if right(i) {
            format!("{}:", "-".repeat(width + 1))
        } else {
            "-".repeat(width + 2)
        }
    });
    let _ = writeln!(text, "|{}|", rules.collect::<Vec<_>>().join("|"));
    for row in &rows {
        text += &line(row);
    }
    text
}

fn cell(cell: &Cell) -> String {
    let mut text = clean(&cell.text);
    if cell.peer.as_deref() == Some(crate::results::stats::SUBJECT) {
        text = format!("**{text}**");
    }
    if let Some(range) = &cell.range {
        let _ = write!(text, " ({range})");
    }
    text
}

/// Escapes characters that would end a table cell.
fn clean(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
