//! Egress objects to what workloads may reach outside the mesh.
//!
//! Fails closed: an Egress that refers to something absent, or to too much, allows nothing.

use super::groups::Groups;
use super::{Inputs, Output};
use tulle_model::manifest::EgressSpec;
use tulle_model::namespaced::ObjectName;
use tulle_model::resource::{
    Egress, EgressPort, EgressRule, EgressTls, PolicyMatch, Protocol, Resource, Target,
};

pub(super) fn outputs(inputs: &Inputs) -> Vec<Output> {
    let objects = inputs.egress.iter();
    let rules: Vec<_> = objects
        .filter_map(|(n, spec)| rule(inputs, n, spec).ok())
        .collect();
    if rules.is_empty() {
        return Vec::new();
    }
    vec![Output {
        name: "egress".into(),
        rank: 0,
        owner: None,
        resource: Resource::Egress(Egress { rules }),
        is_incomplete: false,
    }]
}

/// Whether an Egress names this port as the gateway it goes through: that is all that makes it one.
pub(super) fn is_gateway(inputs: &Inputs, service: &ObjectName, port: u16) -> bool {
    let objects = inputs.in_namespace_of(&inputs.egress, service);
    let mut gateways = objects.filter_map(|(_, e)| e.gateway.as_ref());
    gateways.any(|g| g.service == service.as_str() && g.port == port)
}

/// Whether an Egress goes through a port of this service.
pub(super) fn has_gateway(inputs: &Inputs, service: &str) -> bool {
    let mut gateways = inputs.egress.values().filter_map(|e| e.gateway.as_ref());
    gateways.any(|g| g.service == service)
}

/// Returns the kinds of request that an Egress lets out; empty: all; `None`: it names none that there is.
///
/// # Errors
/// They are too many.
pub(super) fn matches(
    inputs: &Inputs,
    spec: &EgressSpec,
) -> Result<Option<Vec<PolicyMatch>>, String> {
    let mut groups = Groups::default();
    for wanted in &spec.matches {
        let Some(group) = inputs.groups.get(wanted.name.as_str()) else {
            return Ok(None);
        };
        groups.take(&wanted.name, group, &wanted.matches);
    }
    let matches = groups.matches()?;
    let is_nothing = matches.is_empty() && !spec.matches.is_empty();
    Ok((!is_nothing).then_some(matches))
}

/// Builds the rule of an Egress.
///
/// # Errors
/// Why it allows nothing.
pub(super) fn rule(
    inputs: &Inputs,
    name: &ObjectName,
    spec: &EgressSpec,
) -> Result<EgressRule, String> {
    let absent = || "it refers to something that does not exist".to_owned();
    let sources = spec.sources.iter();
    let sources: Result<Vec<_>, _> = sources.map(|s| inputs.identity_named(&s.name)).collect();
    let matches = matches(inputs, spec)?.ok_or_else(absent)?;
    let tls = match &spec.tls {
        None => None,
        Some(tls) => Some(Box::new(EgressTls {
            server_name: tls.server_name.clone().unwrap_or_default(),
            roots: match &tls.ca_certificate_ref {
                Some(reference) => inputs.ca(reference).ok_or_else(absent)?,
                None => String::new(),
            },
            port: tls.port.unwrap_or(0),
        })),
    };
    if let (Some(_), Some(gateway)) = (&inputs.cluster, &spec.gateway) {
        // On a host there is no manifest of such an Egress.
        let mut ports = inputs.ports_of(&gateway.service);
        ports.find(|p| p.port == gateway.port).ok_or_else(absent)?;
    }
    let port = |p: &tulle_model::manifest::EgressPortSpec| EgressPort {
        port: p.number,
        protocol: match p.protocol.as_deref() {
            Some("http") => Protocol::Http,
            Some("https" | "tls") => Protocol::Tls,
            Some("tcp") => Protocol::Tcp,
            _ => Protocol::Detect,
        },
    };
    // A cluster's Egress is for its own namespace, but one in the mesh's namespace is for everybody.
    let namespace = Some(name.namespace()).filter(|n| *n != inputs.mesh_namespace);
    let sources = sources.map_err(|e| e.to_string())?;
    Ok(EgressRule {
        name: format!("Egress/{name}"),
        namespace: match sources.is_empty() {
            true => namespace.unwrap_or_default().to_owned(),
            false => String::new(),
        },
        sources,
        hosts: spec.hosts.iter().map(|h| h.to_ascii_lowercase()).collect(),
        networks: spec.ip_addresses.clone(),
        ports: spec.ports.iter().map(port).collect(),
        matches,
        tls,
        gateway: spec.gateway.as_ref().map(|g| Target {
            service: g.service.clone(),
            port: g.port,
            weight: 1,
        }),
    })
}
