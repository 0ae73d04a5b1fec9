//! Computes what each proxy receives from what users write. Pure: no I/O, no clock.
//!
//! In go [`Edit`]s (objects and where workloads run), out come the names that changed. A resource is the
//! same for every proxy, so it is encoded once, here; its version is a hash of the encoding, so an edit
//! that changes nothing for proxies wakes none of them. An edit recomputes only the units (one service,
//! one gateway, egress, the mesh's settings) that it touches.
//!
//! The index accepts whatever it is given: objects were checked before, and where two of them contradict
//! each other it picks the side that allows less and reports it in [`Index::problems`].

mod bounds;
mod certificates;
mod cluster;
mod dependents;
mod egress;
mod explain;
mod gateways;
mod groups;
mod inbound;
mod inputs;
mod keys;
mod mesh;
mod nodes;
mod past;
mod pods;
mod policy;
mod problems;
mod protocols;
mod room;
mod services;
mod shares;
mod splits;
mod stored;
mod together;
mod workloads;

pub(crate) use certificates::of_batch as certificates_of_batch;
pub use certificates::{check_pair, check_roots, expired};
pub(crate) use cluster::ClusterCounts;
pub use cluster::{ClusterEndpoint, ClusterPod, ClusterPort, ClusterService};
pub use explain::ExplainError;
pub use gateways::{Attachment, ClusterGateway};
pub use inputs::{Inputs, PlacedPort, Placement};
pub use keys::{FetchedKeys, KeySource};
pub use problems::ObjectProblem;

pub(crate) use inputs::{identity_name_of, service_of};
pub(crate) use nodes::{EndpointFacts, NodeFacts, Nodes, OUTSIDE};
pub(crate) use past::Undo;
pub(crate) use protocols::port_conflict;
pub use together::common_hosts;

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_model::manifest::Object;
use tulle_model::namespaced::{Namespaced, ObjectName};
use tulle_model::resource::{MeshSettings, Resource, Revoked, Serial};

/// The difference to the version before.
#[derive(Debug, PartialEq)]
pub struct Patched {
    /// The version before.
    pub from: u64,
    /// Sent in the place of body and labels.
    pub patch: tulle_api::v1::ResourcePatch,
}

// The message has no floats.
impl Eq for Patched {}

/// A resource as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedResource {
    /// Hash of `body` and `labels`, so nobody can craft two manifests of one version; never 0.
    pub version: u64,
    /// The difference to the version before, for proxies that have that one.
    pub patch: Option<Arc<Patched>>,
    /// Encoded once for all proxies.
    pub body: Bytes,
    /// Names of workloads, encoded likewise.
    pub labels: Bytes,
    /// The only identity that may read it; `None`: every proxy.
    pub owner: Option<SpiffeId>,
    /// The service that its clients need it for; `None`: it is no client's.
    pub service: Option<ObjectName>,
    /// Services that this one's routes refer to.
    pub backends: Vec<ObjectName>,
    /// It lacks keys of tokens that were not asked for yet, or on a joined host the controller's answer. No proxy is sent it
    /// before.
    pub is_incomplete: bool,
}

impl EncodedResource {
    /// Notes how it follows from the version before, where that is shorter.
    pub(crate) fn follow(&mut self, before: &Self) {
        let encoded = |resource: &Self| tulle_api::Encoded {
            body: resource.body.clone(),
            labels: resource.labels.clone(),
        };
        let patch = tulle_api::patch(&encoded(before), &encoded(self), self.version);
        self.patch = patch.map(|patch| {
            let from = before.version;
            Arc::new(Patched { from, patch })
        });
    }

    /// Returns how many bytes it takes to send.
    pub(crate) fn bytes(&self) -> usize {
        self.body.len() + self.labels.len()
    }
}

/// Something that changed.
#[derive(Debug, Clone)]
pub enum Edit {
    /// An object was created or replaced.
    Put(Box<Object>),
    /// An object is gone.
    Delete {
        /// Kind.
        kind: String,
        /// Name.
        name: String,
    },
    /// A workload runs somewhere.
    Place(Placement),
    /// A workload no longer runs.
    Unplace {
        /// Workload.
        workload: String,
    },
    /// A Service of the cluster, with its endpoints.
    Service(Box<ClusterService>),
    /// A Service of the cluster is gone.
    RemoveService(Namespaced),
    /// A pod of the cluster.
    Pod(Box<ClusterPod>),
    /// A pod of the cluster is gone.
    RemovePod(Namespaced),
    /// A Gateway of the cluster.
    Gateway(Box<ClusterGateway>),
    /// A Gateway of the cluster is gone.
    RemoveGateway(Namespaced),
    /// All namespaces of the cluster that are strict by themselves.
    StrictNamespaces(BTreeSet<String>),
    /// All problems of the cluster's objects that their own status cannot report.
    Problems(Vec<ObjectProblem>),
    /// The objects of the cluster that are refused, the Mesh first; of many, some and a line about the others. A text
    /// names the object, why, and what is in force in its place; the problem is about the latter, if the index has it, or
    /// else about no object.
    Refused(Vec<ObjectProblem>),
    /// All that an operator has revoked by command.
    Revoked(Box<Revoked>),
    /// The memberships of all hosts that were removed, as long as they had certificates that may be valid.
    RemovedHosts(BTreeSet<Serial>),
    /// For all hosts whose earlier authorities are refused, the lowest generation that counts.
    RevokedHosts(BTreeMap<SpiffeId, u64>),
    /// A set of keys was fetched, or could not be.
    Keys {
        /// Where.
        address: String,
        /// The set, or why there is none.
        fetched: Result<String, String>,
    },
    /// A set of keys that no object names any more.
    ForgetKeys(String),
    /// Resources begin to wait for keys that were not asked for yet, or end it.
    WaitForKeys(bool),
}

/// A name and its present entry; `None`: it no longer exists.
pub type Changed = (Arc<str>, Option<EncodedResource>);

/// The parts of the mesh, each of which is recomputed as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Unit {
    Mesh,
    Service(ObjectName),
    Gateway(ObjectName),
    /// A pod of a cluster.
    Pod(Namespaced),
    Egress,
    /// The catalog of the services' names.
    Catalog,
}

impl Unit {
    /// The name of the service that clients call here. A pod, called by its address, is one as well.
    fn called(&self) -> Option<ObjectName> {
        match self {
            Self::Service(name) => Some(name.clone()),
            Self::Pod(pod) => Some(cluster::called_by_address(pod).into()),
            Self::Mesh | Self::Gateway(_) | Self::Egress | Self::Catalog => None,
        }
    }
}

/// A resource a unit gives, before it is encoded.
struct Output {
    name: String,
    /// When units give the same name, the oldest wins, then the lowest rank, then the unit's order.
    rank: u8,
    owner: Option<SpiffeId>,
    resource: Resource,
    is_incomplete: bool,
}

struct Claim {
    /// Creation time of the object behind it, so that a newer object takes no address from an older one.
    /// Only for addresses in a cluster; otherwise empty.
    created: String,
    rank: u8,
    unit: Unit,
    entry: EncodedResource,
}

/// The mesh as proxies see it.
pub struct Index {
    inputs: Inputs,
    /// Names each unit gave last time.
    given: HashMap<Unit, Vec<Arc<str>>>,
    /// The units that claim each name, the winner first.
    claims: HashMap<Arc<str>, Vec<Claim>>,
    /// Problems that units reported last time.
    problems: HashMap<Unit, Vec<ObjectProblem>>,
    /// The present settings: reading the lists of what is revoked takes a while.
    settings: MeshSettings,
    /// Grows with each change.
    revision: u64,
}

impl Index {
    /// An empty mesh of a trust domain: it has settings and nothing else.
    pub fn new(trust_domain: TrustDomain) -> Self {
        let mut index = Self {
            inputs: Inputs::new(trust_domain),
            given: HashMap::new(),
            claims: HashMap::new(),
            problems: HashMap::new(),
            settings: MeshSettings::default(),
            revision: 0,
        };
        index.recompute(BTreeSet::from([Unit::Mesh, Unit::Catalog]));
        index
    }

    /// An empty cluster: identities are service accounts, names have a namespace. `namespace` is the
    /// mesh's own: whoever may write there controls the mesh anyway.
    pub fn of_cluster(trust_domain: TrustDomain, namespace: &str) -> Self {
        let mut index = Self::new(trust_domain);
        index.inputs.cluster = Some(cluster::Cluster::default());
        index.inputs.mesh_namespace = namespace.to_owned();
        index
    }

    /// Returns the objects and placements that the resources are computed from.
    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// Returns the identities and certificates that are refused.
    pub fn revoked(&self) -> &Revoked {
        &self.settings.revoked
    }

    /// A resource by name.
    pub fn get(&self, name: &str) -> Option<&EncodedResource> {
        self.claims.get(name)?.first().map(|c| &c.entry)
    }

    /// All resources.
    pub fn entries(&self) -> impl Iterator<Item = (&Arc<str>, &EncodedResource)> {
        let claims = self.claims.iter();
        claims.filter_map(|(name, claims)| claims.first().map(|c| (name, &c.entry)))
    }

    /// Resources that say who may call whom. No secret is in these.
    pub fn about_callers(&self) -> impl Iterator<Item = (&Arc<str>, &EncodedResource)> {
        const NAMES: [&str; 4] = ["mesh", "egress", "inbound/", "service/"];
        self.entries()
            .filter(|(name, _)| NAMES.iter().any(|begin| name.starts_with(begin)))
    }

    /// Names that more than one unit claims: only the first counts.
    fn contested(&self) -> impl Iterator<Item = (&str, Vec<&Unit>)> {
        self.claims
            .iter()
            .filter(|(_, claims)| claims.len() > 1)
            .map(|(name, claims)| (&**name, claims.iter().map(|c| &c.unit).collect()))
    }

    /// Makes the edits and answers with the names that changed.
    pub fn apply(&mut self, edits: impl IntoIterator<Item = Edit>) -> Vec<Changed> {
        let mut dirty = BTreeSet::new();
        self.revision += 1;
        for edit in edits {
            self.edit(edit, &mut dirty);
        }
        self.recompute(dirty)
    }

    fn edit(&mut self, edit: Edit, dirty: &mut BTreeSet<Unit>) {
        match edit {
            Edit::Put(object) => {
                let (kind, name) = (object.kind(), object.name().to_owned());
                dependents::object(&self.inputs, kind, &name, dirty);
                self.inputs.put(*object);
                dependents::object(&self.inputs, kind, &name, dirty);
            }
            Edit::Delete { kind, name } => {
                dependents::object(&self.inputs, &kind, &name, dirty);
                self.inputs.remove(&kind, &name);
            }
            Edit::Place(placement) => {
                dependents::object(&self.inputs, "Workload", &placement.workload, dirty);
                let name = placement.workload.clone();
                self.inputs.placements.insert(name, placement);
            }
            Edit::Unplace { workload } => {
                dependents::object(&self.inputs, "Workload", &workload, dirty);
                self.inputs.placements.remove(&workload);
            }
            Edit::Service(service) => {
                let cluster = self.inputs.cluster.get_or_insert_default();
                let name = service.name.clone();
                cluster.touch_service(&name, dirty);
                cluster.put_service(*service);
                cluster.touch_service(&name, dirty);
            }
            Edit::RemoveService(name) => {
                let cluster = self.inputs.cluster.get_or_insert_default();
                cluster.touch_service(&name, dirty);
                cluster.remove_service(&name);
            }
            Edit::Pod(pod) => {
                let cluster = self.inputs.cluster.get_or_insert_default();
                let name = pod.name.clone();
                cluster.shares.put(&name, pod.has_share(), dirty);
                cluster.touch_pod(&name, dirty);
                cluster.put_pod(*pod);
                cluster.touch_pod(&name, dirty);
            }
            Edit::RemovePod(name) => {
                let cluster = self.inputs.cluster.get_or_insert_default();
                cluster.shares.put(&name, false, dirty);
                cluster.touch_pod(&name, dirty);
                cluster.remove_pod(&name);
            }
            Edit::Gateway(gateway) => {
                let cluster = self.inputs.cluster.get_or_insert_default();
                let name = ObjectName::InNamespace(gateway.name.clone());
                let spec = gateway.spec.clone();
                cluster.put_gateway(*gateway);
                self.inputs.gateways.insert(name.clone(), spec);
                dirty.insert(Unit::Gateway(name));
            }
            Edit::RemoveGateway(name) => {
                let cluster = self.inputs.cluster.get_or_insert_default();
                cluster.remove_gateway(&name);
                self.inputs.gateways.remove(name.as_str());
                dirty.insert(Unit::Gateway(name.into()));
            }
            Edit::Problems(problems) => self.inputs.told_problems = problems,
            Edit::Refused(objects) => self.inputs.refused = objects,
            Edit::StrictNamespaces(names) => {
                self.inputs.strict_namespaces = names;
                dirty.insert(Unit::Mesh);
            }
            Edit::Revoked(revoked) => {
                self.inputs.revoked = *revoked;
                dirty.insert(Unit::Mesh);
            }
            Edit::RemovedHosts(memberships) => {
                self.inputs.removed_hosts = memberships;
                dirty.insert(Unit::Mesh);
            }
            Edit::RevokedHosts(hosts) => {
                self.inputs.revoked_hosts = hosts;
                dirty.insert(Unit::Mesh);
            }
            Edit::Keys { address, fetched } => self.inputs.put_keys(&address, fetched, dirty),
            Edit::ForgetKeys(address) => {
                dependents::keys(&self.inputs, &address, dirty);
                self.inputs.keys.remove(&address);
            }
            Edit::WaitForKeys(begin) => self.inputs.wait_for_keys(begin, dirty),
        }
    }

    fn recompute(&mut self, mut dirty: BTreeSet<Unit>) -> Vec<Changed> {
        if dirty.iter().any(|u| matches!(u, Unit::Service(_))) {
            dirty.insert(Unit::Catalog);
        }
        if let Some(cluster) = &self.inputs.cluster {
            // A service may have other pods now, or pods other identities.
            for unit in dirty.clone() {
                if let Unit::Service(name) = unit {
                    dependents::called_from(&self.inputs, name.as_str(), &mut dirty);
                    // An Egress through a Service that is not there allows nothing.
                    if egress::has_gateway(&self.inputs, name.as_str()) {
                        dirty.insert(Unit::Egress);
                    }
                }
            }
            // A change of a Service also changes its pods.
            for unit in dirty.clone() {
                if let Unit::Service(ObjectName::InNamespace(name)) = unit {
                    cluster.touch_service(&name, &mut dirty);
                }
            }
        }
        if dirty.contains(&Unit::Mesh) {
            self.settings = mesh::settings(&self.inputs);
        }
        let mut before: BTreeMap<Arc<str>, Option<EncodedResource>> = BTreeMap::new();
        for unit in dirty {
            let mut problems = Vec::new();
            let outputs = self.outputs(&unit, &mut problems);
            match problems.is_empty() {
                true => self.problems.remove(&unit),
                false => self.problems.insert(unit.clone(), problems),
            };
            for name in self.given.remove(&unit).unwrap_or_default() {
                self.remember(&mut before, &name);
                if let Some(claims) = self.claims.get_mut(&name) {
                    claims.retain(|c| c.unit != unit);
                }
            }
            let mut given = Vec::with_capacity(outputs.len());
            for output in outputs {
                let name: Arc<str> = match self.claims.get_key_value(output.name.as_str()) {
                    Some((known, _)) => known.clone(),
                    None => output.name.as_str().into(),
                };
                self.remember(&mut before, &name);
                self.claim(&name, &unit, output);
                given.push(name);
            }
            if !given.is_empty() {
                self.given.insert(unit, given);
            }
        }
        let mut changed = Vec::new();
        for (name, old) in before {
            let new = self.get(&name).cloned();
            if new.is_none() {
                self.claims.remove(&name);
            }
            if new != old {
                changed.push((name, new));
            }
        }
        changed
    }

    fn outputs(&self, unit: &Unit, problems: &mut Vec<ObjectProblem>) -> Vec<Output> {
        let inputs = &self.inputs;
        // An explanation may have read keys meanwhile.
        inputs.awaited_keys();
        match unit {
            Unit::Mesh => mesh::outputs(&self.settings),
            Unit::Service(name) => services::outputs(inputs, name, problems),
            Unit::Gateway(name) => gateways::outputs(inputs, name, problems),
            Unit::Pod(name) => match &inputs.cluster {
                Some(cluster) => pods::pod_outputs(inputs, cluster, name, problems),
                None => Vec::new(),
            },
            Unit::Egress => egress::outputs(inputs),
            Unit::Catalog => services::catalog(inputs),
        }
    }

    fn remember(&self, before: &mut BTreeMap<Arc<str>, Option<EncodedResource>>, name: &Arc<str>) {
        if !before.contains_key(name) {
            before.insert(name.clone(), self.get(name).cloned());
        }
    }

    fn claim(&mut self, name: &Arc<str>, unit: &Unit, output: Output) {
        let service = match &output.resource {
            Resource::Service(_) | Resource::Alias(_) | Resource::Host(_) => unit.called(),
            _ => None,
        };
        let backends: BTreeSet<&str> = match &output.resource {
            Resource::Service(service) => service.backends().collect(),
            _ => BTreeSet::new(),
        };
        let backends = backends.into_iter();
        let backends = backends.filter_map(|name| self.inputs.object_name(name));
        let backends = backends.collect();
        let encoded = tulle_api::encode(output.resource);
        let entry = EncodedResource {
            version: tulle_api::version(&encoded.body, &encoded.labels),
            patch: None,
            body: encoded.body,
            labels: encoded.labels,
            owner: output.owner,
            service,
            backends,
            is_incomplete: output.is_incomplete,
        };
        let cluster = self.inputs.cluster.as_ref();
        let cluster = cluster.filter(|_| name.starts_with("address/"));
        let created = cluster.map(|c| c.created(unit).to_owned());
        let claims = self.claims.entry(name.clone()).or_default();
        claims.push(Claim {
            created: created.unwrap_or_default(),
            rank: output.rank,
            unit: unit.clone(),
            entry,
        });
        claims.sort_unstable_by(|a, b| {
            (&a.created, a.rank, &a.unit).cmp(&(&b.created, b.rank, &b.unit))
        });
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index")
            .field("resources", &self.claims.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
