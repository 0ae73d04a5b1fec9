//! Computes what the sidecar of a workload accepts: its ports, who may call, how often, and with what
//! proof.

use super::inputs::identity_name_of;
use super::room::{self, Refs, Room};
use super::together::{self, Demand};
use super::{Inputs, ObjectProblem, Output, egress, policy, workloads};
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use tulle_model::manifest::{FilterRefs, RateLimitRule, RateLimitSpec, TargetRef, WorkloadSpec};
use tulle_model::namespaced::ObjectName;
use tulle_model::resource::{
    Filter, Inbound, InboundPort, InboundRule, Plugin, Policy, PolicyRule, RateLimit, Resource,
};

/// A service that leads to a port, and the number that the port has there.
pub(super) type Place = (ObjectName, u16);

/// Each sidecar finds its own under the workload's name. The service's and the identity's name
/// work too, so that a sidecar that knows only one of them finds it; with several replicas these
/// stand for the first by name.
pub(super) fn outputs(
    inputs: &Inputs,
    name: &ObjectName,
    outputs: &mut Vec<Output>,
    problems: &mut Vec<ObjectProblem>,
) {
    let service = name.as_str();
    let mut policies: BTreeMap<&str, Policy> = BTreeMap::new();
    let mut aliases: BTreeMap<String, (u8, &str)> = BTreeMap::new();
    for (workload, spec) in inputs.workloads_of(service) {
        let identity = identity_name_of(workload, spec);
        aliases.insert(workload.to_owned(), (0, workload));
        if let Some(account) = inputs.object_name(identity) {
            let policy = || policy::policy(inputs, name, &account);
            policies.entry(identity).or_insert_with(policy);
        }
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
    for (alias, (rank, workload)) in aliases {
        let Some(spec) = inputs.workloads.get(workload) else {
            continue;
        };
        let identity = identity_name_of(workload, spec);
        let owner = inputs.identity_named(identity);
        let (Ok(owner), Some(policy)) = (owner, policies.get(identity)) else {
            continue;
        };
        let policy = policy.clone();
        outputs.push(Output {
            name: format!("inbound/{alias}"),
            rank,
            owner: Some(owner),
            resource: Resource::Inbound(inbound(inputs, name, (workload, spec), policy, problems)),
            is_incomplete: inputs.awaited_keys(),
        });
    }
}

/// Returns what closes a port at one of the workloads that run with this identity, as its sidecar is told it. Replicas may
/// have different ports, which take their room in order: where one has no room, another may have some.
pub(super) fn closing_at(
    inputs: &Inputs,
    service: &ObjectName,
    identity: &ObjectName,
    port: u16,
) -> Option<PolicyRule> {
    let object = format!("service/{service}");
    let mut seen = BTreeSet::new();
    let mut workloads = inputs.workloads_of(service.as_str());
    workloads.find_map(|(name, spec)| {
        if identity_name_of(name, spec) != identity.as_str() {
            return None;
        }
        let placed = inputs.placements.get(name)?;
        let numbers = spec.ports.iter().map(|p| p.port);
        let numbers = numbers.filter(|number| placed.ports.iter().any(|p| p.port == *number));
        let mut numbers: Vec<u16> = numbers.collect();
        // Ports after it take nothing from it.
        let at = numbers.iter().position(|number| *number == port)?;
        numbers.truncate(at + 1);
        if !seen.insert(numbers.clone()) {
            return None;
        }
        let mut room = Room::of_workload(inputs, service.namespace());
        let mut closing = None;
        for number in numbers {
            let rules = rules(inputs, &[(service.clone(), number)], &mut room);
            (_, closing) = policy::or_closing(rules, number, &object, &mut Vec::new());
        }
        closing
    })
}

fn inbound(
    inputs: &Inputs,
    service: &ObjectName,
    (workload, spec): (&str, &WorkloadSpec),
    mut policy: Policy,
    problems: &mut Vec<ObjectProblem>,
) -> Inbound {
    let placed = inputs.placements.get(workload);
    let placed = placed.map(|p| p.ports.as_slice()).unwrap_or_default();
    // The first of a number stays.
    let placed: BTreeMap<u16, _> = placed.iter().rev().map(|p| (p.port, p)).collect();
    let object = format!("service/{service}");
    let mut room = Room::of_workload(inputs, service.namespace());
    let mut ports = Vec::new();
    for port in &spec.ports {
        let Some(placed) = placed.get(&port.port) else {
            continue;
        };
        let places = [(service.clone(), port.port)];
        let rules = rules(inputs, &places, &mut room);
        let (rules, deny) = policy::or_closing(rules, port.port, &object, problems);
        policy.rules.extend(deny);
        ports.push(InboundPort {
            proxy_protocol: port.proxy_protocol,
            egress: egress::is_gateway(inputs, service, port.port),
            connection_limit: connection_limit(inputs, &places),
            rules,
            ..InboundPort::new(port.port, port.protocol(), placed.target)
        });
    }
    Inbound {
        service: service.to_string(),
        ports,
        policy,
        locality: spec.locality.clone().unwrap_or_default(),
        workload: Some(Box::new(workloads::of_host(workload, spec))),
    }
}

/// Whether one of the references means this port.
pub(super) fn applies_to<'a>(
    inputs: &Inputs,
    refs: impl IntoIterator<Item = &'a TargetRef>,
    service: &ObjectName,
    port: u16,
) -> bool {
    let service = service.as_str();
    // The ports of the service are read once for all references, and only if one has a name.
    let names: LazyCell<BTreeSet<&str>, _> = LazyCell::new(|| {
        let same = inputs.ports_of(service).filter(|p| p.port == port);
        same.filter_map(|p| p.name.as_deref()).collect()
    });
    let covers = |r: &TargetRef| match r.section_name.as_deref() {
        None => r.covers(None, port),
        Some(name) => r.covers(Some(name), port) && names.contains(name),
    };
    let mut refs = refs.into_iter();
    refs.any(|r| r.is("Service", service) && covers(r))
}

/// The ports among these that the references mean.
fn meant(inputs: &Inputs, refs: &[TargetRef], places: &[Place]) -> Vec<u16> {
    let places = places.iter();
    let meant = places.filter(|(service, port)| applies_to(inputs, refs, service, *port));
    meant.map(|(_, port)| *port).collect()
}

/// The limit of new connections: all that are meant hold together.
pub(super) fn connection_limit(inputs: &Inputs, places: &[Place]) -> Option<RateLimit> {
    // All of one pod, so of one namespace.
    let (service, _) = places.first()?;
    let limits = inputs.in_namespace_of(&inputs.rate_limits, service);
    let limits = limits.filter_map(|(name, spec)| {
        let limit = spec.connections.as_ref()?;
        let is_meant = !meant(inputs, &spec.target_refs, places).is_empty();
        is_meant.then(|| limit.limit(format!("RateLimit/{name}")))
    });
    together::one_bucket(limits.collect())
}

/// Computes the rules for the requests to a port.
///
/// # Errors
/// As of [`rules_where`].
pub(super) fn rules(
    inputs: &Inputs,
    places: &[Place],
    room: &mut Room,
) -> Result<Vec<InboundRule>, String> {
    // All of one pod, so of one namespace.
    let Some((service, _)) = places.first() else {
        return Ok(Vec::new());
    };
    rules_where(inputs, service, &|refs| meant(inputs, refs, places), room)
}

/// Computes the rules of a port of `name` from all objects that are about it. `meant` returns the numbers
/// by which an object means the port; none: it does not. The sidecar applies only the first rule that matches, so
/// each rule has everything that holds for its requests: limits, then authentication, then plugins.
///
/// # Errors
/// Objects demand what cannot hold together, or there is no room for it.
pub(super) fn rules_where(
    inputs: &Inputs,
    name: &ObjectName,
    meant: &dyn Fn(&[TargetRef]) -> Vec<u16>,
    room: &mut Room,
) -> Result<Vec<InboundRule>, String> {
    let refs = room.refs(inputs, 1);
    let (auth_names, mut auth) = authentication(&refs, inputs, name, meant);
    let (plugin_names, plugins) = self::plugins(&refs, inputs, name, meant);
    if refs.left().is_none() {
        room.refuse();
        let names = auth_names.iter().chain(&plugin_names);
        return Err(too_long(names, room));
    }
    together::tokens(&mut auth)?;
    let mut all = vec![Demand::default()];
    for (name, spec) in inputs.in_namespace_of(&inputs.rate_limits, name) {
        let ports = meant(&spec.target_refs);
        if !ports.is_empty() {
            all = together::both(&all, &limits(&format!("RateLimit/{name}"), spec, &ports))?;
        }
    }
    let each = room::bytes(&auth) + room::bytes(&plugins);
    let own = |demand: &Demand| room::bytes(&demand.matches) + room::bytes(&demand.filters);
    let own: usize = all.iter().map(own).sum();
    if !room.take(each.saturating_mul(all.len()).saturating_add(own)) {
        let names = all.iter().flat_map(|demand| &demand.objects);
        let names = names.chain(&auth_names).chain(&plugin_names);
        return Err(too_long(names, room));
    }
    let rules = all.into_iter().map(|demand| {
        let mut names = demand.objects;
        let mut filters = demand.filters;
        filters.extend(auth.iter().chain(&plugins).cloned());
        if names.is_empty() {
            names.clone_from(&auth_names);
        }
        if names.is_empty() {
            names.clone_from(&plugin_names);
        }
        InboundRule {
            name: together::named(&names, ", "),
            matches: demand.matches,
            filters,
        }
    });
    // Only the last one can be about nothing.
    Ok(rules.filter(|rule| !rule.filters.is_empty()).collect())
}

/// Why there is no room for the rules that these objects make.
fn too_long<'a>(objects: impl Iterator<Item = &'a String>, room: &Room) -> String {
    format!(
        "{} make rules of more than {} with the policies and those of the ports before it, each with all keys of tokens \
         and sources of Plugins: make fewer rules or shorter sources",
        together::named(objects, " and "),
        room.most_in_words()
    )
}

/// Lists the demands of a RateLimit in order; the last one is for all other requests.
fn limits(object: &str, spec: &RateLimitSpec, ports: &[u16]) -> Vec<Demand> {
    let is_here = |to: &[u16]| to.is_empty() || to.iter().any(|port| ports.contains(port));
    let rules = spec.rules.iter().enumerate();
    let rules = rules.filter(|(_, rule)| is_here(&rule.to.ports));
    let matches = |rule: &RateLimitRule| match rule.ignore_case {
        Some(true) => rule.to.matches_in_any_case(),
        _ => rule.to.matches(),
    };
    let mut all: Vec<Demand> = rules
        .map(|(i, rule)| Demand {
            objects: vec![object.to_owned()],
            // If a condition is not understood, the limit is for all requests: too much is better than none.
            matches: matches(rule).unwrap_or_default(),
            filters: vec![Filter::RateLimit(
                rule.requests.limit(format!("{object} rules[{i}]")),
            )],
        })
        .collect();
    all.push(match &spec.requests {
        None => Demand::default(),
        Some(requests) => Demand {
            objects: vec![object.to_owned()],
            matches: Vec::new(),
            filters: vec![Filter::RateLimit(requests.limit(object.to_owned()))],
        },
    });
    all
}

/// Every Plugin that is meant, by name, with their names. Where there is no room, no more of them is copied than fits.
fn plugins(
    refs: &Refs<'_>,
    inputs: &Inputs,
    of: &ObjectName,
    meant: &dyn Fn(&[TargetRef]) -> Vec<u16>,
) -> (Vec<String>, Vec<Filter>) {
    let all = inputs.in_namespace_of(&inputs.plugins, of);
    let meant = all.filter(|(_, spec)| !meant(&spec.target_refs).is_empty());
    let named = meant.map(|(name, spec)| {
        let fits = refs.fits(&(&spec.source, &spec.config, &spec.services));
        let plugin = || spec.filter(name.to_string(), |r, key| refs.text(r, key));
        (format!("Plugin/{name}"), fits.then(plugin))
    });
    let (names, plugins): (Vec<String>, Vec<Option<Plugin>>) = named.unzip();
    let filters = plugins.into_iter().flatten().map(Filter::Plugin);
    (names, filters.collect())
}

/// Every Authentication that is meant, once, with their names. Where there is no room, no more of them is copied than fits.
fn authentication(
    refs: &Refs<'_>,
    inputs: &Inputs,
    of: &ObjectName,
    meant: &dyn Fn(&[TargetRef]) -> Vec<u16>,
) -> (Vec<String>, Vec<Filter>) {
    let (mut names, mut filters) = (Vec::new(), Vec::new());
    for (name, spec) in inputs.in_namespace_of(&inputs.authentication, of) {
        if meant(&spec.target_refs).is_empty() {
            continue;
        }
        let object = format!("Authentication/{name}");
        // Keys and lists of names stand in these themselves, or are counted where a reference is followed.
        if let Some(jwt) = spec.jwt.as_ref().filter(|jwt| refs.fits(jwt)) {
            filters.extend(jwt.filter(object.clone(), refs));
        }
        if let Some(auth) = spec.external_auth.as_ref().filter(|auth| refs.fits(auth)) {
            filters.push(Filter::ExternalAuth(auth.filter(object.clone())));
        }
        names.push(object);
    }
    (names, filters)
}
