//! Routes are for nobody who did not see the VirtualService that they were made from.

use super::*;

/// Objects that are made of the manifests, but the Gateways.
fn exported(export: &str, hosts: &str, gateways: &str) -> Imported {
    beside_gateways(&manifests(export, hosts, gateways))
}

/// Gateways, the Services of their proxies, and a VirtualService.
fn manifests(export: &str, hosts: &str, gateways: &str) -> String {
    format!(
        "{SERVICES}apiVersion: v1
kind: Service
metadata: {{name: front, namespace: shop}}
spec: {{selector: {{istio: front, app: front}}, ports: [{{port: 80}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: istio-ingressgateway, namespace: istio-system}}
spec: {{selector: {{istio: ingressgateway}}, ports: [{{port: 80}}]}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: front, namespace: shop}}
spec: {{selector: {{istio: front}}, servers: [{SERVER}]}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: ingress, namespace: ways}}
spec: {{selector: {{istio: ingressgateway}}, servers: [{SERVER}]}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: v, namespace: shop}}
spec:
  exportTo: [{export}]
  hosts: [{hosts}]
  gateways: [{gateways}]
  http: [{{route: [{{destination: {{host: ratings}}}}]}}]
"
    )
}

/// Names of the parents of each route that is made.
fn parents(imported: &Imported) -> Vec<Vec<&str>> {
    let specs = imported.objects.iter().map(|made| &made.object["spec"]);
    let parents = specs.map(|spec| {
        let parents = spec["parentRefs"].as_array().unwrap().iter();
        parents.map(|p| p["name"].as_str().unwrap()).collect()
    });
    parents.collect()
}

#[test]
fn a_route_of_the_mesh_is_for_the_callers_that_saw_it() {
    let (own, other) = ("ratings", "reviews.other.svc.cluster.local");
    let both = format!("{own}, {other}");
    let (fewer, hidden) = (Some("spec.hosts"), Some("spec.exportTo"));
    for (export, hosts, kept, field) in [
        // For a Service of another namespace it is for callers of its own, and no longer for all.
        ("", both.as_str(), vec!["ratings", "reviews"], fewer),
        ("'*'", other, vec!["reviews"], fewer),
        ("'*'", own, vec!["ratings"], None),
        ("a, '*'", own, vec!["ratings"], None),
        // These callers are whom it was for.
        ("'.'", other, vec!["reviews"], None),
        ("shop", other, vec!["reviews"], None),
        ("'.', a", other, vec!["reviews"], hidden),
        ("'.'", both.as_str(), vec!["reviews"], hidden),
        ("'.'", own, vec![], hidden),
        ("a", other, vec![], hidden),
        ("'~'", other, vec![], hidden),
    ] {
        let imported = exported(export, hosts, "mesh");
        let expected = if kept.is_empty() { vec![] } else { vec![kept] };
        assert_eq!(parents(&imported), expected, "{export} {hosts}");
        let fields = field.map(|field| ("VirtualService shop/v", field));
        let expected: Vec<_> = fields.into_iter().collect();
        assert_eq!(lost(&imported), expected, "{export} {hosts}");
    }
}

/// A controller refuses such a route.
#[test]
fn connections_to_a_service_of_another_namespace_have_no_route_elsewhere() {
    let other = "reviews.other.svc.cluster.local";
    for export in ["'*'", "'.'"] {
        for (hosts, kept) in [
            (other.to_owned(), vec![]),
            (format!("ratings, {other}"), vec![["ratings"], ["ratings"]]),
        ] {
            // For callers of its own namespace alone none of a Service there is made either.
            let kept = if export == "'.'" { vec![] } else { kept };
            let http = "http: [{route: [{destination: {host: ratings}}]}]";
            let route = "route: [{destination: {host: ratings}}]";
            let names = "match: [{sniHosts: [a.example]}]";
            let text = manifests(export, &hosts, "mesh");
            let connections = text.replace(
                http,
                &format!("tls: [{{{names}, {route}}}]\n  tcp: [{{{route}}}]"),
            );
            assert_ne!(connections, text);
            let imported = beside_gateways(&connections);
            assert_eq!(parents(&imported), kept, "{export} {hosts}");
            let id = "VirtualService shop/v";
            let mut expected = vec![(id, "spec.tls[0]"), (id, "spec.tcp[0]")];
            if export == "'.'" && hosts != other {
                expected.insert(0, (id, "spec.exportTo"));
            }
            assert_eq!(lost(&imported), expected, "{export} {hosts}");
        }
    }
}

#[test]
fn a_backend_of_another_namespace_needs_a_grant() {
    let other = "reviews.other.svc.cluster.local";
    let to = |host: &str| format!("route: [{{destination: {{host: {host}}}}}]");
    let mirrored = format!("{}, mirror: {{host: {other}}}", to("ratings"));
    for (export, hosts, rules, needs) in [
        ("", "ratings", format!("http: [{{{}}}]", to(other)), true),
        ("", "ratings", format!("http: [{{{mirrored}}}]"), true),
        ("", "ratings", format!("tcp: [{{{}}}]", to(other)), true),
        (
            "",
            "ratings",
            format!("http: [{{{}}}]", to("ratings")),
            false,
        ),
        // Back to the Service that was called.
        ("'.'", other, format!("http: [{{{}}}]", to(other)), false),
    ] {
        let http = "http: [{route: [{destination: {host: ratings}}]}]";
        let text = manifests(export, hosts, "mesh").replace(http, &rules);
        let imported = beside_gateways(&text);
        assert_eq!(imported.lost, [], "{hosts} {rules}");
        let [made] = imported.objects.as_slice() else {
            panic!("{imported:?}");
        };
        let mut notes = made.notes.iter();
        let said = notes.any(|n| n.contains("ReferenceGrant") && n.contains("(other)"));
        assert_eq!(said, needs, "{hosts} {rules}");
    }
}

#[test]
fn a_gateway_has_the_routes_that_its_proxies_saw() {
    for (export, gateways, kept, losses) in [
        (
            "",
            "front, ways/ingress, ways/unknown",
            vec!["front", "ingress", "unknown"],
            0,
        ),
        ("'.'", "front", vec!["front"], 0),
        ("'.'", "shop/front, ways/ingress", vec!["front"], 1),
        (
            "'.', istio-system",
            "front, ways/ingress",
            vec!["front", "ingress"],
            0,
        ),
        // Proxies, and not the Gateway, are in a namespace that sees it.
        ("'.', ways", "ways/ingress", vec![], 1),
        ("istio-system", "front", vec![], 1),
        ("'.'", "unknown", vec![], 1),
        ("'~'", "front", vec![], 1),
    ] {
        let imported = exported(export, "ratings", gateways);
        let expected = if kept.is_empty() { vec![] } else { vec![kept] };
        assert_eq!(parents(&imported), expected, "{export} {gateways}");
        let lost_it = [("VirtualService shop/v", "spec.exportTo")];
        assert_eq!(lost(&imported), lost_it[..losses], "{export} {gateways}");
    }
}

/// Without the label Services of the namespace would seem to lead to its proxies.
#[test]
fn a_gateway_with_a_label_that_is_no_text_has_proxies_that_nobody_knows() {
    let text = manifests("'.'", "ratings", "front");
    let odd = text.replace(
        "{selector: {istio: front}, servers",
        "{selector: {istio: front, tier: 7}, servers",
    );
    assert_ne!(odd, text);
    let imported = beside_gateways(&odd);
    assert!(imported.objects.is_empty(), "{imported:?}");
    assert_eq!(
        lost(&imported),
        [("VirtualService shop/v", "spec.exportTo")]
    );
}

#[test]
fn a_policy_of_traffic_for_all_callers_is_named() {
    for (export, losses) in [("'*'", 0), ("'.'", 1), ("'~'", 1)] {
        let imported = imported(&format!(
            "{SERVICES}apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: d, namespace: shop}}
spec: {{host: ratings, exportTo: [{export}], trafficPolicy: {{loadBalancer: {{simple: LEAST_CONN}}}}}}
"
        ));
        let lost_it = [("DestinationRule shop/d", "spec.exportTo")];
        assert_eq!(lost(&imported), lost_it[..losses], "{export}");
        assert_eq!(imported.objects.len(), 1, "{export}");
    }
}
