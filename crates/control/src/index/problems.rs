//! Finds objects that are each valid and yet do not work together.

use super::inputs::identity_name_of;
use super::{Index, Unit, bounds, certificates, egress, gateways, policy, protocols};
use std::fmt;
use std::time::SystemTime;
use tulle_model::manifest::{self, HttpConditions, TargetRef};

/// One object and what keeps it from doing what it says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectProblem {
    /// The object, such as `TrafficTarget/gateway-to-ratings`.
    pub object: String,
    /// The fault and its consequence.
    pub text: String,
}

impl fmt::Display for ObjectProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.text)
    }
}

impl Index {
    /// All problems, ordered by object.
    pub fn problems(&self) -> Vec<ObjectProblem> {
        let mut problems = Vec::new();
        let mut report =
            |object: String, text: String| problems.push(ObjectProblem { object, text });
        let inputs = &self.inputs;
        for (name, target) in &inputs.targets {
            let object = format!("TrafficTarget/{name}");
            policy::rules(inputs, name.as_str(), target, &mut |text| {
                report(object.clone(), text);
            });
        }
        for (name, spec) in &inputs.egress {
            if let Err(why) = egress::matches(inputs, spec) {
                report(
                    format!("Egress/{name}"),
                    format!("{why}, so it allows nothing"),
                );
            }
        }
        for service in inputs.services.keys() {
            if let Some(text) = protocols::port_conflict(service, inputs.workloads_of(service)) {
                report(format!("service/{service}"), text);
            }
        }
        for (name, spec) in &inputs.workloads {
            let identity = identity_name_of(name, spec);
            if let Err(e) = inputs.identity_named(identity) {
                report(format!("Workload/{name}"), e.to_string());
            }
        }
        for problem in self.problems.values().flatten() {
            report(problem.object.clone(), problem.text.clone());
        }
        for (service, ip, pod) in inputs.cluster.iter().flat_map(|c| c.trespasses()) {
            let text = format!(
                "its endpoint {ip} is pod {pod} of another namespace: clients do not use it. A Service \
                 is for pods of its own namespace"
            );
            report(format!("service/{service}"), text);
        }
        for told in &inputs.told_problems {
            report(told.object.clone(), told.text.clone());
        }
        self.route_problems(&mut report);
        self.target_problems(&mut report);
        self.long_rules(&mut report);
        for (name, units) in self.contested() {
            let units: Vec<String> = units.into_iter().map(unit_name).collect();
            let text = format!(
                "{} all claim {name}; only {} has it",
                units.join(" and "),
                units.first().map(String::as_str).unwrap_or_default()
            );
            report(name.to_owned(), text);
        }
        problems.extend(self.key_problems());
        problems.sort_unstable();
        problems.dedup();
        problems
    }

    /// Lists the objects of a cluster that are refused; see `Edit::Refused`.
    pub fn refused_objects(&self) -> &[ObjectProblem] {
        &self.inputs.refused
    }

    /// Lists gateways' listeners whose certificates are missing, cannot be used or have expired.
    pub fn certificate_problems(&self, now: SystemTime) -> Vec<manifest::Problem> {
        certificates::of_stored(&self.inputs, now)
    }

    /// Lists keys of tokens that could not be fetched.
    pub fn key_problems(&self) -> Vec<ObjectProblem> {
        let mut problems = Vec::new();
        let mut report = |object, text| problems.push(ObjectProblem { object, text });
        self.inputs.key_problems(&mut report);
        problems
    }

    /// Policies about services that are not there.
    fn target_problems(&self, report: &mut dyn FnMut(String, String)) {
        let inputs = &self.inputs;
        let mut of = |kind: &str, name: &str, targets: &[TargetRef]| {
            let services = targets.iter().filter(|t| t.is("Service", &t.name));
            for service in services.filter(|t| !inputs.knows_service(&t.name)) {
                let text = format!(
                    "service {}, which it is about, does not exist",
                    service.name
                );
                report(format!("{kind}/{name}"), text);
            }
        };
        for (name, policy) in &inputs.traffic {
            of("TrafficPolicy", name.as_str(), &policy.target_refs);
        }
        for (name, limit) in &inputs.rate_limits {
            of("RateLimit", name.as_str(), &limit.target_refs);
        }
        for (name, policy) in &inputs.authorization {
            of("AuthorizationPolicy", name.as_str(), &policy.target_refs);
        }
        for (name, policy) in &inputs.authentication {
            of("Authentication", name.as_str(), &policy.target_refs);
        }
        for (name, plugin) in &inputs.plugins {
            of("Plugin", name.as_str(), &plugin.target_refs);
        }
    }

    /// Rules with more conditions than sidecars are told.
    fn long_rules(&self, report: &mut dyn FnMut(String, String)) {
        let mut of = |object: String, number: usize, to: &HttpConditions, instead: &str| {
            if !to.is_short() {
                let text = format!(
                    "rules[{number}].to has too many conditions for each of its {} paths, so {instead}: make several \
                     rules of it",
                    to.paths.len()
                );
                report(object, text);
            }
        };
        for (name, policy) in &self.inputs.authorization {
            let instead = match policy::action(policy).denies() {
                true => "it denies all requests of those whom it is about",
                false => "it allows nothing",
            };
            for (i, rule) in policy.rules.iter().enumerate() {
                if let Some(to) = &rule.to {
                    of(format!("AuthorizationPolicy/{name}"), i, to, instead);
                }
            }
        }
        for (name, limit) in &self.inputs.rate_limits {
            for (i, rule) in limit.rules.iter().enumerate() {
                let instead = "its limit is for all requests";
                of(format!("RateLimit/{name}"), i, &rule.to, instead);
            }
        }
    }

    fn route_problems(&self, report: &mut dyn FnMut(String, String)) {
        let inputs = &self.inputs;
        // A route with a `/` in its name is made of an Ingress, which reports its own problems.
        let own = inputs
            .routes
            .iter()
            .filter(|(name, _)| !name.as_str().contains('/'));
        for (name, route) in own {
            let object = format!("HTTPRoute/{name}");
            for parent in &route.parent_refs {
                if bounds::is_service(parent) {
                    if !inputs.knows_service(&parent.name) {
                        let text = format!("its parent, service {}, does not exist", parent.name);
                        report(object.clone(), text);
                    }
                    continue;
                }
                // In a cluster the route's status says whether a gateway takes it.
                if inputs.cluster.is_some() {
                    continue;
                }
                match inputs.gateways.get(parent.name.as_str()) {
                    None => {
                        let text = format!("its parent, Gateway/{}, does not exist", parent.name);
                        report(object.clone(), text);
                    }
                    Some(spec)
                        if gateways::places(
                            spec,
                            parent,
                            tulle_model::manifest::ListenerSpec::takes_http,
                        )
                        .is_empty() =>
                    {
                        let text = format!(
                            "Gateway/{} has no listener with the sectionName and port it names",
                            parent.name
                        );
                        report(object.clone(), text);
                    }
                    Some(_) => {}
                }
            }
            for backend in route.rules.iter().flat_map(|r| &r.backend_refs) {
                let mut ports = inputs.ports_of(&backend.name);
                let served = ports.any(|p| p.port == backend.port);
                if !served {
                    let text = format!(
                        "its backend {}:{} does not exist; requests for it fail",
                        backend.name, backend.port
                    );
                    report(object.clone(), text);
                }
            }
        }
    }
}

fn unit_name(unit: &Unit) -> String {
    match unit {
        Unit::Mesh => "the mesh".into(),
        Unit::Service(name) => format!("service {name}"),
        Unit::Gateway(name) => format!("Gateway/{name}"),
        Unit::Pod(name) => format!("Pod/{name}"),
        Unit::Egress => "egress".into(),
        Unit::Catalog => "the catalog".into(),
    }
}
