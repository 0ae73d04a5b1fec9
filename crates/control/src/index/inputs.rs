//! The input of the index: objects by kind and name, and where workloads run.

use super::certificates;
use super::cluster::{Cluster, ClusterCounts, ClusterService};
use super::keys::KeysWait;
use super::{ClusterGateway, FetchedKeys, ObjectProblem, bounds};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use tulle_model::identity::{InvalidIdentity, SpiffeId, TrustDomain};
use tulle_model::manifest::{
    AccessSpec, AuthenticationSpec, AuthorizationPolicySpec, ConfigMap, EgressSpec, FilterRefs,
    GatewaySpec, GrpcRouteSpec, HttpFilterSpec, HttpRouteGroupSpec, HttpRouteSpec, MeshSpec,
    Object, ObjectRef, PluginSpec, RateLimitSpec, Secret, SmiTcpRouteSpec, TcpRouteSpec,
    TlsRouteSpec, TrafficPolicySpec, TrafficSplitSpec, TrafficTargetSpec, WorkloadPort,
    WorkloadSpec,
};
use tulle_model::namespaced::{Namespaced, ObjectName};
use tulle_model::resource::{Revoked, Serial};

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
    /// The workload runs, but is not ready for calls yet.
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

/// Objects of a kind by name.
pub(crate) type Objects<T> = BTreeMap<ObjectName, T>;

/// All objects and placements.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// The trust domain of all identities. Follows the Mesh object and outlives it.
    pub trust_domain: TrustDomain,
    /// The Mesh object.
    pub mesh: Option<MeshSpec>,
    /// Workloads by name. Clusters have pods instead.
    pub workloads: BTreeMap<String, WorkloadSpec>,
    /// Gateways by name.
    pub(crate) gateways: Objects<GatewaySpec>,
    /// HTTPRoutes by name.
    pub(crate) routes: Objects<HttpRouteSpec>,
    /// GRPCRoutes by name.
    pub(crate) grpc_routes: Objects<GrpcRouteSpec>,
    /// TLSRoutes by name.
    pub(crate) tls_routes: Objects<TlsRouteSpec>,
    /// TCPRoutes by name.
    pub(crate) tcp_routes: Objects<TcpRouteSpec>,
    /// When routes were made, by kind and name; in clusters alone.
    pub(super) created: BTreeMap<(&'static str, Namespaced), String>,
    /// TrafficTargets by name.
    pub(crate) targets: Objects<TrafficTargetSpec>,
    /// HTTPRouteGroups by name.
    pub(crate) groups: Objects<HttpRouteGroupSpec>,
    /// SMI TCPRoutes by name.
    pub(crate) smi_tcp_routes: Objects<SmiTcpRouteSpec>,
    /// TrafficSplits by name.
    pub(crate) splits: Objects<TrafficSplitSpec>,
    /// TrafficPolicys by name.
    pub(crate) traffic: Objects<TrafficPolicySpec>,
    /// RateLimits by name.
    pub(crate) rate_limits: Objects<RateLimitSpec>,
    /// HTTPFilters by name.
    pub(crate) filters: Objects<HttpFilterSpec>,
    /// AuthorizationPolicys by name.
    pub(crate) authorization: Objects<AuthorizationPolicySpec>,
    /// Authentications by name.
    pub(crate) authentication: Objects<AuthenticationSpec>,
    /// Plugins by name.
    pub(crate) plugins: Objects<PluginSpec>,
    /// IngressBackends by name.
    pub(crate) ingress_backends: Objects<AccessSpec>,
    /// AccessControls by name.
    pub(crate) access_controls: Objects<AccessSpec>,
    /// Egresss by name.
    pub(crate) egress: Objects<EgressSpec>,
    /// Secrets by name.
    pub(crate) secrets: Objects<Secret>,
    /// ConfigMaps by name.
    pub(crate) config_maps: Objects<ConfigMap>,
    /// Certificates that an operator has revoked by command.
    pub revoked: Revoked,
    /// The memberships of hosts that were removed.
    pub removed_hosts: BTreeSet<Serial>,
    /// For hosts, the lowest generation of their authorities that counts.
    pub revoked_hosts: BTreeMap<SpiffeId, u64>,
    /// Sets of keys that were asked for, by address.
    pub keys: BTreeMap<String, FetchedKeys>,
    /// Whether resources wait for sets that are not among these yet.
    pub(super) keys_wait: KeysWait,
    /// Placements by workload name.
    pub placements: BTreeMap<String, Placement>,
    /// Where there is one: its services and pods, which take the place of workloads.
    pub(super) cluster: Option<Cluster>,
    /// Namespaces of a cluster that are strict by themselves.
    pub(super) strict_namespaces: BTreeSet<String>,
    /// See `Edit::Problems`.
    pub(super) told_problems: Vec<ObjectProblem>,
    /// See `Edit::Refused`.
    pub(super) refused: Vec<ObjectProblem>,
    /// The mesh's own namespace in a cluster. An Egress there that names no sources is for everybody.
    pub(super) mesh_namespace: String,
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
            grpc_routes: BTreeMap::new(),
            tls_routes: BTreeMap::new(),
            tcp_routes: BTreeMap::new(),
            created: BTreeMap::new(),
            targets: BTreeMap::new(),
            groups: BTreeMap::new(),
            smi_tcp_routes: BTreeMap::new(),
            splits: BTreeMap::new(),
            traffic: BTreeMap::new(),
            rate_limits: BTreeMap::new(),
            filters: BTreeMap::new(),
            authorization: BTreeMap::new(),
            authentication: BTreeMap::new(),
            plugins: BTreeMap::new(),
            ingress_backends: BTreeMap::new(),
            access_controls: BTreeMap::new(),
            egress: BTreeMap::new(),
            secrets: BTreeMap::new(),
            config_maps: BTreeMap::new(),
            revoked: Revoked::default(),
            removed_hosts: BTreeSet::new(),
            revoked_hosts: BTreeMap::new(),
            keys: BTreeMap::new(),
            keys_wait: KeysWait::default(),
            placements: BTreeMap::new(),
            cluster: None,
            strict_namespaces: BTreeSet::new(),
            told_problems: Vec::new(),
            refused: Vec::new(),
            mesh_namespace: String::new(),
            services: BTreeMap::new(),
        }
    }

    pub(super) fn put(&mut self, mut object: Object) {
        if self.cluster.is_some() && !bounds::keep_within(&mut object) {
            self.remove(object.kind(), object.name());
            return;
        }
        self.put_unbounded(object);
    }

    /// The same for one that refers to nothing that other namespaces own.
    pub(super) fn put_unbounded(&mut self, object: Object) {
        if let Object::Mesh(m) = object {
            self.trust_domain = m.spec.trust_domain.clone();
            self.mesh = Some(m.spec);
            return;
        }
        // In a cluster everything else has a namespace.
        let Some(name) = self.object_name(object.name()) else {
            return;
        };
        if let (Some(kind), ObjectName::InNamespace(name)) = (route_kind(object.kind()), &name) {
            let created = object.metadata().created.clone();
            self.created.insert((kind, name.clone()), created);
        }
        match object {
            Object::Mesh(_) => {}
            Object::Workload(m) => self.put_workload(m.metadata.name, m.spec),
            Object::Secret(m) => drop(self.secrets.insert(name, m)),
            Object::ConfigMap(m) => drop(self.config_maps.insert(name, m)),
            // A cluster's are judged first: `Edit::Gateway`.
            Object::Gateway(_) if self.cluster.is_some() => {}
            Object::Gateway(m) => drop(self.gateways.insert(name, m.spec)),
            Object::HttpRoute(m) => drop(self.routes.insert(name, m.spec)),
            Object::GrpcRoute(m) => drop(self.grpc_routes.insert(name, m.spec)),
            Object::TlsRoute(m) => drop(self.tls_routes.insert(name, m.spec)),
            Object::TcpRoute(m) => drop(self.tcp_routes.insert(name, m.spec)),
            Object::TrafficTarget(m) => drop(self.targets.insert(name, m.spec)),
            Object::HttpRouteGroup(m) => drop(self.groups.insert(name, m.spec)),
            Object::SmiTcpRoute(m) => drop(self.smi_tcp_routes.insert(name, m.spec)),
            Object::TrafficSplit(m) => drop(self.splits.insert(name, m.spec)),
            Object::TrafficPolicy(m) => drop(self.traffic.insert(name, m.spec)),
            Object::RateLimit(m) => drop(self.rate_limits.insert(name, m.spec)),
            Object::HttpFilter(m) => drop(self.filters.insert(name, m.spec)),
            Object::AuthorizationPolicy(m) => drop(self.authorization.insert(name, m.spec)),
            Object::Authentication(m) => drop(self.authentication.insert(name, m.spec)),
            Object::Plugin(m) => drop(self.plugins.insert(name, m.spec)),
            Object::IngressBackend(m) => drop(self.ingress_backends.insert(name, m.spec)),
            Object::AccessControl(m) => drop(self.access_controls.insert(name, m.spec)),
            Object::Egress(m) => drop(self.egress.insert(name, m.spec)),
        }
    }

    pub(super) fn remove(&mut self, kind: &str, name: &str) {
        if let (Some(kind), Some(name)) = (route_kind(kind), Namespaced::parse(name)) {
            self.created.remove(&(kind, name));
        }
        match kind {
            "Mesh" => self.mesh = None,
            "Workload" => self.remove_workload(name),
            "Gateway" if self.cluster.is_some() => {}
            "Gateway" => drop(self.gateways.remove(name)),
            "HTTPRoute" => drop(self.routes.remove(name)),
            "GRPCRoute" => drop(self.grpc_routes.remove(name)),
            "TLSRoute" => drop(self.tls_routes.remove(name)),
            "TCPRoute" => drop(self.tcp_routes.remove(name)),
            "TrafficTarget" => drop(self.targets.remove(name)),
            "HTTPRouteGroup" => drop(self.groups.remove(name)),
            "TCPRoute.specs.smi-spec.io" => drop(self.smi_tcp_routes.remove(name)),
            "TrafficSplit" => drop(self.splits.remove(name)),
            "TrafficPolicy" => drop(self.traffic.remove(name)),
            "RateLimit" => drop(self.rate_limits.remove(name)),
            "HTTPFilter" => drop(self.filters.remove(name)),
            "AuthorizationPolicy" => drop(self.authorization.remove(name)),
            "Authentication" => drop(self.authentication.remove(name)),
            "Plugin" => drop(self.plugins.remove(name)),
            "IngressBackend" => drop(self.ingress_backends.remove(name)),
            "AccessControl" => drop(self.access_controls.remove(name)),
            "Egress" => drop(self.egress.remove(name)),
            "Secret" => drop(self.secrets.remove(name)),
            "ConfigMap" => drop(self.config_maps.remove(name)),
            _ => {}
        }
    }

    /// How many objects there are of each kind.
    pub(crate) fn counts(&self) -> [(&'static str, usize); 22] {
        [
            ("Mesh", usize::from(self.mesh.is_some())),
            ("Workload", self.workloads.len()),
            ("Gateway", self.gateways.len()),
            ("HTTPRoute", self.routes.len()),
            ("GRPCRoute", self.grpc_routes.len()),
            ("TLSRoute", self.tls_routes.len()),
            ("TCPRoute", self.tcp_routes.len()),
            ("TrafficTarget", self.targets.len()),
            ("HTTPRouteGroup", self.groups.len()),
            ("TCPRoute.specs.smi-spec.io", self.smi_tcp_routes.len()),
            ("TrafficSplit", self.splits.len()),
            ("TrafficPolicy", self.traffic.len()),
            ("RateLimit", self.rate_limits.len()),
            ("HTTPFilter", self.filters.len()),
            ("AuthorizationPolicy", self.authorization.len()),
            ("Authentication", self.authentication.len()),
            ("Plugin", self.plugins.len()),
            ("IngressBackend", self.ingress_backends.len()),
            ("AccessControl", self.access_controls.len()),
            ("Egress", self.egress.len()),
            ("Secret", self.secrets.len()),
            ("ConfigMap", self.config_maps.len()),
        ]
    }

    /// How many objects there are.
    pub(crate) fn count(&self) -> usize {
        self.counts().iter().map(|(_, count)| count).sum()
    }

    /// Counts the services, pods and gateways of a cluster; `None` on hosts.
    pub(crate) fn cluster_counts(&self) -> Option<ClusterCounts> {
        self.cluster.as_ref().map(Cluster::counts)
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

    /// Reads a name as manifests write it. `None`: it has no namespace, and this is a cluster.
    pub(super) fn object_name(&self, name: &str) -> Option<ObjectName> {
        match self.cluster {
            Some(_) => Namespaced::parse(name).map(ObjectName::InNamespace),
            None => Some(ObjectName::Plain(name.into())),
        }
    }

    /// Lists the objects in the namespace of what has this name. Objects of other namespaces say nothing
    /// about it, whatever they refer to.
    pub(super) fn in_namespace_of<'a, T>(
        &self,
        objects: &'a Objects<T>,
        name: &'a ObjectName,
    ) -> impl Iterator<Item = (&'a ObjectName, &'a T)> + use<'a, T> {
        let namespace = name.namespace();
        objects
            .iter()
            .filter(move |(name, _)| name.namespace() == namespace)
    }

    /// Whether a policy is about everything: on hosts one without targets. No manifest is, only what denies in the place of
    /// an object that cannot be read. In a cluster those of other namespaces were taken from it.
    pub(super) fn is_about_everything(&self, policy: &AuthorizationPolicySpec) -> bool {
        self.cluster.is_none() && policy.target_refs.is_empty()
    }

    /// Whether any workload belongs to this service, or the cluster has it.
    pub fn has_service(&self, name: &str) -> bool {
        self.services.contains_key(name) || self.cluster_service(name).is_some()
    }

    /// The cluster's service of this name.
    pub(super) fn cluster_service(&self, name: &str) -> Option<&ClusterService> {
        self.cluster.as_ref()?.service(name)
    }

    /// The cluster's gateway of this name.
    pub(super) fn cluster_gateway(&self, name: &str) -> Option<&ClusterGateway> {
        self.cluster.as_ref()?.gateway(name)
    }

    /// Certificates of authorities (PEM) under `ca.crt`, and their revocation lists under `ca.crl`.
    pub(super) fn ca(&self, reference: &ObjectRef) -> Option<String> {
        let roots = self.text(reference, "ca.crt")?;
        let lists = self.text(reference, "ca.crl");
        Some(certificates::with_lists(roots, lists.as_deref()))
    }

    /// Whether clients can call a service of this name: workloads belong to it, or a TrafficSplit
    /// stands in for it.
    pub(crate) fn knows_service(&self, name: &str) -> bool {
        self.has_service(name) || self.splits.values().any(|s| s.service == name)
    }

    /// The workloads of a service, by name.
    pub(crate) fn workloads_of<'a>(
        &'a self,
        service: &str,
    ) -> impl Iterator<Item = (&'a str, &'a WorkloadSpec)> {
        let names = self.services.get(service).into_iter().flatten();
        names.filter_map(|name| Some((name.as_str(), self.workloads.get(name)?)))
    }

    /// The ports of a service, as its workloads name them.
    pub(super) fn ports_of<'a>(&'a self, service: &str) -> impl Iterator<Item = &'a WorkloadPort> {
        let cluster = self.cluster_service(service).into_iter();
        let of_cluster = cluster.flat_map(|s| s.ports.iter().map(|p| &p.port));
        let of_workloads = self.workloads_of(service).flat_map(|(_, w)| &w.ports);
        of_workloads.chain(of_cluster)
    }

    /// `spiffe://<trust-domain>/svc/<name>`; in a cluster, where names are
    /// `<service account>.<namespace>`, `spiffe://<trust-domain>/ns/<namespace>/sa/<service account>`.
    pub(super) fn identity(&self, name: &ObjectName) -> Result<SpiffeId, InvalidIdentity> {
        match name {
            ObjectName::InNamespace(account) => self
                .trust_domain
                .service_account(account.namespace(), account.name()),
            ObjectName::Plain(name) => self.trust_domain.service(name),
        }
    }

    /// Returns the identity that a manifest means by a name.
    pub(super) fn identity_named(&self, name: &str) -> Result<SpiffeId, InvalidIdentity> {
        match self.object_name(name) {
            Some(name) => self.identity(&name),
            None => self.trust_domain.service_account("", name),
        }
    }

    /// Returns the name by which objects refer to an identity: the inverse of [`Self::identity`]. `None`: no
    /// object can.
    pub(super) fn name_of(&self, id: &SpiffeId) -> Option<ObjectName> {
        match (&self.cluster, id.service_account()) {
            (Some(_), Some((namespace, account))) => {
                Namespaced::new(account, namespace).map(ObjectName::InNamespace)
            }
            (Some(_), None) => None,
            (None, _) => Some(ObjectName::Plain(id.name().into())),
        }
    }

    /// Whether a workload or gateway has this identity.
    pub fn has_identity(&self, id: &SpiffeId) -> bool {
        let Some(name) = self.name_of(id) else {
            return false;
        };
        if self.identity(&name).as_ref() != Ok(id) {
            return false;
        }
        match (&self.cluster, &name) {
            (Some(cluster), ObjectName::InNamespace(account)) => {
                cluster.pods().any(|pod| pod.is_account(account))
            }
            _ => {
                let mut workloads = self.workloads.iter();
                self.gateways.contains_key(&name)
                    || workloads.any(|(name, spec)| identity_name_of(name, spec) == id.name())
            }
        }
    }
}

impl FilterRefs for Inputs {
    fn http_filter(&self, name: &str) -> Option<&HttpFilterSpec> {
        self.filters.get(name)
    }

    fn plugin(&self, name: &str) -> Option<&PluginSpec> {
        self.plugins.get(name)
    }

    fn text(&self, reference: &ObjectRef, key: &str) -> Option<String> {
        if reference.kind.as_deref() == Some("Secret") {
            return self.secrets.get(reference.name.as_str())?.text(key);
        }
        self.config_maps.get(reference.name.as_str())?.text(key)
    }

    fn fetched_keys(&self, address: &str) -> Option<String> {
        self.fetched(address)
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

/// The kind of an object, if it is a route of Gateway API.
fn route_kind(kind: &str) -> Option<&'static str> {
    let kinds = ["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute"];
    kinds.into_iter().find(|route| *route == kind)
}
