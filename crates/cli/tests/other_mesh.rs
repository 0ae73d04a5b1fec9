//! `tulle import --cluster`: which requests it sends an API server, and what it makes of the answers. The API server
//! here answers as a real one answers an account with the rights that a test names; `tests/kube` does the same with meshes
//! that are installed.

#![allow(clippy::unwrap_used)] // a helper of tests may fail like a test

#[path = "other_mesh/api_server.rs"]
mod api_server;
mod common;
#[path = "other_mesh/kinds.rs"]
mod kinds;

use api_server::{ApiServer, Kind};
use common::Answer;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const ISTIO: [Kind; 5] = [
    (
        "networking.istio.io",
        &["v1", "v1beta1", "v1alpha3"],
        "VirtualService",
        "virtualservices",
    ),
    (
        "networking.istio.io",
        &["v1", "v1beta1", "v1alpha3"],
        "DestinationRule",
        "destinationrules",
    ),
    // No newer version has it.
    (
        "networking.istio.io",
        &["v1alpha3"],
        "EnvoyFilter",
        "envoyfilters",
    ),
    (
        "security.istio.io",
        &["v1", "v1beta1"],
        "AuthorizationPolicy",
        "authorizationpolicies",
    ),
    // Nobody's.
    ("example.com", &["v1"], "VirtualService", "virtualservices"),
];

const ISTIO_OBJECTS: &str = r#"
{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"istio-injection": "enabled"}}}
---
{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}
---
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
 "spec": {"clusterIP": "10.0.0.7", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}
---
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "api", "namespace": "other"},
 "spec": {"selector": {"app": "api"}, "ports": [{"port": 81}]}}
---
{"apiVersion": "apps/v1", "kind": "Deployment",
 "metadata": {"name": "web", "namespace": "shop", "uid": "u", "managedFields": [{"manager": "kubectl"}]},
 "spec": {"template": {"metadata": {"annotations": {"traffic.sidecar.istio.io/excludeOutboundPorts": "3306"}}}},
 "status": {"replicas": 1}}
---
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "istiod", "namespace": "istio-system"},
 "spec": {"template": {"metadata": {"labels": {"sidecar.istio.io/inject": "false"}}}}}
---
{"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "night", "namespace": "shop"},
 "spec": {"jobTemplate": {"spec": {"template": {"metadata": {"labels": {"sidecar.istio.io/inject": "false"}}}}}}}
---
{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "b", "namespace": "shop"},
 "spec": {"hosts": ["web"], "http": [{"route": [{"destination": {"host": "web"}}]}]}}
---
{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "a", "namespace": "shop"},
 "spec": {"hosts": ["web"], "tcp": [{"match": [{"port": 80}], "route": [{"destination": {"host": "api.other.svc.cluster.local"}}]}]}}
---
{"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule", "metadata": {"name": "d", "namespace": "other", "generation": 3},
 "spec": {"host": "api", "trafficPolicy": {"loadBalancer": {"simple": "RANDOM"}}}, "status": {"conditions": []}}
---
{"apiVersion": "networking.istio.io/v1alpha3", "kind": "EnvoyFilter", "metadata": {"name": "e", "namespace": "shop"}, "spec": {}}
---
{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "p", "namespace": "shop"},
 "spec": {"selector": {"matchLabels": {"app": "web"}}, "rules": [{"from": [{"source": {"serviceAccounts": ["other/api"]}}]}]}}
---
{"apiVersion": "example.com/v1", "kind": "VirtualService", "metadata": {"name": "foreign", "namespace": "shop"},
 "spec": {"hosts": ["web"], "tls": []}}
"#;

/// The names and kinds of what is made, in their order.
fn made(answer: &Answer) -> Vec<String> {
    let told: Value =
        serde_json::from_str(&answer.out).unwrap_or_else(|e| panic!("{e}: {answer:?}"));
    let name = |made: &Value| {
        let (object, field) = (&made["object"], |f: &str| {
            made["object"]["metadata"][f].as_str()
        });
        let namespace = field("namespace").map_or(String::new(), |n| format!("{n}/"));
        format!(
            "{} {namespace}{}",
            object["kind"].as_str().unwrap(),
            field("name").unwrap()
        )
    };
    told["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(name)
        .collect()
}

#[test]
fn what_a_cluster_has_is_translated_as_files_are() {
    let server = ApiServer::start(&ISTIO, ISTIO_OBJECTS);
    let answer = server.import(&["istio", "-o", "json"]);
    // The EnvoyFilter is in a version that the group does not prefer, and lost.
    assert_eq!(answer.code, 79, "{answer:?}");
    assert_eq!(
        made(&answer),
        [
            "Namespace shop",
            "Deployment shop/web",
            "CronJob shop/night",
            "AuthorizationPolicy shop/p",
            "TrafficPolicy other/d",
            "TCPRoute shop/a",
            "HTTPRoute shop/b",
        ]
    );
    let told: Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(told["lost"].as_array().unwrap().len(), 1, "{answer:?}");
    assert_eq!(told["lost"][0]["object"], "EnvoyFilter shop/e");
    for field in [
        "managedFields",
        "resourceVersion",
        "status",
        "uid",
        "foreign",
        "istiod",
    ] {
        assert!(!answer.out.contains(field), "{field}: {answer:?}");
    }
    let skipped = "not served by this cluster, so left out: PeerAuthentication, RequestAuthentication, Gateway, ServiceEntry\n";
    assert!(answer.err.contains(skipped), "{answer:?}");

    // The order is not the API server's.
    server.change(|content| content.objects.reverse());
    let again = server.import(&["istio", "-o", "json"]);
    assert_eq!((again.code, &again.out), (79, &answer.out));
    assert!(again.err.contains(skipped), "{again:?}");

    // The same objects in a file become the same.
    let own = server.content.lock().unwrap().objects.clone();
    let own = own.into_iter().filter(|o| {
        let group = o["apiVersion"].as_str().unwrap();
        !group.starts_with("example.com") && o["metadata"]["namespace"] != "istio-system"
    });
    let list = json!({ "kind": "List", "items": own.collect::<Vec<Value>>() });
    server.mesh.write("list.json", &list.to_string());
    let file = server
        .mesh
        .tulle(&["import", "istio", "list.json", "-o", "json"]);
    assert_eq!(file.code, 79, "{file:?}");
    let objects = |answer: &Answer| {
        let mut told: Value = serde_json::from_str(&answer.out).unwrap();
        let mut all: Vec<Value> = told["objects"].as_array_mut().unwrap().drain(..).collect();
        all.sort_by_key(Value::to_string);
        (all, told["lost"].clone())
    };
    assert_eq!(objects(&file), objects(&answer));
}

#[test]
fn a_namespace_alone_is_asked_for_alone() {
    let server = ApiServer::start(&ISTIO, ISTIO_OBJECTS);
    let answer = server.import(&["istio", "-n", "other", "-o", "json"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(made(&answer), ["TrafficPolicy other/d"]);
    let lists = server.seen().into_iter().filter(|r| r.contains("limit="));
    let lists: Vec<String> = lists.collect();
    assert!(!lists.is_empty());
    for list in lists {
        assert!(list.contains("/namespaces/other/"), "{list}");
    }
    let answer = server.import(&["istio", "-n", "missing"]);
    assert_eq!((answer.code, answer.out.as_str()), (1, ""), "{answer:?}");
    assert!(
        answer.err.contains("there is no namespace missing"),
        "{answer:?}"
    );
}

/// Half of a mesh would look like all of it.
#[test]
fn a_kind_that_may_not_be_listed_ends_it_and_is_named() {
    let server = ApiServer::start(&ISTIO, ISTIO_OBJECTS);
    for (plural, named) in [
        (
            "destinationrules",
            "listing destinationrules.networking.istio.io of all namespaces",
        ),
        ("services", "listing services of all namespaces"),
        (
            "statefulsets",
            "listing statefulsets.apps of all namespaces",
        ),
    ] {
        server.change(|content| content.forbidden = BTreeSet::from([plural]));
        let answer = server.import(&["istio"]);
        assert_eq!((answer.code, answer.out.as_str()), (1, ""), "{answer:?}");
        assert!(answer.err.contains(named), "{answer:?}");
        assert!(answer.err.contains("cannot list resource"), "{answer:?}");
        assert!(answer.err.contains("what to do"), "{answer:?}");
    }
    // One that is not this mesh's is not asked for.
    server.change(|content| content.forbidden = BTreeSet::from(["secrets"]));
    assert_eq!(server.import(&["istio"]).code, 79);
}

#[test]
fn a_cluster_without_the_mesh_is_told() {
    let server = ApiServer::start(&ISTIO, ISTIO_OBJECTS);
    let answer = server.import(&["linkerd"]);
    assert_eq!((answer.code, answer.out.as_str()), (1, ""), "{answer:?}");
    for part in ["has no kind of that mesh", "ServiceProfile", "--context"] {
        assert!(answer.err.contains(part), "{part}: {answer:?}");
    }
    // Either files or a cluster, and a namespace is a cluster's.
    for words in [
        &["import", "istio"][..],
        &["import", "istio", "--cluster", "file.yaml"],
        &["import", "istio", "file.yaml", "-n", "shop"],
    ] {
        assert_eq!(server.mesh.tulle(words).code, 64, "{words:?}");
    }
}

/// OSM's settings are in the namespace of its own workloads, which are left out.
#[test]
fn osm_is_read_with_smi() {
    let kinds: [Kind; 4] = [
        (
            "config.openservicemesh.io",
            &["v1alpha2", "v1alpha1"],
            "MeshConfig",
            "meshconfigs",
        ),
        (
            "policy.openservicemesh.io",
            &["v1alpha1"],
            "Egress",
            "egresses",
        ),
        (
            "access.smi-spec.io",
            &["v1alpha3"],
            "TrafficTarget",
            "traffictargets",
        ),
        // It answers numbers, and is asked for none.
        (
            "metrics.smi-spec.io",
            &["v1alpha1"],
            "TrafficMetrics",
            "pods",
        ),
    ];
    let server = ApiServer::start(
        &kinds,
        r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bookstore",
             "labels": {"openservicemesh.io/monitored-by": "osm"}}}
---
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "osm-controller", "namespace": "osm-system"},
 "spec": {"template": {"metadata": {"annotations": {"openservicemesh.io/metrics": "enabled"}}}}}
---
{"apiVersion": "config.openservicemesh.io/v1alpha2", "kind": "MeshConfig",
 "metadata": {"name": "osm-mesh-config", "namespace": "osm-system", "resourceVersion": "5"},
 "spec": {"traffic": {"enableEgress": false, "enablePermissiveTrafficPolicyMode": false}}}
---
{"apiVersion": "access.smi-spec.io/v1alpha3", "kind": "TrafficTarget", "metadata": {"name": "t", "namespace": "bookstore"},
 "spec": {"destination": {"kind": "ServiceAccount", "name": "a", "namespace": "bookstore"},
  "sources": [{"kind": "ServiceAccount", "name": "b", "namespace": "bookstore"}],
  "rules": [{"kind": "TCPRoute", "name": "r"}]}}
"#,
    );
    let answer = server.import(&["osm", "-o", "json"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(
        made(&answer),
        [
            "Namespace bookstore",
            "Mesh mesh",
            "TrafficTarget bookstore/t"
        ]
    );
    assert!(
        server.seen().iter().all(|r| !r.contains("metrics.smi")),
        "{:?}",
        server.seen()
    );
    assert!(
        answer
            .err
            .contains("left out: IngressBackend, UpstreamTrafficSetting, Retry"),
        "{answer:?}"
    );
}
