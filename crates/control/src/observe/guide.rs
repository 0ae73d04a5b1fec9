//! Says what a code means and what helps: read from the pages of the documentation, so that both say the same.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The cells beside a code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Advice {
    pub(super) cause: &'static str,
    pub(super) fix: &'static str,
}

type Table = HashMap<&'static str, Advice>;

static REASONS: LazyLock<Table> =
    LazyLock::new(|| table(include_str!("../../../../docs/reasons.md"), 3, 4));
static FINDINGS: LazyLock<Table> =
    LazyLock::new(|| table(include_str!("../../../../docs/findings.md"), 1, 3));

/// About a reason code.
pub(super) fn reason(code: &str) -> Advice {
    REASONS.get(code).copied().unwrap_or_default()
}

/// About the code of a finding.
pub(super) fn finding(code: &str) -> Advice {
    FINDINGS.get(code).copied().unwrap_or_default()
}

/// Reads the first table of a page, whose rows begin with codes.
fn table(page: &'static str, cause: usize, fix: usize) -> Table {
    let mut table = Table::new();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let cell = |index| cells.get(index).copied().unwrap_or_default();
        let advice = Advice {
            cause: cell(cause),
            fix: cell(fix).trim_end_matches('|').trim(),
        };
        for code in cell(0).split(", ") {
            table.entry(code.trim_matches('`')).or_insert(advice);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_say_what_helps() {
        let denied = reason("denied");
        assert!(
            denied.cause.starts_with("a rule denies this caller"),
            "{denied:?}"
        );
        assert!(denied.fix.contains("TrafficTarget"), "{denied:?}");
        assert!(reason("redirected").fix.is_empty());
        assert_eq!(reason("nothing"), Advice::default());
        assert!(finding("TL0010").fix.contains("add the Workload"));
    }
}
