//! The demo's manifests are valid together, and say what the README says.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::Path;
use tulle_model::manifest::{Object, parse, validate_set};

fn objects(file: &str) -> Vec<Object> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let parsed = parse(file, &text).unwrap_or_else(|errors| panic!("{errors:#?}"));
    parsed.into_iter().map(|located| located.object).collect()
}

/// `caller -> called` for each pair a TrafficTarget allows.
fn allowed(objects: &[Object]) -> BTreeSet<String> {
    let mut edges = BTreeSet::new();
    for object in objects {
        if let Object::TrafficTarget(target) = object {
            for source in &target.spec.sources {
                edges.insert(format!(
                    "{} -> {}",
                    source.name, target.spec.destination.name
                ));
            }
        }
    }
    edges
}

#[test]
fn the_mesh_is_valid_and_allows_exactly_what_is_called() {
    let mesh = objects("mesh.yaml");
    let problems = validate_set(mesh.iter());
    assert!(problems.is_empty(), "{problems:#?}");

    let mut needed = BTreeSet::new();
    for object in &mesh {
        match object {
            Object::Workload(workload) => {
                for upstream in &workload.spec.upstreams {
                    let caller = &workload.metadata.name;
                    needed.insert(format!("{caller} -> {}", upstream.service));
                }
            }
            Object::HttpRoute(route) => {
                let caller = &route.spec.parent_refs[0].name;
                for backend in route.spec.rules.iter().flat_map(|rule| &rule.backend_refs) {
                    needed.insert(format!("{caller} -> {}", backend.name));
                }
            }
            _ => {}
        }
    }
    assert_eq!(allowed(&mesh), needed);
    assert_eq!(needed.len(), 9);
}

#[test]
fn the_variant_takes_away_gateway_to_ratings_and_nothing_else() {
    let mesh = objects("mesh.yaml");
    let variant = objects("deny-ratings.yaml");
    let mut changed = mesh.clone();
    for new in &variant {
        let same = |old: &&mut Object| old.kind() == new.kind() && old.name() == new.name();
        *changed.iter_mut().find(same).unwrap() = new.clone();
    }
    assert!(validate_set(changed.iter()).is_empty());
    let (before, after) = (allowed(&mesh), allowed(&changed));
    let gone: Vec<_> = before.difference(&after).collect();
    assert_eq!(gone, ["gateway -> ratings"]);
    assert!(after.is_subset(&before));
}
