//! Objects of which nothing can be made are named, and so are those that only Istio's own proxies could serve.

use super::*;

fn networking(kind: &str, spec: &str) -> Imported {
    imported(&format!(
        "{SERVICES}apiVersion: networking.istio.io/v1
kind: {kind}
metadata: {{name: o, namespace: shop}}
spec: {spec}
"
    ))
}

#[test]
fn an_object_without_its_main_part_is_named() {
    let to = "route: [{destination: {host: ratings}}]";
    for (kind, spec, field) in [
        // Others may delegate to it.
        (
            "VirtualService",
            format!("{{http: [{{{to}}}]}}"),
            "spec.hosts",
        ),
        (
            "VirtualService",
            format!("{{gateways: [front], tcp: [{{{to}}}]}}"),
            "spec.hosts",
        ),
        ("VirtualService", "{hosts: [ratings]}".to_owned(), "spec"),
        (
            "Gateway",
            "{selector: {istio: ingressgateway}}".to_owned(),
            "spec.servers",
        ),
        (
            "Gateway",
            "{servers: [{port: {number: 80, protocol: HTTP}}]}".to_owned(),
            "spec.servers[0].hosts",
        ),
    ] {
        let imported = networking(kind, &spec);
        assert!(imported.objects.is_empty(), "{spec}: {imported:?}");
        let id = format!("{kind} shop/o");
        assert_eq!(lost(&imported), [(id.as_str(), field)], "{spec}");
    }
}

#[test]
fn what_is_no_header_is_compared_by_no_route() {
    for (field, name) in [
        ("headers", "@request.auth.claims.group"),
        ("headers", ":method"),
        ("withoutHeaders", "@request.auth.claims.group"),
    ] {
        let spec = format!(
            "{{hosts: [ratings], http: [{{match: [{{{field}: {{'{name}': {{exact: a}}}}}}], route: [{{destination: {{host: ratings}}}}]}}]}}"
        );
        let imported = networking("VirtualService", &spec);
        assert!(imported.objects.is_empty(), "{name}: {imported:?}");
        let at = format!("spec.http[0].match[0].{field}.{name}");
        assert_eq!(lost(&imported), [("VirtualService shop/o", at.as_str())]);
    }
}

#[test]
fn a_gateway_of_istios_class_is_one_of_ours() {
    let gateway = |class: &str| {
        imported(&format!(
            "apiVersion: gateway.networking.k8s.io/v1beta1
kind: Gateway
metadata:
  name: front
  namespace: shop
  labels: {{istio.io/rev: stable}}
  annotations: {{networking.istio.io/service-type: ClusterIP, team: a}}
spec: {{gatewayClassName: {class}, listeners: [{{name: http, port: 80, protocol: HTTP}}]}}
"
        ))
    };
    let id = "Gateway shop/front";
    let own = gateway("istio");
    let annotation = "metadata.annotations.networking.istio.io/service-type";
    assert_eq!(lost(&own), [(id, annotation)]);
    assert_eq!(
        own.objects[0].object,
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": { "name": "front", "namespace": "shop", "annotations": { "team": "a" } },
            "spec": {
                "gatewayClassName": "tulle",
                "listeners": [{ "name": "http", "port": 80, "protocol": "HTTP" }],
            },
        })
    );
    for class in ["istio-waypoint", "istio-east-west", "istio-remote"] {
        let none = gateway(class);
        assert!(none.objects.is_empty(), "{class}: {none:?}");
        assert_eq!(lost(&none), [(id, "spec.gatewayClassName")], "{class}");
    }
}
