use super::*;

fn policy(spec: &str) -> String {
    format!(
        "{SERVICES}apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: p, namespace: shop}}
spec: {spec}
"
    )
}

/// The rules of the only policy that is made.
fn rules(spec: &str) -> Value {
    let imported = imported(&policy(spec));
    assert_eq!(imported.lost, []);
    let [made] = imported.objects.as_slice() else {
        panic!("{imported:?}");
    };
    made.object["spec"]["rules"].clone()
}

#[test]
fn a_policy_is_about_the_services_of_its_workloads() {
    let targets = |selector: &str| {
        let text = policy(&format!("{{{selector} action: DENY, rules: [{{}}]}}"));
        let imported = imported(&text);
        assert_eq!(imported.lost, []);
        let spec = &imported.objects[0].object["spec"];
        assert_eq!(spec["action"], "Deny");
        let refs = spec["targetRefs"].as_array().unwrap().clone();
        refs.iter()
            .map(|r| r["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(targets(""), ["reviews", "ratings"]);
    assert_eq!(
        targets("selector: {matchLabels: {app: ratings}},"),
        ["ratings"]
    );
    assert_eq!(
        targets("targetRefs: [{group: '', kind: Service, name: ratings}],"),
        ["ratings"]
    );
    let unknown = imported(&policy("{selector: {matchLabels: {app: x}}, rules: [{}]}"));
    assert_eq!(
        lost(&unknown),
        [("AuthorizationPolicy shop/p", "spec.selector")]
    );
    assert!(unknown.objects.is_empty());
}

#[test]
fn lists_stay_lists_and_what_they_cannot_say_is_a_condition() {
    for (rule, ours) in [
        (
            "{from: [{source: {principals: [cluster.local/ns/shop/sa/web]}}],
              to: [{operation: {methods: [GET], paths: [/a], ports: ['9080']}}]}",
            json!([{
                "from": { "principals": ["spiffe://cluster.local/ns/shop/sa/web"] },
                "to": { "methods": ["GET"], "paths": [{ "type": "Exact", "value": "/a" }], "ports": [80] },
            }]),
        ),
        (
            "{from: [{source: {principals: ['cluster.local/ns/shop/*', '*/sa/b'], namespaces: [shop, dev-*]}}]}",
            json!([{ "to": { "when": "(source.identity.startsWith(\"spiffe://cluster.local/ns/shop/\") || \
                source.identity.endsWith(\"/sa/b\")) && (source.namespace == \"shop\" || source.namespace.startsWith(\"dev-\"))" } }]),
        ),
        (
            "{from: [{source: {ipBlocks: [10.0.0.0/8, 192.0.2.1]}}, {source: {namespaces: [a, b], notIpBlocks: ['::1']}}]}",
            json!([
                { "to": { "when": "(cidr(\"10.0.0.0/8\").containsIP(source.address) || cidr(\"192.0.2.1/32\").containsIP(source.address))" } },
                { "to": { "when": "source.namespace in [\"a\", \"b\"] && !(cidr(\"::1/128\").containsIP(source.address))" } },
            ]),
        ),
        (
            "{to: [{operation: {paths: ['/a/*', /b], notMethods: [POST], notPorts: ['9080'], hosts: ['*.x.io', y.io]}}]}",
            json!([{ "to": { "when": "(request.path == \"/b\" || request.path.startsWith(\"/a/\")) && \
                (request.host == \"y.io\" || request.host.endsWith(\".x.io\")) && !(request.method == \"POST\") && \
                destination.port != 9080" } }]),
        ),
        (
            "{when: [{key: 'request.headers[X-Team]', values: [a, b*]}, {key: source.principal, notValues: [td/ns/a/sa/b]},
              {key: 'request.headers[x-any]', values: ['*']}, {key: source.ip, values: [10.1.0.0/16]}]}",
            json!([{ "to": { "when": "\"X-Team\" in request.headers && (request.headers[\"X-Team\"] == \"a\" || \
                request.headers[\"X-Team\"].startsWith(\"b\")) && !(source.identity == \"spiffe://td/ns/a/sa/b\") && \
                \"x-any\" in request.headers && cidr(\"10.1.0.0/16\").containsIP(source.address)" } }]),
        ),
        (
            "{from: [{source: {serviceAccounts: [web, jobs/night], notServiceAccounts: [dev/x]}}],
              when: [{key: destination.port, values: ['9080'], notValues: ['9080']}]}",
            json!([{ "to": { "ports": [80], "when": "destination.port != 9080 && \
                (source.namespace == \"shop\" && source.service == \"web\" || \
                source.namespace == \"jobs\" && source.service == \"night\") && \
                !(source.namespace == \"dev\" && source.service == \"x\")" } }]),
        ),
    ] {
        let made = rules(&format!("{{selector: {{matchLabels: {{app: reviews}}}}, rules: [{rule}]}}"));
        assert_eq!(made, ours, "{rule}");
    }
}

#[test]
fn claims_of_tokens_are_conditions() {
    let rules = "[{from: [{source: {requestPrincipals: ['https://login/*']}}],
        when: [{key: 'request.auth.claims[groups]', values: [staff, 'a \"b\"']},
               {key: 'request.auth.claims[realm][roles]', values: ['*'], notValues: [guest]},
               {key: 'request.auth.claims[scope]', values: [read]},
               {key: request.auth.audiences, values: [shop]}]},
       {from: [{source: {notRequestPrincipals: ['*']}}]}]";
    let imported = imported(&policy(&format!("{{rules: {rules}}}")));
    assert_eq!(imported.lost, []);
    let object = &imported.objects[0].object;
    let when = |number: usize| {
        object["spec"]["rules"][number]["to"]["when"]
            .as_str()
            .unwrap()
    };
    assert_eq!(
        when(0),
        [
            r#""groups" in jwt.claims && ("staff" in (type(jwt.claims["groups"]) == list ? jwt.claims["groups"] : [jwt.claims["groups"]]) || "a \"b\"" in (type(jwt.claims["groups"]) == list ? jwt.claims["groups"] : [jwt.claims["groups"]]))"#,
            r#""realm" in jwt.claims && "roles" in jwt.claims["realm"]"#,
            r#"!("realm" in jwt.claims && "roles" in jwt.claims["realm"] && "guest" in (type(jwt.claims["realm"]["roles"]) == list ? jwt.claims["realm"]["roles"] : [jwt.claims["realm"]["roles"]]))"#,
            r#""scope" in jwt.claims && "read" in (type(jwt.claims["scope"]) == list ? jwt.claims["scope"] : jwt.claims["scope"].split(" "))"#,
            r#""aud" in jwt.claims && "shop" in (type(jwt.claims["aud"]) == list ? jwt.claims["aud"] : [jwt.claims["aud"]])"#,
            r#"has(jwt.claims.iss) && has(jwt.claims.sub) && (string(jwt.claims.iss) + "/" + string(jwt.claims.sub)).startsWith("https://login/")"#,
        ]
        .join(" && ")
    );
    assert_eq!(
        when(1),
        r#"!(has(jwt.claims.iss) && has(jwt.claims.sub) && (string(jwt.claims.iss) + "/" + string(jwt.claims.sub)) != "")"#
    );
}

/// A port of the pods is another one of each Service, so each has a policy of its own.
#[test]
fn ports_are_those_of_each_service() {
    let imported = imported(&policy("{rules: [{to: [{operation: {ports: ['9080']}}]}]}"));
    assert_eq!(imported.lost, []);
    let made = imported.objects.iter().map(|m| &m.object);
    let made: Vec<_> = made
        .map(|o| (o["metadata"]["name"].clone(), o["spec"]["rules"].clone()))
        .collect();
    assert_eq!(
        made,
        [
            (json!("p-reviews"), json!([{ "to": { "ports": [80] } }])),
            (json!("p-ratings"), json!([{ "to": { "ports": [9080] } }])),
        ]
    );
}

#[test]
fn a_policy_that_would_be_another_one_is_not_made() {
    let id = "AuthorizationPolicy shop/p";
    for (spec, field) in [
        ("{}", "spec.rules"),
        ("{action: DENY}", "spec.rules"),
        ("{action: CUSTOM, rules: [{}]}", "spec.action"),
        (
            "{rules: [{when: [{key: 'request.auth.claims[a]', values: ['b*']}]}]}",
            "spec.rules[0].when[0]",
        ),
        // Behind a gateway these are somebody else than the caller.
        (
            "{rules: [{when: [{key: remote.ip, values: [10.1.0.0/16]}]}]}",
            "spec.rules[0].when[0]",
        ),
        (
            "{rules: [{from: [{source: {notRemoteIpBlocks: [10.1.0.0/16]}}]}]}",
            "spec.rules[0].from[0].source.notRemoteIpBlocks",
        ),
        (
            "{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: way}], rules: [{}]}",
            "spec.targetRefs[0]",
        ),
        (
            "{rules: [{to: [{operation: {somethingNew: [a]}}]}]}",
            "spec.rules[0].to[0].operation.somethingNew[0]",
        ),
    ] {
        let imported = imported(&policy(spec));
        assert_eq!(lost(&imported), [(id, field)], "{spec}");
        assert!(imported.objects.is_empty(), "{spec}");
    }
}

#[test]
fn strictness_namespaces_and_other_kinds() {
    let imported = imported(
        "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: loose, namespace: shop}
spec: {mtls: {mode: PERMISSIVE}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: one, namespace: shop}
spec: {selector: {matchLabels: {app: a}}, mtls: {mode: STRICT}}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled, team: a}}
---
apiVersion: networking.istio.io/v1
kind: Telemetry
metadata: {name: v, namespace: shop}
spec: {hosts: [a]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d, namespace: shop}
spec: {}
",
    );
    let specs: Vec<&Value> = imported.objects.iter().map(|made| &made.object).collect();
    assert_eq!(specs[0]["spec"], json!({ "mtls": { "mode": "strict" } }));
    assert_eq!(
        specs[1]["metadata"]["labels"],
        json!({ "team": "a", "tulle.dev/inject": "enabled" })
    );
    assert_eq!(
        lost(&imported),
        [
            // The mesh is strict.
            ("PeerAuthentication shop/loose", "spec.mtls.mode"),
            ("PeerAuthentication shop/one", "spec.selector"),
            ("Telemetry shop/v", "spec"),
        ]
    );
    assert_eq!(imported.untouched, ["Deployment shop/d"]);
}

fn tokens(spec: &str) -> Imported {
    imported(&format!(
        "{SERVICES}apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: t, namespace: shop}}
spec: {spec}
"
    ))
}

#[test]
fn tokens_are_read_by_an_authentication() {
    let imported = tokens(
        "
  selector: {matchLabels: {app: reviews}}
  jwtRules:
  - issuer: https://login.example.com
    audiences: [shop]
    jwksUri: https://login.example.com/keys
    timeout: 5s
    forwardOriginalToken: true
    outputClaimToHeaders: [{header: x-user, claim: sub}]
  - issuer: local
    jwks: '{\"keys\": []}'
    fromHeaders: [{name: x-token, prefix: 'Bearer '}]
",
    );
    assert_eq!(imported.lost, []);
    let [made] = imported.objects.as_slice() else {
        panic!("{imported:?}");
    };
    assert_eq!(made.object["kind"], "Authentication");
    assert_eq!(
        made.object["spec"],
        json!({
            "targetRefs": [{ "kind": "Service", "name": "reviews" }],
            "jwt": { "optional": true, "providers": [
                {
                    "issuer": "https://login.example.com", "audiences": ["shop"],
                    "jwksUri": "https://login.example.com/keys", "forward": true,
                    "claimHeaders": [{ "claim": "sub", "header": "x-user" }],
                },
                { "issuer": "local", "jwks": "{\"keys\": []}", "header": "x-token" },
            ] },
        })
    );
    assert!(made.notes.iter().any(|note| note.contains("jwks.hosts")));
}

#[test]
fn an_authentication_that_would_take_other_tokens_is_not_made() {
    for (rule, field) in [
        ("issuer: a", "jwksUri"),
        ("issuer: a, jwksUri: 'http://keys.shop/'", "jwksUri"),
        ("issuer: a, jwks: x, fromParams: [token]", "fromParams[0]"),
        (
            "issuer: a, jwks: x, fromHeaders: [{name: t, prefix: 'Token '}]",
            "fromHeaders[0].prefix",
        ),
        (
            "issuer: a, jwks: x, fromHeaders: [{name: t}, {name: u}]",
            "fromHeaders[0].name",
        ),
        (
            "issuer: a, jwks: x, outputPayloadToHeader: x-payload",
            "outputPayloadToHeader",
        ),
    ] {
        let imported = tokens(&format!("{{jwtRules: [{{{rule}}}]}}"));
        let lost = lost(&imported);
        let expected = format!("spec.jwtRules[0].{field}");
        assert_eq!(
            lost.first(),
            Some(&("RequestAuthentication shop/t", expected.as_str())),
            "{rule}"
        );
        assert!(imported.objects.is_empty(), "{rule}");
    }
    let none = tokens("{}");
    assert_eq!(
        lost(&none),
        [("RequestAuthentication shop/t", "spec.jwtRules")]
    );
}

#[test]
fn labels_and_annotations_of_pods_go_over() {
    let imported = imported(
        "apiVersion: apps/v1
kind: Deployment
metadata: {name: d, namespace: shop}
spec:
  template:
    metadata:
      labels: {app: d, sidecar.istio.io/inject: 'true'}
      annotations:
        traffic.sidecar.istio.io/excludeInboundPorts: '9000'
        traffic.sidecar.istio.io/excludeOutboundPorts: '3306,6379'
        traffic.sidecar.istio.io/excludeOutboundIPRanges: 10.9.0.0/16
        traffic.sidecar.istio.io/includeOutboundIPRanges: '*'
        sidecar.istio.io/proxyMemoryLimit: 256Mi
        sidecar.istio.io/logLevel: warning
        prometheus.istio.io/merge-metrics: 'false'
        proxy.istio.io/config: 'concurrency: 1'
        team: a
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: plain, namespace: shop, annotations: {sidecar.istio.io/status: x}}
spec: {template: {metadata: {labels: {sidecar.istio.io/inject: 'false'}}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: off, labels: {istio-injection: disabled, istio.io/rev: stable}}
",
    );
    let made: Vec<&Value> = imported.objects.iter().map(|made| &made.object).collect();
    assert_eq!(
        made[0]["spec"]["template"]["metadata"],
        json!({
            "labels": { "app": "d", "tulle.dev/inject": "enabled" },
            "annotations": {
                "team": "a",
                "tulle.dev/exclude-inbound-ports": "9000",
                "tulle.dev/exclude-outbound-ports": "3306,6379",
                "tulle.dev/exclude-outbound-ranges": "10.9.0.0/16",
                "tulle.dev/memory-limit": "256Mi",
                "tulle.dev/log-level": "warn",
                "tulle.dev/metrics": "disabled",
            },
        })
    );
    assert_eq!(
        made[1],
        &json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "plain", "namespace": "shop" },
            "spec": { "template": { "metadata": { "labels": { "tulle.dev/inject": "disabled" } } } },
        })
    );
    assert_eq!(
        made[2]["metadata"]["labels"],
        json!({ "tulle.dev/inject": "disabled" })
    );
    assert_eq!(
        lost(&imported),
        [(
            "Deployment shop/d",
            "spec.template.metadata.annotations.proxy.istio.io/config"
        )]
    );
}
