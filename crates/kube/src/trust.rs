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
    let all = all_metadata::<Namespace>(client.clone());
    let namespaces = restarting_watch("Namespace", move || {
        watcher(all.clone(), watcher::Config::default())
    });
    let mut namespaces = namespaces.applied_objects().boxed();
    let mut written = Written::default();
    loop {
        let seen = tokio::select! {
            namespace = namespaces.next() => match namespace {
                Some(Ok(namespace)) => {
                    let name = namespace.name_any();
                    // Nothing can be created in a namespace that ends.
                    if namespace.metadata.deletion_timestamp.is_some() {
                        written.forget(&name);
                        continue;
                    }
                    Some(name)
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "namespaces are not watched");
                    continue;
                }
                None => return,
            },
            () = tokio::time::sleep(AGAIN), if !written.missing.is_empty() => None,
            () = bundles.changed() => None,
        };
        let bundle = bundles.pem();
        for name in written.due(seen, &bundle) {
            match put(&client, &name, &bundle).await {
                Ok(()) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {} // the namespace is gone
                Err(error) => {
                    tracing::warn!(namespace = name, %error, "the trust bundle could not be written");
                    written.missing.insert(name);
                }
            }
        }
    }
}

/// Which namespaces have which bundle.
#[derive(Default)]
struct Written {
    known: BTreeSet<String>,
    /// Namespaces that could not be written; they may have no further event for a long time.
    missing: BTreeSet<String>,
    bundle: String,
}

impl Written {
    fn forget(&mut self, namespace: &str) {
        self.missing.remove(namespace);
        self.known.remove(namespace);
    }

    /// Where the bundle is to be written: in the namespace that was seen or, without one, in those that lack it; and in each
    /// one when it has changed, whatever made us look.
    fn due(&mut self, seen: Option<String>, bundle: &str) -> BTreeSet<String> {
        self.known.extend(seen.clone());
        if self.bundle != bundle {
            bundle.clone_into(&mut self.bundle);
            self.missing.clear();
            return self.known.clone();
        }
        match seen {
            Some(name) => BTreeSet::from([name]),
            None => std::mem::take(&mut self.missing),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_bundle_that_a_namespace_brings_to_light_is_for_all() {
        let mut written = Written::default();
        let mut due = |seen: Option<&str>, bundle: &str| {
            let due = written.due(seen.map(str::to_owned), bundle);
            due.into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(due(Some("a"), "old"), "a");
        assert_eq!(due(Some("b"), "old"), "b");
        assert_eq!(due(Some("c"), "old new"), "a b c");
        assert_eq!(due(Some("a"), "old new"), "a");
        assert_eq!(due(None, "old new"), "");
        assert_eq!(due(None, "new"), "a b c");
        written.missing.insert("b".into());
        written.missing.insert("c".into());
        written.forget("c");
        assert_eq!(written.due(None, "new"), BTreeSet::from(["b".to_owned()]));
        assert!(written.due(None, "new").is_empty());
    }
}
