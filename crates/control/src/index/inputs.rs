//! What the index is computed from: objects by kind and name, and where workloads run.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use tulle_model::identity::{InvalidIdentity, SpiffeId, TrustDomain};
use tulle_model::manifest::{
    GatewaySpec, HttpRouteGroupSpec, HttpRouteSpec, MeshSpec, TrafficTargetSpec, WorkloadSpec,
};

/// Where a workload runs, reported by whoever started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The workload's name.
    pub workload: String,
    /// The host it runs on; empty: the controller's.
    pub node: String,
    /// Its ports.
    pub ports: Vec<PlacedPort>,
    /// Its own addresses.
    pub addresses: Vec<IpAddr>,
    /// It is there, but nobody shall call it yet.
    #[serde(default)]
    pub not_ready: bool,
}

/// Where one port of a workload is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedPort {
    /// The number clients use.
    pub port: u16,
    /// Where other sidecars connect.
    pub endpoint: SocketAddr,
    /// The application, as its own sidecar sees it.
    pub target: SocketAddr,
    /// A sidecar answers at `endpoint`.
    pub mutual_tls: bool,
}

/// All objects and placements.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// Of all identities. Follows the Mesh object and outlives it.
    pub trust_domain: TrustDomain,
    /// The Mesh object.
    pub mesh: Option<MeshSpec>,
    /// By name.
    pub workloads: BTreeMap<String, WorkloadSpec>,
    /// By name.
    pub gateways: BTreeMap<String, GatewaySpec>,
    /// By name.
    pub routes: BTreeMap<String, HttpRouteSpec>,
    /// By name.
    pub targets: BTreeMap<String, TrafficTargetSpec>,
    /// By name.
    pub groups: BTreeMap<String, HttpRouteGroupSpec>,
    /// By workload name.
    pub placements: BTreeMap<String, Placement>,
    /// The workloads of each service. Kept beside `workloads` so that one service is found without
    /// looking at all of them.
    pub(super) services: BTreeMap<String, BTreeSet<String>>,
}

impl Inputs {
    pub(super) fn new(trust_domain: TrustDomain) -> Self {
        Self {
            trust_domain,
            mesh: None,
            workloads: BTreeMap::new(),
            gateways: BTreeMap::new(),
            routes: BTreeMap::new(),
            targets: BTreeMap::new(),
            groups: BTreeMap::new(),
            placements: BTreeMap::new(),
            services: BTreeMap::new(),
        }
    }

    pub(super) fn put_workload(&mut self, name: String, spec: WorkloadSpec) {
        self.forget_service(&name);
        let service = service_of(&name, &spec).to_owned();
        self.services
            .entry(service)
            .or_default()
            .insert(name.clone());
        self.workloads.insert(name, spec);
    }

    pub(super) fn remove_workload(&mut self, name: &str) {
        self.forget_service(name);
        self.workloads.remove(name);
    }

    fn forget_service(&mut self, name: &str) {
        let Some(spec) = self.workloads.get(name) else {
            return;
        };
        let service = service_of(name, spec);
        if let Some(workloads) = self.services.get_mut(service) {
            workloads.remove(name);
            if workloads.is_empty() {
                self.services.remove(service);
            }
        }
    }

    /// Whether any workload belongs to this service.
    pub fn has_service(&self, name: &str) -> bool {
        self.services.contains_key(name)
    }

    /// The workloads of a service, by name.
    pub(crate) fn workloads_of<'a>(
        &'a self,
        service: &str,
    ) -> impl Iterator<Item = (&'a str, &'a WorkloadSpec)> {
        let names = self.services.get(service).into_iter().flatten();
        names.filter_map(|name| Some((name.as_str(), self.workloads.get(name)?)))
    }

    /// `spiffe://<trust-domain>/svc/<name>`.
    pub(super) fn identity(&self, name: &str) -> Result<SpiffeId, InvalidIdentity> {
        self.trust_domain.service(name)
    }

    /// Whether a workload or gateway has this identity.
    pub fn has_identity(&self, id: &SpiffeId) -> bool {
        let Ok(same) = self.identity(id.name()) else {
            return false;
        };
        same == *id
            && (self.gateways.contains_key(id.name())
                || self
                    .workloads
                    .iter()
                    .any(|(name, spec)| identity_name_of(name, spec) == id.name()))
    }
}

/// The service a workload belongs to.
pub(crate) fn service_of<'a>(
    name: &'a str,
    spec: &'a tulle_model::manifest::WorkloadSpec,
) -> &'a str {
    spec.service.as_deref().unwrap_or(name)
}

/// The last segment of a workload's identity.
pub(crate) fn identity_name_of<'a>(
    name: &'a str,
    spec: &'a tulle_model::manifest::WorkloadSpec,
) -> &'a str {
    spec.identity
        .as_deref()
        .unwrap_or_else(|| service_of(name, spec))
}
