//! Tells the Prometheus operator which ports of which pods to scrape.

use super::template::{set, when};
use super::{namespaced, selector};
use crate::gateway;
use crate::inject::containers;
use crate::names::CONTROLLER;
use serde_json::{Value, json};

/// Name of the controller's port.
pub(super) const METRICS: &str = "metrics";

pub(super) fn templates() -> [Value; 3] {
    // Sidecars have no label of their own; a namespace that is not to be scraped has no annotations.
    let annotated = json!([{
        "sourceLabels": ["__meta_kubernetes_pod_annotation_prometheus_io_scrape"],
        "action": "keep", "regex": "true",
    }]);
    let sidecars = monitor(
        "tulle-sidecars",
        json!({}),
        containers::METRICS_PORT_NAME,
        Some(annotated),
    );
    let gateways = json!({ "matchLabels": gateway::labels() });
    let gateways = monitor("tulle-gateways", gateways, gateway::METRICS_PORT_NAME, None);
    let controller = json!({ "matchLabels": selector() });
    let controller = monitor(CONTROLLER, controller, METRICS, None);
    [sidecars, gateways, controller].map(|m| when(set("monitoring.podMonitors"), m))
}

fn monitor(name: &str, pods: Value, port: &str, relabelings: Option<Value>) -> Value {
    let mut endpoint = json!({ "port": port, "path": "/metrics" });
    if let Some(relabelings) = relabelings {
        endpoint["relabelings"] = relabelings;
    }
    json!({
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor",
        "metadata": namespaced(name),
        "spec": {
            "selector": pods, "namespaceSelector": { "any": true },
            "podMetricsEndpoints": [endpoint],
        },
    })
}
