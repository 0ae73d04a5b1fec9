//! The controller's state and everything that changes it: store, index and subscribers together.
//!
//! A write is checked, committed to the store, applied to the index and handed to the streams it
//! concerns, in this order and under one lock. So proxies see writes in the order of the store, and
//! a caller that got its answer finds the change in effect. Calls may block on the disk.

mod away;
mod check;
mod host_authority;
mod identity;
mod keys;
mod list;
pub(crate) mod nodes;
mod past;
mod place;
mod presence;
mod refused;
mod revoked;
pub(crate) mod rotation;
#[cfg(test)]
mod testing;
mod unread;

pub use presence::HOST_AWAY;
pub(crate) use refused::{Actor, Refused};

use crate::ca::issuer::External;
use crate::ca::{Authority, AuthorityError};
use crate::cluster::{Accounts, Cluster};
use crate::hub::Hub;
use crate::index::{ClusterCounts, Edit, Index, KeySource, ObjectProblem};
use crate::metrics::{Metrics, More};
use crate::objects;
use crate::reports::Reports;
use crate::store::{Space, Store, StoreError, Write, WriteOutcome};
use nodes::JoinedHosts;
use past::{Known, Past};
use place::Newest;
use presence::Presence;
use rotation::{InStore, Rotation};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::SystemTime;
use tokio::sync::watch;
use tulle_api::v1;
use tulle_model::identity::TrustDomain;
use tulle_model::manifest::{self, NODE_LABEL, Object};
use tulle_model::resource::Revoked;
use unread::Unread;

/// Most objects kept: ten times the largest mesh that was measured.
const MAX_OBJECTS: usize = 100_000;
/// Bodies in one page of resources; a client reads messages of up to 4 MiB.
const MAX_PAGE_BYTES: usize = 1024 * 1024;
/// Kind under which hosts are listed and removed. They are no manifests: they join.
const NODE: &str = "Node";
/// Key of the trust domain among the settings.
const TRUST_DOMAIN: &str = "trust-domain";

/// Makes sessions of the console for a user, or says why there is no console. The console stands above this crate.
pub type ConsoleDoor = Arc<dyn Fn(&str) -> Result<v1::ConsoleSession, String> + Send + Sync>;

pub(crate) struct MeshState {
    store: Arc<dyn Store>,
    rotation: Rotation,
    /// Signs workloads' certificates instead of the root.
    issuer: Option<External>,
    index: Mutex<Index>,
    /// A copy of the index's: handshakes need it and must not wait for a write to reach the disk.
    trust_domain: RwLock<TrustDomain>,
    /// A copy of the index's, for those who wait for changes.
    revoked: watch::Sender<Arc<Revoked>>,
    certificate_terms: watch::Sender<v1::CertificateTerms>,
    /// Hosts that joined.
    nodes: watch::Sender<JoinedHosts>,
    /// Hosts that were removed.
    removed: Mutex<nodes::Removed>,
    /// Until when certificates that came by hosts are valid, in Unix seconds. It changes under the index's lock.
    certificates_end: AtomicI64,
    /// Authorities that hosts have.
    authorities: Mutex<host_authority::All>,
    presence: Presence,
    newest: Newest,
    /// Problems that were logged already; those that are solved are removed.
    problems: Mutex<BTreeSet<ObjectProblem>>,
    /// Stored objects that this version cannot read.
    unread: Unread,
    /// Sets of keys that objects name and the Mesh allows.
    key_sources: watch::Sender<BTreeSet<KeySource>>,
    pub(crate) hub: Hub,
    pub(crate) metrics: Metrics,
    /// Reports of proxies, if anybody wants them.
    pub(crate) reports: Reports,
    past: Past,
    known: Known,
    /// A cluster's objects have been fed.
    fed: AtomicBool,
    accounts: Option<Arc<dyn Accounts>>,
    more_metrics: Option<More>,
    /// Set when the console answers, or is known not to.
    pub(crate) console: OnceLock<ConsoleDoor>,
}

impl MeshState {
    /// Reads everything from the store. An object that cannot be read, perhaps another version's, is
    /// kept, and the mesh does not stand still for it ([`Unread`]).
    pub(crate) fn load(store: Arc<dyn Store>, authority: Authority) -> Result<Self, StoreError> {
        let recorded = store.value(Space::Settings, TRUST_DOMAIN)?;
        let recorded = recorded.and_then(|v| String::from_utf8(v).ok());
        let trust_domain = recorded.and_then(|text| TrustDomain::parse(&text).ok());
        let mut index = Index::new(trust_domain.unwrap_or_default());
        let (mut edits, unread) = (Vec::new(), Unread::default());
        for stored in store.objects()? {
            match objects::read(&stored.json) {
                Ok(object) => edits.push(Edit::Put(Box::new(object))),
                Err(why) => {
                    let trust_domain = &index.inputs().trust_domain;
                    edits.extend(unread.note(&stored, &why, trust_domain));
                }
            }
        }
        let placed = presence::placements(&*store)?;
        edits.extend(placed.into_iter().map(Edit::Place));
        edits.push(revoked::edit(&revoked::all(&*store)?));
        edits.extend(keys::kept(&*store)?);
        index.apply(edits);
        let nodes = JoinedHosts::load(&*store)?;
        let removed = nodes::removed(&*store)?;
        let certificates_end = nodes::certificates_end(&*store)?;
        let authorities = Mutex::new(host_authority::all(&*store)?);
        let presence = Presence::default();
        for node in nodes.names() {
            presence.know(node);
        }
        let hub = Hub::new(index.entries().map(|(n, e)| (n.clone(), e.clone())));
        let rotation = Rotation::new(authority, Arc::new(InStore::new(store.clone())));
        let state = Self {
            store,
            rotation,
            issuer: None,
            trust_domain: RwLock::new(index.inputs().trust_domain.clone()),
            revoked: watch::Sender::new(Arc::new(index.revoked().clone())),
            certificate_terms: watch::Sender::new(identity::certificate_terms(index.inputs())),
            index: Mutex::new(index),
            nodes: watch::Sender::new(nodes),
            removed: Mutex::new(removed),
            certificates_end,
            authorities,
            presence,
            newest: Newest::default(),
            problems: Mutex::default(),
            unread,
            key_sources: watch::Sender::default(),
            hub,
            metrics: Metrics::default(),
            reports: Reports::default(),
            past: Past::default(),
            known: Known::default(),
            fed: AtomicBool::new(true),
            accounts: None,
            more_metrics: None,
            console: OnceLock::new(),
        };
        // Which authorities of hosts are over, as of what is stored: a controller may have been killed
        // before it had said so.
        state.change(&mut state.index(), [], true);
        Ok(state)
    }

    /// A state without objects, which nothing keeps.
    pub(crate) fn in_memory() -> Result<Self, AuthorityError> {
        let store = Arc::new(crate::store::Memory::new());
        let authority = Authority::open(&*store)?;
        Ok(Self::load(store, authority)?)
    }

    /// An empty state of a cluster.
    pub(crate) fn of_cluster(authority: Authority, cluster: &Cluster) -> Self {
        // Nobody is let in by certificates until the roots of another issuer are known.
        let issuer = cluster.issuer.clone();
        let issuer = issuer.map(|issuer| External::new(issuer, cluster.issuer_roots.clone()));
        let authority = authority.with_external(issuer.as_ref().map(External::roots));
        let index = Index::of_cluster(cluster.trust_domain.clone(), &cluster.namespace);
        let hub = Hub::new(index.entries().map(|(n, e)| (n.clone(), e.clone())));
        Self {
            // Nothing outlives the process: the API server has it all.
            store: Arc::new(crate::store::Memory::new()),
            rotation: Rotation::new(authority, cluster.keeper.clone()),
            issuer,
            trust_domain: RwLock::new(cluster.trust_domain.clone()),
            revoked: watch::Sender::default(),
            certificate_terms: watch::Sender::new(identity::certificate_terms(index.inputs())),
            index: Mutex::new(index),
            nodes: watch::Sender::default(),
            removed: Mutex::default(),
            certificates_end: AtomicI64::default(),
            authorities: Mutex::default(),
            presence: Presence::default(),
            newest: Newest::default(),
            problems: Mutex::default(),
            unread: Unread::default(),
            key_sources: watch::Sender::default(),
            hub,
            metrics: Metrics::default(),
            reports: Reports::default(),
            past: Past::default(),
            known: Known::default(),
            fed: AtomicBool::new(false),
            accounts: Some(cluster.accounts.clone()),
            more_metrics: Some(cluster.more_metrics.clone()),
            console: OnceLock::new(),
        }
    }

    /// Returns the reviewer of the cluster's tokens, if there is a cluster.
    pub(crate) fn accounts(&self) -> Option<&Arc<dyn Accounts>> {
        self.accounts.as_ref()
    }

    /// Returns the issuer that signs workloads' certificates instead of the root, if there is one.
    pub(crate) fn issuer(&self) -> Option<&External> {
        self.issuer.as_ref()
    }

    /// Takes in what an API server says.
    pub(crate) fn feed(&self, edits: Vec<Edit>) {
        let mut index = self.index();
        if self.fed.swap(true, Ordering::Relaxed) {
            self.remember(&index, &edits, "");
        } else {
            self.begin_past();
        }
        self.change(&mut index, edits, true);
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the index. It is locked meanwhile.
    pub(crate) fn with_index<T>(&self, ask: impl FnOnce(&Index) -> T) -> T {
        ask(&self.index())
    }

    pub(crate) fn trust_domain(&self) -> TrustDomain {
        let trust_domain = self.trust_domain.read();
        trust_domain.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Watches the identities and certificates that are refused.
    pub(crate) fn revoked(&self) -> watch::Receiver<Arc<Revoked>> {
        self.revoked.subscribe()
    }

    /// Returns the writer of further metrics, if there is one.
    pub(crate) fn more_metrics(&self) -> Option<&More> {
        self.more_metrics.as_ref()
    }

    pub(crate) fn object_count(&self) -> usize {
        self.index().inputs().count()
    }

    /// How many objects there are of each kind, and what the cluster has.
    pub(crate) fn counts(&self) -> ([(&'static str, usize); 22], Option<ClusterCounts>) {
        let index = self.index();
        (index.inputs().counts(), index.inputs().cluster_counts())
    }

    /// Makes all objects or none; of a dry run none, after the same checks.
    pub(crate) fn apply(
        &self,
        actor: &Actor,
        asked: &v1::ApplyRequest,
    ) -> Result<v1::ApplyResponse, Refused> {
        let given = &asked.objects;
        let mut batch = Vec::with_capacity(given.len());
        let mut writes = Vec::with_capacity(given.len());
        for (position, object) in given.iter().enumerate() {
            let parsed = objects::parse(&object.json).map_err(|why| {
                let name = match object.name.is_empty() {
                    true => format!("object {} of the request", position + 1),
                    false => format!("{}/{}", object.kind, object.name),
                };
                Refused::Invalid(format!("{name}: {why}"))
            })?;
            writes.push(Write::Put {
                kind: parsed.object.kind().to_owned(),
                name: parsed.object.name().to_owned(),
                json: parsed.stored,
            });
            batch.push(parsed.object);
        }
        let mut index = self.index();
        let found = self.check(&index, actor, &batch, &asked.replaces_mesh)?;
        let findings: Vec<_> = found.into_iter().map(finding).collect();
        if asked.dry_run {
            drop(index);
            // A host is not told who calls whom.
            let denied = match actor {
                Actor::Operator => self.observed_denials(&batch),
                Actor::Node(_) => Vec::new(),
            };
            let denied = denied.into_iter().map(finding);
            return Ok(v1::ApplyResponse {
                results: Vec::new(),
                findings: findings.into_iter().chain(denied).collect(),
            });
        }
        let mut edits = Vec::new();
        for object in &batch {
            match object {
                Object::Mesh(mesh) => {
                    writes.push(record_trust_domain(&mesh.spec.trust_domain));
                    // The index has room for one Mesh, and puts the new one in the place of the old.
                    let replaced = &asked.replaces_mesh;
                    if !replaced.is_empty() && replaced != object.name() {
                        writes.push(Write::Delete {
                            kind: object.kind().to_owned(),
                            name: replaced.clone(),
                        });
                    }
                }
                // A workload belongs to the host that runs it, whoever applied it: one that the
                // operator takes over is no longer the node's to change.
                Object::Workload(workload) => {
                    let node = workload.metadata.labels.get(NODE_LABEL);
                    writes.push(owner(object.name(), node));
                    let placed = self.placed_on(object.name())?;
                    if placed.is_some_and(|on| on != node.map_or("", String::as_str)) {
                        // The host that has it no longer may not say itself that it is gone.
                        writes.push(Write::DeleteValue {
                            space: Space::Placements,
                            key: object.name().to_owned(),
                        });
                        edits.push(Edit::Unplace {
                            workload: object.name().to_owned(),
                        });
                    }
                }
                _ => {}
            }
        }
        let outcomes = self.store.commit(&writes)?;
        edits.extend(self.unread.endings(&writes, &index.inputs().trust_domain));
        let mut results = Vec::with_capacity(batch.len());
        for (object, outcome) in batch.into_iter().zip(outcomes) {
            results.push(v1::Applied {
                kind: object.kind().to_owned(),
                name: object.name().to_owned(),
                outcome: match outcome {
                    WriteOutcome::Created => "created".into(),
                    WriteOutcome::Unchanged => "unchanged".into(),
                    _ => "configured".into(),
                },
            });
            if outcome != WriteOutcome::Unchanged {
                edits.push(Edit::Put(Box::new(object)));
            }
        }
        self.remember(&index, &edits, &actor.to_string());
        self.change(&mut index, edits, true);
        self.unread.forget(&writes);
        Ok(v1::ApplyResponse { results, findings })
    }

    /// Removes an object, and for a workload where it ran, or a host; whether it existed.
    pub(crate) fn delete(&self, actor: &Actor, kind: &str, name: &str) -> Result<bool, Refused> {
        if kind == NODE && *actor == Actor::Operator {
            return self.remove_node(name);
        }
        let mut index = self.index();
        if let Actor::Node(node) = actor {
            if kind != "Workload" {
                return Err(Refused::NotAllowed(format!(
                    "node {node} may delete Workloads only, not {kind}/{name}"
                )));
            }
            // A workload that cannot be read is not in the index, and has an owner all the same.
            if self.store.object_bytes(kind, name)?.is_some() {
                self.check_owner(node, name)?;
            }
        }
        let (writes, mut edits) = removal(kind, name);
        let outcomes = self.store.commit(&writes)?;
        if outcomes.first() != Some(&WriteOutcome::Deleted) {
            return Ok(false);
        }
        edits.extend(self.unread.endings(&writes, &index.inputs().trust_domain));
        if kind == "Workload" {
            self.newest.forget(name);
        }
        self.remember(&index, &edits, &actor.to_string());
        self.change(&mut index, edits, true);
        self.unread.forget(&writes);
        Ok(true)
    }

    /// Applies edits to the index and wakes the streams they concern.
    fn change(
        &self,
        index: &mut Index,
        edits: impl IntoIterator<Item = Edit>,
        may_cause_problems: bool,
    ) {
        let mut changed = index.apply(edits);
        if let Some(ended) = self.limit_authorities(index, SystemTime::now()) {
            changed.extend(index.apply([ended]));
        }
        if let Some(removed) = self.limit_removed(index, SystemTime::now()) {
            changed.extend(index.apply([removed]));
        }
        let is = &index.inputs().trust_domain;
        let known = self.trust_domain.write();
        known.unwrap_or_else(PoisonError::into_inner).clone_from(is);
        self.revoked.send_if_modified(|known| {
            let new = index.revoked();
            let other = **known != *new;
            if other {
                *known = Arc::new(new.clone());
            }
            other
        });
        let terms = identity::certificate_terms(index.inputs());
        self.certificate_terms.send_if_modified(|known| {
            let other = *known != terms;
            *known = terms;
            other
        });
        self.hub.publish(changed);
        if may_cause_problems {
            self.look_at(index);
        }
    }

    /// Looks at all objects together: what is wrong between them, and which keys they name.
    fn look_at(&self, index: &Index) {
        self.log_problems(index);
        self.note_key_sources(index);
    }

    /// Logs problems that are new.
    fn log_problems(&self, index: &Index) {
        let now: BTreeSet<ObjectProblem> = index.problems().into_iter().collect();
        let mut known = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        for problem in now.difference(&known) {
            tracing::warn!(object = problem.object, "{}", problem.text);
        }
        *known = now;
    }

    /// Returns the objects of a cluster that are refused, the problems between objects as of the index's last change,
    /// and those of certificates as of now. The refused come first: `tulle check` shows the first of them, and problems
    /// that hurt nobody else can be made in any number.
    pub(crate) fn problems(&self) -> Vec<String> {
        let (certificates, refused) = self.with_index(|index| {
            let refused = index
                .refused_objects()
                .iter()
                .map(|object| object.text.clone());
            let refused: Vec<String> = refused.collect();
            (index.certificate_problems(SystemTime::now()), refused)
        });
        let certificates = certificates.into_iter();
        let known = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.iter().map(ToString::to_string);
        let certificates = certificates.map(|p| format!("{}: {}", p.object, p.message));
        let unread = self.unread.problems().into_iter();
        let refused = refused.into_iter();
        let others = known.chain(certificates).chain(unread);
        refused.chain(others).collect()
    }

    /// Returns the present problems of certificates.
    pub(crate) fn findings(&self) -> Vec<v1::Finding> {
        let found = self.index().certificate_problems(SystemTime::now());
        found.into_iter().map(finding).collect()
    }

    /// Returns a page of the resources that say who may call whom: those whose names come after this one.
    pub(crate) fn told_of_callers(&self, after: &str) -> v1::ResourcesResponse {
        let index = self.index();
        let later = index.about_callers().filter(|(name, _)| &***name > after);
        let mut later: Vec<_> = later.collect();
        later.sort_unstable_by_key(|(name, _)| *name);
        let mut page = v1::ResourcesResponse::default();
        let mut bytes = 0;
        for (name, entry) in later {
            if bytes > MAX_PAGE_BYTES {
                page.more = true;
                break;
            }
            bytes += name.len() + entry.body.len();
            page.resources.push(v1::ToldResource {
                name: name.to_string(),
                owner: entry
                    .owner
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                body: entry.body.clone(),
            });
        }
        page
    }

    /// Why a call is allowed or not.
    pub(crate) fn explain(&self, asked: &v1::ExplainRequest) -> Result<v1::Explanation, Refused> {
        let answer = match asked.at_unix_seconds {
            0 => {
                let explained = self.index().explain(asked);
                explained.map_err(|e| Refused::NotFound(e.to_string()))?
            }
            #[allow(clippy::cast_precision_loss)] // seconds of this century
            then => self.explain_at(asked, then as f64)?,
        };
        Ok(self.with_unread(answer))
    }
}

fn finding(found: manifest::Problem) -> v1::Finding {
    v1::Finding {
        code: found.code.into_owned(),
        object: found.object,
        field: found.field,
        message: found.message,
    }
}

/// Builds the writes and edits that delete an object.
fn removal(kind: &str, name: &str) -> (Vec<Write>, Vec<Edit>) {
    let (kind, name) = (kind.to_owned(), name.to_owned());
    let delete = Write::Delete {
        kind: kind.clone(),
        name: name.clone(),
    };
    if kind != "Workload" {
        return (vec![delete], vec![Edit::Delete { kind, name }]);
    }
    let value = |space| Write::DeleteValue {
        space,
        key: name.clone(),
    };
    let writes = vec![delete, value(Space::Placements), value(Space::Owners)];
    // First: the index finds the service of a placement through its workload.
    let unplace = Edit::Unplace {
        workload: name.clone(),
    };
    (writes, vec![unplace, Edit::Delete { kind, name }])
}

/// Records which host a workload belongs to; none: the controller's.
fn owner(workload: &str, node: Option<&String>) -> Write {
    let (space, key) = (Space::Owners, workload.to_owned());
    match node {
        Some(node) => Write::PutValue {
            space,
            key,
            value: node.clone().into_bytes(),
        },
        None => Write::DeleteValue { space, key },
    }
}

fn record_trust_domain(is: &TrustDomain) -> Write {
    Write::PutValue {
        space: Space::Settings,
        key: TRUST_DOMAIN.into(),
        value: is.as_str().as_bytes().to_vec(),
    }
}
