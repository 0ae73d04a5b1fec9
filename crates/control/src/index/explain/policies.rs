//! Explains which policies decide about a call.

use super::routes::{path_rank, whole};
use super::verdict::{self, Considered, Found, Outcome, Way};
use super::{Call, conditions};
use crate::index::{Index, pods, policy, services};
use tulle_api::v1;
use tulle_model::identity::SpiffeId;
use tulle_model::letter_case::folded;
use tulle_model::namespaced::ObjectName;
use tulle_model::pattern::compile_any_case;
use tulle_model::resource::{Action, PathMatch, PolicyMatch, PolicyRule, Service};

impl Index {
    /// Judges the policies of every destination; the call is allowed when all of them allow it.
    pub(super) fn judge(&self, way: &Way, call: &Call<'_>, answer: &mut v1::Explanation) {
        let inputs = &self.inputs;
        let permissive = policy::is_permissive(inputs);
        let mut considered = Vec::new();
        let mut all = Vec::new();
        for (name, port) in &way.destinations {
            let of = inputs.object_name(name);
            let service = of.as_ref();
            let service = service.map(|of| services::service(inputs, of, &mut Vec::new()));
            let service = service.unwrap_or_default();
            let place = format!("{name}:{port}");
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
                own_port: *port,
                opaque: found.map_or(call.opaque, |p| p.protocol.is_opaque()),
                ..*call
            };
            let is_known = !service.identities.is_empty() || inputs.knows_service(name);
            let outcome = match (of.filter(|_| is_known), found) {
                (None, _) => Outcome::Missing(format!("service {name} does not exist")),
                (Some(_), None) => Outcome::Missing(format!("service {name} has no port {port}")),
                (Some(_), Some(_)) if service.identities.is_empty() => Outcome::Nobody,
                (Some(of), Some(_)) => self.decided(&of, &service, &call, &mut considered),
            };
            all.push(Found {
                place,
                opaque: call.opaque,
                answers: !endpoints.is_empty(),
                outcome,
            });
        }
        let listed = verdict::listed(considered, way.destinations.len());
        answer.considered.extend(listed);
        verdict::sum_up(&all, way, call, permissive, answer);
        let is_own = |id: &SpiffeId| id.trust_domain() == inputs.trust_domain.as_str();
        if !call.source.as_ref().is_none_or(is_own) {
            answer.allowed = false;
            answer.reason = format!(
                "{} is not of the trust domain {}",
                call.source_text(),
                inputs.trust_domain
            );
        }
    }

    /// Sums up what the policies about each identity of a service decide.
    fn decided(
        &self,
        name: &ObjectName,
        service: &Service,
        call: &Call<'_>,
        considered: &mut Vec<Considered>,
    ) -> Outcome {
        let permissive = policy::is_permissive(&self.inputs);
        let strict = call.source.is_none() && self.mtls(name) == "strict";
        let before = considered.len();
        let mut outcome = Outcome::Allowed(String::new());
        for identity in &service.identities {
            let decision = self.policies(name, identity, call, considered);
            let about = considered.len() > before;
            outcome = match (decision, outcome) {
                (_, Outcome::Denied(rule)) | (Decision::Denied(rule), _) => Outcome::Denied(rule),
                (Decision::Unmentioned, _) if strict => Outcome::Plaintext,
                (Decision::Unmentioned, _) if !permissive => Outcome::Unmentioned { about },
                (Decision::Allowed(rule), Outcome::Allowed(known)) if known.is_empty() => {
                    Outcome::Allowed(rule)
                }
                (_, outcome) => outcome,
            };
        }
        outcome
    }

    /// Looks at every policy about an identity of a service. A rule that denies wins.
    fn policies(
        &self,
        service: &ObjectName,
        identity: &SpiffeId,
        call: &Call<'_>,
        considered: &mut Vec<Considered>,
    ) -> Decision {
        let place = format!("{service}:{}", call.port);
        let inputs = &self.inputs;
        let mut denied = None;
        let mut allowed = None;
        let Some(identity) = inputs.name_of(identity) else {
            return Decision::Unmentioned;
        };
        // The sidecars' own policy, if there are pods.
        let at_pods = match (&inputs.cluster, &identity) {
            (Some(cluster), ObjectName::InNamespace(account)) => {
                pods::pod_policy_at(inputs, cluster, service.as_str(), account, call.port)
            }
            _ => None,
        };
        let (policy, own_port) = at_pods.unwrap_or_else(|| {
            let mut policy = policy::policy(inputs, service, &identity);
            let closing = call.closings.at(inputs, service, &identity, call.port);
            policy.rules.extend(closing);
            (policy, call.port)
        });
        let call = &Call {
            source: call.source.clone(),
            own_port,
            ..*call
        };
        for rule in policy.rules {
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
            considered.push(Considered {
                place: place.clone(),
                applied: v1::Applied {
                    kind: kind.into(),
                    name: name.into(),
                    outcome,
                },
            });
        }
        self.powerless(identity.as_str(), &place, considered);
        match (denied, allowed) {
            (Some(rule), _) => Decision::Denied(rule),
            (None, Some(rule)) => Decision::Allowed(rule),
            (None, None) => Decision::Unmentioned,
        }
    }

    /// TrafficTargets that are about an identity and yet give no rule, and what is wrong with them.
    fn powerless(&self, identity: &str, place: &str, considered: &mut Vec<Considered>) {
        for (name, target) in &self.inputs.targets {
            if target.destination.name != identity {
                continue;
            }
            let mut problems = Vec::new();
            let rules = policy::rules(&self.inputs, name.as_str(), target, &mut |p| {
                problems.push(p)
            });
            if rules.is_empty() {
                considered.push(Considered {
                    place: place.to_owned(),
                    applied: v1::Applied {
                        kind: "TrafficTarget".into(),
                        name: name.to_string(),
                        outcome: format!(
                            "does not match: allows nothing ({})",
                            problems.join("; ")
                        ),
                    },
                });
            }
        }
    }
}

/// The result of all policies about a destination.
enum Decision {
    /// This rule allows the call.
    Allowed(String),
    /// This rule denies the call.
    Denied(String),
    /// No rule matches.
    Unmentioned,
}

/// Whether a rule is about a call, or why not.
fn applies(rule: &PolicyRule, call: &Call<'_>) -> Result<(), String> {
    let Some(source) = &call.source else {
        let inside = |ip| rule.networks.iter().any(|n| n.contains(ip));
        // A caller without an identity could be the one that the rule denies.
        let nobody = !rule.any_identity && rule.networks.is_empty();
        let anybody = rule.action == Action::Deny && (nobody || !rule.sources.is_empty());
        if !anybody && !call.address.is_some_and(inside) {
            return Err("it is for callers with an identity, or of other addresses".into());
        }
        return applies_to_request(rule, call);
    };
    if !rule.any_identity && !rule.sources.contains(source) {
        let by_address = rule.sources.is_empty() && !rule.networks.is_empty();
        return Err(match by_address {
            true => "it is for clients of certain addresses".into(),
            false => "source not listed".into(),
        });
    }
    applies_to_request(rule, call)
}

/// Whether a rule is about a request, apart from its source.
fn applies_to_request(rule: &PolicyRule, call: &Call<'_>) -> Result<(), String> {
    if !rule.ports.is_empty() && !rule.ports.contains(&call.own_port) {
        return Err(format!("port {} not listed", call.port));
    }
    if rule.matches.is_empty() {
        return Ok(());
    }
    if call.method == "CONNECT" && !call.opaque {
        // In a tunnel nobody looks at requests.
        let named = |m: &PolicyMatch| m.methods.iter().any(|x| x == "CONNECT");
        let only = |m: &PolicyMatch| named(m) && m.methods.len() == 1;
        match rule.action {
            Action::Deny if !rule.matches.iter().all(only) => return Ok(()),
            Action::Allow if !rule.matches.iter().any(named) => {
                return Err("a tunnel needs the method CONNECT by name".into());
            }
            _ => {}
        }
    }
    if call.opaque {
        if rule.action == Action::Deny {
            return Ok(()); // what cannot be looked at may be what it denies
        }
        return Err("it is for HTTP requests and the port carries raw TCP".into());
    }
    any_match(&rule.matches, call, rule.action.denies())
}

/// Whether one of a rule's conditions is met, if it has any; or why none is. `denies`: it denies or demands.
pub(super) fn any_match(all: &[PolicyMatch], call: &Call<'_>, denies: bool) -> Result<(), String> {
    if all.is_empty() {
        return Ok(());
    }
    let mut why = "method".to_owned();
    for m in all {
        match matches(m, call, denies) {
            Ok(()) => return Ok(()),
            // The most specific reason helps most: a match whose path fits failed last.
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

/// Whether a path matches once letter case is overlooked.
fn in_any_case(wanted: &PathMatch, path: &str) -> bool {
    let lower = |text: &str| String::from_utf8_lossy(&folded(text.as_bytes())).into_owned();
    let wanted = match wanted {
        PathMatch::Exact(exact) => PathMatch::Exact(lower(exact)),
        PathMatch::Prefix(prefix) => PathMatch::Prefix(lower(prefix)),
        PathMatch::Regex(pattern) => {
            let regex = compile_any_case(pattern);
            return regex.is_ok_and(|r| r.is_match(&folded(path.as_bytes())));
        }
    };
    path_rank(&wanted, &lower(path)).is_some()
}

pub(super) fn matches(m: &PolicyMatch, call: &Call<'_>, denies: bool) -> Result<(), String> {
    let any = m.methods.is_empty();
    if !any && !m.methods.iter().any(|x| x == "*" || x == call.method) {
        return Err("method".into());
    }
    let regex = || PathMatch::Regex(m.path_regex.clone());
    let as_written = (m.path_regex.is_empty() || whole(&m.path_regex, call.path))
        && m.path
            .as_ref()
            .is_none_or(|p| path_rank(p, call.path).is_some());
    let folded = || {
        m.ignore_case
            && (m.path_regex.is_empty() || in_any_case(&regex(), call.path))
            && m.path.as_ref().is_none_or(|p| in_any_case(p, call.path))
    };
    if !as_written && !folded() {
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
    conditions::hold(&m.when, call, denies)
}
