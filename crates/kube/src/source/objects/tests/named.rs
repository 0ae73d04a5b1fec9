//! `ResolvedRefs` names each filter, group of requests, ConfigMap and Secret that is not there.

use super::*;
use crate::gateway::view::{MOST_TEXTS, Presence};

const TULLE: &str = "tulle.dev/v1alpha1";
const RESOLVED: (&str, &str) = ("ResolvedRefs", "every reference resolves");

/// The reason and message of `ResolvedRefs`.
fn resolved(place: &Value) -> (&str, &str) {
    let found = condition(place, "ResolvedRefs");
    let holds = if found["reason"] == RESOLVED.0 {
        "True"
    } else {
        "False"
    };
    assert_eq!(found["status"], holds, "{found}");
    (text(found, "reason"), text(found, "message"))
}

#[test]
fn a_filter_that_a_route_names_is_looked_for() {
    let mut world = World::new();
    let named = |kind: &str| {
        let mut route = route(
            "shop",
            service("web"),
            json!({ "name": "cart", "port": 80 }),
        );
        route["spec"]["rules"][0]["filters"] = json!([{
            "type": "ExtensionRef",
            "extensionRef": { "group": "tulle.dev", "kind": kind, "name": "f" },
        }]);
        route
    };
    for (kind, spec) in [
        ("HTTPFilter", json!({})),
        ("Plugin", json!({ "script": "" })),
    ] {
        let missing = format!("there is no {kind} f in the namespace shop");
        let status =
            |world: &World| world.status("HTTPRoute", "r.shop").unwrap()["parents"][0].clone();
        world.see(named(kind));
        let absent = ("ReferenceNotFound", missing.as_str());
        assert_eq!(resolved(&status(&world)), absent);
        // A filter of another namespace is another one.
        world.see(object(TULLE, kind, "f", "other", spec.clone()));
        assert_eq!(resolved(&status(&world)), absent);
        world.see(object(TULLE, kind, "f", "shop", spec));
        assert_eq!(resolved(&status(&world)), RESOLVED);
        world.objects.keep(self::kind(kind), &BTreeSet::new());
        world.edits();
        assert_eq!(resolved(&status(&world)), absent);
    }
}

#[test]
fn a_group_of_requests_that_an_egress_names_is_looked_for() {
    let mut world = World::new();
    let group = |name: &str| {
        let spec = json!({ "matches": [{ "name": name, "methods": ["GET"] }] });
        object(
            "specs.smi-spec.io/v1alpha4",
            "HTTPRouteGroup",
            "g",
            "shop",
            spec,
        )
    };
    let reference = json!({ "kind": "HTTPRouteGroup", "name": "g", "matches": ["read"] });
    let spec = json!({
        "hosts": ["a.test"], "ports": [{ "number": 80, "protocol": "http" }], "matches": [reference],
    });
    world.see(object(TULLE, "Egress", "e", "shop", spec));
    let status = |world: &World| world.status("Egress", "e.shop").unwrap();
    let absent = (
        "ReferenceNotFound",
        "there is no HTTPRouteGroup g in the namespace shop",
    );
    assert_eq!(resolved(&status(&world)), absent);
    world.see(group("write"));
    let other = "HTTPRouteGroup g of the namespace shop has no match read";
    assert_eq!(resolved(&status(&world)), ("ReferenceNotFound", other));
    world.see(group("read"));
    assert_eq!(resolved(&status(&world)), RESOLVED);
}

#[test]
fn what_a_policy_reads_is_said_to_be_there_when_it_is_known() {
    let tls = json!({ "caCertificateRef": { "kind": "Secret", "name": "t" } });
    let provider = json!({ "issuer": "i", "jwksRef": { "name": "t" } });
    let target = json!([{ "kind": "Service", "name": "web" }]);
    for (kind, secret, spec) in [
        (
            "Authentication",
            false,
            json!({ "targetRefs": target, "jwt": { "providers": [provider] } }),
        ),
        (
            "Plugin",
            false,
            json!({ "targetRefs": target, "sourceRef": { "name": "t" } }),
        ),
        (
            "Egress",
            true,
            json!({ "hosts": ["a.test"], "ports": [{ "number": 80, "protocol": "http" }], "tls": tls }),
        ),
    ] {
        let mut world = World::new();
        world.see(object(TULLE, kind, "p", "shop", spec));
        let status = |world: &World| world.status(kind, "p.shop").unwrap();
        let unknown = status(&world);
        let all = list(&unknown["conditions"]);
        assert!(all.iter().all(|c| c["type"] != "ResolvedRefs"), "{unknown}");
        let text = TextKey {
            secret,
            key: Key::new("shop", "t"),
        };
        assert!(world.objects.view().texts.contains(&text), "{unknown}");
        let mut said = |presence: Presence| {
            world.objects.see(Texts([(text.clone(), presence)].into()));
            world.edits();
            let status = world.status(kind, "p.shop").unwrap();
            let (reason, message) = resolved(&status);
            (reason.to_owned(), message.to_owned())
        };
        let (reason, message) = said(Presence::Absent);
        assert_eq!(reason, "ReferenceNotFound");
        let expected = format!("there is no {} t in the namespace shop", text.kind());
        assert_eq!(message, expected);
        assert_eq!(said(Presence::Forbidden).0, "ReferenceNotRead");
        assert_eq!(said(Presence::Held).0, RESOLVED.0);
    }
}

#[test]
fn whether_another_namespace_has_a_secret_is_not_told_without_a_grant() {
    let mut world = World::new();
    let keys = json!({ "kind": "Secret", "name": "t", "namespace": "other" });
    let spec = json!({
        "targetRefs": [{ "kind": "Service", "name": "web" }],
        "jwt": { "providers": [{ "issuer": "i", "jwksRef": keys }] },
    });
    world.see(object(TULLE, "Authentication", "a", "shop", spec));
    for presence in [Presence::Held, Presence::Absent] {
        let text = TextKey {
            secret: true,
            key: Key::new("other", "t"),
        };
        world.objects.see(Texts([(text, presence)].into()));
        world.edits();
        let status = world.status("Authentication", "a.shop").unwrap();
        assert_eq!(resolved(&status).0, "RefNotPermitted");
        assert!(world.objects.view().texts.is_empty());
    }
}

/// An Authentication of the namespace `shop` with these keys.
fn authentication(keys: &Value) -> Value {
    let spec = json!({
        "targetRefs": [{ "kind": "Service", "name": "web" }],
        "jwt": { "providers": [{ "issuer": "i", "jwksRef": keys }] },
    });
    object(TULLE, "Authentication", "a", "shop", spec)
}

#[test]
fn a_refused_object_says_what_is_there_and_its_last_valid_form_keeps_what_it_reads() {
    let mut world = World::new();
    let grant = json!({
        "from": [{ "group": "tulle.dev", "kind": "Authentication", "namespace": "shop" }],
        "to": [{ "group": "", "kind": "ConfigMap" }],
    });
    let version = "gateway.networking.k8s.io/v1";
    let grant = object(version, "ReferenceGrant", "g", "other", grant);
    world.see(grant.clone());
    let text = |namespace: &str, name: &str| TextKey {
        secret: false,
        key: Key::new(namespace, name),
    };
    let (old, new) = (text("other", "t"), text("shop", "u"));
    let valid = authentication(&json!({ "name": "t", "namespace": "other" }));
    assert_eq!(put(&world.see(valid)), ["+Authentication/a.shop"]);
    assert_eq!(world.objects.view().texts, BTreeSet::from([old.clone()]));
    let mut refused = authentication(&json!({ "name": "u" }));
    refused["spec"]["frm"] = json!(1);
    for _ in 0..2 {
        assert!(world.see(refused.clone()).is_empty());
        let both = BTreeSet::from([old.clone(), new.clone()]);
        assert_eq!(world.objects.view().texts, both);
    }
    let answers = [(old, Presence::Held), (new.clone(), Presence::Absent)];
    world.objects.see(Texts(answers.into()));
    world.edits();
    let status = world.status("Authentication", "a.shop").unwrap();
    assert_eq!(condition(&status, "Accepted")["status"], "False");
    let absent = "there is no ConfigMap u in the namespace shop";
    assert_eq!(resolved(&status), ("ReferenceNotFound", absent));
    // Without the grant nothing of the other namespace is read any more.
    world.objects.remove(kind("ReferenceGrant"), &key(&grant));
    world.edits();
    assert_eq!(world.objects.view().texts, BTreeSet::from([new]));
}

#[test]
fn of_too_many_texts_those_in_force_are_read_and_the_others_are_named() {
    let mut world = World::new();
    let text = |name: &str| TextKey {
        secret: false,
        key: Key::new("shop", name),
    };
    // It is refused for its last provider.
    let refused = |names: usize| {
        let own = (0..names).map(|number| json!({ "name": format!("t{number:04}") }));
        let keys = own.chain([json!({ "name": "t", "namespace": "other" })]);
        let providers = keys.map(|keys| json!({ "issuer": "i", "jwksRef": keys }));
        let mut object = authentication(&json!({}));
        object["spec"]["jwt"]["providers"] = providers.collect();
        object
    };
    let unread = |world: &World| {
        let status = world.status("Authentication", "a.shop").unwrap();
        assert_eq!(condition(&status, "Accepted")["status"], "False");
        let (_, message) = resolved(&status);
        message.matches("is not read").count()
    };
    world.see(refused(MOST_TEXTS));
    assert_eq!(unread(&world), 0);
    assert_eq!(world.objects.view().texts.len(), MOST_TEXTS);
    world.see(refused(MOST_TEXTS + 2));
    assert_eq!(unread(&world), 2);
    assert_eq!(world.objects.view().texts.len(), MOST_TEXTS);
    let status = world.status("Authentication", "a.shop").unwrap();
    let (reason, message) = resolved(&status);
    assert_eq!(reason, "ReferenceNotRead");
    let expected = "ConfigMap t1000 is not read: the objects of the namespace shop refer to more than 1000 \
                    Secrets and ConfigMaps; ";
    assert!(message.starts_with(expected), "{message}");
    // The last by its age and name is read, because its object is in force. Other namespaces have room of their own.
    for namespace in ["shop", "other"] {
        let mut valid = authentication(&json!({ "name": "z" }));
        valid["metadata"]["name"] = "z".into();
        valid["metadata"]["namespace"] = namespace.into();
        valid["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z".into();
        world.see(valid);
    }
    assert_eq!(unread(&world), 3);
    let texts = world.objects.view().texts;
    assert_eq!(texts.len(), MOST_TEXTS + 1);
    assert!(texts.contains(&text("z")) && !texts.contains(&text("t0999")));
    // Where there is room again, they are read.
    world.see(refused(MOST_TEXTS - 1));
    assert_eq!(unread(&world), 0);
    assert_eq!(world.objects.view().texts.len(), MOST_TEXTS + 1);
}

#[test]
fn a_new_object_takes_no_text_from_an_older_one() {
    let reader = |name: &str, created: &str| {
        let mut object = authentication(&json!({ "name": name }));
        object["metadata"]["name"] = name.into();
        object["metadata"]["creationTimestamp"] = created.into();
        object
    };
    let old = |number: usize| reader(&format!("t{number:04}"), "2026-01-01T00:00:00Z");
    // The first of all by its name, and in force like the others.
    let new = || reader("a", "2026-01-02T00:00:00Z");
    let mut world = World::new();
    for number in 0..MOST_TEXTS {
        world.apply(old(number));
    }
    assert_eq!(world.edits().len(), MOST_TEXTS + 1);
    let before = world.objects.view().texts;
    assert_eq!(before.len(), MOST_TEXTS);
    assert_eq!(put(&world.see(new())), ["+Authentication/a.shop"]);
    assert!(world.objects.view().texts == before);
    let status = world.status("Authentication", "a.shop").unwrap();
    assert_eq!(resolved(&status).0, "ReferenceNotRead");
    // Another replica, or one that starts again, may see it together with the others or before them.
    for is_first in [false, true] {
        let mut other = World::new();
        other.apply(new());
        if is_first {
            other.edits();
            assert_eq!(other.objects.view().texts.len(), 1);
        }
        for number in (0..MOST_TEXTS).rev() {
            other.apply(old(number));
        }
        other.edits();
        assert!(other.objects.view().texts == before, "{is_first}");
        let status = other.status("Authentication", "a.shop").unwrap();
        assert_eq!(resolved(&status).0, "ReferenceNotRead");
    }
    // It is read when there is room.
    let gone: ObjectName = named("t0500.shop").into();
    world.objects.remove(kind("Authentication"), &gone);
    world.edits();
    let texts = world.objects.view().texts;
    assert_eq!(texts.len(), MOST_TEXTS);
    let is = |name: &str| texts.iter().any(|text| text.key == Key::new("shop", name));
    assert!(is("a") && !is("t0500"));
}

#[test]
fn nobody_waits_for_what_there_cannot_be() {
    let mut world = World::new();
    for (keys, reason) in [
        (json!({ "name": "a,b" }), "ReferenceNotFound"),
        (json!({ "name": "" }), "ReferenceNotFound"),
        (json!({ "kind": "Bucket", "name": "t" }), "InvalidKind"),
        (
            json!({ "group": "example.org", "name": "t" }),
            "InvalidKind",
        ),
    ] {
        world.see(authentication(&keys));
        let status = world.status("Authentication", "a.shop").unwrap();
        assert_eq!(resolved(&status).0, reason, "{keys}");
        assert!(world.objects.view().texts.is_empty(), "{keys}");
    }
}

#[test]
fn of_many_references_that_lead_nowhere_some_are_named() {
    let mut world = World::new();
    let group = |number: u32| json!({ "kind": "HTTPRouteGroup", "name": format!("g{number}") });
    let matches: Vec<Value> = (0..20).map(group).collect();
    let spec = json!({ "hosts": ["a.test"], "matches": matches });
    world.see(object(TULLE, "Egress", "e", "shop", spec));
    let status = world.status("Egress", "e.shop").unwrap();
    let (reason, message) = resolved(&status);
    assert_eq!(reason, "ReferenceNotFound");
    let last = "there is no HTTPRouteGroup g15 in the namespace shop; and 4 more";
    assert!(message.ends_with(last), "{message}");
}

/// The objects that are to be looked at.
fn changed(world: &World) -> BTreeSet<String> {
    assert!(!world.objects.all_changed);
    let all = world.objects.changed.iter();
    all.map(|(kind, key)| format!("{}/{key}", kind.kind))
        .collect()
}

#[test]
fn a_change_makes_only_those_be_looked_at_that_can_refer_to_it() {
    let mut world = World::new();
    for namespace in ["shop", "other"] {
        world.see(route(namespace, service("web"), service("web")));
        let egress = json!({ "hosts": ["a.test"] });
        world.see(object(TULLE, "Egress", "e", namespace, egress));
        let mut reads = authentication(&json!({ "name": "t" }));
        reads["metadata"]["namespace"] = namespace.into();
        world.see(reads);
    }
    let group = json!({ "matches": [{ "name": "read", "methods": ["GET"] }] });
    let version = "specs.smi-spec.io/v1alpha4";
    for (one, referrer) in [
        (
            object(TULLE, "HTTPFilter", "f", "shop", json!({})),
            "HTTPRoute/r.shop",
        ),
        (
            object(version, "HTTPRouteGroup", "g", "shop", group),
            "Egress/e.shop",
        ),
    ] {
        let (kind, key) = (kind(text(&one, "kind")), key(&one));
        let own = format!("{}/{key}", kind.kind);
        let both = BTreeSet::from([own.clone(), referrer.to_owned()]);
        world.apply(one.clone());
        assert_eq!(changed(&world), both);
        world.edits();
        world.apply(one);
        assert_eq!(changed(&world), BTreeSet::from([own]));
        world.edits();
        world.objects.remove(kind, &key);
        assert_eq!(changed(&world), both);
        world.edits();
    }
    let text = TextKey {
        secret: false,
        key: Key::new("other", "t"),
    };
    let texts = Texts([(text, Presence::Held)].into());
    world.objects.see(texts.clone());
    let reader = "Authentication/a.other".to_owned();
    assert_eq!(changed(&world), BTreeSet::from([reader]));
    world.edits();
    world.objects.see(texts);
    assert!(changed(&world).is_empty());
}
