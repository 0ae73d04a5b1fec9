//! The gate: budgets and the baseline, read before anything is measured.

use super::Options;
use super::scenario::{self, HEADLINE};
use crate::baseline;
use crate::budgets::Budgets;
use crate::failure::{Failure, FailureKind, Result};
use crate::results::Results;
use crate::tools;
use crate::verdict::BudgetVerdict;
use std::path::PathBuf;

/// Where budgets are unless a file is named.
const BUDGETS: &str = "bench/budgets.toml";

/// Budgets and a baseline to compare the results with.
pub(super) struct Gate {
    budgets: Option<(PathBuf, Budgets)>,
    baseline: Option<(PathBuf, Results)>,
}

impl Gate {
    /// Reads the files.
    pub(super) fn read(options: &Options) -> Result<Self> {
        let found = || {
            let mut files = tools::roots().map(|root| root.join(BUDGETS));
            files.find(|file| file.is_file())
        };
        let budgets = options.budgets.clone().or_else(found);
        let budgets = budgets.map(|path| {
            Ok((
                path.clone(),
                Budgets::read(&path, &|name| scenario::known(name).err())?,
            ))
        });
        let baseline = options.baseline.clone();
        let baseline = baseline.map(|path| Ok((path.clone(), baseline::read(&path, "pair")?)));
        Ok(Self {
            budgets: budgets.transpose()?,
            baseline: baseline.transpose()?,
        })
    }

    /// Holds the figures against them.
    pub(super) fn judge(&self, results: &Results) -> Vec<BudgetVerdict> {
        let budgets = self.budgets.iter().map(|(path, budgets)| BudgetVerdict {
            against: format!("the budgets of {}", path.display()),
            ..budgets.check(results, HEADLINE)
        });
        let baseline = self.baseline.iter().map(|(path, baseline)| BudgetVerdict {
            against: format!("the baseline {}", path.display()),
            ..baseline::compare(results, baseline)
        });
        budgets.chain(baseline).collect()
    }

    /// Says what was found.
    ///
    /// # Errors
    /// A budget is exceeded, or a figure is worse than the baseline's.
    pub(super) fn pass(&self, verdicts: &[BudgetVerdict]) -> Result<()> {
        if self.budgets.is_none() {
            anstream::println!("no budgets: there is no {BUDGETS} here");
        }
        let mut found = 0;
        for verdict in verdicts {
            let against = &verdict.against;
            anstream::print!("{}", verdict.table(&format!("not within {against}")));
            if verdict.findings.is_empty() {
                anstream::println!("{} figures are within {against}", verdict.checked);
            }
            found += verdict.findings.len();
        }
        if found == 0 {
            return Ok(());
        }
        let figures = if found == 1 {
            "figure is"
        } else {
            "figures are"
        };
        let text = format!("{found} {figures} worse than allowed; see above");
        Err(Failure::new(FailureKind::Findings, text))
    }
}
