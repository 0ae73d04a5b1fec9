//! Routes, rules about services, gateways and hosts outside.

use super::*;

/// The objects that are made, as `Kind name`, and their specs.
pub(super) fn made(text: &str) -> Vec<(String, Value)> {
    let imported = imported(text);
    assert_eq!(imported.lost, []);
    specs(&imported)
}

fn specs(imported: &Imported) -> Vec<(String, Value)> {
    let spec = |object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap();
        let kind = object["kind"].as_str().unwrap();
        (format!("{kind} {name}"), object["spec"].clone())
    };
    imported.objects.iter().map(|m| spec(&m.object)).collect()
}

pub(super) fn virtual_service(spec: &str) -> String {
    format!(
        "{SERVICES}apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: v, namespace: shop}}
spec: {spec}
"
    )
}

/// The rules of the only route that is made.
fn rules(spec: &str) -> Value {
    let made = made(&virtual_service(spec));
    assert_eq!(made[0].0, "HTTPRoute v");
    made[0].1["rules"].clone()
}

fn destination_rule(spec: &str) -> String {
    format!(
        "{SERVICES}apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: d, namespace: shop}}
spec: {spec}
"
    )
}

#[test]
fn bookinfo_by_user_and_by_weight() {
    let made = made(&virtual_service(
        "
  hosts: [ratings]
  http:
  - match: [{headers: {end-user: {exact: jason}}}]
    route: [{destination: {host: ratings, subset: v2}}]
  - route:
    - {destination: {host: ratings, subset: v1}, weight: 90}
    - {destination: {host: ratings.shop.svc.cluster.local, subset: v3, port: {number: 9080}}, weight: 10}
",
    ));
    let spec = json!({
        "parentRefs": [{ "group": "", "kind": "Service", "name": "ratings" }],
        "rules": [
            {
                "matches": [{ "headers": [{ "type": "Exact", "name": "end-user", "value": "jason" }] }],
                "backendRefs": [{ "name": "ratings-v2", "port": 9080 }],
            },
            {
                "backendRefs": [
                    { "name": "ratings-v1", "port": 9080, "weight": 90 },
                    { "name": "ratings-v3", "port": 9080, "weight": 10 },
                ],
            },
        ],
    });
    assert_eq!(made, [("HTTPRoute v".to_owned(), spec)]);
}

#[test]
fn a_subset_is_a_service_with_a_policy() {
    let made = made(&destination_rule(
        "
  host: ratings.shop.svc.cluster.local
  exportTo: ['*']
  trafficPolicy:
    tls: {mode: ISTIO_MUTUAL}
    loadBalancer: {simple: LEAST_CONN}
    connectionPool: {tcp: {maxConnections: 7, connectTimeout: 0.5s, idleTimeout: 1h}, http: {http2MaxRequests: 9, idleTimeout: 1m}}
    outlierDetection: {consecutive5xxErrors: 3, interval: 1s, baseEjectionTime: 30s, maxEjectionPercent: 20}
  subsets:
  - {name: v1, labels: {version: v1}, trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: x-user}}}}
",
    ));
    let rest = json!({
        "connections": { "maxConnections": 7, "maxRequests": 9 },
        "timeouts": { "connect": "500ms", "idle": "1m" },
        "outlierDetection": { "consecutiveFailures": 3, "baseEjectionTime": "30s", "maxEjectionPercent": 20 },
    });
    let with = |balancer: Value, target: &str| {
        let mut spec = rest.clone();
        spec["loadBalancer"] = balancer;
        spec["targetRefs"] = json!([{ "kind": "Service", "name": target }]);
        spec
    };
    let service = json!({ "selector": { "app": "ratings", "tier": "back", "version": "v1" }, "ports": [{ "port": 9080 }] });
    let hash = json!({ "type": "RingHash", "hash": { "header": "x-user" } });
    assert_eq!(
        made,
        [
            (
                "TrafficPolicy d".to_owned(),
                with(json!({ "type": "LeastRequest" }), "ratings")
            ),
            ("Service ratings-v1".to_owned(), service),
            ("TrafficPolicy d-v1".to_owned(), with(hash, "ratings-v1")),
        ]
    );
}

#[test]
fn ports_and_cookies_have_settings_of_their_own() {
    let made = made(&destination_rule(
        "
  host: reviews
  trafficPolicy:
    loadBalancer: {consistentHash: {httpCookie: {name: user, ttl: 1h}}}
    portLevelSettings:
    - {port: {number: 80}, loadBalancer: {simple: RANDOM}}
",
    ));
    let reference = json!({ "kind": "Service", "name": "reviews", "port": 80 });
    assert_eq!(
        made[0],
        (
            "TrafficPolicy d-80".to_owned(),
            json!({ "loadBalancer": { "type": "Random" }, "targetRefs": [reference] })
        )
    );
    let affinity = json!({ "type": "Cookie", "name": "user", "maxAge": "1h" });
    assert_eq!(made[1].1["sessionAffinity"], affinity);
}

#[test]
fn what_a_rule_of_a_service_cannot_say_is_named() {
    for (spec, field) in [
        ("{host: api.example.com}", "spec.host"),
        ("{host: reviews.other.svc.cluster.local}", "spec.host"),
        (
            "{host: reviews, trafficPolicy: {tls: {mode: DISABLE}}}",
            "spec.trafficPolicy.tls",
        ),
        (
            "{host: reviews, trafficPolicy: {tls: {mode: SIMPLE, sni: x}}}",
            "spec.trafficPolicy.tls",
        ),
        (
            "{host: reviews, trafficPolicy: {loadBalancer: {simple: PASSTHROUGH}}}",
            "spec.trafficPolicy.loadBalancer.simple",
        ),
        (
            "{host: unknown, subsets: [{name: v1, labels: {a: b}}]}",
            "spec.subsets[0]",
        ),
        (
            "{host: reviews, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 0}}}",
            "spec.trafficPolicy.outlierDetection",
        ),
        (
            "{host: reviews, trafficPolicy: {connectionPool: {tcp: {tcpKeepalive: {probes: 3}}}}}",
            "spec.trafficPolicy.connectionPool.tcp.tcpKeepalive.probes",
        ),
    ] {
        let imported = imported(&destination_rule(spec));
        assert_eq!(
            lost(&imported),
            [("DestinationRule shop/d", field)],
            "{spec}"
        );
    }
}

#[test]
fn matches_become_gateway_apis_and_conditions_the_rest() {
    let one = |one: &str| {
        rules(&format!(
            "{{hosts: [ratings], http: [{{match: [{one}], route: [{{destination: {{host: ratings}}}}]}}]}}"
        ))
    };
    for (theirs, ours) in [
        (
            "{uri: {exact: /a}}",
            json!({ "path": { "type": "Exact", "value": "/a" } }),
        ),
        (
            "{uri: {prefix: /a/}}",
            json!({ "path": { "type": "PathPrefix", "value": "/a" } }),
        ),
        (
            "{uri: {prefix: /}}",
            json!({ "path": { "type": "PathPrefix", "value": "/" } }),
        ),
        (
            "{uri: {regex: '/a.*'}}",
            json!({ "path": { "type": "RegularExpression", "value": "/a.*" } }),
        ),
        (
            "{uri: {exact: /a.b}, ignoreUriCase: true}",
            json!({ "path": { "type": "RegularExpression", "value": "(?i)/a\\.b" } }),
        ),
        ("{method: {exact: GET}}", json!({ "method": "GET" })),
        (
            "{headers: {x: {prefix: a.}}}",
            json!({ "headers": [{ "type": "RegularExpression", "value": "a\\..*", "name": "x" }] }),
        ),
        (
            "{headers: {x: {}}}",
            json!({ "headers": [{ "type": "RegularExpression", "value": ".*", "name": "x" }] }),
        ),
        (
            "{queryParams: {q: {exact: '1'}}}",
            json!({ "queryParams": [{ "type": "Exact", "value": "1", "name": "q" }] }),
        ),
    ] {
        assert_eq!(one(theirs)[0]["matches"], json!([ours]), "{theirs}");
    }
    for (theirs, ours) in [
        (
            "{authority: {exact: a.example.com}}",
            r#"request.host == "a.example.com""#,
        ),
        (
            "{method: {regex: 'GET|HEAD'}}",
            r#"request.method.matches("^(?:GET|HEAD)$")"#,
        ),
        ("{sourceNamespace: front}", r#"source.namespace == "front""#),
        (
            "{withoutHeaders: {x: {exact: '1'}}}",
            r#"!("x" in request.headers && request.headers["x"] == "1")"#,
        ),
        ("{withoutHeaders: {x: {}}}", r#"!("x" in request.headers)"#),
    ] {
        let spec = format!(
            "{{hosts: [ratings], http: [{{match: [{theirs}], route: [{{destination: {{host: ratings}}}}]}}]}}"
        );
        let made = made(&virtual_service(&spec));
        assert_eq!(
            made[1],
            ("HTTPFilter v-1".to_owned(), json!({ "match": ours })),
            "{theirs}"
        );
        let reference = json!({ "group": "tulle.dev", "kind": "HTTPFilter", "name": "v-1" });
        assert_eq!(
            made[0].1["rules"][0]["filters"][0]["extensionRef"],
            reference
        );
    }
}

#[test]
fn a_condition_is_about_its_own_match_alone() {
    let made = made(&virtual_service(
        "
  hosts: [ratings]
  http:
  - match: [{authority: {exact: a.example}}, {uri: {prefix: /b}}, {uri: {exact: /c}}]
    route: [{destination: {host: ratings}}]
",
    ));
    let rules = made[0].1["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 2);
    assert!(rules[0].get("matches").is_none() && rules[0].get("filters").is_some());
    assert_eq!(rules[1]["matches"].as_array().unwrap().len(), 2);
    assert!(rules[1].get("filters").is_none());
}

#[test]
fn what_a_rule_does_becomes_filters() {
    let made = made(&virtual_service(
        "
  hosts: [ratings]
  http:
  - match: [{uri: {prefix: /old}}]
    timeout: 1.5s
    retries: {attempts: 3, perTryTimeout: 500ms, retryOn: 'gateway-error,connect-failure,409'}
    fault: {delay: {percentage: {value: 0.5}, fixedDelay: 5s}, abort: {httpStatus: 503}}
    headers: {request: {set: {a: b}, remove: [c]}, response: {add: {d: e}}}
    rewrite: {uri: /new, authority: x.example}
    mirror: {host: reviews.other.svc.cluster.local, port: {number: 80}}
    mirrorPercentage: {value: 0.1}
    corsPolicy: {allowOrigins: [{exact: 'https://a.example'}], allowMethods: [GET], maxAge: 24h, allowCredentials: true}
    route: [{destination: {host: ratings}, headers: {request: {add: {f: g}}}}]
",
    ));
    let mirror = json!({
        "backendRef": { "name": "reviews", "namespace": "other", "port": 80 },
        "fraction": { "numerator": 100, "denominator": 100_000 },
    });
    let cors = json!({
        "allowOrigins": ["https://a.example"], "allowMethods": ["GET"], "allowCredentials": true, "maxAge": 86_400,
    });
    let rewrite = json!({ "hostname": "x.example", "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/new" } });
    let set = json!({ "set": [{ "name": "a", "value": "b" }], "remove": ["c"] });
    let add = json!({ "add": [{ "name": "d", "value": "e" }] });
    let on_way = json!({ "add": [{ "name": "f", "value": "g" }] });
    let rule = json!({
        "backendRefs": [{
            "name": "ratings", "port": 9080,
            "filters": [{ "type": "RequestHeaderModifier", "requestHeaderModifier": on_way }],
        }],
        "retry": { "attempts": 3, "codes": [409, 502, 503, 504] },
        "timeouts": { "request": "1s500ms", "backendRequest": "500ms" },
        "filters": [
            { "type": "ExtensionRef", "extensionRef": { "group": "tulle.dev", "kind": "HTTPFilter", "name": "v-1" } },
            { "type": "CORS", "cors": cors },
            { "type": "RequestHeaderModifier", "requestHeaderModifier": set },
            { "type": "ResponseHeaderModifier", "responseHeaderModifier": add },
            { "type": "RequestMirror", "requestMirror": mirror },
            { "type": "URLRewrite", "urlRewrite": rewrite },
        ],
        "matches": [{ "path": { "type": "PathPrefix", "value": "/old" } }],
    });
    assert_eq!(made[0].1["rules"], json!([rule]));
    let fault = json!({
        "delay": { "duration": "5s", "percentage": "0.5%" }, "abort": { "status": 503 },
    });
    assert_eq!(
        made[1],
        ("HTTPFilter v-1".to_owned(), json!({ "fault": fault }))
    );
}

#[test]
fn rules_answer_by_themselves() {
    let ours = rules(
        "{hosts: [ratings], http: [{redirect: {uri: /x, authority: b.example, scheme: https}}]}",
    );
    let redirect = json!({
        "path": { "type": "ReplaceFullPath", "replaceFullPath": "/x" },
        "hostname": "b.example", "scheme": "https", "statusCode": 301,
    });
    assert_eq!(
        ours,
        json!([{ "filters": [{ "type": "RequestRedirect", "requestRedirect": redirect }] }])
    );
    let made = made(&virtual_service(
        "{hosts: [ratings], http: [{directResponse: {status: 503, body: {string: later}}}]}",
    ));
    assert_eq!(
        made[1].1,
        json!({ "directResponse": { "status": 503, "body": "later" } })
    );
}

/// A route has one rule, and names of servers and ports are the route's: each rule, and each list of names, is one.
#[test]
fn connections_have_routes_of_their_own() {
    let text = virtual_service(
        "
  hosts: [ratings]
  tls:
  - match: [{port: 443, sniHosts: [a.example.com, '*.b.example.com']}, {port: 8443, sniHosts: [c.example.com]}]
    route: [{destination: {host: ratings}, weight: 100}]
  - match: [{sniHosts: ['*']}]
    route: [{destination: {host: reviews.other.svc.cluster.local, port: {number: 80}}}]
  tcp:
  - match: [{port: 3306}, {port: 3307}]
    route:
    - {destination: {host: ratings, subset: v1}, weight: 90}
    - {destination: {host: ratings, subset: v2}, weight: 10}
  - route: [{destination: {host: ratings}}]
",
    );
    let parent = |port: Option<u64>| {
        let mut parent = json!({ "group": "", "kind": "Service", "name": "ratings" });
        if let Some(port) = port {
            parent["port"] = port.into();
        }
        parent
    };
    let ratings = json!({ "backendRefs": [{ "name": "ratings", "port": 9080 }] });
    let other = json!({ "backendRefs": [{ "name": "reviews", "namespace": "other", "port": 80 }] });
    let split = json!({ "backendRefs": [
        { "name": "ratings-v1", "port": 9080, "weight": 90 },
        { "name": "ratings-v2", "port": 9080, "weight": 10 },
    ]});
    let tls = |parents: &[Value], names: &[&str], rule: &Value| {
        let mut spec = json!({ "parentRefs": parents, "rules": [rule] });
        if !names.is_empty() {
            spec["hostnames"] = json!(names);
        }
        spec
    };
    let (all, mysql) = (parent(None), [parent(Some(3306)), parent(Some(3307))]);
    assert_eq!(
        made(&text),
        [
            (
                "TLSRoute v".to_owned(),
                tls(
                    &[parent(Some(443))],
                    &["a.example.com", "*.b.example.com"],
                    &ratings
                )
            ),
            (
                "TLSRoute v-2".to_owned(),
                tls(&[parent(Some(8443))], &["c.example.com"], &ratings)
            ),
            (
                "TLSRoute v-3".to_owned(),
                tls(std::slice::from_ref(&all), &[], &other)
            ),
            ("TCPRoute v".to_owned(), tls(&mysql, &[], &split)),
            (
                "TCPRoute v-2".to_owned(),
                tls(std::slice::from_ref(&all), &[], &ratings)
            ),
        ]
    );
}

#[test]
fn connections_of_gateways_go_by_their_ports() {
    let text = virtual_service(
        "
  hosts: ['*']
  gateways: [front, mesh]
  tcp:
  - match: [{port: 31400, gateways: [front]}]
    route: [{destination: {host: ratings}}]
  tls:
  - match: [{port: 443, gateways: [front], sniHosts: [a.example.com]}]
    route: [{destination: {host: ratings}}]
",
    );
    let imported = imported(&text);
    // As a host of the mesh a star is nobody.
    assert_eq!(lost(&imported), [("VirtualService shop/v", "spec.hosts")]);
    let made = specs(&imported);
    let names: Vec<&str> = made.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["TLSRoute v", "TCPRoute v"]);
    assert_eq!(
        (&made[0].1["parentRefs"], &made[0].1["hostnames"]),
        (
            &json!([{ "kind": "Gateway", "name": "front", "port": 443 }]),
            &json!(["a.example.com"])
        )
    );
    assert_eq!(
        made[1].1["parentRefs"],
        json!([{ "kind": "Gateway", "name": "front", "port": 31400 }])
    );
}

#[test]
fn gateways_and_the_mesh_have_routes_of_their_own() {
    let made = made(
        &virtual_service(
            "
  hosts: [ratings, shop.example.com]
  gateways: [mesh, front, ways/other]
  http:
  - match: [{uri: {exact: /in}, gateways: [mesh]}]
    route: [{destination: {host: ratings}}]
  - match: [{uri: {exact: /out}, gateways: [front]}]
    route: [{destination: {host: ratings}}]
",
        )
        .replace(", shop.example.com", ""),
    );
    let names: Vec<&str> = made.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["HTTPRoute v-mesh", "HTTPRoute v"]);
    let path = |spec: &Value| spec["rules"][0]["matches"][0]["path"]["value"].clone();
    assert_eq!(
        (path(&made[0].1), path(&made[1].1)),
        ("/in".into(), "/out".into())
    );
    assert!(made[0].1.get("hostnames").is_none());
    let parents = json!([{ "kind": "Gateway", "name": "front" }, { "kind": "Gateway", "name": "other", "namespace": "ways" }]);
    assert_eq!(
        (&made[1].1["parentRefs"], &made[1].1["hostnames"]),
        (&parents, &json!(["ratings"]))
    );
}

#[test]
fn a_later_rule_that_would_win_is_named() {
    let of = |rules: &str| {
        let imported = imported(&virtual_service(&format!(
            "{{hosts: [ratings], http: [{rules}]}}"
        )));
        let places: Vec<String> = imported.lost.iter().map(|l| l.field.clone()).collect();
        places
    };
    let to = "route: [{destination: {host: ratings}}]";
    let jason = format!("{{match: [{{headers: {{end-user: {{exact: jason}}}}}}], {to}}}");
    let path = format!("{{match: [{{uri: {{prefix: /reviews}}}}], {to}}}");
    let other = format!("{{match: [{{uri: {{prefix: /other}}}}], {to}}}");
    let rest = format!("{{{to}}}");
    assert_eq!(of(&format!("{jason}, {path}")), ["spec.http[1].match[0]"]);
    assert_eq!(
        of(&format!("{path}, {other}, {jason}, {rest}")),
        Vec::<String>::new()
    );
    assert_eq!(of(&format!("{rest}, {path}")), ["spec.http[1].match[0]"]);
}

#[test]
fn what_a_route_cannot_say_is_named() {
    for (spec, field) in [
        (
            "{hosts: [ratings], tcp: [{match: [{destinationSubnets: [10.0.0.0/8]}], route: [{destination: {host: ratings}}]}]}",
            "spec.tcp[0].match[0].destinationSubnets[0]",
        ),
        (
            "{hosts: [ratings], tls: [{match: [{sniHosts: [a.example], sourceLabels: {a: b}}], route: [{destination: {host: ratings}}]}]}",
            "spec.tls[0].match[0].sourceLabels.a",
        ),
        (
            "{hosts: [ratings], tcp: [{route: [{destination: {host: db.example.com}}]}]}",
            "spec.tcp[0].route[0].destination.host",
        ),
        (
            "{hosts: [ratings], tcp: [{somethingNew: 1, route: [{destination: {host: ratings}}]}]}",
            "spec.tcp[0].somethingNew",
        ),
        (
            "{hosts: [api.example.com], http: [{route: [{destination: {host: ratings}}]}]}",
            "spec.hosts",
        ),
        (
            "{hosts: [ratings], http: [{route: [{destination: {host: api.example.com}}]}]}",
            "spec.http[0].route[0].destination.host",
        ),
        (
            "{hosts: [ratings], http: [{route: [{destination: {host: reviews}}]}]}",
            "spec.http[0].route[0].destination.port",
        ),
        (
            "{hosts: [ratings], http: [{match: [{sourceLabels: {a: b}}], route: [{destination: {host: ratings}}]}]}",
            "spec.http[0].match[0].sourceLabels.a",
        ),
        (
            "{hosts: [ratings], http: [{match: [{port: 80}], route: [{destination: {host: ratings}}]}]}",
            "spec.http[0].match[0].port",
        ),
        (
            "{hosts: [ratings], http: [{rewrite: {uri: /x}, route: [{destination: {host: ratings}}]}]}",
            "spec.http[0].rewrite.uri",
        ),
        (
            "{hosts: [ratings], http: [{delegate: {name: x}}]}",
            "spec.http[0].delegate.name",
        ),
    ] {
        let imported = imported(&virtual_service(spec));
        assert_eq!(
            lost(&imported),
            [("VirtualService shop/v", field)],
            "{spec}"
        );
        let routes = imported
            .objects
            .iter()
            .filter(|m| m.object["kind"].as_str().unwrap().ends_with("Route"));
        // A match that lost a condition would match more.
        assert!(
            routes.count() <= usize::from(!field.contains("match")),
            "{spec}"
        );
    }
}

#[test]
fn servers_become_listeners() {
    let text = "apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: front, namespace: ways}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ['*'], tls: {httpsRedirect: true}}
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.example.com, ./b.example.com], tls: {mode: MUTUAL, credentialName: cert}}
  - {port: {number: 8443, name: tls, protocol: TLS}, hosts: [c.example.com], tls: {mode: PASSTHROUGH}}
  - {port: {number: 31400, name: tcp, protocol: TCP}, hosts: [d.example.com, e.example.com]}
";
    let made = made(text);
    let all = json!({ "namespaces": { "from": "All" } });
    let same = json!({ "namespaces": { "from": "Same" } });
    let secret = json!([{ "kind": "Secret", "name": "cert" }]);
    let tls =
        json!({ "certificateRefs": secret, "frontendValidation": { "caCertificateRefs": secret } });
    let spec = json!({ "gatewayClassName": "tulle", "listeners": [
        { "port": 80, "name": "http-0-0", "protocol": "HTTP", "allowedRoutes": all },
        { "port": 443, "name": "https-1-0", "protocol": "HTTPS", "hostname": "a.example.com", "allowedRoutes": all, "tls": tls },
        { "port": 443, "name": "https-1-1", "protocol": "HTTPS", "hostname": "b.example.com", "allowedRoutes": same, "tls": tls },
        { "port": 8443, "name": "tls-2-0", "protocol": "TLS", "hostname": "c.example.com", "allowedRoutes": all, "tls": { "mode": "Passthrough" } },
        { "port": 31400, "name": "tcp-3-0", "protocol": "TCP", "allowedRoutes": all },
    ]});
    assert_eq!(made[0], ("Gateway front".to_owned(), spec));
    assert_eq!(made[1].0, "HTTPRoute front-to-https");
    assert_eq!(
        made[1].1["parentRefs"],
        json!([{ "kind": "Gateway", "name": "front", "sectionName": "http-0-0" }])
    );
}

#[test]
fn a_listener_without_a_certificate_is_not_made() {
    let text = "apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: front, namespace: ways}
spec:
  servers:
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: ['x/a.example.com'], tls: {mode: ISTIO_MUTUAL}}
  - {port: {number: 8080, name: http, protocol: HTTP}, hosts: ['x/a.example.com']}
";
    let imported = imported(text);
    let gateway = "Gateway ways/front";
    assert_eq!(
        lost(&imported),
        [
            (gateway, "spec.servers[0].tls"),
            (gateway, "spec.servers[1].hosts[0]")
        ]
    );
    assert_eq!(
        imported.objects[0].object["spec"]["listeners"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn hosts_outside_become_an_egress() {
    let entry = |spec: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: api, namespace: shop}}\nspec: {spec}\n"
        )
    };
    let text = entry(
        "{hosts: [api.example.com], addresses: [203.0.113.7], location: MESH_EXTERNAL, resolution: DNS, exportTo: ['.'],
  ports: [{number: 443, name: tls, protocol: TLS}, {number: 80, name: http, protocol: HTTP}]}",
    );
    let spec = json!({
        "hosts": ["api.example.com"], "ipAddresses": ["203.0.113.7/32"],
        "ports": [{ "number": 443, "protocol": "tls" }, { "number": 80, "protocol": "http" }],
    });
    assert_eq!(made(&text), [("Egress api".to_owned(), spec)]);
    let everybody = imported(&entry(
        "{hosts: [api.example.com], ports: [{number: 443, name: tls, protocol: TLS}]}",
    ));
    let object = &everybody.objects[0].object["metadata"];
    assert_eq!(
        (&object["name"], &object["namespace"]),
        (&json!("shop-api"), &json!("tulle-system"))
    );
    for (spec, field) in [
        (
            "{hosts: [db.shop], location: MESH_INTERNAL, ports: []}",
            "spec.location",
        ),
        (
            "{hosts: [a.example], resolution: STATIC, endpoints: [{address: 10.0.0.1}]}",
            "spec.resolution",
        ),
        (
            "{hosts: [a.example], subjectAltNames: [x]}",
            "spec.subjectAltNames[0]",
        ),
        (
            "{hosts: [a.example], ports: [{number: 80, name: a, protocol: HTTP, targetPort: 81}]}",
            "spec.ports[0].targetPort",
        ),
    ] {
        let imported = imported(&entry(spec));
        assert_eq!(
            lost(&imported),
            [("ServiceEntry shop/api", field)],
            "{spec}"
        );
    }
}
