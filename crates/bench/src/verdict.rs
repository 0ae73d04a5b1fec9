//! What came of holding figures against budgets, or against figures of before.

use serde::{Deserialize, Serialize};

/// What came of holding figures against something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What they were held against: "the budgets of bench/budgets.toml".
    pub against: String,
    /// What is not as it should be; none: all is well.
    pub findings: Vec<Finding>,
    /// What was not measured, in words.
    pub skipped: Vec<String>,
    /// How many figures were held against something.
    pub checked: usize,
}

/// A figure that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Which.
    pub what: String,
    /// What it may be.
    pub allowed: String,
    /// What it is.
    pub measured: String,
}

impl Verdict {
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
