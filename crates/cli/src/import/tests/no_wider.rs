//! An object never lets in or out more than the one it was made from: one that would is not made, and its loss is named.

use super::*;

const RANGE: &str = "{kind: IPRange, name: 10.0.0.0/8}";
const SERVICE: &str = "{kind: Service, name: nginx, namespace: ingress}";
const PRINCIPAL: &str =
    "{kind: AuthenticatedPrincipal, name: 'spiffe://cluster.local/ns/ingress/sa/nginx'}";
const FOREIGN: &str =
    "{kind: AuthenticatedPrincipal, name: ingress-nginx.ingress-nginx.cluster.local}";
const IN_RANGE: &str = r#"cidr("10.0.0.0/8").containsIP(source.address)"#;

fn backend(kind: &str, backends: &str, sources: &str) -> String {
    format!(
        "apiVersion: policy.flomesh.io/v1alpha1
kind: {kind}
metadata: {{name: in, namespace: httpbin}}
spec: {{backends: [{backends}], sources: [{sources}]}}
"
    )
}

fn port(protocol: &str, more: &str) -> String {
    format!("{{name: httpbin, port: {{number: 14001, protocol: {protocol}}}{more}}}")
}

/// The kind and `spec` of the only object that is made, of which nothing is lost.
fn made(text: &str) -> (Value, Value) {
    let imported = imported(text);
    assert_eq!(imported.lost, [], "{text}");
    let [made] = imported.objects.as_slice() else {
        panic!("{imported:?}");
    };
    (made.object["kind"].clone(), made.object["spec"].clone())
}

#[test]
fn with_client_certificates_address_and_principal_are_both_demanded() {
    let id = "spiffe://cluster.local/ns/ingress/sa/nginx";
    let both = format!("{RANGE}, {PRINCIPAL}");
    let policy = |rule: Value| {
        let target = json!({ "name": "httpbin", "port": 14001 });
        json!({ "targetRefs": [target], "action": "Allow", "rules": [rule] })
    };
    let range = json!({ "kind": "IPRange", "name": "10.0.0.0/8" });
    let principal = json!({ "kind": "AuthenticatedPrincipal", "name": id });
    let own = |source: &Value| json!({ "backends": [{ "name": "httpbin", "port": 14001 }], "sources": [source] });
    for kind in ["IngressBackend", "AccessControl"] {
        for protocol in ["https", "HTTPS"] {
            let https = port(protocol, ", tls: {skipClientCertValidation: false}");
            let (made_kind, spec) = made(&backend(kind, &https, &both));
            let rule = json!({ "from": { "principals": [id] }, "to": { "when": IN_RANGE } });
            assert_eq!(
                (made_kind, spec),
                (json!("AuthorizationPolicy"), policy(rule))
            );
            // Any certificate of the mesh, from there.
            let (made_kind, spec) = made(&backend(kind, &https, RANGE));
            let rule = json!({ "to": { "when": IN_RANGE } });
            assert_eq!(
                (made_kind, spec),
                (json!("AuthorizationPolicy"), policy(rule))
            );
            let alone = made(&backend(kind, &port(protocol, ""), PRINCIPAL));
            assert_eq!(alone, (json!(kind), own(&principal)));
        }
        // Without certificates a principal proves nothing, and addresses alone count.
        for without in [
            port("http", ""),
            port("https", ", tls: {skipClientCertValidation: true}"),
        ] {
            for sources in [RANGE, both.as_str()] {
                let alone = made(&backend(kind, &without, sources));
                assert_eq!(alone, (json!(kind), own(&range)), "{without} {sources}");
            }
        }
    }
}

#[test]
fn a_way_in_that_loses_a_demand_is_not_made() {
    let https = port("https", "");
    let http = port("http", "");
    let names = port("https", ", tls: {sniHosts: [httpbin.example]}");
    let mixed = format!("{https}, {http}");
    let sources = "spec.sources";
    for (backends, given, fields) in [
        (
            &https,
            format!("{RANGE}, {FOREIGN}"),
            &["spec.sources[1]", sources][..],
        ),
        (
            &https,
            format!("{SERVICE}, {PRINCIPAL}"),
            &["spec.sources[0]", sources],
        ),
        (
            &http,
            format!("{SERVICE}, {PRINCIPAL}"),
            &["spec.sources[0]", sources],
        ),
        (&https, FOREIGN.to_owned(), &["spec.sources[0]", sources]),
        (
            &names,
            format!("{RANGE}, {PRINCIPAL}"),
            &["spec.backends[0].tls.sniHosts[0]"],
        ),
        (&mixed, format!("{RANGE}, {PRINCIPAL}"), &["spec.backends"]),
    ] {
        let imported = imported(&backend("IngressBackend", backends, &given));
        assert!(
            imported.objects.is_empty(),
            "{backends} {given}: {imported:?}"
        );
        let id = "IngressBackend httpbin/in";
        let expected: Vec<(&str, &str)> = fields.iter().map(|field| (id, *field)).collect();
        assert_eq!(lost(&imported), expected, "{backends} {given}");
    }
    // A client that is lost beside another of its kind leaves fewer, and no demand is gone.
    for (backends, given) in [
        (&http, format!("{SERVICE}, {RANGE}")),
        (&https, format!("{FOREIGN}, {PRINCIPAL}, {RANGE}")),
    ] {
        let imported = imported(&backend("IngressBackend", backends, &given));
        assert_eq!(
            imported.objects.len(),
            1,
            "{backends} {given}: {imported:?}"
        );
        let first = ("IngressBackend httpbin/in", "spec.sources[0]");
        assert_eq!(lost(&imported), [first], "{backends} {given}");
    }
}

#[test]
fn a_way_out_that_loses_all_its_ports_is_not_made() {
    let egress = |ports: &str| {
        imported(&format!(
            "apiVersion: policy.openservicemesh.io/v1alpha1
kind: Egress
metadata: {{name: out, namespace: curl}}
spec:
  sources: [{{kind: ServiceAccount, name: curl, namespace: curl}}]
  hosts: [httpbin.example]
  ports: [{ports}]
"
        ))
    };
    let unknown = "{number: 53, protocol: udp}";
    let none = egress(unknown);
    assert!(none.objects.is_empty(), "{none:?}");
    let first = ("Egress curl/out", "spec.ports[0].protocol");
    assert_eq!(lost(&none), [first]);
    let some = egress(&format!("{unknown}, {{number: 80, protocol: http}}"));
    assert_eq!(lost(&some), [first]);
    assert_eq!(
        some.objects[0].object["spec"]["ports"],
        json!([{ "number": 80, "protocol": "http" }])
    );
}

/// A new mesh in a cluster is permissive and lets everything out, until a Mesh says no.
#[test]
fn a_mesh_config_that_does_not_say_so_is_not_permissive() {
    let config = |spec: &str| {
        let text = "apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
";
        imported(&format!("{text}spec: {spec}\n"))
    };
    for (spec, permissive, egress) in [
        ("{}", false, false),
        ("{traffic: {}}", false, false),
        ("{traffic: {enableEgress: true}}", false, true),
        (
            "{traffic: {enablePermissiveTrafficPolicyMode: true}}",
            true,
            false,
        ),
    ] {
        let imported = config(spec);
        assert_eq!(imported.lost, [], "{spec}");
        assert_eq!(
            imported.objects[0].object["spec"],
            json!({ "permissiveMode": permissive, "allowEgress": egress }),
            "{spec}"
        );
    }
    // Policies that had no effect would open something.
    let off = "{featureFlags: {enableEgressPolicy: false, enableIngressBackendPolicy: false, enableAccessControlPolicy: true}}";
    let id = "MeshConfig osm-system/osm-mesh-config";
    assert_eq!(
        lost(&config(off)),
        [
            (id, "spec.featureFlags.enableEgressPolicy"),
            (id, "spec.featureFlags.enableIngressBackendPolicy"),
        ]
    );
}

#[test]
fn a_way_in_whose_port_or_requests_cannot_be_read_is_not_made() {
    let nowhere = imported(&backend(
        "IngressBackend",
        "{name: httpbin, port: {protocol: http}}",
        RANGE,
    ));
    assert!(nowhere.objects.is_empty(), "{nowhere:?}");
    let id = "IngressBackend httpbin/in";
    assert_eq!(lost(&nowhere), [(id, "spec.backends[0].port.number")]);

    let http = port("http", "");
    let text = |reference: &str, call: &str| {
        format!(
            "apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {{name: get, namespace: httpbin}}
spec: {{matches: [{call}]}}
---
apiVersion: policy.flomesh.io/v1alpha1
kind: IngressBackend
metadata: {{name: in, namespace: httpbin}}
spec: {{backends: [{http}], sources: [{RANGE}], matches: [{{kind: HTTPRouteGroup, name: get{reference}}}]}}
"
        )
    };
    let import = |text: &str| osm::import(objects(text));
    let whole = import(&text("", "{name: a, methods: [GET], headers: [{b: c}]}"));
    assert_eq!((whole.lost.len(), whole.objects.len()), (0, 2));
    for (reference, call) in [
        (", matches: [a]", "{name: a}"),
        ("", "{name: a, methods: GET}"),
        ("", "{name: a, methods: [7]}"),
        ("", "{name: a, headers: b}"),
        ("", "{name: a, headers: [{b: 7}]}"),
        ("", "{name: a, pathRegx: /a}"),
        ("", "a"),
        ("", ""),
    ] {
        let some = import(&text(reference, call));
        assert_eq!(lost(&some), [(id, "spec.matches[0]")], "{reference} {call}");
        assert_eq!(some.objects.len(), 1, "{reference} {call}");
    }
}

#[test]
fn a_second_setting_of_a_service_does_not_take_the_place_of_the_first() {
    let setting = |name: &str, host: &str| {
        format!(
            "apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {{name: {name}, namespace: shop}}
spec: {{host: {host}, rateLimit: {{local: {{http: {{requests: 3, unit: minute}}}}}}}}
---
"
        )
    };
    let both = setting("a", "httpbin") + &setting("b", "httpbin.shop.svc.cluster.local");
    let both = imported(&both);
    assert_eq!(both.objects.len(), 1, "{both:?}");
    assert_eq!(
        lost(&both),
        [("UpstreamTrafficSetting shop/b", "spec.host")]
    );
}

/// A TrafficTarget with this metadata besides its name, and with this destination, these sources and rules.
fn target(namespace: &str, destination: &str, sources: &str, rules: &str) -> Imported {
    imported(&format!(
        "apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {{name: t{namespace}}}
spec: {{destination: {{kind: ServiceAccount, name: web{destination}}}, sources: [{sources}]{rules}}}
"
    ))
}

const SHOP: &str = ", namespace: shop";
const VISITOR: &str = "{kind: ServiceAccount, name: visitor, namespace: front}";
const NOBODY: &str = "{kind: ServiceAccount, name: nobody}";
const SQL: &str = ", rules: [{kind: TCPRoute, name: sql}]";

/// Here one without rules allows everything, and one without a namespace is about its own.
#[test]
fn a_traffic_target_that_was_passed_over_is_not_made() {
    let whole = target(SHOP, SHOP, VISITOR, SQL);
    assert_eq!((whole.objects.len(), lost(&whole)), (1, vec![]));
    // Whoever applies it says its namespace.
    let somewhere = target("", SHOP, VISITOR, SQL);
    assert_eq!((somewhere.objects.len(), lost(&somewhere)), (1, vec![]));

    let there = "spec.destination.namespace";
    for (namespace, destination, rules, fields) in [
        (SHOP, SHOP, "", &["spec.rules"][..]),
        (SHOP, SHOP, ", rules: []", &["spec.rules"]),
        (SHOP, SHOP, ", rules: null", &["spec.rules"]),
        (SHOP, "", SQL, &[there]),
        (SHOP, ", namespace: ''", SQL, &[there]),
        (SHOP, ", namespace: other", SQL, &[there]),
        ("", "", SQL, &[there]),
        (SHOP, "", "", &["spec.rules", there]),
    ] {
        let imported = target(namespace, destination, VISITOR, rules);
        assert!(
            imported.objects.is_empty(),
            "{destination} {rules}: {imported:?}"
        );
        let lost = imported.lost.iter();
        let lost: Vec<&str> = lost.map(|loss| loss.field.as_str()).collect();
        assert_eq!(lost, fields, "{destination} {rules}");
    }
}

/// Here it would be a caller of the TrafficTarget's namespace.
#[test]
fn a_source_without_a_namespace_is_taken_out() {
    let id = "TrafficTarget shop/t";
    let both = target(SHOP, SHOP, &format!("{NOBODY}, {VISITOR}"), SQL);
    assert_eq!(lost(&both), [(id, "spec.sources[0].namespace")]);
    let sources = &both.objects[0].object["spec"]["sources"];
    assert_eq!(
        *sources,
        json!([{ "kind": "ServiceAccount", "name": "visitor", "namespace": "front" }])
    );
    let alone = target(SHOP, SHOP, NOBODY, SQL);
    assert!(alone.objects.is_empty(), "{alone:?}");
    assert_eq!(lost(&alone), [(id, "spec.sources[0].namespace")]);
}
