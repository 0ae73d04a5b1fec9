//! A namespace's Gateways make the controller read a bounded number of Secrets and ConfigMaps.

use super::tests::{World, planned, put, world};
use super::*;
use crate::gateway::view::MOST_TEXTS;
use serde_json::json;

/// As many listeners as a Gateway may have, and certificates of each.
const MOST: usize = 64;

fn text(name: &str, namespace: &str) -> TextKey {
    TextKey {
        secret: true,
        key: Key::new(namespace, name),
    }
}

/// A Gateway with so many listeners, each of which has this number of certificates that no other has.
fn gateway(
    world: &mut World,
    (namespace, name): (&str, &str),
    created: &str,
    listeners: usize,
    certificates: usize,
) {
    let listeners = (0..listeners).map(|listener| {
        let references = 0..certificates;
        let references =
            references.map(|number| json!({ "name": format!("{name}-{listener}-{number}") }));
        json!({
            "name": format!("l{listener}"), "port": 443 + listener, "protocol": "HTTPS",
            "tls": { "certificateRefs": references.collect::<Vec<_>>() },
        })
    });
    let listeners: Vec<Value> = listeners.collect();
    let object = json!({
        "metadata": { "uid": name, "creationTimestamp": created },
        "spec": { "gatewayClassName": "tulle", "listeners": listeners },
    });
    put(world, "Gateway", namespace, name, object);
}

/// The condition `ResolvedRefs` of a Gateway's last listener: its reason and message.
fn resolved(planned: &Planned) -> (&str, &str) {
    let listeners = planned.status["listeners"].as_array().unwrap();
    let all = listeners.last().unwrap()["conditions"].as_array().unwrap();
    let one = all.iter().find(|c| c["type"] == "ResolvedRefs").unwrap();
    let text = |field: &str| one[field].as_str().unwrap();
    (text("reason"), text("message"))
}

#[test]
fn of_too_many_texts_of_gateways_those_of_older_ones_are_read() {
    let mut world = world(json!({ "listeners": [] }));
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    // The first by its name came last.
    gateway(&mut world, ("infra", "a"), new, MOST, MOST);
    gateway(&mut world, ("infra", "old"), old, 1, 3);
    gateway(&mut world, ("shop", "edge"), new, 1, 3);
    let plan = planned(&world);
    let of_namespace = |namespace: &str| {
        let own = plan.iter().filter(|(key, _)| key.namespace == namespace);
        let texts = own.flat_map(|(_, planned)| planned.texts.clone());
        texts.collect::<BTreeSet<TextKey>>()
    };
    assert_eq!(of_namespace("infra").len(), MOST_TEXTS);
    assert_eq!(of_namespace("shop").len(), 3);
    let find = |namespace, name| &plan[&Key::new(namespace, name)];
    for (namespace, name) in [("infra", "old"), ("shop", "edge")] {
        let own = (0..3).map(|number| text(&format!("{name}-0-{number}"), namespace));
        assert_eq!(find(namespace, name).texts, own.collect());
        assert_eq!(resolved(find(namespace, name)).0, "ResolvedRefs");
    }
    let (reason, message) = resolved(find("infra", "a"));
    assert_eq!(reason, "ReferenceNotRead");
    let expected = "Secret infra/a-63-0 is not read: the Gateways of the namespace infra refer to more than 1000 Secrets";
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn a_text_that_is_read_already_needs_no_room() {
    let mut world = world(json!({ "listeners": [] }));
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    gateway(&mut world, ("infra", "old"), old, MOST, MOST);
    let listener = json!({
        "name": "l", "port": 443, "protocol": "HTTPS",
        "tls": { "certificateRefs": [{ "name": "old-0-0" }] },
    });
    let object = json!({
        "metadata": { "creationTimestamp": new },
        "spec": { "gatewayClassName": "tulle", "listeners": [listener] },
    });
    put(&mut world, "Gateway", "infra", "a", object);
    let plan = planned(&world);
    let planned = &plan[&Key::new("infra", "a")];
    assert_eq!(planned.texts, [text("old-0-0", "infra")].into());
    assert_eq!(resolved(planned).0, "ResolvedRefs");
}
