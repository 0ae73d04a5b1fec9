//! `tulle proxy`: what proxies say of themselves, over their administration on loopback.

use super::{Meshed, ProxySource, ask, ask_all, now};
use crate::args::cluster::Within;
use crate::args::output::{Format, Output};
use crate::args::proxies::{Proxy, Query};
use crate::failure::Result;
use crate::output::{self, Columns, coarse, line};
use serde::Serialize;
use serde_json::Value;

/// Does it.
pub(crate) async fn run<S: ProxySource>(source: &S, command: &Proxy) -> Result<()> {
    match command {
        Proxy::Get {
            query,
            target,
            within,
        } => get(source, *query, target, within).await,
        Proxy::List { within, format } => list(source, within, format).await,
    }
}

async fn get<S: ProxySource>(
    source: &S,
    query: Query,
    target: &str,
    within: &Within,
) -> Result<()> {
    let path = match query {
        Query::Config => "/config",
        Query::Certificates => "/certificates",
        Query::Endpoints => "/endpoints",
        Query::Errors => "/errors",
        Query::Metrics => "/metrics",
        Query::Ready => "/ready",
    };
    let chosen = source.select(target, within).await?;
    for proxy in chosen.iter().take(1) {
        let answer = ask(source, proxy, path).await?;
        match serde_json::from_str::<Value>(&answer) {
            Ok(value) => drop(output::structured(&value, Format::Json)?),
            Err(_) => line(answer.trim_end()),
        }
    }
    Ok(())
}

/// A proxy and what it says of itself.
#[derive(Serialize)]
pub(crate) struct Row {
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
pub(crate) struct ProxyReport {
    pub(crate) config: Value,
    pub(crate) certificates: Value,
}

/// Asks each proxy for both; an error for those that do not answer.
pub(crate) async fn reports<'a, S: ProxySource>(
    source: &S,
    pods: &'a [Meshed],
) -> Vec<(&'a Meshed, Result<ProxyReport>)> {
    let (configs, certificates) = tokio::join!(
        ask_all(source, pods, "/config"),
        ask_all(source, pods, "/certificates")
    );
    let both = configs.into_iter().zip(certificates);
    both.map(|((pod, config), (_, certificates))| {
        let said = config.and_then(|config| {
            Ok(ProxyReport {
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
pub(crate) async fn rows<S: ProxySource>(source: &S, within: &Within) -> Result<Vec<Row>> {
    let proxies = source.proxies(within).await?;
    Ok(reports(source, &proxies)
        .await
        .into_iter()
        .map(row)
        .collect())
}

async fn list<S: ProxySource>(source: &S, within: &Within, format: &Output) -> Result<()> {
    let rows = rows(source, within).await?;
    if output::structured(&rows, format.output)? {
        return Ok(());
    }
    line(&table(rows).unwrap_or_else(|| source.no_proxies()));
    Ok(())
}

/// Proxies in columns; none if there are none.
pub(crate) fn table(rows: Vec<Row>) -> Option<String> {
    if rows.is_empty() {
        return None;
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
    Some(columns.render())
}

fn row((pod, said): (&Meshed, Result<ProxyReport>)) -> Row {
    let said = said.ok();
    let config = said.as_ref().map(|s| &s.config);
    Row {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        workload: pod.workload.clone(),
        ready: pod.sidecar_ready,
        version: pod.version.clone(),
        identity: config
            .and_then(|c| c.get("identity")?.as_str())
            .unwrap_or_default()
            .to_owned(),
        generation: config.and_then(|c| c.get("generation")?.as_u64()),
        refused: config.and_then(refused),
        certificate_not_after: said
            .as_ref()
            .and_then(|s| s.certificates.get("not_after")?.as_i64()),
        restarts: pod.restarts,
    }
}
