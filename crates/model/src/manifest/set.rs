//! What objects must fulfil together.
//!
//! Objects may be applied in any order, so a reference to something absent is a warning; two
//! objects of one name are an error.

use super::{Manifest, Object, ParentRef, TrafficTargetSpec, WorkloadSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Whether a problem stops an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is applied.
    Error,
    /// Applied, but probably not what was meant.
    Warning,
}

/// Something that does not fit between objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Whether it stops an apply.
    pub severity: Severity,
    /// `Kind/name` of the object to look at.
    pub object: String,
    /// Dotted path of the field; empty: the whole object.
    pub field: String,
    /// What is wrong, what it leads to and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{severity}: {}: ", self.object)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Checks all objects of a mesh together, errors first.
pub fn validate_set<'a>(objects: impl Iterator<Item = &'a Object>) -> Vec<Problem> {
    let objects: Vec<&Object> = objects.collect();
    let mut problems = Vec::new();
    duplicates(&objects, &mut problems);
    let known = Known::new(&objects);
    for object in &objects {
        let mut found = Found {
            object,
            problems: &mut problems,
        };
        match object {
            Object::Workload(workload) => known.workload(workload, &mut found),
            Object::Gateway(gateway) => {
                let class = &gateway.spec.gateway_class_name;
                if class != "tulle" {
                    let message = format!(
                        "the class is `{class}`, not `tulle`, so Tulle does not serve this gateway"
                    );
                    found.warn("spec.gatewayClassName".into(), message);
                }
            }
            Object::HttpRoute(route) => {
                for (i, parent) in route.spec.parent_refs.iter().enumerate() {
                    known.parent(format!("spec.parentRefs[{i}]"), parent, &mut found);
                }
                for (i, rule) in route.spec.rules.iter().enumerate() {
                    for (j, backend) in rule.backend_refs.iter().enumerate() {
                        let field = format!("spec.rules[{i}].backendRefs[{j}]");
                        known.service(field, &backend.name, Some(backend.port), &mut found);
                    }
                }
            }
            Object::TrafficTarget(target) => known.target(&target.spec, &mut found),
            _ => {}
        }
    }
    problems.sort_by_key(|p| p.severity);
    problems
}

fn duplicates(objects: &[&Object], problems: &mut Vec<Problem>) {
    let mut seen = BTreeSet::new();
    let mut mesh: Option<&str> = None;
    for object in objects {
        let mut error = |message: String| {
            problems.push(Problem {
                severity: Severity::Error,
                object: object.id(),
                field: "metadata.name".into(),
                message,
            });
        };
        if !seen.insert((object.kind(), object.name())) {
            let kind = object.kind();
            error(format!(
                "there are two objects of kind {kind} with this name; rename or remove one"
            ));
        } else if let Object::Mesh(_) = object {
            match mesh {
                Some(other) => error(format!(
                    "there is already Mesh/{other}; a mesh has one Mesh object, remove one"
                )),
                None => mesh = Some(object.name()),
            }
        }
    }
}

struct Found<'a> {
    object: &'a Object,
    problems: &'a mut Vec<Problem>,
}

impl Found<'_> {
    fn warn(&mut self, field: String, message: String) {
        self.problems.push(Problem {
            severity: Severity::Warning,
            object: self.object.id(),
            field,
            message,
        });
    }
}

/// What can be referred to.
#[derive(Default)]
struct Known<'a> {
    /// Service to its ports and the protocol each was first given.
    services: BTreeMap<&'a str, BTreeMap<u16, (&'a str, Option<&'a str>)>>,
    identities: BTreeSet<&'a str>,
    /// Gateway to the names and ports of its listeners.
    gateways: BTreeMap<&'a str, Vec<(&'a str, u16)>>,
    /// HTTPRouteGroup to the names of its matches.
    groups: BTreeMap<&'a str, BTreeSet<&'a str>>,
    permissive: bool,
}

impl<'a> Known<'a> {
    fn new(objects: &[&'a Object]) -> Self {
        let mut known = Self::default();
        for object in objects {
            match object {
                Object::Mesh(mesh) => known.permissive |= mesh.spec.permissive_mode,
                Object::Workload(workload) => {
                    known.identities.insert(workload.identity());
                    let ports = known.services.entry(workload.service()).or_default();
                    for port in &workload.spec.ports {
                        let first = (
                            workload.metadata.name.as_str(),
                            port.app_protocol.as_deref(),
                        );
                        ports.entry(port.port).or_insert(first);
                    }
                }
                Object::Gateway(gateway) => {
                    known.identities.insert(&gateway.metadata.name);
                    let listeners = gateway.spec.listeners.iter();
                    let listeners = listeners.map(|l| (l.name.as_str(), l.port)).collect();
                    known.gateways.insert(&gateway.metadata.name, listeners);
                }
                Object::HttpRouteGroup(group) => {
                    let names = group.spec.matches.iter().map(|m| m.name.as_str()).collect();
                    known.groups.insert(&group.metadata.name, names);
                }
                _ => {}
            }
        }
        known
    }

    fn workload(&self, workload: &'a Manifest<WorkloadSpec>, found: &mut Found<'_>) {
        let service = workload.service();
        for (i, port) in workload.spec.ports.iter().enumerate() {
            let first = self.services.get(service).and_then(|s| s.get(&port.port));
            if let Some((other, protocol)) = first
                && *protocol != port.app_protocol.as_deref()
            {
                let message = format!(
                    "port {} of service {service} has `{}` here and `{}` in Workload/{other}; give \
                     both the same, the one of the first is used",
                    port.port,
                    port.app_protocol.as_deref().unwrap_or("no appProtocol"),
                    protocol.unwrap_or("no appProtocol"),
                );
                found.warn(format!("spec.ports[{i}].appProtocol"), message);
            }
        }
        for (i, upstream) in workload.spec.upstreams.iter().enumerate() {
            let field = format!("spec.upstreams[{i}]");
            self.service(field, &upstream.service, Some(upstream.port), found);
        }
        if self.gateways.contains_key(workload.identity()) {
            let message = format!(
                "Gateway/{0} has the same identity `{0}`, so policies cannot tell them apart; \
                 rename one",
                workload.identity()
            );
            found.warn("spec.identity".into(), message);
        }
    }

    fn service(&self, field: String, name: &str, port: Option<u16>, found: &mut Found<'_>) {
        match (self.services.get(name), port) {
            (None, _) => found.warn(
                format!("{field}.{}", self.name_field(found)),
                format!("there is no workload of service `{name}` (yet); requests to it fail"),
            ),
            (Some(ports), Some(port)) if !ports.contains_key(&port) => {
                let known: Vec<_> = ports.keys().map(u16::to_string).collect();
                found.warn(
                    format!("{field}.port"),
                    format!(
                        "service `{name}` has no port {port}, its ports are: {}; requests to it fail",
                        if known.is_empty() { "none".into() } else { known.join(", ") }
                    ),
                );
            }
            _ => {}
        }
    }

    fn name_field(&self, found: &Found<'_>) -> &'static str {
        match found.object {
            Object::Workload(_) => "service",
            _ => "name",
        }
    }

    fn parent(&self, field: String, parent: &ParentRef, found: &mut Found<'_>) {
        if parent.kind.as_deref() == Some("Service") {
            return self.service(field, &parent.name, parent.port, found);
        }
        let Some(listeners) = self.gateways.get(parent.name.as_str()) else {
            let message = format!(
                "there is no Gateway `{}` (yet); the route has no effect",
                parent.name
            );
            return found.warn(format!("{field}.name"), message);
        };
        if let Some(section) = &parent.section_name
            && !listeners.iter().any(|(name, _)| name == section)
        {
            let message = format!(
                "Gateway `{}` has no listener `{section}`; the route has no effect there",
                parent.name
            );
            found.warn(format!("{field}.sectionName"), message);
        }
        if let Some(port) = parent.port
            && !listeners.iter().any(|(_, number)| *number == port)
        {
            let message = format!(
                "Gateway `{}` has no listener on port {port}; the route has no effect there",
                parent.name
            );
            found.warn(format!("{field}.port"), message);
        }
    }

    fn target(&self, target: &TrafficTargetSpec, found: &mut Found<'_>) {
        if self.permissive {
            let message = "the Mesh has permissiveMode, so this object is ignored".into();
            found.warn(String::new(), message);
        }
        self.identity(
            "spec.destination.name".into(),
            &target.destination.name,
            found,
        );
        for (i, source) in target.sources.iter().enumerate() {
            self.identity(format!("spec.sources[{i}].name"), &source.name, found);
        }
        for (i, rule) in target.rules.iter().enumerate() {
            let Some(matches) = self.groups.get(rule.name.as_str()) else {
                let message = format!(
                    "there is no HTTPRouteGroup `{}` (yet); the rule allows nothing",
                    rule.name
                );
                found.warn(format!("spec.rules[{i}].name"), message);
                continue;
            };
            for (j, name) in rule.matches.iter().enumerate() {
                if !matches.contains(name.as_str()) {
                    let message = format!(
                        "HTTPRouteGroup `{}` has no match `{name}`; it allows nothing",
                        rule.name
                    );
                    found.warn(format!("spec.rules[{i}].matches[{j}]"), message);
                }
            }
        }
    }

    fn identity(&self, field: String, name: &str, found: &mut Found<'_>) {
        if !self.identities.contains(name) {
            let message = format!("there is no workload or gateway with identity `{name}` (yet)");
            found.warn(field, message);
        }
    }
}
