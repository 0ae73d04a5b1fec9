//! Manifests like those of OSM's demo, the bookstore, and of its guides: all of them go over, and only what has no
//! counterpart is named.

use super::tests::{checked, lost};
use super::{Value, osm};
use serde_json::json;

pub(super) const NAMESPACES: &str = "apiVersion: v1
kind: Namespace
metadata:
  name: bookbuyer
  labels: {openservicemesh.io/monitored-by: osm, kubernetes.io/metadata.name: bookbuyer}
  annotations: {openservicemesh.io/sidecar-injection: enabled, openservicemesh.io/metrics: enabled}
---
apiVersion: v1
kind: Namespace
metadata:
  name: bookstore
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled}
---
apiVersion: v1
kind: Namespace
metadata:
  name: ingress
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: disabled}
---
";

pub(super) const CALLS: &str = "apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: bookstore-service-routes, namespace: bookstore}
spec:
  matches:
  - {name: books-bought, pathRegex: /books-bought, methods: [GET], headers: [{user-agent: '.*-http-client/*.*'}, {client-app: bookbuyer}]}
  - {name: buy-a-book, pathRegex: '.*a-book.*new', methods: [GET]}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: bookstore-access, namespace: bookstore}
spec:
  destination: {kind: ServiceAccount, name: bookstore, namespace: bookstore}
  rules:
  - {kind: HTTPRouteGroup, name: bookstore-service-routes, matches: [buy-a-book, books-bought]}
  sources:
  - {kind: ServiceAccount, name: bookbuyer, namespace: bookbuyer}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: {name: mysql, namespace: bookwarehouse}
spec: {matches: {ports: [3306]}}
---
apiVersion: split.smi-spec.io/v1alpha2
kind: TrafficSplit
metadata: {name: bookstore-split, namespace: bookstore}
spec:
  service: bookstore
  backends: [{service: bookstore, weight: 50}, {service: bookstore-v2, weight: 50}]
---
";

pub(super) const POLICIES: &str = "apiVersion: policy.openservicemesh.io/v1alpha1
kind: Egress
metadata: {name: httpbin-443, namespace: bookbuyer}
spec:
  sources: [{kind: ServiceAccount, name: bookbuyer, namespace: bookbuyer}]
  hosts: [httpbin.org]
  ports: [{number: 443, protocol: https}]
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: IngressBackend
metadata: {name: bookstore, namespace: bookstore}
spec:
  backends: [{name: bookstore, port: {number: 14001, protocol: http}}]
  sources: [{kind: IPRange, name: 10.0.0.0/8}]
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Retry
metadata: {name: retry, namespace: bookbuyer}
spec:
  source: {kind: ServiceAccount, name: bookbuyer, namespace: bookbuyer}
  destinations: [{kind: Service, name: bookstore, namespace: bookstore}]
  retryPolicy: {retryOn: 5xx, perTryTimeout: 1s, numRetries: 5, retryBackoffBaseInterval: 1s}
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: bookstore, namespace: bookstore}
spec:
  host: bookstore.bookstore.svc.cluster.local
  connectionSettings: {tcp: {maxConnections: 1}, http: {maxPendingRequests: 1, maxRequestsPerConnection: 1}}
  rateLimit: {local: {http: {requests: 3, unit: minute}}}
---
";

/// `Kind namespace/name` of what is made.
fn names(objects: &[Value]) -> Vec<String> {
    let name = |object: &Value| {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let kind = object["kind"].as_str().unwrap();
        format!("{kind} {}/{}", text("namespace"), text("name"))
    };
    objects.iter().map(name).collect()
}

#[test]
fn the_bookstore_goes_over() {
    let imported = checked(&format!("{NAMESPACES}{CALLS}{POLICIES}"), osm::import);
    assert_eq!(imported.lost, []);
    let objects: Vec<Value> = imported.objects.into_iter().map(|m| m.object).collect();
    assert_eq!(
        names(&objects),
        [
            "Namespace /bookbuyer",
            "Namespace /bookstore",
            "Namespace /ingress",
            "HTTPRouteGroup bookstore/bookstore-service-routes",
            "TrafficTarget bookstore/bookstore-access",
            "TCPRoute bookwarehouse/mysql",
            "TrafficSplit bookstore/bookstore-split",
            "Egress bookbuyer/httpbin-443",
            "IngressBackend bookstore/bookstore",
            "RateLimit bookstore/bookstore",
            "TrafficPolicy bookstore/bookstore",
        ]
    );
    let inject = |n: usize| objects[n]["metadata"]["labels"]["tulle.dev/inject"].clone();
    // A namespace is watched, and its pods have no sidecars: the annotation counts.
    assert_eq!(
        [inject(0), inject(1), inject(2)],
        ["enabled", "enabled", "disabled"]
    );
    assert_eq!(
        objects[10]["spec"],
        json!({
            "targetRefs": [{ "kind": "Service", "name": "bookstore" }],
            "connections": { "maxConnections": 1, "maxPendingRequests": 1, "maxRequestsPerConnection": 1 },
            "retry": {
                "attempts": 5, "perTryTimeout": "1s", "backoff": "1s",
                "on": ["connect-failure", "reset", "timeout"], "codes": [500, 501, 502, 503, 504, 505],
            },
        })
    );
}

/// With conditions on requests a way in is a policy: without them it would let in more.
#[test]
fn a_way_in_for_some_requests_is_a_policy() {
    let backend = |group: &str| {
        format!(
            "{CALLS}apiVersion: policy.openservicemesh.io/v1alpha1
kind: IngressBackend
metadata: {{name: buyers, namespace: bookstore}}
spec:
  backends: [{{name: bookstore, port: {{number: 14001, protocol: http}}}}]
  sources: [{{kind: IPRange, name: 10.0.0.0/8}}]
  matches: [{{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: {group}}}]
"
        )
    };
    let imported = checked(&backend("bookstore-service-routes"), osm::import);
    assert_eq!(imported.lost, []);
    let made = &imported.objects.last().unwrap().object;
    assert_eq!(
        names(std::slice::from_ref(made)),
        ["AuthorizationPolicy bookstore/buyers"]
    );
    let regex = "RegularExpression";
    let from = json!({ "networks": ["10.0.0.0/8"] });
    assert_eq!(
        made["spec"],
        json!({
            "targetRefs": [{ "name": "bookstore", "port": 14001 }],
            "action": "Allow",
            "rules": [
                { "from": from, "to": {
                    "methods": ["GET"],
                    "paths": [{ "type": regex, "value": "/books-bought" }],
                    "headers": [
                        { "type": regex, "name": "user-agent", "value": ".*-http-client/*.*" },
                        { "type": regex, "name": "client-app", "value": "bookbuyer" },
                    ],
                }},
                { "from": from, "to": {
                    "methods": ["GET"],
                    "paths": [{ "type": regex, "value": ".*a-book.*new" }],
                }},
            ],
        })
    );
    let unknown = checked(&backend("others"), osm::import);
    assert_eq!(
        lost(&unknown),
        [("IngressBackend bookstore/buyers", "spec.matches[0]")]
    );
    assert_eq!(unknown.objects.len(), 4, "{unknown:?}");
}

/// The demo and the guides name a split's service in each of these ways.
#[test]
fn the_service_of_a_split_may_be_a_host() {
    let split = |namespace: &str, host: &str| {
        let text = format!(
            "apiVersion: split.smi-spec.io/v1alpha2
kind: TrafficSplit
metadata: {{name: canary{namespace}}}
spec: {{service: {host}, backends: [{{service: stable, weight: 90}}, {{service: canary, weight: 10}}]}}
"
        );
        checked(&text, osm::import)
    };
    for (namespace, host, notes) in [
        (", namespace: shop", "web", 0),
        (", namespace: shop", "web.shop", 0),
        (", namespace: shop", "web.shop.svc", 0),
        (", namespace: shop", "web.shop.svc.cluster.local", 0),
        ("", "web.shop", 0),
        (", namespace: shop", "web.other.svc.cluster.local", 1),
    ] {
        let imported = split(namespace, host);
        assert_eq!(imported.lost, [], "{host}");
        let made = &imported.objects[0];
        assert_eq!(made.object["spec"]["service"], "web", "{host}");
        assert_eq!(made.object["spec"]["backends"][1]["weight"], 10, "{host}");
        assert_eq!(made.notes.len(), notes, "{host}: {:?}", made.notes);
    }
    let pod = split(", namespace: shop", "web-0.web.shop.example");
    assert!(pod.objects.is_empty(), "{pod:?}");
    assert_eq!(lost(&pod), [("TrafficSplit shop/canary", "spec.service")]);
}

/// FSM has Pipy's scripts in three kinds; each is named with what stands for it.
#[test]
fn scripts_of_fsm_are_named() {
    let text = "apiVersion: plugin.flomesh.io/v1alpha1
kind: Plugin
metadata: {name: token-injector}
spec: {priority: 115, pipyscript: '(pipy({}))'}
---
apiVersion: plugin.flomesh.io/v1alpha1
kind: PluginChain
metadata: {name: chain, namespace: pipy}
spec: {chains: [{name: inbound-http, plugins: [token-injector]}], selectors: {podSelector: {matchLabels: {app: httpbin}}}}
---
apiVersion: plugin.flomesh.io/v1alpha1
kind: PluginConfig
metadata: {name: config, namespace: curl}
spec: {config: {access: allowed}, plugin: token-injector, destinationRefs: [{kind: Service, name: curl, namespace: curl}]}
";
    let imported = checked(text, osm::import);
    assert_eq!(
        lost(&imported),
        [
            ("Plugin token-injector", "spec"),
            ("PluginChain pipy/chain", "spec"),
            ("PluginConfig curl/config", "spec"),
        ]
    );
    for loss in &imported.lost {
        assert!(
            loss.instead.contains("docs/features/plugins.md"),
            "{loss:?}"
        );
    }
}
