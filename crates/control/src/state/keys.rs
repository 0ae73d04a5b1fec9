//! Keys of tokens that were fetched: into the index, and kept for the next start.

use super::MeshState;
use crate::index::{Edit, Index, KeySource};
use crate::store::{Space, Store, StoreError, Write};
use std::collections::BTreeSet;
use tokio::sync::watch;

/// Reads the stored sets.
pub(super) fn kept(store: &dyn Store) -> Result<Vec<Edit>, StoreError> {
    let kept = store.values(Space::Keys)?.into_iter();
    let edits = kept.filter_map(|(address, jwks)| {
        let fetched = Ok(String::from_utf8(jwks).ok()?);
        Some(Edit::Keys { address, fetched })
    });
    Ok(edits.collect())
}

impl MeshState {
    /// Sets of keys to fetch, as they are and as they change.
    pub(crate) fn key_sources(&self) -> watch::Receiver<BTreeSet<KeySource>> {
        self.key_sources.subscribe()
    }

    /// Looks which sets of keys there are to fetch.
    pub(super) fn note_key_sources(&self, index: &Index) {
        let now = index.inputs().key_sources();
        self.key_sources.send_if_modified(|known| {
            let changed = *known != now;
            if changed {
                *known = now;
            }
            changed
        });
    }

    /// Stores the result of a fetch. May block on the disk.
    pub(crate) fn keep_keys(&self, source: &KeySource, fetched: Result<String, String>) {
        let mut index = self.index();
        // While it was under way the Mesh or the objects changed.
        if !self.key_sources.borrow().contains(source) {
            return;
        }
        let address = &source.address;
        let known = index.inputs().keys.get(address);
        if known.is_some_and(|known| known.is(&fetched)) {
            return;
        }
        if let Ok(jwks) = &fetched
            && known.and_then(|k| k.jwks.as_ref()) != Some(jwks)
        {
            tracing::info!(address, "new keys of tokens");
            self.write_keys(&[Write::PutValue {
                space: Space::Keys,
                key: address.clone(),
                value: jwks.clone().into_bytes(),
            }]);
        }
        let address = address.clone();
        self.change(&mut index, [Edit::Keys { address, fetched }], true);
    }

    /// Forgets sets that nobody names any more. May block on the disk.
    pub(crate) fn forget_keys(&self, wanted: &BTreeSet<KeySource>) {
        let mut index = self.index();
        let known = index.inputs().keys.keys();
        let unwanted = known.filter(|address| wanted.iter().all(|s| s.address != **address));
        let unwanted: Vec<String> = unwanted.cloned().collect();
        if unwanted.is_empty() {
            return;
        }
        let delete = |key: &String| Write::DeleteValue {
            space: Space::Keys,
            key: key.clone(),
        };
        self.write_keys(&unwanted.iter().map(delete).collect::<Vec<_>>());
        let edits = unwanted.into_iter().map(Edit::ForgetKeys);
        self.change(&mut index, edits, true);
    }

    /// Whether every set that is wanted has been fetched, or has failed to be.
    pub(crate) fn keys_were_asked(&self) -> bool {
        let index = self.index();
        let known = &index.inputs().keys;
        let wanted = self.key_sources.borrow();
        wanted.iter().all(|s| known.contains_key(&s.address))
    }

    /// Returns why sets of keys are absent or out of date, and which stored objects cannot be read.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let problems = self.index().key_problems();
        let keys = problems.iter().map(ToString::to_string);
        keys.chain(self.unread.problems()).collect()
    }

    fn write_keys(&self, writes: &[Write]) {
        if let Err(error) = self.store.commit(writes) {
            // The keys are in use nevertheless, and are fetched again after a restart.
            tracing::warn!(%error, "fetched keys are not kept");
        }
    }
}
