//! Objects may be as long as a store takes them, and so may those they refer to. The index reads them under a lock that
//! the whole mesh waits for, so neither its work nor what it makes of them grows with the product of their lengths.

use super::bounds::{a_service, lead_to_a_thousand, of_shop};
use super::cluster::cluster;
use super::unions::{about, closed, leading, port, the_pod};
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
    // Few of many bytes are as much.
    let long: Vec<String> = (0..400).map(|i| format!("{i:0250}")).collect();
    for (names, wanted) in [
        (&names, at_once(&names)),
        (&names, one_by_one(&names[..20_000])),
        (&names, whole.clone()),
        (&long, whole),
    ] {
        let mut index = index();
        index.apply([
            group_of(names),
            egress_of(&wanted),
            target("t", "a", &["b"], wanted),
        ]);
        let why = leaving(&index).unwrap_err();
        assert!(why.contains("more than 1000 matches"), "{why}");
        let problem = format!("{why}, so it allows nothing");
        assert_eq!(allowed(&index), (Vec::new(), vec![problem.clone()]));
        let told: Vec<String> = index.problems().iter().map(ToString::to_string).collect();
        for object in ["Egress/e", "TrafficTarget/t"] {
            assert!(told.contains(&format!("{object}: {problem}")), "{told:?}");
        }
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

/// A pod, two Services of it, and these.
pub(super) fn shop(edits: impl IntoIterator<Item = Edit>) -> Index {
    let mut index = cluster();
    index.apply([
        the_pod(),
        leading("a", Some("http")),
        leading("b", Some("http")),
    ]);
    index.apply(edits);
    index
}

fn conditions(paths: usize, hosts: usize) -> Value {
    let paths: Vec<Value> = (0..paths)
        .map(|i| json!({ "type": "Exact", "value": format!("/{i}") }))
        .collect();
    let hosts: Vec<String> = (0..hosts).map(|i| format!("h{i:05}.example")).collect();
    json!({ "paths": paths, "hosts": hosts })
}

/// Two limits of one port have a condition for each pair of theirs.
#[test]
fn limits_that_take_too_long_to_combine_close_the_port() {
    let closed_by = |paths: usize, hosts: usize| {
        let limit = |name: &str, service: &str| {
            let to = conditions(paths, hosts);
            let rules = json!([{ "to": to, "requests": { "count": 1 } }]);
            let spec = json!({ "targetRefs": about(service), "rules": rules });
            of_shop("RateLimit", name, spec)
        };
        let index = shop([limit("l", "a"), limit("m", "b")]);
        closed(&index)
    };
    assert_eq!(closed_by(100, 5), Vec::<String>::new());
    for (paths, hosts) in [(1500, 0), (1, 12_000)] {
        let names = closed_by(paths, hosts);
        assert!(
            names.len() == 1 && names[0].contains("too many rules and conditions"),
            "{names:?}"
        );
    }
}

/// Sidecars are told all other conditions of a rule with each of its paths.
#[test]
fn a_rule_of_which_paths_make_too_much_permits_nothing_and_denies_all() {
    let of = |to: Value| {
        let object = |kind: &str, name: &str, service: &str, extra: Value| {
            let mut spec = json!({ "targetRefs": about(service), "rules": [extra] });
            if name == "deny" {
                spec["action"] = "Deny".into();
                spec["rules"][0]["ignoreCase"] = true.into();
            }
            of_shop(kind, name, spec)
        };
        shop([
            object("AuthorizationPolicy", "allow", "a", json!({ "to": to })),
            object("AuthorizationPolicy", "deny", "b", json!({ "to": to })),
            object(
                "RateLimit",
                "limit",
                "a",
                json!({ "to": to, "requests": { "count": 1 } }),
            ),
        ])
    };
    let rules = |index: &Index| -> Vec<(Action, usize)> {
        let rules = inbound(index, "web-1.shop").policy.rules.into_iter();
        rules.map(|r| (r.action, r.matches.len())).collect()
    };
    let (fits, too_much) = (of(conditions(100, 100)), of(conditions(1000, 100)));
    assert_eq!(
        rules(&fits),
        [(Action::Allow, 100), (Action::Deny, 100)],
        "{:?}",
        fits.problems()
    );
    assert_eq!(rules(&too_much), [(Action::Deny, 0)]);
    let limit = |index: &Index| port(index).rules[0].matches.len();
    assert_eq!((limit(&fits), limit(&too_much)), (100, 0));
    let told: Vec<String> = too_much
        .problems()
        .iter()
        .map(ToString::to_string)
        .collect();
    for (object, instead) in [
        ("AuthorizationPolicy/allow", "so it allows nothing"),
        ("AuthorizationPolicy/deny", "so it denies all requests"),
        ("RateLimit/limit", "so its limit is for all requests"),
    ] {
        let of_it = told.iter().find(|t| t.starts_with(object));
        assert!(of_it.is_some_and(|t| t.contains(instead)), "{told:?}");
    }
}

/// A policy may be about many Services of one pod, and says the same of each.
#[test]
fn an_object_about_many_services_of_a_pod_is_taken_once() {
    let names: Vec<String> = (0..300).map(|i| format!("s{i:03}")).collect();
    let led: Vec<u16> = (9000..9300).collect();
    let services = names.iter().zip(&led).map(|(name, own)| {
        Edit::Service(Box::new(a_service(
            &format!("{name}.shop"),
            &[],
            &[(80, None, *own)],
            &[("10.244.0.5", Some("web-1"))],
        )))
    });
    let part = |name: &String| json!({ "kind": "Service", "name": name, "port": 80 });
    let parts: Value = names.iter().map(part).collect();
    let whole = |name: &String| json!({ "kind": "Service", "name": name });
    let whole: Value = names.iter().map(whole).collect();
    let from = json!({ "serviceAccounts": ["front"] });
    let rules = json!([{ "from": from, "to": { "ports": [80] } }, { "from": from }]);
    let policy = |name: &str, refs: Value| {
        let spec = json!({ "targetRefs": refs, "rules": rules });
        of_shop("AuthorizationPolicy", name, spec)
    };
    let backends: Value = names.iter().map(|n| json!({ "name": n })).collect();
    let sources = json!([{ "kind": "Service", "name": "a" }]);
    let access = json!({ "backends": backends, "sources": sources });
    let mut edits: Vec<Edit> = services.collect();
    edits.extend([
        policy("parts", parts),
        policy("whole", whole),
        of_shop("IngressBackend", "access", access),
    ]);
    let rules = inbound(&shop(edits), "web-1.shop").policy.rules.into_iter();
    let held: Vec<(String, Vec<u16>)> = rules.map(|r| (r.name, r.ports)).collect();
    // No Service leads to what 0 stands for.
    let all = [vec![0], led.clone()].concat();
    let wanted = [
        ("AuthorizationPolicy/parts.shop rules[0]", &led),
        ("AuthorizationPolicy/parts.shop rules[1]", &led),
        ("AuthorizationPolicy/whole.shop rules[0]", &led),
        ("AuthorizationPolicy/whole.shop rules[1]", &all),
        ("IngressBackend/access.shop", &all),
    ];
    assert_eq!(
        held,
        wanted.map(|(name, ports)| (name.to_owned(), ports.clone()))
    );
}

/// A pod has a configuration for each port that a rule names and nobody declares.
#[test]
fn rules_that_name_too_many_ports_allow_none_of_these_and_deny_all() {
    let of = |undeclared: u16| {
        let ports: Vec<u16> = (20_000..20_000 + undeclared).chain([80]).collect();
        let policy = |name: &str, action: &str| {
            let from = json!({ "serviceAccounts": ["front"] });
            let rules = json!([{ "from": from, "to": { "ports": ports } }]);
            let spec = json!({ "targetRefs": about("a"), "action": action, "rules": rules });
            of_shop("AuthorizationPolicy", name, spec)
        };
        shop([policy("allow", "Allow"), policy("deny", "Deny")])
    };
    let rules = |index: &Index| -> Vec<(Action, Vec<u16>)> {
        let rules = inbound(index, "web-1.shop").policy.rules.into_iter();
        rules.map(|r| (r.action, r.ports)).collect()
    };
    let known = |index: &Index| -> Vec<u16> {
        let ports = inbound(index, "web-1.shop").ports.into_iter();
        let ports: Vec<u16> = ports.map(|p| p.port).collect();
        let called = service(index, "pod/web-1.shop").ports.into_iter();
        assert_eq!(called.map(|p| p.port).collect::<Vec<u16>>(), ports);
        ports
    };
    let told = |index: &Index| -> Vec<String> {
        let told = index.problems().into_iter().map(|p| p.to_string());
        told.filter(|t| t.contains("name more than 1000 ports"))
            .collect()
    };
    let (fits, too_much) = (of(1000), of(1001));
    let named: Vec<u16> = [8080].into_iter().chain(20_000..21_000).collect();
    assert_eq!(
        rules(&fits),
        [
            (Action::Allow, named.clone()),
            (Action::Deny, named.clone())
        ]
    );
    assert_eq!(known(&fits), [vec![0], named].concat());
    assert_eq!(told(&fits), Vec::<String>::new());
    assert_eq!(
        rules(&too_much),
        [(Action::Allow, vec![8080]), (Action::Deny, vec![0, 8080])]
    );
    assert_eq!(known(&too_much), [0, 8080]);
    let told = told(&too_much);
    assert!(
        told.len() == 1
            && told[0].starts_with("service/a.shop: ")
            && told[0].contains("AuthorizationPolicy/"),
        "{told:?}"
    );
}

/// Each of thousands of rules may be about each of thousands of ports.
#[test]
fn rules_with_too_many_ports_together_allow_none_and_deny_all() {
    // It leads from one port to a thousand of the pod.
    let service = || {
        let Edit::Service(mut service) = leading("c", None) else {
            panic!("it is a Service");
        };
        lead_to_a_thousand(&mut service);
        Edit::Service(service)
    };
    let rule = json!({ "from": { "serviceAccounts": ["front"] }, "to": { "ports": [80] } });
    let policy = |name: &str, action: &str, mut rules: Vec<Value>| {
        // This one is about all ports that there may be, however many the others have.
        rules.extend((action == "Allow").then(|| json!({ "from": rule["from"] })));
        let spec = json!({ "targetRefs": about("c"), "action": action, "rules": rules });
        of_shop("AuthorizationPolicy", name, spec)
    };
    let of = |denying: usize| {
        shop([
            service(),
            policy("allow", "Allow", vec![rule.clone(); 500]),
            policy("deny", "Deny", vec![rule.clone(); denying]),
        ])
    };
    let held = |index: &Index| -> Vec<(Action, usize)> {
        let rules = inbound(index, "web-1.shop").policy.rules.into_iter();
        let mut held: Vec<_> = rules.map(|r| (r.action, r.ports.len())).collect();
        held.dedup();
        held
    };
    let told = |index: &Index| -> Vec<String> {
        let told = index.problems().into_iter().map(|p| p.to_string());
        told.filter(|t| t.contains("more than 1000000 ports together"))
            .collect()
    };
    let (fits, too_much) = (of(500), of(501));
    let all = [
        (Action::Allow, 1000),
        (Action::Allow, 0),
        (Action::Deny, 1000),
    ];
    assert_eq!((held(&fits), told(&fits)), (all.to_vec(), Vec::new()));
    assert_eq!(held(&too_much), [(Action::Allow, 0), (Action::Deny, 0)]);
    let told = told(&too_much);
    assert!(
        told.len() == 1 && told[0].starts_with("service/a.shop: "),
        "{told:?}"
    );
}

/// Rules of an object that name the same port look once for what it means.
#[test]
fn an_object_of_many_rules_about_many_services_is_soon_read() {
    let names: Vec<String> = (0..1000).map(|i| format!("s{i:03}")).collect();
    let whole = |name: &String| json!({ "kind": "Service", "name": name });
    let refs: Value = names.iter().map(whole).collect();
    let rule = json!({ "from": { "serviceAccounts": ["front"] }, "to": { "ports": [80] } });
    let spec = json!({ "targetRefs": refs, "rules": vec![rule; 20_000] });
    let services = names.iter().map(|name| leading(name, Some("http")));
    let mut edits: Vec<Edit> = services.collect();
    edits.push(of_shop("AuthorizationPolicy", "p", spec));
    let rules = inbound(&shop(edits), "web-1.shop").policy.rules;
    assert_eq!(rules.len(), 20_000);
    assert!(rules.iter().all(|rule| rule.ports == [8080]));
}
