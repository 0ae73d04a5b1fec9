//! The application's own metrics, once it has a sidecar.
//!
//! A pod says by `prometheus.io/*` where it wants to be scraped. Prometheus has no certificate of the mesh,
//! so a strict sidecar would refuse it there. The sidecar asks the application instead and serves both, and
//! the annotations name the sidecar's port. Their former values are kept in an annotation of their own.

use crate::names::{APPLICATION_METRICS, METRICS_PORT};
use crate::scrape;
use serde_json::{Map, Value, json};
use tulle_model::bootstrap::ApplicationMetrics;

const PREFIX: &str = "prometheus.io/";
/// Annotations that decide where a scraper asks.
const PLACE: [&str; 4] = ["scrape", "scheme", "port", "path"];
/// Ports of the sidecar, which it would ask itself.
const OWN: std::ops::RangeInclusive<u16> = 15000..=15090;

/// The result for a pod's annotations for Prometheus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scraped {
    /// They stay as they are.
    AsTheyAre,
    /// They name the sidecar's port: the pod has none.
    Sidecar,
    /// They name the sidecar's port, where the application's metrics are, too.
    Both(ApplicationMetrics),
}

/// Decides what becomes of a pod's annotations for Prometheus.
pub(super) fn scraped(pod: &Value, wanted: bool) -> Scraped {
    if !wanted {
        return Scraped::AsTheyAre;
    }
    let annotations = pod.pointer("/metadata/annotations");
    let annotations = annotations.and_then(Value::as_object);
    let own = |all: &Map<String, Value>| all.keys().any(|key| key.starts_with(PREFIX));
    let Some(annotations) = annotations.filter(|all| own(all)) else {
        return Scraped::Sidecar;
    };
    application(annotations, pod).map_or(Scraped::AsTheyAre, Scraped::Both)
}

/// Where the annotations say that the application is scraped; `None` if they do not, or not clearly.
fn application(annotations: &Map<String, Value>, pod: &Value) -> Option<ApplicationMetrics> {
    let said = |name: &str| {
        let said = annotations.get(&format!("{PREFIX}{name}"));
        let said = said.and_then(Value::as_str).map(str::trim);
        said.filter(|said| !said.is_empty())
    };
    if said("scrape") != Some("true") {
        return None;
    }
    let port = match said("port") {
        Some(port) => port.parse().ok(),
        None => only_port(pod),
    };
    let path = said("path").unwrap_or("/metrics");
    let tls = match said("scheme") {
        None | Some("http") => false,
        Some("https") => true,
        Some(_) => return None,
    };
    Some(ApplicationMetrics {
        port: port.filter(|port| *port != 0 && !OWN.contains(port))?,
        path: match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("/{path}"),
        },
        tls,
    })
}

/// The port of the pod's containers, if there is exactly one.
fn only_port(pod: &Value) -> Option<u16> {
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
    let ports = containers
        .into_iter()
        .flatten()
        .filter_map(|c| c.get("ports")?.as_array());
    let is_tcp = |p: &&Value| {
        matches!(
            p.get("protocol").and_then(Value::as_str),
            None | Some("TCP")
        )
    };
    let mut ports = ports.flatten().filter(is_tcp);
    let port = ports.next()?.get("containerPort")?.as_u64();
    port.filter(|_| ports.next().is_none())?.try_into().ok()
}

/// Rewrites the annotations.
pub(super) fn annotate(annotations: &mut Map<String, Value>, scraped: &Scraped) {
    match scraped {
        Scraped::AsTheyAre => return,
        Scraped::Sidecar => {}
        Scraped::Both(_) => {
            let before = PLACE.iter().filter_map(|name| {
                let value = annotations.remove(&format!("{PREFIX}{name}"))?;
                Some(((*name).to_owned(), value))
            });
            let before: Map<String, Value> = before.collect();
            annotations.insert(APPLICATION_METRICS.into(), json!(before).to_string().into());
        }
    }
    let told = scrape::annotations(METRICS_PORT);
    annotations.extend(told.map(|(key, value)| (key, value.into())));
}
