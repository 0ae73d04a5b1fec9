//! Objects may be as long as a store takes them, and so may those they refer to. The index reads them under a lock that
//! the whole mesh waits for, so its work grows with their lengths and not with the product of these.

use super::*;
use crate::index::{egress, policy};

/// Entries of each of two lists. Each of one compared with each of the other is 4 · 10¹⁰ comparisons: more minutes than a
/// test has.
const ENTRIES: usize = 200_000;

fn many() -> Vec<String> {
    (0..ENTRIES).map(|i| format!("m{i:06}")).collect()
}

fn group_of(names: &[String]) -> Edit {
    let matches: Value = names.iter().map(|n| json!({ "name": n })).collect();
    group("g", matches)
}

/// One reference to the group that wants all of these of it.
fn at_once(names: &[String]) -> Value {
    json!([{ "kind": "HTTPRouteGroup", "name": "g", "matches": names }])
}

/// A reference to the group for each of these.
fn one_by_one(names: &[String]) -> Value {
    let one = |n: &String| json!({ "kind": "HTTPRouteGroup", "name": "g", "matches": [n] });
    names.iter().map(one).collect()
}

fn egress_of(matches: &Value) -> Edit {
    let spec = json!({ "hosts": ["a.example"], "matches": matches });
    object("tulle.dev/v1alpha1", "Egress", "e", spec)
}

/// The names of the matches of the only Egress.
fn leaving(index: &Index) -> Vec<String> {
    let (name, spec) = index.inputs.egress.iter().next().unwrap();
    let rule = egress::rule(&index.inputs, name, spec).unwrap();
    rule.matches.into_iter().map(|m| m.name).collect()
}

/// The names of the matches of the only TrafficTarget, and its problems.
fn allowed(index: &Index) -> (Vec<String>, Vec<String>) {
    let (name, spec) = index.inputs.targets.iter().next().unwrap();
    let mut problems = Vec::new();
    let rules = policy::rules(&index.inputs, name.as_str(), spec, &mut |text| {
        problems.push(text);
    });
    let matches = rules.into_iter().flat_map(|r| r.matches);
    (matches.map(|m| m.name).collect(), problems)
}

#[test]
fn an_egress_finds_many_matches_that_it_names() {
    let names = many();
    for wanted in [at_once(&names), one_by_one(&names)] {
        let mut index = index();
        index.apply([group_of(&names), egress_of(&wanted)]);
        assert_eq!(leaving(&index), names);
    }
}

#[test]
fn a_target_finds_many_matches_that_it_names() {
    let names = many();
    for wanted in [at_once(&names), one_by_one(&names)] {
        let mut index = index();
        index.apply([group_of(&names), target("t", "a", &["b"], wanted)]);
        assert_eq!(allowed(&index).0, names);
    }
}

#[test]
fn matches_have_the_order_of_their_group_or_target() {
    let names = |all: &[&str]| -> Vec<String> { all.iter().map(|n| (*n).to_owned()).collect() };
    let wanted = json!([
        { "kind": "HTTPRouteGroup", "name": "g", "matches": ["c", "gone", "a"] },
        { "kind": "HTTPRouteGroup", "name": "g", "matches": ["b"] },
        { "kind": "HTTPRouteGroup", "name": "g" },
    ]);
    let mut index = index();
    index.apply([
        group_of(&names(&["a", "b", "c"])),
        egress_of(&wanted),
        target("t", "a", &["b"], wanted),
    ]);
    assert_eq!(leaving(&index), ["a", "c", "b", "a", "b", "c"]);
    let (matches, problems) = allowed(&index);
    assert_eq!(matches, ["c", "a", "b", "a", "b", "c"]);
    assert_eq!(problems, ["HTTPRouteGroup/g has no match named gone"]);
}
