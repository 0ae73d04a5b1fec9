//! The index is told of each refused object, why, and what is in force in its place.

use super::*;

const TULLE: &str = "tulle.dev/v1alpha1";

/// The refused objects that the index is told of: what each problem is about, and its text.
fn told(world: &mut World) -> Vec<(String, String)> {
    let Some(Edit::Refused(all)) = world.objects.refusals(&world.state) else {
        panic!("it is told nothing");
    };
    let all = all.into_iter();
    all.map(|problem| (problem.object, problem.text)).collect()
}

/// The text about an object, with the reason that its status has.
fn text_of(world: &World, kind: &str, instead: &str) -> String {
    let status = world.status(kind, "a.shop").unwrap();
    let why = condition(&status, "Accepted")["message"].as_str().unwrap();
    format!("{kind}/a.shop: it is refused ({why}); {instead}")
}

#[test]
fn the_index_hears_of_a_refused_restriction_and_of_what_is_in_its_place() {
    let mut world = World::new();
    world.edits();
    assert!(world.objects.refusals(&world.state).is_none());
    let authentication = |asks: Value| {
        let spec = json!({ "targetRefs": [{ "name": "web" }], "externalAuth": asks });
        object(TULLE, "Authentication", "a", "shop", spec)
    };
    world.see(authentication(json!(1)));
    let closed = "until it is corrected, nobody may call its targets";
    let expected = (
        "AuthorizationPolicy/authentication/a.shop".to_owned(),
        text_of(&world, "Authentication", closed),
    );
    assert_eq!(told(&mut world), [expected]);
    world.see(authentication(json!(1)));
    assert!(world.objects.refusals(&world.state).is_none());

    let good = json!({ "protocol": "HTTP", "backendRef": { "name": "cart", "port": 80 } });
    world.see(authentication(good));
    assert!(told(&mut world).is_empty());

    world.see(authentication(json!(1)));
    let last = "its last valid version stays in force";
    let expected = (
        "Authentication/a.shop".to_owned(),
        text_of(&world, "Authentication", last),
    );
    assert_eq!(told(&mut world), [expected]);

    world.objects.keep(kind("Authentication"), &BTreeSet::new());
    world.edits();
    assert!(told(&mut world).is_empty());
}

#[test]
fn a_refused_object_in_whose_place_is_nothing_is_told_of_too() {
    let mut world = World::new();
    world.edits();
    let spec = json!({ "targetRefs": [{ "name": "web" }], "rules": 1 });
    assert!(
        world
            .see(object(TULLE, "RateLimit", "a", "shop", spec))
            .is_empty()
    );
    let text = text_of(&world, "RateLimit", "nothing of it is in force");
    assert_eq!(told(&mut world), [(String::new(), text)]);
}

#[test]
fn the_index_hears_which_settings_a_refused_mesh_leaves_in_force() {
    let mut world = World::new();
    world.edits();
    let other = || mesh("mesh", json!({ "trustDomain": "other" }));
    world.see(other());
    assert_settings(&mut world, "the settings of the installation are in force");
    world.see(mesh("mesh", json!({ "permissiveMode": false })));
    assert!(told(&mut world).is_empty());
    world.see(other());
    assert_settings(&mut world, "its last valid version stays in force");
}

/// The index is told that the Mesh is refused and that these settings are in force.
fn assert_settings(world: &mut World, instead: &str) {
    let all = told(world);
    let [(object, text)] = all.as_slice() else {
        panic!("{all:?}");
    };
    assert_eq!(object, "Mesh/mesh");
    assert!(text.starts_with("Mesh/mesh: it is refused ("), "{text}");
    assert!(text.ends_with(instead), "{text}");
}

#[test]
fn the_index_hears_of_the_mesh_first_and_of_a_thousand_objects_of_all_namespaces_in_turn() {
    let mut world = World::new();
    for number in 0..=1000 {
        // The kind comes before Meshes.
        let (version, name) = ("split.smi-spec.io/v1alpha4", format!("s{number:04}"));
        let spec = json!({ "service": 1 });
        world.apply(object(version, "TrafficSplit", &name, "shop", spec));
    }
    // Another tenant's comes after all of these.
    let spec = json!({ "targetRefs": [{ "name": "web" }], "rules": 1 });
    world.apply(object(TULLE, "RateLimit", "z", "tenant", spec));
    world.see(mesh("mesh", json!({ "trustDomain": "other" })));
    let all = told(&mut world);
    assert_eq!(all.len(), 1001);
    for (at, start) in [
        (0, "Mesh/mesh: it is refused ("),
        (1, "TrafficSplit/s0000.shop: it is refused ("),
        (2, "RateLimit/z.tenant: it is refused ("),
        (3, "TrafficSplit/s0001.shop: it is refused ("),
        (999, "TrafficSplit/s0997.shop: it is refused ("),
    ] {
        assert!(all[at].1.starts_with(start), "{:?}", all[at]);
    }
    let more = "more refused objects: 3; the controller's log names them";
    assert_eq!(all[1000], (String::new(), more.to_owned()));
}

#[test]
fn what_is_told_of_an_object_has_no_control_characters_of_its_author() {
    let mut world = World::new();
    let target = json!({ "name": "web\u{1b}[2J\r", "namespace": "ot\u{9b}her\n" });
    let spec = json!({ "targetRefs": [target], "rules": [] });
    world.see(object(TULLE, "RateLimit", "a", "shop", spec));
    let text = text_of(&world, "RateLimit", "nothing of it is in force");
    assert!(
        text.contains("web [2J  is in the namespace ot her "),
        "{text:?}"
    );
    assert!(!text.contains(char::is_control), "{text:?}");
    assert_eq!(told(&mut world), [(String::new(), text)]);
}
