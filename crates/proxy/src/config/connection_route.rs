//! Routes connections to a service by the server name in their TLS hello, or by port alone (Gateway
//! API TLSRoute and TCPRoute).

use crate::config::route::matching::HostMatch;
use std::cmp::Reverse;
use tulle_model::resource::{Target, TcpRoute, TlsRoute};

/// Compiled routes of connections, in the order in which they are tried.
#[derive(Default)]
pub struct ConnectionRoutes {
    tls: Vec<(Place, HostMatch, usize)>,
    tcp: Vec<(Place, usize)>,
    targets: Vec<Targets>,
}

/// Where a route is attached.
struct Place {
    /// 0: every port.
    port: u16,
    /// Empty: every listener of the port.
    listener: Box<str>,
}

/// Targets of a route's connections.
pub struct Targets {
    /// The route.
    pub route: String,
    targets: Vec<Target>,
    total: u64,
}

impl ConnectionRoutes {
    /// Orders TLS routes by how specific their server name is; TCP routes keep their order.
    pub fn compile(tls: &[TlsRoute], tcp: &[TcpRoute]) -> Self {
        let mut routes = Self::default();
        for route in tls {
            let index = routes.targets.len();
            let any = [String::new()];
            let hosts = match route.hostnames.as_slice() {
                [] => &any[..],
                hosts => hosts,
            };
            let place = || Place::new(route.port, &route.listener);
            let entries = hosts.iter().map(|h| (place(), HostMatch::new(h), index));
            routes.tls.extend(entries);
            routes
                .targets
                .push(Targets::new(&route.name, &route.targets));
        }
        // A stable sort keeps the written order among equals.
        routes.tls.sort_by_key(|(_, host, _)| Reverse(host.rank()));
        for route in tcp {
            let place = Place::new(route.port, &route.listener);
            routes.tcp.push((place, routes.targets.len()));
            routes
                .targets
                .push(Targets::new(&route.name, &route.targets));
        }
        routes
    }

    /// Whether the server name matters on this port.
    pub fn has_tls(&self, port: u16) -> bool {
        self.tls.iter().any(|(place, ..)| place.is(port, ""))
    }

    /// The route of a connection whose TLS asks for this server. `listener` is empty at a service.
    pub fn by_name(&self, port: u16, listener: &str, name: Option<&str>) -> Option<&Targets> {
        let name = name.unwrap_or_default().as_bytes();
        let mut here = self
            .tls
            .iter()
            .filter(|(place, ..)| place.is(port, listener));
        self.targets
            .get(here.find(|(_, host, _)| host.covers(name))?.2)
    }

    /// The route of all connections to a port or listener.
    pub fn by_port(&self, port: u16, listener: &str) -> Option<&Targets> {
        let mut all = self.tcp.iter();
        self.targets
            .get(all.find(|(place, _)| place.is(port, listener))?.1)
    }

    /// Names of the services connections may go to.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        self.targets.iter().flat_map(Targets::services)
    }
}

impl Place {
    fn new(port: u16, listener: &str) -> Self {
        Self {
            port,
            listener: listener.into(),
        }
    }

    fn is(&self, port: u16, listener: &str) -> bool {
        [0, port].contains(&self.port) && (self.listener.is_empty() || &*self.listener == listener)
    }
}

impl Targets {
    /// Targets of a route, or of a traffic split.
    pub fn new(route: &str, targets: &[Target]) -> Self {
        Self {
            route: route.to_owned(),
            targets: targets.to_vec(),
            total: targets.iter().map(|t| u64::from(t.weight)).sum(),
        }
    }

    /// Names of the services.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        self.targets.iter().map(|t| t.service.as_str())
    }

    /// One of them, by weight and a random number.
    pub fn by_weight(&self, random: u64) -> Option<&Target> {
        let mut left = random.checked_rem(self.total)?;
        self.targets.iter().find(|t| {
            let here = left < u64::from(t.weight);
            left = left.saturating_sub(u64::from(t.weight));
            here
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(service: &str, weight: u32) -> Target {
        Target {
            service: service.into(),
            port: 1,
            weight,
        }
    }

    fn route(hosts: &[&str], port: u16, service: &str) -> TlsRoute {
        TlsRoute {
            name: format!("TLSRoute/{service}"),
            hostnames: hosts.iter().map(|h| (*h).to_owned()).collect(),
            targets: vec![target(service, 1)],
            port,
            listener: String::new(),
        }
    }

    #[test]
    fn the_closest_name_wins() {
        let routes = ConnectionRoutes::compile(
            &[
                route(&[], 443, "rest"),
                route(&["*.example.com"], 0, "wild"),
                route(&["*.b.example.com", "b.example.com"], 0, "b"),
            ],
            &[],
        );
        let find = |port, name| routes.by_name(port, "", name).map(|t| t.route.as_str());
        assert_eq!(find(443, Some("a.example.com")), Some("TLSRoute/wild"));
        assert_eq!(find(443, Some("b.example.com")), Some("TLSRoute/b"));
        assert_eq!(find(443, Some("x.b.example.com")), Some("TLSRoute/b"));
        assert_eq!(find(443, Some("example.com")), Some("TLSRoute/rest"));
        assert_eq!(find(443, None), Some("TLSRoute/rest"));
        assert_eq!(find(444, None), None, "another port");
        assert_eq!(routes.backends().count(), 3);
    }

    #[test]
    fn a_route_of_one_listener_is_not_found_at_another_of_its_port() {
        let of = |listener: &str, service: &str| TlsRoute {
            listener: listener.into(),
            ..route(&[], 443, service)
        };
        let tcp = TcpRoute {
            name: "TCPRoute/c".into(),
            targets: vec![target("c", 1)],
            port: 443,
            listener: "ends".into(),
        };
        let routes = ConnectionRoutes::compile(&[of("passes", "a"), of("ends", "b")], &[tcp]);
        let find = |listener| routes.by_name(443, listener, Some("x")).map(|t| &*t.route);
        assert_eq!(find("passes"), Some("TLSRoute/a"));
        assert_eq!(find("ends"), Some("TLSRoute/b"));
        assert_eq!(find("other"), None);
        assert!(routes.by_port(443, "passes").is_none());
        assert!(routes.by_port(443, "ends").is_some());
    }

    #[test]
    fn targets_share_by_weight() {
        let targets = Targets::new(
            "TCPRoute/t",
            &[target("a", 3), target("off", 0), target("b", 1)],
        );
        let count = |name: &str| {
            (0..100)
                .filter(|&r| targets.by_weight(r).unwrap().service == name)
                .count()
        };
        assert_eq!((count("a"), count("off"), count("b")), (75, 0, 25));
        assert!(Targets::new("t", &[target("a", 0)]).by_weight(1).is_none());
    }
}
