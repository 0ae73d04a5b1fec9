//! Requests that leave the mesh: which rule allows them, and which way they take.

use super::outbound;
use super::request::{Decision, RequestView, Target};
use crate::balance::EndpointHint;
use crate::codec::host::Host;
use crate::config::conditions;
use crate::config::egress_rule::{Egress, Rule, Spoken};
use crate::telemetry::metrics::{Labels, Reporter, RequestSeries};
use crate::telemetry::outside_peers::OutsidePeer;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::outside::ExternalTarget;
use crate::upstream::{HttpVersion, Upstream, UpstreamKey};
use crate::worker::{Worker, WorkerConfig};
use std::net::SocketAddr;
use std::rc::Rc;
use tulle_http1::{Method, split_authority};

/// A connection to an address outside the mesh that speaks HTTP: each request is judged.
#[derive(Clone)]
pub struct EgressContext {
    destination: SocketAddr,
    /// Why it is unknown whether the address is outside the mesh; `None`: it is outside.
    unknown: Option<Rc<str>>,
}

/// Decides the way of a connection, and whether a rule allows it.
pub fn decide(
    worker: &Worker,
    config: &WorkerConfig,
    destination: SocketAddr,
    spoken: &Spoken,
) -> Result<(Rc<Upstream>, Rc<RequestSeries>, bool), Failure> {
    let port = destination.port();
    let rule = rule(config, destination, |rule| rule.allows(port, spoken));
    if rule.is_none() && !config.snapshot.mesh.allow_egress {
        let what = match spoken {
            Spoken::Tls(Some(name)) => format!(" with TLS for {name:?}"),
            Spoken::Tls(None) => " with TLS for no name".to_owned(),
            Spoken::Opaque => String::new(),
        };
        return Err(refusal(config, destination, &what));
    }
    let (name, tls) = match spoken {
        Spoken::Tls(name) => (name.as_deref().unwrap_or_default(), None),
        Spoken::Opaque => ("", Some(false)),
    };
    let series = series(worker, config, rule, true);
    let upstream = leave(worker, rule, destination, name, tls);
    Ok((upstream, series, rule.is_some()))
}

/// Returns the first rule for this address that allows the connection.
fn rule(
    config: &WorkerConfig,
    destination: SocketAddr,
    mut allows: impl FnMut(&Rule) -> bool,
) -> Option<&Rule> {
    let egress: &Egress = config.snapshot.egress.as_deref()?;
    let mut rules = egress.towards(&config.snapshot.identity, destination);
    rules.find(|rule| allows(rule))
}

/// Returns the pool for connections that leave by a rule. `tls`: whether HTTP is inside, if TLS may
/// begin here; `None`: it may not.
fn leave(
    worker: &Worker,
    rule: Option<&Rule>,
    destination: SocketAddr,
    host: &str,
    tls: Option<bool>,
) -> Rc<Upstream> {
    let mut key = UpstreamKey {
        address: destination,
        identities: None,
        http_version: HttpVersion::AsCame,
        external: None,
        own: false,
    };
    if let Some(rule) = rule {
        let origination = rule.way.tls.as_ref().filter(|_| tls.is_some());
        if let Some(port) = origination.map(|o| o.port).filter(|port| *port != 0) {
            key.address.set_port(port);
        }
        let host = match origination {
            Some(o) if !o.server_name.is_empty() => &o.server_name,
            _ => host,
        };
        if origination.is_some() || rule.way.gateway.is_some() {
            key.external = Some(Box::new(ExternalTarget {
                way: rule.way.clone(),
                host: Host::named(host.as_bytes()).to_text().into(),
                tls: tls.filter(|_| origination.is_some()),
                gateways: worker.gateways(),
            }));
        }
    }
    worker.upstream(key)
}

/// Returns the counters of a rule's connections: there is a series for each rule, not for each
/// host.
fn series(
    worker: &Worker,
    config: &WorkerConfig,
    rule: Option<&Rule>,
    tcp: bool,
) -> Rc<RequestSeries> {
    worker.metrics.series(Labels {
        reporter: Reporter::Source,
        source: Some(config.snapshot.identity.clone()),
        source_workload: config.snapshot.workload().cloned(),
        destination_service: rule.map_or_else(|| "unknown".into(), |r| r.name.clone()),
        destination: None,
        destination_workload: None,
        mutual_tls: false,
        tcp,
    })
}

fn refusal(config: &WorkerConfig, destination: SocketAddr, what: &str) -> Failure {
    if config.snapshot.egress.is_none() {
        let why = config.snapshot.strict_by("spec.allowEgress is false");
        let text = format!("{destination} belongs to no service of the mesh and {why}");
        return Failure::new(Reason::NoService, text);
    }
    let text = format!(
        "{destination} is outside the mesh and no Egress lets {} go there{what}",
        config.snapshot.identity
    );
    Failure::new(Reason::EgressDenied, text)
}

impl EgressContext {
    /// A connection to that address; `unknown` says why nobody knows whether it is outside the mesh.
    pub fn new(destination: SocketAddr, unknown: Option<Rc<str>>) -> Self {
        Self {
            destination,
            unknown,
        }
    }

    /// See [`ConnectionContext::decide`].
    ///
    /// # Errors
    /// No rule allows the request to leave.
    pub fn decide(
        &self,
        worker: &Worker,
        config: &WorkerConfig,
        view: &RequestView<'_>,
    ) -> Result<Decision, Failure> {
        if let Some(why) = &self.unknown {
            return Err(Failure::new(Reason::NotReady, &**why));
        }
        let authority = view.head.authority.slice(view.bytes);
        let (host, _) = split_authority(authority);
        let shown = String::from_utf8_lossy(host);
        if view.head.method == Method::Connect {
            let text = format!(
                "CONNECT to {shown:?} would leave the mesh past its rules; dial the server itself"
            );
            return Err(Failure::new(Reason::EgressDenied, text));
        }
        let request = conditions::Request::new(
            view.head.method_text.slice(view.bytes),
            view.head.path.slice(view.bytes),
            authority,
            view.forwarded,
        )
        .between(view.parties);
        let port = self.destination.port();
        let allows = |rule: &Rule| rule.allows_request(port, host, &request);
        let rule = rule(config, self.destination, allows);
        if rule.is_none() && !config.snapshot.mesh.allow_egress {
            let method = String::from_utf8_lossy(request.method);
            let path = String::from_utf8_lossy(request.path);
            let what = format!(" with {method} {path} for {shown:?}");
            worker
                .outside
                .refused(OutsidePeer::server(self.destination));
            return Err(refusal(config, self.destination, &what));
        }
        if rule.is_none() {
            worker
                .outside
                .let_through(OutsidePeer::server(self.destination));
        }
        let upstream = leave(worker, rule, self.destination, &shown, Some(true));
        Ok(Decision {
            series: series(worker, config, rule, false),
            target: Target::Outside(upstream),
            timeout_ms: config.snapshot.mesh.request_timeout_ms,
            hint: EndpointHint::default(),
            affinity: None,
            filters: None,
            retry: None,
            try_timeout_ms: 0,
            matched: 0,
            rule: None,
        })
    }

    /// The port that the client asked.
    pub fn number(&self) -> u16 {
        self.destination.port()
    }

    /// See [`ConnectionContext::series`].
    pub fn series(&self, worker: &Worker, config: &WorkerConfig) -> Rc<RequestSeries> {
        outbound::unrouted(worker, config, &"unknown".into())
    }
}
