//! A refused restriction closes each of its targets that can be read.

use super::*;
use tulle_model::manifest::TargetRef;

fn policy(uid: &str, spec: Value) -> Value {
    let mut made = object(
        "tulle.dev/v1alpha1",
        "AuthorizationPolicy",
        "p",
        "shop",
        spec,
    );
    made["metadata"]["uid"] = uid.into();
    made
}

/// The targets at which everybody is denied.
fn denied(edits: &[Edit]) -> Vec<TargetRef> {
    let [Edit::Put(object)] = edits else {
        panic!("{edits:?}");
    };
    let Object::AuthorizationPolicy(policy) = &**object else {
        panic!("{object:?}");
    };
    assert_eq!(policy.spec.action.as_deref(), Some("Deny"));
    policy.spec.target_refs.clone()
}

#[test]
fn a_bad_target_opens_none_of_the_others() {
    let good = json!({ "kind": "Service", "name": "web", "port": 80 });
    for (bad, whole) in [
        (
            json!({ "kind": "Service", "name": "cart", "sectionName": "a b" }),
            Some("cart.shop"),
        ),
        (
            json!({ "kind": "HTTPRoute", "name": "r", "port": 80 }),
            Some("r.shop"),
        ),
        // It is not known what these are.
        (json!({ "kind": "Service", "name": "No_Name" }), None),
        (json!({ "kind": "Newer", "name": "cart" }), None),
        (
            json!({ "group": "newer.io", "kind": "Service", "name": "cart" }),
            None,
        ),
    ] {
        for made_again in [false, true] {
            let mut world = World::new();
            world.edits();
            if made_again {
                let spec = json!({ "targetRefs": [good], "rules": [{}] });
                let edits = world.see(policy("1", spec));
                assert_eq!(put(&edits), ["+AuthorizationPolicy/p.shop"]);
            }
            let spec = json!({ "targetRefs": [good, bad], "rules": [{}] });
            let targets = denied(&world.see(policy("2", spec)));
            let names: Vec<&str> = targets.iter().map(|t| t.name.as_str()).collect();
            let expected: Vec<&str> = std::iter::once("web.shop").chain(whole).collect();
            assert_eq!(names, expected, "{bad}");
            assert_eq!(targets[0].port, Some(80), "{bad}");
            assert!(targets[1..].iter().all(TargetRef::is_whole), "{bad}");
        }
    }
}

#[test]
fn a_refused_policy_that_only_counts_closes_nothing() {
    let mut world = World::new();
    world.edits();
    let refused = |mode: &str| {
        let targets = json!([{ "kind": "Service", "name": "web" }]);
        let spec = json!({ "targetRefs": targets, "mode": mode, "rules": [{ "frm": {} }] });
        policy("1", spec)
    };
    assert!(world.see(refused("Audit")).is_empty());
    assert_eq!(denied(&world.see(refused("Enforce"))).len(), 1);
}
