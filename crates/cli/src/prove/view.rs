//! The mesh that statements are about: what sidecars are told, from a controller or from manifests alone.

use super::reach::{Gate, Reach};
use super::server::Server;
use super::statement::{Destination, Party, Requests};
use crate::client::{Objects, Rpc};
use crate::failure::{Failure, Result};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use tulle_api::v1::{self, ResourcesRequest};
use tulle_control::index::{Edit, Index, PlacedPort, Placement};
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_model::manifest::Object;
use tulle_model::resource::{Egress, MeshSettings, Resource, Service, ServicePort};

/// The mesh.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(super) settings: MeshSettings,
    pub(super) egress: Egress,
    pub(super) servers: Vec<Server>,
    services: BTreeMap<String, Service>,
    /// All identities that anything names.
    pub(super) identities: BTreeSet<SpiffeId>,
}

/// A service that an identity can call, and the rule that lets it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Permission {
    /// SPIFFE id.
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) rule: String,
}

/// The callers that a statement names.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub(super) identities: BTreeSet<SpiffeId>,
    namespaces: BTreeSet<String>,
    pub(super) plaintext: bool,
}

impl Named {
    /// Whether an identity is among them.
    pub(super) fn includes(&self, identity: &SpiffeId) -> bool {
        let of_namespace = |(namespace, _): (&str, &str)| self.namespaces.contains(namespace);
        self.identities.contains(identity) || identity.service_account().is_some_and(of_namespace)
    }
}

/// A resource and the identity that it is for.
type Told = (String, Option<SpiffeId>, Resource);

impl View {
    /// The mesh as a controller tells it.
    pub(crate) async fn running(objects: &mut Objects) -> Result<Self> {
        let what = || "cannot ask the controller what sidecars are told".to_owned();
        let unreadable = |why: String| Failure::new(what()).because(why);
        let mut told = Vec::new();
        let mut after = String::new();
        loop {
            let asked = objects.resources(ResourcesRequest { after }).await;
            let answer = asked.rpc(what)?;
            for resource in answer.resources {
                told.push(read(resource).map_err(unreadable)?);
            }
            if !answer.more {
                return Ok(Self::of_told(told));
            }
            after = told
                .last()
                .map(|(name, ..)| name.clone())
                .unwrap_or_default();
        }
    }

    /// The mesh that manifests would make. Every workload is taken to run.
    pub(super) fn of_manifests(objects: Vec<Object>) -> Result<Self> {
        let placements = objects.iter().filter_map(placement);
        let placements: Vec<Edit> = placements.map(Edit::Place).collect();
        if placements.is_empty() {
            return Err(Failure::input(
                "the manifests have no Workload, so nobody could be called",
            )
            .fix("name all files of the mesh, as for `tulle up`"));
        }
        let mut index = Index::new(TrustDomain::default());
        let objects = objects.into_iter().map(Box::new).map(Edit::Put);
        index.apply(objects.chain(placements));
        let told = index.about_callers().map(|(name, entry)| {
            let body = tulle_api::decode_body(&entry.body);
            let body = body.map_err(|why| Failure::new(format!("{name}: {why}")))?;
            Ok((name.to_string(), entry.owner.clone(), body))
        });
        Ok(Self::of_told(told.collect::<Result<_>>()?))
    }

    pub(super) fn of_told(told: Vec<Told>) -> Self {
        let mut view = Self::default();
        let mut inbound = Vec::new();
        for (name, owner, resource) in told {
            match (resource, owner) {
                (Resource::Mesh(settings), _) => view.settings = settings,
                (Resource::Egress(egress), _) => view.egress = egress,
                (Resource::Service(service), _) => {
                    view.services.insert(service.name.clone(), service);
                }
                (Resource::Inbound(found), Some(owner)) => inbound.push((name, owner, found)),
                _ => {}
            }
        }
        for (name, identity, inbound) in inbound {
            let name = name.strip_prefix("inbound/").unwrap_or(&name).to_owned();
            let pod = view.services.get(&format!("pod/{name}"));
            let addresses = pod.map(|pod| pod.addresses.clone()).unwrap_or_default();
            let same = |known: &Server| known.identity == identity && known.inbound == inbound;
            // A host's workload is told under the names of its service and identity, too.
            if addresses.is_empty() && view.servers.iter().any(same) {
                continue;
            }
            view.servers.push(Server {
                name,
                identity,
                inbound,
                addresses,
            });
        }
        view.identities = view.named_identities();
        view
    }

    fn named_identities(&self) -> BTreeSet<SpiffeId> {
        let mut all: BTreeSet<SpiffeId> = BTreeSet::new();
        for service in self.services.values() {
            all.extend(service.identities.iter().cloned());
        }
        for server in &self.servers {
            all.insert(server.identity.clone());
            let sources = server.inbound.policy.rules.iter().flat_map(|r| &r.sources);
            all.extend(sources.cloned());
        }
        for rule in &self.egress.rules {
            all.extend(rule.sources.iter().cloned());
        }
        all
    }

    /// The callers that these words name.
    pub(super) fn callers(&self, parties: &[Party]) -> Result<Named> {
        let mut named = Named::default();
        for party in parties {
            match party {
                Party::Plaintext => named.plaintext = true,
                Party::Namespace(name) => {
                    self.has_namespace(name)?;
                    named.namespaces.insert(name.clone());
                }
                Party::Named(name) => {
                    let found = self.identities_named(name);
                    if found.is_empty() {
                        return Err(self.unknown("caller", name));
                    }
                    named.identities.extend(found);
                }
            }
        }
        Ok(named)
    }

    /// The sidecars that are meant, each with the ports, by its own numbers; none: all.
    pub(super) fn destinations(&self, to: &Destination) -> Result<Vec<(&Server, Vec<u16>)>> {
        let found: Vec<(&Server, Vec<u16>)> = match to {
            Destination::Anything => self.servers.iter().map(|s| (s, Vec::new())).collect(),
            Destination::Namespace(name) => {
                self.has_namespace(name)?;
                let meant = self.servers.iter().filter(|server| {
                    let account = server.identity.service_account();
                    account.is_some_and(|(namespace, _)| namespace == name)
                });
                meant.map(|s| (s, Vec::new())).collect()
            }
            Destination::Named(name, port) => self.named_destinations(name, *port)?,
        };
        if found.is_empty() {
            return Err(
                Failure::input("no workload with a sidecar serves the destination now")
                    .because("a statement about nobody would hold whatever the policies are"),
            );
        }
        Ok(found)
    }

    /// The sidecars of a workload or of a service, of which those that serve the port if one is named.
    fn named_destinations(
        &self,
        name: &str,
        port: Option<u16>,
    ) -> Result<Vec<(&Server, Vec<u16>)>> {
        let service = self.service(name);
        let is_meant = |server: &&Server| {
            server.name == name || service.is_some_and(|service| server.serves(service))
        };
        let meant = || self.servers.iter().filter(is_meant);
        if meant().next().is_none() && service.is_none() {
            return Err(self.unknown("destination", name));
        }
        let Some(port) = port else {
            return Ok(meant().map(|server| (server, Vec::new())).collect());
        };
        let at_port = meant().map(|server| (server, server.own_ports(service, port)));
        let at_port: Vec<_> = at_port.filter(|(_, own)| !own.is_empty()).collect();
        if at_port.is_empty() && meant().next().is_some() {
            return Err(Failure::input(format!("{name} has no port {port}")));
        }
        Ok(at_port)
    }

    /// The number that a port of an application has at a service; its own if the service does not lead there.
    pub(crate) fn service_port(&self, service: &str, own: u16) -> u16 {
        let Some(service) = self.services.get(service) else {
            return own;
        };
        let is_of_pods = self
            .servers
            .iter()
            .any(|server| !server.addresses.is_empty());
        let leads = |port: &&ServicePort| port.endpoints.iter().any(|e| e.address.port() == own);
        let mut ports = service.ports.iter();
        ports
            .find(leads)
            .filter(|_| is_of_pods)
            .map_or(own, |port| port.port)
    }

    /// Which identity of the mesh may call which service.
    pub(crate) fn permissions(&self) -> Result<Vec<Permission>> {
        let mut all = BTreeSet::new();
        for server in &self.servers {
            let gate = self.gate(server)?;
            for identity in &self.identities {
                if let Reach::In(witness) = gate.reach(Some(identity), &[], &Requests::default()) {
                    all.insert(Permission {
                        from: identity.to_string(),
                        to: server.inbound.service.clone(),
                        rule: witness.allowed_by(),
                    });
                }
            }
        }
        Ok(all.into_iter().collect())
    }

    /// The policy of a sidecar.
    pub(super) fn gate<'a>(&self, server: &'a Server) -> Result<Gate<'a>> {
        let settings = &self.settings;
        let strict = settings.strict_mtls || settings.is_strict_for(&server.identity);
        let gate = Gate::new(server, strict);
        gate.map_err(|why| Failure::new(format!("the policy of {}: {why}", server.name)))
    }

    /// Finds a service by its whole name, or by the first part of it if only one begins so.
    fn service(&self, name: &str) -> Option<&Service> {
        self.services.get(name).or_else(|| {
            let mut begin = self.services.values().filter(|service| {
                let rest = service.name.strip_prefix(name);
                rest.is_some_and(|rest| rest.starts_with('.'))
            });
            begin.next().filter(|_| begin.next().is_none())
        })
    }

    fn identities_named(&self, name: &str) -> BTreeSet<SpiffeId> {
        if let Ok(identity) = SpiffeId::parse(name) {
            return BTreeSet::from([identity]);
        }
        let of_service = self.service(name).map(|service| service.identities.clone());
        let is_named = |identity: &&SpiffeId| match identity.service_account() {
            Some((namespace, account)) => {
                account == name || name.strip_prefix(account) == Some(&format!(".{namespace}"))
            }
            None => identity.name() == name,
        };
        let named = self.identities.iter().filter(is_named).cloned();
        named.chain(of_service.unwrap_or_default()).collect()
    }

    fn has_namespace(&self, name: &str) -> Result<()> {
        let mut all = self.identities.iter().filter_map(SpiffeId::service_account);
        if all.any(|(namespace, _)| namespace == name) {
            return Ok(());
        }
        Err(Failure::input(format!(
            "no workload of the mesh is in a namespace {name:?}"
        )))
    }

    fn unknown(&self, what: &str, name: &str) -> Failure {
        let names = self
            .services
            .keys()
            .filter(|name| !name.starts_with("pod/"));
        let names: Vec<&str> = names.map(String::as_str).take(20).collect();
        Failure::input(format!("the mesh has no {what} {name:?}"))
            .because("a statement about it would hold whatever the policies are")
            .fix(format!("there are: {}", names.join(", ")))
    }
}

fn read(resource: v1::ToldResource) -> std::result::Result<Told, String> {
    let name = resource.name;
    let wrong = |why: &dyn std::fmt::Display| format!("{name}: {why}");
    let body = tulle_api::decode_body(&resource.body).map_err(|e| wrong(&e))?;
    let owner = match resource.owner.as_str() {
        "" => None,
        owner => Some(SpiffeId::parse(owner).map_err(|e| wrong(&e))?),
    };
    Ok((name, owner, body))
}

/// The address of workloads that run nowhere yet. Nobody connects to it: policies alone are judged.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

/// Where a workload would run.
fn placement(object: &Object) -> Option<Placement> {
    let Object::Workload(workload) = object else {
        return None;
    };
    let name = &workload.metadata.name;
    let ports = workload.spec.ports.iter().map(|port| PlacedPort {
        port: port.port,
        endpoint: NOWHERE,
        target: NOWHERE,
        mutual_tls: true,
    });
    Some(Placement {
        workload: name.clone(),
        node: String::new(),
        ports: ports.collect(),
        addresses: Vec::new(),
        not_ready: false,
    })
}
