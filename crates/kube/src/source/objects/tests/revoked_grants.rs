//! A permission that its owner takes back ends for objects that are refused, too: their last valid form is in force without
//! it.

use super::*;
use crate::object::{NO_BACKEND, NO_TEXT};

const TULLE: &str = "tulle.dev/v1alpha1";
const GATEWAY: &str = "gateway.networking.k8s.io/v1";

/// Lets objects of the namespace `shop` refer to all of `other`.
fn grant(from: &str) -> Value {
    let (group, kind) = from.split_once('/').unwrap();
    let to = ["Service", "ConfigMap"].map(|kind| json!({ "group": "", "kind": kind }));
    let spec = json!({
        "from": [{ "group": group, "kind": kind, "namespace": "shop" }], "to": to,
    });
    object(GATEWAY, "ReferenceGrant", "g", "other", spec)
}

fn revoke(world: &mut World) -> Vec<Edit> {
    let grant: ObjectName = named("g.other").into();
    world.objects.remove(kind("ReferenceGrant"), &grant);
    world.edits()
}

/// The one object that the index is given, as it is written.
fn given(edits: &[Edit]) -> String {
    let [Edit::Put(object)] = edits else {
        panic!("{edits:?}");
    };
    object.to_json()
}

#[test]
fn a_refused_route_leads_to_no_backend_that_its_owner_takes_back() {
    let mut world = World::new();
    let there: Service =
        serde_json::from_value(json!({ "spec": { "ports": [{ "port": 80 }] } })).unwrap();
    world.state.service(named("web.other"), &there);
    world.edits();
    let backend = json!({ "name": "web", "namespace": "other", "port": 80 });
    let valid = route("shop", service("web"), backend);
    let mut refused = valid.clone();
    refused["spec"]["rules"][0]["matches"] = json!(1);
    world.see(grant("gateway.networking.k8s.io/HTTPRoute"));
    let before = given(&world.see(valid.clone()));
    assert!(before.contains("web.other"), "{before}");
    assert!(world.see(refused.clone()).is_empty());
    let after = given(&revoke(&mut world));
    assert!(
        after.contains(NO_BACKEND) && !after.contains("web.other"),
        "{after}"
    );
    // It is told once, and comes back with the permission.
    assert!(world.see(refused).is_empty());
    let again = world.see(grant("gateway.networking.k8s.io/HTTPRoute"));
    assert_eq!(given(&again), before);
    // The form in force is still the valid one, and not the refused one.
    assert!(world.see(valid).is_empty());
}

#[test]
fn an_object_reads_no_text_that_its_owner_takes_back() {
    let keys = json!({ "name": "keys", "namespace": "other" });
    let target = json!([{ "kind": "Service", "name": "web" }]);
    let provider = |keys: &Value| json!({ "issuer": "i", "jwksRef": keys });
    let tls = json!({ "caCertificateRef": keys });
    for (kind, spec) in [
        (
            "Authentication",
            json!({ "targetRefs": target, "jwt": { "providers": [provider(&keys)] } }),
        ),
        ("Plugin", json!({ "targetRefs": target, "sourceRef": keys })),
        (
            "Egress",
            json!({ "hosts": ["a.test"], "ports": [{ "number": 80, "protocol": "http" }], "tls": tls }),
        ),
    ] {
        for is_refused in [true, false] {
            let mut world = World::new();
            // Somebody else reads the text in any case.
            let own = provider(&json!({ "name": "keys" }));
            let own = json!({ "targetRefs": target, "jwt": { "providers": [own] } });
            world.see(object(TULLE, "Authentication", "own", "other", own));
            world.see(grant(&format!("tulle.dev/{kind}")));
            let mut given_object = object(TULLE, kind, "p", "shop", spec.clone());
            let before = given(&world.see(given_object.clone()));
            assert!(before.contains("keys.other"), "{before}");
            if is_refused {
                given_object["spec"]["frm"] = json!(1);
                assert!(world.see(given_object).is_empty());
            }
            let after = given(&revoke(&mut world));
            assert!(
                after.contains(NO_TEXT) && !after.contains("keys.other"),
                "{after}"
            );
            let text = TextKey {
                secret: false,
                key: Key::new("other", "keys"),
            };
            assert!(world.objects.view().texts.contains(&text));
            // A permission that comes back holds as before.
            let again = world.see(grant(&format!("tulle.dev/{kind}")));
            assert_eq!(given(&again), before, "{kind}, refused: {is_refused}");
        }
    }
}

#[test]
fn a_refused_route_is_taken_by_no_parent_that_would_not_take_it_now() {
    let mut world = World::new();
    world.edits();
    let valid = route(
        "shop",
        service("web"),
        json!({ "name": "cart", "port": 80 }),
    );
    let mut refused = valid.clone();
    refused["spec"]["rules"] = json!(1);
    assert_eq!(put(&world.see(valid)), ["+HTTPRoute/r.shop"]);
    assert!(world.see(refused).is_empty());
    world.state.remove_service(&named("web.shop"));
    assert_eq!(put(&world.edits()), ["-HTTPRoute/r.shop"]);
    let service: Service =
        serde_json::from_value(json!({ "spec": { "ports": [{ "port": 80 }] } })).unwrap();
    world.state.service(named("web.shop"), &service);
    // The valid form has ended with its parent.
    assert!(put(&world.edits()).is_empty());
}
