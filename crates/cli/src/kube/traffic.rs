//! `tulle stat` and `tulle edges`: what the proxies counted, asked of them. Nothing else is needed.

use super::cluster::Cluster;
use super::outside;
use super::workloads::{self, Meshed};
use crate::args::cluster::{By, Edges, Stat, Within};
use crate::failure::Result;
use crate::metrics::{self, Edge};
use crate::output::{self, Columns, line};
use serde::Serialize;
use std::collections::BTreeMap;
use tulle_model::samples::{self, CountedTraffic, MetricSample};

/// Sums the requests to a pod, by service.
fn counted(samples: &[MetricSample]) -> BTreeMap<String, CountedTraffic> {
    let mut all: BTreeMap<String, CountedTraffic> = BTreeMap::new();
    let called = samples
        .iter()
        .filter(|s| s.label("reporter") == "destination");
    for sample in called.filter(|s| CountedTraffic::counts(s)) {
        let service = sample.label("destination_service").to_owned();
        all.entry(service).or_default().take(sample);
    }
    all
}

/// Counters by pod (`namespace/name`), then by service.
type Scraped = BTreeMap<String, BTreeMap<String, CountedTraffic>>;

async fn scrape(cluster: &Cluster, pods: &[Meshed]) -> Scraped {
    let answers = workloads::ask_all(cluster, pods, "/metrics").await;
    let told = answers
        .into_iter()
        .filter_map(|(pod, text)| Some((pod, text.ok()?)));
    told.map(|(pod, text)| (pod.shown(), counted(&samples::parse(&text))))
        .collect()
}

#[derive(Debug, Serialize, PartialEq)]
struct Row {
    namespace: String,
    name: String,
    pods: usize,
    /// Share of requests not answered with 5xx; absent when there were none.
    success_rate: Option<f64>,
    requests_per_second: f64,
    p50_ms: Option<f64>,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
    connections_per_second: f64,
}

/// Looks twice and shows the difference.
pub(crate) async fn stat(cluster: &Cluster, args: &Stat) -> Result<()> {
    let pods = match &args.target {
        Some(target) => workloads::select(cluster, target, &args.within).await?,
        None => workloads::meshed(cluster, &args.within).await?,
    };
    let before = scrape(cluster, &pods).await;
    tokio::time::sleep(args.window).await;
    let after = scrape(cluster, &pods).await;
    let rows = rows(&pods, &before, &after, args.by, args.window.as_secs_f64());
    if output::structured(&rows, args.format.output)? {
        return Ok(());
    }
    if rows.is_empty() {
        line(workloads::NO_SIDECARS);
        return Ok(());
    }
    let mut columns = Columns::new(&[
        "NAMESPACE",
        "NAME",
        "PODS",
        "SUCCESS",
        "RPS",
        "P50",
        "P95",
        "P99",
        "CONNECTIONS/S",
    ]);
    for row in rows {
        columns.row(vec![
            row.namespace,
            row.name,
            row.pods.to_string(),
            row.success_rate.map(percent).unwrap_or_default(),
            rate(row.requests_per_second),
            row.p50_ms.map(milliseconds).unwrap_or_default(),
            row.p95_ms.map(milliseconds).unwrap_or_default(),
            row.p99_ms.map(milliseconds).unwrap_or_default(),
            rate(row.connections_per_second),
        ]);
    }
    line(&columns.render());
    Ok(())
}

fn rows(pods: &[Meshed], before: &Scraped, after: &Scraped, by: By, seconds: f64) -> Vec<Row> {
    let none = BTreeMap::new();
    let mut all: BTreeMap<(String, String), (usize, CountedTraffic)> = BTreeMap::new();
    for pod in pods {
        let key = pod.shown();
        let old = before.get(&key).unwrap_or(&none);
        let new = after.get(&key).unwrap_or(&none);
        let nothing = CountedTraffic::default();
        let since = new
            .iter()
            .map(|(service, c)| (service, c.since(old.get(service).unwrap_or(&nothing))));
        if by == By::Service {
            for (service, counted) in since {
                let (name, namespace) = service.rsplit_once('.').unwrap_or((service, ""));
                let row = all
                    .entry((namespace.to_owned(), name.to_owned()))
                    .or_default();
                row.0 += 1;
                row.1.add(&counted);
            }
            continue;
        }
        let name = match by {
            By::Pod => &pod.name,
            _ => &pod.workload,
        };
        let row = all
            .entry((pod.namespace.clone(), name.clone()))
            .or_default();
        row.0 += 1;
        since.for_each(|(_, counted)| row.1.add(&counted));
    }
    let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
    all.into_iter()
        .map(|((namespace, name), (pods, counted))| {
            let some = counted.requests > 0.0;
            Row {
                namespace,
                name,
                pods,
                success_rate: some.then(|| 1.0 - counted.failed / counted.requests),
                requests_per_second: per_second(counted.requests),
                p50_ms: counted.percentile(0.50),
                p95_ms: counted.percentile(0.95),
                p99_ms: counted.percentile(0.99),
                connections_per_second: per_second(counted.connections),
            }
        })
        .collect()
}

/// Returns the callers and services that have talked since the proxies started.
pub(super) async fn seen(cluster: &Cluster, within: &Within) -> Result<Vec<Edge>> {
    // Both sides report, so a caller in another namespace is seen, too.
    let pods = workloads::meshed(cluster, &Within::default()).await?;
    let answers = workloads::ask_all(cluster, &pods, "/metrics").await;
    let texts = answers.into_iter().filter_map(|(_, text)| text.ok());
    let samples: Vec<MetricSample> = texts.flat_map(|text| samples::parse(&text)).collect();
    let mut edges = metrics::edges(&samples);
    if let Some(namespace) = &within.namespace {
        let part = format!("/ns/{namespace}/");
        edges.retain(|e| e.source.contains(&part) || e.destination.contains(&part));
    }
    Ok(edges)
}

/// Shows that.
pub(crate) async fn edges(cluster: &Cluster, args: &Edges) -> Result<()> {
    let edges = seen(cluster, &args.within).await?;
    if output::structured(&edges, args.format.output)? {
        return Ok(());
    }
    line(&table(edges));
    let namespace = args.within.namespace.as_deref();
    let outside = outside::tables(&outside::seen(cluster, namespace).await?);
    if !outside.is_empty() {
        line(&format!("\n{outside}"));
    }
    Ok(())
}

/// Edges in columns.
pub(super) fn table(edges: Vec<Edge>) -> String {
    if edges.is_empty() {
        return "nobody has talked yet".to_owned();
    }
    let mut columns = Columns::new(&[
        "SOURCE",
        "DESTINATION",
        "SERVICE",
        "SECURITY",
        "REQUESTS",
        "CONNECTIONS",
        "DENIED",
        "SUCCESS",
        "P50",
        "P99",
    ]);
    for edge in edges {
        columns.row(cells(edge));
    }
    columns.render()
}

fn cells(edge: Edge) -> Vec<String> {
    let source = match edge.source.as_str() {
        "" => "outside the mesh",
        source => short(source),
    };
    vec![
        source.to_owned(),
        short(&edge.destination).to_owned(),
        edge.destination_service,
        edge.security,
        edge.requests.to_string(),
        edge.connections.to_string(),
        edge.denied.to_string(),
        edge.success_rate.map(percent).unwrap_or_default(),
        edge.p50_ms.map(milliseconds).unwrap_or_default(),
        edge.p99_ms.map(milliseconds).unwrap_or_default(),
    ]
}

/// `ns/shop/sa/web`: all identities of a mesh share what is before it.
pub(crate) fn short(identity: &str) -> &str {
    let rest = identity.strip_prefix("spiffe://").unwrap_or(identity);
    rest.split_once('/').map_or(identity, |(_, path)| path)
}

fn percent(share: f64) -> String {
    // Rounded down, so that 100% means none failed.
    format!("{}%", (share * 10_000.0).floor() / 100.0)
}

fn milliseconds(ms: f64) -> String {
    format!("{ms:.1}ms")
}

fn rate(per_second: f64) -> String {
    format!("{per_second:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
istio_requests_total{reporter=\"destination\",destination_service=\"web.shop\",response_code=\"200\"} 10
istio_request_duration_milliseconds_bucket{reporter=\"destination\",destination_service=\"web.shop\",le=\"5\"} 10
istio_request_duration_milliseconds_bucket{reporter=\"destination\",destination_service=\"web.shop\",le=\"+Inf\"} 10
istio_requests_total{reporter=\"source\",destination_service=\"other\",response_code=\"200\"} 99
";
    const AFTER: &str = "\
istio_requests_total{reporter=\"destination\",destination_service=\"web.shop\",response_code=\"200\"} 25
istio_requests_total{reporter=\"destination\",destination_service=\"web.shop\",response_code=\"503\"} 5
istio_request_duration_milliseconds_bucket{reporter=\"destination\",destination_service=\"web.shop\",le=\"5\"} 10
istio_request_duration_milliseconds_bucket{reporter=\"destination\",destination_service=\"web.shop\",le=\"10\"} 30
istio_request_duration_milliseconds_bucket{reporter=\"destination\",destination_service=\"web.shop\",le=\"+Inf\"} 30
";

    fn pod(name: &str) -> Meshed {
        Meshed {
            namespace: "shop".into(),
            name: name.into(),
            workload: "deployment/web".into(),
            account: "web".into(),
            labels: Vec::new(),
            ready: true,
            sidecar_ready: true,
            sidecar_runs: true,
            version: String::new(),
            restarts: 0,
            gateway: false,
        }
    }

    #[test]
    fn a_row_is_what_came_between_two_looks() {
        let scraped = |text: &str| {
            let counted = counted(&samples::parse(text));
            let both = ["shop/a", "shop/b"].map(|pod| (pod.to_owned(), counted.clone()));
            Scraped::from(both)
        };
        let pods = [pod("a"), pod("b")];
        let (before, after) = (scraped(BEFORE), scraped(AFTER));
        for (by, name, pods_in_row, rows_expected, rps) in [
            (By::Workload, "deployment/web", 2, 1, 4.0),
            (By::Pod, "a", 1, 2, 2.0),
            (By::Service, "web", 2, 1, 4.0),
        ] {
            let rows = rows(&pods, &before, &after, by, 10.0);
            assert_eq!(rows.len(), rows_expected);
            let row = &rows[0];
            assert_eq!((row.namespace.as_str(), row.name.as_str()), ("shop", name));
            assert_eq!((row.pods, row.requests_per_second), (pods_in_row, rps));
            assert_eq!(row.success_rate, Some(0.75));
            let p50 = row.p50_ms.unwrap();
            assert!((5.0..10.0).contains(&p50), "{p50}");
        }
        // Started again meanwhile: counted from nothing.
        let again = rows(&pods, &after, &before, By::Workload, 10.0);
        assert_eq!(again[0].requests_per_second, 2.0);
    }

    #[test]
    fn figures_are_short_and_do_not_flatter() {
        assert_eq!(percent(0.999_99), "99.99%");
        assert_eq!(percent(1.0), "100%");
        assert_eq!(short("spiffe://cluster.local/ns/a/sa/b"), "ns/a/sa/b");
    }
}
