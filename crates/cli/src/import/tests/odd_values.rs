//! Files written by hand have values of any kind at any place. An importer says so, and neither panics nor makes an object
//! that would be refused.

use super::*;
use crate::import::bookstore::{CALLS, NAMESPACES, POLICIES};
use crate::import::imported::Made;
use std::collections::HashSet;
use std::panic::catch_unwind;

type Importer = fn(Vec<Value>) -> Imported;

/// Most places that are tried of an example of another test.
const FEW: usize = 16;

/// Settings, ways in and out, and workloads of OSM and FSM.
const OSM: &str = "apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  sidecar:
    logLevel: error
    maxDataPlaneConnections: 7
    tlsMinProtocolVersion: TLSv1_2
    cipherSuites: [a]
    resources: {limits: {cpu: 500m, memory: 128Mi}, requests: {cpu: 100m}}
    localDNSProxy: {enable: true}
  traffic:
    enableEgress: false
    enablePermissiveTrafficPolicyMode: true
    outboundPortExclusionList: [3306, 5432]
    outboundIPRangeExclusionList: [10.0.0.0/8]
    networkInterfaceExclusionList: [eth1]
    inboundExternalAuthorization: {enable: true, timeout: 1s}
  observability: {osmLogLevel: info, tracing: {enable: true, port: 9411}}
  certificate: {serviceCertValidityDuration: 24h, ingressGateway: {secret: {name: a}}}
---
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshRootCertificate
metadata: {name: root, namespace: osm-system}
spec: {trustDomain: cluster.local, intent: active, provider: {vault: {host: v, port: 8200, token: {secretKeyRef: {name: t}}}}}
---
apiVersion: policy.flomesh.io/v1alpha1
kind: AccessControl
metadata: {name: in, namespace: bookstore}
spec:
  backends: [{name: bookstore, port: {number: 14001, protocol: https}, tls: {skipClientCertValidation: false}}]
  sources: [{kind: IPRange, name: 10.0.0.0/8}, {kind: AuthenticatedPrincipal, name: 'spiffe://a.b/ns/c/sa/d'}]
  matches: [{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: bookstore-service-routes}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, annotations: {openservicemesh.io/sidecar-injection: enabled}}
spec:
  template:
    metadata: {annotations: {flomesh.io/outbound-port-exclusion-list: '3306', flomesh.io/odd: x}}
";

/// Limits of a service of OSM and FSM.
const OSM_LIMITS: &str = "apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: httpbin, namespace: shop}
spec:
  host: httpbin.shop.svc.cluster.local
  connectionSettings:
    tcp: {maxConnections: 100, connectTimeout: 0.5s}
    http:
      maxRequests: 50
      circuitBreaking:
        statTimeWindow: 30s
        minRequestAmount: 50
        slowTimeThreshold: 200ms
        slowRatioThreshold: 0.1
        errorAmountThreshold: 5
        degradedTimeWindow: 10s
        degradedStatusCode: 520
        degradedResponseContent: later
  rateLimit:
    local:
      tcp: {connections: 10, unit: second, burst: 5}
      http: {requests: 100, unit: minute, responseStatusCode: 429, responseHeadersToAdd: [{name: x, value: 'y'}]}
  httpRoutes: [{path: /status/.*, rateLimit: {local: {requests: 5, unit: hour}}}]
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Egress
metadata: {name: out, namespace: curl}
spec:
  sources: [{kind: ServiceAccount, name: curl, namespace: curl}]
  hosts: [httpbin.example]
  ipAddresses: [10.0.0.0/8]
  ports: [{number: 80, protocol: HTTP}]
  matches: [{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: get}]
";

/// Policies of Istio.
const ISTIO_POLICIES: &str = "apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 9080}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  action: ALLOW
  rules:
  - from: [{source: {principals: [a/ns/b/sa/c], namespaces: [d], ipBlocks: [10.0.0.1], notRequestPrincipals: ['*']}}]
    to: [{operation: {ports: ['9080'], methods: [GET], paths: [/a, '/b/{*}'], notHosts: [x]}}]
    when:
    - {key: 'request.headers[x]', values: [a], notValues: [b]}
    - {key: 'request.auth.claims[iss]', values: [a]}
    - {key: destination.port, values: ['9080']}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: mesh, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  jwtRules:
  - issuer: a
    audiences: [b]
    jwksUri: https://a.example/keys
    fromHeaders: [{name: x, prefix: 'Bearer '}]
    outputClaimToHeaders: [{claim: sub, header: x-sub}]
    forwardOriginalToken: true
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: out, namespace: shop}
spec: {hosts: [a.example], addresses: [10.0.0.0/8], exportTo: [.], ports: [{number: 443, name: a, protocol: TLS}], resolution: DNS}
";

/// Traffic of Istio.
const ISTIO_TRAFFIC: &str = "apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 9080}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: v, namespace: shop}
spec:
  hosts: [web]
  gateways: [mesh, ways/in]
  http:
  - match: [{uri: {prefix: /a}, headers: {b: {regex: c}}, withoutHeaders: {d: {}}, method: {exact: GET}, ignoreUriCase: false}]
    rewrite: {uri: /b, authority: c}
    headers: {request: {set: {e: f}}, response: {remove: [g]}}
    route: [{destination: {host: web, subset: v1, port: {number: 80}}, weight: 10}, {destination: {host: web}, weight: 90}]
    timeout: 1s
    retries: {attempts: 2, perTryTimeout: 1s, retryOn: '5xx,503'}
    mirror: {host: web}
    mirrorPercentage: {value: 0.5}
    fault: {delay: {fixedDelay: 1s, percentage: {value: 10}}, abort: {httpStatus: 503}}
    corsPolicy: {allowOrigins: [{exact: https://a.example}], allowMethods: [GET], maxAge: 24h}
  - match: [{uri: {exact: /r}}]
    redirect: {uri: /s, redirectCode: 302}
  tls: [{match: [{port: 443, sniHosts: [a.example]}], route: [{destination: {host: web}}]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: d, namespace: shop}
spec:
  host: web
  trafficPolicy:
    loadBalancer: {consistentHash: {httpCookie: {name: a, ttl: 1s}}}
    connectionPool: {tcp: {maxConnections: 7, connectTimeout: 0.5s}, http: {http2MaxRequests: 9, idleTimeout: 1m}}
    outlierDetection: {consecutive5xxErrors: 3, baseEjectionTime: 30s, maxEjectionPercent: 20}
    portLevelSettings: [{port: {number: 80}, loadBalancer: {simple: RANDOM}}]
  subsets: [{name: v1, labels: {version: v1}, trafficPolicy: {loadBalancer: {simple: LEAST_REQUEST}}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: in, namespace: ways}
spec:
  servers:
  - {port: {number: 443, name: a, protocol: HTTPS}, hosts: [./a.example], tls: {mode: MUTUAL, credentialName: c}}
  - {port: {number: 80, protocol: HTTP}, hosts: ['*'], tls: {httpsRedirect: true}}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}, annotations: {istio.io/rev: a}}
";

/// Policies of Linkerd.
const LINKERD_POLICIES: &str = "apiVersion: v1
kind: Service
metadata: {name: ratings, namespace: shop}
spec: {selector: {app: ratings}, ports: [{name: http, port: 80, targetPort: web}]}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web, namespace: shop, labels: {zone: a}}
spec: {podSelector: {matchLabels: {app: ratings}}, port: web, proxyProtocol: HTTP/1, accessPolicy: all-authenticated}
---
apiVersion: policy.linkerd.io/v1beta3
kind: HTTPRoute
metadata: {name: reads, namespace: shop}
spec:
  parentRefs: [{kind: Server, group: policy.linkerd.io, name: web}]
  hostnames: [a.example]
  rules: [{matches: [{method: GET, path: {type: Exact, value: /a}, headers: [{name: b, value: c}]}]}]
---
apiVersion: policy.linkerd.io/v1beta3
kind: MeshTLSAuthentication
metadata: {name: some, namespace: shop}
spec: {identities: ['a.b.serviceaccount.identity.linkerd.cluster.local'], identityRefs: [{kind: ServiceAccount, name: own}]}
---
apiVersion: policy.linkerd.io/v1beta3
kind: NetworkAuthentication
metadata: {name: near, namespace: shop}
spec: {networks: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}]}
---
apiVersion: policy.linkerd.io/v1beta3
kind: AuthorizationPolicy
metadata: {name: p, namespace: shop}
spec:
  targetRef: {group: policy.linkerd.io, kind: HTTPRoute, name: reads}
  requiredAuthenticationRefs: [{kind: MeshTLSAuthentication, name: some}, {kind: NetworkAuthentication, name: near}]
---
apiVersion: policy.linkerd.io/v1beta3
kind: ServerAuthorization
metadata: {name: old, namespace: shop}
spec:
  server: {selector: {matchLabels: {zone: a}}}
  client: {networks: [{cidr: 10.0.0.0/8}], meshTLS: {serviceAccounts: [{name: web, namespace: front}]}}
---
apiVersion: policy.linkerd.io/v1beta3
kind: HTTPLocalRateLimitPolicy
metadata: {name: slow, namespace: shop}
spec: {targetRef: {kind: Server, name: web}, total: {requestsPerSecond: 100}}
";

/// Traffic of Linkerd.
const LINKERD_TRAFFIC: &str = "apiVersion: v1
kind: Service
metadata: {name: ratings, namespace: shop}
spec: {selector: {app: ratings}, ports: [{name: http, port: 80, targetPort: web}]}
---
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata: {name: ratings.shop.svc.cluster.local, namespace: shop}
spec:
  retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 10, ttl: 10s}
  dstOverrides: [{authority: 'ratings.shop.svc.cluster.local:80', weight: 500m}, {authority: ratings.shop, weight: 1}]
  opaquePorts: [3306]
  routes:
  - name: a
    condition: {any: [{method: GET}, {all: [{method: POST}, {pathRegex: /a}]}]}
    timeout: 1s
    isRetryable: true
    responseClasses: [{isFailure: true, condition: {status: {min: 500}}}]
---
apiVersion: policy.linkerd.io/v1beta3
kind: HTTPRoute
metadata: {name: calls, namespace: shop}
spec:
  parentRefs: [{group: core, kind: Service, name: ratings, port: 80}]
  rules: [{matches: [{path: {value: /a}}], backendRefs: [{name: ratings, port: 80, weight: 1}], timeouts: {request: 1s}}]
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {linkerd.io/inject: enabled}}
";

/// Values of each kind; none: the field or item is not there.
fn odd() -> Vec<Option<Value>> {
    let text = "ä \u{1f9f5} \"'\\ #: {}[]*/.=\t\n---\n- \u{7f}";
    let values = [
        json!(null),
        json!(true),
        json!(7),
        json!(-7),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!(text),
        json!([]),
        json!(["text"]),
        json!([null]),
        json!({}),
        json!({ (text): 1, "": null }),
    ];
    values.into_iter().map(Some).chain([None]).collect()
}

/// Adds the places of all that is in a value, as JSON pointers.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, v)| (name.clone(), v)).collect(),
        Value::Array(items) => {
            let numbered = items.iter().enumerate();
            numbered.map(|(n, v)| (n.to_string(), v)).collect()
        }
        _ => Vec::new(),
    };
    for (name, value) in inner {
        let at = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
        places(value, &at, all);
        all.push(at);
    }
}

/// An object with another value at a place, or without what is there.
fn changed(object: &Value, place: &str, with: Option<&Value>) -> Value {
    let mut object = object.clone();
    if let Some(value) = with {
        *object.pointer_mut(place).unwrap() = value.clone();
        return object;
    }
    let (parent, name) = place.rsplit_once('/').unwrap();
    let name = name.replace("~1", "/").replace("~0", "~");
    match object.pointer_mut(parent).unwrap() {
        Value::Object(fields) => drop(fields.remove(&name)),
        Value::Array(items) => drop(items.remove(name.parse().unwrap())),
        other => panic!("{other} has no {name}"),
    }
    object
}

/// Translates objects, of which one is changed.
fn translated(
    objects: &[Value],
    (which, place, with): (usize, &str, Option<&Value>),
    import: Importer,
) -> Imported {
    let kind = objects[which]["kind"].clone();
    let mut objects = objects.to_vec();
    objects[which] = changed(&objects[which], place, with);
    let done = catch_unwind(move || import(objects));
    let imported = done.unwrap_or_else(|_| panic!("{kind}{place}: {with:?}"));
    for loss in &imported.lost {
        assert!(!loss.why.is_empty() && !loss.instead.is_empty(), "{loss:?}");
    }
    imported
}

/// Tries some places of the example of another test, each with one value.
pub(super) fn some(objects: &[Value], import: Importer) {
    let odd = odd();
    let mut all = Vec::new();
    for (which, object) in objects.iter().enumerate() {
        let mut places = Vec::new();
        self::places(object, "", &mut places);
        all.extend(places.into_iter().map(|place| (which, place)));
    }
    let step = all.len().div_ceil(FEW).max(1);
    for (number, (which, place)) in all.iter().step_by(step).enumerate() {
        let with = &odd[(number + all.len()) % odd.len()];
        translated(objects, (*which, place, with.as_ref()), import);
    }
}

#[test]
fn no_value_has_an_importer_panic_or_make_what_is_refused() {
    let odd = odd();
    let mut seen = HashSet::new();
    let examples: [(&str, Importer); 9] = [
        (OSM, osm::import),
        (OSM_LIMITS, osm::import),
        (NAMESPACES, osm::import),
        (CALLS, osm::import),
        (POLICIES, osm::import),
        (ISTIO_POLICIES, istio::import),
        (ISTIO_TRAFFIC, istio::import),
        (LINKERD_POLICIES, linkerd::import),
        (LINKERD_TRAFFIC, linkerd::import),
    ];
    for (text, import) in examples {
        let objects = objects(text);
        for (which, object) in objects.iter().enumerate() {
            let mut places = Vec::new();
            self::places(object, "", &mut places);
            for (place, with) in places.iter().flat_map(|p| odd.iter().map(move |w| (p, w))) {
                let imported = translated(&objects, (which, place, with.as_ref()), import);
                let new = |made: &&Made| seen.insert(made.object.to_string());
                for made in imported.objects.iter().filter(new) {
                    if !made.is_read() || made.refused().is_some() {
                        continue;
                    }
                    let yaml = to_yaml(&made.object).unwrap();
                    let read = parse("made.yaml", &yaml);
                    read.unwrap_or_else(|e| panic!("{place}: {with:?}: {e:?}\n{yaml}"));
                }
            }
        }
    }
}

#[test]
fn an_object_that_would_be_refused_is_lost() {
    let given = objects(&POLICIES.replace("numRetries: 5", "numRetries: -5"));
    let mut imported = osm::import(given);
    let before = imported.objects.len();
    imported.lose_refused();
    assert_eq!(imported.objects.len(), before - 1);
    let [loss] = imported.lost.as_slice() else {
        panic!("{imported:?}");
    };
    assert!(loss.object.contains("Retry bookbuyer/retry"), "{loss:?}");
    assert!(loss.why.contains("TrafficPolicy bookstore"), "{loss:?}");
    assert!(loss.why.contains("attempts"), "{loss:?}");
}

/// Without its callers a rule of Istio would be about all of them.
#[test]
fn a_caller_under_another_word_is_named() {
    for (word, field) in [
        ("from: [{sauce: {", "spec.rules[0].from[0].sauce."),
        ("from: [web, {source: {", "spec.rules[0].from[0]"),
    ] {
        let text = ISTIO_POLICIES.replace("from: [{source: {", word);
        let imported = istio::import(objects(&text));
        let mut made = imported.objects.iter();
        assert!(made.all(|m| m.object["kind"] != "AuthorizationPolicy"));
        let mut lost = imported.lost.iter();
        assert!(lost.any(|l| l.field.starts_with(field)), "{imported:?}");
    }
}
