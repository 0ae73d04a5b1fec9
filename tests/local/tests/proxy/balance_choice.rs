//! Which of several servers a request goes to, through real sidecars: by weight, load, latency, hash
//! and place; and that a client comes back to who has served it.

use serde_json::{Value, json};
use std::sync::Arc;
use tests_local::{Config, Fleet, Gate, Server, eventually, get, number, ok};

/// Applications that answer with their number.
fn apps(count: usize) -> Vec<Server> {
    let app = |number: usize| Server::http(move |_| ok(number.to_string().as_bytes()));
    (0..count).map(app).collect()
}

fn fleet(apps: &[Server], traffic: Value, change: impl FnOnce(Config) -> Config) -> Fleet {
    let addresses: Vec<_> = apps.iter().map(Server::address).collect();
    Fleet::start(&addresses, traffic, change)
}

fn plain(_: usize) -> String {
    get("/")
}

fn weight(config: Config, weights: &[u32]) -> Config {
    let each = weights.iter().enumerate();
    each.fold(config, |config, (i, weight)| {
        config.set(
            &format!("/services/0/ports/0/endpoints/{i}/weight"),
            *weight,
        )
    })
}

#[test]
fn round_robin_follows_weights_exactly() {
    let apps = apps(3);
    let fleet = fleet(&apps, json!({}), |c| weight(c, &[5, 1, 0]));
    assert_eq!(fleet.spread(60, plain), [50, 10, 0]);
    assert_eq!(fleet.states(), ["ready", "ready"], "one has no share");
}

#[test]
fn random_follows_weights_and_least_request_avoids_the_busy() {
    let apps = apps(2);
    let random = fleet(&apps, json!({ "balancer": "random" }), |c| {
        weight(c, &[3, 1])
    });
    let seen = random.spread(400, plain);
    // 300 are expected; ten standard deviations are 87.
    assert!((213..387).contains(&seen[0]), "{seen:?}");
}

#[test]
fn least_request_and_ewma_leave_the_slow_one_alone() {
    for balancer in ["leastRequest", "ewma"] {
        let gate = Arc::<Gate>::default();
        let closed = gate.clone();
        let slow = Server::http(move |_| {
            closed.pass();
            ok(b"0")
        });
        let fast = Server::http(|_| ok(b"1"));
        let apps = [slow, fast];
        let endpoints = "/services/0/ports/0/endpoints";
        let fleet = fleet(&apps, json!({ "balancer": balancer }), |config| {
            let slow = config.file.pointer(endpoints).unwrap()[0].clone();
            config.set(endpoints, vec![slow])
        });
        // So many wait at the slow one that it is the worse choice even where the fast one takes seconds to
        // answer, as on a machine that stands still.
        let mut waiting: Vec<_> = (0..32)
            .map(|_| {
                let mut client = fleet.connect();
                client.send(get("/"));
                client
            })
            .collect();
        eventually("all of them wait at the slow one", || {
            let busy = fleet.endpoints();
            busy.first().is_some_and(|e| e["active"] == 32)
        });
        let mut config = fleet.client.config.clone();
        let both = fleet
            .inbound
            .iter()
            .map(|a| json!({ "address": a.to_string() }));
        *config.pointer_mut(endpoints).unwrap() = both.collect();
        fleet.client.reload(&config);
        assert_eq!(fleet.spread(30, plain), [0, 30], "{balancer}");
        gate.open();
        for client in &mut waiting {
            assert_eq!(client.response("GET").status(), 200);
        }
    }
}

#[test]
fn a_hash_keeps_a_key_with_its_server_as_others_come_and_go() {
    let apps = apps(4);
    let by_header = json!({ "balancer": { "ringHash": { "header": "x-user" } } });
    let fleet = fleet(&apps, by_header, |c| c);
    let mut client = fleet.connect();
    let mut owner = |key: usize| {
        let line = format!("x-user: {key}\r\n\r\n");
        client.send(get("/").replacen("\r\n\r\n", &format!("\r\n{line}"), 1));
        number(&client.response("GET"))
    };
    let before: Vec<_> = (0..100).map(&mut owner).collect();
    assert!((0..4).all(|n| before.contains(&n)), "{before:?}");
    assert_eq!((0..100).map(&mut owner).collect::<Vec<_>>(), before);
    let mut config = fleet.client.config.clone();
    let endpoints = &mut config["services"][0]["ports"][0]["endpoints"];
    endpoints.as_array_mut().unwrap().remove(2);
    fleet.client.reload(&config);
    eventually("the configuration has reached the worker", || {
        (0..100).map(&mut owner).all(|n| n != 2)
    });
    for (key, before) in before.iter().enumerate() {
        let now = owner(key);
        assert!(now == *before || *before == 2, "{key}: {before} -> {now}");
    }
    // Without the header any endpoint may be chosen.
    let seen = fleet.spread(60, plain);
    assert!(seen.iter().filter(|n| **n > 0).count() > 1, "{seen:?}");
}

#[test]
fn a_cookie_brings_a_client_back_until_its_server_is_gone() {
    let apps = apps(3);
    let affinity = json!({ "affinity": { "name": "server", "maxAgeS": 3600 } });
    let fleet = fleet(&apps, affinity, |c| c);
    let response = fleet.connect().get("/");
    let first = number(&response);
    let field = response.header("set-cookie").to_owned();
    let (cookie, attributes) = field.split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Lax; Max-Age=3600");
    let name = cookie.strip_prefix("server=").unwrap();
    assert!(
        name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit()),
        "{field}"
    );
    let with_cookie = |cookie: &str| {
        get("/").replacen("\r\n\r\n", &format!("\r\nCookie: a=b; {cookie}\r\n\r\n"), 1)
    };
    let mut client = fleet.connect();
    for _ in 0..12 {
        client.send(with_cookie(cookie));
        let response = client.response("GET");
        assert_eq!(number(&response), first);
        assert_eq!(response.header("set-cookie"), "", "the client knows");
    }
    let mut config = fleet.client.config.clone();
    let endpoints = &mut config["services"][0]["ports"][0]["endpoints"];
    endpoints.as_array_mut().unwrap().remove(first);
    fleet.client.reload(&config);
    let mut last = first;
    let mut again = String::new();
    eventually("another server and another cookie", || {
        client.send(with_cookie(cookie));
        let response = client.response("GET");
        last = number(&response);
        again = response.header("set-cookie").to_owned();
        last != first
    });
    let again = again.split("; ").next().unwrap();
    assert!(again.starts_with("server=") && again != cookie, "{again}");
    client.send(with_cookie(again));
    assert_eq!(number(&client.response("GET")), last);
    // One that nobody has made is nobody's.
    client.send(with_cookie("server=0123456789abcdef"));
    assert!(
        client
            .response("GET")
            .header("set-cookie")
            .starts_with("server=")
    );
}

#[test]
fn a_route_may_bring_clients_back_by_a_header() {
    let apps = apps(3);
    let fleet = fleet(&apps, json!({}), |c| {
        c.set(
            "/services/0/routes",
            json!([{ "name": "r", "rules": [{
                "backends": [{ "service": "ratings", "port": 9080 }],
                "affinity": { "name": "x-server", "header": true },
            }] }]),
        )
    });
    let response = fleet.connect().get("/");
    let name = response.header("x-server").to_owned();
    assert_eq!(name.len(), 16);
    let line = format!("\r\nX-Server: {name}\r\n\r\n");
    let seen = fleet.spread(9, |_| get("/").replacen("\r\n\r\n", &line, 1));
    assert_eq!(seen[number(&response)], 9, "{seen:?}");
}

#[test]
fn near_servers_are_preferred_and_far_ones_take_over() {
    let apps = apps(3);
    let place = |config: Config, i: usize, place: &str| {
        config.set(
            &format!("/services/0/ports/0/endpoints/{i}/locality"),
            place,
        )
    };
    let traffic = json!({ "locality": { "failover": ["us"] }, "outlier": {} });
    let mut fleet = fleet(&apps, traffic, |c| {
        let c = place(place(place(c, 0, "us/1"), 1, "eu/1"), 2, "asia/1");
        // The caller's own service sets its locality.
        c.set(
            "/inbound",
            json!({ "service": "productpage", "ports": [], "policy": {}, "locality": "eu/1" }),
        )
    });
    assert_eq!(fleet.spread(10, plain), [0, 10, 0]);
    fleet.servers.remove(1).kill();
    let mut client = fleet.connect();
    let seen: Vec<_> = (0..10)
        .map(|_| client.get("/"))
        .filter(|r| r.status() == 200)
        .map(|r| number(&r))
        .collect();
    assert!(!seen.is_empty() && seen.iter().all(|n| *n == 0), "{seen:?}");
}
