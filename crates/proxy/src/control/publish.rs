//! Turns resources into snapshots: the one place that changes the configuration and sends it to
//! workers.

use crate::config::snapshot::Snapshot;
use crate::control::client::Sink;
use crate::worker::Command;
use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::{MeshSettings, Resource};
use tulle_tls::enrol::Enrolled;
use tulle_tls::{Context, Identity, Revocations, TrustBundle};

/// State of this proxy that administration shows; new workers start from it.
#[derive(Clone)]
pub struct Current(Arc<Mutex<State>>);

struct State {
    snapshot: Arc<Snapshot>,
    /// Wakes tasks that wait for another snapshot.
    changed: Arc<Notify>,
    refused: RefusedChange,
    taking_over: bool,
    draining: bool,
    succeeded: bool,
}

/// Why the newest change is not in force; empty when it is.
#[derive(Clone, Default, serde::Serialize)]
pub struct RefusedChange {
    /// Why the newest resources are refused.
    pub configuration: Option<String>,
    /// Why the newest certificate files are refused.
    pub certificates: Option<String>,
    /// Changes refused so far.
    pub count: u64,
}

impl Current {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest snapshot.
    pub fn get(&self) -> Arc<Snapshot> {
        self.state().snapshot.clone()
    }

    /// Returns a notification that wakes its waiters for each newer snapshot.
    pub fn changed(&self) -> Arc<Notify> {
        self.state().changed.clone()
    }

    /// Waits until the present snapshot, or a later one, gives an answer.
    pub async fn find<T>(&self, mut answer: impl FnMut(&Snapshot) -> Option<T>) -> T {
        loop {
            let changed = self.changed();
            let changed = changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Before it is looked at: none is missed.
            changed.as_mut().enable();
            let snapshot = self.get();
            if let Some(answer) = answer(&snapshot) {
                return answer;
            }
            changed.await;
        }
    }

    /// Returns why the newest changes are refused.
    pub fn refused(&self) -> RefusedChange {
        self.state().refused.clone()
    }

    /// Notes whether the newest change of the configuration is in force; shown to operators.
    pub fn note_configuration(&self, result: Result<(), &str>) {
        let refused = &mut self.state().refused;
        refused.count += u64::from(result.is_err());
        refused.configuration = result.err().map(str::to_owned);
    }

    /// Whether another process still has the listeners of this proxy.
    pub fn is_taking_over(&self) -> bool {
        self.state().taking_over
    }

    /// Notes whether another process still has the listeners of this proxy.
    pub fn set_taking_over(&self, taking_over: bool) {
        self.state().taking_over = taking_over;
    }

    /// Whether this proxy is about to end.
    pub fn is_draining(&self) -> bool {
        self.state().draining
    }

    /// Marks this proxy as about to end.
    pub fn set_draining(&self) {
        self.state().draining = true;
    }

    /// Whether another process has taken over: what both would write or tell is that one's from then on.
    pub fn is_succeeded(&self) -> bool {
        self.state().succeeded
    }

    /// Notes that another process has taken over.
    pub fn set_succeeded(&self) {
        let mut state = self.state();
        state.succeeded = true;
        state.changed.notify_waiters();
    }
}

/// Changes the configuration.
pub struct Publisher {
    /// The snapshot in force.
    snapshot: Snapshot,
    /// The next snapshot, if it waits for more resources.
    staged: Option<Snapshot>,
    current: Current,
    workers: Vec<UnboundedSender<Command>>,
    /// The revocations of the snapshot, for handshakes.
    revocations: Revocations,
}

impl Publisher {
    /// A publisher with an empty snapshot.
    pub fn new(identity: SpiffeId) -> Self {
        let snapshot = Snapshot::empty(identity);
        let current = Current(Arc::new(Mutex::new(State {
            snapshot: Arc::new(snapshot.clone()),
            changed: Arc::default(),
            refused: RefusedChange::default(),
            taking_over: false,
            draining: false,
            succeeded: false,
        })));
        Self {
            snapshot,
            staged: None,
            current,
            workers: Vec::new(),
            revocations: Revocations::default(),
        }
    }

    /// Returns the shared view of the newest snapshot.
    pub fn current(&self) -> Current {
        self.current.clone()
    }

    /// Sets the workers to send changes to.
    pub fn set_workers(&mut self, workers: Vec<UnboundedSender<Command>>) {
        self.workers = workers;
    }

    /// Returns our own SPIFFE id.
    pub fn identity(&self) -> &SpiffeId {
        &self.snapshot.identity
    }

    /// Sets the settings that apply until the first configuration comes.
    pub fn set_mesh(&mut self, mesh: &MeshSettings) {
        if mesh.log_level != self.snapshot.mesh.log_level {
            crate::telemetry::logging::follow_mesh(&mesh.log_level);
        }
        self.change(|s| {
            // A format that cannot be read was refused with the file.
            if let Err(error) = s.set_mesh(mesh.clone()) {
                tracing::error!(error, "the settings of the mesh are not in force");
            }
        });
    }

    /// Uses another certificate for new connections. Existing ones go on until they end.
    pub fn set_identity(&mut self, identity: &Identity, bundle: &TrustBundle) {
        match Context::with_revocations(identity, bundle, &self.revocations) {
            Ok(context) => {
                self.change(|s| s.tls = Some(context.clone()));
            }
            Err(error) => tracing::error!(%error, "the certificate is not usable"),
        }
    }

    /// See [`Current::note_configuration`].
    pub fn note_configuration(&self, result: Result<(), &str>) {
        self.current.note_configuration(result);
    }

    /// As [`Self::note_configuration`], for the certificates.
    pub fn note_certificates(&self, result: Result<(), &str>) {
        let refused = &mut self.current.state().refused;
        refused.count += u64::from(result.is_err());
        refused.certificates = result.err().map(str::to_owned);
    }

    /// Applies an update as a whole. If anything is wrong it changes nothing and returns the
    /// errors.
    pub fn update(
        &mut self,
        resources: &[(String, u64, Resource)],
        removed: &[String],
    ) -> Vec<String> {
        let errors = self.stage(resources, removed);
        self.release();
        errors
    }

    /// As `update`, but the changes are in force only after `release`.
    pub fn stage(
        &mut self,
        resources: &[(String, u64, Resource)],
        removed: &[String],
    ) -> Vec<String> {
        let mut next = self.latest().clone();
        let mut errors = Vec::new();
        for (name, _, body) in resources {
            if let Err(error) = next.apply(name, body) {
                errors.push(error.to_string());
            }
        }
        if !errors.is_empty() {
            return errors;
        }
        for name in removed {
            next.remove(name);
        }
        self.staged = Some(next);
        errors
    }

    /// Puts the staged snapshot in force.
    pub fn release(&mut self) {
        let Some(next) = self.staged.take() else {
            return;
        };
        // Only on a change: an operator may have set another level for a while.
        if next.mesh.log_level != self.snapshot.mesh.log_level {
            crate::telemetry::logging::follow_mesh(&next.mesh.log_level);
        }
        let generation = self.snapshot.generation;
        self.snapshot = Snapshot { generation, ..next };
        self.publish();
    }

    /// Returns the newest snapshot, in force or not yet.
    pub(super) fn latest(&self) -> &Snapshot {
        self.staged.as_ref().unwrap_or(&self.snapshot)
    }

    /// Changes state other than resources, which takes effect at once.
    fn change(&mut self, change: impl Fn(&mut Snapshot)) {
        change(&mut self.snapshot);
        self.staged.as_mut().map(change);
        self.publish();
    }

    /// Describes in one line the configuration that is only partly in force, and why; empty: all is
    /// in force.
    pub fn faults(&self) -> String {
        let faults = self.latest().faults();
        faults.into_iter().collect::<Vec<_>>().join("; ")
    }

    /// Returns the part of a resource in force; `None`: the whole resource is.
    pub fn in_force(&self, told: &Resource) -> Option<Resource> {
        let Resource::Gateway(told) = told else {
            return None;
        };
        let gateway = self.latest().gateways.get(&told.name)?;
        Some(Resource::Gateway(gateway.in_force(told)?))
    }

    /// Notes that everything asked for at the start is answered.
    pub fn settled(&mut self) {
        self.change(|s| s.complete = true);
    }

    /// Notes the names that the controller sent unasked and that the application has not used.
    pub fn set_unused(&mut self, names: &BTreeSet<String>) {
        let names = names.iter().map(|name| name.as_str().into());
        let names = Arc::new(names.collect::<HashSet<Box<str>>>());
        self.change(|s| s.unused = names.clone());
    }

    /// Forgets these names once `release` is called.
    pub fn forget(&mut self, names: &[String]) {
        let mut next = self.latest().clone();
        for name in names {
            next.forget(name);
        }
        self.staged = Some(next);
    }

    /// Notes why the controller is unreachable; `None`: it is reachable, or the proxy is trying to
    /// reach it.
    pub fn set_away(&mut self, why: Option<&str>) {
        // Waiting tasks get the first reason, and each change wakes the workers.
        if self.snapshot.away.is_some() != why.is_some() {
            let why: Option<Arc<str>> = why.map(Arc::from);
            self.change(|s| s.away = why.clone());
        }
    }

    /// Addresses and host names known to belong to no service.
    pub fn unowned(&self) -> Vec<String> {
        let latest = self.latest();
        let addresses = latest.addresses.iter();
        let addresses = addresses.filter(|(_, owner)| owner.is_none());
        let hosts = latest.hosts.iter();
        let hosts = hosts.filter(|(_, owner)| owner.is_none());
        addresses
            .map(|(address, _)| format!("address/{address}"))
            .chain(hosts.map(|(host, _)| format!("host/{host}")))
            .collect()
    }

    /// Forgets the addresses and host names that belong to no service and returns their names.
    pub fn forget_unowned(&mut self) -> Vec<String> {
        let names = self.unowned();
        self.change(|s| {
            s.addresses.retain(|_, owner| owner.is_some());
            s.hosts.retain(|_, owner| owner.is_some());
        });
        names
    }

    /// Services that resources refer to.
    pub fn wanted_services(&self) -> Vec<String> {
        let latest = self.latest();
        let routes = latest.backends().map(str::to_owned);
        let addresses = latest.addresses.values().flatten().cloned();
        let hosts = latest.hosts.values().flatten().cloned();
        routes.chain(addresses).chain(hosts).collect()
    }

    fn publish(&mut self) {
        self.snapshot.generation += 1;
        // Revocations come first: no worker makes a connection that another has just cut.
        self.revocations.set(self.snapshot.revoked.clone());
        let snapshot = Arc::new(self.snapshot.clone());
        self.current.state().snapshot = snapshot.clone();
        self.current.changed().notify_waiters();
        for worker in &self.workers {
            // A worker that has ended has panicked, and with it the process.
            let _ = worker.send(Command::Config(snapshot.clone()));
        }
    }
}

impl Sink for Publisher {
    fn identity(&self) -> &SpiffeId {
        self.identity()
    }

    fn set_identity(&mut self, enrolled: &Enrolled) {
        self.set_identity(&enrolled.identity, &enrolled.bundle);
    }

    fn update(&mut self, resources: &[(String, u64, Resource)], removed: &[String]) -> Vec<String> {
        self.stage(resources, removed)
    }

    fn release(&mut self) {
        self.release();
    }

    fn faults(&self) -> String {
        self.faults()
    }

    fn in_force(&self, told: &Resource) -> Option<Resource> {
        self.in_force(told)
    }

    fn is_succeeded(&self) -> bool {
        self.current.is_succeeded()
    }

    fn note_configuration(&self, result: Result<(), &str>) {
        self.note_configuration(result);
    }

    fn wanted_services(&self) -> Vec<String> {
        self.wanted_services()
    }

    fn unowned(&self) -> Vec<String> {
        self.unowned()
    }

    fn forget_unowned(&mut self) -> Vec<String> {
        self.forget_unowned()
    }

    fn settled(&mut self) {
        self.settled();
    }

    fn anticipates(&self) -> bool {
        true
    }

    fn set_unused(&mut self, names: &BTreeSet<String>) {
        self.set_unused(names);
    }

    fn forget(&mut self, names: &[String]) {
        self.forget(names);
    }

    fn set_away(&mut self, why: Option<&str>) {
        self.set_away(why);
    }
}
