//! Requests of the application: which backend a service's routes choose.

use super::request::{Asks, Decision, Target};
use crate::balance::{Destination, Port, Steer};
use crate::config::connection_route::Targets;
use crate::config::route;
use crate::telemetry::metrics::{Labels, Reporter, Series};
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::Speaks;
use crate::worker::{Config, Worker};
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// A connection of the application to one port of one service.
#[derive(Clone)]
pub struct OutboundScope {
    service: Arc<str>,
    port: u16,
    /// The destination in the configuration of that generation. The configuration owns it: an idle
    /// connection must not keep the pools of an old one.
    known: RefCell<(u64, Weak<Destination>)>,
}

impl OutboundScope {
    /// A connection to that port.
    pub fn new(service: Arc<str>, port: u16) -> Self {
        Self {
            service,
            port,
            known: RefCell::default(),
        }
    }

    /// The service.
    pub fn service(&self) -> &Arc<str> {
        &self.service
    }

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

    /// The port with its endpoints.
    pub fn port(&self, worker: &Worker, config: &Config) -> Option<Rc<Port>> {
        let destination = self.destination(worker, config)?;
        worker.port_of(config, &destination, self.port)
    }

    /// See [`Scope::speaks`].
    pub fn speaks(&self, worker: &Worker, config: &Config) -> Speaks {
        let port = self.port(worker, config);
        port.map_or(Speaks::AsCame, |port| port.protocol.into())
    }

    /// See [`Scope::decide`].
    ///
    /// # Errors
    /// The service no longer exists, or none of its routes matches.
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
            Some(split) => pick(split, worker, config, self.port)?,
            None => worker
                .port_of(config, &destination, self.port)
                .ok_or_else(|| {
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

/// Counters of connections that belong to no known service.
pub fn unrouted_tcp(worker: &Worker, config: &Config) -> Rc<Series> {
    of_no_port(worker, config, "unknown".into(), true)
}

/// Counters of requests that belong to no known port.
pub fn unrouted(worker: &Worker, config: &Config, service: &Arc<str>) -> Rc<Series> {
    of_no_port(worker, config, service.clone(), false)
}

/// Connections, or requests, to a service or port that there is not.
pub fn of_no_port(worker: &Worker, config: &Config, service: Arc<str>, tcp: bool) -> Rc<Series> {
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
/// Some servers read its path as one for another rule.
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

/// The failure of a request that no rule matches.
#[cold]
pub fn unmatched(asks: &Asks<'_>) -> Failure {
    let host = String::from_utf8_lossy(asks.head.authority.of(asks.bytes));
    let path = String::from_utf8_lossy(asks.head.path.of(asks.bytes));
    Failure::new(
        Reason::NoRoute,
        format!("no HTTPRoute matches host {host:?} path {path:?}"),
    )
}

/// Decides by the rule that was found. `attached` is the service of the route, if it belongs to
/// one: a request that stays with this service is not split again.
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
    // Mostly the destination is known already.
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
        Some(split) if itself.is_none() => pick(split, worker, config, backend.port)?,
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

/// One of the targets of a split, by weight. Port 0 stands for the one asked for.
///
/// # Errors
/// There is no target, or it does not exist.
pub fn pick(
    targets: &Targets,
    worker: &Worker,
    config: &Config,
    asked: u16,
) -> Result<Rc<Port>, Failure> {
    let missing =
        |what: String| Failure::new(Reason::NoService, format!("{}: {what}", targets.route));
    let target = targets
        .by_weight(worker.random())
        .ok_or_else(|| missing("the route has no target with a weight above 0".into()))?;
    let service = &target.service;
    let destination = worker
        .destination(config, service)
        .ok_or_else(|| missing(format!("service {service} does not exist")))?;
    let number = if target.port == 0 { asked } else { target.port };
    let port = destination.port(number);
    port.cloned()
        .ok_or_else(|| missing(format!("service {service} has no port {number}")))
}
