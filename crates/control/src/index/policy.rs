//! Turns TrafficTargets, AuthorizationPolicies, IngressBackends and AccessControls into rules about
//! who may call.
//!
//! Everything here fails closed: a rule that names a group or match that does not exist allows
//! nothing. A TrafficTarget of which no rule is left gives no rule at all, because a rule without
//! matches would allow everything.

use super::groups::Groups;
use super::room::{self, NoRoom, Room};
use super::{Inputs, ObjectProblem};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use tulle_model::identity::{InvalidIdentity, SpiffeId};
use tulle_model::manifest::{
    AccessSpec, AuthorizationPolicySpec, AuthorizationRule, TargetRef, TrafficTargetSpec,
};
use tulle_model::namespaced::ObjectName;
use tulle_model::network::Network;
use tulle_model::resource::{Action, InboundRule, Policy, PolicyRule};

/// Computes who may call those workloads of a service that have an identity, by the name that objects have for it.
pub(super) fn policy(inputs: &Inputs, service: &ObjectName, identity: &ObjectName) -> Policy {
    let mut rules: Vec<PolicyRule> = of_identity(inputs, identity).collect();
    rules.extend(of_service(inputs, service));
    Policy {
        permissive: is_permissive(inputs),
        rules,
    }
}

pub(super) fn is_permissive(inputs: &Inputs) -> bool {
    inputs.mesh.as_ref().is_some_and(|m| m.permissive_mode)
}

/// Rules about an identity, whatever services its workloads belong to. Those of an object are made when they are asked for.
pub(super) fn of_identity<'a>(
    inputs: &'a Inputs,
    identity: &'a ObjectName,
) -> impl Iterator<Item = PolicyRule> + use<'a> {
    let targets = inputs.in_namespace_of(&inputs.targets, identity);
    let targets = targets.filter(move |(_, t)| t.destination.name == identity.as_str());
    targets.flat_map(move |(name, target)| rules(inputs, name.as_str(), target, &mut |_| {}))
}

/// Rules about a service.
pub(super) fn of_service(inputs: &Inputs, service: &ObjectName) -> Vec<PolicyRule> {
    let mut rules = Vec::new();
    for (about, _, of_object) in of_services(inputs, std::slice::from_ref(service)) {
        let meant: Vec<u16> = about.into_values().flatten().collect();
        for mut rule in of_object {
            if let Some(ports) = both(&meant, &rule.ports) {
                rule.ports = ports;
                rules.push(rule);
            }
        }
    }
    rules
}

/// The services that an object is about, each with the ports of it that are meant; none: all of them.
pub(super) type About = BTreeMap<ObjectName, BTreeSet<u16>>;

/// The rules of an object, each of which is made when it is asked for.
pub(super) type Made<'a> = Box<dyn Iterator<Item = PolicyRule> + 'a>;

/// Returns the rules of each object that is about some of these services, which are of one namespace, and what all rules
/// of the object do. A rule names ports (none: all) of each of the services. An object may list as many services as it is
/// long, and its rules may be as long: so each rule is made once for all of them.
pub(super) fn of_services<'a>(
    inputs: &'a Inputs,
    services: &'a [ObjectName],
) -> impl Iterator<Item = (About, Action, Made<'a>)> + use<'a> {
    let first = services.first().into_iter();
    let policies = first.clone();
    let policies =
        policies.flat_map(move |first| inputs.in_namespace_of(&inputs.authorization, first));
    let policies = policies.filter_map(move |(name, spec)| {
        let about = about(services, |service| authorized(inputs, spec, service));
        if about.is_empty() {
            return None;
        }
        let rules: Made<'a> = Box::new(made(inputs, name, spec, false));
        Some((about, action(spec), rules))
    });
    let kinds = [
        ("IngressBackend", &inputs.ingress_backends),
        ("AccessControl", &inputs.access_controls),
    ];
    let others = kinds.into_iter().flat_map(move |(kind, objects)| {
        let objects = first
            .clone()
            .flat_map(move |first| inputs.in_namespace_of(objects, first));
        objects.filter_map(move |(name, spec)| {
            let about = about(services, |service| accessible(spec, service));
            if about.is_empty() {
                return None;
            }
            let rule = access(inputs, format!("{kind}/{name}"), spec)?;
            let rules: Made<'a> = Box::new(std::iter::once(rule));
            Some((about, Action::Allow, rules))
        })
    });
    policies.chain(others)
}

/// The services of which some ports are meant. `meant` returns these; none: all; `None`: the service is not meant.
fn about(services: &[ObjectName], meant: impl Fn(&str) -> Option<BTreeSet<u16>>) -> About {
    let services = services.iter();
    let services = services.filter_map(|service| Some((service.clone(), meant(service.as_str())?)));
    services.collect()
}

/// Returns the rules of a port. If its objects contradict each other, the second value is a rule that
/// closes the port. That rule's name is the reason, so refusals, the log and `tulle why` show it.
pub(super) fn or_closing(
    rules: Result<Vec<InboundRule>, String>,
    port: u16,
    object: &str,
    problems: &mut Vec<ObjectProblem>,
) -> (Vec<InboundRule>, Option<PolicyRule>) {
    let why = match rules {
        Ok(rules) => return (rules, None),
        Err(why) => why,
    };
    problems.push(ObjectProblem {
        object: object.to_owned(),
        text: format!("port {port} is closed: {why}"),
    });
    let name = format!("{object}: port {port} is closed ({why})");
    (Vec::new(), Some(closing(name, vec![port])))
}

/// Returns the rules of a pod. If there was no room for them, the only one closes all ports; its name is the reason.
pub(super) fn or_closing_all(
    rules: Result<Vec<PolicyRule>, NoRoom>,
    room: &Room,
    object: &str,
    problems: &mut Vec<ObjectProblem>,
) -> Vec<PolicyRule> {
    rules.unwrap_or_else(|NoRoom| {
        let why = format!(
            "policies about one make rules of more than {}: make fewer or shorter ones",
            room.most_in_words()
        );
        problems.push(ObjectProblem {
            object: object.to_owned(),
            text: format!("all ports of its pods are closed: {why}"),
        });
        let name = format!("{object}: all ports are closed ({why})");
        vec![closing(name, Vec::new())]
    })
}

/// The rule that closes these ports; none: all.
fn closing(name: String, ports: Vec<u16>) -> PolicyRule {
    PolicyRule {
        name,
        action: Action::Deny,
        any_identity: true,
        networks: everywhere(),
        ports,
        ..Default::default()
    }
}

/// Whether a rule closes ports of a pod, and not this one: it says nothing of calls to this one.
pub(super) fn closes_others(rule: &PolicyRule, port: u16) -> bool {
    // Other rules have the name of an object that somebody wrote.
    rule.name.starts_with("service/") && !rule.ports.is_empty() && !rule.ports.contains(&port)
}

/// The ports of a service that an AuthorizationPolicy is about; none: all. `None`: it is not about the service.
fn authorized(
    inputs: &Inputs,
    spec: &AuthorizationPolicySpec,
    service: &str,
) -> Option<BTreeSet<u16>> {
    let refs = spec.target_refs.iter();
    let refs: Vec<_> = refs.filter(|r| r.is("Service", service)).collect();
    let everything = inputs.is_about_everything(spec);
    if refs.is_empty() && !everything {
        return None;
    }
    // A reference that names no part means the whole object.
    if everything || refs.iter().any(|r| r.is_whole()) {
        return Some(BTreeSet::new());
    }
    // The parts are a set: a Service may have as many ports as a policy has references.
    let parts = refs.iter().map(|r| (r.section_name.as_deref(), r.port));
    let parts: HashSet<(Option<&str>, Option<u16>)> = parts.collect();
    let covers = |name: Option<&str>, port: u16| {
        let by = [(None, Some(port)), (name, None), (name, Some(port))];
        by.iter().any(|part| parts.contains(part))
    };
    let ports = inputs.ports_of(service);
    let ports = ports.filter(|p| covers(p.name.as_deref(), p.port));
    let ports: BTreeSet<u16> = ports.map(|p| p.port).collect();
    (!ports.is_empty()).then_some(ports)
}

/// Computes who may enter at a gateway from the AuthorizationPolicies about `object` (`<kind>/<name>`), which is the
/// gateway or one of its routes and has this name, or about one of its parts. Returns `None` if there are no policies. If none of them allows, everyone who is
/// not denied may enter.
///
/// # Errors
/// Its rules have more bytes than are left. None is made after the first that does not fit.
pub(super) fn at_gateway(
    inputs: &Inputs,
    object: &str,
    name: &ObjectName,
    mut left: usize,
    meant: impl Fn(&TargetRef) -> bool,
) -> Result<Option<Box<Policy>>, NoRoom> {
    let (mut rules, mut about, mut closed) = (Vec::new(), false, false);
    for (policy, spec) in inputs.in_namespace_of(&inputs.authorization, name) {
        if inputs.is_about_everything(spec) || spec.target_refs.iter().any(&meant) {
            about = true;
            // This holds even if none of its rules is understood.
            closed |= action(spec) == Action::Allow;
            rules.extend(room::fitting(made(inputs, policy, spec, true), &mut left)?);
        }
    }
    if about && !closed {
        rules.push(PolicyRule {
            name: object.to_owned(),
            networks: everywhere(),
            ..Default::default()
        });
    }
    let policy = Policy {
        permissive: false,
        rules,
    };
    Ok(about.then(|| Box::new(policy)))
}

pub(super) fn action(spec: &AuthorizationPolicySpec) -> Action {
    let deny = spec.action.as_deref() == Some("Deny");
    match (deny, spec.mode.as_deref() == Some("Audit")) {
        (false, false) => Action::Allow,
        (true, false) => Action::Deny,
        (false, true) => Action::AuditAllow,
        (true, true) => Action::AuditDeny,
    }
}

/// The rules of an AuthorizationPolicy, with the ports that they name. `outside`: callers have no identity of the mesh.
fn made<'a>(
    inputs: &'a Inputs,
    name: &'a ObjectName,
    spec: &'a AuthorizationPolicySpec,
    outside: bool,
) -> impl Iterator<Item = PolicyRule> + use<'a> {
    let action = action(spec);
    let deny = action.denies();
    let rules = spec.rules.iter().enumerate();
    rules.filter_map(move |(i, rule)| {
        let mut made = authorization_rule(inputs, rule, deny, outside)?;
        made.name = match spec.rules.len() {
            1 => format!("AuthorizationPolicy/{name}"),
            _ => format!("AuthorizationPolicy/{name} rules[{i}]"),
        };
        made.action = action;
        made.ports.extend(rule.to.iter().flat_map(|to| &to.ports));
        Some(made)
    })
}

/// `None`: an Allow rule that is not understood, which allows nothing. A Deny rule that is not
/// understood denies all that the rest of it means.
fn authorization_rule(
    inputs: &Inputs,
    rule: &AuthorizationRule,
    deny: bool,
    outside: bool,
) -> Option<PolicyRule> {
    let mut made = PolicyRule::default();
    match &rule.from {
        None => {
            made.any_identity = true;
            if deny || outside {
                // Clients without an identity are meant, too.
                made.networks = everywhere();
            }
        }
        Some(from) => {
            let names = from
                .service_accounts
                .iter()
                .map(|n| inputs.identity_named(n));
            let ids = from.principals.iter().map(|id| SpiffeId::parse(id));
            made.sources = names.chain(ids).flatten().collect();
            made.networks.clone_from(&from.networks);
            if made.sources.is_empty() && made.networks.is_empty() {
                return None;
            }
        }
    }
    if let Some(to) = &rule.to {
        let matches = match deny && rule.ignore_case == Some(true) {
            true => to.matches_in_any_case(),
            false => to.matches(),
        };
        made.matches = match matches {
            Some(matches) => matches,
            None if deny => Vec::new(),
            None => return None,
        };
    }
    Some(made)
}

fn everywhere() -> Vec<Network> {
    ["0.0.0.0/0", "::/0"]
        .iter()
        .filter_map(|n| n.parse().ok())
        .collect()
}

/// The ports of a service that an IngressBackend or AccessControl is about; none: all. `None`: it is not about the
/// service.
fn accessible(spec: &AccessSpec, service: &str) -> Option<BTreeSet<u16>> {
    let mut backends = spec.backends.iter().filter(|b| b.name == service);
    let mut ports = BTreeSet::from([backends.next()?.port]);
    ports.extend(backends.map(|b| b.port));
    // One that names no port means all of them; else each of these is some port.
    let ports: Option<BTreeSet<u16>> = ports.into_iter().collect();
    Some(ports.unwrap_or_default())
}

/// The rule of an IngressBackend or AccessControl.
fn access(inputs: &Inputs, name: String, spec: &AccessSpec) -> Option<PolicyRule> {
    let mut rule = PolicyRule {
        name,
        ..Default::default()
    };
    for source in &spec.sources {
        match source.kind.as_str() {
            "Service" => rule.sources.extend(identities(inputs, &source.name)),
            "AuthenticatedPrincipal" => rule.sources.extend(SpiffeId::parse(&source.name)),
            "IPRange" => rule.networks.extend(source.name.parse::<Network>()),
            _ => {}
        }
    }
    (!rule.sources.is_empty() || !rule.networks.is_empty()).then_some(rule)
}

/// Returns the identities of a service's workloads. A name without workloads is a gateway's.
fn identities(inputs: &Inputs, service: &str) -> Vec<SpiffeId> {
    let workloads = inputs.workloads_of(service);
    let names = workloads.map(|(name, spec)| super::inputs::identity_name_of(name, spec));
    let mut names: Vec<ObjectName> = names.flat_map(|name| inputs.object_name(name)).collect();
    let cluster = inputs.cluster.iter();
    names.extend(
        cluster
            .flat_map(|c| c.accounts(service))
            .map(ObjectName::from),
    );
    if names.is_empty() {
        names.extend(inputs.object_name(service));
    }
    names.dedup();
    let ids = names.iter().flat_map(|n| inputs.identity(n));
    ids.collect()
}

/// The rules of a TrafficTarget: one for HTTP and one for the ports of its TCPRoutes, as far as it
/// allows anything. Its problems go to `report`.
pub(super) fn rules(
    inputs: &Inputs,
    name: &str,
    target: &TrafficTargetSpec,
    report: &mut dyn FnMut(String),
) -> Vec<PolicyRule> {
    let sources: Result<Vec<_>, InvalidIdentity> = target
        .sources
        .iter()
        .map(|source| inputs.identity_named(&source.name))
        .collect();
    let sources = match sources {
        Ok(sources) if !sources.is_empty() => sources,
        Ok(_) => {
            report("it lists no source".into());
            return Vec::new();
        }
        Err(e) => {
            report(e.to_string());
            return Vec::new();
        }
    };
    let mut groups = Groups::default();
    // `Some`: TCPRoutes are named, and these are their ports (empty: all).
    let mut tcp: Option<BTreeSet<u16>> = None;
    for rule in &target.rules {
        match rule.kind.as_str() {
            "HTTPRouteGroup" => {}
            "TCPRoute" => {
                match inputs.smi_tcp_routes.get(rule.name.as_str()) {
                    Some(route) => {
                        let ports = route.matches.iter().flat_map(|m| &m.ports).copied();
                        let ports: BTreeSet<u16> = ports.collect();
                        match &mut tcp {
                            None => tcp = Some(ports),
                            Some(known) if known.is_empty() || ports.is_empty() => known.clear(),
                            Some(known) => known.extend(ports),
                        }
                    }
                    None => report(format!("TCPRoute/{} does not exist", rule.name)),
                }
                continue;
            }
            other => {
                report(format!("rules of kind {other} are not known"));
                continue;
            }
        }
        let Some(group) = inputs.groups.get(rule.name.as_str()) else {
            report(format!("HTTPRouteGroup/{} does not exist", rule.name));
            continue;
        };
        for missing in groups.take(&rule.name, group, &rule.matches) {
            report(format!(
                "HTTPRouteGroup/{} has no match named {missing}",
                rule.name
            ));
        }
    }
    let matches = match groups.matches() {
        Ok(matches) => matches,
        Err(why) => {
            report(format!("{why}, so it allows nothing"));
            return Vec::new();
        }
    };
    if matches.is_empty() && tcp.is_none() && !target.rules.is_empty() {
        report("none of its rules allows anything".into());
        return Vec::new();
    }
    let object = PolicyRule {
        name: format!("TrafficTarget/{name}"),
        sources,
        ports: target.destination.port.into_iter().collect(),
        ..Default::default()
    };
    let mut rules = Vec::new();
    if let Some(ports) = tcp {
        let ports: Vec<u16> = ports.into_iter().collect();
        match both(&object.ports, &ports) {
            Some(ports) => rules.push(PolicyRule {
                ports,
                ..object.clone()
            }),
            None => report("the ports of its TCPRoutes are not that of its destination".into()),
        }
    }
    if !matches.is_empty() || target.rules.is_empty() {
        rules.push(PolicyRule { matches, ..object });
    }
    rules
}

/// Ports in both lists, of which an empty one has all; `None`: none. The first list has each port once, in order.
fn both(one: &[u16], other: &[u16]) -> Option<Vec<u16>> {
    if one.is_empty() || other.is_empty() {
        return Some([one, other].concat());
    }
    // A policy may have as many rules with ports as its Service has ports, so no rule looks at all of those.
    let both = other.iter().filter(|p| one.binary_search(p).is_ok());
    let mut both: Vec<u16> = both.copied().collect();
    both.sort_unstable();
    both.dedup();
    (!both.is_empty()).then_some(both)
}
