//! Refuses every feature that is not translated, so that nobody believes that Envoy has it.

use crate::Untranslatable;
use std::collections::BTreeMap;
use tulle_model::bootstrap::{Bootstrap, ListenerKind};
use tulle_model::resource::{
    Backend, Balancer, Inbound, InboundPort, MeshSettings, PolicyMatch, PolicyRule, Revoked, Route,
    RouteMatch, RouteRule, Service, ServicePort, Traffic,
};

/// Checks that the whole bootstrap is translated.
///
/// # Errors
/// Names the first feature that is not.
pub(crate) fn check(bootstrap: &Bootstrap) -> Result<(), Untranslatable> {
    mesh(&bootstrap.mesh)?;
    bootstrap.services.iter().try_for_each(service)?;
    bootstrap.inbound.iter().try_for_each(inbound)?;
    egress(bootstrap)
}

fn require(holds: bool, object: &str, what: &'static str) -> Result<(), Untranslatable> {
    if holds {
        return Ok(());
    }
    Err(Untranslatable::Feature {
        object: object.to_owned(),
        what,
    })
}

/// Settings that change nothing about traffic have no effect, and docs/envoy.md names them:
/// `access_log_lines`, `metrics` and `economy_us`.
fn mesh(mesh: &MeshSettings) -> Result<(), Untranslatable> {
    require(mesh.max_connections == 0, "Mesh", "maxConnections")?;
    require(mesh.tracing.is_none(), "Mesh", "tracing")?;
    require(mesh.otlp.is_none(), "Mesh", "otlp")?;
    // Envoy refuses all that a host's authority has signed, whichever it is.
    let revoked = Revoked {
        hosts: BTreeMap::new(),
        ..mesh.revoked.clone()
    };
    require(revoked.is_empty(), "Mesh", "revoked")?;
    require(!mesh.dns, "Mesh", "dns")
}

fn service(service: &Service) -> Result<(), Untranslatable> {
    let object = format!("service {}", service.name);
    require(service.tls_routes.is_empty(), &object, "TLSRoute")?;
    require(service.tcp_routes.is_empty(), &object, "TCPRoute")?;
    require(service.split.is_empty(), &object, "TrafficSplit")?;
    for ServicePort {
        traffic, endpoints, ..
    } in &service.ports
    {
        let plain = endpoints
            .iter()
            .all(|e| e.weight == 1 && e.locality.is_empty());
        require(plain, &object, "weights or localities of endpoints")?;
        if let Some(traffic) = traffic {
            let known = Traffic {
                name: traffic.name.clone(),
                balancer: traffic.balancer.clone(),
                ..Default::default()
            };
            let balancer = matches!(
                traffic.balancer,
                Balancer::RoundRobin | Balancer::LeastRequest | Balancer::Random
            );
            require(
                balancer && **traffic == known,
                &traffic.name,
                "all of it but the load balancers RoundRobin, LeastRequest and Random",
            )?;
        }
    }
    service.routes.iter().try_for_each(route)
}

fn route(route: &Route) -> Result<(), Untranslatable> {
    let object = format!("HTTPRoute/{}", route.name);
    require(route.listener.is_empty(), &object, "sectionName")?;
    for rule in &route.rules {
        let known = RouteRule {
            name: rule.name.clone(),
            matches: rule.matches.clone(),
            backends: rule.backends.clone(),
            request_timeout_ms: rule.request_timeout_ms,
            ..Default::default()
        };
        require(
            *rule == known,
            &object,
            "filters, retry, backendRequest timeouts or session persistence",
        )?;
        let query = |m: &RouteMatch| m.query.is_empty();
        require(rule.matches.iter().all(query), &object, "queryParams")?;
        let conditions = |m: &RouteMatch| m.when.is_empty();
        require(
            rule.matches.iter().all(conditions),
            &object,
            "conditions in CEL",
        )?;
        let filters = |b: &Backend| b.filters.is_empty();
        require(
            rule.backends.iter().all(filters),
            &object,
            "filters of a backend",
        )?;
    }
    Ok(())
}

fn inbound(inbound: &Inbound) -> Result<(), Untranslatable> {
    for port in &inbound.ports {
        let known = InboundPort::new(port.port, port.protocol, port.target);
        let object = format!("port {} of {}", port.port, inbound.service);
        require(*port == known, &object, "limits, filters or PROXY protocol")?;
    }
    for rule in &inbound.policy.rules {
        let known = PolicyRule {
            name: rule.name.clone(),
            sources: rule.sources.clone(),
            ports: rule.ports.clone(),
            matches: rule.matches.clone(),
            ..Default::default()
        };
        let what = "rules that deny or audit, and addresses or any identity as sources";
        require(*rule == known, &rule.name, what)?;
        for m in &rule.matches {
            let known = PolicyMatch {
                name: m.name.clone(),
                methods: m.methods.clone(),
                path_regex: m.path_regex.clone(),
                headers: m.headers.clone(),
                ..Default::default()
            };
            require(
                *m == known,
                &rule.name,
                "hosts, conditions in CEL, and paths or headers that are not SMI's regular expressions",
            )?;
        }
    }
    Ok(())
}

/// Refuses rules that decide about this workload's connections: of others' it sees none, and without
/// an outbound listener nothing leaves the mesh here.
fn egress(bootstrap: &Bootstrap) -> Result<(), Untranslatable> {
    let mut listeners = bootstrap.listeners.iter();
    if !listeners.any(|l| l.kind == ListenerKind::Outbound) {
        return Ok(());
    }
    let rules = bootstrap.egress.iter().flat_map(|e| &e.rules);
    let mut own = rules.filter(|r| r.is_for(&bootstrap.identity));
    let what =
        "any Egress for this workload, as `allowEgress` of the Mesh alone decides what leaves it";
    own.try_for_each(|rule| require(false, &rule.name, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without its condition a rule would take every request.
    #[test]
    fn a_condition_in_cel_is_not_passed_over() {
        let of = |when: &[&str]| Route {
            rules: vec![RouteRule {
                matches: vec![RouteMatch {
                    when: when.iter().map(ToString::to_string).collect(),
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        assert!(route(&of(&[])).is_ok());
        assert!(route(&of(&["request.method == 'GET'"])).is_err());
    }

    /// Envoy does not check revocations, so they must be refused.
    #[test]
    fn what_is_revoked_is_not_passed_over() {
        let mut settings = MeshSettings::default();
        assert!(mesh(&settings).is_ok());
        let id = tulle_model::identity::SpiffeId::parse("spiffe://tulle.local/svc/a");
        settings.revoked.identities = id.into_iter().collect();
        assert_eq!(settings.revoked.identities.len(), 1);
        let refused = mesh(&settings).unwrap_err().to_string();
        assert!(refused.contains("revoked"), "{refused}");
    }
}
