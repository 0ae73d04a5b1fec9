//! Objects may be as long as a store takes them, and so may those they refer to. The index reads them under a lock that
//! the whole mesh waits for, so neither its work nor what it makes of them grows with the product of their lengths.

use super::bounds::{a_pod, a_service, of_shop};
use super::cluster::cluster;
use super::*;
use crate::index::{egress, policy};
use tulle_model::resource::Action;

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

/// The names of the matches of the only Egress, or why it allows nothing.
fn leaving(index: &Index) -> Result<Vec<String>, String> {
    let (name, spec) = index.inputs.egress.iter().next().unwrap();
    let rule = egress::rule(&index.inputs, name, spec)?;
    Ok(rule.matches.into_iter().map(|m| m.name).collect())
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
fn who_names_too_many_matches_is_allowed_nothing_and_soon_told_so() {
    let names = many();
    let whole = json!([{ "kind": "HTTPRouteGroup", "name": "g" }]);
    let why = "it names more than 1000 matches of HTTPRouteGroups";
    for wanted in [at_once(&names), one_by_one(&names), whole] {
        let mut index = index();
        index.apply([
            group_of(&names),
            egress_of(&wanted),
            target("t", "a", &["b"], wanted),
        ]);
        assert_eq!(leaving(&index), Err(why.to_owned()));
        let problem = format!("{why}, so it allows nothing");
        assert_eq!(allowed(&index), (Vec::new(), vec![problem]));
    }
}

#[test]
fn each_match_that_is_named_is_taken_once_in_the_order_of_names() {
    let group_names = ["a", "b", "c"].map(str::to_owned);
    let wanted = json!([
        { "kind": "HTTPRouteGroup", "name": "g", "matches": ["c", "gone", "a"] },
        { "kind": "HTTPRouteGroup", "name": "g", "matches": ["a"] },
        { "kind": "HTTPRouteGroup", "name": "g" },
    ]);
    let mut index = index();
    index.apply([
        group_of(&group_names),
        egress_of(&wanted),
        target("t", "a", &["b"], wanted),
    ]);
    let order = ["c", "a", "b"].map(str::to_owned).to_vec();
    assert_eq!(leaving(&index), Ok(order.clone()));
    let problem = "HTTPRouteGroup/g has no match named gone".to_owned();
    assert_eq!(allowed(&index), (order, vec![problem]));
}

/// Two limits of one port have a condition for each pair of theirs.
#[test]
fn limits_that_make_too_many_conditions_together_close_the_port() {
    let closed = |paths: usize| -> Vec<String> {
        let limit = |name: &str, service: &str| {
            let path = |i: usize| json!({ "value": format!("/{i}") });
            let paths: Vec<Value> = (0..paths).map(path).collect();
            let rules = json!([{ "to": { "paths": paths }, "requests": { "count": 1 } }]);
            let about = json!([{ "kind": "Service", "name": service }]);
            of_shop(
                "RateLimit",
                name,
                json!({ "targetRefs": about, "rules": rules }),
            )
        };
        let service = |name: &str| {
            Edit::Service(Box::new(a_service(
                &format!("{name}.shop"),
                &[],
                &[(80, Some("http"), 8080)],
                &[("10.244.0.5", Some("web-1"))],
            )))
        };
        let mut index = cluster();
        index.apply([
            Edit::Pod(Box::new(a_pod("web-1.shop", "web", "10.244.0.5", &[8080]))),
            service("a"),
            service("b"),
            limit("l", "a"),
            limit("m", "b"),
        ]);
        let rules = inbound(&index, "web-1.shop").policy.rules.into_iter();
        let closing = rules.filter(|r| r.action == Action::Deny && r.any_identity);
        closing.map(|r| r.name).collect()
    };
    assert_eq!(closed(32), Vec::<String>::new());
    let names = closed(33);
    assert!(
        names.len() == 1 && names[0].contains("more than 1024 conditions"),
        "{names:?}"
    );
}
