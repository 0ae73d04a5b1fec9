//! What Gateways and their class say of themselves. Pure.

use super::FEATURES;
use super::listeners::{Judged, Trouble};
use super::view::{Class, Deployment, Gateway, Service};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Conditions of one object, which keep the time of their last change.
struct Conditions<'a> {
    before: &'a Value,
    generation: i64,
    now: &'a str,
}

impl Conditions<'_> {
    fn one(&self, kind: &str, holds: bool, reason: &str, message: &str) -> Value {
        let status = if holds { "True" } else { "False" };
        let before = self.before.as_array().into_iter().flatten();
        let same = before.filter(|c| c["type"] == kind && c["status"] == status);
        let since = same.filter_map(|c| c["lastTransitionTime"].as_str()).next();
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "observedGeneration": self.generation,
            "lastTransitionTime": since.unwrap_or(self.now),
        })
    }

    fn of(&self, kind: &str, trouble: Option<&Trouble>, good: &str) -> Value {
        match trouble {
            None => self.one(kind, true, good, ""),
            Some((reason, text)) => self.one(kind, false, reason, text),
        }
    }
}

/// The status of a class of ours.
pub(super) fn class(class: &Class, now: &str) -> Value {
    let conditions = Conditions {
        before: &class.status["conditions"],
        generation: class.generation,
        now,
    };
    let trouble: Option<Trouble> = class.spec.parameters_ref.as_ref().map(|_| {
        let text = "parametersRef is not read: use annotations of the class";
        ("InvalidParameters", text.to_owned())
    });
    let features = FEATURES.iter().map(|name| json!({ "name": name }));
    json!({
        "conditions": [conditions.of("Accepted", trouble.as_ref(), "Accepted")],
        "supportedFeatures": features.collect::<Vec<_>>(),
    })
}

/// What is known of a gateway.
pub(super) struct Known<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) listeners: &'a [Judged<'a>],
    /// Why it is not accepted as a whole.
    pub(super) trouble: Option<&'a Trouble>,
    /// Routes of each listener.
    pub(super) attached: &'a BTreeMap<&'a str, usize>,
    pub(super) service: Option<&'a Service>,
    pub(super) deployment: Option<&'a Deployment>,
}

/// The status of a gateway.
pub(super) fn gateway(known: &Known<'_>, now: &str) -> Value {
    let conditions = Conditions {
        before: &known.gateway.status["conditions"],
        generation: known.gateway.generation,
        now,
    };
    let bad: Vec<&str> = known
        .listeners
        .iter()
        .filter(|l| !l.is_accepted())
        .map(|l| l.listener.name.as_str())
        .collect();
    let accepted = match known.trouble {
        None if !bad.is_empty() => {
            let text = format!("not all listeners are in order: {}", bad.join(", "));
            conditions.one("Accepted", true, "ListenersNotValid", &text)
        }
        trouble => conditions.of("Accepted", trouble, "Accepted"),
    };
    let addresses = known.service.map(addresses).unwrap_or_default();
    let pending = pending(known, &addresses);
    let programmed = conditions.of("Programmed", pending.as_ref(), "Programmed");
    let listeners = known
        .listeners
        .iter()
        .map(|l| listener(known, l, pending.as_ref(), now));
    let mut status = json!({
        "conditions": [accepted, programmed],
        "listeners": listeners.collect::<Vec<_>>(),
    });
    if !addresses.is_empty() {
        status["addresses"] = addresses.into();
    }
    status
}

/// What keeps clients from being served.
fn pending(known: &Known<'_>, addresses: &[Value]) -> Option<Trouble> {
    if known.trouble.is_some() {
        return Some(("Invalid", "it is not accepted".into()));
    }
    if known.deployment.is_none_or(|d| d.available == 0) {
        return Some(("Pending", "no pod of its Deployment is ready yet".into()));
    }
    if addresses.is_empty() {
        let text = "its Service has no address yet: is there a load balancer in this cluster? If not, \
                    annotate it `tulle.dev/service-type: NodePort` or `ClusterIP` (spec.infrastructure)";
        return Some(("AddressNotAssigned", text.into()));
    }
    let mut wanted = known.gateway.spec.addresses.iter();
    let missing = wanted.find_map(|wanted| {
        let value = wanted.value.as_deref().filter(|v| !v.is_empty())?;
        let has = addresses.iter().any(|a| a["value"] == value);
        (!has).then_some(value)
    });
    let missing = missing?;
    let text = format!("its Service has not been given {missing}");
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

fn listener(known: &Known<'_>, judged: &Judged<'_>, pending: Option<&Trouble>, now: &str) -> Value {
    let name = &judged.listener.name;
    let before = known.gateway.status["listeners"].as_array();
    let before = before.into_iter().flatten().find(|l| l["name"] == **name);
    let none = Value::Null;
    let conditions = Conditions {
        before: before.map_or(&none, |l| &l["conditions"]),
        generation: known.gateway.generation,
        now,
    };
    let conflicted = match &judged.conflict {
        None => conditions.one("Conflicted", false, "NoConflicts", ""),
        Some((reason, text)) => conditions.one("Conflicted", true, reason, text),
    };
    let refused = judged.refused.as_ref().or(judged.conflict.as_ref());
    let bad = refused.or(judged.unresolved.as_ref());
    let bad = bad.map(|(_, text)| ("Invalid", text.clone()));
    let programmed = bad.as_ref().or(pending);
    let kinds = judged.kinds.iter();
    let kinds = kinds.map(|kind| json!({ "group": super::GROUP, "kind": kind.name() }));
    json!({
        "name": name,
        "supportedKinds": kinds.collect::<Vec<_>>(),
        "attachedRoutes": known.attached.get(name.as_str()).copied().unwrap_or_default(),
        "conditions": [
            conditions.of("Accepted", refused, "Accepted"),
            conflicted,
            conditions.of("Programmed", programmed, "Programmed"),
            conditions.of("ResolvedRefs", judged.unresolved.as_ref(), "ResolvedRefs"),
        ],
    })
}

/// Whether a status says all of another one already. Conditions of others may be beside ours.
pub(super) fn covers(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let mut parts = new.iter();
            parts.all(|(key, new)| covers(old.get(key).unwrap_or(&Value::Null), new))
        }
        (Value::Array(old), Value::Array(new)) => {
            let conditions = new
                .iter()
                .any(|item| item.get("lastTransitionTime").is_some());
            let each = new.iter().all(|new| old.iter().any(|old| covers(old, new)));
            each && (conditions || old.len() == new.len())
        }
        (Value::Null, Value::Array(new)) => new.is_empty(),
        (old, new) => old == new,
    }
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
        // What each profile of the suite has for itself is not asked for.
        let core = ["Gateway", "ReferenceGrant", "TLSRoute"];
        let mut all: Vec<&str> = claimed.chain(core).collect();
        all.sort_unstable();
        assert_eq!(all, FEATURES);
        assert!(FEATURES.is_sorted());
    }

    #[test]
    fn a_status_that_says_less_is_another() {
        let now = json!({ "listeners": [{ "name": "a", "kinds": ["x"] }], "addresses": [] });
        assert!(covers(
            &json!({ "listeners": [{ "name": "a", "kinds": ["x"] }] }),
            &now
        ));
        for other in [
            json!({ "listeners": [{ "name": "a", "kinds": ["x", "y"] }] }),
            json!({ "listeners": [{ "name": "a", "kinds": ["x"] }, { "name": "b" }] }),
            json!({ "listeners": [] }),
            Value::Null,
        ] {
            assert!(!covers(&other, &now), "{other}");
        }
        let condition = |kind: &str| json!({ "type": kind, "lastTransitionTime": "t" });
        let both = json!([condition("a"), condition("theirs")]);
        assert!(covers(&both, &json!([condition("a")])));
    }
}
