//! `tulle metrics`: whether sidecars of a namespace say that Prometheus may scrape them.

use super::cluster::Cluster;
use super::namespace::{exists, restart_or_say};
use crate::args::cluster::{Metrics, Namespaces};
use crate::failure::Result;
use crate::output::line;
use serde_json::json;
use tulle_kube::names::METRICS;

/// Does it.
pub(crate) async fn metrics(cluster: &Cluster, command: &Metrics) -> Result<()> {
    match command {
        Metrics::Enable(named) => label(cluster, named, None).await,
        Metrics::Disable(named) => label(cluster, named, Some("disabled")).await,
    }
}

async fn label(cluster: &Cluster, named: &Namespaces, value: Option<&str>) -> Result<()> {
    for name in &named.names {
        exists(cluster, name).await?;
    }
    for name in &named.names {
        let change = json!({ "metadata": { "labels": { METRICS: value } } });
        cluster
            .patch(&format!("/api/v1/namespaces/{name}"), &change)
            .await?;
        let not = if value.is_some() { "not " } else { "" };
        line(&format!(
            "{name}: sidecars that start from now on are {not}annotated for Prometheus"
        ));
    }
    restart_or_say(cluster, named).await
}
