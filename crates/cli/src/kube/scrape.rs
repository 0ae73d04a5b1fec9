//! `tulle metrics enable` and `disable`: whether sidecars of a namespace say that Prometheus may scrape them.

use super::cluster::Cluster;
use super::namespace::{exists, restart_or_say};
use crate::args::cluster::Namespaces;
use crate::args::proxies::Scraping;
use crate::failure::Result;
use crate::output::line;
use serde_json::json;
use tulle_kube::names::METRICS;

/// Does it.
pub(crate) async fn change(cluster: &Cluster, command: &Scraping) -> Result<()> {
    match command {
        Scraping::Enable(named) => label(cluster, named, None).await,
        Scraping::Disable(named) => label(cluster, named, Some("disabled")).await,
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
