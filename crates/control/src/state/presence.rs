//! Whether joined hosts are still there. One that dies, or loses the network, says nothing: where its
//! workloads ran would be called for ever. Its session is its watch, which ends at the latest 40
//! seconds after the host did (the kernel's keep-alive).

use super::MeshState;
use super::rotation::bounded_report;
use crate::index::{Edit, Placement};
use crate::store::{Space, Store, StoreError};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tulle_api::v1;

/// A host without a session for this long is away, unless the configuration says otherwise: nobody is
/// sent to its workloads until it is back. Long enough for a controller or a host's supervisor that is
/// started again.
pub const HOST_AWAY: Duration = Duration::from_secs(60);
/// Looks in that time.
const LOOKS: u32 = 12;

/// Hosts by name.
#[derive(Default)]
pub(super) struct Presence(Mutex<BTreeMap<String, Host>>);

struct Host {
    sessions: usize,
    /// When its last session ended, or when the controller started if the host has had none.
    ended: Instant,
    away: bool,
    /// The certificates in force at the host, as far as it has reported them.
    trusts: Option<v1::TrustReport>,
}

impl Presence {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Host>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A host is known from now on; it need not have a session.
    pub(super) fn know(&self, node: &str) {
        self.lock().entry(node.to_owned()).or_insert(Host {
            sessions: 0,
            ended: Instant::now(),
            away: false,
            trusts: None,
        });
    }

    pub(super) fn is_away(&self, node: &str) -> bool {
        self.lock().get(node).is_some_and(|host| host.away)
    }
}

/// A host's session; it ends when this is dropped.
pub(crate) struct HostSession<'a> {
    state: &'a MeshState,
    node: String,
}

impl Drop for HostSession<'_> {
    fn drop(&mut self) {
        if let Some(host) = self.state.presence.lock().get_mut(&self.node) {
            host.sessions = host.sessions.saturating_sub(1);
            host.ended = Instant::now();
        }
    }
}

impl MeshState {
    /// A host is there; if it was away, its workloads are found again.
    pub(crate) fn host_session(&self, node: &str) -> HostSession<'_> {
        self.presence.know(node);
        let mut back = false;
        if let Some(host) = self.presence.lock().get_mut(node) {
            host.sessions += 1;
            back = std::mem::take(&mut host.away);
        }
        if back {
            self.call_again(node);
        }
        HostSession {
            state: self,
            node: node.to_owned(),
        }
    }

    /// A host says what certificates are in force there.
    pub(crate) fn host_trusts(&self, node: &str, report: v1::TrustReport) {
        if let Some(host) = self.presence.lock().get_mut(node) {
            host.trusts = Some(bounded_report(report));
        }
    }

    /// SPIFFE ids of the hosts that are there and for which something holds.
    pub(super) fn hosts_where(
        &self,
        holds: impl Fn(Option<&v1::TrustReport>) -> bool,
    ) -> Vec<String> {
        let trust_domain = self.trust_domain();
        let hosts = self.presence.lock();
        let there = hosts
            .iter()
            .filter(|(_, host)| !host.away && holds(host.trusts.as_ref()));
        there
            .map(|(name, _)| format!("spiffe://{trust_domain}/node/{name}"))
            .collect()
    }

    fn call_again(&self, node: &str) {
        let mut index = self.index();
        let stored = match placements(&*self.store) {
            Ok(stored) => stored,
            Err(error) => return tracing::error!(node, %error, "its workloads stay excluded"),
        };
        tracing::info!(node, "the host is back");
        let edits = stored.into_iter().filter(|p| p.node == node);
        let edits: Vec<Edit> = edits.map(Edit::Place).collect();
        self.change(&mut index, edits, false);
    }

    /// Takes the workloads of hosts that are away out of the index, for as long as they are.
    pub(crate) async fn watch_hosts(&self, away: Duration) {
        loop {
            tokio::time::sleep(away / LOOKS).await;
            self.leave_out(away);
        }
    }

    fn leave_out(&self, away: Duration) {
        let mut left = Vec::new();
        for (node, host) in self.presence.lock().iter_mut() {
            if host.sessions == 0 && !host.away && host.ended.elapsed() >= away {
                host.away = true;
                left.push(node.clone());
            }
        }
        for node in left {
            let mut index = self.index();
            // It may have come back while this waited for the index.
            if !self.presence.is_away(&node) {
                continue;
            }
            let placements = index.inputs().placements.values();
            let of_node = placements.filter(|p| p.node == node);
            let edits: Vec<Edit> = of_node
                .map(|p| Edit::Unplace {
                    workload: p.workload.clone(),
                })
                .collect();
            if !edits.is_empty() {
                tracing::warn!(node, "the host is away: its workloads get no requests");
                self.change(&mut index, edits, false);
            }
        }
    }

    pub(super) fn forget_host(&self, node: &str) {
        self.presence.lock().remove(node);
    }
}

/// Where workloads run, as it is stored.
pub(super) fn placements(store: &dyn Store) -> Result<Vec<Placement>, StoreError> {
    let read = |(workload, value): (String, Vec<u8>)| {
        let placement = serde_json::from_slice(&value);
        // The host that runs the workload reports it again.
        let warn = |e| tracing::warn!(workload, error = %e, "placement cannot be read");
        placement.map_err(warn).ok()
    };
    let stored = store.values(Space::Placements)?;
    Ok(stored.into_iter().filter_map(read).collect())
}
