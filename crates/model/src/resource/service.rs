//! A destination: what a client needs to reach it and to know it is the right one.

use super::{
    Filter, Protocol, Route, Target, TcpRoute, TlsRoute, Traffic, Workloads, is_default, is_one,
    one,
};
use crate::identity::SpiffeId;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

/// A destination, as all of its clients see it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Service {
    /// Unique in the mesh.
    pub name: String,
    /// Addresses clients connect to; a transparent outbound connection is matched by these.
    #[serde(default, skip_serializing_if = "is_default")]
    pub addresses: Vec<IpAddr>,
    /// Host names of the service, lower case, without port.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hostnames: Vec<String>,
    /// The identities a server of this service may present, compared exactly.
    #[serde(default, skip_serializing_if = "is_default")]
    pub identities: Vec<SpiffeId>,
    /// Ports by number.
    pub ports: Vec<ServicePort>,
    /// HTTP routes attached to the service itself (Service parentRef).
    #[serde(default, skip_serializing_if = "is_default")]
    pub routes: Vec<Route>,
    /// TLS routes attached to the service itself.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tls_routes: Vec<TlsRoute>,
    /// TCP routes attached to the service itself.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tcp_routes: Vec<TcpRoute>,
    /// Weighted backends its requests and connections are split over when no route takes them
    /// (SMI TrafficSplit); a backend's port 0 is the port that was asked for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub split: Vec<Target>,
    /// The workloads behind its endpoints, for metrics.
    #[serde(default, skip_serializing_if = "is_default")]
    pub workloads: Workloads,
}

impl Service {
    /// The routes for clients of a namespace; `None`: of none. Where some are for them alone, the others
    /// do not count (Gateway API: consumer routes override producer routes).
    pub fn routes_for(&self, namespace: Option<&str>) -> Cow<'_, [Route]> {
        if self.routes.iter().all(|route| route.clients.is_empty()) {
            return Cow::Borrowed(&self.routes);
        }
        let (all, some): (Vec<&Route>, Vec<&Route>) = self
            .routes
            .iter()
            .partition(|route| route.clients.is_empty());
        let own = some.into_iter().filter(|r| Some(&*r.clients) == namespace);
        let mut routes: Vec<Route> = own.cloned().collect();
        let taken: Vec<u16> = routes.iter().map(|route| route.port).collect();
        let is_free = |port: u16| !taken.iter().any(|t| [0, port].contains(t));
        for route in all {
            if taken.is_empty() || route.port != 0 {
                routes.extend(is_free(route.port).then(|| route.clone()));
                continue;
            }
            let free = self.ports.iter().map(|p| p.port).filter(|p| is_free(*p));
            routes.extend(free.map(|port| Route {
                port,
                ..route.clone()
            }));
        }
        Cow::Owned(routes)
    }

    /// Names of the services that its routes and its split send requests, copies or questions to.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        let rules = self.routes.iter().flat_map(|route| &route.rules);
        let of_rules = rules.flat_map(|rule| {
            let backends = rule.backends.iter();
            let filters = backends.clone().flat_map(|backend| &backend.filters);
            let asked = rule
                .filters
                .iter()
                .chain(filters)
                .flat_map(Filter::services);
            backends.map(|backend| &*backend.service).chain(asked)
        });
        let tls = self.tls_routes.iter().flat_map(|route| &route.targets);
        let tcp = self.tcp_routes.iter().flat_map(|route| &route.targets);
        let targets = tls.chain(tcp).chain(&self.split);
        of_rules.chain(targets.map(|target| &*target.service))
    }
}

/// A port of a service and its endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServicePort {
    /// The number clients use. 0: every number that has no entry; endpoints with port 0 are called at it.
    pub port: u16,
    /// The protocol of the port.
    #[serde(default, skip_serializing_if = "is_default")]
    pub protocol: Protocol,
    /// Endpoints of the port.
    #[serde(default, skip_serializing_if = "is_default")]
    pub endpoints: Vec<Endpoint>,
    /// How clients treat it; `None`: the defaults.
    #[serde(default, skip_serializing_if = "is_default")]
    pub traffic: Option<Box<Traffic>>,
}

/// A place where a service port is served.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Endpoint {
    /// Where to connect.
    pub address: SocketAddr,
    /// Behind a sidecar: mutual TLS is required. False only for workloads outside the mesh.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub mutual_tls: bool,
    /// Share beside the other endpoints; 0: none.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
    /// Where it runs, widest first: `region/zone` or `region/zone/node`; empty: unknown.
    #[serde(default, skip_serializing_if = "is_default")]
    pub locality: String,
}

impl Endpoint {
    /// An endpoint behind a sidecar (or not) with the usual share.
    pub fn new(address: SocketAddr, mutual_tls: bool) -> Self {
        Self {
            address,
            mutual_tls,
            weight: 1,
            locality: String::new(),
        }
    }
}

fn yes() -> bool {
    true
}

// serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_yes(value: &bool) -> bool {
    *value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_the_clients_namespace_stand_before_others() {
        let route = |name: &str, port, clients: &str| Route {
            name: name.into(),
            port,
            clients: clients.into(),
            ..Default::default()
        };
        let port = |port| ServicePort {
            port,
            ..Default::default()
        };
        let service = |routes: Vec<Route>| Service {
            ports: vec![port(80), port(81)],
            routes,
            ..Default::default()
        };
        let names = |service: &Service, namespace: Option<&str>| -> Vec<String> {
            let routes = service.routes_for(namespace);
            let named = routes.iter().map(|r| format!("{}:{}", r.name, r.port));
            named.collect()
        };
        let some = service(vec![route("all", 0, ""), route("own", 80, "shop")]);
        assert_eq!(names(&some, None), ["all:0"]);
        assert_eq!(names(&some, Some("other")), ["all:0"]);
        assert_eq!(names(&some, Some("shop")), ["own:80", "all:81"]);
        let every = service(vec![
            route("all", 0, ""),
            route("one", 80, ""),
            route("own", 0, "shop"),
        ]);
        assert_eq!(names(&every, Some("shop")), ["own:0"]);
        assert_eq!(names(&every, Some("")), ["all:0", "one:80"]);
    }
}
