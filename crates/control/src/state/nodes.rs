//! The hosts that have joined. A removed host has no authority from that moment on, whatever its
//! certificate and those of its sidecars say: the controller asks for the membership, and sidecars are told which
//! they refuse.

use super::host_authority::{CLOCKS, unix};
use super::{MeshState, Refused, identity, removal};
use crate::ca::AuthorityError;
use crate::ca::membership::Membership;
use crate::index::{Edit, Index};
use crate::store::{Space, Store, StoreError, Write};
use crate::tokens;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tulle_model::resource::Serial;

/// Hosts at a time.
const MAX_NODES: usize = 10_000;
/// Memberships that sidecars are told to refuse; later ones take the place of those whose certificates end first.
const MAX_REMOVED: usize = 1_000;
/// Certificates of a host are refused for at least as long, and its clock may be wrong.
const LONGEST: Duration = Duration::from_secs(31 * 24 * 3600);
/// Key among the settings: until when certificates that came by hosts are valid.
const CERTIFICATES_END: &str = "certificates-of-hosts-end";
/// Seconds that the end is noted ahead, so that it is seldom written.
const AHEAD: i64 = 24 * 3600;

/// The memberships of removed hosts, and until when they are refused, in Unix seconds.
pub(super) type Removed = BTreeMap<Serial, i64>;

/// Reads what is stored. An unreadable entry stops the controller: what it refuses must not be accepted again unseen.
pub(super) fn removed(store: &dyn Store) -> Result<Removed, StoreError> {
    let values = store.values(Space::Removed)?.into_iter();
    let read = values.map(|(key, value)| {
        let until = <[u8; 8]>::try_from(value);
        let until = until.ok().map(i64::from_be_bytes);
        let read = Serial::parse(&key).ok().zip(until);
        read.ok_or_else(|| StoreError::Failed {
            doing: "reading which hosts were removed",
            reason: format!("{key}: it is no membership with a time"),
        })
    });
    read.collect()
}

/// Reads until when certificates that came by hosts are valid, in Unix seconds; 0: none was noted. One that cannot be
/// read stops the controller: removed hosts would be forgotten too early.
pub(super) fn certificates_end(store: &dyn Store) -> Result<AtomicI64, StoreError> {
    let Some(value) = store.value(Space::Settings, CERTIFICATES_END)? else {
        return Ok(AtomicI64::default());
    };
    let end = <[u8; 8]>::try_from(value).map_err(|_| StoreError::Failed {
        doing: "reading until when certificates of hosts are valid",
        reason: format!("{CERTIFICATES_END}: it is no time"),
    })?;
    Ok(i64::from_be_bytes(end).into())
}

/// The hosts and their memberships.
#[derive(Debug, Default)]
pub(crate) struct JoinedHosts {
    by_name: BTreeMap<String, Membership>,
    memberships: BTreeSet<Membership>,
}

impl JoinedHosts {
    /// Reads the hosts that are stored.
    pub(super) fn load(store: &dyn Store) -> Result<Self, StoreError> {
        let mut nodes = Self::default();
        for (name, value) in store.values(Space::Nodes)? {
            let known = Membership::from_bytes(&value);
            let membership = known.unwrap_or_else(|| Membership::before_memberships(&name));
            nodes.add(name, membership);
        }
        Ok(nodes)
    }

    pub(crate) fn add(&mut self, name: String, membership: Membership) {
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

    /// Whether a host has joined before there were memberships, so that its certificate may name none.
    pub(crate) fn is_from_before(&self, name: &str) -> bool {
        self.membership(name) == Some(Membership::before_memberships(name))
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
        let until = self.refused_until(&index, SystemTime::now());
        let last = {
            let removed = self.removed.lock();
            let removed = removed.unwrap_or_else(PoisonError::into_inner);
            removed.values().max().copied()
        };
        // The end that was noted is the same for many, of whom the one that was removed first is forgotten first.
        let until = last.map_or(until, |last| until.max(last.saturating_add(1)));
        let membership = self.membership_of(name).map(Serial::from);
        writes.extend(membership.iter().map(|membership| Write::PutValue {
            space: Space::Removed,
            key: membership.as_str().to_owned(),
            value: until.to_be_bytes().to_vec(),
        }));
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
        edits.extend(self.unread.endings(&writes, &index.inputs().trust_domain));
        removed
            .iter()
            .for_each(|workload| self.newest.forget(workload));
        self.nodes.send_modify(|nodes| nodes.remove(name));
        if let Some(membership) = membership {
            let removed = self.removed.lock();
            let mut removed = removed.unwrap_or_else(PoisonError::into_inner);
            removed.insert(membership, until);
        }
        self.forget_host(name);
        self.change(&mut index, edits, true);
        self.unread.forget(&writes);
        tracing::info!(node = name, "removed from the mesh");
        Ok(true)
    }

    /// Notes until when a certificate is valid that came by this membership, before anybody has it.
    pub(super) fn note_certificate(
        &self,
        membership: Membership,
        not_after: SystemTime,
    ) -> Result<(), Refused> {
        // A removal reads the note: whoever is removed already gets nothing, and no greater end is overwritten.
        let _index = self.index();
        if !self.nodes.borrow().has(membership) {
            return Err(Refused::NotAllowed(
                "the host by which the certificate would come has been removed from the mesh"
                    .to_owned(),
            ));
        }
        let end = unix(not_after);
        if end <= self.certificates_end.load(Ordering::Relaxed) {
            return Ok(());
        }
        let end = end.saturating_add(AHEAD);
        self.store.commit(&[Write::PutValue {
            space: Space::Settings,
            key: CERTIFICATES_END.to_owned(),
            value: end.to_be_bytes().to_vec(),
        }])?;
        self.certificates_end.store(end, Ordering::Relaxed);
        Ok(())
    }

    /// When the last certificate ends that a host which is removed now may have. The Mesh may have said another lifetime
    /// when it was given, and those that were given by earlier versions were not noted.
    fn refused_until(&self, index: &Index, now: SystemTime) -> i64 {
        let longest = identity::lifetime(index.inputs()).max(LONGEST);
        let noted = self.certificates_end.load(Ordering::Relaxed);
        unix(now + longest).max(noted.saturating_add(CLOCKS))
    }

    /// Forgets removed hosts whose certificates have all ended. Returns which memberships sidecars are to refuse, if that is news.
    pub(super) fn limit_removed(&self, index: &Index, now: SystemTime) -> Option<Edit> {
        let removed = self.removed.lock();
        let mut removed = removed.unwrap_or_else(PoisonError::into_inner);
        let mut over: Vec<Serial> = Vec::new();
        removed.retain(|membership, until| {
            let stays = unix(now) < *until;
            if !stays {
                over.push(membership.clone());
            }
            stays
        });
        while removed.len() > MAX_REMOVED {
            let first = removed.iter().min_by_key(|(_, until)| **until);
            let Some(first) = first.map(|(membership, _)| membership.clone()) else {
                break;
            };
            tracing::warn!(
                membership = first.as_str(),
                "a host that was removed long ago is refused no longer: there are more than {MAX_REMOVED}"
            );
            removed.remove(&first);
            over.push(first);
        }
        let writes = over.iter().map(|membership| Write::DeleteValue {
            space: Space::Removed,
            key: membership.as_str().to_owned(),
        });
        let writes: Vec<_> = writes.collect();
        if !writes.is_empty()
            && let Err(error) = self.store.commit(&writes)
        {
            // The next start of the controller finds the same.
            tracing::error!(%error, "cannot forget removed hosts");
        }
        let refused: BTreeSet<Serial> = removed.keys().cloned().collect();
        (refused != index.inputs().removed_hosts).then_some(Edit::RemovedHosts(refused))
    }
}

#[cfg(test)]
mod tests;
