//! ServiceProfiles of callers' namespaces, and the order of a profile's routes.

use super::*;
use crate::import::imported::Made;

/// Imports a profile of the Service `shop/ratings`.
fn profile(namespace: &str, spec: &str) -> Imported {
    imported(&format!(
        "apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata: {{name: ratings.shop.svc.cluster.local, namespace: {namespace}}}
spec: {spec}
"
    ))
}

fn needs_grant(made: &Made) -> bool {
    made.notes
        .iter()
        .any(|note| note.contains("ReferenceGrant"))
}

/// Linkerd has it for them alone, and so is a route of another namespace than its Service's.
#[test]
fn a_profile_of_callers_is_for_those_of_their_namespace() {
    let imported = profile(
        "front",
        "
  retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 10, ttl: 10s}
  routes: [{name: a, condition: {method: GET}, timeout: 1s}]",
    );
    let id = "ServiceProfile front/ratings.shop.svc.cluster.local";
    assert_eq!(lost(&imported), [(id, "spec.retryBudget")]);
    let [made] = imported.objects.as_slice() else {
        panic!("{imported:?}");
    };
    let route = &made.object;
    assert_eq!(route["kind"], "HTTPRoute");
    assert_eq!(
        route["metadata"],
        json!({ "name": "ratings-shop", "namespace": "front" })
    );
    assert_eq!(
        route["spec"]["parentRefs"],
        json!([{ "group": "", "kind": "Service", "name": "ratings", "namespace": "shop" }])
    );
    let backend = json!([{ "name": "ratings", "namespace": "shop", "port": 80 }]);
    let rules = route["spec"]["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 2);
    assert!(rules.iter().all(|rule| rule["backendRefs"] == backend));
    // Back to the Service that was called.
    assert!(!needs_grant(made), "{made:?}");
}

#[test]
fn backends_of_another_namespace_need_a_grant() {
    for (namespace, authority, expected) in [
        ("front", "reviews.shop.svc.cluster.local:8080", true),
        ("front", "ratings.shop.svc.cluster.local:80", false),
        ("front", "web.front.svc.cluster.local:80", false),
        ("shop", "old.archive.svc.cluster.local:80", true),
        ("shop", "reviews.shop.svc.cluster.local:8080", false),
    ] {
        let spec = format!("{{dstOverrides: [{{authority: '{authority}', weight: 1}}]}}");
        let imported = profile(namespace, &spec);
        assert_eq!(imported.lost, [], "{namespace} {authority}");
        let made = &imported.objects[0];
        assert_eq!(needs_grant(made), expected, "{namespace} {authority}");
        let backend = &made.object["spec"]["rules"][0]["backendRefs"][0];
        let there = authority
            .split('.')
            .nth(1)
            .filter(|there| *there != namespace);
        assert_eq!(
            backend["namespace"].as_str(),
            there,
            "{namespace} {authority}"
        );
    }
}

/// Linkerd takes the first that matches, and the proxy the more specific one.
#[test]
fn a_later_route_that_would_win_is_named() {
    let named = |routes: &[(&str, &str)]| {
        let route = |(condition, timeout): &(&str, &str)| {
            format!("{{name: n, condition: {condition}, timeout: {timeout}}}")
        };
        let routes: Vec<String> = routes.iter().map(route).collect();
        let imported = profile("shop", &format!("{{routes: [{}]}}", routes.join(", ")));
        assert_eq!(imported.objects.len(), 1, "{imported:?}");
        let mut whys = imported.lost.iter().map(|loss| &loss.why);
        assert!(whys.all(|why| why.contains("spec.routes[0],")));
        let fields = imported.lost.into_iter().map(|loss| loss.field);
        fields.collect::<Vec<String>>()
    };
    let all = ("{}", "1s");
    let below = ("{pathRegex: '/a/.*'}", "1s");
    let numbers = ("{pathRegex: '/a/[0-9]+'}", "1s");
    let put = ("{method: PUT}", "1s");
    let some = ("{any: [{method: PUT}, {pathRegex: '/a/.*'}]}", "1s");
    let get = ("{method: GET, pathRegex: /a/b}", "2s");
    let same = ("{method: GET, pathRegex: /a/b}", "1s");
    let path = ("{pathRegex: /a/b}", "2s");
    for (routes, expected) in [
        (&[below, get][..], true),
        (&[all, get], true),
        (&[all, path], true),
        (&[put, path], true),
        (&[some, get], true),
        // The first wins here, too.
        (&[get, below], false),
        (&[get, all], false),
        // Two regular expressions are equally specific.
        (&[below, path], false),
        // No request matches both.
        (&[put, get], false),
        (&[numbers, get], false),
        // It does not matter which wins.
        (&[below, same], false),
    ] {
        let expected: &[&str] = match expected {
            true => &["spec.routes[1].condition"],
            false => &[],
        };
        assert_eq!(named(routes), expected, "{routes:?}");
    }
}
