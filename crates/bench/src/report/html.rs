//! `report.html`: one file that needs nothing else, no network and no scripts.

use super::cells;
use super::look;
use super::number;
use super::page::{Cell, Page, Section, Table};
use super::repro;
use super::svg::escape;
use crate::results::Results;
use std::fmt::Write as _;

const STYLE: &str = include_str!("page.css");

/// The page. It is well-formed XML too.
pub(super) fn page(results: &Results, page: &Page) -> String {
    let mut html = String::new();
    let title = format!("{} – tulle bench {}", page.title, results.study);
    let _ = write!(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{}</title>\n<style>{STYLE}{}{}</style>\n</head>\n<body>\n",
        escape(&title),
        look::chart_style(),
        look::page_style()
    );
    header(&mut html, results, page);
    html.push_str("<main>\n");
    for (i, section) in page.sections.iter().enumerate() {
        write_section(&mut html, section, i);
    }
    verdicts(&mut html, results);
    invalid(&mut html, results);
    notes(&mut html, results);
    environment(&mut html, results);
    repeat(&mut html, results);
    configurations(&mut html, results);
    let _ = write!(
        html,
        "</main>\n<footer><p>Beside this page lie its figures: <a href=\"results.json\">results.json</a>, <a href=\"results.csv\">results.csv</a> (every run), <a href=\"summary.md\">summary.md</a>, <a href=\"env.json\">env.json</a>, and the directories charts, histograms and series.</p></footer>\n</body>\n</html>\n"
    );
    html
}

fn header(html: &mut String, results: &Results, page: &Page) {
    let _ = write!(
        html,
        "<header>\n<p class=\"kicker\">tulle bench {} · {} · {}</p>\n<h1>{}</h1>\n<p class=\"what\">{}</p>\n",
        escape(&results.study),
        escape(&results.date),
        escape(&results.environment.machine()),
        escape(page.title),
        escape(page.what)
    );
    if let Some(why) = results.incomplete() {
        let _ = writeln!(
            html,
            "<p class=\"warning\">{}</p>",
            escape(&number::capital(&why))
        );
    }
    let _ = writeln!(html, "<p class=\"lead\">{}</p>", escape(&page.lead));
    html.push_str("<nav aria-label=\"Sections\"><ol>\n");
    for (i, section) in page.sections.iter().enumerate() {
        let _ = writeln!(
            html,
            "<li><a href=\"#s{i}\">{}</a></li>",
            escape(&section.title)
        );
    }
    let rest = [
        ("budgets", "Budgets"),
        ("invalid", "What does not count"),
        ("notes", "What to know"),
        ("environment", "Where it ran"),
        ("repeat", "How to repeat it"),
        ("configurations", "Configurations"),
    ];
    for (id, title) in rest {
        let present = match id {
            "invalid" => results.samples.iter().any(|s| s.invalid.is_some()),
            "budgets" => !results.verdicts.is_empty(),
            "configurations" => !results.configurations.is_empty(),
            _ => true,
        };
        if present {
            let _ = writeln!(html, "<li><a href=\"#{id}\">{title}</a></li>");
        }
    }
    html.push_str("</ol></nav>\n</header>\n");
}

fn write_section(html: &mut String, section: &Section, number: usize) {
    let _ = writeln!(
        html,
        "<section id=\"s{number}\">\n<h2>{}</h2>",
        escape(&section.title)
    );
    if !section.text.is_empty() {
        let _ = writeln!(html, "<p>{}</p>", inline(&section.text));
    }
    if !section.charts.is_empty() {
        html.push_str("<div class=\"charts\">\n");
        for chart in &section.charts {
            let class = if chart.tall { " class=\"tall\"" } else { "" };
            let _ = writeln!(
                html,
                "<figure{class}>{}</figure>",
                chart.svg.inline().trim_end()
            );
        }
        html.push_str("</div>\n");
    }
    for table in &section.tables {
        write_table(html, table, &section.title);
    }
    if !section.remarks.is_empty() {
        html.push_str("<ul class=\"remarks\">\n");
        for remark in &section.remarks {
            let _ = writeln!(html, "<li>{}</li>", inline(remark));
        }
        html.push_str("</ul>\n");
    }
    html.push_str("</section>\n");
}

fn write_table(html: &mut String, table: &Table, section: &str) {
    // It scrolls by itself where it is too wide, also for who uses the keyboard.
    let label = match table.caption.as_str() {
        "" => escape(section),
        caption => escape(caption),
    };
    let _ = writeln!(
        html,
        "<div class=\"table\" role=\"region\" aria-label=\"{label}\" tabindex=\"0\"><table>"
    );
    if !table.caption.is_empty() {
        let _ = writeln!(html, "<caption>{}</caption>", escape(&table.caption));
    }
    html.push_str("<thead><tr>");
    for (i, title) in table.head.iter().enumerate() {
        let words = table.rows.first().and_then(|row| row.get(i));
        let class = class(words.is_some_and(|cell| cell.words), usize::MAX);
        let _ = write!(html, "<th scope=\"col\"{class}>{}</th>", escape(title));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        let subject = row.first().and_then(|cell| cell.peer.as_deref());
        let subject = subject == Some(crate::results::stats::SUBJECT);
        html.push_str(if subject {
            "<tr class=\"subject\">"
        } else {
            "<tr>"
        });
        for (i, cell) in row.iter().enumerate() {
            write_cell(html, cell, i == 0);
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
}

fn write_cell(html: &mut String, cell: &Cell, first: bool) {
    let swatch = cell.peer.as_ref().map(|peer| {
        format!(
            "<i class=\"{}\" aria-hidden=\"true\"></i>",
            look::class(peer)
        )
    });
    let range = cell
        .range
        .as_ref()
        .map(|range| format!("<small>{}</small>", escape(range)));
    let (open, close) = if first {
        ("th scope=\"row\"", "th")
    } else {
        ("td", "td")
    };
    let _ = write!(
        html,
        "<{open}{}>{}{}{}</{close}>",
        class(cell.words, cell.text.chars().count()),
        swatch.unwrap_or_default(),
        escape(&cell.text),
        range.unwrap_or_default()
    );
}

/// Short words stay on one line, long ones are sentences.
fn class(words: bool, length: usize) -> &'static str {
    match (words, length < 30) {
        (true, true) => " class=\"words short\"",
        (true, false) => " class=\"words\"",
        _ => "",
    }
}

fn verdicts(html: &mut String, results: &Results) {
    if results.verdicts.is_empty() {
        return;
    }
    html.push_str("<section id=\"budgets\">\n<h2>Budgets</h2>\n");
    for verdict in &results.verdicts {
        let text = escape(&super::verdict_in_words(verdict));
        if verdict.findings.is_empty() {
            let _ = writeln!(html, "<p>{text}</p>");
        } else {
            let _ = writeln!(html, "<p class=\"warning\">{text}</p>");
            let rows = verdict.findings.iter().map(|finding| {
                vec![
                    Cell::words(finding.what.clone()),
                    Cell::figure(finding.allowed.clone()),
                    Cell::figure(finding.measured.clone()),
                ]
            });
            let table = Table {
                head: ["figure", "allowed", "measured"]
                    .map(str::to_owned)
                    .to_vec(),
                rows: rows.collect(),
                ..Table::default()
            };
            write_table(html, &table, "Budgets");
        }
        if !verdict.skipped.is_empty() {
            let skipped = escape(&verdict.skipped.join("; "));
            let _ = writeln!(html, "<p class=\"small\">Not checked: {skipped}.</p>");
        }
    }
    html.push_str("</section>\n");
}

fn invalid(html: &mut String, results: &Results) {
    let lost: Vec<_> = results
        .samples
        .iter()
        .filter(|s| s.invalid.is_some())
        .collect();
    if lost.is_empty() {
        return;
    }
    let rows = lost.iter().map(|sample| {
        vec![
            Cell::peer(&sample.peer, &cells::name(results, &sample.peer)),
            Cell::words(sample.scenario.clone()),
            Cell::figure((sample.repeat + 1).to_string()),
            Cell::words(sample.invalid.clone().unwrap_or_default()),
        ]
    });
    let table = Table {
        caption: format!(
            "{} of {} samples are invalid. They are in results.json and in no median and no chart.",
            lost.len(),
            results.samples.len()
        ),
        head: ["peer", "scenario", "run", "why"]
            .map(str::to_owned)
            .to_vec(),
        rows: rows.collect(),
    };
    html.push_str("<section id=\"invalid\">\n<h2>What does not count</h2>\n");
    write_table(html, &table, "What does not count");
    html.push_str("</section>\n");
}

fn notes(html: &mut String, results: &Results) {
    html.push_str("<section id=\"notes\">\n<h2>What to know</h2>\n<ul>\n");
    for note in super::common_notes(results).iter().chain(&results.notes) {
        let _ = writeln!(html, "<li>{}</li>", inline(note));
    }
    html.push_str("</ul>\n");
    let proofs = cells::proofs(results);
    if !proofs.is_empty() {
        html.push_str("<details><summary>What proved mutual TLS, peer by peer</summary>\n");
        for (peer, texts) in proofs {
            let _ = writeln!(html, "<h3>{}</h3>\n<ul class=\"small\">", escape(&peer));
            for text in texts {
                let _ = writeln!(html, "<li>{}</li>", inline(&text));
            }
            html.push_str("</ul>\n");
        }
        html.push_str("</details>\n");
    }
    html.push_str("</section>\n");
}

fn environment(html: &mut String, results: &Results) {
    let mut rows = results.environment.lines();
    rows.push(("measured".into(), results.date.clone()));
    let versions = results.versions.iter();
    rows.extend(versions.map(|(name, version)| (name.clone(), version.clone())));
    let rows = rows
        .into_iter()
        .map(|(name, value)| vec![Cell::words(name), Cell::words(value)]);
    let table = Table {
        caption: "The machine, and the version of every program that took part.".into(),
        head: vec!["what".into(), "which".into()],
        rows: rows.collect(),
    };
    html.push_str("<section id=\"environment\">\n<h2>Where it ran</h2>\n");
    write_table(html, &table, "Where it ran");
    html.push_str("</section>\n");
}

fn repeat(html: &mut String, results: &Results) {
    let options = serde_json::to_string_pretty(&results.options).unwrap_or_default();
    let _ = writeln!(
        html,
        "<section id=\"repeat\">\n<h2>How to repeat it</h2>\n<pre>{}</pre>\n<details><summary>Every option</summary><pre>{}</pre></details>\n</section>",
        escape(&repro::line(&results.command)),
        escape(&options)
    );
}

fn configurations(html: &mut String, results: &Results) {
    if results.configurations.is_empty() {
        return;
    }
    html.push_str("<section id=\"configurations\">\n<h2>Configurations</h2>\n");
    for (name, text) in &results.configurations {
        let _ = writeln!(
            html,
            "<details><summary>{}</summary><pre>{}</pre></details>",
            escape(name),
            escape(text)
        );
    }
    html.push_str("</section>\n");
}

/// Text with `code` in it.
fn inline(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return escape(text);
    }
    let mut html = String::new();
    for (i, part) in parts.iter().enumerate() {
        let part = escape(part);
        if i % 2 == 1 {
            let _ = write!(html, "<code>{part}</code>");
        } else {
            html += &part;
        }
    }
    html
}
