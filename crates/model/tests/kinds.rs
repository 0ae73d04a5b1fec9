//! Refusals of the kinds of routing and policy, with their words.

#![allow(clippy::unwrap_used)] // helpers of tests

use tulle_model::manifest::parse;

/// `field: problem` of each error of an object with this `spec`.
fn errors(version: &str, kind: &str, spec: &str) -> Vec<String> {
    let text =
        format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\nspec:\n{spec}\n");
    match parse("f", &text) {
        Ok(_) => Vec::new(),
        Err(errors) => errors
            .iter()
            .map(|e| format!("{}: {}", e.field, e.problem))
            .collect(),
    }
}

const GATEWAY: &str = "gateway.networking.k8s.io/v1";
const TULLE: &str = "tulle.dev/v1alpha1";

#[test]
fn routes() {
    for (kind, rule, expected) in [
        (
            "HTTPRoute",
            "{filters: [{type: CORS}]}",
            "spec.rules[0].filters[0].cors: required for type `CORS`",
        ),
        (
            "HTTPRoute",
            "{filters: [{type: Nothing}]}",
            "spec.rules[0].filters[0].type: expected one of `RequestHeaderModifier`, `ResponseHeaderModifier`, `RequestMirror`, `RequestRedirect`, `URLRewrite`, `CORS`, `ExtensionRef`, found `Nothing`",
        ),
        (
            "HTTPRoute",
            "{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: Content-Length, value: '1'}]}}]}",
            "spec.rules[0].filters[0].requestHeaderModifier.set[0].name: `Content-Length` is the proxy's to set",
        ),
        (
            "HTTPRoute",
            "{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {add: [{name: a, value: \"b\\r\\nc: d\"}]}}]}",
            "spec.rules[0].filters[0].requestHeaderModifier.add[0].value: a header's value has no line ends or control characters",
        ),
        (
            "HTTPRoute",
            "{filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}], backendRefs: [{name: a, port: 1}]}",
            "spec.rules[0].backendRefs: a rule that redirects sends nothing to backends",
        ),
        (
            "HTTPRoute",
            "{matches: [{path: {type: Exact, value: /a}}], filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}}]}",
            "spec.rules[0].filters[0].urlRewrite.path.type: needs rules that match by PathPrefix only: there is no prefix to replace",
        ),
        (
            "HTTPRoute",
            "{filters: [{type: RequestMirror, requestMirror: {backendRef: {name: a, port: 1}, percent: 101}}]}",
            "spec.rules[0].filters[0].requestMirror.percent: expected a number from 0 to 100, found the number 101",
        ),
        (
            "HTTPRoute",
            "{filters: [{type: ExtensionRef, extensionRef: {group: x.example, kind: HTTPFilter, name: a}}]}",
            "spec.rules[0].filters[0].extensionRef.group: expected `tulle.dev`, found `x.example`",
        ),
        (
            "HTTPRoute",
            "{timeouts: {request: 1s, backendRequest: 2s}}",
            "spec.rules[0].timeouts.backendRequest: one try may not take longer than all tries together",
        ),
        (
            "HTTPRoute",
            "{retry: {codes: [200]}}",
            "spec.rules[0].retry.codes[0]: expected a number from 400 to 599, found the number 200",
        ),
        (
            "HTTPRoute",
            "{sessionPersistence: {absoluteTimeout: 1h}}",
            "spec.rules[0].sessionPersistence.absoluteTimeout: given with `lifetimeType: Permanent` and only then: it is the lifetime of the cookie",
        ),
        (
            "GRPCRoute",
            "{matches: [{method: {}}]}",
            "spec.rules[0].matches[0].method: expected `service`, `method` or both, found neither",
        ),
        (
            "GRPCRoute",
            "{matches: [{method: {service: a/b}}]}",
            "spec.rules[0].matches[0].method.service: expected a name of gRPC such as `shop.Cart`, found `a/b`",
        ),
        (
            "GRPCRoute",
            "{filters: [{type: CORS, cors: {allowOrigins: ['*']}}]}",
            "spec.rules[0].filters[0].type: `CORS` is no filter of a GRPCRoute",
        ),
        (
            "TCPRoute",
            "{backendRefs: []}",
            "spec.rules[0].backendRefs: expected at least one backend, found none",
        ),
        (
            "TLSRoute",
            "{backendRefs: [{name: a, port: 1}]}, {backendRefs: [{name: a, port: 1}]}",
            "spec.rules: expected exactly one rule, found 2",
        ),
    ] {
        let spec = format!("  parentRefs: [{{name: g}}]\n  rules: [{rule}]");
        assert_eq!(errors(GATEWAY, kind, &spec), [expected], "{rule}");
    }
}

#[test]
fn listeners() {
    for (listener, expected) in [
        ("protocol: TLS", "spec.listeners[0].tls: required for TLS"),
        (
            "protocol: HTTPS, tls: {mode: Passthrough}",
            "spec.listeners[0].tls.mode: HTTPS cannot be passed through",
        ),
        (
            "protocol: HTTPS, tls: {}",
            "spec.listeners[0].tls.certificateRefs: expected at least one Secret, found none",
        ),
        (
            "protocol: HTTP, tls: {certificateRefs: [{name: a}]}",
            "spec.listeners[0].tls: not used with protocol HTTP",
        ),
        (
            "protocol: HTTPS, tls: {certificateRefs: [{kind: ConfigMap, name: a}]}",
            "spec.listeners[0].tls.certificateRefs[0].kind: expected `Secret`, found `ConfigMap`",
        ),
        (
            "protocol: TCP, hostname: a.example",
            "spec.listeners[0].hostname: a TCP listener has no hostname: the bytes name none",
        ),
        (
            "protocol: HTTP, allowedRoutes: {namespaces: {from: Selector}}",
            "spec.listeners[0].allowedRoutes.namespaces.from: `Selector` is not supported yet",
        ),
    ] {
        let spec = format!("  listeners: [{{name: a, port: 1, {listener}}}]");
        assert_eq!(errors(GATEWAY, "Gateway", &spec), [expected], "{listener}");
    }
    let spec = "  listeners:\n  - {name: a, port: 1, protocol: HTTP}\n  - {name: b, port: 1, protocol: TCP}";
    assert_eq!(
        errors(GATEWAY, "Gateway", spec)[1..],
        [
            "spec.listeners[1].protocol: port 1 has HTTP listeners already; one port cannot take TCP too"
        ]
    );
}

#[test]
fn policies() {
    for (kind, spec, expected) in [
        ("TrafficPolicy", "", "spec: it has no settings"),
        (
            "TrafficPolicy",
            "loadBalancer: {type: RingHash}",
            "spec.loadBalancer.hash: required for type `RingHash`",
        ),
        (
            "TrafficPolicy",
            "loadBalancer: {type: RingHash, hash: {header: a, sourceAddress: true}}",
            "spec.loadBalancer.hash: expected exactly one of `header`, `cookie` and `sourceAddress`, found 2",
        ),
        (
            "TrafficPolicy",
            "circuitBreaker: {window: 1s}",
            "spec.circuitBreaker: nothing opens it",
        ),
        (
            "TrafficPolicy",
            "circuitBreaker: {errors: {percentage: 150%}}",
            "spec.circuitBreaker.errors.percentage: expected a share such as `10%` or `0.5%`, found `150%`",
        ),
        (
            "TrafficPolicy",
            "retry: {on: [5xx]}",
            "spec.retry.on[0]: expected one of `connect-failure`, `reset`, `timeout`, found `5xx`",
        ),
        (
            "RateLimit",
            "",
            "spec: expected `connections`, `requests` or `rules`, found none",
        ),
        (
            "RateLimit",
            "requests: {count: 1, per: 0s}",
            "spec.requests.per: expected at least 1ms, found `0s`",
        ),
        (
            "RateLimit",
            "requests: {count: 1, status: 200}",
            "spec.requests.status: expected a number from 400 to 599, found the number 200",
        ),
        (
            "AuthorizationPolicy",
            "rules: [{from: {principals: ['spiffe://tulle.local/svc/*']}}]",
            "spec.rules[0].from.principals[0]: `spiffe://tulle.local/svc/*` has a `*`: identities are compared exactly",
        ),
        (
            "AuthorizationPolicy",
            "rules: [{from: {}}]",
            "spec.rules[0].from: expected `principals`, `serviceAccounts` or `networks`, found none",
        ),
        (
            "AuthorizationPolicy",
            "rules: [{to: {methods: [get]}}]",
            "spec.rules[0].to.methods[0]: expected one of `GET`, `HEAD`, `POST`, `PUT`, `DELETE`, `CONNECT`, `OPTIONS`, `TRACE`, `PATCH`, found `get`",
        ),
        (
            "AuthorizationPolicy",
            "rules: [{to: {paths: [{value: /a}]}, ignoreCase: true}]",
            "spec.rules[0].ignoreCase: only a policy with `action: Deny` can overlook letter case",
        ),
        (
            "AuthorizationPolicy",
            "action: Deny\n  rules: [{to: {ports: [1]}, ignoreCase: true}]",
            "spec.rules[0].ignoreCase: there are no paths, so letter case has no effect",
        ),
        (
            "RateLimit",
            "rules: [{to: {ports: [1]}, requests: {count: 1}, ignoreCase: true}]",
            "spec.rules[0].ignoreCase: there are no paths, so letter case has no effect",
        ),
        (
            "AuthorizationPolicy",
            "rules: [{from: {networks: [10.0.0.1/8x]}}]",
            "spec.rules[0].from.networks[0]: \"10.0.0.1/8x\" is no range of addresses; write one such as 10.0.0.0/8, fd00::/8 or 192.0.2.7",
        ),
        (
            "Authentication",
            "",
            "spec: expected `jwt` or `externalAuth`, found neither",
        ),
        (
            "Authentication",
            "jwt: {providers: [{issuer: a}]}",
            "spec.jwt.providers[0]: expected exactly one of `jwks`, `jwksRef` and `jwksUri`",
        ),
        (
            "Authentication",
            "jwt: {providers: [{issuer: a, jwks: '{}'}]}",
            "spec.jwt.providers[0].jwks: expected a JSON Web Key Set: `{\"keys\": […]}`",
        ),
        (
            "Plugin",
            "source: ' '",
            "spec.source: there is nothing in it",
        ),
        (
            "Plugin",
            "source: x\n  failurePolicy: Opn",
            "spec.failurePolicy: expected one of `Closed`, `Open`, found `Opn`",
        ),
        (
            "Plugin",
            "source: x\n  limits: {cpu: 2s}",
            "spec.limits.cpu: `2s` is not from 1ms to 1s",
        ),
        (
            "Plugin",
            "source: x\n  limits: {memory: 512Ki}",
            "spec.limits.memory: `512Ki` is not from 1Mi to 256Mi",
        ),
        (
            "Plugin",
            "source: x\n  limits: {calls: 0}",
            "spec.limits.calls: expected a number from 1 to 65536",
        ),
    ] {
        let spec = format!("  targetRefs: [{{kind: Service, name: a}}]\n  {spec}");
        assert_eq!(errors(TULLE, kind, &spec), [expected], "{spec}");
    }
}

#[test]
fn targets_of_policies() {
    for (kind, spec, expected) in [
        (
            "TrafficPolicy",
            "targetRefs: [{kind: Gateway, name: a}]\n  slowStart: 1s",
            "spec.targetRefs[0].kind: a Gateway cannot be the target of this kind of policy",
        ),
        (
            "RateLimit",
            "targetRefs: [{kind: HTTPRoute, name: a}]\n  requests: {count: 1}",
            "spec.targetRefs[0].kind: an HTTPRoute cannot be the target of this kind of policy",
        ),
        (
            "RateLimit",
            "targetRefs: [{kind: Gateway, name: a}]\n  connections: {count: 1}",
            "spec.connections: connections of a Gateway are not limited by rate",
        ),
        (
            "AuthorizationPolicy",
            "targetRefs: [{kind: TLSRoute, name: a}]\n  rules: [{to: {ports: [1]}}]",
            "spec.targetRefs[0].kind: expected one of `Service`, `Gateway`, `HTTPRoute`, `GRPCRoute`, found `TLSRoute`",
        ),
        (
            "AuthorizationPolicy",
            "targetRefs: [{kind: HTTPRoute, name: a, port: 80}]\n  rules: [{to: {ports: [1]}}]",
            "spec.targetRefs[0].port: a route has no ports",
        ),
        (
            "AuthorizationPolicy",
            "targetRefs: [{group: apps, kind: Gateway, name: a}]\n  rules: [{to: {ports: [1]}}]",
            "spec.targetRefs[0].group: expected `gateway.networking.k8s.io`, found `apps`",
        ),
        (
            "AuthorizationPolicy",
            "targetRefs: [{kind: Gateway, name: a}]\n  rules: [{from: {serviceAccounts: [b]}}]",
            "spec.rules[0].from.serviceAccounts: clients of a gateway have no identity of the mesh",
        ),
        (
            "AuthorizationPolicy",
            "targetRefs: [{name: a}, {kind: GRPCRoute, name: a}]\n  rules: [{from: {principals: [\"spiffe://a/svc/b\"]}}]",
            "spec.rules[0].from.principals: clients of a gateway have no identity of the mesh",
        ),
    ] {
        assert_eq!(
            errors(TULLE, kind, &format!("  {spec}")),
            [expected],
            "{spec}"
        );
    }
}

#[test]
fn annotations_of_gateways() {
    let listeners = "listeners: [{name: a, port: 1, protocol: HTTP, hostname: a.example}, {name: b, port: 1, protocol: HTTP}]";
    for (annotation, expected) in [
        (
            "locality: a/b/c",
            "spec.infrastructure.annotations[\"tulle.dev/locality\"]: expected `region` or `region/zone`, found `a/b/c`",
        ),
        (
            "proxy-protocol: c",
            "spec.infrastructure.annotations[\"tulle.dev/proxy-protocol\"]: expected one of `a`, `b`, found `c`",
        ),
        (
            "proxy-protocol: a",
            "spec.infrastructure.annotations[\"tulle.dev/proxy-protocol\"]: listener `b` on port 1 is not named and another one on that port is",
        ),
        (
            "proxy: a",
            "spec.infrastructure.annotations: expected one of `tulle.dev/locality`, `tulle.dev/proxy-protocol`, found `tulle.dev/proxy`",
        ),
    ] {
        let spec = format!(
            "  {listeners}\n  infrastructure: {{annotations: {{tulle.dev/{annotation}, mine: x}}}}"
        );
        let version = "gateway.networking.k8s.io/v1";
        assert_eq!(errors(version, "Gateway", &spec), [expected]);
    }
}

/// A route must not change these headers: the proxies set them.
#[test]
fn headers_that_are_the_proxies() {
    for name in [
        "Host",
        "expect",
        "x-forwarded-client-cert",
        "X-Tulle-Reason",
        "x_tulle_y",
    ] {
        let spec = format!(
            "  parentRefs: [{{name: g}}]\n  rules: [{{filters: [{{type: RequestHeaderModifier, requestHeaderModifier: {{remove: [{name}]}}}}], backendRefs: [{{name: a, port: 1}}]}}]"
        );
        let expected = format!(
            "spec.rules[0].filters[0].requestHeaderModifier.remove[0]: `{name}` is the proxy's to set"
        );
        assert_eq!(
            errors("gateway.networking.k8s.io/v1", "HTTPRoute", &spec),
            [expected]
        );
    }
}

#[test]
fn access() {
    for (kind, spec, expected) in [
        (
            "IngressBackend",
            "backends: [{name: a}]\n  sources: [{kind: IPRange, name: 10.0.0.0/33}]",
            "spec.sources[0].name: \"10.0.0.0/33\" is no range of addresses; write one such as 10.0.0.0/8, fd00::/8 or 192.0.2.7",
        ),
        (
            "AccessControl",
            "backends: [{name: a}]\n  sources: []",
            "spec.sources: expected at least one source, found none",
        ),
        (
            "Egress",
            "ports: [{number: 443}]",
            "spec: expected `hosts`, `ipAddresses` or both, found neither",
        ),
        (
            "Egress",
            "hosts: [a.example]\n  ports: [{number: 443, protocol: udp}]",
            "spec.ports[0].protocol: expected one of `http`, `https`, `tls`, `tcp`, found `udp`",
        ),
        (
            "HTTPFilter",
            "fault: {}",
            "spec.fault: expected `delay`, `abort` or both, found neither",
        ),
        (
            "HTTPFilter",
            "directResponse: {status: 100}",
            "spec.directResponse.status: expected a number from 200 to 599, found the number 100",
        ),
    ] {
        assert_eq!(
            errors(TULLE, kind, &format!("  {spec}")),
            [expected],
            "{spec}"
        );
    }
}

#[test]
fn versions_tell_kinds_of_one_name_apart() {
    let tcp = "  parentRefs: [{name: g}]\n  rules: [{backendRefs: [{name: a, port: 1}]}]";
    for version in ["v1", "v1alpha3", "v1alpha2"] {
        let version = format!("gateway.networking.k8s.io/{version}");
        assert_eq!(errors(&version, "TCPRoute", tcp), Vec::<String>::new());
    }
    let smi = "  matches: {ports: [3306]}";
    assert_eq!(
        errors("specs.smi-spec.io/v1alpha4", "TCPRoute", smi),
        Vec::<String>::new()
    );
    assert_eq!(
        errors("v1", "TCPRoute", smi),
        [
            "apiVersion: unknown version `v1` of TCPRoute, expected `gateway.networking.k8s.io/v1` or `gateway.networking.k8s.io/v1alpha3` or `gateway.networking.k8s.io/v1alpha2` or `specs.smi-spec.io/v1alpha4`"
        ]
    );
    let split = "  service: a\n  matches: [{kind: HTTPRouteGroup, name: g}]\n  backends: [{service: b, weight: 0}]";
    assert_eq!(
        errors("split.smi-spec.io/v1alpha2", "TrafficSplit", split),
        [
            "spec.matches: v1alpha2 has no `matches`",
            "spec.backends: every backend has weight 0, so none gets requests"
        ]
    );
}

#[test]
fn secrets_are_checked_and_not_shown() {
    let head = "apiVersion: v1\nkind: Secret\nmetadata: {name: shop.example}\n";
    let text =
        format!("{head}type: kubernetes.io/tls\ndata: {{tls.crt: bm90aGluZw==, a: c2VjcmV0!}}");
    let errors = parse("f", &text).unwrap_err();
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(
        errors.iter().any(|e| e.contains("has `tls.key`")),
        "{errors:?}"
    );
    assert!(errors.iter().any(|e| e.contains("base64")), "{errors:?}");
    assert!(!errors.iter().any(|e| e.contains("c2VjcmV0")), "{errors:?}");
}
