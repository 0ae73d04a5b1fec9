//! The objects that others can refer to.

use super::{Found, code};
use crate::manifest::{
    IdentityRef, ListenerSpec, Object, ObjectRef, ParentRef, TargetRef, TrafficTargetRule,
};
use std::collections::{BTreeMap, BTreeSet};

/// Ports of a service.
pub(super) type Ports<'a> = BTreeMap<u16, PortKnown<'a>>;

/// A port of a service, as the first workload has it that names it.
#[derive(Clone, Copy)]
pub(super) struct PortKnown<'a> {
    pub(super) workload: &'a str,
    pub(super) name: Option<&'a str>,
    pub(super) protocol: Option<&'a str>,
}

/// The parts of a route that a policy can mean.
pub(super) struct RouteKnown<'a> {
    /// A service that it is attached to.
    pub(super) service: Option<&'a str>,
    /// Names of its rules.
    pub(super) rules: BTreeSet<&'a str>,
}

#[derive(Default)]
pub(super) struct Known<'a> {
    pub(super) services: BTreeMap<&'a str, Ports<'a>>,
    identities: BTreeSet<&'a str>,
    /// Gateways of any class to their listeners.
    pub(super) gateways: BTreeMap<&'a str, &'a [ListenerSpec]>,
    /// HTTPRouteGroup to the names of its matches.
    groups: BTreeMap<&'a str, BTreeSet<&'a str>>,
    tcp_routes: BTreeSet<&'a str>,
    /// HTTPFilters, and whether they restrict requests.
    filters: BTreeMap<&'a str, bool>,
    plugins: BTreeSet<&'a str>,
    /// HTTPRoutes and GRPCRoutes by kind and name.
    pub(super) routes: BTreeMap<(&'a str, &'a str), RouteKnown<'a>>,
    /// (kind, name) of Secrets and ConfigMaps to their keys.
    texts: BTreeMap<(&'a str, &'a str), BTreeSet<&'a str>>,
    pub(super) permissive: bool,
    pub(super) allow_egress: bool,
}

impl<'a> Known<'a> {
    pub(super) fn new(objects: &[&'a Object]) -> Self {
        let mut known = Self::default();
        for object in objects {
            known.add(object);
        }
        // A split stands for a service that has no workloads, with the ports of its backends.
        for object in objects {
            if let Object::TrafficSplit(split) = object
                && !known.services.contains_key(split.spec.service.as_str())
            {
                let backends = split.spec.backends.iter();
                let ports = backends.filter_map(|b| known.services.get(b.service.as_str()));
                let ports: Ports<'a> = ports.flatten().map(|(port, of)| (*port, *of)).collect();
                known.services.insert(&split.spec.service, ports);
            }
        }
        known
    }

    fn add(&mut self, object: &'a Object) {
        match object {
            Object::Mesh(mesh) => {
                self.permissive |= mesh.spec.permissive_mode;
                self.allow_egress |= mesh.spec.allow_egress;
            }
            Object::Workload(workload) => {
                self.identities.insert(workload.identity());
                let ports = self.services.entry(workload.service()).or_default();
                for port in &workload.spec.ports {
                    let first = PortKnown {
                        workload: &workload.metadata.name,
                        name: port.name.as_deref(),
                        protocol: port.app_protocol.as_deref(),
                    };
                    ports.entry(port.port).or_insert(first);
                }
            }
            Object::Gateway(gateway) => {
                self.identities.insert(&gateway.metadata.name);
                let listeners = gateway.spec.listeners.as_slice();
                self.gateways.insert(&gateway.metadata.name, listeners);
            }
            Object::HttpRouteGroup(group) => {
                let names = group.spec.matches.iter().map(|m| m.name.as_str()).collect();
                self.groups.insert(&group.metadata.name, names);
            }
            Object::SmiTcpRoute(route) => drop(self.tcp_routes.insert(&route.metadata.name)),
            Object::HttpRoute(route) => {
                let rules = route.spec.rules.iter().map(|r| &r.name);
                let id = ("HTTPRoute", route.metadata.name.as_str());
                self.route(id, &route.spec.parent_refs, rules);
            }
            Object::GrpcRoute(route) => {
                let rules = route.spec.rules.iter().map(|r| &r.name);
                let id = ("GRPCRoute", route.metadata.name.as_str());
                self.route(id, &route.spec.parent_refs, rules);
            }
            Object::HttpFilter(filter) => {
                let restricts = filter.spec.restricts();
                self.filters.insert(&filter.metadata.name, restricts);
            }
            Object::Plugin(plugin) => drop(self.plugins.insert(&plugin.metadata.name)),
            Object::Secret(secret) => {
                let keys = secret.data.keys().chain(secret.string_data.keys());
                let keys = keys.map(String::as_str).collect();
                self.texts.insert(("Secret", &secret.metadata.name), keys);
            }
            Object::ConfigMap(map) => {
                let keys = map.data.keys().map(String::as_str).collect();
                self.texts.insert(("ConfigMap", &map.metadata.name), keys);
            }
            _ => {}
        }
    }

    fn route(
        &mut self,
        id: (&'a str, &'a str),
        parents: &'a [ParentRef],
        rules: impl Iterator<Item = &'a Option<String>>,
    ) {
        let mut services = parents
            .iter()
            .filter(|p| p.kind.as_deref() == Some("Service"));
        let known = RouteKnown {
            service: services.next().map(|p| p.name.as_str()),
            rules: rules.flatten().map(String::as_str).collect(),
        };
        self.routes.insert(id, known);
    }

    /// A service, and a port of it, that somebody wants to call. `name` is the field that names it.
    pub(super) fn service(
        &self,
        at: &str,
        name_field: &str,
        name: &str,
        port: Option<u16>,
        found: &mut Found<'_>,
    ) {
        match (self.services.get(name), port) {
            (None, _) => found.warn(
                code::NO_SERVICE,
                format!("{at}.{name_field}"),
                format!("there is no workload of service `{name}` (yet); requests to it fail"),
            ),
            (Some(ports), Some(port)) if !ports.contains_key(&port) => found.warn(
                code::NO_PORT,
                format!("{at}.port"),
                format!(
                    "service `{name}` has no port {port}, its ports are: {}; requests to it fail",
                    listed(ports)
                ),
            ),
            _ => {}
        }
    }

    /// Warns when all ports that a policy for HTTP is about carry opaque bytes.
    pub(super) fn speaks_http(&self, refs: &[TargetRef], what: &str, found: &mut Found<'_>) {
        for (i, reference) in refs.iter().enumerate() {
            if reference.kind() == "Gateway" {
                let listeners = self.gateways.get(reference.name.as_str());
                let listeners = listeners.copied().unwrap_or_default().iter();
                let mut meant = listeners
                    .filter(|l| reference.covers(Some(&l.name), l.port))
                    .peekable();
                if meant.peek().is_some() && meant.all(|l| !l.takes_http()) {
                    let message = format!(
                        "`{}` takes no HTTP there, so {what} without effect",
                        reference.name
                    );
                    found.warn(code::NOT_HTTP, format!("spec.targetRefs[{i}]"), message);
                }
                continue;
            }
            let Some(ports) = self.services.get(reference.name.as_str()) else {
                continue;
            };
            let meant = ports
                .iter()
                .filter(|(p, of)| reference.covers(of.name, **p));
            let mut protocols = meant.map(|(_, of)| of.protocol).peekable();
            let opaque = |p| matches!(p, Some("tcp" | "tcp-server-first" | "tls"));
            if protocols.peek().is_some() && protocols.all(opaque) {
                let message = format!(
                    "`{}` speaks no HTTP there (appProtocol), so {what} without effect",
                    reference.name
                );
                found.warn(code::NOT_HTTP, format!("spec.targetRefs[{i}]"), message);
            }
        }
    }

    /// References to kinds of request.
    pub(super) fn rules(&self, at: &str, rules: &[TrafficTargetRule], found: &mut Found<'_>) {
        for (i, rule) in rules.iter().enumerate() {
            if rule.kind == "TCPRoute" {
                if !self.tcp_routes.contains(rule.name.as_str()) {
                    let message = format!(
                        "there is no TCPRoute `{}` of specs.smi-spec.io (yet); the rule allows \
                         nothing",
                        rule.name
                    );
                    found.warn(code::NO_TCP_ROUTE, format!("{at}[{i}].name"), message);
                }
                continue;
            }
            let Some(matches) = self.groups.get(rule.name.as_str()) else {
                let message = format!(
                    "there is no HTTPRouteGroup `{}` (yet); the rule allows nothing",
                    rule.name
                );
                found.warn(code::NO_GROUP, format!("{at}[{i}].name"), message);
                continue;
            };
            for (j, name) in rule.matches.iter().enumerate() {
                if !matches.contains(name.as_str()) {
                    let message = format!(
                        "HTTPRouteGroup `{}` has no match `{name}`; it allows nothing",
                        rule.name
                    );
                    found.warn(code::NO_GROUP, format!("{at}[{i}].matches[{j}]"), message);
                }
            }
        }
    }

    /// Whether a TrafficTarget's rule refers to something that exists.
    pub(super) fn has_rule(&self, rule: &TrafficTargetRule) -> bool {
        match rule.kind.as_str() {
            "TCPRoute" => self.tcp_routes.contains(rule.name.as_str()),
            _ => self.groups.contains_key(rule.name.as_str()),
        }
    }

    pub(super) fn has_group(&self, name: &str) -> bool {
        self.groups.contains_key(name)
    }

    /// Whether there is the HTTPFilter or Plugin that a route refers to.
    pub(super) fn has_filter(&self, reference: &ObjectRef) -> bool {
        match reference.is_plugin() {
            true => self.plugins.contains(reference.name.as_str()),
            false => self.filters.contains_key(reference.name.as_str()),
        }
    }

    /// Whether an HTTPFilter of this name refuses requests.
    pub(super) fn restricts(&self, name: &str) -> bool {
        self.filters.get(name).is_some_and(|restricts| *restricts)
    }

    pub(super) fn identities(&self, at: &str, refs: &[IdentityRef], found: &mut Found<'_>) {
        for (i, reference) in refs.iter().enumerate() {
            self.identity(format!("{at}[{i}].name"), &reference.name, found);
        }
    }

    pub(super) fn identity(&self, field: String, name: &str, found: &mut Found<'_>) {
        if !self.identities.contains(name) {
            let message = format!("there is no workload or gateway with identity `{name}` (yet)");
            found.warn(code::NO_IDENTITY, field, message);
        }
    }

    /// A key of a Secret or ConfigMap. `then`: what follows when it is not there.
    pub(super) fn text(
        &self,
        at: String,
        reference: &ObjectRef,
        default: &str,
        key: &str,
        then: &str,
        found: &mut Found<'_>,
    ) {
        let kind = reference.kind.as_deref().unwrap_or(default);
        let message = match self.texts.get(&(kind, reference.name.as_str())) {
            None => format!("there is no {kind} `{}` (yet); {then}", reference.name),
            Some(keys) if !keys.contains(key) => {
                format!("{kind} `{}` has no key `{key}`; {then}", reference.name)
            }
            Some(_) => return,
        };
        found.warn(code::NO_TEXT, at, message);
    }
}

pub(super) fn listed(ports: &Ports<'_>) -> String {
    let known: Vec<_> = ports.keys().map(u16::to_string).collect();
    if known.is_empty() {
        "none".into()
    } else {
        known.join(", ")
    }
}
