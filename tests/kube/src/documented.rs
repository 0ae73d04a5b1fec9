//! Which metrics and labels docs/metrics.md promises.

use crate::root;
use std::collections::{BTreeMap, BTreeSet};

/// The tables of docs/metrics.md.
pub struct Documented {
    /// Name (as in queries: of a histogram its parts) to its labels.
    pub metrics: BTreeMap<String, BTreeSet<String>>,
}

impl Documented {
    /// Reads them.
    ///
    /// # Panics
    /// The page is not there, or a row is not of its form.
    pub fn read() -> Self {
        let page = root().join("docs/metrics.md");
        let read = std::fs::read_to_string(&page);
        let text = read.unwrap_or_else(|e| panic!("{}: {e}", page.display()));
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.starts_with("| `"))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        let quoted = |cell: &str| -> BTreeSet<String> {
            let parts = cell.split('`').skip(1).step_by(2);
            parts.map(str::to_owned).collect()
        };
        // A table of two columns has the labels that metrics of traffic share.
        let shared = rows.iter().filter(|row| row.len() == 2);
        let shared: BTreeSet<String> = shared.flat_map(|row| quoted(row[0])).collect();
        let mut metrics = BTreeMap::new();
        for row in rows.iter().filter(|row| row.len() == 4) {
            let name = quoted(row[0]).pop_first().unwrap_or_default();
            let mut labels = quoted(row[2]);
            if row[2].starts_with("traffic") {
                labels.extend(shared.iter().cloned());
            }
            match row[1] {
                "histogram" => {
                    for part in ["sum", "count"] {
                        metrics.insert(format!("{name}_{part}"), labels.clone());
                    }
                    labels.insert("le".into());
                    metrics.insert(format!("{name}_bucket"), labels);
                }
                "counter" | "gauge" => drop(metrics.insert(name, labels)),
                other => panic!("{name} is a {other}"),
            }
        }
        assert!(metrics.len() > 50, "only {} metrics", metrics.len());
        Self { metrics }
    }

    /// Returns the undocumented metrics and labels of a scrape; empty if all are documented.
    pub fn missing(&self, scrape: &str) -> BTreeSet<String> {
        let mut missing = BTreeSet::new();
        for line in scrape.lines().filter(|l| !l.starts_with('#')) {
            let (name, labels) = line.split_at(line.find(['{', ' ']).unwrap_or(line.len()));
            let Some(known) = self.metrics.get(name) else {
                missing.insert(name.to_owned());
                continue;
            };
            for label in names_of_labels(labels) {
                if !known.contains(label) {
                    missing.insert(format!("{name} {{{label}}}"));
                }
            }
        }
        missing
    }
}

/// `{a="1",b="2"} 3`: a and b.
fn names_of_labels(text: &str) -> impl Iterator<Item = &str> {
    let inside = text.strip_prefix('{').unwrap_or_default();
    // A value may hold anything but a quotation mark that is not escaped; names stand before `="`.
    let parts = inside.split("=\"");
    let names = parts.map(|part| part.rsplit(['"', ',']).next().unwrap_or_default());
    names.filter(|name| !name.is_empty() && !name.contains(['}', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_read_and_a_scrape_compared() {
        let documented = Documented::read();
        let labels = &documented.metrics["istio_requests_total"];
        for label in ["reporter", "source_principal", "response_code"] {
            assert!(labels.contains(label), "{label}");
        }
        let bucket = &documented.metrics["tulle_controller_config_push_seconds_bucket"];
        assert_eq!(bucket.iter().collect::<Vec<_>>(), ["le"]);
        let scrape = "# HELP x y\ntulle_workers 1\ntulle_nothing 1\n\
             tulle_controller_pods{sidecar=\"true\"} 1\ntulle_controller_pods{a=\"x, y}\",sidecar=\"t\"} 1\n";
        let missing = documented.missing(scrape);
        let missing: Vec<&str> = missing.iter().map(String::as_str).collect();
        assert_eq!(missing, ["tulle_controller_pods {a}", "tulle_nothing"]);
    }
}
