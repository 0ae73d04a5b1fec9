//! The hosts that have joined. A removed host has no authority from that moment on, whatever its
//! certificate and those of its sidecars say.

use super::{MeshState, Refused, removal};
use crate::ca::AuthorityError;
use crate::ca::membership::Membership;
use crate::store::{Space, Store, StoreError, Write};
use crate::tokens;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::watch;

/// Hosts at a time.
const MAX_NODES: usize = 10_000;

/// The hosts and their memberships.
#[derive(Debug, Default)]
pub(crate) struct JoinedHosts {
    by_name: BTreeMap<String, Membership>,
    memberships: BTreeSet<Membership>,
}

impl JoinedHosts {
    /// Reads the hosts that are stored. Those that joined before there were memberships get one.
    pub(super) fn load(store: &dyn Store) -> Result<Self, StoreError> {
        let mut nodes = Self::default();
        let mut writes = Vec::new();
        for (name, value) in store.values(Space::Nodes)? {
            let membership = match Membership::from_bytes(&value) {
                Some(known) => known,
                None => {
                    let new = Membership::new().map_err(|e| StoreError::Failed {
                        doing: "reading hosts",
                        reason: e.to_string(),
                    })?;
                    writes.push(joined(&name, new));
                    new
                }
            };
            nodes.add(name, membership);
        }
        if !writes.is_empty() {
            store.commit(&writes)?;
        }
        Ok(nodes)
    }

    fn add(&mut self, name: String, membership: Membership) {
        self.by_name.insert(name, membership);
        self.memberships.insert(membership);
    }

    fn remove(&mut self, name: &str) {
        if let Some(membership) = self.by_name.remove(name) {
            self.memberships.remove(&membership);
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.by_name.keys()
    }

    /// The membership of a host that was not removed.
    pub(crate) fn membership(&self, name: &str) -> Option<Membership> {
        self.by_name.get(name).copied()
    }

    /// Whether the host of this membership was not removed.
    pub(crate) fn has(&self, membership: Membership) -> bool {
        self.memberships.contains(&membership)
    }
}

fn joined(name: &str, membership: Membership) -> Write {
    Write::PutValue {
        space: Space::Nodes,
        key: name.to_owned(),
        value: membership.as_bytes().to_vec(),
    }
}

impl MeshState {
    /// Whether a host of this name has joined and was not removed.
    pub(crate) fn is_node(&self, name: &str) -> bool {
        self.membership_of(name).is_some()
    }

    /// The membership of a host that has joined and was not removed.
    pub(crate) fn membership_of(&self, name: &str) -> Option<Membership> {
        self.nodes.borrow().membership(name)
    }

    /// Returns the hosts, now and later.
    pub(crate) fn watch_nodes(&self) -> watch::Receiver<JoinedHosts> {
        self.nodes.subscribe()
    }

    /// Waits until a host is removed.
    pub(crate) async fn until_removed(&self, name: &str) {
        let mut nodes = self.nodes.subscribe();
        // It fails only when the state ends, and everything else with it.
        let _ = nodes
            .wait_for(|nodes| !nodes.by_name.contains_key(name))
            .await;
    }

    /// All hosts, by name.
    pub(super) fn nodes(&self) -> Vec<String> {
        self.nodes.borrow().names().cloned().collect()
    }

    /// A host has spent its token.
    pub(super) fn join(&self, name: &str) -> Result<(), Refused> {
        // The order of joining and removing is that of the store.
        let _index = self.index();
        // One that joins again without having been removed is the same.
        if self.is_node(name) {
            return Ok(());
        }
        if self.nodes.borrow().by_name.len() >= MAX_NODES {
            return Err(Refused::TooMany(format!(
                "a mesh has at most {MAX_NODES} hosts: remove some with `tulle delete node NAME`"
            )));
        }
        let failed = |e: AuthorityError| Refused::Failed(e.to_string());
        let membership = Membership::new().map_err(failed)?;
        self.store.commit(&[joined(name, membership)])?;
        self.nodes
            .send_modify(|nodes| nodes.add(name.to_owned(), membership));
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
        self.nodes.send_modify(|nodes| nodes.remove(name));
        self.forget_host(name);
        self.change(&mut index, edits, true);
        tracing::info!(node = name, "removed from the mesh");
        Ok(true)
    }
}
