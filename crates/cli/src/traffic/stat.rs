//! `tulle stat`: what the proxies counted, asked of them. Nothing else is needed.

use super::{milliseconds, percent, rate};
use crate::args::traffic::{By, Stat};
use crate::failure::Result;
use crate::output::{self, Columns, line};
use crate::proxies::{Meshed, ProxySource, SHORT_METRICS, ask_all};
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
        let service = sample.service().to_owned();
        all.entry(service).or_default().take(sample);
    }
    all
}

/// Counters by pod (`namespace/name`), then by service.
type Scraped = BTreeMap<String, BTreeMap<String, CountedTraffic>>;

async fn scrape<S: ProxySource>(source: &S, pods: &[Meshed]) -> Scraped {
    let answers = ask_all(source, pods, SHORT_METRICS).await;
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
pub(crate) async fn stat<S: ProxySource>(source: &S, args: &Stat) -> Result<()> {
    let pods = match &args.target {
        Some(target) => source.select(target, &args.within).await?,
        None => source.proxies(&args.within).await?,
    };
    let before = scrape(source, &pods).await;
    tokio::time::sleep(args.window).await;
    let after = scrape(source, &pods).await;
    let rows = rows(&pods, &before, &after, args.by, args.window.as_secs_f64());
    if output::structured(&rows, args.format.output)? {
        return Ok(());
    }
    if rows.is_empty() {
        line(&source.no_proxies());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxies::testing;

    const BEFORE: &str = "\
istio_requests_total{reporter=\"destination\",destination_service=\"web.shop\",response_code=\"200\"} 10
istio_request_duration_milliseconds_bucket{reporter=\"destination\",destination_service=\"web.shop\",le=\"5\"} 10
istio_request_duration_milliseconds_bucket{reporter=\"destination\",destination_service=\"web.shop\",le=\"+Inf\"} 10
istio_requests_total{reporter=\"source\",destination_service=\"other\",response_code=\"200\"} 99
";
    const AFTER: &str = "\
istio_requests_total{reporter=\"destination\",destination_service=\"web.shop.svc.cluster.local\",response_code=\"200\"} 25
istio_requests_total{reporter=\"destination\",destination_service=\"web.shop\",response_code=\"503\"} 5
istio_request_duration_milliseconds_bucket{reporter=\"destination\",destination_service=\"web.shop\",le=\"5\"} 10
istio_request_duration_milliseconds_bucket{reporter=\"destination\",destination_service=\"web.shop\",le=\"10\"} 30
istio_request_duration_milliseconds_bucket{reporter=\"destination\",destination_service=\"web.shop\",le=\"+Inf\"} 30
";

    fn pod(name: &str) -> Meshed {
        Meshed {
            workload: "deployment/web".into(),
            ..testing::proxy("shop", name)
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
}
