//! Which backend a request or connection goes to, through sidecars and a gateway, and what changes
//! of the configuration do to requests under way.

use serde_json::{Value, json};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tests_local::{Client, Load, Mesh, Pair, Proxy, Server, gateway_config, ok, one, pause};

fn named(name: &'static str) -> Server {
    Server::http(move |_| ok(name.as_bytes()))
}

/// A service in plaintext.
fn service(name: &str, app: &Server) -> Value {
    json!({ "name": name, "ports": [{ "port": 80, "protocol": "http",
            "endpoints": [{ "address": app.address().to_string(), "mutualTls": false }] }] })
}

pub(crate) fn rule(matches: Value, service: &str) -> Value {
    json!({ "matches": matches, "backends": [{ "service": service, "port": 80 }] })
}

/// A gateway with these services `a` and `b` and these routes.
pub(crate) struct Edge {
    pub(crate) proxy: Proxy,
    pub(crate) address: std::net::SocketAddr,
    _apps: [Server; 2],
    _mesh: Mesh,
}

pub(crate) fn edge(
    routes: Value,
    change: impl FnOnce(tests_local::Config) -> tests_local::Config,
) -> Edge {
    let apps = [named("a"), named("b")];
    let mesh = Mesh::new();
    let config = gateway_config(apps[0].address())
        .set(
            "/services",
            json!([service("a", &apps[0]), service("b", &apps[1])]),
        )
        .set("/gateways/0/routes", routes);
    let config = change(config);
    let address = config.address;
    let proxy = Proxy::start(&mesh, "edge", config.file);
    Edge {
        proxy,
        address,
        _apps: apps,
        _mesh: mesh,
    }
}

pub(crate) fn ask(address: std::net::SocketAddr, host: &str, target: &str) -> tests_local::Message {
    let mut client = Client::connect(address);
    client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    client.response("GET")
}

#[test]
fn query_parameters_decide() {
    let exact = json!([{ "query": [{ "name": "version", "value": "new one" }] }]);
    let regex = json!([{ "query": [{ "name": "id", "value": "[0-9]+", "regex": true }] }]);
    let rules = json!([rule(exact, "b"), rule(regex, "b"), rule(json!([]), "a")]);
    let edge = edge(json!([{ "name": "r", "rules": rules }]), |c| c);
    for (target, wanted) in [
        ("/", "a"),
        ("/?version=new+one", "b"),
        ("/?x=1&version=new%20one&version=old", "b"),
        ("/?version=old&version=new+one", "a"),
        ("/?Version=new+one", "a"),
        ("/?id=12", "b"),
        ("/?id=12x", "a"),
        ("/version=new+one", "a"),
    ] {
        assert_eq!(ask(edge.address, "h", target).text(), wanted, "{target}");
    }
}

#[test]
fn a_path_that_may_mean_another_rule_is_refused() {
    let prefix = json!([{ "path": { "prefix": "/admin" } }]);
    let routes = json!([{ "name": "r", "rules": [rule(prefix, "b"), rule(json!([]), "a")] }]);
    let edge = edge(routes, |c| c);
    for (target, wanted) in [
        ("/admin", "b"),
        ("/admin/x;v=1/a%2Fb", "b"),
        ("/projects/a%2Fb", "a"),
        ("/a.admin", "a"),
        ("/a//b?x=/../admin", "a"),
    ] {
        assert_eq!(ask(edge.address, "h", target).text(), wanted, "{target}");
    }
    for target in [
        "/x/../admin",
        "/x/%2e%2e/admin",
        "/x/..;/admin",
        "/x/..%2fadmin",
        "//admin",
        "/%61dmin",
        "/admin;x",
        "/admin%2fx",
        "/x\\..\\admin",
        "/%252e%252e/admin",
        "/admin%00",
    ] {
        let answer = ask(edge.address, "h", target);
        assert_eq!(answer.status(), 400, "{target}: {}", answer.text());
        assert_eq!(answer.header("x-tulle-reason"), "bad_request");
        assert!(
            answer.text().contains("more than one meaning"),
            "{}",
            answer.text()
        );
    }
    // Without conditions for paths, a path with more than one meaning is accepted.
    let config = edge.proxy.config.clone();
    let mut config = config;
    config["gateways"][0]["routes"][0]["rules"] = json!([rule(json!([]), "a")]);
    edge.proxy.reload(&config);
    assert_eq!(ask(edge.address, "h", "/x/../admin").text(), "a");
}

#[test]
fn routes_of_a_listener() {
    let routes = json!([
        { "name": "inner", "listener": "inner", "rules": [rule(json!([]), "b")] },
        { "name": "rest", "listener": "rest", "rules": [rule(json!([]), "a")] },
    ]);
    let edge = edge(routes, |config| {
        config.set(
            "/gateways/0/listeners",
            json!([
                { "name": "rest", "port": 80 },
                { "name": "inner", "port": 80, "hostname": "*.inner.example" },
            ]),
        )
    });
    assert_eq!(ask(edge.address, "x.inner.example", "/").text(), "b");
    assert_eq!(ask(edge.address, "inner.example", "/").text(), "a");
    assert_eq!(ask(edge.address, "other.example:80", "/").text(), "a");
}

#[test]
fn what_no_route_takes_is_split() {
    let apps = [named("own"), named("two"), named("three")];
    let pair = Pair::with(apps[0].address(), |client, server| {
        let own = client.file["services"][0].clone();
        let prefix = json!([{ "path": { "prefix": "/routed" } }]);
        let back = json!([{ "path": { "prefix": "/back" } }]);
        let routed =
            json!({ "matches": back, "backends": [{ "service": "ratings", "port": 9080 }] });
        let client = client
            .set(
                "/services",
                json!([own, service("two", &apps[1]), service("three", &apps[2])]),
            )
            .set(
                "/services/0/routes",
                json!([{ "name": "r", "rules": [rule(prefix, "three"), routed] }]),
            )
            .set(
                "/services/0/split",
                json!([
                    { "service": "ratings", "port": 0, "weight": 30 },
                    { "service": "two", "port": 80, "weight": 70 },
                    { "service": "three", "port": 80, "weight": 0 },
                ]),
            );
        (client, server)
    });
    let mut client = pair.connect();
    let mut two = 0;
    for _ in 0..400 {
        match client.get("/").text().as_str() {
            "two" => two += 1,
            other => assert_eq!(other, "own"),
        }
    }
    // 0.7 of 400: more than seven standard deviations on either side.
    assert!((210..345).contains(&two), "{two} of 400");
    for _ in 0..20 {
        assert_eq!(client.get("/routed").text(), "three");
        assert_eq!(
            client.get("/back").text(),
            "own",
            "sent to itself it is not split again"
        );
    }
}

#[test]
fn connections_are_split() {
    let greets =
        |text: &'static str| Server::start(move |mut connection| connection.send(text.as_bytes()));
    let (own, two) = (greets("own"), greets("two"));
    let pair = Pair::with(own.address(), |client, server| {
        let mine = client.file["services"][0].clone();
        let mut other = service("two", &two);
        other["ports"][0]["protocol"] = "tcp".into();
        let client = client
            .set("/services", json!([mine, other]))
            .set("/services/0/ports/0/protocol", "tcp")
            .set(
                "/services/0/split",
                json!([{ "service": "ratings", "port": 0 }, { "service": "two", "port": 80 }]),
            );
        (client, server.set("/inbound/ports/0/protocol", "tcp"))
    });
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..60 {
        let text = Client::connect(pair.address).read_to_end().unwrap();
        seen.insert(String::from_utf8(text).unwrap());
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["own", "two"]);
}

#[test]
fn a_route_of_one_port_leaves_the_others_alone() {
    let app = named("app");
    for (port, status) in [(0, 404), (9080, 404), (9081, 200)] {
        let pair = Pair::with(app.address(), |client, server| {
            let rule = json!({ "matches": [{ "path": { "exact": "/other" } }],
                               "backends": [{ "service": "ratings", "port": 9080 }] });
            let routes = json!([{ "name": "r", "port": port, "rules": [rule] }]);
            (client.set("/services/0/routes", routes), server)
        });
        assert_eq!(one(pair.address, "/").status(), status, "port {port}");
    }
}

/// All rules change again and again, as often as the proxy looks at its file, while requests with
/// and without bodies are under way.
#[test]
fn changes_of_all_rules_lose_no_request() {
    let number = AtomicU32::new(0);
    let app = Server::http(move |_| {
        // Some are under way through several changes.
        if number.fetch_add(1, Ordering::SeqCst).is_multiple_of(10) {
            pause("a slow answer", Duration::from_millis(100));
        }
        ok(b"fine")
    });
    let back = json!([{ "service": "ratings", "port": 9080 }]);
    let rules = |round: u32| {
        let edit = json!({ "requestHeaders": { "set": [{ "name": "x-round",
                           "value": round.to_string() }] } });
        let more = json!({ "responseHeaders": { "add": [{ "name": "x-round",
                           "value": round.to_string() }] } });
        let retry = json!({ "attempts": 1, "statuses": [503] });
        json!([
            { "matches": [{ "path": { "prefix": format!("/r{round}") } }], "backends": back },
            { "matches": [{ "headers": [{ "name": "x-none", "value": round.to_string() }] }],
              "backends": back, "filters": [more] },
            { "backends": back, "filters": [edit, more], "retry": retry,
              "requestTimeoutMs": 20_000 + round },
        ])
    };
    let pair = Pair::with(app.address(), |client, server| {
        let routes = json!([{ "name": "r", "rules": rules(0) }]);
        (client.set("/services/0/routes", routes), server)
    });
    assert_eq!(one(pair.address, "/").header("x-round"), "0");
    let load = Load::start(pair.address, 8, "/");
    let before = pair.client.generation();
    let mut config = pair.client.config.clone();
    let mut round = 0;
    // Until the proxy has seen some of them, however seldom it comes to look.
    while round < 150 || pair.client.generation() < before + 3 {
        round += 1;
        config["services"][0]["routes"][0]["rules"] = rules(round);
        pair.client.write_config(&config);
        pause("between changes", Duration::from_millis(20));
    }
    tests_local::eventually("the last change is in force", || {
        one(pair.address, "/").header("x-round") == round.to_string()
    });
    let changes = pair.client.generation() - before;
    load.await_more(50);
    let requests = load.assert_no_failure();
    println!("{requests} requests during {changes} changes");
}
