//! The hosts that have joined. A removed host has no authority from that moment on, whatever its
//! certificate says.

use super::{MeshState, Refused, removal};
use crate::store::{Space, Write};
use crate::tokens;

/// Hosts at a time.
const MAX_NODES: usize = 10_000;

impl MeshState {
    /// Whether a host of this name has joined and was not removed.
    pub(crate) fn is_node(&self, name: &str) -> bool {
        self.nodes.borrow().contains(name)
    }

    /// Waits until a host is removed.
    pub(crate) async fn until_removed(&self, name: &str) {
        let mut nodes = self.nodes.subscribe();
        // It fails only when the state ends, and everything else with it.
        let _ = nodes.wait_for(|nodes| !nodes.contains(name)).await;
    }

    /// All hosts, by name.
    pub(super) fn nodes(&self) -> Vec<String> {
        self.nodes.borrow().iter().cloned().collect()
    }

    /// A host has spent its token.
    pub(super) fn join(&self, name: &str) -> Result<(), Refused> {
        // The order of joining and removing is that of the store.
        let _index = self.index();
        if self.nodes.borrow().len() >= MAX_NODES {
            return Err(Refused::TooMany(format!(
                "a mesh has at most {MAX_NODES} hosts: remove some with `tulle delete node NAME`"
            )));
        }
        self.store.commit(&[Write::PutValue {
            space: Space::Nodes,
            key: name.to_owned(),
            value: Vec::new(),
        }])?;
        self.nodes.send_modify(|nodes| {
            nodes.insert(name.to_owned());
        });
        self.presence.know(name);
        Ok(())
    }

    /// Removes a host with its workloads and all tokens made for or by it; whether it had joined.
    pub(super) fn remove_node(&self, name: &str) -> Result<bool, Refused> {
        let mut index = self.index();
        if !self.is_node(name) {
            return Ok(false);
        }
        let mut writes = vec![Write::DeleteValue {
            space: Space::Nodes,
            key: name.to_owned(),
        }];
        writes.extend(tokens::withdraw(&*self.store, name)?);
        writes.extend(self.away_gone(name)?);
        let mut edits = Vec::new();
        let mut removed = Vec::new();
        for (workload, owner) in self.store.values(Space::Owners)? {
            if owner == name.as_bytes() {
                let (write, edit) = removal("Workload", &workload);
                writes.extend(write);
                edits.extend(edit);
                removed.push(workload);
            }
        }
        self.store.commit(&writes)?;
        removed
            .iter()
            .for_each(|workload| self.newest.forget(workload));
        self.nodes.send_modify(|nodes| {
            nodes.remove(name);
        });
        self.forget_host(name);
        self.change(&mut index, edits, true);
        tracing::info!(node = name, "removed from the mesh");
        Ok(true)
    }
}
