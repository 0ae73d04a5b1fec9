//! The controller's state and everything that changes it: store, index and subscribers together.
//!
//! A write is checked, committed to the store, applied to the index and handed to the streams it
//! concerns, in this order and under one lock, so proxies see writes in the order of the store and a
//! caller that got its answer finds the change in effect. Calls may block on the disk.

use crate::ca::{Authority, Issued, Request};
use crate::index::{self, Edit, Index, Placement, Problem};
use crate::metrics::Metrics;
use crate::objects;
use crate::serve::hub::Hub;
use crate::store::{Outcome, Space, Store, StoreError, StoredObject, Write};
use crate::tokens::{self, TokenError};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tulle_api::v1;
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_model::manifest::{Object, WorkloadSpec};

/// Most objects kept: ten times the largest mesh that was measured.
const MAX_OBJECTS: usize = 100_000;
/// Ports and addresses one placement may have.
const MAX_PLACED: usize = 256;
/// Lifetime of certificates when the Mesh does not say.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Shorter lifetimes are not issued: renewal could not keep up.
const MIN_LIFETIME: Duration = Duration::from_secs(10);

const TRUST_DOMAIN: &str = "trust-domain";

/// Who asks for a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Actor {
    /// The owner of the controller, over its Unix socket.
    Operator,
    /// A joined host of this name.
    Node(String),
}

/// Why something asked for is not done. The kinds are what a caller can do about it.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Wrong in itself.
    Invalid(String),
    /// About something that does not exist.
    NotFound(String),
    /// Not for this caller.
    NotAllowed(String),
    /// Contradicts what is there.
    Conflict(String),
    /// A limit is reached.
    TooMany(String),
    /// The controller is at fault.
    Failed(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Invalid(text)
        | Self::NotFound(text)
        | Self::NotAllowed(text)
        | Self::Conflict(text)
        | Self::TooMany(text)
        | Self::Failed(text)) = self;
        f.write_str(text)
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "store failed");
        Self::Failed(error.to_string())
    }
}

impl From<TokenError> for Refused {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Store(e) => e.into(),
            TokenError::Refused | TokenError::Expired => Self::NotAllowed(error.to_string()),
            TokenError::TooMany => Self::TooMany(error.to_string()),
            TokenError::Random => Self::Failed(error.to_string()),
        }
    }
}

/// An object of the store that this version cannot read.
#[derive(Debug)]
pub struct UnreadableObject {
    object: String,
    reason: String,
}

impl fmt::Display for UnreadableObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} in the store cannot be read: {}. It was probably written by another version: start \
             that version and delete or change the object",
            self.object, self.reason
        )
    }
}

pub(crate) struct World {
    store: Arc<dyn Store>,
    authority: Authority,
    index: Mutex<Index>,
    /// Logged already; those that are cured are forgotten.
    problems: Mutex<BTreeSet<Problem>>,
    pub(crate) hub: Hub,
    pub(crate) metrics: Metrics,
}

/// What keeps the state from being read.
#[derive(Debug)]
pub(crate) enum LoadError {
    Store(StoreError),
    Object(UnreadableObject),
}

impl From<StoreError> for LoadError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl World {
    /// Reads everything from the store.
    pub(crate) fn load(store: Arc<dyn Store>, authority: Authority) -> Result<Self, LoadError> {
        let recorded = store.value(Space::Settings, TRUST_DOMAIN)?;
        let recorded = recorded.and_then(|v| String::from_utf8(v).ok());
        let trust_domain = recorded.and_then(|text| TrustDomain::parse(&text).ok());
        let mut index = Index::new(trust_domain.unwrap_or_default());
        let mut edits = Vec::new();
        for stored in store.objects()? {
            let object = objects::parse(&stored.json).map_err(|reason| {
                LoadError::Object(UnreadableObject {
                    object: format!("{}/{}", stored.kind, stored.name),
                    reason,
                })
            })?;
            edits.push(Edit::Put(Box::new(object)));
        }
        for (workload, value) in store.values(Space::Placements)? {
            match serde_json::from_slice::<Placement>(&value) {
                Ok(placement) => edits.push(Edit::Place(placement)),
                // Whoever runs the workload reports it again.
                Err(error) => tracing::warn!(workload, %error, "placement cannot be read"),
            }
        }
        index.apply(edits);
        let hub = Hub::new(index.entries().map(|(n, e)| (n.clone(), e.clone())));
        let world = Self {
            store,
            authority,
            index: Mutex::new(index),
            problems: Mutex::default(),
            hub,
            metrics: Metrics::default(),
        };
        world.log_problems(&world.index());
        Ok(world)
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn trust_domain(&self) -> TrustDomain {
        self.index().inputs().trust_domain.clone()
    }

    pub(crate) fn object_count(&self) -> usize {
        let index = self.index();
        let inputs = index.inputs();
        usize::from(inputs.mesh.is_some())
            + inputs.workloads.len()
            + inputs.gateways.len()
            + inputs.routes.len()
            + inputs.targets.len()
            + inputs.groups.len()
    }

    /// Makes all objects or none.
    pub(crate) fn apply(
        &self,
        actor: &Actor,
        given: &[v1::Object],
    ) -> Result<Vec<v1::Applied>, Refused> {
        let mut batch = Vec::with_capacity(given.len());
        for (position, object) in given.iter().enumerate() {
            let parsed = objects::parse(&object.json).map_err(|why| {
                let name = match object.name.is_empty() {
                    true => format!("object {} of the request", position + 1),
                    false => format!("{}/{}", object.kind, object.name),
                };
                Refused::Invalid(format!("{name}: {why}"))
            })?;
            batch.push(parsed);
        }
        let mut index = self.index();
        self.check(&index, actor, &batch)?;
        let mut writes: Vec<Write> = batch
            .iter()
            .map(|object| Write::Put {
                kind: object.kind().to_owned(),
                name: object.name().to_owned(),
                json: object.to_json(),
            })
            .collect();
        for object in &batch {
            match (object, actor) {
                (Object::Mesh(mesh), _) => {
                    writes.push(record_trust_domain(&mesh.spec.trust_domain));
                }
                (Object::Workload(_), Actor::Node(node)) => writes.push(Write::PutValue {
                    space: Space::Owners,
                    key: object.name().to_owned(),
                    value: node.clone().into_bytes(),
                }),
                _ => {}
            }
        }
        let outcomes = self.store.commit(&writes)?;
        let mut edits = Vec::new();
        let mut results = Vec::with_capacity(batch.len());
        for (object, outcome) in batch.into_iter().zip(outcomes) {
            results.push(v1::Applied {
                kind: object.kind().to_owned(),
                name: object.name().to_owned(),
                outcome: match outcome {
                    Outcome::Created => "created".into(),
                    Outcome::Unchanged => "unchanged".into(),
                    _ => "configured".into(),
                },
            });
            if outcome != Outcome::Unchanged {
                edits.push(Edit::Put(Box::new(object)));
            }
        }
        self.change(&mut index, edits, true);
        Ok(results)
    }

    /// Everything that makes a batch impossible, before anything is written.
    fn check(&self, index: &Index, actor: &Actor, batch: &[Object]) -> Result<(), Refused> {
        let inputs = index.inputs();
        if batch.len() > MAX_OBJECTS || self.store_is_full(index, batch) {
            return Err(Refused::TooMany(format!(
                "a mesh has at most {MAX_OBJECTS} objects"
            )));
        }
        let mut seen = BTreeSet::new();
        let mut workloads: BTreeMap<&str, &WorkloadSpec> = BTreeMap::new();
        for object in batch {
            let id = object.id();
            if !seen.insert((object.kind(), object.name())) {
                return Err(Refused::Invalid(format!("{id} is given twice")));
            }
            if let Actor::Node(node) = actor {
                self.check_node(inputs, node, object)?;
            }
            match object {
                Object::Mesh(mesh) => {
                    self.check_trust_domain(&id, &mesh.spec.trust_domain)?;
                }
                Object::Workload(workload) => {
                    workloads.insert(&workload.metadata.name, &workload.spec);
                }
                _ => {}
            }
        }
        self.check_single_mesh(batch)?;
        let touched: BTreeSet<&str> = workloads
            .iter()
            .map(|(name, spec)| index::service_of(name, spec))
            .collect();
        for service in touched {
            let kept = inputs.workloads_of(service);
            let kept = kept.filter(|(name, _)| !workloads.contains_key(name));
            let new = workloads.iter().map(|(name, spec)| (*name, *spec));
            let new = new.filter(|(name, spec)| index::service_of(name, spec) == service);
            if let Some(conflict) = index::port_conflict(service, kept.chain(new)) {
                return Err(Refused::Conflict(conflict));
            }
        }
        Ok(())
    }

    fn store_is_full(&self, index: &Index, batch: &[Object]) -> bool {
        // Only workloads come in numbers; the exact count does not matter for a limit.
        index.inputs().workloads.len() + batch.len() > MAX_OBJECTS
    }

    fn check_single_mesh(&self, batch: &[Object]) -> Result<(), Refused> {
        let mut names = BTreeSet::new();
        for object in batch {
            if matches!(object, Object::Mesh(_)) {
                names.insert(object.name().to_owned());
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        let stored = self.store.objects()?;
        let stored = stored.into_iter().filter(|o| o.kind == "Mesh");
        names.extend(stored.map(|o| o.name));
        if names.len() > 1 {
            let names: Vec<String> = names.into_iter().map(|n| format!("Mesh/{n}")).collect();
            return Err(Refused::Conflict(format!(
                "there is at most one Mesh, not {}: delete the other first",
                names.join(" and ")
            )));
        }
        Ok(())
    }

    fn check_trust_domain(&self, object: &str, wanted: &TrustDomain) -> Result<(), Refused> {
        let recorded = self.store.value(Space::Settings, TRUST_DOMAIN)?;
        match recorded {
            Some(is) if is != wanted.as_str().as_bytes() => Err(Refused::Conflict(format!(
                "{object}: spec.trustDomain cannot change from {} to {wanted}: identities of it \
                 have been issued. Keep it, or start a new mesh in another state directory",
                String::from_utf8_lossy(&is)
            ))),
            _ => Ok(()),
        }
    }

    /// A node may only touch workloads that it applied itself.
    fn check_node(
        &self,
        inputs: &index::Inputs,
        node: &str,
        object: &Object,
    ) -> Result<(), Refused> {
        if !matches!(object, Object::Workload(_)) {
            return Err(Refused::NotAllowed(format!(
                "node {node} may apply Workloads only, not {}: apply it on the controller's host",
                object.id()
            )));
        }
        if inputs.workloads.contains_key(object.name()) {
            self.check_owner(node, object.name())?;
        }
        Ok(())
    }

    fn check_owner(&self, node: &str, workload: &str) -> Result<(), Refused> {
        let owner = self.store.value(Space::Owners, workload)?;
        if owner.as_deref() == Some(node.as_bytes()) {
            return Ok(());
        }
        Err(Refused::NotAllowed(format!(
            "Workload/{workload} was not applied by node {node}: it may not change it"
        )))
    }

    /// Removes an object, and for a workload where it ran; whether it existed.
    pub(crate) fn delete(&self, actor: &Actor, kind: &str, name: &str) -> Result<bool, Refused> {
        let mut index = self.index();
        if let Actor::Node(node) = actor {
            if kind != "Workload" {
                return Err(Refused::NotAllowed(format!(
                    "node {node} may delete Workloads only, not {kind}/{name}"
                )));
            }
            if index.inputs().workloads.contains_key(name) {
                self.check_owner(node, name)?;
            }
        }
        let mut writes = vec![Write::Delete {
            kind: kind.to_owned(),
            name: name.to_owned(),
        }];
        let mut edits = vec![Edit::Delete {
            kind: kind.to_owned(),
            name: name.to_owned(),
        }];
        if kind == "Workload" {
            writes.extend(
                [Space::Placements, Space::Owners].map(|space| Write::DeleteValue {
                    space,
                    key: name.to_owned(),
                }),
            );
            // First: the index finds the service of a placement through its workload.
            edits.insert(
                0,
                Edit::Unplace {
                    workload: name.to_owned(),
                },
            );
        }
        let outcomes = self.store.commit(&writes)?;
        if outcomes.first() != Some(&Outcome::Deleted) {
            return Ok(false);
        }
        self.change(&mut index, edits, true);
        Ok(true)
    }

    /// Records where a workload runs, or that it no longer does.
    pub(crate) fn place(&self, actor: &Actor, given: v1::Placement) -> Result<(), Refused> {
        let workload = given.workload.clone();
        let placement = placement(actor, given)?;
        let mut index = self.index();
        if !index.inputs().workloads.contains_key(&workload) {
            if placement.is_none() {
                return Ok(()); // deleted before it stopped
            }
            return Err(Refused::NotFound(format!(
                "Workload/{workload} does not exist: apply it before reporting where it runs"
            )));
        }
        if let Actor::Node(node) = actor {
            self.check_owner(node, &workload)?;
        }
        let (write, edit) = match placement {
            Some(placement) => (
                Write::PutValue {
                    space: Space::Placements,
                    key: workload,
                    value: serde_json::to_vec(&placement)
                        .map_err(|e| Refused::Failed(e.to_string()))?,
                },
                Edit::Place(placement),
            ),
            None => (
                Write::DeleteValue {
                    space: Space::Placements,
                    key: workload.clone(),
                },
                Edit::Unplace { workload },
            ),
        };
        self.store.commit(&[write])?;
        self.change(&mut index, [edit], false);
        Ok(())
    }

    /// Applies edits to the index and wakes the streams they concern.
    fn change(
        &self,
        index: &mut Index,
        edits: impl IntoIterator<Item = Edit>,
        may_cause_problems: bool,
    ) {
        let changed = index.apply(edits);
        self.hub.publish(changed);
        if may_cause_problems {
            self.log_problems(index);
        }
    }

    /// Logs problems that are new.
    fn log_problems(&self, index: &Index) {
        let now: BTreeSet<Problem> = index.problems().into_iter().collect();
        let mut known = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        for problem in now.difference(&known) {
            tracing::warn!(object = problem.object, "{}", problem.text);
        }
        *known = now;
    }

    /// Makes a join token for `svc/<name>` or `node/<name>`.
    pub(crate) fn join_token(
        &self,
        actor: &Actor,
        asked: &v1::JoinTokenRequest,
        now: SystemTime,
    ) -> Result<v1::JoinToken, Refused> {
        let index = self.index();
        let inputs = index.inputs();
        let name = asked.identity.strip_prefix("svc/");
        let name = name.or_else(|| asked.identity.strip_prefix("node/"));
        let id = format!("spiffe://{}/{}", inputs.trust_domain, asked.identity);
        let id = match name {
            Some(name) if !name.contains('/') => SpiffeId::parse(&id).ok(),
            _ => None,
        };
        let id = id.ok_or_else(|| {
            Refused::Invalid(format!(
                "{:?} is no identity to join as: use svc/<name> or node/<name>",
                asked.identity
            ))
        })?;
        if let Actor::Node(node) = actor {
            let own = asked.identity.starts_with("svc/")
                && self.runs_identity(inputs, node, id.name())?;
            if !own {
                return Err(Refused::NotAllowed(format!(
                    "node {node} runs no workload with the identity {id}: apply the Workload from \
                     this node first"
                )));
            }
        }
        let ttl = match asked.ttl_seconds {
            0 => tokens::DEFAULT_TTL,
            seconds => Duration::from_secs(seconds.into()),
        };
        self.fix_trust_domain(&inputs.trust_domain)?;
        let token = tokens::create(&*self.store, &id, ttl, now)?;
        Ok(v1::JoinToken {
            token,
            ca_fingerprint: self.authority.fingerprint().to_owned(),
            spiffe_id: id.to_string(),
        })
    }

    fn runs_identity(
        &self,
        inputs: &index::Inputs,
        node: &str,
        identity: &str,
    ) -> Result<bool, Refused> {
        for (name, spec) in &inputs.workloads {
            if index::identity_name_of(name, spec) == identity
                && self.store.value(Space::Owners, name)?.as_deref() == Some(node.as_bytes())
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// From the first identity on, the trust domain stays what it is.
    fn fix_trust_domain(&self, is: &TrustDomain) -> Result<(), Refused> {
        if self.store.value(Space::Settings, TRUST_DOMAIN)?.is_none() {
            self.store.commit(&[record_trust_domain(is)])?;
        }
        Ok(())
    }

    /// Spends a join token for the identity it stands for.
    pub(crate) fn spend(&self, token: &str, now: SystemTime) -> Result<SpiffeId, Refused> {
        Ok(tokens::spend(&*self.store, token, now)?)
    }

    /// Whether an identity may be renewed: that of a workload, gateway or node of this mesh.
    pub(crate) fn may_renew(&self, id: &SpiffeId) -> bool {
        let index = self.index();
        let node = format!("spiffe://{}/node/", index.inputs().trust_domain);
        id.as_str().starts_with(&node) || index.inputs().has_identity(id)
    }

    /// Issues a certificate to an identity that was proved.
    pub(crate) fn issue(
        &self,
        request: &Request,
        id: &SpiffeId,
        now: SystemTime,
    ) -> Result<Issued, Refused> {
        let issued = self.authority.issue(request, id, self.lifetime(), now);
        issued.map_err(|error| {
            tracing::error!(%error, identity = %id, "no certificate issued");
            Refused::Failed(error.to_string())
        })
    }

    fn lifetime(&self) -> Duration {
        let index = self.index();
        let mesh = index.inputs().mesh.as_ref();
        let lifetime = mesh.and_then(|m| m.certificate_lifetime().ok());
        lifetime.map_or(DEFAULT_LIFETIME, |l| l.max(MIN_LIFETIME))
    }

    pub(crate) fn explain(&self, asked: &v1::ExplainRequest) -> Result<v1::Explanation, Refused> {
        let explained = self.index().explain(asked);
        explained.map_err(|e| Refused::NotFound(e.to_string()))
    }

    /// Objects of a kind and name (empty: all) as this caller may see them.
    pub(crate) fn list(
        &self,
        actor: &Actor,
        kind: &str,
        name: &str,
    ) -> Result<Vec<v1::Object>, Refused> {
        let wanted = |o: &StoredObject| {
            (kind.is_empty() || o.kind == kind) && (name.is_empty() || o.name == name)
        };
        let objects = self.store.objects()?.into_iter().filter(wanted);
        Ok(objects.map(|o| self.visible(actor, o)).collect())
    }

    /// An object as a caller may see it. Environment variables often hold passwords, so a node
    /// sees those of its own workloads only.
    pub(crate) fn visible(&self, actor: &Actor, stored: StoredObject) -> v1::Object {
        let mut json = stored.json;
        if let Actor::Node(node) = actor
            && stored.kind == "Workload"
            && self.check_owner(node, &stored.name).is_err()
        {
            json = without_environment(&json);
        }
        v1::Object {
            kind: stored.kind,
            name: stored.name,
            json,
        }
    }
}

fn without_environment(json: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<serde_json::Value>(json) else {
        return String::new();
    };
    if let Some(spec) = value.get_mut("spec").and_then(|s| s.as_object_mut()) {
        spec.remove("env");
    }
    value.to_string()
}

fn record_trust_domain(is: &TrustDomain) -> Write {
    Write::PutValue {
        space: Space::Settings,
        key: TRUST_DOMAIN.into(),
        value: is.as_str().as_bytes().to_vec(),
    }
}

/// Checks a reported placement; `None`: the workload is gone.
fn placement(actor: &Actor, given: v1::Placement) -> Result<Option<Placement>, Refused> {
    let invalid = |what: String| {
        Refused::Invalid(format!(
            "the placement of Workload/{}: {what}",
            given.workload
        ))
    };
    if let Actor::Node(node) = actor
        && given.node != *node
    {
        return Err(Refused::NotAllowed(format!(
            "node {node} may report its own placements only, not those of {:?}",
            given.node
        )));
    }
    if given.gone {
        return Ok(None);
    }
    if given.ports.len() > MAX_PLACED || given.addresses.len() > MAX_PLACED {
        return Err(invalid(format!(
            "more than {MAX_PLACED} ports or addresses"
        )));
    }
    let mut ports = Vec::with_capacity(given.ports.len());
    for port in &given.ports {
        let number = u16::try_from(port.port).ok().filter(|p| *p != 0);
        let number = number.ok_or_else(|| invalid(format!("{} is no port", port.port)))?;
        let address = |text: &str| {
            text.parse()
                .map_err(|_| invalid(format!("{text:?} is not an address as ip:port")))
        };
        ports.push(index::PlacedPort {
            port: number,
            endpoint: address(&port.endpoint)?,
            target: address(&port.target)?,
            mutual_tls: port.mutual_tls,
        });
    }
    let addresses = given.addresses.iter().map(|text| {
        text.parse()
            .map_err(|_| invalid(format!("{text:?} is not an IP address")))
    });
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    Ok(Some(Placement {
        workload: given.workload.clone(),
        node: given.node.clone(),
        ports,
        addresses,
    }))
}
