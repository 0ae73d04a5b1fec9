//! Where a call goes.

use super::verdict::Way;
use super::{Call, conditions, entrance};
use crate::index::{Index, gateways, splits};
use tulle_api::v1;
use tulle_model::identity::SpiffeId;
use tulle_model::pattern;
use tulle_model::resource::{
    Gateway, GatewayListener, PathMatch, PolicyRule, Route, RouteMatch, RouteRule, Service, Target,
};

impl Index {
    /// Follows routes and splits.
    pub(super) fn way(
        &self,
        from: &str,
        service: &Service,
        call: &Call<'_>,
        answer: &mut v1::Explanation,
    ) -> Way {
        let from_gateway =
            !self.inputs.workloads.contains_key(from) && !self.inputs.has_service(from);
        let gateway = self.inputs.object_name(from).filter(|_| from_gateway);
        let gateway = gateway.and_then(|name| gateways::gateway(&self.inputs, &name));
        let account = call.source.as_ref().and_then(SpiffeId::service_account);
        let namespace = account.map(|(namespace, _)| namespace);
        let own = service.routes_for(namespace);
        let (routes, parent) = match &gateway {
            Some(gateway) => (&*gateway.routes, format!("Gateway/{from}")),
            None => (&*own, format!("service {}", service.name)),
        };
        let here = |r: &&Route| gateway.is_some() || r.port == 0 || r.port == call.port;
        let routes: Vec<&Route> = routes.iter().filter(here).collect();
        if let Some(gateway) = gateway.as_ref().filter(|_| call.opaque)
            && let Some(by) = entrance::connections(gateway, &service.name, call, answer)
        {
            return closed(by, call, answer);
        }
        if call.opaque || (routes.is_empty() && gateway.is_none()) {
            return without_route(service, call, answer);
        }
        let conflicts = &mut answer.conflicts;
        let found = match &gateway {
            Some(gateway) => best_at(gateway, &service.name, call, conflicts),
            None => best(&routes, call, conflicts).map(|found| (found, None)),
        };
        let Some(((route, rule, index), closed_by)) = found else {
            if gateway.is_none() && !service.split.is_empty() {
                return without_route(service, call, answer);
            }
            if let Some(by) = gateway.as_ref().and_then(entrance::closed) {
                return closed(by, call, answer);
            }
            answer.reason = format!(
                "no route of {parent} matches {} {}: answered with 404",
                call.method, call.path
            );
            return Way::default();
        };
        let object = object(&route.name);
        answer.route.clone_from(&object);
        answer.rule = match rule.name.is_empty() {
            true => format!("rules[{index}]"),
            false => format!("rules[{index}] ({})", rule.name),
        };
        super::limits::of_rule(rule, answer);
        if let Some(gateway) = &gateway {
            entrance::requests(gateway, route, rule, call, answer);
        }
        if let Some(by) = closed_by {
            return closed(by, call, answer);
        }
        let weighted = rule.backends.iter().filter(|b| b.weight > 0);
        let backends: Vec<_> = weighted.map(|b| (b.service.clone(), b.port)).collect();
        let shares = rule.backends.iter();
        share(
            shares.map(|b| (b.service.as_str(), b.port, b.weight)),
            answer,
        );
        if backends.is_empty() {
            answer.reason = match super::limits::answers(rule) {
                Some(what) => format!("{object} answers by itself: {what}"),
                None if rule.backends.is_empty() => {
                    format!("{object} has no backend for this request: answered with 500")
                }
                None => format!("no backend of {object} has a weight: answered with 500"),
            };
        } else if gateway.is_some() && !backends.iter().any(|(name, _)| *name == service.name) {
            let names: Vec<&str> = backends.iter().map(|(name, _)| name.as_str()).collect();
            answer.reason = format!(
                "{object} of {parent} sends {} {} to {}, not to {}",
                call.method,
                call.path,
                names.join(", "),
                service.name
            );
            return Way::default();
        }
        let attached = gateway.is_none().then_some(service.name.as_str());
        Way {
            destinations: self.split_further(backends, attached),
            by: object,
            by_rule: true,
        }
    }
}

impl Index {
    /// Replaces backends that a TrafficSplit splits. A route's own service (`attached`) is not split
    /// again.
    fn split_further(
        &self,
        backends: Vec<(String, u16)>,
        attached: Option<&str>,
    ) -> Vec<(String, u16)> {
        let mut all = Vec::new();
        for (name, port) in backends {
            let split = Some(&name).filter(|name| attached != Some(name.as_str()));
            let split = split.and_then(|name| self.inputs.object_name(name));
            let targets = split.map_or_else(Vec::new, |name| splits::split(&self.inputs, &name));
            if targets.is_empty() {
                all.push((name, port));
            }
            for target in targets.into_iter().filter(|t| t.weight > 0) {
                let port = if target.port == 0 { port } else { target.port };
                all.push((target.service, port));
            }
        }
        all
    }
}

/// Says that each listener is closed by which the call may come in.
fn closed(by: &PolicyRule, call: &Call<'_>, answer: &mut v1::Explanation) -> Way {
    let seen = match call.opaque {
        true => "the connection is reset",
        false => "answered with 403",
    };
    answer.policy.clone_from(&by.name);
    answer.reason = format!("{} denies it: {seen}", by.name);
    Way::default()
}

/// The service itself, or those a TrafficSplit or TCPRoute names in its place.
fn without_route(service: &Service, call: &Call<'_>, answer: &mut v1::Explanation) -> Way {
    let mut tcp = service.tcp_routes.iter();
    let tcp = tcp.find(|r| r.port == 0 || r.port == call.port);
    let (by, targets): (String, &[Target]) = match tcp.filter(|_| call.opaque) {
        Some(route) => {
            answer.route.clone_from(&route.name);
            (route.name.clone(), &route.targets)
        }
        None => (
            format!("the split of service {}", service.name),
            &service.split,
        ),
    };
    if targets.is_empty() {
        return Way::straight(&service.name, call.port);
    }
    let port = |t: &Target| if t.port == 0 { call.port } else { t.port };
    let shares = targets.iter();
    share(
        shares.map(|t| (t.service.as_str(), port(t), t.weight)),
        answer,
    );
    let weighted = targets.iter().filter(|t| t.weight > 0);
    Way {
        destinations: weighted.map(|t| (t.service.clone(), port(t))).collect(),
        by,
        by_rule: false,
    }
}

/// Says who gets how much, if there is more than one.
fn share<'a>(backends: impl Iterator<Item = (&'a str, u16, u32)>, answer: &mut v1::Explanation) {
    let backends: Vec<_> = backends.collect();
    let all: u64 = backends
        .iter()
        .map(|(_, _, weight)| u64::from(*weight))
        .sum();
    if backends.len() < 2 || all == 0 {
        return;
    }
    answer.split = backends
        .iter()
        .map(|(service, port, weight)| {
            // In tenths of a percent, so that 1 of 1000 is not nothing.
            let tenths = u64::from(*weight) * 1000 / all;
            format!("{service}:{port} {}.{}%", tenths / 10, tenths % 10)
        })
        .collect();
}

/// A route's object: HTTPRoutes are known by their bare names.
fn object(route: &str) -> String {
    match route.contains('/') {
        true => route.to_owned(),
        false => format!("HTTPRoute/{route}"),
    }
}

/// Whether an expression matches the whole text. One that cannot be compiled matches nothing.
pub(super) fn whole(pattern: &str, text: &str) -> bool {
    pattern::compile(pattern).is_ok_and(|regex| regex.is_match(text.as_bytes()))
}

/// A rule that takes a request, with its route and its place there.
type Taken<'a> = (&'a Route, &'a RouteRule, usize);

/// Returns the rule that takes a request at a gateway: of those at listeners that let it in, if there is one. Else the second
/// value is what closes the listeners, and the rule is one that leads to the service, if there is one.
fn best_at<'a>(
    gateway: &'a Gateway,
    service: &str,
    call: &Call<'_>,
    conflicts: &mut Vec<String>,
) -> Option<(Taken<'a>, Option<&'a PolicyRule>)> {
    let mut routes: Vec<&Route> = gateway.routes.iter().collect();
    let mut listeners: Vec<&GatewayListener> = entrance::listeners(gateway).collect();
    let mut closed: Option<(Taken<'a>, &'a PolicyRule, Vec<String>)> = None;
    loop {
        let mut told = Vec::new();
        let Some(found) = best(&routes, call, &mut told) else {
            break;
        };
        // Its object takes the request at each of its own listeners, so no other route lets it in there.
        let (own, others): (Vec<&GatewayListener>, Vec<&GatewayListener>) = listeners
            .into_iter()
            .partition(|l| entrance::is_attached(gateway, found.0, l));
        let leads_there = leads(found.1, service);
        // A listener before these, which is closed, leads to the service.
        let missed = closed.as_ref().is_some_and(|c| leads(c.0.1, service));
        match entrance::closing(own, found.1.policy.as_deref()) {
            None if leads_there || !missed => {
                conflicts.extend(told);
                return Some((found, None));
            }
            Some(by) if closed.is_none() || (leads_there && !missed) => {
                closed = Some((found, by, told));
            }
            _ => {}
        }
        listeners = others;
        routes.retain(|r| {
            listeners
                .iter()
                .any(|l| entrance::is_at(l, r.port, &r.listener))
        });
    }
    let (found, by, told) = closed?;
    conflicts.extend(told);
    Some((found, Some(by)))
}

fn leads(rule: &RouteRule, service: &str) -> bool {
    let mut backends = rule.backends.iter();
    backends.any(|b| b.weight > 0 && b.service == service)
}

/// Returns the rule with the most specific match, as Gateway API orders them: exact path, longest
/// prefix, method, most headers; then the first. Routes that have the same match go to `conflicts`.
fn best<'a>(
    routes: &[&'a Route],
    call: &Call<'_>,
    conflicts: &mut Vec<String>,
) -> Option<Taken<'a>> {
    let everything = RouteMatch::default();
    let mut best: Option<(Rank, &Route, &RouteRule, usize)> = None;
    let mut equal: Vec<(&Route, usize)> = Vec::new();
    for route in routes {
        for (i, rule) in route.rules.iter().enumerate() {
            let all = std::slice::from_ref(&everything);
            let matches = if rule.matches.is_empty() {
                all
            } else {
                &rule.matches
            };
            let Some(rank) = matches.iter().filter_map(|m| rank(m, call)).max() else {
                continue;
            };
            match &best {
                Some((known, ..)) if rank < *known => {}
                Some((known, ..)) if rank == *known => equal.push((route, i)),
                _ => {
                    best = Some((rank, route, rule, i));
                    equal.clear();
                }
            }
        }
    }
    let (_, route, rule, index) = best?;
    // A match for another host, listener or port is about other requests.
    let same_place = |other: &Route| {
        other.hostnames == route.hostnames
            && (other.listener.as_str(), other.port) == (route.listener.as_str(), route.port)
    };
    for (other, i) in equal {
        let own = other.name.starts_with("service/"); // what a split leaves to its service
        if other.name != route.name && !own && same_place(other) {
            conflicts.push(format!(
                "{} rules[{i}] matches as well and comes later, so it does not act",
                object(&other.name)
            ));
        }
    }
    Some((route, rule, index))
}

/// How specific a match is; a greater one wins.
type Rank = (u8, usize, bool);

fn rank(m: &RouteMatch, call: &Call<'_>) -> Option<Rank> {
    if !m.headers.is_empty()
        || !m.query.is_empty()
        || conditions::hold(&m.when, call, false).is_err()
        || !(m.method.is_empty() || m.method == call.method)
    {
        return None;
    }
    let (kind, length) = path_rank(&m.path, call.path)?;
    Some((kind, length, !m.method.is_empty()))
}

/// How specific a match is for a path; `None`: it does not match.
pub(super) fn path_rank(m: &PathMatch, path: &str) -> Option<(u8, usize)> {
    match m {
        PathMatch::Exact(exact) => (exact == path).then_some((2, exact.len())),
        PathMatch::Regex(pattern) => whole(pattern, path).then_some((1, 0)),
        PathMatch::Prefix(prefix) => is_prefix(prefix, path).then_some((0, prefix.len())),
    }
}

/// `/a` and `/a/` are prefixes of `/a` and `/a/b`, not of `/ab`.
fn is_prefix(prefix: &str, path: &str) -> bool {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
