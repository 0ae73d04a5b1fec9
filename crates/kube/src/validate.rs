//! The validating webhook: an object that cannot mean anything is refused when it is written, with the
//! field and the reason. An object that came past it (the controller was away) is judged in the same
//! way when it is read, and has the reason in its status.
//!
//! Gateway API's objects may be another controller's, which may do what Tulle does not: about those it
//! only warns, and nobody waits for it.

use crate::gateway::{CLASS, EGRESS_CLASS, unserved_egress};
use crate::kinds::GATEWAY as GATEWAY_GROUP;
use crate::object::read;
use crate::review::{self, Request, Review};
use crate::root::other_trust_domain;
use serde_json::{Value, json};

/// Answers a review of an object that is created or changed.
/// `trust_domain` is the mesh's.
pub fn response(review: &Review<'_>, trust_domain: &str) -> Value {
    let request = review.request();
    let uid = &request.uid;
    review::response(match judge(request, trust_domain) {
        Verdict::Good => review::allowed(uid),
        Verdict::Warned(why) => {
            let mut response = review::allowed(uid);
            response["warnings"] = json!([why]);
            response
        }
        Verdict::Refused(why) => review::refused(uid, &why),
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Warned(String),
    Refused(String),
}

fn judge(request: &Request<'_>, trust_domain: &str) -> Verdict {
    let stays = |o: &Value| o.pointer("/metadata/deletionTimestamp").is_none();
    // An object that is being deleted is let through: a refusal would keep finalizers from being taken
    // off.
    let Some(mut object) = request.object().filter(stays) else {
        return Verdict::Good;
    };
    let other = match request.kind.kind.as_str() {
        "Mesh" => text(&object, "/spec/trustDomain").map(str::to_owned),
        "ConfigMap" => chosen_trust_domain(&object),
        _ => None,
    };
    if let Some(other) = other.filter(|other| other != trust_domain) {
        return Verdict::Refused(other_trust_domain(trust_domain, &other));
    }
    if request.kind.kind == "ConfigMap" {
        return Verdict::Good;
    }
    let of_gateway_api = request.kind.group == GATEWAY_GROUP;
    if of_gateway_api && text(&object, "/spec/gatewayClassName") == Some(EGRESS_CLASS) {
        let why = unserved_egress(&object["spec"]);
        return why.map_or(Verdict::Good, unserved);
    }
    if of_gateway_api && let Some(spec) = object["spec"].as_object_mut() {
        // A cluster's gateways have these fields and a host's do not; the Gateway's status reports on
        // them.
        spec.retain(|field, _| !["addresses", "infrastructure"].contains(&&**field));
        let listeners = spec.get_mut("listeners").and_then(Value::as_array_mut);
        for listener in listeners.into_iter().flatten() {
            if let Some(listener) = listener.as_object_mut() {
                listener.remove("allowedRoutes");
            }
        }
    }
    let Err(why) = read(&object) else {
        return Verdict::Good;
    };
    if of_gateway_api {
        let class = object.pointer("/spec/gatewayClassName");
        return match class.and_then(Value::as_str) {
            // Gateways of other classes get no warning, though such a class may be ours under another
            // name.
            Some(class) if class != CLASS => Verdict::Good,
            _ => unserved(why),
        };
    }
    // An object that an earlier version let pass may still get labels.
    let old = request.old_object();
    let spec = object.get("spec").filter(|spec| !spec.is_null());
    if spec.is_some() && spec == old.as_ref().and_then(|o| o.get("spec")) {
        return Verdict::Warned(format!("it has no effect: {why}"));
    }
    Verdict::Refused(why)
}

fn unserved(why: String) -> Verdict {
    Verdict::Warned(format!("Tulle cannot serve it: {why}"))
}

/// Reads the trust domain from the controller's settings.
fn chosen_trust_domain(settings: &Value) -> Option<String> {
    let settings = text(settings, "/data/settings.json")?;
    let settings: Value = serde_json::from_str(settings).ok()?;
    text(&settings, "/sidecars/trustDomain").map(str::to_owned)
}

fn text<'a>(value: &'a Value, place: &str) -> Option<&'a str> {
    value.pointer(place)?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::SETTINGS;

    fn review(group: &str, object: Value, old: Value) -> Value {
        json!({
            "kind": "AdmissionReview",
            "request": {
                "uid": "7", "kind": { "group": group, "kind": object["kind"] }, "operation": "UPDATE",
                "object": object, "oldObject": old,
            },
        })
    }

    fn split(backends: Value) -> Value {
        json!({
            "apiVersion": "split.smi-spec.io/v1alpha4", "kind": "TrafficSplit",
            "metadata": { "name": "s", "namespace": "shop", "uid": "1" },
            "spec": { "service": "a", "backends": backends },
        })
    }

    fn ask(group: &str, object: Value, old: Value) -> Value {
        let text = review(group, object, old).to_string();
        let mut answer = response(&Review::read(text.as_bytes()).unwrap(), "prod.example");
        assert_eq!(answer["response"]["uid"], "7");
        answer["response"].take()
    }

    #[test]
    fn an_object_that_cannot_mean_anything_is_refused() {
        let group = "split.smi-spec.io";
        let bad = split(json!([{ "service": "b", "weight": 0 }]));
        let refused = ask(group, bad.clone(), Value::Null);
        assert_eq!(refused["allowed"], false);
        let why = refused["status"]["message"].as_str().unwrap();
        assert!(
            why.contains("TrafficSplit/s: spec.backends: every backend has weight 0"),
            "{why}"
        );

        let good = split(json!([{ "service": "b", "weight": 1 }]));
        let allowed = json!({ "uid": "7", "allowed": true });
        assert_eq!(ask(group, good.clone(), Value::Null), allowed);
        assert_eq!(ask(group, good.clone(), bad.clone()), allowed);
        assert_eq!(ask(group, bad.clone(), good)["allowed"], false);

        // The object existed before: its labels may change, and it may be deleted.
        let labelled = ask(group, bad.clone(), bad.clone());
        assert_eq!(labelled["allowed"], true);
        assert!(
            labelled["warnings"][0]
                .as_str()
                .unwrap()
                .starts_with("it has no effect: ")
        );
        let mut going = bad.clone();
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(ask(group, going, bad), allowed);
    }

    #[test]
    fn the_trust_domain_stays() {
        let mesh = |domain: Value| {
            json!({
                "apiVersion": "tulle.dev/v1alpha1", "kind": "Mesh", "metadata": { "name": "mesh", "uid": "1" },
                "spec": { "trustDomain": domain },
            })
        };
        let settings = |domain: &str| {
            let settings = json!({ "sidecars": { "trustDomain": domain } }).to_string();
            json!({ "kind": "ConfigMap", "metadata": { "name": SETTINGS }, "data": { "settings.json": settings } })
        };
        let old = || mesh("prod.example".into());
        for (group, other) in [("tulle.dev", mesh("other".into())), ("", settings("other"))] {
            let refused = ask(group, other, old());
            let why = refused["status"]["message"].as_str().unwrap();
            assert!(
                why.contains("since the installation") && why.contains("tulle uninstall"),
                "{why}"
            );
        }
        for (group, same) in [
            ("tulle.dev", old()),
            ("", settings("prod.example")),
            ("", json!({ "kind": "ConfigMap" })),
        ] {
            assert_eq!(ask(group, same, Value::Null)["allowed"], true);
        }
    }

    #[test]
    fn of_objects_that_may_be_others_it_only_warns() {
        let gateway = |class: &str| {
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": { "name": "g" },
                "spec": {
                    "gatewayClassName": class, "defaultScope": "All",
                    "listeners": [{ "name": "a", "port": 80, "protocol": "HTTP" }],
                },
            })
        };
        let ours = ask(GATEWAY_GROUP, gateway("tulle"), Value::Null);
        assert_eq!(ours["allowed"], true);
        let warning = ours["warnings"][0].as_str().unwrap();
        assert!(warning.contains("spec.defaultScope"), "{warning}");
        let allowed = json!({ "uid": "7", "allowed": true });
        let theirs = ask(GATEWAY_GROUP, gateway("nginx"), Value::Null);
        assert_eq!(theirs, allowed);
        let egress = ask(GATEWAY_GROUP, gateway("tulle-egress"), Value::Null);
        let warning = egress["warnings"][0].as_str().unwrap();
        assert!(warning.contains("listener a: protocol HTTP"), "{warning}");
        let mut egress = gateway("tulle-egress");
        egress["spec"]["listeners"][0]["protocol"] = "tulle.dev/CONNECT".into();
        assert_eq!(ask(GATEWAY_GROUP, egress, Value::Null), allowed);
        let mut served = gateway("tulle");
        served["spec"] = json!({
            "gatewayClassName": "tulle", "addresses": [{ "type": "IPAddress" }],
            "listeners": [{
                "name": "a", "port": 80, "protocol": "HTTP",
                "allowedRoutes": {
                    "kinds": [{ "kind": "HTTPRoute" }],
                    "namespaces": { "from": "Selector", "selector": { "matchLabels": { "a": "b" } } },
                },
            }],
            "infrastructure": { "annotations": { "tulle.dev/service-type": "ClusterIP" } },
        });
        assert_eq!(ask(GATEWAY_GROUP, served, Value::Null), allowed);
    }
}
