//! Objects that want the same thing, of which only one gets it.

use super::{Found, Problem, code};
use crate::manifest::{
    FilterRefs, HttpFilterSpec, Object, ObjectRef, ParentRef, PluginSpec, TargetRef,
};
use crate::resource::{RouteMatch, RouteRule};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

pub(super) fn check(objects: &[&Object], problems: &mut Vec<Problem>) {
    // The order is that of the index: where two are equal, the first by kind and name wins.
    let mut ordered = objects.to_vec();
    ordered.sort_by_key(|o| (matches!(o, Object::GrpcRoute(_)), o.name()));
    routes(&ordered, problems);
    targets(&ordered, problems);
    sockets(&ordered, problems);
}

/// Matches do not depend on what filters refer to.
struct NoRefs;

impl FilterRefs for NoRefs {
    fn http_filter(&self, _: &str) -> Option<&HttpFilterSpec> {
        None
    }
    fn plugin(&self, _: &str) -> Option<&PluginSpec> {
        None
    }
    fn text(&self, _: &ObjectRef, _: &str) -> Option<String> {
        None
    }
    fn fetched_keys(&self, _: &str) -> Option<String> {
        None
    }
}

/// Parent, host and match of a request that a rule takes.
type Taken = (String, String, String);

fn routes(objects: &[&Object], problems: &mut Vec<Problem>) {
    let mut taken: BTreeMap<Taken, (String, usize)> = BTreeMap::new();
    for object in objects {
        let (parents, hosts, rules): (&[ParentRef], &[String], Vec<Option<RouteRule>>) =
            match object {
                Object::HttpRoute(route) => {
                    let rules = route.spec.rules.iter().map(|r| r.rule(&NoRefs));
                    (
                        &route.spec.parent_refs,
                        &route.spec.hostnames,
                        rules.collect(),
                    )
                }
                Object::GrpcRoute(route) => {
                    let rules = route.spec.rules.iter().map(|r| r.rule(&NoRefs));
                    (
                        &route.spec.parent_refs,
                        &route.spec.hostnames,
                        rules.collect(),
                    )
                }
                _ => continue,
            };
        let mut found = Found {
            object: object.id(),
            problems,
        };
        let any_host = [String::new()];
        let hosts = if hosts.is_empty() { &any_host } else { hosts };
        for (i, rule) in rules.iter().enumerate() {
            let Some(rule) = rule else { continue };
            let others = others(&mut taken, &found.object, i, parents, hosts, rule);
            let Some((m, other, first)) = others else {
                continue;
            };
            let field = match rule.matches.is_empty() {
                true => format!("spec.rules[{i}]"),
                false => format!("spec.rules[{i}].matches[{m}]"),
            };
            if other == found.object {
                let message = format!(
                    "rules[{first}] has the same match and comes first; this one never acts"
                );
                found.warn(code::SHADOWED, field, message);
            } else {
                let message = format!(
                    "{other} has the same match for the same host and parent (rules[{first}]); \
                     this one never acts"
                );
                found.warn(code::SAME_MATCH, field, message);
            }
        }
    }
}

/// Claims what a rule takes; which of its matches somebody else has already, and who.
fn others(
    taken: &mut BTreeMap<Taken, (String, usize)>,
    object: &str,
    rule: usize,
    parents: &[ParentRef],
    hosts: &[String],
    made: &RouteRule,
) -> Option<(usize, String, usize)> {
    let everything = [RouteMatch::default()];
    let matches = if made.matches.is_empty() {
        &everything[..]
    } else {
        &made.matches
    };
    let mut other = None;
    for parent in parents {
        let kind = parent.kind.as_deref().unwrap_or("Gateway");
        let (section, port) = (&parent.section_name, parent.port);
        let parent = format!("{kind}/{} {section:?} {port:?}", parent.name);
        for host in hosts {
            for (i, m) in matches.iter().enumerate() {
                let key = (parent.clone(), host.to_ascii_lowercase(), format!("{m:?}"));
                match taken.get(&key) {
                    Some((owner, first)) if (owner.as_str(), *first) != (object, rule) => {
                        other = other.or(Some((i, owner.clone(), *first)));
                    }
                    Some(_) => {}
                    None => drop(taken.insert(key, (object.to_owned(), rule))),
                }
            }
        }
    }
    other
}

/// Reports policies of which only one holds for a service and port. Policies that restrict all hold.
fn targets(objects: &[&Object], problems: &mut Vec<Problem>) {
    let mut taken = BTreeMap::new();
    for object in objects {
        let refs: &[TargetRef] = match object {
            Object::TrafficPolicy(policy) => &policy.spec.target_refs,
            Object::TrafficSplit(split) if split.spec.matches.is_empty() => {
                let mut found = Found {
                    object: object.id(),
                    problems,
                };
                let key = (
                    "split",
                    format!("service `{}`", split.spec.service),
                    None,
                    None,
                );
                claim(&mut taken, key, "spec.service", &mut found);
                continue;
            }
            _ => continue,
        };
        let mut found = Found {
            object: object.id(),
            problems,
        };
        for (i, reference) in refs.iter().enumerate() {
            let what = match reference.kind() {
                "Service" => "service",
                other => other,
            };
            let name = format!("{what} `{}`", reference.name);
            let section = reference.section_name.as_deref();
            let key = ("traffic", name, reference.port, section);
            let field = format!("spec.targetRefs[{i}]");
            claim(&mut taken, key, &field, &mut found);
        }
    }
}

/// Kind of claim, its target, and the target's port or section.
type Place<'a> = (&'a str, String, Option<u16>, Option<&'a str>);

fn claim<'a>(
    taken: &mut BTreeMap<Place<'a>, String>,
    key: Place<'a>,
    field: &str,
    found: &mut Found<'_>,
) {
    match taken.get(&key) {
        Some(other) if *other != found.object => {
            let message = format!(
                "{other} is about {} already and comes first; make them one",
                key.1
            );
            found.warn(code::SAME_TARGET, field, message);
        }
        Some(_) => {}
        None => drop(taken.insert(key, found.object.clone())),
    }
}

/// Gateways that want to listen at one place.
fn sockets(objects: &[&Object], problems: &mut Vec<Problem>) {
    let mut taken: BTreeMap<(IpAddr, u16), &str> = BTreeMap::new();
    for object in objects {
        let Object::Gateway(gateway) = object else {
            continue;
        };
        if gateway.spec.gateway_class_name != "tulle" {
            continue;
        }
        let mut addresses: Vec<IpAddr> = gateway.spec.addresses.iter().map(|a| a.value).collect();
        if addresses.is_empty() {
            addresses.push(Ipv4Addr::LOCALHOST.into());
        }
        let mut found = Found {
            object: object.id(),
            problems,
        };
        for (i, listener) in gateway.spec.listeners.iter().enumerate() {
            for address in &addresses {
                let key = (*address, listener.port);
                let other = *taken.entry(key).or_insert(object.name());
                if other != object.name() {
                    let message = format!(
                        "Gateway/{other} listens at {address} on port {} already; only one of the \
                         two can",
                        listener.port
                    );
                    let field = format!("spec.listeners[{i}].port");
                    found.warn(code::SAME_SOCKET, field, message);
                }
            }
        }
    }
}
