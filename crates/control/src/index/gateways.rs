//! Gateways and HTTPRoutes (Gateway API v1) to gateways and routes of proxies.

use super::{Inputs, Output};
use std::time::Duration;
use tulle_model::manifest::{
    GatewaySpec, HttpHeaderMatch, HttpPathMatch, HttpRouteMatch, HttpRouteRule, HttpRouteSpec,
    ParentRef, parse_duration,
};
use tulle_model::resource::{
    Backend, Gateway, GatewayListener, HeaderMatch, PathMatch, Resource, Route, RouteMatch,
    RouteRule,
};

pub(super) fn outputs(inputs: &Inputs, name: &str) -> Vec<Output> {
    let (Some(gateway), Ok(owner)) = (gateway(inputs, name), inputs.identity(name)) else {
        return Vec::new();
    };
    vec![Output {
        name: format!("gateway/{name}"),
        rank: 0,
        owner: Some(owner),
        resource: Resource::Gateway(gateway),
    }]
}

/// A gateway of ours; `None` when it does not exist or belongs to another implementation.
pub(super) fn gateway(inputs: &Inputs, name: &str) -> Option<Gateway> {
    let spec = inputs.gateways.get(name)?;
    if spec.gateway_class_name != "tulle" {
        return None;
    }
    let listeners = spec.listeners.iter().map(|listener| GatewayListener {
        name: listener.name.clone(),
        port: listener.port,
        hostname: listener
            .hostname
            .as_deref()
            .unwrap_or_default()
            .to_ascii_lowercase(),
        ..Default::default()
    });
    Some(Gateway {
        name: name.to_owned(),
        listeners: listeners.collect(),
        routes: attached(inputs, |parent| {
            if is_service(parent) || parent.name != name {
                return Vec::new();
            }
            listener_ports(spec, parent)
        }),
        ..Default::default()
    })
}

/// The routes whose parent is the service itself.
pub(super) fn service_routes(inputs: &Inputs, name: &str) -> Vec<Route> {
    attached(inputs, |parent| {
        if is_service(parent) && parent.name == name {
            vec![parent.port.unwrap_or(0)]
        } else {
            Vec::new()
        }
    })
}

/// Whether the parent is a Service rather than a Gateway (the default).
pub(super) fn is_service(parent: &ParentRef) -> bool {
    parent.kind.as_deref() == Some("Service")
}

/// The ports of the listeners that a parent reference means; 0 stands for all of them.
pub(super) fn listener_ports(spec: &GatewaySpec, parent: &ParentRef) -> Vec<u16> {
    if parent.section_name.is_none() && parent.port.is_none() {
        return vec![0];
    }
    let meant = spec.listeners.iter().filter(|listener| {
        let name = parent.section_name.as_ref();
        name.is_none_or(|name| *name == listener.name)
            && parent.port.is_none_or(|port| port == listener.port)
    });
    meant.map(|listener| listener.port).collect()
}

fn attached(inputs: &Inputs, ports: impl Fn(&ParentRef) -> Vec<u16>) -> Vec<Route> {
    let mut routes = Vec::new();
    for (name, spec) in &inputs.routes {
        let mut ports: Vec<u16> = spec.parent_refs.iter().flat_map(&ports).collect();
        ports.sort_unstable();
        ports.dedup();
        if ports.first() == Some(&0) {
            ports.truncate(1); // attached to all: the others say nothing more
        }
        routes.extend(ports.into_iter().map(|port| route(name, spec, port)));
    }
    routes
}

fn route(name: &str, spec: &HttpRouteSpec, port: u16) -> Route {
    let hostnames = spec.hostnames.iter();
    Route {
        name: name.to_owned(),
        hostnames: hostnames.map(|h| h.to_ascii_lowercase()).collect(),
        rules: spec.rules.iter().filter_map(rule).collect(),
        port,
        ..Default::default()
    }
}

/// `None` when the rule has matches and none of them is understood: without them it would match
/// every request.
fn rule(rule: &HttpRouteRule) -> Option<RouteRule> {
    let matches: Vec<RouteMatch> = rule.matches.iter().filter_map(route_match).collect();
    if matches.is_empty() && !rule.matches.is_empty() {
        return None;
    }
    let timeout = rule.timeouts.as_ref().and_then(|t| t.request.as_deref());
    let backends = rule.backend_refs.iter().map(|backend| Backend {
        service: backend.name.clone(),
        port: backend.port,
        weight: backend.weight.unwrap_or(1),
        filters: Vec::new(),
    });
    Some(RouteRule {
        matches,
        backends: backends.collect(),
        request_timeout_ms: timeout.map_or(0, timeout_ms),
        ..Default::default()
    })
}

/// `0s` means no timeout, but 0 means "not set" to a proxy: 49 days come close.
fn timeout_ms(text: &str) -> u32 {
    match parse_duration(text) {
        Ok(Duration::ZERO) => u32::MAX,
        Ok(timeout) => u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
        Err(_) => 0,
    }
}

fn route_match(m: &HttpRouteMatch) -> Option<RouteMatch> {
    let headers: Option<Vec<HeaderMatch>> = m.headers.iter().map(header).collect();
    Some(RouteMatch {
        path: m.path.as_ref().map_or(Some(PathMatch::default()), path)?,
        headers: headers?,
        method: m.method.clone().unwrap_or_default(),
        ..Default::default()
    })
}

fn path(path: &HttpPathMatch) -> Option<PathMatch> {
    let value = path.value.clone().unwrap_or_else(|| "/".into());
    match path.kind.as_deref() {
        None | Some("PathPrefix") => Some(PathMatch::Prefix(value)),
        Some("Exact") => Some(PathMatch::Exact(value)),
        Some("RegularExpression") => Some(PathMatch::Regex(value)),
        Some(_) => None,
    }
}

fn header(header: &HttpHeaderMatch) -> Option<HeaderMatch> {
    let regex = match header.kind.as_deref() {
        None | Some("Exact") => false,
        Some("RegularExpression") => true,
        Some(_) => return None,
    };
    Some(HeaderMatch {
        name: header.name.to_ascii_lowercase(),
        value: header.value.clone(),
        regex,
    })
}
