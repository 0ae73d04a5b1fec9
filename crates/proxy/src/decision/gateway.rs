//! Requests of clients outside the mesh: whether the listener takes them, and which backend its routes choose.

use super::outbound;
use super::request::{Decision, RequestView, judged};
use crate::config::gateway_guard::{self, GatewayClient};
use crate::config::gateway_listener::{Gateway, Listener};
use crate::config::route;
use crate::telemetry::metrics::RequestSeries;
use crate::telemetry::reason::{Failure, Reason};
use crate::worker::{Worker, WorkerConfig};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use tulle_http1::Method;

/// A connection to a listener of a gateway.
#[derive(Clone)]
pub struct GatewayContext {
    gateway: Arc<str>,
    port: u16,
    client: Box<[u8]>,
    /// The server name in the client's TLS.
    server_name: Option<Box<str>>,
    /// Set if this gateway terminated the client's TLS.
    terminated: Option<Box<Terminated>>,
}

/// Facts from a client's TLS.
#[derive(Clone)]
pub struct Terminated {
    /// The listener that its server name has chosen.
    pub listener: Arc<str>,
    /// Header for the application about the client's certificate, if that is valid.
    pub certificate: Option<Box<[u8]>>,
}

impl GatewayContext {
    /// A connection to that port.
    pub fn new(gateway: Arc<str>, port: u16, client: String) -> Self {
        Self {
            gateway,
            port,
            client: client.into_bytes().into_boxed_slice(),
            server_name: None,
            terminated: None,
        }
    }

    /// See [`ConnectionContext::decide`].
    ///
    /// # Errors
    /// The gateway is gone, the request is not for this listener, or no route matches.
    pub fn decide(
        &self,
        worker: &Worker,
        config: &WorkerConfig,
        view: &RequestView<'_>,
    ) -> Result<Decision, Failure> {
        let gateway = config
            .snapshot
            .gateways
            .get(&*self.gateway)
            .ok_or_else(|| {
                let text = format!("gateway {} is not configured", self.gateway);
                Failure::new(Reason::NotReady, text)
            })?;
        let authority = view.head.authority.slice(view.bytes);
        if view.head.method == Method::Connect {
            let host = String::from_utf8_lossy(authority);
            let text = format!(
                "CONNECT to {host:?}: a gateway opens no tunnels into the mesh, which its routes \
                 could not look into"
            );
            return Err(Failure::new(Reason::NoRoute, text));
        }
        let listener = self.check_host(gateway, authority)?;
        if let Some(guard) = &listener.guard {
            guard.admit(&worker.metrics, &self.as_client(), &judged(view))?;
        }
        let entrance = route::Entrance {
            port: self.port,
            listener: &listener.name,
        };
        let Some(found) = outbound::find(&gateway.routes, entrance, view)? else {
            return Err(outbound::unmatched(view));
        };
        if let Some(policy) = &found.rule.policy {
            gateway_guard::judge_request(
                policy,
                listener.guard.as_deref(),
                &worker.metrics,
                &self.as_client(),
                &judged(view),
            )?;
        }
        let mut decision = outbound::follow(worker, config, &found, None)?;
        if let Some(guard) = &listener.guard {
            let of_route = decision.filters.take();
            decision.filters = guard.filters(&judged(view), of_route)?;
        }
        Ok(decision)
    }

    /// See [`ConnectionContext::audited`].
    pub fn audited(&self, config: &WorkerConfig, view: &RequestView<'_>) -> String {
        let mut names = String::new();
        let Some(gateway) = config.snapshot.gateways.get(&*self.gateway) else {
            return names;
        };
        let authority = view.head.authority.slice(view.bytes);
        let Some(listener) = gateway.listener(self.port, authority) else {
            return names;
        };
        let entrance = route::Entrance {
            port: self.port,
            listener: &listener.name,
        };
        let found = outbound::find(&gateway.routes, entrance, view)
            .ok()
            .flatten();
        let of_route = found.and_then(|f| f.rule.policy.as_deref());
        let of_listener = listener.guard.as_ref().and_then(|g| g.policy());
        for policy in of_listener.into_iter().chain(of_route) {
            let guard = listener.guard.as_deref();
            gateway_guard::audited(policy, guard, &self.as_client(), &judged(view), &mut names);
        }
        names
    }

    /// See [`ConnectionContext::entry`].
    pub fn entry(&self) -> (&'static str, u16) {
        let scheme = if self.terminated.is_some() {
            "https"
        } else {
            "http"
        };
        (scheme, self.port)
    }

    /// Returns the listener of the request's host, which must be the one it came in by. Otherwise a
    /// client could avoid a listener's demands, such as a certificate, by asking another one for
    /// the host.
    fn check_host<'a>(
        &self,
        gateway: &'a Gateway,
        authority: &[u8],
    ) -> Result<&'a Listener, Failure> {
        let listener = gateway.listener(self.port, authority);
        let refused = |reason, what: String| {
            let host = String::from_utf8_lossy(authority);
            Err(Failure::new(
                reason,
                format!("{what} Gateway/{} takes host {host:?}", self.gateway),
            ))
        };
        match (&self.terminated, listener) {
            (None, Some(listener)) => Ok(listener),
            (Some(tls), Some(listener)) if listener.name == tls.listener => Ok(listener),
            (Some(tls), Some(listener)) => refused(
                Reason::Misdirected,
                format!(
                    "the TLS connection is to listener {}, but listener {} of",
                    tls.listener, listener.name
                ),
            ),
            (Some(_), None) => refused(Reason::Misdirected, "no listener of".into()),
            (None, None) => refused(Reason::NoRoute, "no listener of".into()),
        }
    }

    /// Notes the server name in the client's TLS.
    pub fn names_server(&mut self, name: Option<&str>) {
        self.server_name = name.map(Into::into);
    }

    /// Returns the server name in the client's TLS.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// Set if this gateway terminated the client's TLS.
    pub fn terminated(&mut self, tls: Terminated) {
        self.terminated = Some(Box::new(tls));
    }

    /// Checks whether a listener admits a connection of opaque bytes.
    ///
    /// # Errors
    /// It does not admit it.
    pub fn admit_opaque(&self, worker: &Worker, listener: &str) -> Result<(), Failure> {
        let config = worker.config();
        let gateway = config.snapshot.gateways.get(&*self.gateway);
        match gateway.and_then(|g| g.named(listener)?.guard.as_ref()) {
            Some(guard) => guard.admit_opaque(&worker.metrics, &self.as_client()),
            None => Ok(()),
        }
    }

    /// Judges an open tunnel by the policies in force now.
    ///
    /// # Errors
    /// The policies do not allow it.
    pub fn judge_again(
        &self,
        worker: &Worker,
        config: &WorkerConfig,
        view: &RequestView<'_>,
    ) -> Result<(), Failure> {
        let Some(gateway) = config.snapshot.gateways.get(&*self.gateway) else {
            return Ok(());
        };
        let authority = view.head.authority.slice(view.bytes);
        let Some(listener) = gateway.listener(self.port, authority) else {
            return Ok(());
        };
        if let Some(guard) = &listener.guard {
            guard.admit(&worker.metrics, &self.as_client(), &judged(view))?;
        }
        let entrance = route::Entrance {
            port: self.port,
            listener: &listener.name,
        };
        match outbound::find(&gateway.routes, entrance, view)?.map(|f| &f.rule.policy) {
            Some(Some(policy)) => gateway_guard::judge_request(
                policy,
                listener.guard.as_deref(),
                &worker.metrics,
                &self.as_client(),
                &judged(view),
            ),
            _ => Ok(()),
        }
    }

    /// A load balancer has named the client.
    pub fn name_client(&mut self, client: IpAddr) {
        self.client = client.to_string().into_bytes().into();
    }

    fn as_client(&self) -> GatewayClient<'_> {
        GatewayClient {
            gateway: &self.gateway,
            port: self.port,
            address: self.client_address(),
            text: &self.client,
        }
    }

    /// The gateway's name.
    pub fn gateway(&self) -> &str {
        &self.gateway
    }

    /// The port it came to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The client's address.
    pub fn client(&self) -> &[u8] {
        &self.client
    }

    /// Returns the client's address, parsed.
    pub fn client_address(&self) -> Option<IpAddr> {
        std::str::from_utf8(&self.client).ok()?.parse().ok()
    }

    /// Returns the client's address as text.
    pub fn client_text(&self) -> String {
        String::from_utf8_lossy(&self.client).into_owned()
    }

    /// Returns the scheme of the client's connection.
    pub fn scheme(&self) -> &'static [u8] {
        if self.terminated.is_some() {
            b"https"
        } else {
            b"http"
        }
    }

    /// See [`ConnectionContext::forwarded_client_cert`].
    pub fn forwarded_client_cert(&self) -> Option<&[u8]> {
        self.terminated.as_ref()?.certificate.as_deref()
    }

    /// See [`ConnectionContext::claim_headers`].
    pub fn claim_headers<'c>(&self, config: &'c WorkerConfig) -> &'c [String] {
        let gateway = config.snapshot.gateways.get(&*self.gateway);
        gateway.map_or(&[], |g| g.claim_headers.as_slice())
    }

    /// See [`ConnectionContext::series`].
    pub fn series(&self, worker: &Worker, config: &WorkerConfig) -> Rc<RequestSeries> {
        outbound::unrouted(worker, config, &"unknown".into())
    }
}
