//! Every kind of the meshes that are read from a cluster: `other_mesh.rs` has those of Istio.

use super::{ApiServer, Kind, made};
use crate::common::Answer;
use serde_json::{Value, json};

/// The objects that are made and the losses, whatever their order.
fn told(answer: &Answer) -> (Vec<Value>, Vec<Value>) {
    let told: Value =
        serde_json::from_str(&answer.out).unwrap_or_else(|e| panic!("{e}: {answer:?}"));
    let sorted = |field: &str| {
        let mut all = told[field].as_array().unwrap().clone();
        all.sort_by_key(Value::to_string);
        all
    };
    (sorted("objects"), sorted("lost"))
}

/// Imports from the cluster, and holds it against the same objects in a file, but for those of the mesh itself.
fn import(server: &ApiServer, mesh: &str, own: &str) -> Answer {
    let answer = server.import(&[mesh, "-o", "json"]);
    let objects = server.content.lock().unwrap().objects.clone();
    let is_part = |o: &Value| o["metadata"]["namespace"] == own && o["kind"] != "MeshConfig";
    let objects: Vec<Value> = objects.into_iter().filter(|o| !is_part(o)).collect();
    let list = json!({ "kind": "List", "items": objects });
    server.mesh.write("list.json", &list.to_string());
    let file = server
        .mesh
        .tulle(&["import", mesh, "list.json", "-o", "json"]);
    assert_eq!(file.code, answer.code, "{file:?} {answer:?}");
    assert_eq!(told(&file), told(&answer));
    answer
}

/// Losses as `object: field`.
fn lost(answer: &Answer) -> Vec<String> {
    let (_, lost) = told(answer);
    let text = |loss: &Value, field: &str| loss[field].as_str().unwrap().to_owned();
    let one = |loss: &Value| format!("{}: {}", text(loss, "object"), text(loss, "field"));
    lost.iter().map(one).collect()
}

const OSM: [Kind; 9] = [
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
        "policy.openservicemesh.io",
        &["v1alpha1"],
        "IngressBackend",
        "ingressbackends",
    ),
    (
        "policy.openservicemesh.io",
        &["v1alpha1"],
        "Retry",
        "retries",
    ),
    (
        "policy.openservicemesh.io",
        &["v1alpha1"],
        "UpstreamTrafficSetting",
        "upstreamtrafficsettings",
    ),
    (
        "access.smi-spec.io",
        &["v1alpha3"],
        "TrafficTarget",
        "traffictargets",
    ),
    (
        "specs.smi-spec.io",
        &["v1alpha4"],
        "HTTPRouteGroup",
        "httproutegroups",
    ),
    ("specs.smi-spec.io", &["v1alpha4"], "TCPRoute", "tcproutes"),
    (
        "split.smi-spec.io",
        &["v1alpha2"],
        "TrafficSplit",
        "trafficsplits",
    ),
];

const OSM_OBJECTS: &str = r#"
{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bookstore", "labels": {"openservicemesh.io/monitored-by": "osm"}}}
---
{"apiVersion": "policy.openservicemesh.io/v1alpha1", "kind": "Egress", "metadata": {"name": "out", "namespace": "bookstore", "generation": 2},
 "spec": {"sources": [{"kind": "ServiceAccount", "name": "buyer", "namespace": "bookbuyer"}, {"kind": "ServiceAccount", "name": "store", "namespace": "bookstore"}],
          "hosts": ["books.example.com"], "ports": [{"number": 443, "protocol": "https"}]}}
---
{"apiVersion": "specs.smi-spec.io/v1alpha4", "kind": "HTTPRouteGroup", "metadata": {"name": "calls", "namespace": "bookstore"},
 "spec": {"matches": [{"name": "buy", "pathRegex": "/buy", "methods": ["GET"]}]}}
---
{"apiVersion": "policy.openservicemesh.io/v1alpha1", "kind": "IngressBackend", "metadata": {"name": "way", "namespace": "bookstore"},
 "spec": {"backends": [{"name": "store", "port": {"number": 14001, "protocol": "http"}}], "sources": [{"kind": "IPRange", "name": "10.0.0.0/8"}],
          "matches": [{"apiGroup": "specs.smi-spec.io/v1alpha4", "kind": "HTTPRouteGroup", "name": "calls"}]},
 "status": {"currentStatus": "committed"}}
---
{"apiVersion": "config.openservicemesh.io/v1alpha2", "kind": "MeshConfig", "metadata": {"name": "osm-mesh-config", "namespace": "osm-system"},
 "spec": {"traffic": {"enableEgress": false, "enablePermissiveTrafficPolicyMode": false}}}
---
{"apiVersion": "policy.openservicemesh.io/v1alpha1", "kind": "Retry", "metadata": {"name": "again", "namespace": "bookbuyer"},
 "spec": {"source": {"kind": "ServiceAccount", "name": "buyer", "namespace": "bookbuyer"},
          "destinations": [{"kind": "Service", "name": "store", "namespace": "bookstore"}], "retryPolicy": {"retryOn": "5xx", "numRetries": 3}}}
---
{"apiVersion": "specs.smi-spec.io/v1alpha4", "kind": "TCPRoute", "metadata": {"name": "sql", "namespace": "bookstore"}, "spec": {"matches": {"ports": [3306]}}}
---
{"apiVersion": "split.smi-spec.io/v1alpha2", "kind": "TrafficSplit", "metadata": {"name": "canary", "namespace": "bookstore"},
 "spec": {"service": "store.bookstore.svc.cluster.local", "backends": [{"service": "store-v1", "weight": 90}, {"service": "store-v2", "weight": 10}]}}
---
{"apiVersion": "access.smi-spec.io/v1alpha3", "kind": "TrafficTarget", "metadata": {"name": "buyers", "namespace": "bookstore"},
 "spec": {"destination": {"kind": "ServiceAccount", "name": "store", "namespace": "bookstore"},
          "sources": [{"kind": "ServiceAccount", "name": "buyer", "namespace": "bookbuyer"}],
          "rules": [{"kind": "HTTPRouteGroup", "name": "calls", "matches": ["buy"]}, {"kind": "TCPRoute", "name": "sql"}]}}
---
{"apiVersion": "policy.openservicemesh.io/v1alpha1", "kind": "UpstreamTrafficSetting", "metadata": {"name": "limits", "namespace": "bookstore"},
 "spec": {"host": "store.bookstore.svc.cluster.local", "connectionSettings": {"tcp": {"maxConnections": 9}},
          "rateLimit": {"local": {"http": {"requests": 3, "unit": "minute"}}}}}
"#;

#[test]
fn every_kind_of_osm_is_read() {
    let server = ApiServer::start(&OSM, OSM_OBJECTS);
    let answer = import(&server, "osm", "osm-system");
    assert_eq!(
        made(&answer),
        [
            "Namespace bookstore",
            "Egress bookbuyer/out",
            "Egress bookstore/out",
            "HTTPRouteGroup bookstore/calls",
            "AuthorizationPolicy bookstore/way",
            "Mesh mesh",
            "TCPRoute bookstore/sql",
            "TrafficSplit bookstore/canary",
            "TrafficTarget bookstore/buyers",
            "RateLimit bookstore/store",
            "TrafficPolicy bookstore/store",
        ]
    );
    assert_eq!((answer.code, lost(&answer)), (0, vec![]));
    assert!(!answer.err.contains("left out"), "{answer:?}");
    // Both are about the Service.
    let (objects, _) = told(&answer);
    let mut objects = objects.iter();
    let policy = objects.find(|one| one["object"]["kind"] == "TrafficPolicy");
    let both = json!([
        "Retry bookbuyer/again",
        "UpstreamTrafficSetting bookstore/limits"
    ]);
    assert_eq!(policy.unwrap()["from"], both);
}

const FSM: [Kind; 6] = [
    (
        "config.flomesh.io",
        &["v1alpha3"],
        "MeshConfig",
        "meshconfigs",
    ),
    (
        "policy.flomesh.io",
        &["v1alpha1"],
        "AccessCert",
        "accesscerts",
    ),
    (
        "policy.flomesh.io",
        &["v1alpha1"],
        "AccessControl",
        "accesscontrols",
    ),
    (
        "policy.flomesh.io",
        &["v1alpha1"],
        "IngressBackend",
        "ingressbackends",
    ),
    (
        "policy.flomesh.io",
        &["v1alpha1"],
        "UpstreamTrafficSetting",
        "upstreamtrafficsettings",
    ),
    ("plugin.flomesh.io", &["v1alpha1"], "Plugin", "plugins"),
];

const FSM_OBJECTS: &str = r#"
{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "httpbin", "labels": {"flomesh.io/monitored-by": "fsm"}}}
---
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "fsm-controller", "namespace": "fsm-system"},
 "spec": {"template": {"metadata": {"annotations": {"flomesh.io/sidecar-injection": "disabled"}}}}}
---
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "httpbin", "namespace": "httpbin"},
 "spec": {"template": {"metadata": {"annotations": {"flomesh.io/inbound-port-exclusion-list": "9090"}}}}}
---
{"apiVersion": "policy.flomesh.io/v1alpha1", "kind": "AccessCert", "metadata": {"name": "cert", "namespace": "httpbin"},
 "spec": {"subjectAltNames": ["client.example.com"], "secret": {"name": "cert", "namespace": "httpbin"}}}
---
{"apiVersion": "policy.flomesh.io/v1alpha1", "kind": "AccessControl", "metadata": {"name": "near", "namespace": "httpbin"},
 "spec": {"backends": [{"name": "httpbin", "port": {"number": 14001, "protocol": "http"}}], "sources": [{"kind": "IPRange", "name": "10.0.0.0/8"}]}}
---
{"apiVersion": "policy.flomesh.io/v1alpha1", "kind": "IngressBackend", "metadata": {"name": "way", "namespace": "httpbin"},
 "spec": {"backends": [{"name": "httpbin", "port": {"number": 14001, "protocol": "http"}}], "sources": [{"kind": "IPRange", "name": "192.0.2.0/24"}]}}
---
{"apiVersion": "config.flomesh.io/v1alpha3", "kind": "MeshConfig", "metadata": {"name": "fsm-mesh-config", "namespace": "fsm-system"},
 "spec": {"traffic": {"enableEgress": true, "enablePermissiveTrafficPolicyMode": false}}}
---
{"apiVersion": "plugin.flomesh.io/v1alpha1", "kind": "Plugin", "metadata": {"name": "token"}, "spec": {"priority": 115, "pipyscript": "(pipy({}))"}}
---
{"apiVersion": "policy.flomesh.io/v1alpha1", "kind": "UpstreamTrafficSetting", "metadata": {"name": "breaker", "namespace": "httpbin"},
 "spec": {"host": "httpbin.httpbin.svc.cluster.local", "connectionSettings": {"http": {"circuitBreaking":
          {"statTimeWindow": "1m", "minRequestAmount": 200, "errorRatioThreshold": "0.5", "degradedTimeWindow": "1m", "degradedStatusCode": 503}}}}}
"#;

#[test]
fn kinds_of_fsm_are_read() {
    let server = ApiServer::start(&FSM, FSM_OBJECTS);
    let answer = import(&server, "fsm", "fsm-system");
    assert_eq!(
        made(&answer),
        [
            "Namespace httpbin",
            "Deployment httpbin/httpbin",
            "AccessControl httpbin/near",
            "IngressBackend httpbin/way",
            "Mesh mesh",
            "TrafficPolicy httpbin/httpbin",
        ]
    );
    let losses = vec![
        "AccessCert httpbin/cert: spec".to_owned(),
        "Plugin token: spec".to_owned(),
    ];
    assert_eq!((answer.code, lost(&answer)), (79, losses));
    let skipped =
        "left out: Egress, Retry, TrafficTarget, HTTPRouteGroup, TCPRoute, TrafficSplit\n";
    assert!(answer.err.contains(skipped), "{answer:?}");
    assert!(!answer.out.contains("fsm-controller"), "{answer:?}");
}

/// Served to whoever has gateways, with or without Linkerd.
const GATEWAY_API: [Kind; 3] = [
    (
        "gateway.networking.k8s.io",
        &["v1", "v1beta1"],
        "Gateway",
        "gateways",
    ),
    (
        "gateway.networking.k8s.io",
        &["v1"],
        "GRPCRoute",
        "grpcroutes",
    ),
    (
        "gateway.networking.k8s.io",
        &["v1", "v1beta1"],
        "HTTPRoute",
        "httproutes",
    ),
];

const LINKERD: [Kind; 10] = [
    (
        "linkerd.io",
        &["v1alpha2", "v1alpha1"],
        "ServiceProfile",
        "serviceprofiles",
    ),
    (
        "policy.linkerd.io",
        &["v1alpha1"],
        "AuthorizationPolicy",
        "authorizationpolicies",
    ),
    (
        "policy.linkerd.io",
        &["v1alpha1"],
        "EgressNetwork",
        "egressnetworks",
    ),
    (
        "policy.linkerd.io",
        &["v1alpha1"],
        "HTTPLocalRateLimitPolicy",
        "httplocalratelimitpolicies",
    ),
    (
        "policy.linkerd.io",
        &["v1beta3", "v1beta2", "v1beta1", "v1alpha1"],
        "HTTPRoute",
        "httproutes",
    ),
    (
        "policy.linkerd.io",
        &["v1alpha1"],
        "MeshTLSAuthentication",
        "meshtlsauthentications",
    ),
    (
        "policy.linkerd.io",
        &["v1alpha1"],
        "NetworkAuthentication",
        "networkauthentications",
    ),
    (
        "policy.linkerd.io",
        &["v1beta3", "v1beta2", "v1beta1"],
        "Server",
        "servers",
    ),
    (
        "policy.linkerd.io",
        &["v1beta1"],
        "ServerAuthorization",
        "serverauthorizations",
    ),
    // A program of Linkerd's is behind it, and it is not asked.
    ("tap.linkerd.io", &["v1alpha1"], "Tap", "watch"),
];

const LINKERD_OBJECTS: &str = r#"
{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "annotations": {"linkerd.io/inject": "enabled"}}}
---
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ratings", "namespace": "shop"},
 "spec": {"clusterIP": "10.0.0.8", "selector": {"app": "ratings"}, "ports": [{"port": 80, "targetPort": 8080}]}}
---
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
 "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}}
---
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
 "spec": {"template": {"metadata": {"annotations": {"config.linkerd.io/skip-outbound-ports": "3306"}}}}}
---
{"apiVersion": "policy.linkerd.io/v1alpha1", "kind": "AuthorizationPolicy", "metadata": {"name": "some", "namespace": "shop"},
 "spec": {"targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": "web"}, "requiredAuthenticationRefs": [
          {"group": "policy.linkerd.io", "kind": "MeshTLSAuthentication", "name": "some"}, {"group": "policy.linkerd.io", "kind": "NetworkAuthentication", "name": "near"}]}}
---
{"apiVersion": "policy.linkerd.io/v1alpha1", "kind": "EgressNetwork", "metadata": {"name": "out", "namespace": "shop"}, "spec": {"trafficPolicy": "Allow"}}
---
{"apiVersion": "policy.linkerd.io/v1alpha1", "kind": "HTTPLocalRateLimitPolicy", "metadata": {"name": "slow", "namespace": "shop"},
 "spec": {"targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": "web"}, "total": {"requestsPerSecond": 100}}}
---
{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "reads", "namespace": "shop"},
 "spec": {"parentRefs": [{"group": "policy.linkerd.io", "kind": "Server", "name": "ratings"}],
          "rules": [{"matches": [{"method": "GET", "path": {"type": "PathPrefix", "value": "/"}}]}]}}
---
{"apiVersion": "policy.linkerd.io/v1beta3", "kind": "HTTPRoute", "metadata": {"name": "web", "namespace": "shop"},
 "spec": {"parentRefs": [{"group": "core", "kind": "Service", "name": "web"}], "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]},
 "status": {"parents": []}}
---
{"apiVersion": "policy.linkerd.io/v1alpha1", "kind": "MeshTLSAuthentication", "metadata": {"name": "some", "namespace": "shop"},
 "spec": {"identityRefs": [{"kind": "ServiceAccount", "name": "client"}]}}
---
{"apiVersion": "policy.linkerd.io/v1alpha1", "kind": "NetworkAuthentication", "metadata": {"name": "near", "namespace": "shop"},
 "spec": {"networks": [{"cidr": "10.0.0.0/8"}]}}
---
{"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "metrics-api", "namespace": "linkerd-viz"},
 "spec": {"podSelector": {"matchLabels": {"component": "metrics-api"}}, "port": 8085}}
---
{"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "ratings", "namespace": "shop"},
 "spec": {"podSelector": {"matchLabels": {"app": "ratings"}}, "port": 8080}}
---
{"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "web", "namespace": "shop"},
 "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "port": "http", "proxyProtocol": "HTTP/1"}}
---
{"apiVersion": "policy.linkerd.io/v1beta1", "kind": "ServerAuthorization", "metadata": {"name": "old", "namespace": "shop"},
 "spec": {"server": {"name": "ratings"}, "client": {"meshTLS": {"serviceAccounts": [{"name": "web"}]}}}}
---
{"apiVersion": "linkerd.io/v1alpha2", "kind": "ServiceProfile", "metadata": {"name": "ratings.shop.svc.cluster.local", "namespace": "shop"},
 "spec": {"routes": [{"name": "GET /a", "condition": {"method": "GET", "pathRegex": "/a"}, "timeout": "250ms"}]}}
"#;

#[test]
fn every_kind_of_linkerd_is_read() {
    let kinds = [&GATEWAY_API[..], &LINKERD].concat();
    let server = ApiServer::start(&kinds, LINKERD_OBJECTS);
    let answer = import(&server, "linkerd", "linkerd-viz");
    assert_eq!(
        made(&answer),
        [
            "Namespace shop",
            "Deployment shop/web",
            "HTTPRoute shop/web",
            "HTTPRoute shop/ratings",
            "AuthorizationPolicy shop/some",
            "RateLimit shop/slow",
            "AuthorizationPolicy shop/old",
        ]
    );
    let losses = vec!["EgressNetwork shop/out: spec".to_owned()];
    assert_eq!((answer.code, lost(&answer)), (79, losses));
    assert!(!answer.err.contains("left out"), "{answer:?}");
    assert!(!answer.out.contains("metrics-api"), "{answer:?}");
    let seen = server.seen();
    let is_foreign = |r: &String| r.contains("tap.linkerd") || r.contains("/gateways");
    assert!(!seen.iter().any(is_foreign), "{seen:#?}");
    // Requests that a Server's route of Gateway API does not match stay refused.
    let (objects, _) = told(&answer);
    let mut objects = objects.iter().map(|one| &one["object"]);
    let old = objects.find(|object| object["metadata"]["name"] == "old");
    let to = &old.unwrap()["spec"]["rules"][0]["to"];
    assert_eq!(to["methods"], json!(["GET"]), "{to}");
}

#[test]
fn gateway_api_alone_is_no_linkerd() {
    let server = ApiServer::start(&GATEWAY_API, "");
    let answer = server.import(&["linkerd"]);
    assert_eq!((answer.code, answer.out.as_str()), (1, ""), "{answer:?}");
    for part in ["has no kind of that mesh", "HTTPRoute"] {
        assert!(answer.err.contains(part), "{part}: {answer:?}");
    }
}
