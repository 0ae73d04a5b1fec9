//! Requests of the application: which backend a service's routes choose.

use super::request::{Decision, RequestView, Target};
use crate::balance::{Destination, EndpointHint, Port};
use crate::config::connection_route::Targets;
use crate::config::route;
use crate::telemetry::metrics::{Labels, Reporter, RequestSeries};
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::HttpVersion;
use crate::worker::{Worker, WorkerConfig};
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// A connection of the application to one port of one service.
#[derive(Clone)]
pub struct OutboundContext {
    service: Arc<str>,
    port: u16,
    /// The destination in the configuration of that generation. The configuration owns it: an idle
    /// connection must not keep the pools of an old one.
    known: RefCell<(u64, Weak<Destination>)>,
}

impl OutboundContext {
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

    /// The service with its ports.
    pub fn destination(&self, worker: &Worker, config: &WorkerConfig) -> Option<Rc<Destination>> {
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
    pub fn port(&self, worker: &Worker, config: &WorkerConfig) -> Option<Rc<Port>> {
        let destination = self.destination(worker, config)?;
        worker.port_of(config, &destination, self.port)
    }

    /// See [`ConnectionContext::http_version`].
    pub fn http_version(&self, worker: &Worker, config: &WorkerConfig) -> HttpVersion {
        let port = self.port(worker, config);
        port.map_or(HttpVersion::AsCame, |port| port.protocol.into())
    }

    /// See [`ConnectionContext::decide`].
    ///
    /// # Errors
    /// The service no longer exists, or none of its routes matches.
    pub fn decide(
        &self,
        worker: &Worker,
        config: &WorkerConfig,
        view: &RequestView<'_>,
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
            match find(routes, entrance, view)? {
                Some(found) => return follow(worker, config, &found, Some(&destination)),
                None if service.split.is_none() => return Err(unmatched(view)),
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
            hint: EndpointHint::default(),
            filters: None,
            try_timeout_ms: port.retry_policy().map_or(0, |r| r.try_timeout_ms),
            retry: port.retry_policy().cloned(),
            target: Target::Service(port),
            matched: 0,
            rule: None,
        })
    }

    /// The port of the service that the client asked for.
    pub fn number(&self) -> u16 {
        self.port
    }

    /// See [`ConnectionContext::series`].
    pub fn series(&self, worker: &Worker, config: &WorkerConfig) -> Rc<RequestSeries> {
        match self.port(worker, config) {
            Some(port) => port.http.clone(),
            None => unrouted(worker, config, &self.service),
        }
    }
}

/// Counters of connections that belong to no known service.
pub fn unrouted_tcp(worker: &Worker, config: &WorkerConfig) -> Rc<RequestSeries> {
    of_no_port(worker, config, "unknown".into(), true)
}

/// Counters of requests that belong to no known port.
pub fn unrouted(worker: &Worker, config: &WorkerConfig, service: &Arc<str>) -> Rc<RequestSeries> {
    of_no_port(worker, config, service.clone(), false)
}

/// Connections, or requests, to a service or port that there is not.
pub fn of_no_port(
    worker: &Worker,
    config: &WorkerConfig,
    service: Arc<str>,
    tcp: bool,
) -> Rc<RequestSeries> {
    worker.metrics.series(Labels {
        reporter: Reporter::Source,
        source: Some(config.snapshot.identity.clone()),
        source_workload: config.snapshot.workload().cloned(),
        destination_service: service,
        destination: None,
        destination_workload: None,
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
    view: &RequestView<'_>,
) -> Result<Option<route::Found<'a>>, Failure> {
    let head = view.head;
    let path = head.path.slice(view.bytes);
    let request = route::Request {
        authority: head.authority.slice(view.bytes),
        path,
        target: head.target.slice(view.bytes),
        method: head.method_text.slice(view.bytes),
        head: view.forwarded,
        parties: Some(view.parties),
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
pub fn unmatched(view: &RequestView<'_>) -> Failure {
    let host = String::from_utf8_lossy(view.head.authority.slice(view.bytes));
    let path = String::from_utf8_lossy(view.head.path.slice(view.bytes));
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
    config: &WorkerConfig,
    found: &route::Found<'_>,
    attached: Option<&Rc<Destination>>,
) -> Result<Decision, Failure> {
    let (rule, matched) = (found.rule, found.matched);
    let Some(backend) = rule.backend(worker.random()) else {
        return Ok(Decision {
            series: unrouted(worker, config, &"unknown".into()),
            target: Target::Nobody,
            timeout_ms: 0,
            affinity: None,
            hint: EndpointHint::default(),
            filters: rule.filters.clone(),
            retry: None,
            try_timeout_ms: 0,
            matched,
            rule: rule.may_be_chosen().then(|| rule.clone()),
        });
    };
    toward(worker, config, found, backend, attached)
}

/// Decides for one backend of a rule, as [`follow`] does for one of them by weight.
///
/// # Errors
/// The backend does not exist.
fn toward(
    worker: &Worker,
    config: &WorkerConfig,
    found: &route::Found<'_>,
    backend: &route::Backend,
    attached: Option<&Rc<Destination>>,
) -> Result<Decision, Failure> {
    let (rule, matched) = (found.rule, found.matched);
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
        hint: EndpointHint::default(),
        filters: backend.filters.clone(),
        try_timeout_ms: match (rule.try_timeout_ms, &rule.retry) {
            (0, None) => port.retry_policy().map_or(0, |r| r.try_timeout_ms),
            (own, _) => own,
        },
        retry: rule.retry.as_ref().or(port.retry_policy()).cloned(),
        target: Target::Service(port),
        matched,
        rule: rule.may_be_chosen().then(|| rule.clone()),
    })
}

/// Decides anew for the backend that a plugin has chosen, by its place in the rule. The filters go on where they are.
///
/// # Errors
/// The backend does not exist.
#[cfg(feature = "plugins")]
pub fn choose(
    worker: &Worker,
    config: &WorkerConfig,
    decision: &Decision,
    place: usize,
    attached: Option<&Rc<Destination>>,
) -> Result<Option<Decision>, Failure> {
    let Some(rule) = &decision.rule else {
        return Ok(None);
    };
    let Some(backend) = rule.backends.get(place) else {
        return Ok(None);
    };
    let found = route::Found {
        rule,
        matched: decision.matched,
    };
    let mut chosen = toward(worker, config, &found, backend, attached)?;
    if let (Some(filters), Some(before)) = (&chosen.filters, &decision.filters) {
        chosen.filters = Some(filters.in_place_of(before));
    }
    // Whether the policy is for such requests was decided with the first backend.
    if decision.retry.is_none() {
        chosen.retry = None;
    }
    Ok(Some(chosen))
}

/// One of the targets of a split, by weight. Port 0 stands for the one asked for.
///
/// # Errors
/// There is no target, or it does not exist.
pub fn pick(
    targets: &Targets,
    worker: &Worker,
    config: &WorkerConfig,
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
