//! How results are printed: tables for people, plain columns in a pipe, JSON and YAML for programs.

use crate::args::Format;
use crate::failure::{OrFail, Result};
use comfy_table::{Attribute, Cell, ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// Colours and borders are for a terminal whose user did not refuse them.
pub(crate) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Whether to colour (`NO_COLOR`, see no-color.org).
pub(crate) fn has_colour() -> bool {
    is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Lines that fit on the terminal.
pub(crate) fn terminal_rows() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    // A terminal that does not know its size is taken for the usual one.
    size.map(|s| usize::from(s.ws_row))
        .ok()
        .filter(|r| *r > 0)
        .unwrap_or(24)
}

/// How a line is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// As it should be.
    Good,
    /// Worth a look.
    Doubtful,
    /// Wrong.
    Bad,
}

/// A text in the colour of its meaning, if there are colours.
pub(crate) fn paint(text: &str, mark: Mark) -> String {
    use owo_colors::OwoColorize;
    if !has_colour() {
        return text.to_owned();
    }
    match mark {
        Mark::Good => text.green().to_string(),
        Mark::Doubtful => text.yellow().to_string(),
        Mark::Bad => text.red().to_string(),
    }
}

/// Prints a line; a reader that went away (`| head`) ends the command quietly.
pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = writeln!(out, "{text}")
        && e.kind() == std::io::ErrorKind::BrokenPipe
    {
        std::process::exit(0);
    }
}

/// Prints for programs; false if a table was asked for.
pub(crate) fn structured<T: Serialize>(value: &T, format: Format) -> Result<bool> {
    match format {
        Format::Table | Format::Wide => return Ok(false),
        Format::Json => {
            line(&serde_json::to_string_pretty(value).or_fail(|| "cannot print JSON".to_owned())?)
        }
        Format::Yaml => {
            let text = serde_saphyr::to_string(value).or_fail(|| "cannot print YAML".to_owned())?;
            line(text.trim_end());
        }
    }
    Ok(true)
}

/// Rows under a heading.
pub(crate) struct Columns {
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// No rows yet.
    pub(crate) fn new(heads: &[&'static str]) -> Self {
        Self {
            heads: heads.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Whether there is anything to show.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// As a terminal or a pipe wants it.
    pub(crate) fn render(&self) -> String {
        if is_terminal() {
            self.boxed()
        } else {
            self.plain()
        }
    }

    fn boxed(&self) -> String {
        let mut table = Table::new();
        table
            .load_style(presets::UTF8_HORIZONTAL_ONLY)
            .set_content_arrangement(ContentArrangement::Dynamic);
        let colour = has_colour();
        table.set_header(self.heads.iter().map(|h| {
            let cell = Cell::new(h);
            if colour {
                cell.add_attribute(Attribute::Bold)
            } else {
                cell
            }
        }));
        table.add_rows(&self.rows);
        table.to_string()
    }

    /// Aligned by spaces, for `grep`, `awk` and eyes alike; an empty cell is `-`.
    fn plain(&self) -> String {
        let heads: Vec<String> = self.heads.iter().map(ToString::to_string).collect();
        let mut widths = vec![0; heads.len()];
        let lines: Vec<&Vec<String>> = std::iter::once(&heads).chain(&self.rows).collect();
        for cells in &lines {
            for (width, cell) in widths.iter_mut().zip(cells.iter()) {
                *width = (*width).max(cell.chars().count().max(1));
            }
        }
        let render = |cells: &&Vec<String>| {
            let padded: Vec<String> = cells
                .iter()
                .zip(&widths)
                .map(|(cell, width)| {
                    let cell = if cell.is_empty() { "-" } else { cell };
                    format!("{cell:<width$}")
                })
                .collect();
            padded.join("  ").trim_end().to_owned()
        };
        lines.iter().map(render).collect::<Vec<_>>().join("\n")
    }
}

/// `1.5 MiB`.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn bytes(count: u64) -> String {
    let mut value = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" {
                format!("{count} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// A duration until a point in time, coarse: `23h`, `4m`, `12s`.
pub(crate) fn coarse(seconds: i64) -> String {
    match seconds {
        i64::MIN..=-1 => "expired".into(),
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_columns_are_aligned_and_have_no_empty_cell() {
        let mut columns = Columns::new(&["NAME", "X"]);
        columns.row(vec!["a-long-name".into(), "1".into()]);
        columns.row(vec!["b".into(), String::new()]);
        assert_eq!(
            columns.plain(),
            "NAME         X\na-long-name  1\nb            -"
        );
    }

    #[test]
    fn a_box_has_every_cell() {
        let mut columns = Columns::new(&["NAME"]);
        columns.row(vec!["ratings".into()]);
        let boxed = columns.boxed();
        assert!(boxed.contains("NAME") && boxed.contains("ratings"));
    }

    #[test]
    fn units() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(8 << 20), "8.0 MiB");
        assert_eq!(coarse(-1), "expired");
        assert_eq!(coarse(90), "90s");
        assert_eq!(coarse(86_400), "24h");
    }
}
