//! Backends of routes that no policy lets the route's callers call.
//!
//! A route to a gateway has one caller, the gateway. A route or split of a service has all callers of
//! the service, so it is enough if one of them is let in. Methods, paths and headers are not compared: a
//! policy for some requests may be all that is meant.

use super::known::Known;
use super::{Found, code};
use crate::manifest::{
    AccessSpec, AuthorizationPolicySpec, BackendRef, IdentityRef, Object, ParentRef,
    TrafficTargetSpec,
};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(
    known: &Known<'_>,
    admission: &Admission<'_>,
    object: &Object,
    found: &mut Found<'_>,
) {
    if known.permissive {
        return;
    }
    match object {
        Object::HttpRoute(route) => {
            let rules = route.spec.rules.iter().map(|r| r.backend_refs.as_slice());
            admission.route(
                known,
                &route.spec.parent_refs,
                rules,
                "answered with 403",
                found,
            );
        }
        Object::GrpcRoute(route) => {
            let rules = route.spec.rules.iter().map(|r| r.backend_refs.as_slice());
            let denied = "answered with PERMISSION_DENIED";
            admission.route(known, &route.spec.parent_refs, rules, denied, found);
        }
        Object::TlsRoute(route) => {
            let rules = route.spec.rules.iter().map(|r| r.backend_refs.as_slice());
            admission.route(known, &route.spec.parent_refs, rules, "reset", found);
        }
        Object::TcpRoute(route) => {
            let rules = route.spec.rules.iter().map(|r| r.backend_refs.as_slice());
            admission.route(known, &route.spec.parent_refs, rules, "reset", found);
        }
        Object::TrafficSplit(split) => {
            for (i, backend) in split.spec.backends.iter().enumerate() {
                let called = Called {
                    service: &backend.service,
                    port: None,
                };
                if backend.weight > 0 {
                    let at = format!("spec.backends[{i}]");
                    admission.judge(known, &[Caller::Anyone], called, &at, "denied", found);
                }
            }
        }
        _ => {}
    }
}

/// The callers that a route is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller<'a> {
    Gateway(&'a str),
    Anyone,
}

#[derive(Clone, Copy)]
struct Called<'a> {
    service: &'a str,
    /// `None`: any of its ports.
    port: Option<u16>,
}

/// The policies of a mesh that may let somebody in.
#[derive(Default)]
pub(super) struct Admission<'a> {
    /// Services to the identities of their workloads.
    identities: BTreeMap<&'a str, BTreeSet<&'a str>>,
    targets: Vec<&'a TrafficTargetSpec>,
    policies: Vec<&'a AuthorizationPolicySpec>,
    accesses: Vec<&'a AccessSpec>,
}

impl<'a> Admission<'a> {
    pub(super) fn new(objects: &[&'a Object]) -> Self {
        let mut all = Self::default();
        for object in objects {
            match object {
                Object::Workload(workload) => {
                    let identities = all.identities.entry(workload.service()).or_default();
                    identities.insert(workload.identity());
                }
                Object::TrafficTarget(target) => all.targets.push(&target.spec),
                Object::AuthorizationPolicy(policy) => {
                    let audit = policy.spec.mode.as_deref() == Some("Audit");
                    if policy.spec.action.as_deref() != Some("Deny") && !audit {
                        all.policies.push(&policy.spec);
                    }
                }
                Object::IngressBackend(access) | Object::AccessControl(access) => {
                    all.accesses.push(&access.spec);
                }
                _ => {}
            }
        }
        all
    }

    fn route<'r>(
        &self,
        known: &Known<'_>,
        parents: &'r [ParentRef],
        rules: impl Iterator<Item = &'r [BackendRef]>,
        denied: &str,
        found: &mut Found<'_>,
    ) {
        let mut callers = Vec::new();
        for parent in parents {
            let caller = match parent.kind.as_deref() {
                Some("Service") => Caller::Anyone,
                _ if known.gateways.contains_key(parent.name.as_str()) => {
                    Caller::Gateway(&parent.name)
                }
                _ => continue, // that is a finding of its own
            };
            if !callers.contains(&caller) {
                callers.push(caller);
            }
        }
        for (i, backends) in rules.enumerate() {
            for (j, backend) in backends.iter().enumerate() {
                let called = Called {
                    service: &backend.name,
                    port: Some(backend.port),
                };
                if backend.weight != Some(0) {
                    let at = format!("spec.rules[{i}].backendRefs[{j}]");
                    self.judge(known, &callers, called, &at, denied, found);
                }
            }
        }
    }

    /// Reports the first caller that nothing lets in.
    fn judge(
        &self,
        known: &Known<'_>,
        callers: &[Caller<'_>],
        called: Called<'_>,
        at: &str,
        denied: &str,
        found: &mut Found<'_>,
    ) {
        let (service, port) = (called.service, called.port);
        // A service or port that is missing is a finding of its own.
        let ports = known.services.get(service);
        let exists = ports.is_some_and(|all| port.is_none_or(|p| all.contains_key(&p)));
        if !exists || !self.identities.contains_key(service) {
            return;
        }
        let mut refused = callers.iter().filter(|c| !self.admits(known, **c, called));
        let Some(refused) = refused.next() else {
            return;
        };
        let who = match refused {
            Caller::Gateway(name) => format!("Gateway `{name}`"),
            Caller::Anyone => "anybody".to_owned(),
        };
        let place = match port {
            Some(port) => format!("service `{service}` on port {port}"),
            None => format!("service `{service}`"),
        };
        let message = format!(
            "no policy lets {who} call {place} (yet), so this share is {denied}; add an \
             AuthorizationPolicy or TrafficTarget that allows it"
        );
        found.warn(code::NOT_ADMITTED, at, message);
    }

    fn admits(&self, known: &Known<'_>, caller: Caller<'_>, called: Called<'_>) -> bool {
        let named = |names: &[&str]| match caller {
            Caller::Anyone => !names.is_empty(),
            Caller::Gateway(gateway) => names.contains(&gateway),
        };
        let on = |port: u16| called.port.is_none_or(|p| p == port);
        let by_target = self.targets.iter().any(|target| {
            let destination = target.destination.name.as_str();
            let identities = self.identities.get(called.service);
            identities.is_some_and(|all| all.contains(destination))
                && target.destination.port.is_none_or(on)
                && (target.rules.is_empty() || target.rules.iter().any(|r| known.has_rule(r)))
                && named(&names_of(&target.sources))
        });
        by_target
            || self.by_policy(known, &named, called)
            || self.accesses.iter().any(|access| {
                let mut backends = access.backends.iter();
                let sources = access.sources.iter().filter_map(|s| match s.kind.as_str() {
                    "Service" => Some(s.name.as_str()),
                    "AuthenticatedPrincipal" => Some(last_segment(&s.name)),
                    _ => None, // addresses are of clients without an identity
                });
                backends.any(|b| b.name == called.service && b.port.is_none_or(on))
                    && named(&sources.collect::<Vec<_>>())
            })
    }

    fn by_policy(
        &self,
        known: &Known<'_>,
        named: &dyn Fn(&[&str]) -> bool,
        called: Called<'_>,
    ) -> bool {
        let ports = known.services.get(called.service);
        let meant = |policy: &AuthorizationPolicySpec| {
            let refs = policy.target_refs.iter();
            let mut refs = refs.filter(|r| r.is("Service", called.service));
            refs.any(|r| {
                let mut ports = ports.into_iter().flatten();
                r.is_whole()
                    || ports.any(|(port, of)| {
                        called.port.is_none_or(|p| p == *port) && r.covers(of.name, *port)
                    })
            })
        };
        let policies = self.policies.iter().filter(|p| meant(p));
        policies.flat_map(|p| &p.rules).any(|rule| {
            let ports = rule.to.as_ref().map_or(&[][..], |to| &to.ports);
            let here = called
                .port
                .is_none_or(|p| ports.is_empty() || ports.contains(&p));
            let callers = rule.from.as_ref().is_none_or(|from| {
                let principals = from.principals.iter().map(|id| last_segment(id));
                let accounts = from.service_accounts.iter().map(String::as_str);
                named(&accounts.chain(principals).collect::<Vec<_>>())
            });
            here && callers
        })
    }
}

fn names_of(sources: &[IdentityRef]) -> Vec<&str> {
    sources.iter().map(|source| source.name.as_str()).collect()
}

/// Returns the name in `spiffe://mesh/svc/name`. The trust domain is the controller's to compare.
fn last_segment(id: &str) -> &str {
    id.rsplit_once("/svc/").map_or(id, |(_, name)| name)
}
