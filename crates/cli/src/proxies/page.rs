//! The metrics of all proxies of a mesh on one page, as Prometheus reads it.
//!
//! Each sample gets labels that say whose it is. Samples of one metric stand together, as the format demands.

use super::{MeshName, Meshed, ProxySource, ask_all};
use crate::args::cluster::Within;
use crate::failure::{Failure, Result};
use crate::output;
use std::collections::BTreeMap;

/// Whether a proxy answered, for whoever scrapes the page.
const UP: &str = "tulle_proxy_up";

/// Prints the page. A proxy that does not answer is named on standard error, and has 0 as `tulle_proxy_up`.
pub(crate) async fn page<S: ProxySource>(source: &S, within: &Within) -> Result<()> {
    let (text, silent) = render(source, within).await?;
    for failure in silent {
        output::progress(&format!("warning: {failure}"));
    }
    output::text(&text);
    Ok(())
}

/// Makes the page. Returns also why proxies did not answer.
pub(super) async fn render<S: ProxySource>(
    source: &S,
    within: &Within,
) -> Result<(String, Vec<Failure>)> {
    let proxies = source.proxies(within).await?;
    if proxies.is_empty() {
        return Err(Failure::new("there are no metrics").because(source.no_proxies()));
    }
    let mesh = source.mesh();
    let mut page = Page::default();
    let mut silent = Vec::new();
    for (proxy, answer) in ask_all(source, &proxies, "/metrics").await {
        page.add(&mesh, proxy, answer.as_deref().ok());
        silent.extend(answer.err());
    }
    Ok((page.render(), silent))
}

/// The lines of a metric.
#[derive(Debug, Default)]
struct Family {
    /// `# HELP` and `# TYPE`, as the first proxy has them.
    about: Vec<String>,
    samples: Vec<String>,
}

/// Metrics by name.
#[derive(Debug, Default)]
struct Page(BTreeMap<String, Family>);

impl Page {
    /// Adds a proxy's metrics; none: it did not answer.
    fn add(&mut self, mesh: &MeshName, proxy: &Meshed, text: Option<&str>) {
        let labels = labels(mesh, proxy);
        let up = self.0.entry(UP.to_owned()).or_default();
        if up.about.is_empty() {
            up.about = vec![
                format!("# HELP {UP} Whether the proxy answered when this page was made."),
                format!("# TYPE {UP} gauge"),
            ];
        }
        let is_up = u8::from(text.is_some());
        up.samples.push(format!("{UP}{{{labels}}} {is_up}"));
        let mut current = String::new();
        let mut known = BTreeMap::new();
        for line in text.unwrap_or_default().lines().map(str::trim) {
            if let Some(name) = described(line) {
                // The first proxy that has a metric describes it.
                let is_first = *known
                    .entry(name.to_owned())
                    .or_insert_with(|| !self.0.contains_key(name));
                let family = self.0.entry(name.to_owned()).or_default();
                if is_first {
                    family.about.push(line.to_owned());
                }
                name.clone_into(&mut current);
            } else if let Some((name, sample)) = labelled(line, &labels) {
                let family = match is_part_of(name, &current) {
                    true => current.as_str(),
                    false => name,
                };
                let family = self.0.entry(family.to_owned()).or_default();
                family.samples.push(sample);
            }
        }
    }

    fn render(&self) -> String {
        let families = self.0.values().filter(|f| !f.samples.is_empty());
        let lines = families.flat_map(|f| f.about.iter().chain(&f.samples));
        lines.map(|line| format!("{line}\n")).collect()
    }
}

/// The metric that a line describes.
fn described(line: &str) -> Option<&str> {
    let mut words = line.strip_prefix('#')?.split_whitespace();
    matches!(words.next()?, "HELP" | "TYPE").then(|| words.next())?
}

/// Whether samples of this name belong to the metric: a histogram has three names.
fn is_part_of(name: &str, metric: &str) -> bool {
    let rest = name.strip_prefix(metric).filter(|_| !metric.is_empty());
    rest.is_some_and(|rest| matches!(rest, "" | "_bucket" | "_sum" | "_count"))
}

/// The name of a sample, and its line with more labels. None: the line is no sample.
fn labelled<'a>(line: &'a str, labels: &str) -> Option<(&'a str, String)> {
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at_checked(end)?;
    if name.is_empty() || name.starts_with('#') {
        return None;
    }
    let sample = match rest.strip_prefix('{').map(str::trim_start) {
        Some(own) if own.starts_with('}') => format!("{name}{{{labels}{own}"),
        Some(own) => format!("{name}{{{labels},{own}"),
        None => format!("{name}{{{labels}}}{rest}"),
    };
    Some((name, sample))
}

fn labels(mesh: &MeshName, proxy: &Meshed) -> String {
    format!(
        "mesh=\"{}\",proxy=\"{}\",workload=\"{}\"",
        escaped(mesh.field().1),
        escaped(&proxy.shown()),
        escaped(&proxy.workload)
    )
}

fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxies::testing;
    use tulle_model::samples;

    const WEB: &str = "\
# HELP a_total Things.
# TYPE a_total counter
a_total{x=\"1\"} 2
a_total{} 3
# TYPE h histogram
h_bucket{le=\"+Inf\"} 1
h_sum 0.5
h_count 1
plain 7 1700000000
";

    #[test]
    fn metrics_of_all_proxies_stand_together_and_say_whose_they_are() {
        let mesh = MeshName::Host {
            name: "a\"b".into(),
        };
        let mut page = Page::default();
        page.add(&mesh, &testing::proxy("", "web"), Some(WEB));
        page.add(&mesh, &testing::proxy("", "db"), Some(WEB));
        page.add(&mesh, &testing::proxy("", "gone"), None);
        let text = page.render();
        let own =
            |name: &str| format!("mesh=\"a\\\"b\",proxy=\"{name}\",workload=\"workload/{name}\"");
        let (web, db) = (own("web"), own("db"));
        let of_a = format!(
            "# HELP a_total Things.\n# TYPE a_total counter\n\
             a_total{{{web},x=\"1\"}} 2\na_total{{{web}}} 3\n\
             a_total{{{db},x=\"1\"}} 2\na_total{{{db}}} 3\n"
        );
        assert!(text.starts_with(&of_a), "{text}");
        assert_eq!(text.matches("# TYPE h histogram").count(), 1, "{text}");
        assert!(
            text.contains(&format!("plain{{{web}}} 7 1700000000\n")),
            "{text}"
        );
        assert!(text.contains(&format!("h_sum{{{db}}} 0.5\n")), "{text}");
        // Everything is read back, and none twice.
        let read = samples::parse(&text);
        assert_eq!(read.len(), 2 * 6 + 3, "{text}");
        let up = |name: &str| {
            let mut all = read.iter().filter(|s| s.name == UP);
            all.find(|s| s.label("proxy") == name).unwrap().value
        };
        assert_eq!((up("web"), up("gone")), (1.0, 0.0));
    }
}
