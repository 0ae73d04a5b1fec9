//! Makes the endpoints of Services, as their EndpointSlices and the bounds say. Pure.

use super::State;
use super::room::{Cut, closing, name_of_closing};
use super::seen::{SeenService, SeenSlice};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use tulle_control::index::{ClusterEndpoint, ClusterPort, ClusterService, Edit};
use tulle_model::namespaced::Namespaced;

/// `region/zone` of each zone that a slice names.
type Places<'a> = BTreeMap<&'a String, String>;

impl State {
    /// Adds the changes of services since the last time.
    pub(super) fn edit_services(&mut self, edits: &mut Vec<Edit>) {
        let mut changed = std::mem::take(&mut self.changed_services);
        let asked: Vec<Option<usize>> = changed.iter().map(|key| self.asked(key)).collect();
        let services = &self.services;
        let created = |key: &Namespaced| services.get(key).map_or("", |s| s.created.as_str());
        let differ = self.rooms.ask(changed.iter().zip(asked), created);
        self.cuts_changed |= !differ.is_empty();
        changed.extend(differ);
        for key in changed {
            let cut = self.rooms.cut_of(&key);
            // A service is closed before endpoints of it go, and opened after they came.
            if let Some(cut) = cut {
                self.close(&key, cut, edits);
            }
            edits.push(match self.services.get(&key) {
                Some(service) => Edit::Service(Box::new(self.cluster_service(&key, service, cut))),
                None => Edit::RemoveService(key.clone()),
            });
            if cut.is_none() && self.closed.remove(&key) {
                edits.push(Edit::Delete {
                    kind: "AuthorizationPolicy".into(),
                    name: name_of_closing(&key),
                });
            }
        }
    }

    /// Lets nobody call a service some of whose endpoints are not known.
    fn close(&mut self, key: &Namespaced, cut: Cut, edits: &mut Vec<Edit>) {
        if !self.closed.insert(key.clone()) {
            return;
        }
        let object = format!("Service/{key}");
        tracing::error!(object, "{}", cut.text());
        edits.extend(closing(key).map(|policy| Edit::Put(Box::new(policy))));
    }

    /// The services some of whose endpoints are not known.
    pub(in crate::source) fn cuts(&self) -> impl Iterator<Item = (&Namespaced, Cut)> {
        self.rooms.cuts()
    }

    /// Whether these are others than at the last call, or other endpoints of theirs are.
    pub(in crate::source) fn cuts_changed(&mut self) -> bool {
        std::mem::take(&mut self.cuts_changed)
    }

    fn slices_of_service(&self, service: &Namespaced) -> impl Iterator<Item = &SeenSlice> {
        let keys = self.of_service.get(service).into_iter().flatten();
        keys.filter_map(|key| self.slices.get(key))
    }

    /// The number of endpoints that a service has at all its ports; `None`: there is no such service.
    fn asked(&self, key: &Namespaced) -> Option<usize> {
        let service = self.services.get(key)?;
        let of_slices = self.slices_of_service(key).map(|slice| {
            let ports = service.ports.iter();
            let ports = ports.filter(|(name, _)| slice.ports.contains_key(name));
            ports.count().saturating_mul(slice.size)
        });
        Some(of_slices.fold(0, usize::saturating_add))
    }

    fn cluster_service(
        &self,
        key: &Namespaced,
        service: &SeenService,
        cut: Option<Cut>,
    ) -> ClusterService {
        let slices: Vec<(&SeenSlice, Places<'_>)> = self
            .slices_of_service(key)
            .map(|slice| (slice, self.places(slice)))
            .collect();
        let mut ports: Vec<_> = service.ports.iter().collect();
        // Whole ports are known as far as there is room, so that as many pods as possible are known to be the service's.
        let mut left = cut.map_or(usize::MAX, |cut| cut.kept);
        if cut.is_some() {
            ports.sort_by_key(|(_, port)| port.port);
        }
        let ports = ports.into_iter().map(|(name, port)| {
            let mut endpoints = Vec::new();
            for (slice, places) in &slices {
                let number = slice.ports.get(name).filter(|_| left > 0);
                let made = number.into_iter();
                let made = made.flat_map(|number| self.endpoints(slice, places, *number));
                endpoints.extend(made.take_while(|endpoint| {
                    let rest = left.checked_sub(endpoint.zones.len().max(1));
                    left = rest.unwrap_or_default();
                    rest.is_some()
                }));
            }
            ClusterPort {
                port: port.clone(),
                endpoints,
            }
        });
        ClusterService {
            ports: ports.collect(),
            name: key.clone(),
            created: service.created.clone(),
            addresses: service.addresses.clone(),
            sticky: service.sticky,
            node_local: service.node_local,
        }
    }

    /// `region/zone` of a zone, as nodes have it.
    fn place(&self, zone: &str) -> String {
        let mut places = self.localities.values();
        let place = places.find(|place| place.rsplit('/').next() == Some(zone));
        place.map_or(zone, String::as_str).to_owned()
    }

    /// The places of a slice's zones. It names few, and each again and again.
    fn places<'a>(&self, slice: &'a SeenSlice) -> Places<'a> {
        let zones = slice.endpoints.iter().flat_map(|e| &e.zones);
        let zones: BTreeSet<&String> = zones.collect();
        let places = zones.into_iter().map(|zone| (zone, self.place(zone)));
        places.collect()
    }

    /// The endpoints that a slice has for a port which has this number there.
    fn endpoints(
        &self,
        slice: &SeenSlice,
        places: &Places<'_>,
        number: u16,
    ) -> impl Iterator<Item = ClusterEndpoint> {
        let of_node = |pod: &Namespaced| self.pods.get(pod).is_some_and(|pod| pod.of_node);
        let place = |zone: &String| places.get(zone).cloned();
        slice.endpoints.iter().flat_map(move |endpoint| {
            let pod = endpoint.pod.as_ref().filter(|pod| !of_node(pod));
            endpoint.addresses.iter().map(move |ip| ClusterEndpoint {
                address: SocketAddr::new(*ip, number),
                pod: pod.map(|pod| pod.name().to_owned()),
                ready: endpoint.ready,
                node: endpoint.node.clone(),
                zones: endpoint.zones.iter().filter_map(place).collect(),
            })
        })
    }
}
