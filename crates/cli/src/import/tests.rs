use super::imported::Imported;
use super::*;
use serde_json::json;
use tulle_model::manifest::parse;

mod injection;
mod no_wider;
mod odd_values;

fn imported(text: &str) -> Imported {
    checked(text, osm::import)
}

fn objects(text: &str) -> Vec<Value> {
    let mut objects = Vec::new();
    for document in documents("test.yaml", text).unwrap() {
        flatten("test.yaml", document, &mut objects).unwrap();
    }
    objects
}

/// Translates a text of YAML. Each object of Tulle's kinds must be one that `tulle apply` takes.
pub(super) fn checked(text: &str, import: fn(Vec<Value>) -> Imported) -> Imported {
    let objects = objects(text);
    odd_values::some(&objects, import);
    let imported = import(objects);
    for made in &imported.objects {
        if matches!(made.object["apiVersion"].as_str(), Some("v1" | "apps/v1")) {
            continue;
        }
        let yaml = to_yaml(&made.object).unwrap();
        parse("made.yaml", &yaml).unwrap_or_else(|errors| panic!("{errors:?}\n{yaml}"));
    }
    imported
}

/// The `spec` of the only object that is made, of which nothing is lost.
fn only(text: &str) -> Value {
    let imported = imported(text);
    assert_eq!(imported.lost, []);
    let [made] = imported.objects.as_slice() else {
        panic!("{imported:?}");
    };
    made.object["spec"].clone()
}

pub(super) fn lost(imported: &Imported) -> Vec<(&str, &str)> {
    let each = imported.lost.iter();
    each.map(|l| (l.object.as_str(), l.field.as_str()))
        .collect()
}

#[test]
fn a_mesh_config_becomes_a_mesh() {
    let imported = imported(
        "apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system, uid: 1}
spec:
  sidecar:
    enablePrivilegedInitContainer: false
    logLevel: error
    maxDataPlaneConnections: 0
    envoyImage: x/envoy:v1
    configResyncInterval: 0s
    tlsMinProtocolVersion: TLSv1_2
    cipherSuites: []
    resources: {limits: {cpu: 500m, memory: 128Mi}, requests: {cpu: 100m}}
    localDNSProxy: {enable: true}
  traffic:
    enableEgress: false
    enablePermissiveTrafficPolicyMode: true
    outboundPortExclusionList: [3306, 5432]
    outboundIPRangeExclusionList: []
    inboundExternalAuthorization: {enable: false, timeout: 1s}
  observability:
    osmLogLevel: info
    enableDebugServer: true
    tracing: {enable: true, port: 9411, address: jaeger.osm-system.svc, endpoint: /api/v2/spans}
  certificate:
    serviceCertValidityDuration: 24h
    certKeyBitSize: 2048
    somethingNew: 7
  featureFlags: {enableRetryPolicy: true}
",
    );
    let [made] = imported.objects.as_slice() else {
        panic!("{imported:?}");
    };
    assert_eq!(made.object["kind"], "Mesh");
    assert_eq!(
        made.object["spec"],
        json!({
            "permissiveMode": true,
            "allowEgress": false,
            "logLevel": "error",
            "sidecar": { "cpuLimit": "500m", "memoryLimit": "128Mi" },
            "dns": true,
            "certificates": { "lifetime": "24h" },
        })
    );
    let notes = made.notes.join("\n");
    assert!(
        notes.contains("'sidecar.redirection.excludeOutboundPorts={3306,5432}'"),
        "{notes}"
    );
    assert!(
        notes.contains("sidecar.resources.requests.cpu=100m"),
        "{notes}"
    );
    let id = "MeshConfig osm-system/osm-mesh-config";
    assert_eq!(
        lost(&imported),
        [
            (id, "spec.observability.tracing"),
            (id, "spec.sidecar.tlsMinProtocolVersion"),
            (id, "spec.certificate.somethingNew"),
        ]
    );
}

#[test]
fn an_egress_is_made_for_each_namespace_of_its_callers() {
    let egress = |matches: &str| {
        format!(
            "apiVersion: policy.openservicemesh.io/v1alpha1
kind: Egress
metadata: {{name: httpbin, namespace: curl}}
spec:
  sources:
  - {{kind: ServiceAccount, name: curl, namespace: curl}}
  - {{kind: ServiceAccount, name: other, namespace: shop}}
  hosts: [httpbin.example]
  ports: [{{number: 80, protocol: HTTP}}, {{number: 3306, protocol: tcp-server-first}}]
  matches: [{matches}]
"
        )
    };
    let group = "{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: get}";
    let both = imported(&egress(group));
    assert_eq!(both.lost, []);
    let spaces: Vec<&Value> = both
        .objects
        .iter()
        .map(|m| &m.object["metadata"]["namespace"])
        .collect();
    assert_eq!(spaces, ["curl", "shop"]);
    assert_eq!(
        both.objects[0].object["spec"],
        json!({
            "sources": [{ "kind": "ServiceAccount", "name": "curl" }],
            "hosts": ["httpbin.example"],
            "ports": [{ "number": 80, "protocol": "http" }, { "number": 3306, "protocol": "tcp" }],
            "matches": [{ "kind": "HTTPRouteGroup", "name": "get" }],
        })
    );
    assert!(both.objects[0].notes.is_empty());
    assert!(both.objects[1].notes[0].contains("HTTPRouteGroups"));
    // Without its condition it would allow more.
    let setting = "{apiGroup: policy.openservicemesh.io/v1alpha1, kind: UpstreamTrafficSetting, name: httpbin}";
    let none = imported(&egress(setting));
    assert!(none.objects.is_empty());
    assert_eq!(lost(&none), [("Egress curl/httpbin", "spec.matches[0]")]);
}

#[test]
fn backends_keep_their_names_and_lose_sources_that_prove_nothing() {
    for kind in ["IngressBackend", "AccessControl"] {
        let text = |sources: &str| {
            format!(
                "apiVersion: policy.flomesh.io/v1alpha1
kind: {kind}
metadata: {{name: in, namespace: httpbin}}
spec:
  backends:
  - name: httpbin
    port: {{number: 14001, protocol: http}}
  sources: [{sources}]
"
            )
        };
        let range = "{kind: IPRange, name: 10.0.0.0/8}";
        assert_eq!(
            only(&text(range)),
            json!({
                "backends": [{ "name": "httpbin", "port": 14001 }],
                "sources": [{ "kind": "IPRange", "name": "10.0.0.0/8" }],
            })
        );
        let service = "{kind: Service, name: nginx, namespace: ingress}";
        let principal =
            "{kind: AuthenticatedPrincipal, name: ingress-nginx.ingress-nginx.cluster.local}";
        // Without client certificates addresses alone count.
        let some = imported(&text(&format!("{service}, {principal}, {range}")));
        let id = format!("{kind} httpbin/in");
        assert_eq!(
            lost(&some),
            [(&*id, "spec.sources[0]"), (&*id, "spec.sources[1]")]
        );
        assert_eq!(some.objects.len(), 1);
        // An object that lets nobody in is none.
        let none = imported(&text(service));
        assert!(none.objects.is_empty());
        assert_eq!(
            lost(&none),
            [(&*id, "spec.sources[0]"), (&*id, "spec.sources")]
        );
    }
}

#[test]
fn settings_and_retries_of_a_service_become_one_policy() {
    let imported = imported(
        "apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: httpbin, namespace: shop}
spec:
  host: httpbin.shop.svc.cluster.local
  connectionSettings:
    tcp: {maxConnections: 100, connectTimeout: 0.5s}
    http:
      maxRequests: 50
      maxPendingRequests: 10
      maxRetries: 3
      maxRequestsPerConnection: 1000
      circuitBreaking:
        statTimeWindow: 30s
        minRequestAmount: 50
        slowTimeThreshold: 200ms
        slowRatioThreshold: 0.1
        errorRatioThreshold: 0.25
        degradedTimeWindow: 10s
        degradedStatusCode: 520
        degradedResponseContent: later
  rateLimit:
    local:
      tcp: {connections: 10, unit: second, burst: 5}
      http: {requests: 100, unit: minute, burst: 20, responseStatusCode: 429, responseHeadersToAdd: [{name: x, value: 'y'}]}
  httpRoutes:
  - path: /status/.*
    rateLimit: {local: {requests: 5, unit: hour}}
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Retry
metadata: {name: retry, namespace: curl}
spec:
  source: {kind: ServiceAccount, name: curl, namespace: curl}
  destinations: [{kind: Service, name: httpbin, namespace: shop}]
  retryPolicy: {retryOn: '5xx,unavailable', perTryTimeout: 1s, numRetries: 5, retryBackoffBaseInterval: 1000ms}
",
    );
    assert_eq!(imported.lost, []);
    let [limit, policy] = imported.objects.as_slice() else {
        panic!("{imported:?}");
    };
    assert_eq!(
        limit.object["spec"],
        json!({
            "targetRefs": [{ "kind": "Service", "name": "httpbin" }],
            "connections": { "count": 10, "per": "1s", "burst": 5 },
            "requests": {
                "count": 100, "per": "1m", "burst": 20, "status": 429, "headers": [{ "name": "x", "value": "y" }],
            },
            "rules": [{
                "to": { "paths": [{ "type": "RegularExpression", "value": "/status/.*" }] },
                "requests": { "count": 5, "per": "1h" },
            }],
        })
    );
    assert_eq!(
        policy.from,
        ["UpstreamTrafficSetting shop/httpbin", "Retry curl/retry"]
    );
    assert_eq!(
        policy.object["metadata"],
        json!({ "name": "httpbin", "namespace": "shop" })
    );
    assert_eq!(
        policy.object["spec"],
        json!({
            "targetRefs": [{ "kind": "Service", "name": "httpbin" }],
            "connections": {
                "maxConnections": 100, "maxRequests": 50, "maxPendingRequests": 10, "maxRetries": 3,
                "maxRequestsPerConnection": 1000,
            },
            "timeouts": { "connect": "500ms" },
            "circuitBreaker": {
                "window": "30s", "minRequests": 50,
                "slow": { "threshold": "200ms", "percentage": "10%" },
                "errors": { "percentage": "25%" },
                "openFor": "10s", "status": 520, "body": "later",
            },
            "retry": {
                "attempts": 5, "perTryTimeout": "1s", "backoff": "1s",
                "on": ["connect-failure", "reset", "timeout"],
                "codes": [500, 501, 502, 503, 504, 505], "grpcCodes": [14],
            },
        })
    );
    assert_eq!(policy.notes, ["retry: for every caller, not only for curl"]);
}

#[test]
fn what_cannot_be_said_is_named() {
    let imported = imported(
        "apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: out, namespace: shop}
spec: {host: api.example.com, connectionSettings: {tcp: {maxConnections: 1}}}
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: a, namespace: shop}
spec:
  host: a
  connectionSettings: {tcp: {connectTimeout: 10us}, http: {other: 1}}
  rateLimit: {global: {http: {domain: x}}}
---
apiVersion: plugin.flomesh.io/v1alpha1
kind: Plugin
metadata: {name: p}
spec: {pipyscript: x}
---
apiVersion: flomesh.io/v1alpha1
kind: ServiceExport
metadata: {name: e}
---
apiVersion: split.smi-spec.io/v1alpha3
kind: TrafficSplit
metadata: {name: s, namespace: shop}
spec: {}
",
    );
    assert!(imported.objects.is_empty(), "{imported:?}");
    assert_eq!(
        lost(&imported),
        [
            ("UpstreamTrafficSetting shop/out", "spec.host"),
            (
                "UpstreamTrafficSetting shop/a",
                "spec.connectionSettings.tcp.connectTimeout"
            ),
            ("UpstreamTrafficSetting shop/a", "spec.rateLimit.global"),
            (
                "UpstreamTrafficSetting shop/a",
                "spec.connectionSettings.http.other"
            ),
            ("Plugin p", "spec"),
            ("ServiceExport e", "spec"),
            ("TrafficSplit shop/s", "apiVersion"),
        ]
    );
    for loss in &imported.lost {
        assert!(!loss.why.is_empty() && !loss.instead.is_empty(), "{loss:?}");
    }
}

#[test]
fn smi_and_labels_go_over_and_what_is_nobodys_stays() {
    let imported = imported(
        "apiVersion: v1
kind: List
items:
- apiVersion: access.smi-spec.io/v1alpha3
  kind: TrafficTarget
  metadata: {name: t, namespace: shop, resourceVersion: '5'}
  spec:
    destination: {kind: ServiceAccount, name: web, namespace: shop}
    sources: [{kind: ServiceAccount, name: visitor, namespace: shop}]
    rules: [{kind: HTTPRouteGroup, name: all}]
- apiVersion: v1
  kind: Namespace
  metadata:
    name: shop
    labels: {openservicemesh.io/monitored-by: osm, team: a}
    annotations: {openservicemesh.io/sidecar-injection: enabled, openservicemesh.io/metrics: enabled}
  spec: {finalizers: [kubernetes]}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: web, namespace: shop}
  spec:
    template:
      metadata: {annotations: {flomesh.io/outbound-port-exclusion-list: '3306', flomesh.io/odd: x}}
- {apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}}
",
    );
    let [target, namespace, deployment] = imported.objects.as_slice() else {
        panic!("{imported:?}");
    };
    assert_eq!(
        target.object["metadata"],
        json!({ "name": "t", "namespace": "shop" })
    );
    assert_eq!(
        namespace.object,
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": "shop",
                "labels": { "team": "a", "tulle.dev/inject": "enabled", "tulle.dev/metrics": "enabled" },
            },
        })
    );
    assert_eq!(
        deployment.object["spec"]["template"]["metadata"]["annotations"],
        json!({ "tulle.dev/exclude-outbound-ports": "3306" })
    );
    assert_eq!(
        lost(&imported),
        [(
            "Deployment shop/web",
            "spec.template.metadata.annotations.flomesh.io/odd"
        )]
    );
    assert_eq!(imported.untouched, ["Service shop/web"]);
}

/// Something else than objects would be translated to nothing, and nothing would be lost.
#[test]
fn a_file_without_objects_is_refused() {
    for (text, what) in [
        ("hello", "a text"),
        ("- {kind: Egress}", "a list"),
        ("7", "a number or truth value"),
        ("{kind: List, items: [{kind: Egress}, text]}", "a text"),
    ] {
        let document = documents("test.yaml", text).unwrap().remove(0);
        let refused = flatten("test.yaml", document, &mut Vec::new()).unwrap_err();
        let said = refused.to_string();
        assert!(
            said.contains(&format!("test.yaml has {what} where")),
            "{said}"
        );
        assert!(said.contains("what to do"), "{said}");
    }
    for (text, count) in [
        ("---\n---\nkind: Egress", 1),
        ("{kind: List, items: []}", 0),
        ("{kind: AllowList, spec: {}}", 1),
    ] {
        assert_eq!(objects(text).len(), count, "{text}");
    }
}

/// Behind a line end a comment would be none, and an object in a name would be applied.
#[test]
fn comments_have_one_line() {
    let named = one_line("a\n---\nkind: Mesh\u{2028}b\u{1b}[2J");
    assert_eq!(named, "a --- kind: Mesh b [2J");
}

#[test]
fn who_signs_is_a_value_of_the_installation() {
    let root = |provider: &str| {
        imported(&format!(
            "apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshRootCertificate
metadata: {{name: root, namespace: osm-system}}
spec: {{trustDomain: cluster.local, intent: active, provider: {provider}}}
"
        ))
    };
    let id = "MeshRootCertificate osm-system/root";
    for (provider, fields, options) in [
        (
            "{tresor: {ca: {secretRef: {name: osm-ca-bundle, namespace: osm-system}}}}",
            &["spec", "spec.provider.tresor"][..],
            "--trust-domain cluster.local",
        ),
        (
            "{certManager: {issuerName: ca, issuerKind: Issuer, issuerGroup: cert-manager.io}}",
            &["spec"],
            "--trust-domain cluster.local --set issuer.certManager.name=ca --set issuer.certManager.kind=Issuer \
             --set issuer.certManager.group=cert-manager.io",
        ),
        (
            "{vault: {host: vault.vault.svc, port: 8200, protocol: https, role: osm, token: {secretKeyRef: {name: t}}}}",
            &["spec", "spec.provider.vault.token"],
            "--trust-domain cluster.local --set issuer.vault.sign.role=osm --set issuer.vault.address=https://vault.vault.svc:8200",
        ),
        (
            "{other: {a: b}}",
            &["spec", "spec.provider.other.a"],
            "--trust-domain cluster.local",
        ),
    ] {
        let root = root(provider);
        assert!(root.objects.is_empty());
        let expected: Vec<(&str, &str)> = fields.iter().map(|field| (id, *field)).collect();
        assert_eq!(lost(&root), expected, "{provider}");
        assert_eq!(root.lost[0].instead, format!("`tulle install {options}`"));
    }
}
