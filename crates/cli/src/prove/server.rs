//! A sidecar of the called side, and the numbers that a service's port has there.

use std::collections::BTreeSet;
use std::net::IpAddr;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::{Inbound, Service};

/// A sidecar of the called side.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// The workload or pod.
    pub(super) name: String,
    pub(super) identity: SpiffeId,
    pub(super) inbound: Inbound,
    /// Addresses of a pod; a host's workload is known by its service's ports.
    pub(super) addresses: Vec<IpAddr>,
}

impl Server {
    /// Whether calls of the service come here.
    pub(super) fn serves(&self, service: &Service) -> bool {
        if self.addresses.is_empty() {
            return self.inbound.service == service.name;
        }
        let mut endpoints = service.ports.iter().flat_map(|port| &port.endpoints);
        endpoints.any(|endpoint| self.addresses.contains(&endpoint.address.ip()))
    }

    /// The numbers that a service's port has here; none: it is not served.
    pub(super) fn own_ports(&self, service: Option<&Service>, port: u16) -> Vec<u16> {
        let own: BTreeSet<u16> = match service.filter(|_| !self.addresses.is_empty()) {
            None => BTreeSet::from([port]),
            Some(service) => {
                let meant = service.ports.iter().filter(|p| p.port == port);
                let endpoints = meant.flat_map(|p| &p.endpoints);
                let own = endpoints.filter(|e| self.addresses.contains(&e.address.ip()));
                own.map(|e| e.address.port()).collect()
            }
        };
        own.into_iter().filter(|own| self.accepts(*own)).collect()
    }

    /// Whether the sidecar takes connections to a port of its application. An entry of 0 stands for all that are not
    /// listed.
    fn accepts(&self, own: u16) -> bool {
        let mut ports = self.inbound.ports.iter();
        ports.any(|port| port.port == own || port.port == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::statement::Destination;
    use super::super::view::View;
    use super::*;
    use crate::failure::Result;
    use tulle_model::resource::{Endpoint, InboundPort, Protocol, Resource, ServicePort};

    const ADDRESSES: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];

    /// Two pods of one service, each of which serves another of its ports.
    fn view() -> View {
        let mut told = Vec::new();
        let mut ports = Vec::new();
        for (i, address) in (0..).zip(ADDRESSES) {
            let own = 8080 + i;
            let name = format!("web-{i}.shop");
            let identity = SpiffeId::parse("spiffe://t/ns/shop/sa/web").unwrap();
            let port = InboundPort::new(own, Protocol::Http, (address, own).into());
            let inbound = Inbound {
                ports: vec![port],
                ..Inbound::default()
            };
            told.push((
                format!("inbound/{name}"),
                Some(identity),
                Resource::Inbound(inbound),
            ));
            let pod = Service {
                name: format!("pod/{name}"),
                addresses: vec![address.into()],
                ..Service::default()
            };
            told.push((
                format!("service/{}", pod.name),
                None,
                Resource::Service(pod),
            ));
            ports.push(ServicePort {
                port: 80 + i,
                endpoints: vec![Endpoint::new((address, own).into(), true)],
                ..ServicePort::default()
            });
        }
        let web = Service {
            name: "web.shop".into(),
            ports,
            ..Service::default()
        };
        told.push(("service/web.shop".into(), None, Resource::Service(web)));
        View::of_told(told)
    }

    fn destinations(port: Option<u16>) -> Result<Vec<(String, Vec<u16>)>> {
        let view = view();
        let found = view.destinations(&Destination::Named("web".into(), port))?;
        let found = found.into_iter();
        Ok(found
            .map(|(server, own)| (server.name.clone(), own))
            .collect())
    }

    #[test]
    fn a_port_means_the_pods_that_serve_it_and_no_other_port_of_the_rest() {
        let named = |pods: &[(&str, &[u16])]| -> Vec<(String, Vec<u16>)> {
            let pods = pods.iter();
            pods.map(|(name, own)| ((*name).to_owned(), own.to_vec()))
                .collect()
        };
        let all = named(&[("web-0.shop", &[]), ("web-1.shop", &[])]);
        assert_eq!(destinations(None).unwrap(), all);
        assert_eq!(
            destinations(Some(81)).unwrap(),
            named(&[("web-1.shop", &[8081])])
        );
        let missing = destinations(Some(82)).unwrap_err();
        assert!(
            missing.to_string().contains("web has no port 82"),
            "{missing}"
        );
    }
}
