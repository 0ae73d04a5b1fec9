//! The certificates that pods trust, as a ConfigMap in every namespace.

use crate::metadata::all_metadata;
use crate::names::TRUST_BUNDLE;
use crate::restarting_watch::restarting_watch;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tulle_control::feed::Bundles;

/// Key of the ConfigMap.
const KEY: &str = "ca.crt";
/// Pause before a failed write is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Puts the bundle into each namespace, and again when it or a namespace changes, until the process
/// ends.
pub async fn publish(client: Client, mut bundles: Bundles) {
    let namespaces = all_metadata::<Namespace>(client.clone());
    let seen = restarting_watch("Namespace", move || {
        watcher(namespaces.clone(), watcher::Config::default())
    });
    let mut seen = seen.applied_objects().boxed();
    // Namespaces that could not be written; they may have no further event for a long time.
    let mut missing = BTreeSet::new();
    let mut known = BTreeSet::new();
    loop {
        let names: Vec<String> = tokio::select! {
            namespace = seen.next() => match namespace {
                Some(Ok(namespace)) => {
                    let name = namespace.name_any();
                    // Nothing can be created in a namespace that ends.
                    if namespace.metadata.deletion_timestamp.is_some() {
                        missing.remove(&name);
                        known.remove(&name);
                        continue;
                    }
                    known.insert(name.clone());
                    vec![name]
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "namespaces are not watched");
                    continue;
                }
                None => return,
            },
            () = tokio::time::sleep(AGAIN), if !missing.is_empty() => {
                std::mem::take(&mut missing).into_iter().collect()
            }
            () = bundles.changed() => known.iter().cloned().collect(),
        };
        let bundle = bundles.pem();
        for name in names {
            match put(&client, &name, &bundle).await {
                Ok(()) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {} // the namespace is gone
                Err(error) => {
                    tracing::warn!(namespace = name, %error, "the trust bundle could not be written");
                    missing.insert(name);
                }
            }
        }
    }
}

async fn put(client: &Client, namespace: &str, bundle: &str) -> kube::Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(TRUST_BUNDLE.into()),
            labels: Some(BTreeMap::from([(
                "app.kubernetes.io/managed-by".to_owned(),
                "tulle".to_owned(),
            )])),
            ..Default::default()
        },
        data: Some(BTreeMap::from([(KEY.to_owned(), bundle.to_owned())])),
        ..Default::default()
    };
    let params = PatchParams::apply("tulle-controller").force();
    api.patch(TRUST_BUNDLE, &params, &Patch::Apply(&map))
        .await?;
    Ok(())
}
