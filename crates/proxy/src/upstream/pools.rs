//! The pools of a worker: one for each endpoint.

use super::{Upstream, UpstreamKey};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// A worker's endpoints and their connections.
#[derive(Default)]
pub struct Pools(RefCell<HashMap<UpstreamKey, Rc<Upstream>>>);

impl Pools {
    /// Returns the pool for an endpoint; the same one as long as address and identities are the
    /// same.
    pub fn get(&self, key: UpstreamKey) -> Rc<Upstream> {
        let mut upstreams = self.0.borrow_mut();
        upstreams
            .entry(key.clone())
            .or_insert_with(|| Rc::new(Upstream::new(key)))
            .clone()
    }

    /// Closes connections that are of no more use.
    pub fn sweep(&self, epoch: Option<u64>) {
        for upstream in self.0.borrow().values() {
            upstream.sweep(epoch);
        }
        self.forget_unused();
    }

    /// Forgets endpoints that nobody knows any more.
    pub fn forget_unused(&self) {
        self.0.borrow_mut().retain(|_, upstream| {
            let used = Rc::strong_count(upstream) > 1 || upstream.is_busy();
            if !used {
                upstream.retire();
            }
            used
        });
    }

    /// Takes no more exchanges on present connections.
    pub fn retire(&self) {
        for upstream in self.0.borrow().values() {
            upstream.retire();
        }
    }
}
