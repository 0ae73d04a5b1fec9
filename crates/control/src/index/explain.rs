//! Why a call is allowed or not, and where it goes, by the rules proxies apply.
//!
//! Regular expressions hold for the whole path without its query. Conditions on headers cannot be
//! judged, because a question has no headers: such a match counts as not met and says so.

use super::inputs::{identity_name_of, service_of};
use super::{Index, gateways, policy, services};
use std::fmt;
use tulle_api::v1;
use tulle_model::identity::SpiffeId;
use tulle_model::pattern;
use tulle_model::resource::{
    Action, PathMatch, PolicyMatch, PolicyRule, Route, RouteMatch, RouteRule,
};

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExplainError {
    /// Nothing of this name can call.
    UnknownSource(String),
    /// Nothing of this name can be called.
    UnknownDestination(String),
    /// The service has no such port.
    UnknownPort {
        /// Service.
        service: String,
        /// Port asked for; 0: none, and the service has none either.
        port: u16,
        /// Ports it has.
        ports: Vec<u16>,
    },
}

impl fmt::Display for ExplainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownSource(name) => write!(
                f,
                "{name:?} is no workload, service, gateway or SPIFFE id of this mesh: see \
                 `tulle get Workload`"
            ),
            Self::UnknownDestination(name) => {
                write!(f, "there is no service {name:?}: see `tulle get Workload`")
            }
            Self::UnknownPort {
                service, port: 0, ..
            } => {
                write!(f, "service {service} has no ports")
            }
            Self::UnknownPort {
                service,
                port,
                ports,
            } => write!(f, "service {service} has no port {port}; it has {ports:?}"),
        }
    }
}

impl std::error::Error for ExplainError {}

/// The request asked about.
struct Call<'a> {
    source: SpiffeId,
    port: u16,
    /// Raw TCP: nothing is known of paths and methods.
    opaque: bool,
    method: &'a str,
    path: &'a str,
}

impl Index {
    /// Says which route a request takes, who decides about it and why.
    ///
    /// # Errors
    /// Source, destination or port do not exist.
    pub fn explain(&self, asked: &v1::ExplainRequest) -> Result<v1::Explanation, ExplainError> {
        let inputs = &self.inputs;
        let source = self
            .source(&asked.from)
            .ok_or_else(|| ExplainError::UnknownSource(asked.from.clone()))?;
        let to = match inputs.workloads.get(&asked.to) {
            Some(spec) if !inputs.has_service(&asked.to) => service_of(&asked.to, spec),
            _ => asked.to.as_str(),
        };
        if !inputs.knows_service(to) {
            return Err(ExplainError::UnknownDestination(to.to_owned()));
        }
        let service = services::service(inputs, to);
        let wanted = u16::try_from(asked.port).unwrap_or(u16::MAX);
        let port = service
            .ports
            .iter()
            .find(|p| wanted == 0 || p.port == wanted)
            .ok_or_else(|| ExplainError::UnknownPort {
                service: to.to_owned(),
                port: wanted,
                ports: service.ports.iter().map(|p| p.port).collect(),
            })?;
        let path = asked.path.split('?').next().unwrap_or_default();
        let call = Call {
            source,
            port: port.port,
            opaque: port.protocol.is_opaque(),
            method: if asked.method.is_empty() {
                "GET"
            } else {
                &asked.method
            },
            path: if path.is_empty() { "/" } else { path },
        };
        let mut answer = v1::Explanation {
            source_identity: call.source.to_string(),
            mtls: self.mtls().to_owned(),
            ..Default::default()
        };
        let destinations = self.destinations(&asked.from, &service, &call, &mut answer);
        self.judge(&destinations, &call, &mut answer);
        Ok(answer)
    }

    fn mtls(&self) -> &'static str {
        let spec = self.inputs.mesh.as_ref();
        match spec.map(|m| m.mtls.mode).unwrap_or_default() {
            tulle_model::manifest::MtlsMode::Strict => "strict",
            tulle_model::manifest::MtlsMode::Permissive => "permissive",
        }
    }

    fn source(&self, name: &str) -> Option<SpiffeId> {
        let inputs = &self.inputs;
        if name.starts_with("spiffe://") {
            return SpiffeId::parse(name).ok();
        }
        if let Some(spec) = inputs.workloads.get(name) {
            return inputs.identity(identity_name_of(name, spec)).ok();
        }
        if let Some((workload, spec)) = inputs.workloads_of(name).next() {
            return inputs.identity(identity_name_of(workload, spec)).ok();
        }
        if inputs.gateways.contains_key(name) {
            return inputs.identity(name).ok();
        }
        None
    }

    /// Follows the routes: the (service, port) pairs that may get the request.
    fn destinations(
        &self,
        from: &str,
        service: &tulle_model::resource::Service,
        call: &Call<'_>,
        answer: &mut v1::Explanation,
    ) -> Vec<(String, u16)> {
        let direct = vec![(service.name.clone(), call.port)];
        let from_gateway =
            !self.inputs.workloads.contains_key(from) && !self.inputs.has_service(from);
        let gateway = from_gateway
            .then(|| gateways::gateway(&self.inputs, from))
            .flatten();
        let (routes, parent) = match &gateway {
            Some(gateway) => (&gateway.routes, format!("Gateway/{from}")),
            None => (&service.routes, format!("service {}", service.name)),
        };
        let here = |r: &&Route| gateway.is_some() || r.port == 0 || r.port == call.port;
        let routes: Vec<&Route> = routes.iter().filter(here).collect();
        if routes.is_empty() && gateway.is_none() {
            return direct;
        }
        if call.opaque {
            return direct;
        }
        let Some((route, rule)) = best(&routes, call) else {
            answer.reason = format!(
                "no route of {parent} matches {} {}: answered with 404",
                call.method, call.path
            );
            return Vec::new();
        };
        let object = object(&route.name);
        answer.route.clone_from(&object);
        let weighted = rule.backends.iter().filter(|b| b.weight > 0);
        let backends: Vec<_> = weighted.map(|b| (b.service.clone(), b.port)).collect();
        if backends.is_empty() {
            answer.reason = format!("{object} has no backend for this request: answered with 500");
        } else if gateway.is_some() && !backends.iter().any(|(name, _)| *name == service.name) {
            let names: Vec<&str> = backends.iter().map(|(name, _)| name.as_str()).collect();
            answer.reason = format!(
                "{object} of {parent} sends {} {} to {}, not to {}",
                call.method,
                call.path,
                names.join(", "),
                service.name
            );
            return Vec::new();
        }
        backends
    }

    /// Judges the policies of every destination; the call is allowed when all of them allow it.
    fn judge(&self, destinations: &[(String, u16)], call: &Call<'_>, answer: &mut v1::Explanation) {
        let inputs = &self.inputs;
        let permissive = inputs.mesh.as_ref().is_some_and(|m| m.permissive_mode);
        let own = call.source.trust_domain() == inputs.trust_domain.as_str();
        let mut allowed = !destinations.is_empty();
        let mut denied: Option<String> = None;
        for (name, port) in destinations {
            let service = services::service(inputs, name);
            let identities = service.identities.iter().map(ToString::to_string);
            answer.destination_identities.extend(identities);
            let found = service.ports.iter().find(|p| p.port == *port);
            let endpoints = found.map(|p| p.endpoints.as_slice()).unwrap_or_default();
            for endpoint in endpoints {
                let plain = if endpoint.mutual_tls {
                    ""
                } else {
                    " (plaintext)"
                };
                answer
                    .endpoints
                    .push(format!("{}{plain}", endpoint.address));
            }
            let call = Call {
                source: call.source.clone(),
                port: *port,
                opaque: found.map_or(call.opaque, |p| p.protocol.is_opaque()),
                ..*call
            };
            for identity in &service.identities {
                match self.policies(name, identity, &call, answer) {
                    Decision::Allowed(rule) => {
                        if answer.policy.is_empty() {
                            answer.policy = rule;
                        }
                    }
                    Decision::Denied(rule) => {
                        allowed = false;
                        denied = denied.or(Some(rule));
                    }
                    Decision::Unmentioned => allowed &= permissive,
                }
            }
            if service.identities.is_empty() {
                answer.reason = format!("service {name} does not exist: answered with 503");
                allowed = false;
            }
        }
        answer.allowed = allowed && own;
        if !own {
            answer.reason = format!(
                "{} is not of the trust domain {}",
                call.source, inputs.trust_domain
            );
        } else if let Some(rule) = denied {
            answer.reason = format!("{rule} denies it: answered with 403");
            answer.policy = rule;
        } else if permissive && allowed {
            answer.policy = "Mesh/permissiveMode".into();
            answer.reason = "the mesh is permissive: any identity of it may call".into();
        } else if allowed {
            answer.reason = format!("{} allows it", answer.policy);
        } else if answer.reason.is_empty() {
            answer.policy = String::new();
            answer.reason = if answer.considered.is_empty() {
                "no policy is about this destination: denied with 403".into()
            } else {
                "no policy allows it: denied with 403".into()
            };
        }
        if answer.allowed && answer.endpoints.is_empty() {
            answer
                .reason
                .push_str(", but no workload of the destination runs: answered with 503");
        }
    }

    /// Looks at every policy about an identity of a service. A rule that denies wins.
    fn policies(
        &self,
        service: &str,
        identity: &SpiffeId,
        call: &Call<'_>,
        answer: &mut v1::Explanation,
    ) -> Decision {
        let inputs = &self.inputs;
        let mut denied = None;
        let mut allowed = None;
        for rule in policy::policy(inputs, service, identity.name()).rules {
            let verdict = applies(&rule, call);
            let outcome = match (&verdict, rule.action) {
                (Err(why), _) => format!("does not match: {why}"),
                (Ok(()), Action::Allow) => "allows".into(),
                (Ok(()), Action::Deny) => "denies".into(),
                (Ok(()), Action::AuditAllow) => "would allow (audit only)".into(),
                (Ok(()), Action::AuditDeny) => "would deny (audit only)".into(),
            };
            match (verdict, rule.action) {
                (Ok(()), Action::Allow) => allowed = allowed.or(Some(rule.name.clone())),
                (Ok(()), Action::Deny) => denied = denied.or(Some(rule.name.clone())),
                _ => {}
            }
            let (kind, name) = rule.name.split_once('/').unwrap_or(("", &rule.name));
            answer.considered.push(v1::Applied {
                kind: kind.into(),
                name: name.into(),
                outcome,
            });
        }
        self.powerless(identity, answer);
        match (denied, allowed) {
            (Some(rule), _) => Decision::Denied(rule),
            (None, Some(rule)) => Decision::Allowed(rule),
            (None, None) => Decision::Unmentioned,
        }
    }

    /// TrafficTargets that are about an identity and yet give no rule, and what is wrong with them.
    fn powerless(&self, identity: &SpiffeId, answer: &mut v1::Explanation) {
        for (name, target) in &self.inputs.targets {
            if target.destination.name != identity.name() {
                continue;
            }
            let mut problems = Vec::new();
            let rules = policy::rules(&self.inputs, name, target, &mut |p| problems.push(p));
            if rules.is_empty() {
                answer.considered.push(v1::Applied {
                    kind: "TrafficTarget".into(),
                    name: name.clone(),
                    outcome: format!("does not match: allows nothing ({})", problems.join("; ")),
                });
            }
        }
    }
}

/// What all policies about a destination come to.
enum Decision {
    /// By this rule.
    Allowed(String),
    /// By this rule.
    Denied(String),
    /// No rule matches.
    Unmentioned,
}

/// Whether a rule is about a call, or why not.
fn applies(rule: &PolicyRule, call: &Call<'_>) -> Result<(), String> {
    if !rule.any_identity && !rule.sources.contains(&call.source) {
        let by_address = rule.sources.is_empty() && !rule.networks.is_empty();
        return Err(match by_address {
            true => "it is for clients of certain addresses".into(),
            false => "source not listed".into(),
        });
    }
    if !rule.ports.is_empty() && !rule.ports.contains(&call.port) {
        return Err(format!("port {} not listed", call.port));
    }
    if rule.matches.is_empty() {
        return Ok(());
    }
    if call.opaque {
        if rule.action == Action::Deny {
            return Ok(()); // what cannot be looked at may be what it denies
        }
        return Err("it is for HTTP requests and the port carries raw TCP".into());
    }
    let mut why = "method".to_owned();
    for m in &rule.matches {
        match matches(m, call) {
            Ok(()) => return Ok(()),
            // The most specific reason is of most help: a match whose path fits failed last.
            Err(reason) if reason != "method" && why == "method" => why = reason,
            Err(reason) if reason.contains("decide") => why = reason,
            Err(_) => {}
        }
    }
    Err(match why.as_str() {
        "method" => format!("method {} not listed", call.method),
        "path" => format!("path {} not listed", call.path),
        _ => why,
    })
}

fn matches(m: &PolicyMatch, call: &Call<'_>) -> Result<(), String> {
    let any = m.methods.is_empty();
    if !any && !m.methods.iter().any(|x| x == "*" || x == call.method) {
        return Err("method".into());
    }
    if !m.path_regex.is_empty() && !whole(&m.path_regex, call.path) {
        return Err("path".into());
    }
    if m.path
        .as_ref()
        .is_some_and(|p| path_rank(p, call.path).is_none())
    {
        return Err("path".into());
    }
    let named = m.headers.keys().map(String::as_str);
    let mut headers = named.chain(m.header_matches.iter().map(|h| h.name.as_str()));
    if let Some(header) = headers.next() {
        return Err(match m.name.is_empty() {
            true => format!("headers decide (it needs {header})"),
            false => format!("headers decide (match {} needs {header})", m.name),
        });
    }
    if !m.hosts.is_empty() {
        return Err(format!(
            "the host decides (it needs {})",
            m.hosts.join(" or ")
        ));
    }
    Ok(())
}

/// A route's object: HTTPRoutes are known by their bare names.
fn object(route: &str) -> String {
    match route.contains('/') {
        true => route.to_owned(),
        false => format!("HTTPRoute/{route}"),
    }
}

/// Whether an expression matches the whole text. One that cannot be compiled matches nothing.
fn whole(pattern: &str, text: &str) -> bool {
    pattern::compile(pattern).is_ok_and(|regex| regex.is_match(text.as_bytes()))
}

/// The most specific match, as Gateway API orders them: exact path, longest prefix, method, most
/// headers; then the first.
fn best<'a>(routes: &[&'a Route], call: &Call<'_>) -> Option<(&'a Route, &'a RouteRule)> {
    let everything = RouteMatch::default();
    let mut best: Option<((u8, usize, bool), &Route, &RouteRule)> = None;
    for route in routes {
        for rule in &route.rules {
            let all = std::slice::from_ref(&everything);
            let matches = if rule.matches.is_empty() {
                all
            } else {
                &rule.matches
            };
            for m in matches {
                let Some(rank) = rank(m, call) else { continue };
                if best.as_ref().is_none_or(|(known, _, _)| rank > *known) {
                    best = Some((rank, route, rule));
                }
            }
        }
    }
    best.map(|(_, route, rule)| (route, rule))
}

fn rank(m: &RouteMatch, call: &Call<'_>) -> Option<(u8, usize, bool)> {
    if !m.headers.is_empty() || !(m.method.is_empty() || m.method == call.method) {
        return None;
    }
    let (kind, length) = path_rank(&m.path, call.path)?;
    Some((kind, length, !m.method.is_empty()))
}

/// How specific a match is for a path; `None`: it does not match.
fn path_rank(m: &PathMatch, path: &str) -> Option<(u8, usize)> {
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
