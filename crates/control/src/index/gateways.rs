//! Gateways and routes (Gateway API) to gateways and routes of proxies.

use super::bounds::is_service;
use super::inputs::Objects;
use super::room::{self, NoRoom, Room};
use super::{Inputs, ObjectProblem, Output, inbound, policy, workloads};
use std::collections::BTreeSet;
use tulle_model::manifest::{
    FilterRefs, GatewaySpec, GrpcRouteRule, HttpRouteRule, ListenerSpec, ListenerTlsSpec,
    ParentRef, RouteFilter, TargetRef,
};
use tulle_model::namespaced::{Namespaced, ObjectName};
use tulle_model::resource::{
    Certificate, Gateway, GatewayListener, ListenerProtocol, ListenerTls, Policy, Resource, Route,
    RouteRule, TcpRoute, TlsRoute,
};

/// A Gateway of a cluster, as its controller has judged it. There, unlike on a host, namespaces decide
/// which routes may attach to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterGateway {
    /// Its name.
    pub name: Namespaced,
    /// Service account of its proxies, in its own namespace.
    pub account: String,
    /// Its listeners that are in order.
    pub spec: GatewaySpec,
    /// All routes that are attached to these listeners.
    pub attached: BTreeSet<Attachment>,
}

/// A route and a listener that takes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    /// `<kind>/<name>.<namespace>`
    pub route: String,
    /// Name of the listener.
    pub listener: String,
}

pub(super) fn outputs(
    inputs: &Inputs,
    name: &ObjectName,
    problems: &mut Vec<ObjectProblem>,
) -> Vec<Output> {
    let account = match inputs.cluster_gateway(name.as_str()) {
        Some(gateway) => gateway.name.sibling(&gateway.account).into(),
        None => name.clone(),
    };
    let gateway = gateway_and_problems(inputs, name, problems);
    let (Some(gateway), Ok(owner)) = (gateway, inputs.identity(&account)) else {
        return Vec::new();
    };
    vec![Output {
        name: format!("gateway/{name}"),
        rank: 0,
        owner: Some(owner),
        resource: Resource::Gateway(gateway),
        is_incomplete: inputs.awaited_keys(),
    }]
}

/// A gateway of ours; `None` when it does not exist or belongs to another implementation.
pub(super) fn gateway(inputs: &Inputs, name: &ObjectName) -> Option<Gateway> {
    gateway_and_problems(inputs, name, &mut Vec::new())
}

fn gateway_and_problems(
    inputs: &Inputs,
    name: &ObjectName,
    problems: &mut Vec<ObjectProblem>,
) -> Option<Gateway> {
    let spec = inputs.gateways.get(name)?;
    if spec.gateway_class_name != "tulle" {
        return None;
    }
    let listeners = spec.listeners.iter();
    let mut room = Room::of_ports();
    let places = |route: &str, parent: &ParentRef, takes: fn(&ListenerSpec) -> bool| {
        if is_service(parent) || parent.name != name.as_str() {
            return Vec::new();
        }
        match inputs.cluster_gateway(name.as_str()) {
            Some(gateway) => attached_places(gateway, route, takes),
            None => places(spec, parent, takes),
        }
    };
    Some(Gateway {
        name: name.to_string(),
        listeners: listeners
            .filter_map(|l| listener(inputs, name, (spec, l), &mut room, problems))
            .collect(),
        routes: guarded(inputs, name, problems, |route, parent| {
            places(route, parent, ListenerSpec::takes_http)
        }),
        tls_routes: tls_routes(inputs, |route, parent| {
            places(route, parent, ListenerSpec::takes_tls)
        }),
        tcp_routes: tcp_routes(inputs, |route, parent| {
            places(route, parent, ListenerSpec::takes_tcp)
        }),
        locality: spec.locality().to_owned(),
        workload: Some(Box::new(workloads::of_gateway(inputs, name))),
    })
}

/// `None` when a certificate that it needs does not exist: it must not answer with another, nor
/// without asking clients for theirs.
fn listener(
    inputs: &Inputs,
    gateway: &ObjectName,
    (spec, listener): (&GatewaySpec, &ListenerSpec),
    room: &mut Room,
    problems: &mut Vec<ObjectProblem>,
) -> Option<GatewayListener> {
    let meant = |r: &TargetRef| {
        r.is("Gateway", gateway.as_str()) && r.covers(Some(&listener.name), listener.port)
    };
    let tls = listener.tls.as_ref().filter(|_| !listener.passes_through());
    let hostname = listener.hostname.as_deref().unwrap_or_default();
    let object = format!("Gateway/{gateway}");
    let made = policy::at_gateway(inputs, &object, gateway, room.left(), meant);
    let places = |refs: &[TargetRef]| match refs.iter().any(meant) {
        true => vec![listener.port],
        false => Vec::new(),
    };
    let mut rules = inbound::rules_where(inputs, gateway, &places, room);
    // A policy that did not fit when none of these rules was made has no size: it fits nowhere.
    let bytes = made
        .as_ref()
        .map_or(usize::MAX, |policy| room::bytes(policy.as_slice()));
    let mut policy = made.unwrap_or_default();
    if !room.take(bytes) {
        policy = None;
        rules = Err(format!(
            "AuthorizationPolicies make rules of more than {} bytes, with what is about the listeners before it: make \
             fewer of them",
            room.most()
        ));
    }
    let (rules, deny) = policy::or_closing(rules, listener.port, &object, problems);
    if let Some(deny) = deny {
        policy.get_or_insert_default().rules.push(deny);
    }
    Some(GatewayListener {
        name: listener.name.clone(),
        port: listener.port,
        hostname: hostname.to_ascii_lowercase(),
        protocol: match listener.protocol.as_str() {
            "HTTPS" => ListenerProtocol::Https,
            "TLS" => ListenerProtocol::Tls,
            "TCP" => ListenerProtocol::Tcp,
            _ => ListenerProtocol::Http,
        },
        tls: match tls {
            Some(tls) => Some(Box::new(listener_tls(inputs, tls)?)),
            None => None,
        },
        proxy_protocol: spec.proxied().any(|name| name == listener.name),
        policy,
        rules,
    })
}

fn listener_tls(inputs: &Inputs, tls: &ListenerTlsSpec) -> Option<ListenerTls> {
    let certificate = |name: &String| {
        let secret = inputs.secrets.get(name.as_str())?;
        Some(Certificate {
            chain: secret.text("tls.crt")?,
            key: secret.text("tls.key")?,
        })
    };
    let names = tls.certificate_refs.iter().map(|r| &r.name);
    let certificates: Option<Vec<Certificate>> = names.map(certificate).collect();
    let mut client_roots = String::new();
    let mut client_optional = false;
    if let Some(validation) = &tls.frontend_validation {
        for reference in &validation.ca_certificate_refs {
            client_roots.push_str(&inputs.ca(reference)?);
            client_roots.push('\n');
        }
        client_optional = validation.mode.as_deref() == Some("AllowInsecureFallback");
    }
    Some(ListenerTls {
        certificates: certificates.filter(|c| !c.is_empty())?,
        client_roots,
        client_optional,
    })
}

/// The routes whose parent is the service itself.
pub(super) fn service_routes(
    inputs: &Inputs,
    name: &ObjectName,
    problems: &mut Vec<ObjectProblem>,
) -> Vec<Route> {
    let places = |_: &str, parent: &ParentRef| service_places(parent, name);
    let routes = http_routes(inputs, name, problems, |_, _, _| Ok(None), places).into_iter();
    let routes = routes.map(|(object, mut route)| {
        // A route of another namespace is about calls from that namespace.
        if object.name.namespace() != name.namespace() {
            route.clients = object.name.namespace().to_owned();
        }
        route
    });
    routes.collect()
}

/// The TLSRoutes whose parent is the service itself.
pub(super) fn service_tls_routes(inputs: &Inputs, name: &ObjectName) -> Vec<TlsRoute> {
    tls_routes(inputs, |_, parent| service_places(parent, name))
}

/// The TCPRoutes whose parent is the service itself.
pub(super) fn service_tcp_routes(inputs: &Inputs, name: &ObjectName) -> Vec<TcpRoute> {
    tcp_routes(inputs, |_, parent| service_places(parent, name))
}

fn service_places(parent: &ParentRef, name: &ObjectName) -> Vec<ListenerPort> {
    if is_service(parent) && parent.name == name.as_str() {
        vec![ListenerPort::port(parent.port.unwrap_or(0))]
    } else {
        Vec::new()
    }
}

/// Where a route is attached: a port (0: all), and the listener if others share the port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListenerPort {
    pub(super) port: u16,
    pub(super) listener: String,
}

impl ListenerPort {
    fn port(port: u16) -> Self {
        Self {
            port,
            listener: String::new(),
        }
    }
}

/// The listeners that a parent reference means and that take such routes.
pub(super) fn places(
    spec: &GatewaySpec,
    parent: &ParentRef,
    takes: fn(&ListenerSpec) -> bool,
) -> Vec<ListenerPort> {
    let mut taking = spec.listeners.iter().filter(|l| takes(l));
    if parent.section_name.is_none() && parent.port.is_none() {
        return match taking.next() {
            Some(_) => vec![ListenerPort::port(0)],
            None => Vec::new(),
        };
    }
    let meant = taking.filter(|listener| {
        let name = parent.section_name.as_ref();
        name.is_none_or(|name| *name == listener.name)
            && parent.port.is_none_or(|port| port == listener.port)
    });
    let by_name = parent.section_name.is_some();
    let place = |listener: &ListenerSpec| match by_name {
        true => place(spec, listener),
        false => ListenerPort::port(listener.port),
    };
    meant.map(place).collect()
}

/// The place of a single listener.
fn place(spec: &GatewaySpec, listener: &ListenerSpec) -> ListenerPort {
    let mut same_port = spec.listeners.iter().filter(|l| l.port == listener.port);
    ListenerPort {
        port: listener.port,
        listener: match same_port.any(|l| l.name != listener.name) {
            true => listener.name.clone(),
            false => String::new(),
        },
    }
}

/// The listeners that a route is attached to, as its cluster's controller has judged.
fn attached_places(
    gateway: &ClusterGateway,
    route: &str,
    takes: fn(&ListenerSpec) -> bool,
) -> Vec<ListenerPort> {
    let is_attached = |listener: &&ListenerSpec| {
        gateway.attached.contains(&Attachment {
            route: route.to_owned(),
            listener: listener.name.clone(),
        })
    };
    let spec = &gateway.spec;
    let taking = || spec.listeners.iter().filter(|l| takes(l));
    let found: Vec<&ListenerSpec> = taking().filter(is_attached).collect();
    if !found.is_empty() && found.len() == taking().count() {
        return vec![ListenerPort::port(0)];
    }
    found.into_iter().map(|l| place(spec, l)).collect()
}

/// Lists each place once. A place that means all listeners makes the others superfluous.
fn distinct<T: Ord>(mut places: Vec<T>, all: &T) -> Vec<T> {
    places.sort_unstable();
    places.dedup();
    if places.first() == Some(all) {
        places.truncate(1);
    }
    places
}

/// A route by its object.
#[derive(Clone, Copy)]
struct RouteObject<'a> {
    kind: &'static str,
    name: &'a ObjectName,
}

impl<'a> RouteObject<'a> {
    /// `<kind>/<name>`. A route that is made of an Ingress has the kind of that in its name.
    fn object(self) -> String {
        match self.kind == HTTP_ROUTE && self.name.as_str().contains('/') {
            true => self.name.to_string(),
            false => format!("{}/{}", self.kind, self.name),
        }
    }

    /// See `resource::Route::name`.
    fn written(self) -> String {
        match self.kind == HTTP_ROUTE {
            true => self.name.to_string(),
            false => self.object(),
        }
    }

    /// Orders the routes of a cluster (Gateway API, "Conflicts"): by age, then by namespace and name. On a host all
    /// are equal, so they stay in the order of their names.
    fn precedence(self, inputs: &'a Inputs) -> Option<(&'a str, &'a str, &'a str)> {
        let ObjectName::InNamespace(name) = self.name else {
            return None;
        };
        let created = inputs.created.get(&(self.kind, name.clone()))?;
        Some((created.as_str(), name.namespace(), name.name()))
    }
}

const HTTP_ROUTE: &str = "HTTPRoute";

/// Routes of a gateway, with whose requests each rule takes.
fn guarded(
    inputs: &Inputs,
    gateway: &ObjectName,
    problems: &mut Vec<ObjectProblem>,
    places: impl Fn(&str, &ParentRef) -> Vec<ListenerPort>,
) -> Vec<Route> {
    let policy = |route: RouteObject<'_>, rule: &RouteRule, left: usize| {
        let object = route.object();
        let (kind, name) = object.split_once('/').unwrap_or((HTTP_ROUTE, &object));
        let section = Some(rule.name.as_str()).filter(|n| !n.is_empty());
        let meant = |r: &TargetRef| r.is(kind, name) && r.covers(section, 0);
        policy::at_gateway(inputs, &object, route.name, left, meant)
    };
    let routes = http_routes(inputs, gateway, problems, policy, places).into_iter();
    routes.map(|(_, route)| route).collect()
}

/// Finds each place where the routes of a kind are attached, in the order in which they take precedence.
fn placed<'a, T>(
    inputs: &'a Inputs,
    (kind, objects): (&'static str, &'a Objects<T>),
    parents: fn(&T) -> &[ParentRef],
    places: &impl Fn(&str, &ParentRef) -> Vec<ListenerPort>,
) -> Vec<(RouteObject<'a>, &'a T, ListenerPort)> {
    let mut all = Vec::new();
    for (name, spec) in objects {
        let route = RouteObject { kind, name };
        let object = route.object();
        let found = parents(spec).iter().flat_map(|p| places(&object, p));
        let found = distinct(found.collect(), &ListenerPort::port(0));
        all.extend(found.into_iter().map(|place| (route, spec, place)));
    }
    all.sort_by_cached_key(|(route, ..)| route.precedence(inputs));
    all
}

/// A rule of an HTTPRoute or of a GRPCRoute.
enum Rule<'a> {
    Http(&'a HttpRouteRule),
    Grpc(&'a GrpcRouteRule),
}

impl Rule<'_> {
    /// The number of its matches, and its filters.
    fn parts(&self) -> (usize, &[RouteFilter]) {
        match self {
            Self::Http(rule) => (rule.matches.len(), &rule.filters),
            Self::Grpc(rule) => (rule.matches.len(), &rule.filters),
        }
    }

    fn made(&self, refs: &dyn FilterRefs) -> Option<RouteRule> {
        match self {
            Self::Http(rule) => rule.rule(refs),
            Self::Grpc(rule) => rule.rule(refs),
        }
    }
}

fn http_routes<'a>(
    inputs: &'a Inputs,
    owner: &ObjectName,
    problems: &mut Vec<ObjectProblem>,
    policy: impl Fn(RouteObject<'_>, &RouteRule, usize) -> Result<Option<Box<Policy>>, NoRoom>,
    places: impl Fn(&str, &ParentRef) -> Vec<ListenerPort>,
) -> Vec<(RouteObject<'a>, Route)> {
    let route = |object: RouteObject<'_>, hosts: &[String], rules, place: ListenerPort| Route {
        name: object.written(),
        hostnames: hosts.iter().map(|h| h.to_ascii_lowercase()).collect(),
        rules,
        port: place.port,
        listener: place.listener,
        clients: String::new(),
    };
    let objects = (HTTP_ROUTE, &inputs.routes);
    let http = placed(inputs, objects, |s| &s.parent_refs, &places).into_iter();
    let http = http.map(|(object, spec, place)| {
        let rules = spec.rules.iter().map(Rule::Http);
        (object, &spec.hostnames, rules.collect::<Vec<_>>(), place)
    });
    let objects = ("GRPCRoute", &inputs.grpc_routes);
    let grpc = placed(inputs, objects, |s| &s.parent_refs, &places).into_iter();
    let grpc = grpc.map(|(object, spec, place)| {
        let rules = spec.rules.iter().map(Rule::Grpc);
        (object, &spec.hostnames, rules.collect(), place)
    });
    let all: Vec<_> = http.chain(grpc).collect();
    let own = owner.namespace();
    let others = all.iter().map(|(object, ..)| object.name.namespace());
    let others: BTreeSet<&str> = others.filter(|namespace| *namespace != own).collect();
    let (mut routes, told) = room::with_rooms(own, others.len(), |rooms| {
        let (mut routes, mut problems) = (Vec::new(), Vec::new());
        for (object, hosts, rules, place) in &all {
            if rooms.are_too_full() {
                break;
            }
            let room = rooms.room(object.name.namespace());
            let most = room.most();
            let rules = rules.iter().filter_map(|rule| {
                let policy = |made: &RouteRule, left| policy(*object, made, left);
                room.rule(inputs, rule.parts(), |refs| rule.made(refs), policy)
            });
            let rules = room::told(object.object(), rules, most, &mut problems);
            routes.push((*object, route(*object, hosts, rules, place.clone())));
        }
        (routes, problems)
    });
    problems.extend(told);
    routes.sort_by_cached_key(|(route, _)| route.precedence(inputs));
    routes
}

fn tls_routes(
    inputs: &Inputs,
    places: impl Fn(&str, &ParentRef) -> Vec<ListenerPort>,
) -> Vec<TlsRoute> {
    let objects = ("TLSRoute", &inputs.tls_routes);
    let found = placed(inputs, objects, |s| &s.parent_refs, &places).into_iter();
    let routes = found.map(|(object, spec, place)| TlsRoute {
        name: object.written(),
        hostnames: spec
            .hostnames
            .iter()
            .map(|h| h.to_ascii_lowercase())
            .collect(),
        targets: spec.rules.iter().flat_map(|r| r.targets()).collect(),
        port: place.port,
        listener: place.listener,
    });
    routes.collect()
}

fn tcp_routes(
    inputs: &Inputs,
    places: impl Fn(&str, &ParentRef) -> Vec<ListenerPort>,
) -> Vec<TcpRoute> {
    let objects = ("TCPRoute", &inputs.tcp_routes);
    let found = placed(inputs, objects, |s| &s.parent_refs, &places).into_iter();
    let routes = found.map(|(object, spec, place)| TcpRoute {
        name: object.written(),
        targets: spec.rules.iter().flat_map(|r| r.targets()).collect(),
        port: place.port,
        listener: place.listener,
    });
    routes.collect()
}
