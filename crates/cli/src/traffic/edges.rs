//! `tulle edges`: who has talked to whom since the proxies were started.

use super::{milliseconds, outside, percent, short};
use crate::args::cluster::Within;
use crate::args::traffic::Edges;
use crate::failure::Result;
use crate::metrics::{self, Edge};
use crate::output::{self, Columns, line};
use crate::proxies::{ProxySource, SHORT_METRICS, ask_all};
use tulle_model::samples::{self, MetricSample};

/// Returns the callers and services that have talked since the proxies started.
pub(crate) async fn seen<S: ProxySource>(source: &S, within: &Within) -> Result<Vec<Edge>> {
    // Both sides report, so a caller in another namespace is seen, too.
    let proxies = source.proxies(&Within::default()).await?;
    let answers = ask_all(source, &proxies, SHORT_METRICS).await;
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
pub(crate) async fn edges<S: ProxySource>(source: &S, args: &Edges) -> Result<()> {
    let edges = seen(source, &args.within).await?;
    if output::structured(&edges, args.format.output)? {
        return Ok(());
    }
    line(&table(edges));
    let outside = outside::tables(&outside::seen(source, &args.within).await?);
    if !outside.is_empty() {
        line(&format!("\n{outside}"));
    }
    Ok(())
}

/// Edges in columns.
pub(crate) fn table(edges: Vec<Edge>) -> String {
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
