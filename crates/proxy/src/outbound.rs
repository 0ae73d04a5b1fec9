//! Connections of the application: to which service, and how they are carried there.

use crate::balance::{Destination, Port, Steer};
use crate::detect::Watch;
use crate::first_bytes::{self, Plain};
use crate::forward_tcp::Opaque;
use crate::link::Link;
use crate::metrics::{Labels, Reporter, Series};
use crate::reason::{Failure, Reason};
use crate::scope::{Asks, Decision, Scope, Target};
use crate::upstream::Speaks;
use crate::worker::{Config, Worker};
use crate::{connection_route, egress, forward_http, forward_tcp, route};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tulle_model::resource::Protocol;
use tulle_net::{Buf, socket};

/// A connection of the application to one port of one service.
#[derive(Clone)]
pub struct OutboundScope {
    service: Arc<str>,
    port: u16,
    /// The destination in the configuration of that generation. It belongs to the configuration:
    /// an idle connection must not keep the pools of one that is gone.
    known: RefCell<(u64, Weak<Destination>)>,
}

/// A redirected connection: the original destination says where to.
pub fn serve_redirected(worker: Rc<Worker>, tcp: TcpStream) -> impl Future<Output = ()> {
    let destination = original_destination(&tcp);
    // A block: see `serve`.
    async move {
        let Some(destination) = destination else {
            return;
        };
        let port = destination.port();
        let service: Arc<str> = match Box::pin(owner(&worker, destination)).await {
            Ok(Some(service)) => service.into(),
            Ok(None) => return Box::pin(egress::serve(&worker, tcp, destination)).await,
            Err(failure) => {
                return Box::pin(egress::refuse(&worker, tcp, destination, failure)).await;
            }
        };
        serve(worker, tcp, service, port).await;
    }
}

fn original_destination(tcp: &TcpStream) -> Option<SocketAddr> {
    let destination = match socket::original_destination(tcp) {
        Ok(address) => socket::canonical(address),
        Err(error) => {
            tracing::warn!(%error, "a connection to the outbound listener was not redirected");
            return None;
        }
    };
    // Somebody connected to the listener itself: forwarding would come back here for ever.
    let local = tcp.local_addr().map(socket::canonical);
    (!local.is_ok_and(|local| local == destination)).then_some(destination)
}

/// The service that owns an address. Asks the controller the first time, and waits while it can answer.
async fn owner(worker: &Worker, destination: SocketAddr) -> Result<Option<String>, Failure> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let name = format!("address/{}", destination.ip());
    let known = || {
        let config = worker.config();
        let owner = config.snapshot.addresses.get(&destination.ip())?;
        match owner {
            Some(service) if !config.snapshot.services.contains_key(service) => None,
            owner => Some(owner.clone()),
        }
    };
    let answer = async {
        loop {
            let changed = worker.changed();
            let owner = known();
            let Some(lookups) = &worker.lookups else {
                return Ok(owner.flatten());
            };
            let config = worker.config();
            let snapshot = &config.snapshot;
            if let Some(owner) = owner {
                // The controller remembers for its siblings what this workload uses.
                if owner.is_some() && snapshot.unused.contains(name.as_str()) {
                    lookups.ask(&name);
                }
                return Ok(owner);
            }
            lookups.ask(&name);
            if let Some(why) = &snapshot.away {
                let text = format!(
                    "the controller is away and has never said who owns {}: {why}; see `tulle check`",
                    destination.ip()
                );
                return Err(Failure::new(Reason::NotReady, text));
            }
            drop(config);
            changed.await;
        }
    };
    let timeout = tokio::time::timeout(PATIENCE, answer).await;
    timeout.unwrap_or_else(|_| {
        let text = format!(
            "the controller has not said within {PATIENCE:?} who owns {}; see `tulle check`",
            destination.ip()
        );
        Err(Failure::new(Reason::NotReady, text))
    })
}

/// A connection to a port of a service.
pub fn serve(
    worker: Rc<Worker>,
    tcp: TcpStream,
    service: Arc<str>,
    port: u16,
) -> impl Future<Output = ()> {
    let scope = OutboundScope {
        service,
        port,
        known: RefCell::default(),
    };
    let known = scope.port(&worker, &worker.config());
    let mut link = Link::Tcp(tcp);
    if known.is_none() {
        let text = format!("service {} has no port {port}", scope.service);
        let failure = Failure::new(Reason::NoPort, text);
        let series = of_no_port(&worker, &worker.config(), scope.service.clone(), true);
        forward_tcp::refuse(&worker, &mut link, &failure, &series, None);
    }
    let scope = Scope::Outbound(scope);
    // A block, because a function would keep its arguments twice, for as long as it runs.
    async move {
        let Some(known) = known else { return };
        let mut received = Buf::new();
        let spoken = match known.protocol {
            Protocol::Http | Protocol::Http2 | Protocol::Grpc => Plain::Http,
            Protocol::Detect => {
                let patience = worker.config().snapshot.mesh.detect_timeout_ms;
                let patience = Duration::from_millis(patience.into());
                first_bytes::plain(&worker, &mut link, &mut received, patience).await
            }
            Protocol::Tcp | Protocol::Tls => Plain::Opaque(None),
        };
        if let Plain::Opaque(watch) = spoken {
            let carried = carry(&worker, link, received, watch, &known);
            match Box::pin(carried).await {
                Some(late) => (link, received) = late,
                None => return,
            }
        }
        // Each request looks for the port again. One held by a connection would keep endpoints
        // that are gone in use.
        drop(known);
        forward_http::serve(&worker, link, received, &scope).await;
    }
}

/// Carries opaque bytes where the service's routes say, or to the service. Gives the connection back
/// if its first bytes come late and are a request's.
async fn carry(
    worker: &Rc<Worker>,
    mut link: Link,
    mut received: Buf,
    watch: Option<Watch>,
    known: &Rc<Port>,
) -> Option<(Link, Buf)> {
    let routed = connection_route::of_service(worker, &mut link, &mut received, known).await;
    let opaque = Opaque {
        received,
        watch,
        ..Opaque::default()
    };
    match routed {
        Some(chosen) => connection_route::forward(worker, link, opaque, chosen, || Ok(())).await,
        None => forward_tcp::to_service(worker, link, opaque, known, || Ok(())).await,
    }
}

impl OutboundScope {
    fn destination(&self, worker: &Worker, config: &Config) -> Option<Rc<Destination>> {
        let generation = config.snapshot.generation;
        let mut known = self.known.borrow_mut();
        if known.0 == generation
            && let Some(destination) = known.1.upgrade()
        {
            return Some(destination);
        }
        let destination = worker.destination(config, &self.service)?;
        *known = (generation, Rc::downgrade(&destination));
        Some(destination)
    }

    fn port(&self, worker: &Worker, config: &Config) -> Option<Rc<Port>> {
        let destination = self.destination(worker, config)?;
        self.port_of(worker, config, &destination)
    }

    /// The port of the destination, also if that has any and does not name this one.
    fn port_of(&self, worker: &Worker, config: &Config, to: &Destination) -> Option<Rc<Port>> {
        let named = to.port(self.port).cloned();
        named.or_else(|| to.unnamed(worker, config, self.port))
    }

    /// See [`Scope::speaks`].
    pub fn speaks(&self, worker: &Worker, config: &Config) -> Speaks {
        let port = self.port(worker, config);
        port.map_or(Speaks::AsCame, |port| port.protocol.into())
    }

    /// See [`Scope::decide`].
    ///
    /// # Errors
    /// The service is gone, or none of its routes matches.
    pub fn decide(
        &self,
        worker: &Worker,
        config: &Config,
        asks: &Asks<'_>,
    ) -> Result<Decision, Failure> {
        let destination = self.destination(worker, config).ok_or_else(|| {
            Failure::new(
                Reason::NoService,
                format!("service {} does not exist", self.service),
            )
        })?;
        let service = &destination.service;
        if let Some(routes) = &service.routes
            && routes.has_port(self.port)
        {
            let entrance = route::Entrance {
                port: self.port,
                listener: "",
            };
            match find(routes, entrance, asks)? {
                Some(found) => return follow(worker, config, &found, Some(&destination)),
                None if service.split.is_none() => return Err(unmatched(asks)),
                None => {}
            }
        }
        let port = match &service.split {
            Some(split) => split.pick(worker, config, self.port)?,
            None => self.port_of(worker, config, &destination).ok_or_else(|| {
                let text = format!("service {} has no port {}", self.service, self.port);
                Failure::new(Reason::NoPort, text)
            })?,
        };
        Ok(Decision {
            series: port.http.clone(),
            timeout_ms: port.request_timeout_ms(0, config.snapshot.mesh.request_timeout_ms),
            affinity: port.affinity(None),
            steer: Steer::default(),
            filters: None,
            try_timeout_ms: port.retry_policy().map_or(0, |r| r.try_timeout_ms),
            retry: port.retry_policy().cloned(),
            target: Target::Service(port),
            matched: 0,
        })
    }

    /// The port of the service that the client asked for.
    pub fn number(&self) -> u16 {
        self.port
    }

    /// See [`Scope::series`].
    pub fn series(&self, worker: &Worker, config: &Config) -> Rc<Series> {
        match self.port(worker, config) {
            Some(port) => port.http.clone(),
            None => unrouted(worker, config, &self.service),
        }
    }
}

/// Connections that belong to no known service.
pub fn unrouted_tcp(worker: &Worker, config: &Config) -> Rc<Series> {
    of_no_port(worker, config, "unknown".into(), true)
}

/// Requests that belong to no known port.
pub fn unrouted(worker: &Worker, config: &Config, service: &Arc<str>) -> Rc<Series> {
    of_no_port(worker, config, service.clone(), false)
}

fn of_no_port(worker: &Worker, config: &Config, service: Arc<str>, tcp: bool) -> Rc<Series> {
    worker.metrics.series(Labels {
        reporter: Reporter::Source,
        source: Some(config.snapshot.identity.clone()),
        destination_service: service,
        destination: None,
        mutual_tls: false,
        tcp,
    })
}

/// Finds the rule for a request.
///
/// # Errors
/// Its path can be read as one for another rule.
pub fn find<'a>(
    routes: &'a route::RouteTable,
    entrance: route::Entrance<'_>,
    asks: &Asks<'_>,
) -> Result<Option<route::Found<'a>>, Failure> {
    let head = asks.head;
    let path = head.path.of(asks.bytes);
    let request = route::Request {
        authority: head.authority.of(asks.bytes),
        path,
        target: head.target.of(asks.bytes),
        method: head.method_text.of(asks.bytes),
        head: asks.forwarded,
    };
    routes.find(entrance, &request).map_err(|why| {
        let path = String::from_utf8_lossy(path);
        Failure::new(
            Reason::BadRequest,
            format!("path {path:?} has more than one meaning: {why}"),
        )
    })
}

/// No rule matches a request.
#[cold]
pub fn unmatched(asks: &Asks<'_>) -> Failure {
    let host = String::from_utf8_lossy(asks.head.authority.of(asks.bytes));
    let path = String::from_utf8_lossy(asks.head.path.of(asks.bytes));
    Failure::new(
        Reason::NoRoute,
        format!("no HTTPRoute matches host {host:?} path {path:?}"),
    )
}

/// Goes where a rule sends a request. `attached` is the service whose route it is, if it is one's:
/// sent to itself, a request is not split again.
///
/// # Errors
/// The backend does not exist.
pub fn follow(
    worker: &Worker,
    config: &Config,
    found: &route::Found<'_>,
    attached: Option<&Rc<Destination>>,
) -> Result<Decision, Failure> {
    let (rule, matched) = (found.rule, found.matched);
    let Some(backend) = rule.backend(worker.random()) else {
        return Ok(Decision {
            series: unrouted(worker, config, &"unknown".into()),
            target: Target::Nobody {
                backends: rule.backends.len(),
            },
            timeout_ms: 0,
            affinity: None,
            steer: Steer::default(),
            filters: rule.filters.clone(),
            retry: None,
            try_timeout_ms: 0,
            matched,
        });
    };
    let missing = |what: String| Failure::new(Reason::NoBackend, format!("{}: {what}", rule.route));
    // Known already, mostly.
    let itself = attached.filter(|d| *d.service.name == *backend.service);
    let looked_up;
    let destination = match itself {
        Some(destination) => destination,
        None => {
            looked_up = worker.destination(config, &backend.service);
            looked_up
                .as_ref()
                .ok_or_else(|| missing(format!("service {} does not exist", backend.service)))?
        }
    };
    let port = match &destination.service.split {
        Some(split) if itself.is_none() => split.pick(worker, config, backend.port)?,
        _ => destination.port(backend.port).cloned().ok_or_else(|| {
            missing(format!(
                "service {} has no port {}",
                backend.service, backend.port
            ))
        })?,
    };
    let mesh = &config.snapshot.mesh;
    Ok(Decision {
        series: port.http.clone(),
        timeout_ms: port.request_timeout_ms(rule.request_timeout_ms, mesh.request_timeout_ms),
        affinity: port.affinity(rule.affinity.as_ref()),
        steer: Steer::default(),
        filters: backend.filters.clone(),
        try_timeout_ms: match (rule.try_timeout_ms, &rule.retry) {
            (0, None) => port.retry_policy().map_or(0, |r| r.try_timeout_ms),
            (own, _) => own,
        },
        retry: rule.retry.as_ref().or(port.retry_policy()).cloned(),
        target: Target::Service(port),
        matched,
    })
}
