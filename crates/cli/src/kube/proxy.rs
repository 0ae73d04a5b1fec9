//! `tulle proxy`: what proxies say of themselves, over their administration on loopback.

use super::cluster::Cluster;
use super::workloads::{self, ADMIN_PORT, Meshed};
use crate::args::cluster::{Proxy, Query, Within};
use crate::args::{Format, Output};
use crate::failure::Result;
use crate::output::{self, Columns, coarse, line};
use serde::Serialize;
use serde_json::Value;
use std::time::{SystemTime, UNIX_EPOCH};

/// Does it.
pub(crate) async fn proxy(cluster: &Cluster, command: &Proxy) -> Result<()> {
    match command {
        Proxy::Get {
            query,
            target,
            within,
        } => get(cluster, *query, target, within).await,
        Proxy::List { within, format } => list(cluster, within, format).await,
    }
}

async fn get(cluster: &Cluster, query: Query, target: &str, within: &Within) -> Result<()> {
    let path = match query {
        Query::Config => "/config",
        Query::Certificates => "/certificates",
        Query::Endpoints => "/endpoints",
        Query::Errors => "/errors",
        Query::Metrics => "/metrics",
        Query::Ready => "/ready",
    };
    for pod in workloads::select(cluster, target, within)
        .await?
        .iter()
        .take(1)
    {
        let answer = cluster.ask(pod.key(), ADMIN_PORT, path).await?;
        match serde_json::from_str::<Value>(&answer) {
            Ok(value) => drop(output::structured(&value, Format::Json)?),
            Err(_) => line(answer.trim_end()),
        }
    }
    Ok(())
}

/// A proxy and what it says of itself.
#[derive(Serialize)]
pub(super) struct Row {
    namespace: String,
    pod: String,
    workload: String,
    ready: bool,
    version: String,
    identity: String,
    /// The generation of its configuration; absent if it does not answer.
    generation: Option<u64>,
    /// Why it refused its last configuration.
    refused: Option<String>,
    /// End of its certificate, seconds since 1970.
    certificate_not_after: Option<i64>,
    restarts: u64,
}

/// A proxy's configuration in force and its certificates.
pub(crate) struct Said {
    pub(crate) config: Value,
    pub(crate) certificates: Value,
}

/// Asks each proxy for both; an error for those that do not answer.
pub(crate) async fn said<'a>(
    cluster: &Cluster,
    pods: &'a [Meshed],
) -> Vec<(&'a Meshed, Result<Said>)> {
    let (configs, certificates) = tokio::join!(
        workloads::ask_all(cluster, pods, "/config"),
        workloads::ask_all(cluster, pods, "/certificates")
    );
    let both = configs.into_iter().zip(certificates);
    both.map(|((pod, config), (_, certificates))| {
        let said = config.and_then(|config| {
            Ok(Said {
                config: serde_json::from_str(&config).unwrap_or_default(),
                certificates: serde_json::from_str(&certificates?).unwrap_or_default(),
            })
        });
        (pod, said)
    })
    .collect()
}

/// Why a configuration was refused, as `GET /config` tells it.
pub(crate) fn refused(config: &Value) -> Option<String> {
    let refused = config.get("refused")?;
    let of = |what| refused.get(what)?.as_str().map(str::to_owned);
    of("configuration").or_else(|| of("certificates"))
}

/// All of a namespace, or of the cluster.
pub(super) async fn rows(cluster: &Cluster, within: &Within) -> Result<Vec<Row>> {
    let pods = workloads::meshed(cluster, within).await?;
    Ok(said(cluster, &pods).await.into_iter().map(row).collect())
}

async fn list(cluster: &Cluster, within: &Within, format: &Output) -> Result<()> {
    let rows = rows(cluster, within).await?;
    if output::structured(&rows, format.output)? {
        return Ok(());
    }
    line(&table(rows));
    Ok(())
}

/// Proxies in columns.
pub(super) fn table(rows: Vec<Row>) -> String {
    if rows.is_empty() {
        return "no pod has a sidecar; `tulle namespace add NAME --restart` changes that"
            .to_owned();
    }
    let mut columns = Columns::new(&[
        "NAMESPACE",
        "POD",
        "READY",
        "VERSION",
        "IDENTITY",
        "CONFIG",
        "CERTIFICATE",
        "RESTARTS",
    ]);
    for row in rows {
        columns.row(vec![
            row.namespace,
            row.pod,
            if row.ready { "yes" } else { "no" }.to_owned(),
            row.version,
            row.identity,
            match (row.refused, row.generation) {
                (Some(_), _) => "refused".to_owned(),
                (None, Some(generation)) => format!("{generation}"),
                (None, None) => "no answer".to_owned(),
            },
            row.certificate_not_after
                .map(|t| coarse(t - now()))
                .unwrap_or_default(),
            row.restarts.to_string(),
        ]);
    }
    columns.render()
}

fn row((pod, said): (&Meshed, Result<Said>)) -> Row {
    let said = said.ok();
    let config = said.as_ref().map(|s| &s.config);
    Row {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        workload: pod.workload.clone(),
        ready: pod.sidecar_ready,
        version: pod.version.clone(),
        identity: config
            .map(|c| workloads::text(c, "/identity").to_owned())
            .unwrap_or_default(),
        generation: config.and_then(|c| c.get("generation")?.as_u64()),
        refused: config.and_then(refused),
        certificate_not_after: said
            .as_ref()
            .and_then(|s| s.certificates.get("not_after")?.as_i64()),
        restarts: pod.restarts,
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |n| i64::try_from(n.as_secs()).unwrap_or(i64::MAX))
}
