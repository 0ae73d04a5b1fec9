//! A store that forgets: for tests and for a mesh that is thrown away with its process.

use super::{
    Change, Commit, Space, Store, StoreError, StoreWatch, StoredObject, WATCH_BACKLOG, Write,
    WriteOutcome,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::broadcast;

/// Objects and values in maps behind one lock.
#[derive(Debug)]
pub struct Memory {
    state: Mutex<State>,
    commits: broadcast::Sender<Arc<Commit>>,
}

#[derive(Default)]
struct State {
    revision: u64,
    objects: BTreeMap<(String, String), (u64, String)>,
    values: BTreeMap<(Space, String), Vec<u8>>,
}

impl std::fmt::Debug for State {
    /// Without the values: some are keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("revision", &self.revision)
            .field("objects", &self.objects.len())
            .finish_non_exhaustive()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// An empty store.
    pub fn new() -> Self {
        Self {
            state: Mutex::default(),
            commits: broadcast::Sender::new(WATCH_BACKLOG),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere cannot leave the maps half written: each write is one insert or remove.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn list(&self) -> Vec<StoredObject> {
        self.objects
            .iter()
            .map(|((kind, name), (revision, json))| StoredObject {
                kind: kind.clone(),
                name: name.clone(),
                json: json.clone(),
                revision: *revision,
            })
            .collect()
    }

    fn put(&mut self, revision: u64, kind: &str, name: &str, json: &str) -> WriteOutcome {
        let key = (kind.to_owned(), name.to_owned());
        let outcome = match self.objects.get(&key) {
            Some((_, old)) if old == json => return WriteOutcome::Unchanged,
            Some(_) => WriteOutcome::Configured,
            None => WriteOutcome::Created,
        };
        self.objects.insert(key, (revision, json.to_owned()));
        outcome
    }
}

impl Store for Memory {
    fn objects(&self) -> Result<Vec<StoredObject>, StoreError> {
        Ok(self.lock().list())
    }

    fn object_bytes(&self, kind: &str, name: &str) -> Result<Option<usize>, StoreError> {
        let key = (kind.to_owned(), name.to_owned());
        let state = self.lock();
        Ok(state.objects.get(&key).map(|(_, json)| json.len()))
    }

    fn commit(&self, writes: &[Write]) -> Result<Vec<WriteOutcome>, StoreError> {
        let mut state = self.lock();
        let revision = state.revision + 1;
        let mut outcomes = Vec::with_capacity(writes.len());
        let mut changes = Vec::new();
        for write in writes {
            let outcome = match write {
                Write::Put { kind, name, json } => {
                    let outcome = state.put(revision, kind, name, json);
                    if outcome != WriteOutcome::Unchanged {
                        changes.push(Change::Applied(StoredObject {
                            kind: kind.clone(),
                            name: name.clone(),
                            json: json.clone(),
                            revision,
                        }));
                    }
                    outcome
                }
                Write::Delete { kind, name } => {
                    match state.objects.remove(&(kind.clone(), name.clone())) {
                        Some(_) => {
                            changes.push(Change::Deleted {
                                kind: kind.clone(),
                                name: name.clone(),
                            });
                            WriteOutcome::Deleted
                        }
                        None => WriteOutcome::Absent,
                    }
                }
                Write::PutValue { space, key, value } => {
                    match state.values.insert((*space, key.clone()), value.clone()) {
                        None => WriteOutcome::Created,
                        Some(old) if old == *value => WriteOutcome::Unchanged,
                        Some(_) => WriteOutcome::Configured,
                    }
                }
                Write::DeleteValue { space, key } => {
                    match state.values.remove(&(*space, key.clone())) {
                        Some(_) => WriteOutcome::Deleted,
                        None => WriteOutcome::Absent,
                    }
                }
            };
            outcomes.push(outcome);
        }
        if !changes.is_empty() {
            state.revision = revision;
            // Sent under the lock, so that watchers see commits in order. No watcher is no error.
            let _ = self.commits.send(Arc::new(Commit { revision, changes }));
        }
        Ok(outcomes)
    }

    fn value(&self, space: Space, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.lock().values.get(&(space, key.to_owned())).cloned())
    }

    fn values(&self, space: Space) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let state = self.lock();
        let of_space = state
            .values
            .range((space, String::new())..)
            .take_while(|((s, _), _)| *s == space);
        Ok(of_space.map(|((_, k), v)| (k.clone(), v.clone())).collect())
    }

    fn take(&self, space: Space, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.lock().values.remove(&(space, key.to_owned())))
    }

    fn watch(&self) -> Result<StoreWatch, StoreError> {
        let state = self.lock();
        Ok(StoreWatch {
            objects: state.list(),
            commits: self.commits.subscribe(),
        })
    }
}
