//! Builds the statuses of Gateways and their class. Pure.

use super::listeners::{Judged, Trouble};
use super::view::{Deployment, Service};
use super::{EGRESS_CLASS, FEATURES, NOT_PERMITTED};
use crate::gateway_fields::{Class, Gateway};
use crate::status::{Condition, conditions};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Good unless there is a trouble.
fn condition(kind: &'static str, trouble: Option<&Trouble>, good: &str) -> Condition {
    match trouble {
        None => Condition::new(kind, true, good, ""),
        Some((reason, text)) => Condition::new(kind, false, reason, text),
    }
}

/// The status of a class of ours.
pub(super) fn class(name: &str, class: &Class) -> Value {
    let trouble: Option<Trouble> = class.spec.parameters_ref.as_ref().map(|_| {
        let text = "parametersRef is not read: use annotations of the class";
        ("InvalidParameters", text.to_owned())
    });
    let accepted = condition("Accepted", trouble.as_ref(), "Accepted");
    // An egress gateway has none of the features that Gateway API names: they are about routes.
    let features = FEATURES.iter().filter(|_| name != EGRESS_CLASS);
    let features = features.map(|name| json!({ "name": name }));
    let mut status = conditions(&class.status, &[accepted], Some(class.generation));
    status["supportedFeatures"] = features.collect();
    status
}

/// The facts about a gateway that its status depends on.
pub(super) struct Known<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) listeners: &'a [Judged<'a>],
    /// Why it is not accepted as a whole.
    pub(super) trouble: Option<&'a Trouble>,
    /// Why the controller may not create the gateway's objects.
    pub(super) denied: Option<&'a str>,
    /// Routes of each listener.
    pub(super) attached: &'a BTreeMap<&'a str, usize>,
    /// The name of its Service.
    pub(super) name: &'a str,
    pub(super) service: Option<&'a Service>,
    pub(super) deployment: Option<&'a Deployment>,
}

/// The status of a gateway.
pub(super) fn gateway(known: &Known<'_>) -> Value {
    let bad: Vec<&str> = known
        .listeners
        .iter()
        .filter(|l| !l.is_accepted())
        .map(|l| l.listener.name.as_str())
        .collect();
    let accepted = match known.trouble {
        None if !bad.is_empty() => {
            let text = format!("not all listeners are in order: {}", bad.join(", "));
            Condition::new("Accepted", true, "ListenersNotValid", &text)
        }
        trouble => condition("Accepted", trouble, "Accepted"),
    };
    let addresses = known.service.map(addresses).unwrap_or_default();
    let pending = pending(known, &addresses);
    let programmed = match pending {
        None if known.gateway.is_egress() => {
            Condition::new("Programmed", true, "Programmed", &way_out(known))
        }
        _ => condition("Programmed", pending.as_ref(), "Programmed"),
    };
    let listeners = known.listeners.iter();
    let listeners = listeners.map(|l| listener(known, l, pending.as_ref()));
    let Gateway {
        status, generation, ..
    } = known.gateway;
    let mut status = conditions(status, &[accepted, programmed], Some(*generation));
    status["listeners"] = listeners.collect();
    status["addresses"] = addresses.into();
    status
}

/// Says how an Egress goes through an egress gateway.
fn way_out(known: &Known<'_>) -> String {
    let served = known.listeners.iter().filter(|l| l.is_accepted());
    let ports: BTreeSet<u16> = served.map(|l| l.listener.port).collect();
    let name = known.name;
    let ways = ports.iter();
    let ways: Vec<String> = ways
        .map(|port| format!("gateway: {{ service: {name}, port: {port} }}"))
        .collect();
    let ways = ways.join(" or ");
    format!("an Egress of this namespace goes through it with `{ways}`")
}

/// Whether a condition holds.
pub(super) fn holds(place: &Value, kind: &str) -> bool {
    let mut all = place["conditions"].as_array().into_iter().flatten();
    all.any(|c| c["type"] == kind && c["status"] == "True")
}

/// Returns the reason why clients cannot be served yet.
fn pending(known: &Known<'_>, addresses: &[Value]) -> Option<Trouble> {
    if known.trouble.is_some() {
        return Some(("Invalid", "it is not accepted".into()));
    }
    if let Some(why) = known.denied {
        return Some((NOT_PERMITTED, why.to_owned()));
    }
    if known.deployment.is_none_or(|d| d.available == 0) {
        return Some(("Pending", "no pod of its Deployment is ready yet".into()));
    }
    if addresses.is_empty() {
        let text = "its Service has no address yet: is there a load balancer in this cluster? If not, \
                    annotate it `tulle.dev/service-type: NodePort` or `ClusterIP` (spec.infrastructure)";
        return Some(("AddressNotAssigned", text.into()));
    }
    // While another listener serves, the Gateway does.
    let mut served = known.listeners.iter().filter(|l| l.is_good()).peekable();
    if let Some(first) = served.peek().and_then(|l| l.expired.clone())
        && served.all(|l| l.expired.is_some())
    {
        return Some(("Invalid", first.1));
    }
    let mut wanted = known.gateway.spec.addresses.iter();
    let missing = wanted.find_map(|wanted| {
        let value = wanted.value.as_deref().filter(|v| !v.is_empty())?;
        let has = addresses.iter().any(|a| a["value"] == value);
        (!has).then_some(value)
    });
    let missing = missing?;
    let text = format!("its Service does not have the address {missing}");
    Some(("AddressNotUsable", text))
}

fn addresses(service: &Service) -> Vec<Value> {
    let ip = |ip: &str| json!({ "type": "IPAddress", "value": ip });
    if service.kind == "LoadBalancer" {
        let ingress = service.ingress.iter();
        let found = ingress.filter_map(|i| match (&i.ip, &i.hostname) {
            (Some(address), _) => Some(ip(address)),
            (None, Some(name)) => Some(json!({ "type": "Hostname", "value": name })),
            (None, None) => None,
        });
        return found.collect();
    }
    let ips = service.cluster_ips.iter().filter(|ip| *ip != "None");
    ips.map(|address| ip(address)).collect()
}

fn listener(known: &Known<'_>, judged: &Judged<'_>, pending: Option<&Trouble>) -> Value {
    let name = &judged.listener.name;
    let before = known.gateway.status["listeners"].as_array();
    let before = before.into_iter().flatten().find(|l| l["name"] == **name);
    let conflicted = match &judged.conflict {
        None => Condition::new("Conflicted", false, "NoConflicts", ""),
        Some((reason, text)) => Condition::new("Conflicted", true, reason, text),
    };
    let refused = judged.refused.as_ref().or(judged.conflict.as_ref());
    let unresolved = judged.unresolved.as_ref().or(judged.expired.as_ref());
    let bad = refused.or(unresolved);
    let bad = bad.map(|(_, text)| ("Invalid", text.clone()));
    let programmed = bad.as_ref().or(pending);
    let kinds = judged.kinds.iter();
    let kinds = kinds.map(|kind| json!({ "group": super::GROUP, "kind": kind.name() }));
    let all = [
        condition("Accepted", refused, "Accepted"),
        conflicted,
        condition("Programmed", programmed, "Programmed"),
        condition("ResolvedRefs", unresolved, "ResolvedRefs"),
    ];
    let generation = Some(known.gateway.generation);
    let mut status = conditions(before.unwrap_or(&Value::Null), &all, generation);
    status["name"] = name.as_str().into();
    status["supportedKinds"] = kinds.collect();
    let attached = known.attached.get(name.as_str());
    status["attachedRoutes"] = attached.copied().unwrap_or_default().into();
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_names_what_the_conformance_suite_is_run_with() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/kube/gateway-api/features"
        );
        let claimed = std::fs::read_to_string(file).unwrap();
        let claimed = claimed
            .lines()
            .filter(|l| !l.is_empty() && !l.starts_with('#'));
        // The suite does not ask for the feature that each profile is about.
        let core = ["Gateway", "ReferenceGrant", "TLSRoute"];
        let mut all: Vec<&str> = claimed.chain(core).collect();
        all.sort_unstable();
        assert_eq!(all, FEATURES);
        assert!(FEATURES.is_sorted());
    }
}
