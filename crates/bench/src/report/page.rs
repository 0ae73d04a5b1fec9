//! Holds a report's content before it is HTML or Markdown: sections of words, tables and charts.

use super::number;
use super::svg::Picture;
use crate::results::stats::Spread;

/// A whole report.
pub(super) struct Page {
    pub(super) title: &'static str,
    /// The subject of the study, in a sentence or two.
    pub(super) what: &'static str,
    /// The result in words.
    pub(super) lead: String,
    pub(super) sections: Vec<Section>,
}

/// Tables and charts about one thing.
#[derive(Default)]
pub(super) struct Section {
    pub(super) title: String,
    pub(super) text: String,
    pub(super) charts: Vec<Chart>,
    /// Documents have its tables alone; the page has all.
    pub(super) aside: bool,
    pub(super) tables: Vec<Table>,
    /// Remarks for readers of these figures.
    pub(super) remarks: Vec<String>,
}

impl Section {
    /// The charts that a document has.
    pub(super) fn pictures(&self) -> &[Chart] {
        if self.aside { &[] } else { &self.charts }
    }
}

/// A picture.
pub(super) struct Chart {
    /// The name of its file, without `.svg`.
    pub(super) name: String,
    pub(super) title: String,
    pub(super) svg: Picture,
    /// Whether it is as high as two charts of bars.
    pub(super) tall: bool,
}

/// A table; its first column names the row.
#[derive(Default)]
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<Cell>>,
}

/// One cell.
#[derive(Clone, Default)]
pub(super) struct Cell {
    pub(super) text: String,
    /// Least and largest.
    pub(super) range: Option<String>,
    /// It names this peer.
    pub(super) peer: Option<String>,
    /// Not a figure: set to the left.
    pub(super) words: bool,
    /// How many runs it is the median of; none if it is no median.
    pub(super) runs: usize,
}

impl Cell {
    /// Nothing was measured.
    pub(super) fn none() -> Self {
        Self::figure("–")
    }

    /// One figure.
    pub(super) fn figure(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }

    /// Some words.
    pub(super) fn words(text: impl Into<String>) -> Self {
        Self {
            words: true,
            ..Self::figure(text)
        }
    }

    /// The name of a peer.
    pub(super) fn peer(peer: &str, label: &str) -> Self {
        Self {
            peer: Some(peer.to_owned()),
            ..Self::words(label)
        }
    }

    /// A median with its range, times a factor for another unit.
    pub(super) fn spread(spread: Option<Spread>, factor: f64) -> Self {
        let Some(spread) = spread else {
            return Self::none();
        };
        let spread = Spread {
            median: spread.median * factor,
            min: spread.min * factor,
            max: spread.max * factor,
            count: spread.count,
        };
        Self {
            range: number::range(&spread),
            runs: spread.count,
            ..Self::figure(number::median(&spread))
        }
    }
}

impl Table {
    /// Whether a column says anything. One that does not is left out of what is shown.
    fn says(&self, column: usize) -> bool {
        self.rows
            .iter()
            .any(|row| row.get(column).is_some_and(|cell| cell.text != "–"))
    }

    /// Whether a column whose title begins so says anything.
    pub(super) fn has(&self, title: &str) -> bool {
        let mut columns = self.head.iter().enumerate();
        columns.any(|(i, head)| head.starts_with(title) && self.says(i))
    }

    /// How many runs its figures are of, in words for the caption; none without such figures.
    pub(super) fn runs_in_words(&self) -> Option<&'static str> {
        let cells = || self.rows.iter().flatten();
        match cells().map(|cell| cell.runs).max() {
            None | Some(0) => None,
            Some(1) => Some("each figure is of one run"),
            Some(_) if cells().any(|cell| cell.range.is_some()) => Some("medians (least–largest)"),
            Some(_) => Some("medians"),
        }
    }

    /// Removes columns that were not measured, except for the first `keep`.
    pub(super) fn without_empty_columns(mut self, keep: usize) -> Self {
        let kept: Vec<bool> = (0..self.head.len())
            .map(|i| i < keep || self.says(i))
            .collect();
        let mut column = 0;
        self.head.retain(|_| {
            column += 1;
            kept[column - 1]
        });
        for row in &mut self.rows {
            let mut column = 0;
            row.retain(|_| {
                column += 1;
                kept.get(column - 1).copied().unwrap_or(false)
            });
        }
        self
    }
}
