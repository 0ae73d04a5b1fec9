//! Writes the wished statuses, if this replica is the leader.

use super::ChangedStatus;
use crate::kinds::Kind;
use crate::names::CONTROLLER;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tulle_model::namespaced::ObjectName;

/// The pause after an error, or while another replica leads.
const PAUSE: Duration = Duration::from_secs(2);

/// The status that an object should have.
#[derive(Debug, Clone, PartialEq)]
pub struct StatusUpdate {
    /// The object's API version.
    pub api_version: String,
    /// Empty: it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The object's version when this wish arose. A change by somebody else since then is not
    /// overwritten.
    pub resource_version: String,
    /// The status it should have.
    pub status: ChangedStatus,
}

type Id = (&'static Kind, ObjectName);

/// The wishes that are not written yet, only the last of each object.
#[derive(Clone, Default)]
pub struct StatusUpdates(Arc<Inner>);

#[derive(Default)]
struct Inner {
    wishes: Mutex<BTreeMap<Id, StatusUpdate>>,
    more: Notify,
}

impl StatusUpdates {
    /// An object should have this status.
    pub fn want(&self, id: Id, wish: StatusUpdate) {
        self.lock().insert(id, wish);
        self.0.more.notify_one();
    }

    /// An object has the status it should have, or is gone.
    pub fn forget(&self, id: &Id) {
        self.lock().remove(id);
    }

    /// Objects of a kind should have these statuses, all others have theirs or are gone.
    pub(crate) fn want_all(
        &self,
        group: &str,
        kind: &str,
        wishes: impl Iterator<Item = (ObjectName, StatusUpdate)>,
    ) {
        let Some(kind) = Kind::find(group, kind) else {
            return;
        };
        let mut all = self.lock();
        all.retain(|(k, _), _| *k != kind);
        all.extend(wishes.map(|(name, wish)| ((kind, name), wish)));
        drop(all);
        self.0.more.notify_one();
    }

    /// Returns the wish for an object.
    #[cfg(test)]
    pub(crate) fn get(&self, id: &Id) -> Option<StatusUpdate> {
        self.lock().get(id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Id, StatusUpdate>> {
        self.0.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes until the process ends.
pub async fn write(client: Client, wishes: StatusUpdates, leads: watch::Receiver<bool>) {
    loop {
        if wishes.lock().is_empty() {
            wishes.0.more.notified().await;
        }
        if !*leads.borrow() {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        let now = wishes.lock().clone();
        let mut failed = false;
        for (id, wish) in now {
            match patch(&client, id.0, &wish).await {
                Ok(()) => {}
                // The object changed, or is gone: the watch reports it, and then there is a new
                // wish.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => {
                    tracing::warn!(object = format!("{}/{}", id.0.kind, id.1), %error, "its status cannot be written");
                    failed = true;
                    continue;
                }
            }
            let mut all = wishes.lock();
            if all.get(&id) == Some(&wish) {
                all.remove(&id);
            }
        }
        if failed {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn patch(client: &Client, kind: &Kind, wish: &StatusUpdate) -> kube::Result<()> {
    let version = wish.api_version.rsplit('/').next().unwrap_or_default();
    let resource = kind.resource(version);
    let client = client.clone();
    let api: Api<DynamicObject> = match wish.namespace.as_str() {
        "" => Api::all_with(client, &resource),
        namespace => Api::namespaced_with(client, namespace, &resource),
    };
    let body = json!({
        "metadata": { "resourceVersion": wish.resource_version },
        "status": wish.status.value(),
    });
    let parameters = PatchParams {
        field_manager: Some(CONTROLLER.into()),
        ..Default::default()
    };
    api.patch_status(&wish.name, &parameters, &Patch::Merge(&body))
        .await?;
    Ok(())
}
