//! The certificates that pods trust, as a ConfigMap in every namespace.

use crate::names::TRUST_BUNDLE;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use std::collections::BTreeMap;

/// Key of the ConfigMap.
const KEY: &str = "ca.crt";

/// Puts the bundle into each namespace, and again when a namespace changes, until the process ends.
pub async fn publish(client: Client, bundle: String) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let seen = watcher(namespaces, watcher::Config::default()).default_backoff();
    let mut seen = seen.applied_objects().boxed();
    while let Some(namespace) = seen.next().await {
        let namespace = match namespace {
            Ok(namespace) => namespace,
            Err(error) => {
                tracing::warn!(%error, "namespaces are not watched");
                continue;
            }
        };
        // Nothing can be made in one that ends.
        if namespace.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let name = namespace.name_any();
        if let Err(error) = put(&client, &name, &bundle).await {
            tracing::warn!(namespace = name, %error, "the trust bundle is not there");
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
