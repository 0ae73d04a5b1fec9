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
    let lost_it = [("VirtualService shop/v", "spec.exportTo")];
    for (export, hosts, kept, losses) in [
        ("", both.as_str(), vec!["ratings", "reviews"], 0),
        ("'*'", own, vec!["ratings"], 0),
        ("a, '*'", own, vec!["ratings"], 0),
        // For a Service of another namespace it is for callers of its own.
        ("'.'", other, vec!["reviews"], 0),
        ("shop", other, vec!["reviews"], 0),
        ("'.', a", other, vec!["reviews"], 1),
        ("'.'", both.as_str(), vec!["reviews"], 1),
        ("'.'", own, vec![], 1),
        ("a", other, vec![], 1),
        ("'~'", other, vec![], 1),
    ] {
        let imported = exported(export, hosts, "mesh");
        let expected = if kept.is_empty() { vec![] } else { vec![kept] };
        assert_eq!(parents(&imported), expected, "{export} {hosts}");
        assert_eq!(lost(&imported), lost_it[..losses], "{export} {hosts}");
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
