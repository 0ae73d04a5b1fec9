//! The translation, run by a real Envoy: it accepts it, and does with it what Tulle's own proxy does.

use serde_json::{Value, json};
use tests_local::{
    CLIENT, Client, Config, Envoy, EnvoyPair, Mesh, Pair, Proxy, SERVER, Server, TLS13, TlsClient,
    bootstrap, eventually, get, id, inbound_config, ok, outbound_config, pause, validate,
};
use tulle_envoy::{TranslationOptions, Untranslatable, static_config};

/// Everything the model has, in one file.
fn everything() -> Value {
    json!({
        "listeners": [
            { "address": "127.0.0.1:15001", "kind": "outbound" },
            { "address": "[::1]:15001", "kind": "outbound" },
            { "address": "[::]:15006", "kind": "inbound" },
            { "address": "127.0.0.1:19080", "kind": "upstream", "service": "ratings", "port": 9080 },
            { "address": "127.0.0.1:19081", "kind": "inboundPort", "port": 8000 },
        ],
        "mesh": { "strictMtls": false, "accessLog": true, "allowEgress": true },
        "services": [
            {
                "name": "ratings",
                "addresses": ["10.0.0.1", "fd00::1"],
                "hostnames": ["ratings"],
                "identities": [id("ratings"), id("ratings-2")],
                "ports": [
                    { "port": 9080, "endpoints": [
                        { "address": "10.0.1.1:9080" },
                        { "address": "10.0.1.2:9080", "mutualTls": false },
                    ], "traffic": { "name": "TrafficPolicy/ratings", "balancer": "leastRequest" } },
                    { "port": 9081, "protocol": "http", "endpoints": [] },
                    { "port": 3306, "protocol": "tcp", "endpoints": [{ "address": "10.0.1.1:3306" }] },
                ],
                "routes": [{
                    "name": "ratings",
                    "hostnames": ["ratings", "*.ratings.test", "*.test"],
                    "rules": [
                        {
                            "matches": [
                                { "path": { "exact": "/a" }, "method": "GET" },
                                { "path": { "prefix": "/a/" }, "headers": [
                                    { "name": "x-user", "value": "jason" },
                                    { "name": "user-agent", "value": ".*Firefox.*", "regex": true },
                                ] },
                                { "path": { "regex": "/v[0-9]+/(a|b|c|d|e|f|g|h)+/[a-z]{1,200}" } },
                            ],
                            "backends": [
                                { "service": "ratings", "port": 9080, "weight": 90 },
                                { "service": "db", "port": 5432, "weight": 10 },
                                { "service": "ratings", "port": 3306, "weight": 0 },
                            ],
                            "requestTimeoutMs": 2000,
                        },
                        { "backends": [] },
                    ],
                }],
            },
            {
                "name": "db",
                "addresses": ["10.0.0.2"],
                "identities": [id("db")],
                "ports": [
                    { "port": 5432, "protocol": "tls", "endpoints": [{ "address": "10.0.1.3:5432" }] },
                    { "port": 9080, "protocol": "grpc", "endpoints": [{ "address": "10.0.1.3:9080" }] },
                ],
            },
        ],
        "inbound": {
            "service": "productpage",
            "ports": [
                { "port": 8000, "target": "127.0.0.1:8000" },
                { "port": 8001, "protocol": "http", "target": "127.0.0.1:8001" },
                { "port": 8002, "protocol": "http2", "target": "[::1]:8002" },
            ],
            "policy": { "rules": [
                { "name": "TrafficTarget/a", "sources": [id("a"), id("b")], "ports": [8000],
                  "matches": [
                    { "methods": ["GET", "HEAD"], "pathRegex": "/x/.*", "headers": { "x-v": "1|2" } },
                    { "methods": ["*"] },
                ] },
                { "name": "TrafficTarget/a", "sources": [id("c")] },
                { "name": "TrafficTarget/nobody", "sources": [] },
            ] },
        },
    })
}

#[test]
fn envoy_accepts_all_that_the_model_has() {
    let mesh = Mesh::new();
    for (strict, egress) in [(false, true), (true, false), (true, true)] {
        let mut config = everything();
        config["mesh"]["strictMtls"] = strict.into();
        config["mesh"]["allowEgress"] = egress.into();
        let bootstrap = bootstrap(&mesh, CLIENT, config);
        let whole = static_config(&bootstrap, TranslationOptions::default()).unwrap();
        validate(&mesh, &whole).unwrap_or_else(|e| panic!("{e}\n{whole:#}"));
    }
    // The check can fail.
    assert!(validate(&mesh, &json!({ "static_resources": { "listeners": [{}] } })).is_err());
}

#[test]
fn envoy_accepts_http_2_between_sidecars() {
    let mesh = Mesh::new();
    let mut config = everything();
    let options = TranslationOptions {
        upstream_h2: true,
        ..TranslationOptions::default()
    };
    let refused = static_config(&bootstrap(&mesh, CLIENT, config.clone()), options);
    let expected = Untranslatable::MixedEndpoints {
        service: "ratings".into(),
        port: 9080,
    };
    assert_eq!(refused.unwrap_err(), expected);
    config["services"][0]["ports"][0]["endpoints"][1]["mutualTls"] = true.into();
    let whole = static_config(&bootstrap(&mesh, CLIENT, config), options).unwrap();
    validate(&mesh, &whole).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn what_envoy_cannot_do_is_an_error_that_names_it() {
    let mesh = Mesh::new();
    let cases = [
        (
            "/services/0/routes/0/rules/0/matches/2/path/regex",
            json!("(?x) /a"),
            "HTTPRoute/ratings: path: Envoy cannot use the regular expression",
        ),
        (
            "/inbound/policy/rules/0/matches/0/headers/x-v",
            json!("[a-z&&[^b]]"),
            "TrafficTarget/a: headers.x-v: Envoy cannot use the regular expression",
        ),
        (
            "/services/0/routes/0/rules/0/matches/1/path/prefix",
            json!("/a?b"),
            "HTTPRoute/ratings: path: the prefix \"/a?b\"",
        ),
        (
            "/services/0/routes/0/rules/0/backends/0/weight",
            json!(u32::MAX),
            "HTTPRoute/ratings: backends: the sum of the weights",
        ),
        (
            "/services/1/identities",
            json!([]),
            "service db: identities: there are none",
        ),
        (
            "/services/1/addresses",
            json!(["10.0.0.1"]),
            "services ratings and db: addresses: both have 10.0.0.1 with port 9080",
        ),
    ];
    for (pointer, value, expected) in cases {
        let mut config = everything();
        *config.pointer_mut(pointer).unwrap() = value;
        let error = static_config(
            &bootstrap(&mesh, CLIENT, config),
            TranslationOptions::default(),
        );
        let text = error.unwrap_err().to_string();
        assert!(text.starts_with(expected), "{text}");
    }
}

#[test]
fn a_request_passes_both_sidecars_and_the_application_learns_who_calls() {
    for upstream_h2 in [false, true] {
        let app = Server::echo();
        let options = TranslationOptions {
            upstream_h2,
            ..TranslationOptions::default()
        };
        let pair = EnvoyPair::with(app.address(), options, |c, s| (c, s));
        let mut client = pair.client.connect();
        client.send(
            "GET /ratings/1?a=b HTTP/1.1\r\nHost: ratings\r\n\
             X-Forwarded-Client-Cert: URI=spiffe://tulle.local/svc/admin\r\n\r\n",
        );
        let response = client.response("GET");
        assert_eq!(response.status(), 200, "{}", response.text());
        let seen = app.received_text();
        assert!(
            seen.starts_with("GET /ratings/1?a=b HTTP/1.1\r\n"),
            "{seen}"
        );
        let lower = seen.to_lowercase();
        let caller = format!("x-forwarded-client-cert: by={};", id(SERVER));
        assert!(lower.contains(&caller), "{seen}");
        assert!(seen.contains(&format!("URI={}", id(CLIENT))), "{seen}");
        assert!(!seen.contains("svc/admin"), "{seen}");
        assert!(!lower.contains("x-envoy"), "{seen}");
        let cluster = format!("cluster.outbound|{SERVER}|9080");
        assert_eq!(pair.client.stat(&format!("{cluster}.ssl.handshake")), 1);
        let kind = if upstream_h2 { "http2" } else { "http1" };
        let total = format!("{cluster}.upstream_cx_{kind}_total");
        assert_eq!(pair.client.stat(&total), 1);
    }
}

fn policy(rules: Value) -> Value {
    json!({ "rules": rules })
}

#[test]
fn the_policy_decides_by_identity_method_path_and_header() {
    let app = Server::echo();
    let rules = policy(json!([{
        "name": "TrafficTarget/read", "sources": [id(CLIENT)],
        "matches": [{
            "methods": ["GET"], "pathRegex": "/ratings/[0-9]+", "headers": { "x-v": "1" },
        }],
    }]));
    let pair = EnvoyPair::with(
        app.address(),
        TranslationOptions::default(),
        |client, server| (client, server.set("/inbound/policy", rules)),
    );
    let mut client = pair.client.connect();
    let mut ask = |method: &str, target: &str, header: &str| {
        client.send(format!(
            "{method} {target} HTTP/1.1\r\nHost: ratings\r\n{header}\r\n"
        ));
        client.response(method).status()
    };
    assert_eq!(ask("GET", "/ratings/7", "x-v: 1\r\n"), 200);
    assert_eq!(ask("GET", "/ratings/7?x=/y", "x-v: 1\r\n"), 200);
    for (method, target, header) in [
        ("POST", "/ratings/7", "x-v: 1\r\ncontent-length: 0\r\n"),
        ("GET", "/ratings/x", "x-v: 1\r\n"),
        ("GET", "/v2/ratings/7", "x-v: 1\r\n"),
        ("GET", "/ratings/7/", "x-v: 1\r\n"),
        ("GET", "/ratings/../ratings/7", "x-v: 1\r\n"),
        ("GET", "/ratings/7", ""),
        ("GET", "/ratings/7", "x-v: 2\r\n"),
        ("GET", "/ratings/7", "x-v: 1\r\nx-v: 2\r\n"),
    ] {
        assert_eq!(
            ask(method, target, header),
            403,
            "{method} {target} {header}"
        );
    }
    assert_eq!(pair.server.stat("http.inbound_9080.rbac.allowed"), 2);
    assert_eq!(pair.server.stat("http.inbound_9080.rbac.denied"), 8);
    assert_eq!(app.received().len(), 1);
}

#[test]
fn another_identity_is_denied_and_a_strangers_certificate_refused() {
    let app = Server::echo();
    let rules = policy(json!([{ "name": "TrafficTarget/t", "sources": [id(CLIENT)] }]));
    let pair = EnvoyPair::with(
        app.address(),
        TranslationOptions::default(),
        |client, server| (client, server.set("/inbound/policy", rules)),
    );
    let call = |certificate: Option<&_>| {
        let connected = TlsClient::connect(pair.server.address, certificate, TLS13, &["http/1.1"]);
        connected
            .and_then(|mut c| c.get("/"))
            .map(|m| m.status())
            .ok()
    };
    assert_eq!(call(Some(&pair.mesh.ca.issue(&id(CLIENT)))), Some(200));
    for other in ["productpage2", "productpag", "Productpage"] {
        assert_eq!(call(Some(&pair.mesh.ca.issue(&id(other)))), Some(403));
    }
    let stranger = tulle_tls::testing::TestCa::new("another root");
    let other_domain = pair.mesh.ca.issue("spiffe://tulle.localx/svc/productpage");
    assert_eq!(call(Some(&stranger.issue(&id(CLIENT)))), None);
    assert_eq!(call(Some(&other_domain)), None);
    assert_eq!(call(None), None);
}

#[test]
fn a_client_sends_nothing_to_the_wrong_server() {
    let app = Server::echo();
    let mesh = Mesh::new();
    let server = inbound_config(app.address());
    let client = outbound_config(server.address);
    // A genuine workload, but not the service that is called.
    let server = Envoy::start(&mesh, "details", server, TranslationOptions::default());
    let client = Envoy::start(&mesh, CLIENT, client, TranslationOptions::default());
    assert_eq!(client.connect().get("/").status(), 503);
    let refused = format!("cluster.outbound|{SERVER}|9080.ssl.fail_verify_san");
    assert!(client.stat(&refused) > 0);
    assert_eq!(app.connections(), 0);
    drop(server);
}

#[test]
fn strict_refuses_plaintext_and_permissive_takes_it() {
    for protocol in ["http", "detect", "tcp"] {
        let app = Server::echo();
        let start = |strict: bool| {
            let mesh = Mesh::new();
            let config = inbound_config(app.address())
                .set("/mesh/strictMtls", strict)
                .set("/inbound/ports/0/protocol", protocol);
            let envoy = Envoy::start(&mesh, SERVER, config, TranslationOptions::default());
            let secure = TlsClient::connect(
                envoy.address,
                Some(&mesh.ca.issue(&id(CLIENT))),
                TLS13,
                &["http/1.1"],
            );
            assert_eq!(secure.unwrap().get("/").unwrap().status(), 200);
            let mut plain = envoy.connect();
            plain.send(get("/"));
            plain.try_response("GET").map(|m| m.status()).ok()
        };
        assert_eq!(start(true), None, "{protocol}");
        assert_eq!(start(false), Some(200), "{protocol}");
    }
}

#[test]
fn plaintext_has_no_identity_for_a_policy() {
    let app = Server::echo();
    let mesh = Mesh::new();
    let rules = policy(json!([{ "name": "TrafficTarget/t", "sources": [id(CLIENT)] }]));
    let config = inbound_config(app.address())
        .set("/mesh/strictMtls", false)
        .set("/inbound/policy", rules);
    let envoy = Envoy::start(&mesh, SERVER, config, TranslationOptions::default());
    let mut plain = envoy.connect();
    plain.send(format!(
        "GET / HTTP/1.1\r\nHost: a\r\nx-forwarded-client-cert: URI={}\r\n\r\n",
        id(CLIENT)
    ));
    assert_eq!(plain.response("GET").status(), 403);
    assert_eq!(app.connections(), 0);
}

/// Sends `hello` before it has read anything.
fn speaks_first() -> Server {
    Server::start(|mut connection| {
        if connection.try_send(b"hello").is_ok() {
            while let Ok(bytes) = connection.read_some()
                && !bytes.is_empty()
                && connection.try_send(&bytes).is_ok()
            {}
        }
    })
}

#[test]
fn bytes_pass_in_both_directions_and_a_server_may_speak_first() {
    for protocol in ["tcp", "detect"] {
        let app = speaks_first();
        let pair = EnvoyPair::with(
            app.address(),
            TranslationOptions::default(),
            |client, server| {
                (
                    client.set("/services/0/ports/0/protocol", protocol),
                    server.set("/inbound/ports/0/protocol", protocol),
                )
            },
        );
        let mut client = pair.client.connect();
        assert_eq!(client.read_exact(5), b"hello", "{protocol}");
        client.send(b"\x16 not http");
        assert_eq!(client.read_exact(10), b"\x16 not http");
    }
}

#[test]
fn detection_finds_http_and_what_is_not_http() {
    let app = Server::echo();
    let pair = EnvoyPair::with(
        app.address(),
        TranslationOptions::default(),
        |client, server| {
            let client = client.set("/services/0/ports/0/protocol", "detect");
            (
                client.set("/mesh/detectTimeoutMs", 60_000),
                server.set("/inbound/ports/0/protocol", "detect"),
            )
        },
    );
    assert_eq!(pair.client.connect().get("/a").status(), 200);
    let counted = format!("http.outbound_{SERVER}_9080.downstream_rq_2xx");
    eventually("the request is counted", || pair.client.stat(&counted) == 1);
    assert_eq!(pair.server.stat("http.inbound_9080.downstream_rq_2xx"), 1);
}

#[test]
fn a_denied_client_gets_not_one_byte_of_a_server_that_speaks_first() {
    for rules in [
        json!([{ "name": "TrafficTarget/t", "sources": [id("somebody")] }]),
        json!([]),
        // A rule with matches never allows raw TCP.
        json!([{ "name": "TrafficTarget/t", "sources": [id(CLIENT)], "matches": [{ "methods": ["GET"] }] }]),
    ] {
        let app = speaks_first();
        let pair = EnvoyPair::with(
            app.address(),
            TranslationOptions::default(),
            |client, server| {
                (
                    client.set("/services/0/ports/0/protocol", "tcp"),
                    server
                        .set("/inbound/ports/0/protocol", "tcp")
                        .set("/inbound/policy", policy(rules)),
                )
            },
        );
        assert!(Client::is_cut(pair.client.address, ""));
    }
}

/// Two services, each with a server that answers its name, and routes on the first.
fn routed(routes: Value) -> (Envoy, [Server; 2], Mesh) {
    let servers = ["ratings", "reviews"].map(|name| Server::http(move |_| ok(name.as_bytes())));
    let mesh = Mesh::new();
    let mut config = outbound_config(servers[0].address());
    let plain = |server: &Server| {
        json!([{ "port": 9080, "protocol": "http", "endpoints": [
            { "address": server.address().to_string(), "mutualTls": false },
        ] }])
    };
    config.file["services"][0]["ports"] = plain(&servers[0]);
    config.file["services"][0]["routes"] = routes;
    let reviews = json!({ "name": "reviews", "ports": plain(&servers[1]) });
    let first = config.file["services"][0].take();
    config.file["services"] = json!([first, reviews]);
    (
        Envoy::start(&mesh, CLIENT, config, TranslationOptions::default()),
        servers,
        mesh,
    )
}

#[test]
fn routes_choose_as_tulle_does() {
    let to = |service: &str| json!([{ "service": service, "port": 9080 }]);
    let routes = json!([
        { "name": "any", "rules": [
            { "matches": [{ "path": { "prefix": "/a" } }], "backends": to("reviews") },
            { "matches": [{ "path": { "prefix": "/a/b" }, "method": "GET" }], "backends": to("ratings") },
            { "matches": [{ "path": { "exact": "/exact" } }], "backends": to("reviews") },
            { "matches": [{ "path": { "regex": "/re/[0-9]+" } }], "backends": to("reviews") },
            { "matches": [{ "headers": [{ "name": "x-user", "value": "jason" }] }], "backends": to("reviews") },
            { "matches": [{ "path": { "prefix": "/nowhere" } }] },
            { "matches": [{ "path": { "prefix": "/gone" } }], "backends": [
                { "service": "reviews", "port": 9080, "weight": 0 },
            ] },
        ] },
        { "name": "host", "hostnames": ["special.test"], "rules": [
            { "matches": [{ "path": { "prefix": "/only" } }], "backends": to("reviews") },
        ] },
        { "name": "suffix", "hostnames": ["*.test"], "rules": [
            { "matches": [{ "path": { "prefix": "/only" } }], "backends": to("ratings") },
            { "matches": [{ "path": { "prefix": "/suffix" } }], "backends": to("reviews") },
        ] },
        { "name": "other-port", "port": 1, "rules": [{ "backends": to("reviews") }] },
    ]);
    let (envoy, servers, mesh) = routed(routes.clone());
    // Tulle's own proxy, with the same file, is the measure.
    let mut config = outbound_config("127.0.0.1:1".parse().unwrap());
    let services = ["ratings", "reviews"].iter().zip(&servers);
    let services = services.map(|(name, server)| {
        json!({
            "name": name,
            "routes": if *name == "ratings" { routes.clone() } else { json!([]) },
            "ports": [{ "port": 9080, "protocol": "http", "endpoints": [
                { "address": server.address().to_string(), "mutualTls": false },
            ] }],
        })
    });
    config.file["services"] = services.collect();
    let tulle = config.address;
    let _proxy = Proxy::start(&mesh, "tulle", config.file);
    let ask = |address, target: &str, host: &str, header: &str| {
        let mut client = Client::connect(address);
        client.send(format!(
            "GET {target} HTTP/1.1\r\nHost: {host}\r\n{header}\r\n"
        ));
        let answer = client.response("GET");
        if answer.status() == 200 {
            answer.text()
        } else {
            answer.status().to_string()
        }
    };
    for (target, host, header, expected) in [
        ("/a", "x", "", "reviews"),
        ("/a/c?d", "x", "", "reviews"),
        ("/ab", "x", "", "404"),
        ("/a/b", "x:9080", "", "ratings"),
        ("/exact", "x", "", "reviews"),
        ("/exact/", "x", "", "404"),
        ("/re/12", "x", "", "reviews"),
        ("/re/12/", "x", "", "404"),
        ("/", "x", "x-user: jason\r\n", "reviews"),
        ("/", "x", "x-user: jasonx\r\n", "404"),
        ("/", "x", "x-user: jason\r\nx-user: b\r\n", "404"),
        ("/nowhere", "x", "", "500"),
        ("/gone", "x", "", "500"),
        ("/only", "special.test", "", "reviews"),
        ("/only", "SPECIAL.test:80", "", "reviews"),
        ("/only", "a.test", "", "ratings"),
        ("/suffix", "special.test", "", "reviews"),
        ("/suffix", "test", "", "404"),
        ("/exact", "special.test", "", "reviews"),
        ("/none", "special.test", "", "404"),
    ] {
        let case = format!("{target} {host} {header}");
        assert_eq!(ask(tulle, target, host, header), expected, "Tulle: {case}");
        assert_eq!(ask(envoy.address, target, host, header), expected, "{case}");
    }
}

#[test]
fn weights_share_the_requests() {
    let (envoy, servers, _mesh) = routed(json!([{ "name": "split", "rules": [{ "backends": [
        { "service": "ratings", "port": 9080, "weight": 90 },
        { "service": "reviews", "port": 9080, "weight": 10 },
    ] }] }]));
    let mut client = envoy.connect();
    let answers = (0..500).map(|_| client.get("/").text() == "reviews");
    let reviews = answers.filter(|r| *r).count();
    // Five standard deviations of a binomial distribution.
    assert!((17..=83).contains(&reviews), "{reviews} of 500");
    drop(servers);
}

#[test]
fn the_timeout_is_for_the_head_of_the_response_and_not_for_its_body() {
    let app = Server::start(|mut connection| {
        while let Ok(request) = connection.request() {
            if request.target() == "/never" {
                continue;
            }
            connection.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nsl");
            pause(
                "a body that is slower than the limit",
                std::time::Duration::from_millis(3000),
            );
            connection.send("ow");
        }
    });
    let pair = EnvoyPair::with(
        app.address(),
        TranslationOptions::default(),
        |client, server| {
            (
                client.set("/mesh/requestTimeoutMs", 2500),
                server.set("/mesh/requestTimeoutMs", 2500),
            )
        },
    );
    assert_eq!(pair.client.connect().get("/slow").text(), "slow");
    assert_eq!(pair.client.connect().get("/never").status(), 504);
}

#[test]
fn a_web_socket_passes() {
    for upstream_h2 in [false, true] {
        let app = Server::start(|mut connection| {
            let _ = connection.head();
            connection.send(
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
            );
            while let Ok(bytes) = connection.read_some()
                && !bytes.is_empty()
                && connection.try_send(&bytes).is_ok()
            {}
        });
        let options = TranslationOptions {
            upstream_h2,
            ..TranslationOptions::default()
        };
        let pair = EnvoyPair::with(app.address(), options, |c, s| (c, s));
        let mut client = pair.client.connect();
        client.send(
            "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        );
        assert_eq!(client.response("GET").status(), 101);
        client.send(b"\x81\x02hi");
        assert_eq!(client.read_exact(4), b"\x81\x02hi");
    }
}

/// Sidecars of both kinds work together, by ALPN.
#[test]
fn envoy_and_tulle_understand_each_other() {
    for protocol in ["http", "detect", "tcp"] {
        for envoy_serves in [true, false] {
            let app = Server::echo();
            let mesh = Mesh::new();
            let server = inbound_config(app.address()).set("/inbound/ports/0/protocol", protocol);
            let client = outbound_config(server.address)
                .set("/services/0/ports/0/protocol", protocol)
                .set("/mesh/detectTimeoutMs", 60_000);
            let address = client.address;
            let start = |name: &str, config: Config, envoy: bool| -> Box<dyn std::any::Any> {
                if envoy {
                    Box::new(Envoy::start(
                        &mesh,
                        name,
                        config,
                        TranslationOptions::default(),
                    ))
                } else {
                    Box::new(Proxy::start(&mesh, name, config.file))
                }
            };
            let _server = start(SERVER, server, envoy_serves);
            let _client = start(CLIENT, client, !envoy_serves);
            let mut connection = Client::connect(address);
            for _ in 0..2 {
                let answer = connection.get("/");
                assert_eq!(
                    answer.status(),
                    200,
                    "{protocol}, Envoy serves: {envoy_serves}"
                );
                if protocol != "tcp" {
                    let caller = format!("URI={}", id(CLIENT));
                    assert!(
                        app.received_text().contains(&caller),
                        "{}",
                        app.received_text()
                    );
                }
            }
        }
    }
}

#[test]
fn an_envoy_pair_takes_the_files_of_a_tulle_pair() {
    let app = Server::echo();
    let tulle = Pair::start(app.address());
    assert_eq!(tulle.connect().get("/").status(), 200);
    let envoy = EnvoyPair::start(app.address());
    assert_eq!(envoy.client.connect().get("/").status(), 200);
}
