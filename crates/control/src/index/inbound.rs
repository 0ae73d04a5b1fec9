//! What the sidecar of a workload accepts: its ports, who may call, how often, and with what proof.

use super::inputs::{identity_name_of, service_of};
use super::{Inputs, Output, egress, policy, services};
use std::collections::BTreeMap;
use tulle_model::manifest::{TargetRef, WorkloadPort, WorkloadSpec};
use tulle_model::resource::{
    Filter, Inbound, InboundPort, InboundRule, Policy, RateLimit, Resource,
};

/// Each sidecar finds its own under the workload's name. The service's and the identity's name
/// work too, so that a sidecar that knows only one of them finds it; with several replicas these
/// stand for the first by name.
pub(super) fn outputs(inputs: &Inputs, service: &str, outputs: &mut Vec<Output>) {
    let mut policies: BTreeMap<&str, Policy> = BTreeMap::new();
    let mut aliases: BTreeMap<String, (u8, &str)> = BTreeMap::new();
    for (workload, spec) in inputs.workloads_of(service) {
        let identity = identity_name_of(workload, spec);
        policies
            .entry(identity)
            .or_insert_with(|| policy::policy(inputs, service, identity));
        aliases.insert(workload.to_owned(), (0, workload));
    }
    let mut alias = |name: &str, rank, workload| {
        aliases.entry(name.to_owned()).or_insert((rank, workload));
    };
    for (workload, _) in inputs.workloads_of(service).take(1) {
        alias(service, 1, workload);
    }
    for (workload, spec) in inputs.workloads_of(service) {
        alias(identity_name_of(workload, spec), 2, workload);
    }
    for (name, (rank, workload)) in aliases {
        let Some(spec) = inputs.workloads.get(workload) else {
            continue;
        };
        let identity = identity_name_of(workload, spec);
        let (Ok(owner), Some(policy)) = (inputs.identity(identity), policies.get(identity)) else {
            continue;
        };
        outputs.push(Output {
            name: format!("inbound/{name}"),
            rank,
            owner: Some(owner),
            resource: Resource::Inbound(inbound(inputs, workload, spec, policy.clone())),
        });
    }
}

fn inbound(inputs: &Inputs, workload: &str, spec: &WorkloadSpec, policy: Policy) -> Inbound {
    let placed = inputs.placements.get(workload);
    let placed = placed.map(|p| p.ports.as_slice()).unwrap_or_default();
    let service = service_of(workload, spec);
    let ports = spec.ports.iter().filter_map(|port| {
        let target = placed.iter().find(|p| p.port == port.port)?.target;
        Some(self::port(inputs, service, port, target))
    });
    Inbound {
        service: service.to_owned(),
        ports: ports.collect(),
        policy,
        locality: spec.locality.clone().unwrap_or_default(),
    }
}

fn port(
    inputs: &Inputs,
    service: &str,
    port: &WorkloadPort,
    target: std::net::SocketAddr,
) -> InboundPort {
    InboundPort {
        proxy_protocol: port.proxy_protocol,
        egress: egress::is_gateway(inputs, service, port.port),
        connection_limit: connection_limit(inputs, service, port.port),
        rules: rules(inputs, service, port.port),
        ..InboundPort::new(port.port, services::protocol(port), target)
    }
}

/// Whether one of the references means this port.
pub(super) fn means(inputs: &Inputs, refs: &[TargetRef], service: &str, port: u16) -> bool {
    let covers = |r: &TargetRef| {
        let mut named = inputs.ports_of(service).filter(|p| p.port == port);
        match r.section_name {
            None => r.covers(None, port),
            Some(_) => named.any(|p| r.covers(p.name.as_deref(), port)),
        }
    };
    refs.iter().any(|r| r.is("Service", service) && covers(r))
}

/// Of several the first by name holds.
pub(super) fn connection_limit(inputs: &Inputs, service: &str, port: u16) -> Option<RateLimit> {
    let mut limits = inputs.rate_limits.iter();
    limits.find_map(|(name, spec)| {
        let limit = spec.connections.as_ref()?;
        means(inputs, &spec.target_refs, service, port)
            .then(|| limit.limit(format!("RateLimit/{name}")))
    })
}

/// What is done to the requests to a port.
pub(super) fn rules(inputs: &Inputs, service: &str, port: u16) -> Vec<InboundRule> {
    rules_where(inputs, port, &|refs| means(inputs, refs, service, port))
}

/// What is done to requests, by the objects that are `meant`. The first rule that matches is the only one, so each has all that
/// holds for its requests: its limit, then authentication.
pub(super) fn rules_where(
    inputs: &Inputs,
    port: u16,
    meant: &dyn Fn(&[TargetRef]) -> bool,
) -> Vec<InboundRule> {
    let (auth_names, auth) = authentication(inputs, meant);
    let mut limits = inputs.rate_limits.iter();
    let limit = limits.find(|(_, spec)| {
        let http = spec.requests.is_some() || !spec.rules.is_empty();
        http && meant(&spec.target_refs)
    });
    let mut rules = Vec::new();
    let mut rest = Vec::new();
    let mut rest_name = auth_names;
    if let Some((name, spec)) = limit {
        let object = format!("RateLimit/{name}");
        for (i, rule) in spec.rules.iter().enumerate() {
            if !rule.to.ports.is_empty() && !rule.to.ports.contains(&port) {
                continue;
            }
            // A condition that is not understood: better limited too much than not at all.
            let matches = rule.to.matches().unwrap_or_default();
            let limit = rule.requests.limit(format!("{object} rules[{i}]"));
            let mut filters = vec![Filter::RateLimit(limit)];
            filters.extend(auth.iter().cloned());
            rules.push(InboundRule {
                name: object.clone(),
                matches,
                filters,
            });
        }
        if let Some(requests) = &spec.requests {
            rest.push(Filter::RateLimit(requests.limit(object.clone())));
            rest_name = object;
        }
    }
    rest.extend(auth);
    if !rest.is_empty() {
        rules.push(InboundRule {
            name: rest_name,
            matches: Vec::new(),
            filters: rest,
        });
    }
    rules
}

/// Every Authentication that is meant, with the name of the first.
fn authentication(inputs: &Inputs, meant: &dyn Fn(&[TargetRef]) -> bool) -> (String, Vec<Filter>) {
    let (mut first, mut filters) = (String::new(), Vec::new());
    for (name, spec) in &inputs.authentication {
        if !meant(&spec.target_refs) {
            continue;
        }
        let object = format!("Authentication/{name}");
        if let Some(jwt) = &spec.jwt {
            filters.extend(jwt.filter(object.clone(), inputs));
        }
        if let Some(auth) = &spec.external_auth {
            filters.push(Filter::ExternalAuth(auth.filter(object.clone())));
        }
        if first.is_empty() {
            first = object;
        }
    }
    (first, filters)
}
