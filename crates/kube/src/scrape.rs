//! Annotations that tell Prometheus what to scrape, and the namespaces whose sidecars it does not
//! scrape: those with the label `tulle.dev/metrics: disabled`, and only they are watched.

use crate::metadata::all_metadata;
use crate::names::METRICS;
use crate::restarting_watch::restarting_watch;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, ResourceExt};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The annotations of a pod that make Prometheus scrape this port.
pub fn annotations(port: u16) -> [(String, String); 3] {
    [
        ("scrape", "true".to_owned()),
        ("port", port.to_string()),
        ("path", "/metrics".to_owned()),
    ]
    .map(|(key, value)| (format!("prometheus.io/{key}"), value))
}

/// Their names, as far as they are known.
#[derive(Debug, Clone, Default)]
pub struct Unscraped(Arc<Mutex<BTreeSet<String>>>);

impl Unscraped {
    /// Whether a namespace is one of them.
    pub fn has(&self, namespace: &str) -> bool {
        self.names().contains(namespace)
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the cluster until the process ends.
    pub async fn follow(self, client: Client) {
        let labelled = Config::default().labels(&format!("{METRICS}=disabled"));
        let api = all_metadata::<Namespace>(client);
        let mut seen =
            restarting_watch("Namespace", move || watcher(api.clone(), labelled.clone())).boxed();
        let mut listed = BTreeSet::new();
        while let Some(event) = seen.next().await {
            match event {
                Ok(Event::Apply(namespace)) => drop(self.names().insert(namespace.name_any())),
                Ok(Event::Delete(namespace)) => drop(self.names().remove(&namespace.name_any())),
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(namespace)) => drop(listed.insert(namespace.name_any())),
                Ok(Event::InitDone) => *self.names() = std::mem::take(&mut listed),
                // The known namespaces stay in force; the watcher tries again.
                Err(error) => tracing::warn!(%error, "namespaces are not watched"),
            }
        }
    }
}
