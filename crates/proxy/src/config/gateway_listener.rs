//! Gateways compiled from their resources: listeners, their certificates, and routes.

use crate::config::connection_route::ConnectionRoutes;
use crate::config::gateway_guard::Guard;
use crate::config::route::{HostMatch, RouteTable};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tulle_model::resource::{self, ListenerProtocol, Route, Workload};
use tulle_net::clock;
use tulle_tls::outside::OutsideServer;

/// An entry for clients outside the mesh.
pub struct Gateway {
    /// Unique in the mesh.
    pub name: Arc<str>,
    /// Its listeners.
    pub listeners: Vec<Listener>,
    /// Ports whose connections begin with a PROXY header.
    pub proxied: Box<[u16]>,
    /// Routes of requests.
    pub routes: RouteTable,
    /// Routes of connections.
    pub connections: ConnectionRoutes,
    /// Its location: `region/zone`; empty: unknown.
    pub locality: String,
    /// Its workload; `None`: unknown.
    pub workload: Option<Arc<Workload>>,
    /// See [`ConnectionContext::claim_headers`](crate::decision::ConnectionContext::claim_headers): those of all listeners.
    pub claim_headers: Vec<String>,
}

/// One listening port, or the part of it that is meant for some hosts.
pub struct Listener {
    /// Unique in its gateway.
    pub name: Arc<str>,
    /// Number.
    pub port: u16,
    /// Hosts it serves.
    pub hosts: HostMatch,
    /// Its protocol.
    pub protocol: ListenerProtocol,
    /// How it terminates TLS; `None`: it does not, or there is a fault.
    pub tls: Option<Arc<ListenerTls>>,
    /// Why its configured certificates are not in use.
    pub fault: Option<Box<str>>,
    /// Its demands on clients; `None`: it has none.
    pub guard: Option<Box<Guard>>,
}

/// How a listener terminates TLS.
pub struct ListenerTls {
    /// Certificates, and demands on clients' certificates.
    pub server: OutsideServer,
    given: resource::ListenerTls,
    warned: AtomicBool,
}

impl Gateway {
    /// Compiles a gateway. Parts unchanged since `old` are kept, so that clients can resume their
    /// TLS sessions.
    ///
    /// A listener whose certificate cannot be used fails alone: see [`Listener::fault`].
    ///
    /// # Errors
    /// Listeners of a port contradict each other, or a route makes no sense.
    pub fn compile(
        gateway: &resource::Gateway,
        old: Option<&Self>,
        namespace: Option<&str>,
    ) -> Result<Self, String> {
        let listeners = gateway
            .listeners
            .iter()
            .map(|listener| {
                let known = old.and_then(|old| old.named(&listener.name));
                Listener::compile(&gateway.name, listener, known)
                    .map_err(|why| format!("listener {}: {why}", listener.name))
            })
            .collect::<Result<Vec<_>, _>>()?;
        for (place, listener) in listeners.iter().enumerate() {
            let earlier = listeners.iter().take(place);
            let other = earlier
                .filter(|other| other.port == listener.port)
                .find(|other| !listener.goes_with(other));
            if let Some(other) = other {
                return Err(format!(
                    "listeners {} and {} cannot both be on port {}: they must differ in hostname, \
                     and all of them begin with TLS or none",
                    other.name, listener.name, listener.port
                ));
            }
        }
        Ok(Self {
            name: gateway.name.as_str().into(),
            claim_headers: {
                let guards = listeners.iter().filter_map(|l| l.guard.as_ref());
                guards.flat_map(|g| g.claim_headers()).cloned().collect()
            },
            listeners,
            proxied: proxied_ports(&gateway.listeners)?,
            routes: RouteTable::compile(&Route::with_own_plugins(
                Cow::Borrowed(&gateway.routes),
                namespace,
            ))?,
            connections: ConnectionRoutes::compile(&gateway.tls_routes, &gateway.tcp_routes),
            locality: gateway.locality.clone(),
            workload: Workload::shown(gateway.workload.as_deref()),
        })
    }

    /// The listener of that name.
    pub fn named(&self, name: &str) -> Option<&Listener> {
        self.listeners.iter().find(|l| &*l.name == name)
    }

    /// Whether connections to `port` begin with a PROXY header.
    pub fn is_proxied(&self, port: u16) -> bool {
        self.proxied.contains(&port)
    }

    /// Whether connections to `port` are HTTP from their first byte on. A port without a working
    /// listener counts as not plain, since it may be for TLS whose certificate is missing.
    pub fn is_plain(&self, port: u16) -> bool {
        let http = self.protocol(port) == Some(ListenerProtocol::Http);
        http && !self.is_proxied(port)
    }

    /// Returns the protocol of a port.
    pub fn protocol(&self, port: u16) -> Option<ListenerProtocol> {
        let listener = self.listeners.iter().find(|l| l.port == port);
        listener.map(|l| l.protocol)
    }

    /// Whether this gateway terminates TLS of some of a port's clients.
    pub fn ends_tls(&self, port: u16) -> bool {
        let mut listeners = self.listeners.iter().filter(|l| l.port == port);
        listeners.any(|l| l.tls.is_some() || l.fault.is_some())
    }

    /// Faults of its listeners, each with its reason.
    pub fn faults(&self) -> impl Iterator<Item = String> {
        let faults = self
            .listeners
            .iter()
            .filter_map(|l| Some((l, l.fault.as_ref()?)));
        faults.map(|(l, why)| format!("Gateway/{}: listener {}: {why}", self.name, l.name))
    }

    /// Returns the gateway as it serves, where that differs from the resource `told`: with the
    /// certificates in use in place of those that cannot be used.
    pub fn in_force(&self, told: &resource::Gateway) -> Option<resource::Gateway> {
        self.faults().next()?;
        let mut in_force = told.clone();
        for listener in &mut in_force.listeners {
            if let Some(tls) = self.named(&listener.name).and_then(|l| l.tls.as_ref()) {
                listener.tls = Some(Box::new(tls.given.clone()));
            }
        }
        Some(in_force)
    }

    /// Returns the listener of a port that names this host (with or without a port) most closely.
    pub fn listener(&self, port: u16, host: &[u8]) -> Option<&Listener> {
        let meant = self
            .listeners
            .iter()
            .filter(|l| l.port == port && l.hosts.covers(host));
        meant.max_by_key(|l| l.hosts.rank())
    }

    /// Names of all services it sends requests to.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        let guards = self.listeners.iter().filter_map(|l| l.guard.as_deref());
        let routes = self.routes.backends().chain(self.connections.backends());
        routes.chain(guards.flat_map(Guard::services))
    }
}

/// Returns the ports with a PROXY header. It names the client before any byte could choose a
/// listener, so all listeners of a port must agree.
fn proxied_ports(listeners: &[resource::GatewayListener]) -> Result<Box<[u16]>, String> {
    let of = |proxied: bool| {
        let chosen = listeners
            .iter()
            .filter(move |l| l.proxy_protocol == proxied);
        chosen.map(|l| l.port)
    };
    if let Some(port) = of(true).find(|port| of(false).any(|p| p == *port)) {
        return Err(format!(
            "the listeners of port {port} do not agree on proxyProtocol"
        ));
    }
    Ok(of(true).collect())
}

impl Listener {
    fn compile(
        gateway: &str,
        given: &resource::GatewayListener,
        known: Option<&Self>,
    ) -> Result<Self, String> {
        let (tls, fault) = match (given.protocol, &given.tls) {
            (ListenerProtocol::Http | ListenerProtocol::Tcp, None)
            | (ListenerProtocol::Tls, None) => (None, None),
            (ListenerProtocol::Https, None) => {
                return Err("protocol https needs a certificate; give `tls`".into());
            }
            (ListenerProtocol::Http | ListenerProtocol::Tcp, Some(_)) => {
                return Err("`tls` goes with protocol https or tls".into());
            }
            (protocol, Some(tls)) => {
                let known = known.and_then(|k| Some((k.protocol, k.tls.as_ref()?)));
                match known.filter(|(p, k)| *p == protocol && k.given == **tls) {
                    Some((_, known)) => (Some(known.clone()), None),
                    None => ListenerTls::or_kept(given, tls, known.map(|(_, k)| &**k)),
                }
            }
        };
        Ok(Self {
            name: given.name.as_str().into(),
            port: given.port,
            hosts: HostMatch::new(&given.hostname),
            protocol: given.protocol,
            tls,
            fault,
            guard: Guard::compile(gateway, given)?,
        })
    }

    fn begins_with_tls(&self) -> bool {
        matches!(
            self.protocol,
            ListenerProtocol::Https | ListenerProtocol::Tls
        )
    }

    fn goes_with(&self, other: &Self) -> bool {
        let http = |l: &Self| l.protocol == ListenerProtocol::Http;
        let both =
            (self.begins_with_tls() && other.begins_with_tls()) || (http(self) && http(other));
        both && self.hosts != other.hosts
    }
}

impl ListenerTls {
    /// Compiles the TLS of a listener. If it cannot be used, the listener keeps the certificates it
    /// had, if any, with the present demands on clients. Returns the reason, too.
    fn or_kept(
        listener: &resource::GatewayListener,
        given: &resource::ListenerTls,
        known: Option<&Self>,
    ) -> (Option<Arc<Self>>, Option<Box<str>>) {
        let why = match Self::compile(listener, given) {
            Ok(tls) => return (Some(Arc::new(tls)), None),
            Err(why) => why,
        };
        let kept = known.and_then(|known| {
            let given = resource::ListenerTls {
                certificates: known.given.certificates.clone(),
                ..given.clone()
            };
            Self::compile(listener, &given).ok()
        });
        let then = match kept {
            Some(_) => "it keeps the certificate it had",
            None => "it accepts no connection",
        };
        (kept.map(Arc::new), Some(format!("{why}; {then}").into()))
    }

    fn compile(
        listener: &resource::GatewayListener,
        given: &resource::ListenerTls,
    ) -> Result<Self, String> {
        let alpn: &[&str] = match listener.protocol {
            ListenerProtocol::Https => &["h2", "http/1.1"],
            // The inner protocol is the client's choice.
            _ => &[],
        };
        let server = OutsideServer::new(given, alpn).map_err(|e| e.to_string())?;
        let tls = Self {
            server,
            given: given.clone(),
            warned: AtomicBool::new(false),
        };
        tls.warn(&listener.name);
        Ok(tls)
    }

    /// Warns once that a certificate has expired. It is still served: clients decide whether to
    /// accept it.
    pub fn warn(&self, listener: &str) {
        if self.server.not_after() < clock::time_of_day()
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                listener,
                "a certificate of this gateway has expired; clients will refuse it: replace it"
            );
        }
    }
}

/// Writes as Prometheus text when the first certificate of each listener expires.
pub fn metrics(gateways: &HashMap<String, Arc<Gateway>>) -> String {
    use std::fmt::Write;
    let name = "tulle_gateway_certificate_not_after_seconds";
    let mut out = String::new();
    for gateway in gateways.values() {
        for listener in &gateway.listeners {
            let Some(tls) = &listener.tls else { continue };
            if out.is_empty() {
                let _ = writeln!(out, "# TYPE {name} gauge");
            }
            let until = tls
                .server
                .not_after()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |d| d.as_secs());
            let _ = writeln!(
                out,
                "{name}{{gateway=\"{}\",listener=\"{}\"}} {until}",
                gateway.name, listener.name
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::resource::Certificate;
    use tulle_tls::testing::{Leaf, TestCa};

    fn told(certificates: &[(&str, &str)], client_roots: &str) -> resource::Gateway {
        let certificates = certificates.iter().map(|(chain, key)| Certificate {
            chain: (*chain).to_owned(),
            key: (*key).to_owned(),
        });
        let tls = resource::ListenerTls {
            certificates: certificates.collect(),
            client_roots: client_roots.to_owned(),
            client_optional: false,
        };
        let listener = serde_json::json!({
            "name": "https", "port": 443, "protocol": "https", "tls": tls,
        });
        let gateway = serde_json::json!({ "name": "edge", "listeners": [listener] });
        serde_json::from_value(gateway).unwrap()
    }

    #[test]
    fn a_listener_goes_on_with_its_certificate_and_what_is_asked_of_clients_now() {
        let ca = TestCa::new("web");
        let leaf = || ca.issue_leaf(&Leaf::new("spiffe://t/a"));
        let (first, second) = (leaf(), leaf());
        let good = told(&[(&first.chain_pem, &first.key_pem)], "");
        let before = Gateway::compile(&good, None, None).unwrap();
        assert!(before.faults().next().is_none());
        assert!(before.in_force(&good).is_none());

        let unfit = [(&*second.chain_pem, &*first.key_pem)];
        let bad = told(&unfit, ca.pem());
        let after = Gateway::compile(&bad, Some(&before), None).unwrap();
        let faults: Vec<String> = after.faults().collect();
        assert!(
            faults[0].contains("it keeps the certificate it had"),
            "{faults:?}"
        );
        let saved = after.in_force(&bad).unwrap();
        assert_eq!(saved, told(&[(&first.chain_pem, &first.key_pem)], ca.pem()));
        // A restart has only the saved resource.
        let again = Gateway::compile(&saved, None, None).unwrap();
        assert!(again.named("https").unwrap().tls.is_some());

        // Client certificates that cannot be verified are not ignored.
        let worse = told(&[(&first.chain_pem, &first.key_pem)], "no roots");
        let closed = Gateway::compile(&worse, Some(&after), None).unwrap();
        assert!(closed.named("https").unwrap().tls.is_none());
        assert!(closed.ends_tls(443));
    }
}
