//! Compiled rules about destinations outside the mesh that workloads may reach.

use crate::config::conditions::{Conditions, Request};
use crate::config::route::matching::HostMatch;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tulle_model::condition;
use tulle_model::identity::SpiffeId;
use tulle_model::network::Network;
use tulle_model::resource::{self, EgressPort, Protocol, Target};
use tulle_tls::outside::OutsideClient;

/// All rules; one that matches is enough, and the first that does decides the way.
pub struct Egress {
    rules: Vec<Rule>,
}

/// A rule, which matches if all its parts match.
pub struct Rule {
    /// The object it comes from.
    pub name: Arc<str>,
    /// How its connections leave.
    pub way: Arc<Way>,
    sources: Vec<SpiffeId>,
    namespace: String,
    hosts: Vec<HostMatch>,
    networks: Vec<Network>,
    ports: Vec<EgressPort>,
    conditions: Conditions,
}

/// How connections leave the mesh.
pub struct Way {
    /// The rule.
    pub rule: Arc<str>,
    /// TLS that begins here for connections that are plain.
    pub tls: Option<Origination>,
    /// The egress gateway; `None`: they leave from this proxy.
    pub gateway: Option<Target>,
}

/// How TLS begins here.
pub struct Origination {
    /// Roots and sessions.
    pub client: OutsideClient,
    /// Name the server must prove; empty: the request's host.
    pub server_name: String,
    /// Port to connect to; 0: as asked.
    pub port: u16,
}

/// The protocol of a connection that is not HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spoken {
    /// TLS; the server's name.
    Tls(Option<String>),
    /// Anything else.
    Opaque,
}

impl Egress {
    /// Compiles all rules.
    ///
    /// # Errors
    /// One of them makes no sense.
    pub fn compile(egress: &resource::Egress) -> Result<Self, String> {
        let rules = egress.rules.iter().map(|rule| {
            Rule::compile(rule).map_err(|why| {
                let name = &rule.name;
                format!("{name}: {why}")
            })
        });
        Ok(Self {
            rules: rules.collect::<Result<_, _>>()?,
        })
    }

    /// Rules for this caller, address and port, whatever the protocol.
    pub fn towards(
        &self,
        source: &SpiffeId,
        destination: SocketAddr,
    ) -> impl Iterator<Item = &Rule> {
        let meant = move |rule: &&Rule| {
            rule.is_for(source)
                && rule.port(destination.port()).is_some()
                && rule.is_in_networks(destination.ip())
        };
        self.rules.iter().filter(meant)
    }

    /// Rules for this caller that name the host and port; its address is judged later.
    pub fn naming(&self, source: &SpiffeId, host: &str, port: u16) -> Vec<&Rule> {
        let meant = |rule: &&Rule| {
            rule.is_for(source) && rule.port(port).is_some() && rule.names(Some(host.as_bytes()))
        };
        self.rules.iter().filter(meant).collect()
    }

    /// Services of egress gateways.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        let gateways = self.rules.iter().filter_map(|r| r.way.gateway.as_ref());
        gateways.map(|t| t.service.as_str())
    }

    /// Names of the rules, for operators.
    pub fn rule_names(&self) -> Vec<&str> {
        self.rules.iter().map(|r| &*r.name).collect()
    }
}

impl Rule {
    fn compile(rule: &resource::EgressRule) -> Result<Self, String> {
        let name: Arc<str> = rule.name.as_str().into();
        let tls = match &rule.tls {
            None => None,
            Some(tls) => {
                if !tls.server_name.is_empty() {
                    OutsideClient::server_name(&tls.server_name).map_err(|e| e.to_string())?;
                } else if rule.ports.iter().any(|p| p.protocol == Protocol::Tcp) {
                    return Err(
                        "TCP that leaves as TLS names no server; give tls.serverName".into(),
                    );
                }
                Some(Origination {
                    client: OutsideClient::new(&tls.roots).map_err(|e| e.to_string())?,
                    server_name: tls.server_name.clone(),
                    port: tls.port,
                })
            }
        };
        Ok(Self {
            way: Arc::new(Way {
                rule: name.clone(),
                tls,
                gateway: rule.gateway.clone(),
            }),
            name,
            sources: rule.sources.clone(),
            namespace: rule.namespace.clone(),
            hosts: rule.hosts.iter().map(|h| HostMatch::new(h)).collect(),
            networks: rule.networks.clone(),
            ports: rule.ports.clone(),
            conditions: Conditions::compile(&rule.matches, condition::condition)?,
        })
    }

    fn is_for(&self, source: &SpiffeId) -> bool {
        resource::is_for(&self.sources, &self.namespace, source)
    }

    /// Returns the protocol that is allowed on a port; `None`: the rule does not cover the port.
    fn port(&self, port: u16) -> Option<Protocol> {
        if self.ports.is_empty() {
            return Some(Protocol::Detect);
        }
        let found = self.ports.iter().find(|p| p.port == port);
        found.map(|p| p.protocol)
    }

    fn is_in_networks(&self, address: IpAddr) -> bool {
        self.networks.is_empty() || self.networks.iter().any(|n| n.contains(address))
    }

    /// Whether an egress gateway may dial an address of a name: one of the rule's networks, or
    /// without networks any public one. Otherwise a name could lead to the network behind the
    /// gateway.
    pub fn admits(&self, address: IpAddr) -> bool {
        match self.networks.as_slice() {
            [] => is_public(address),
            networks => networks.iter().any(|n| n.contains(address)),
        }
    }

    fn names(&self, host: Option<&[u8]>) -> bool {
        self.hosts.is_empty() || host.is_some_and(|host| self.hosts.iter().any(|h| h.covers(host)))
    }

    /// Whether the first bytes are needed to judge a connection to this port.
    pub fn looks_inside(&self, port: u16) -> bool {
        let opaque = self.port(port) == Some(Protocol::Tcp);
        let anything = self.hosts.is_empty() && self.conditions.is_empty();
        // A gateway is told the server's name, if there is one.
        !(opaque && anything && self.way.gateway.is_none())
    }

    /// Whether a connection that is not HTTP may leave. Conditions for requests do not apply to it,
    /// so a rule that has them does not allow it.
    pub fn allows(&self, port: u16, spoken: &Spoken) -> bool {
        let name = match spoken {
            Spoken::Tls(name) => name.as_deref(),
            Spoken::Opaque => None,
        };
        let protocol = match self.port(port) {
            None | Some(Protocol::Http) => false,
            Some(Protocol::Tls) => matches!(spoken, Spoken::Tls(_)),
            Some(_) => true,
        };
        protocol && self.conditions.is_empty() && self.names(name.map(str::as_bytes))
    }

    /// Whether a request may leave. An ambiguous path passes no rule about paths.
    pub fn allows_request(&self, port: u16, host: &[u8], request: &Request<'_>) -> bool {
        let protocol = match self.port(port) {
            None | Some(Protocol::Tls) => false,
            Some(_) => true,
        };
        let clear = !self.conditions.look_at_paths() || request.is_plain();
        protocol && self.names(Some(host)) && clear && self.conditions.surely_match(request)
    }
}

/// Whether an address belongs to the public internet.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            let special = v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_documentation()
                || a == 0
                || a >= 240
                || (a == 100 && (64..128).contains(&b))
                || (a == 192 && b == 0 && c == 0)
                || (a == 198 && (b == 18 || b == 19));
            !special
        }
        IpAddr::V6(v6) => {
            let [first, second, ..] = v6.segments();
            let embedded = |at: usize| {
                let octets = v6.octets();
                let part = octets.get(at..).and_then(|o| o.first_chunk::<4>());
                part.is_some_and(|part| is_public(IpAddr::from(*part)))
            };
            match (first, second) {
                // NAT64 and 6to4 lead to the IPv4 address inside.
                (0x64, 0xff9b) => v6.segments().get(2) == Some(&0) && embedded(12),
                (0x2002, _) => embedded(2),
                (0x2001, 0..=0x1ff | 0xdb8) => false,
                // Only 2000::/3 is in use.
                _ => first & 0xe000 == 0x2000,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resource::{EgressRule, EgressTls, PolicyMatch};

    fn id(name: &str) -> SpiffeId {
        SpiffeId::parse(&format!("spiffe://tulle.local/svc/{name}")).unwrap()
    }

    fn rule(rule: EgressRule) -> Rule {
        Rule::compile(&rule).unwrap()
    }

    #[test]
    fn addresses_that_a_name_must_not_lead_to() {
        for inside in [
            "127.0.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:10.0.0.1",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::808:808",
            "2002:7f00:1::1",
            "2001:db8::1",
            "::127.0.0.1",
        ] {
            assert!(!is_public(inside.parse().unwrap()), "{inside}");
        }
        for outside in [
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "64:ff9b::808:808",
        ] {
            assert!(is_public(outside.parse().unwrap()), "{outside}");
        }
    }

    #[test]
    fn names_decide_about_tls_and_nothing_about_the_rest() {
        let rule = rule(EgressRule {
            hosts: vec!["*.example.com".into(), "example.org".into()],
            ports: vec![EgressPort {
                port: 443,
                protocol: Protocol::Detect,
            }],
            ..Default::default()
        });
        let tls = |name: &str| Spoken::Tls(Some(name.into()));
        assert!(rule.allows(443, &tls("a.example.com")));
        assert!(rule.allows(443, &tls("example.org.")));
        assert!(!rule.allows(443, &tls("example.com")));
        assert!(!rule.allows(444, &tls("a.example.com")));
        assert!(!rule.allows(443, &Spoken::Tls(None)), "no name, no match");
        assert!(!rule.allows(443, &Spoken::Opaque));
    }

    #[test]
    fn a_rule_of_a_namespace_is_for_its_service_accounts() {
        let id = |text: &str| SpiffeId::parse(text).unwrap();
        let of = |namespace: &str, sources: &[&str]| {
            rule(EgressRule {
                namespace: namespace.into(),
                sources: sources.iter().map(|s| id(s)).collect(),
                ..Default::default()
            })
        };
        let (a, b) = ("spiffe://td/ns/shop/sa/a", "spiffe://td/ns/shop/sa/b");
        for (rule, meant) in [
            (of("", &[]), [true, true, true, true]),
            (of("shop", &[]), [true, true, false, false]),
            (of("shop", &[a]), [true, false, false, false]),
            (of("", &[a]), [true, false, false, false]),
        ] {
            let all = [a, b, "spiffe://td/ns/shop2/sa/a", "spiffe://td/svc/shop"];
            assert_eq!(all.map(|view| rule.is_for(&id(view))), meant);
        }
    }

    #[test]
    fn a_rule_about_requests_allows_nothing_opaque() {
        let rule = rule(EgressRule {
            matches: vec![PolicyMatch {
                methods: vec!["GET".into()],
                path_regex: "/public/.*".into(),
                ..Default::default()
            }],
            ..Default::default()
        });
        let view = |method: &'static str, path: &'static str| {
            let request = Request::new(method.as_bytes(), path.as_bytes(), b"a", b"");
            rule.allows_request(80, b"a", &request)
        };
        assert!(view("GET", "/public/a"));
        assert!(!view("POST", "/public/a"));
        assert!(!view("GET", "/private"));
        assert!(!view("GET", "/public/../private"));
        assert!(!rule.allows(80, &Spoken::Opaque));
        assert!(!rule.allows(443, &Spoken::Tls(Some("a".into()))));
    }

    #[test]
    fn sources_networks_and_ports() {
        let egress = Egress {
            rules: vec![rule(EgressRule {
                sources: vec![id("a")],
                networks: vec!["192.0.2.0/24".parse().unwrap()],
                ports: vec![EgressPort {
                    port: 25,
                    protocol: Protocol::Tcp,
                }],
                ..Default::default()
            })],
        };
        let count =
            |who: &str, address: &str| egress.towards(&id(who), address.parse().unwrap()).count();
        assert_eq!(count("a", "192.0.2.9:25"), 1);
        assert_eq!(count("b", "192.0.2.9:25"), 0);
        assert_eq!(count("a", "192.0.3.9:25"), 0);
        assert_eq!(count("a", "192.0.2.9:26"), 0);
        assert!(egress.rules[0].admits("192.0.2.1".parse().unwrap()));
        assert!(!egress.rules[0].admits("8.8.8.8".parse().unwrap()));
    }

    #[test]
    fn tls_for_bytes_without_a_name_is_refused() {
        let refused = Rule::compile(&EgressRule {
            ports: vec![EgressPort {
                port: 5432,
                protocol: Protocol::Tcp,
            }],
            tls: Some(Box::new(EgressTls::default())),
            ..Default::default()
        });
        assert!(refused.err().unwrap().contains("serverName"));
    }
}
