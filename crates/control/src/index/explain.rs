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
use tulle_model::resource::{PathMatch, PolicyMatch, PolicyRule, Route, RouteMatch, RouteRule};

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
        if !inputs.has_service(to) {
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
                "no HTTPRoute of {parent} matches {} {}: answered with 404",
                call.method, call.path
            );
            return Vec::new();
        };
        answer.route = format!("HTTPRoute/{}", route.name);
        let weighted = rule.backends.iter().filter(|b| b.weight > 0);
        let backends: Vec<_> = weighted.map(|b| (b.service.clone(), b.port)).collect();
        if backends.is_empty() {
            answer.reason = format!(
                "HTTPRoute/{} has no backend for this request: answered with 500",
                route.name
            );
        } else if gateway.is_some() && !backends.iter().any(|(name, _)| *name == service.name) {
            let names: Vec<&str> = backends.iter().map(|(name, _)| name.as_str()).collect();
            answer.reason = format!(
                "HTTPRoute/{} of {parent} sends {} {} to {}, not to {}",
                route.name,
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
                let decided = self.policies(identity, &call, answer);
                allowed &= permissive || decided;
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
        } else if permissive && allowed {
            answer.policy = "Mesh/permissiveMode".into();
            answer.reason = "the mesh is permissive: any identity of it may call".into();
        } else if allowed {
            answer.reason = format!("{} allows it", answer.policy);
        } else if answer.reason.is_empty() {
            answer.policy = String::new();
            answer.reason = if answer.considered.is_empty() {
                "no TrafficTarget is about this destination: denied with 403".into()
            } else {
                "no TrafficTarget allows it: denied with 403".into()
            };
        }
        if answer.allowed && answer.endpoints.is_empty() {
            answer
                .reason
                .push_str(", but no workload of the destination runs: answered with 503");
        }
    }

    /// Looks at every TrafficTarget for an identity; whether one allows the call.
    fn policies(&self, identity: &SpiffeId, call: &Call<'_>, answer: &mut v1::Explanation) -> bool {
        let mut allowed = false;
        for (name, target) in &self.inputs.targets {
            if target.destination.name != identity.name() {
                continue;
            }
            let mut problems = Vec::new();
            let rule = policy::rule(&self.inputs, name, target, &mut |p| problems.push(p));
            let mut verdict = match &rule {
                None => Err("allows nothing".to_owned()),
                Some(rule) => allows(rule, call),
            };
            if verdict.is_ok() && !allowed {
                allowed = true;
                if answer.policy.is_empty() {
                    answer.policy = format!("TrafficTarget/{name}");
                }
            }
            if let Err(why) = &mut verdict
                && !problems.is_empty()
            {
                *why = format!("{why} ({})", problems.join("; "));
            }
            answer.considered.push(v1::Applied {
                kind: "TrafficTarget".into(),
                name: name.clone(),
                outcome: match verdict {
                    Ok(()) => "allows".into(),
                    Err(why) => format!("does not match: {why}"),
                },
            });
        }
        allowed
    }
}

/// Whether a rule allows a call, or why not.
fn allows(rule: &PolicyRule, call: &Call<'_>) -> Result<(), String> {
    if !rule.sources.contains(&call.source) {
        return Err("source not listed".into());
    }
    if !rule.ports.is_empty() && !rule.ports.contains(&call.port) {
        return Err(format!("port {} not listed", call.port));
    }
    if rule.matches.is_empty() {
        return Ok(());
    }
    if call.opaque {
        return Err("it is for HTTP requests and the port carries raw TCP".into());
    }
    let mut why = "method".to_owned();
    for m in &rule.matches {
        match matches(m, call) {
            Ok(()) => return Ok(()),
            // The most specific reason is of most help: a match whose path fits failed last.
            Err(reason) if reason != "method" && why == "method" => why = reason,
            Err(reason) if reason.starts_with("headers") => why = reason,
            Err(_) => {}
        }
    }
    Err(match why.as_str() {
        "method" => format!("method {} not allowed", call.method),
        "path" => format!("path {} not allowed", call.path),
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
    if let Some(header) = m.headers.keys().next() {
        return Err(format!("headers decide (match {} needs {header})", m.name));
    }
    Ok(())
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
    let (kind, length) = match &m.path {
        PathMatch::Exact(path) => (path == call.path).then_some((2, path.len()))?,
        PathMatch::Regex(pattern) => whole(pattern, call.path).then_some((1, 0))?,
        PathMatch::Prefix(prefix) => is_prefix(prefix, call.path).then_some((0, prefix.len()))?,
    };
    Some((kind, length, !m.method.is_empty()))
}

/// `/a` and `/a/` are prefixes of `/a` and `/a/b`, not of `/ab`.
fn is_prefix(prefix: &str, path: &str) -> bool {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
