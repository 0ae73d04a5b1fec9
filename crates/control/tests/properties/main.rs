//! Properties of the index that hold whatever anybody writes. The fuzz targets `tenants` and `unions` check the same
//! with inputs that a fuzzer makes.

mod edits;
mod manifests;
mod tenants;
mod told;
mod unions;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::BTreeSet;
use tulle_control::index::Edit;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Random objects in one namespace leave every resource of the others the same, byte for byte.
    #[test]
    fn a_namespace_changes_nothing_for_the_others(case in tenants::cases()) {
        tenants::check(case).map_err(TestCaseError::fail)?;
    }

    /// Every demand that a Service of a pod makes of a request holds, whatever the others demand.
    #[test]
    fn every_demand_counts(case in unions::cases()) {
        unions::check(case).map_err(TestCaseError::fail)?;
    }
}

/// A kind that the random objects lack would be open by default.
#[test]
fn the_random_objects_are_of_all_kinds() {
    let mut runner = TestRunner::deterministic();
    let mut read = BTreeSet::new();
    for (api, kind) in manifests::KINDS {
        let objects = manifests::object_of_kind(api, kind);
        for _ in 0..200 {
            let object = objects.new_tree(&mut runner).expect("an object").current();
            match edits::edit(&object) {
                Some(Edit::Put(object)) => drop(read.insert(object.kind())),
                Some(Edit::Gateway(_)) => drop(read.insert("Gateway")),
                _ => {}
            }
        }
    }
    // A cluster has Services and pods in place of Workloads, and one Mesh, which is in no namespace.
    let apart = ["Mesh", "Workload", "Secret", "ConfigMap"];
    let all: BTreeSet<&str> = tulle_model::manifest::kinds().collect();
    let missing: Vec<_> = all
        .iter()
        .filter(|k| !apart.contains(k) && !read.contains(*k))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
