//! Finds targets of policies that do not exist, or where a policy protects nothing.

use super::known::{Known, listed};
use super::{Found, code};
use crate::manifest::TargetRef;

impl Known<'_> {
    /// The objects a policy is about.
    pub(super) fn targets(&self, refs: &[TargetRef], found: &mut Found<'_>) {
        for (i, reference) in refs.iter().enumerate() {
            let at = format!("spec.targetRefs[{i}]");
            let missing = match reference.kind() {
                "Gateway" => self.gateway_target(reference),
                "HTTPRoute" | "GRPCRoute" => self.route_target(&at, reference, found),
                _ => self.service_target(reference),
            };
            if let Some((field, message)) = missing {
                let message = format!("{message}; it is about nothing");
                found.warn(code::SELECTS_NOTHING, format!("{at}.{field}"), message);
            }
        }
    }

    fn service_target(&self, reference: &TargetRef) -> Option<(&'static str, String)> {
        let name = &reference.name;
        let Some(ports) = self.services.get(name.as_str()) else {
            let message = format!("there is no workload of service `{name}` (yet)");
            return Some(("name", message));
        };
        if let Some(port) = reference.port.filter(|p| !ports.contains_key(p)) {
            let ports = listed(ports);
            let message = format!("service `{name}` has no port {port}, its ports are: {ports}");
            return Some(("port", message));
        }
        let section = reference.section_name.as_deref()?;
        let mut ports = ports.iter();
        (!ports.any(|(port, of)| reference.covers(of.name, *port))).then(|| {
            let message = format!("service `{name}` has no such port named `{section}`");
            ("sectionName", message)
        })
    }

    fn gateway_target(&self, reference: &TargetRef) -> Option<(&'static str, String)> {
        let name = &reference.name;
        let Some(listeners) = self.gateways.get(name.as_str()) else {
            return Some(("name", format!("there is no Gateway `{name}` (yet)")));
        };
        let mut covered = listeners.iter();
        if covered.any(|l| reference.covers(Some(&l.name), l.port)) {
            return None;
        }
        let field = match reference.section_name {
            Some(_) => "sectionName",
            None => "port",
        };
        Some((field, format!("Gateway `{name}` has no such listener")))
    }

    /// Checks a target that is a route. Callers of a service apply its routes themselves, so a
    /// policy there protects nobody.
    fn route_target(
        &self,
        at: &str,
        reference: &TargetRef,
        found: &mut Found<'_>,
    ) -> Option<(&'static str, String)> {
        let (kind, name) = (reference.kind(), reference.name.as_str());
        let Some(route) = self.routes.get(&(kind, name)) else {
            return Some(("name", format!("there is no {kind} `{name}` (yet)")));
        };
        if let Some(service) = route.service {
            let message = format!(
                "{kind} `{name}` is attached to service `{service}`, where its callers would have \
                 to enforce the policy on themselves; target the Service, with the requests in \
                 `to` of the rules"
            );
            found.refuse(code::UNENFORCED, format!("{at}.name"), message);
        }
        let section = reference.section_name.as_deref()?;
        (!route.rules.contains(section)).then(|| {
            let message = format!("{kind} `{name}` has no rule named `{section}`");
            ("sectionName", message)
        })
    }
}
