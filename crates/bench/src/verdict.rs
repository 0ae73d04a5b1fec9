//! The result of comparing figures with budgets or with a baseline.

use serde::{Deserialize, Serialize};

/// The result of comparing figures with budgets or a baseline.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetVerdict {
    /// The reference of the comparison: "the budgets of bench/budgets.toml".
    pub against: String,
    /// The figures outside their bounds; empty if all are within.
    pub findings: Vec<Finding>,
    /// Figures that were not measured, in words.
    pub skipped: Vec<String>,
    /// How many figures were held against something.
    pub checked: usize,
}

/// A figure that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Which.
    pub what: String,
    /// The allowed range.
    pub allowed: String,
    /// The measured value.
    pub measured: String,
}

impl BudgetVerdict {
    /// The findings as a table, then what was skipped; nothing if there is neither.
    pub fn table(&self, title: &str) -> String {
        let mut text = String::new();
        if !self.findings.is_empty() {
            let head = ["", "allowed", "measured"].map(str::to_owned);
            let rows: Vec<[String; 3]> = std::iter::once(head)
                .chain(
                    self.findings
                        .iter()
                        .map(|f| [f.what.clone(), f.allowed.clone(), f.measured.clone()]),
                )
                .collect();
            let width = |column: usize| {
                let lengths = rows.iter().map(|row| row[column].chars().count());
                lengths.max().unwrap_or(0)
            };
            let (first, second) = (width(0), width(1));
            text += &format!("{title}:\n");
            for [what, allowed, measured] in &rows {
                text += &format!("  {what:first$}  {allowed:second$}  {measured}\n");
            }
        }
        for skipped in &self.skipped {
            text += &format!("not checked: {skipped}\n");
        }
        text
    }
}
