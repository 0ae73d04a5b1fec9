//! An object that was deleted and made again is another one: nothing of the one before stays in force.

use super::*;

const TULLE: &str = "tulle.dev/v1alpha1";

/// An Authentication that reads a ConfigMap, or one that is refused.
fn authentication(uid: &str, valid: bool) -> Value {
    let provider = json!({ "issuer": "i", "jwksRef": { "name": "keys" } });
    let mut spec = json!({
        "targetRefs": [{ "kind": "Service", "name": "web" }],
        "jwt": { "providers": [provider] },
    });
    if !valid {
        spec["jwt"] = json!(1);
    }
    let mut made = object(TULLE, "Authentication", "a", "shop", spec);
    made["metadata"]["uid"] = uid.into();
    made
}

#[test]
fn a_refused_restriction_that_was_made_again_closes_its_targets() {
    let (own, denied) = (
        "Authentication/a.shop",
        "AuthorizationPolicy/authentication/a.shop",
    );
    // The deletion is seen in the same batch, or not at all: then a new list has another object of the name.
    for is_seen in [true, false] {
        let mut world = World::new();
        world.edits();
        let edits = world.see(authentication("1", true));
        assert_eq!(put(&edits), [format!("+{own}")]);
        // One that was changed is the same.
        assert!(world.see(authentication("1", false)).is_empty());
        assert_eq!(world.objects.view().texts.len(), 1);
        if is_seen {
            let key: ObjectName = named("a.shop").into();
            world.objects.remove(kind("Authentication"), &key);
        }
        let edits = world.see(authentication("2", false));
        let all = [format!("-{own}"), format!("+{denied}")];
        assert_eq!(put(&edits), all, "seen: {is_seen}");
        assert!(world.objects.view().texts.is_empty());
        assert!(world.see(authentication("2", false)).is_empty());
        let edits = world.see(authentication("2", true));
        let all = [format!("-{denied}"), format!("+{own}")];
        assert_eq!(put(&edits), all, "seen: {is_seen}");
    }
}

#[test]
fn a_refused_object_that_was_made_again_and_restricts_nobody_is_nothing() {
    let mut world = World::new();
    world.edits();
    let policy = |request: Value| {
        let spec = json!({
            "targetRefs": [{ "kind": "Service", "name": "web" }], "timeouts": { "request": request },
        });
        object(TULLE, "TrafficPolicy", "p", "shop", spec)
    };
    let edits = world.see(policy(json!("1s")));
    assert_eq!(put(&edits), ["+TrafficPolicy/p.shop"]);
    let key: ObjectName = named("p.shop").into();
    world.objects.remove(kind("TrafficPolicy"), &key);
    let edits = world.see(policy(json!(1)));
    assert_eq!(put(&edits), ["-TrafficPolicy/p.shop"]);
    assert!(world.see(policy(json!(1))).is_empty());
}
