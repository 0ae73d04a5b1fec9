//! Proxies of Istio's gateways: which Services lead to them, and where they run.

use crate::import::services::{Service, labels};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Label of proxies that Istio runs for a Gateway of Gateway API.
const OF_GATEWAY_API: &str = "gateway.networking.k8s.io/gateway-name";

/// Proxies of Istio's gateways.
pub(super) struct Proxies<'s> {
    services: &'s [Service],
    /// Labels by which each Gateway chooses its proxies, by the Gateway's namespace and name.
    chosen: BTreeMap<(String, String), BTreeMap<String, String>>,
    /// Gateways of whose labels some are no text, so that more Services seem to lead to their proxies than do.
    unclear: BTreeSet<(String, String)>,
}

impl<'s> Proxies<'s> {
    pub(super) fn read(objects: &[Value], services: &'s [Service]) -> Self {
        let mut chosen = BTreeMap::new();
        let mut unclear = BTreeSet::new();
        for object in objects {
            let version = object["apiVersion"].as_str().unwrap_or_default();
            if object["kind"] != "Gateway" || !version.starts_with("networking.istio.io/") {
                continue;
            }
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
            let place = (text("namespace").to_owned(), text("name").to_owned());
            let selector = &object["spec"]["selector"];
            let mut values = selector.as_object().into_iter().flatten();
            if values.any(|(_, value)| !value.is_string()) {
                unclear.insert(place.clone());
            }
            let labels = labels(selector);
            // Without labels it would choose every pod, also those of applications.
            if !labels.is_empty() {
                chosen.insert(place, labels);
            }
        }
        Self {
            services,
            chosen,
            unclear,
        }
    }

    /// Whether a Service leads to proxies of a gateway.
    pub(super) fn are_behind(&self, service: &Service) -> bool {
        matches!(
            service.selected("istio"),
            Some("ingressgateway" | "egressgateway")
        ) || service.selected(OF_GATEWAY_API).is_some()
            || self.chosen.values().any(|labels| service.selects(labels))
    }

    /// Returns the namespaces of a Gateway's proxies, as far as Services lead to them.
    pub(super) fn namespaces(&self, namespace: &str, name: &str) -> BTreeSet<&'s str> {
        let place = (namespace.to_owned(), name.to_owned());
        let labels = self.chosen.get(&place);
        let Some(labels) = labels.filter(|_| !self.unclear.contains(&place)) else {
            return BTreeSet::new();
        };
        let theirs = self.services.iter().filter(|s| s.selects(labels));
        theirs.filter_map(|s| s.namespace.as_deref()).collect()
    }
}
