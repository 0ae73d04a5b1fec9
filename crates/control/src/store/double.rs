//! A store that fails or waits when a test says so.

use super::{Memory, Space, Store, StoreError, StoreWatch, StoredObject, Write, WriteOutcome};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub(crate) struct Double {
    memory: Memory,
    fails: AtomicBool,
    after_commit: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Double {
    /// Makes all commits fail from now on, or none.
    pub(crate) fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }

    /// Runs this once the next commit is done, before its caller has the answer.
    pub(crate) fn after_commit(&self, then: impl FnOnce() + Send + 'static) {
        *self.after_commit.lock().unwrap() = Some(Box::new(then));
    }
}

impl Store for Double {
    fn objects(&self) -> Result<Vec<StoredObject>, StoreError> {
        self.memory.objects()
    }

    fn object_bytes(&self, kind: &str, name: &str) -> Result<Option<usize>, StoreError> {
        self.memory.object_bytes(kind, name)
    }

    fn commit(&self, writes: &[Write]) -> Result<Vec<WriteOutcome>, StoreError> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(StoreError::Failed {
                doing: "writing",
                reason: "a test says so".to_owned(),
            });
        }
        let outcomes = self.memory.commit(writes)?;
        let then = self.after_commit.lock().unwrap().take();
        if let Some(then) = then {
            then();
        }
        Ok(outcomes)
    }

    fn value(&self, space: Space, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.memory.value(space, key)
    }

    fn values(&self, space: Space) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.memory.values(space)
    }

    fn take(&self, space: Space, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.memory.take(space, key)
    }

    fn watch(&self) -> Result<StoreWatch, StoreError> {
        self.memory.watch()
    }
}
