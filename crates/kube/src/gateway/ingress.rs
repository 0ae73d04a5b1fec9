//! Gateways that serve Ingresses: their owners, what keeps them from serving, and the status of the
//! Ingresses. Pure.

use super::plan::{Planned, Subject};
use super::status;
use super::view::{Own, View};
use crate::gateway_fields::{Class, Key};
use crate::ingress::{GROUP, Member, Served, problem};
use crate::status::{ChangedStatus, StatusUpdate, StatusUpdates};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Ports that a gateway has from the start, so that the first certificate of a namespace needs no new pods.
const PORTS: [u16; 2] = [80, 443];
/// Owners of a gateway's objects. Which owners are listed matters only when all are gone.
const MOST_OWNERS: usize = 32;

/// Prepares the gateway of a namespace's Ingresses for planning.
pub(super) fn subject(served: &Served) -> Subject<'_> {
    let members = served.members.iter().take(MOST_OWNERS);
    let owners = members.map(|member| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "name": member.name, "uid": member.uid,
        })
    });
    Subject {
        gateway: &served.gateway,
        class: Class::with_annotations(&served.annotations),
        owners: owners.collect(),
        attached: served.attached.clone(),
        ports: &PORTS,
    }
}

/// Reports the parts of the Ingresses that are not served, beside those that translation reports.
pub(super) fn judge(key: &Key, served: &Served, own: &Own, planned: &mut Planned) {
    let mut problems = served.problems.clone();
    let mut say = |name: &str, text: String| problems.push(problem(&key.namespace, name, text));
    for listener in list(&planned.status["listeners"]) {
        let Some(ingress) = listener["name"].as_str().and_then(|n| served.asked.get(n)) else {
            continue;
        };
        if let Some(why) = unmet(listener, "ResolvedRefs").or(unmet(listener, "Accepted")) {
            say(ingress, format!("its `tls` is not served: {why}"));
        }
    }
    // Until the API server has said what runs there, nothing is known of it.
    if own.access.contains_key(&key.namespace)
        && let Some(why) = unmet(&planned.status, "Programmed")
    {
        let why = match unmet(&planned.status, "Accepted") {
            Some(why) => format!("annotations of its IngressClass: {why}"),
            None => why.replace("(spec.infrastructure)", "(annotations of its IngressClass)"),
        };
        for member in &served.members {
            say(&member.name, format!("it is not served yet: {why}"));
        }
    }
    planned.problems = problems;
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Returns the message of a condition that does not hold.
fn unmet<'a>(place: &'a Value, kind: &str) -> Option<&'a str> {
    let mut all = list(&place["conditions"]);
    let found = all.find(|c| c["type"] == kind && c["status"] == "False");
    found.and_then(|c| c["message"].as_str())
}

/// Tells each Ingress the addresses of what serves it.
pub(super) fn wish_statuses(view: &View, plan: &BTreeMap<Key, Planned>, wishes: &StatusUpdates) {
    let mut all = Vec::new();
    for (key, served) in &view.ingresses {
        let Some(planned) = plan.get(key) else {
            continue;
        };
        for member in &served.members {
            if let Some(status) =
                ChangedStatus::if_changed(&member.status, load_balancer(member, &planned.status))
            {
                let wish = StatusUpdate {
                    api_version: format!("{GROUP}/v1"),
                    namespace: key.namespace.clone(),
                    name: member.name.clone(),
                    resource_version: member.resource_version.clone(),
                    status,
                };
                all.push((Key::new(&key.namespace, &member.name).object_name(), wish));
            }
        }
    }
    wishes.want_all(GROUP, "Ingress", all.into_iter());
}

/// Makes the status of an Ingress. It has addresses once they serve, and keeps them while pods come and go.
fn load_balancer(member: &Member, gateway: &Value) -> Value {
    let before = &member.status["loadBalancer"]["ingress"];
    let had = list(before).next().is_some();
    let serves = status::holds(gateway, "Programmed") || had;
    let addresses = list(&gateway["addresses"]).filter(|_| serves && member.in_force);
    let entries: Vec<Value> = addresses
        .map(|address| match address["type"].as_str() {
            Some("Hostname") => json!({ "hostname": address["value"] }),
            _ => json!({ "ip": address["value"] }),
        })
        .collect();
    match (entries.is_empty(), had) {
        (false, _) => json!({ "loadBalancer": { "ingress": entries } }),
        // In a merge patch, null removes the field.
        (true, true) => json!({ "loadBalancer": { "ingress": null } }),
        (true, false) => json!({}),
    }
}
