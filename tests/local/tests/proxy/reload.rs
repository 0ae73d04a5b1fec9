//! Files that change while requests flow: none is lost, what is wrong is refused and said, and
//! what is new is used.

use serde_json::{Value, json};
use std::net::SocketAddr;
use tests_local::{
    CLIENT, Client, Load, Mesh, Pair, Proxy, SERVER, Server, TLS13, TlsClient, eventually, id,
    inbound_config, ok, one, outbound_config,
};
use tulle_tls::testing::{Issued, TestCa};

const CLIENTS: usize = 6;

fn endpoints(addresses: &[SocketAddr]) -> Value {
    let all = addresses
        .iter()
        .map(|a| json!({ "address": a.to_string() }));
    all.collect()
}

/// The configuration in force, with what was refused.
fn shown(proxy: &Proxy) -> Value {
    serde_json::from_str(&proxy.admin("/config").text()).unwrap_or_default()
}

#[test]
fn endpoints_come_and_go_without_a_failed_request() {
    let mesh = Mesh::new();
    let apps = [Server::http(|_| ok(b"one")), Server::http(|_| ok(b"two"))];
    let servers = apps.each_ref().map(|app| {
        let config = inbound_config(app.address());
        let proxy = Proxy::start(&mesh, SERVER, config.file);
        (proxy, config.address)
    });
    let [one_, two] = [servers[0].1, servers[1].1];
    let config = outbound_config(one_);
    let client = Proxy::start(&mesh, CLIENT, config.file);
    let load = Load::start(config.address, CLIENTS, "/");
    let mut file = client.config.clone();
    for set in [
        &[one_, two][..],
        &[two],
        &[two, one_],
        &[one_],
        &[two],
        &[one_, two],
    ] {
        file["services"][0]["ports"][0]["endpoints"] = endpoints(set);
        client.reload(&file);
        load.await_more(100);
        if let [only] = set {
            // A removed endpoint gets no more requests.
            let name = if *only == one_ { "one" } else { "two" };
            for _ in 0..10 {
                assert_eq!(one(config.address, "/").text(), name);
            }
        }
    }
    load.assert_no_failure();
    assert!(
        apps.iter()
            .all(|app| app.received_text().contains("GET / "))
    );
}

#[test]
fn a_route_is_added_without_a_failed_request() {
    let mesh = Mesh::new();
    let (app, new) = (Server::http(|_| ok(b"old")), Server::http(|_| ok(b"new")));
    let inbound = inbound_config(app.address());
    let _server = Proxy::start(&mesh, SERVER, inbound.file);
    let mut other = inbound_config(new.address());
    other = other.set("/inbound/service", "details");
    let _details = Proxy::start(&mesh, "details", other.file);
    let config = outbound_config(inbound.address);
    let client = Proxy::start(&mesh, CLIENT, config.file);
    let load = Load::start(config.address, CLIENTS, "/");
    assert_eq!(one(config.address, "/new/x").text(), "old");

    let mut file = client.config.clone();
    let details = json!({
        "name": "details", "identities": [id("details")],
        "ports": [{ "port": 9080, "protocol": "http", "endpoints": endpoints(&[other.address]) }],
    });
    file["services"].as_array_mut().unwrap().push(details);
    file["services"][0]["routes"] = json!([{
        "name": "split",
        "rules": [
            { "matches": [{ "path": { "prefix": "/new" } }], "backends": [{ "service": "details", "port": 9080 }] },
            { "backends": [{ "service": SERVER, "port": 9080 }] },
        ],
    }]);
    // An open connection follows too.
    let mut kept = Client::connect(config.address);
    assert_eq!(kept.get("/new").text(), "old");
    client.reload(&file);
    assert_eq!(kept.get("/new").text(), "new");
    assert_eq!(kept.get("/newer").text(), "old");
    load.await_more(100);

    file["services"][0]
        .as_object_mut()
        .unwrap()
        .remove("routes");
    file["services"].as_array_mut().unwrap().pop();
    client.reload(&file);
    assert_eq!(kept.get("/new").text(), "old");
    load.await_more(100);
    load.assert_no_failure();
}

#[test]
fn a_policy_denies_and_allows_again_without_a_failed_request() {
    let app = Server::http(|_| ok(b"yes"));
    let rule = |paths: &str| {
        json!({ "rules": [{
            "name": "pages", "sources": [id(CLIENT)],
            "matches": [{ "name": "paths", "pathRegex": paths }],
        }] })
    };
    let pair = Pair::with(app.address(), |client, server| {
        (client, server.set("/inbound/policy", rule("/open|/gate")))
    });
    let load = Load::start(pair.address, CLIENTS, "/open");
    let mut kept = pair.connect();
    let mut file = pair.server.config.clone();
    for _ in 0..3 {
        assert_eq!(kept.get("/gate").status(), 200);
        file["inbound"]["policy"] = rule("/open");
        pair.server.reload(&file);
        let response = kept.get("/gate");
        assert_eq!(
            (response.status(), response.header("x-tulle-reason")),
            (403, "denied")
        );
        load.await_more(50);
        file["inbound"]["policy"] = rule("/open|/gate");
        pair.server.reload(&file);
    }
    assert_eq!(kept.get("/gate").status(), 200);
    load.assert_no_failure();
    let denied = ["response_flags=\"denied\""];
    assert_eq!(pair.server.metric("istio_requests_total", &denied), 3.0);
}

#[test]
fn an_upgraded_connection_ends_when_it_is_no_longer_allowed() {
    let app = Server::start(|mut connection| {
        if connection.request().is_ok() {
            connection.send(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                 Connection: Upgrade\r\n\r\n",
            );
        }
        while let Ok(bytes) = connection.read_some() {
            if bytes.is_empty() {
                return;
            }
            connection.send(bytes);
        }
    });
    let rule = |paths: &str, token: &str| {
        json!({ "rules": [{
            "name": "pages", "sources": [id(CLIENT)],
            "matches": [{ "name": "chat", "pathRegex": paths, "headers": { "x-token": token } }],
        }] })
    };
    let pair = Pair::with(app.address(), |client, server| {
        (client, server.set("/inbound/policy", rule("/chat", "a")))
    });
    let mut client = pair.connect();
    client.send(
        "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         X-Token: a\r\n\r\n",
    );
    assert_eq!(client.response("GET").status(), 101);
    let mut file = pair.server.config.clone();
    // Another rule that allows it too: it goes on.
    file["inbound"]["policy"] = rule("/cha.*", "[ab]");
    pair.server.reload(&file);
    client.send("still");
    assert_eq!(client.read_exact(5), b"still");
    file["inbound"]["policy"] = rule("/chat", "b");
    pair.server.reload(&file);
    assert!(client.read_to_end().is_err(), "a reset, not an orderly end");
    assert_eq!(pair.server.await_error("denied")["path"], "/chat");
}

#[test]
fn a_wrong_file_is_refused_and_the_last_good_one_stays() {
    let app = Server::http(|_| ok(b"yes"));
    let pair = Pair::start(app.address());
    let load = Load::start(pair.address, CLIENTS, "/");
    let good = pair.client.config.clone();
    let wrong = |change: &dyn Fn(&mut Value)| {
        let mut file = good.clone();
        change(&mut file);
        format!("{file:#}")
    };
    let cases = [
        ("not YAML", "listeners: [".to_owned(), ""),
        ("empty", String::new(), ""),
        (
            "unknown field",
            wrong(&|f| f["mesh"]["strictMtsl"] = true.into()),
            "strictMtsl",
        ),
        (
            "wrong type",
            wrong(&|f| f["mesh"]["maxHeaders"] = "many".into()),
            "maxHeaders",
        ),
        (
            "another identity",
            wrong(&|f| f["identity"] = id("other").into()),
            "identity",
        ),
        ("no listener", wrong(&|f| f["listeners"] = json!([])), ""),
        (
            "a bad pattern",
            wrong(&|f| {
                f["services"][0]["routes"] = json!([{ "name": "r", "rules": [{
                    "matches": [{ "path": { "regex": "/(" } }],
                    "backends": [{ "service": SERVER, "port": 9080 }],
                }] }]);
            }),
            "regular expression",
        ),
    ];
    let generation = pair.client.generation();
    for (count, (what, text, names)) in cases.iter().enumerate() {
        let new = pair.client.file.with_extension("wrong");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &pair.client.file).unwrap();
        let refusals = count as f64 + 1.0;
        pair.client
            .await_metric("tulle_config_refused_total", &[], refusals);
        let configuration = ["what=\"configuration\""];
        assert_eq!(
            pair.client.metric("tulle_config_refused", &configuration),
            1.0,
            "{what}"
        );
        let why = shown(&pair.client)["refused"]["configuration"].to_string();
        assert!(why.contains(names) && why.len() > 10, "{what}: {why}");
        assert!(pair.client.log().contains("is refused"), "{what}");
        assert_eq!(pair.client.generation(), generation, "{what}");
        load.await_more(20);
    }
    std::fs::remove_file(&pair.client.file).unwrap();
    eventually("it is missed", || {
        let why = &shown(&pair.client)["refused"]["configuration"];
        why.as_str().is_some_and(|why| why.contains("cannot read"))
    });
    load.await_more(20);
    // A good file is taken again, and nothing is left of the trouble.
    pair.client.reload(&good);
    eventually("no refusal is shown", || {
        shown(&pair.client)["refused"]["configuration"].is_null()
    });
    assert_eq!(pair.client.metric("tulle_config_refused", &[]), 0.0);
    load.assert_no_failure();
}

/// Puts a certificate and bundle in place of a proxy's and waits until they are in use.
fn install(pair: &Pair, service: &str, ca: &TestCa, bundle: &str) -> Issued {
    let proxy = if service == CLIENT {
        &pair.client
    } else {
        &pair.server
    };
    let serial = || -> Value {
        serde_json::from_str::<Value>(&proxy.admin("/certificates").text()).unwrap_or_default()["serial"].clone()
    };
    let before = serial();
    let issued = ca.issue(&id(service));
    pair.mesh.install(service, &issued, bundle);
    eventually("the new certificate is in use", || serial() != before);
    issued
}

#[test]
fn certificates_are_rotated_without_a_failed_request() {
    let app = Server::http(|_| ok(b"yes"));
    let pair = Pair::with(app.address(), |client, server| {
        (client.set("/workers", 2), server.set("/workers", 2))
    });
    let load = Load::start(pair.address, CLIENTS, "/");
    let ca = &pair.mesh.ca;
    for _ in 0..2 {
        for service in [SERVER, CLIENT] {
            let handshakes = pair.client.metric("tulle_tls_handshakes_total", &[]);
            install(&pair, service, ca, ca.pem());
            // New requests move to a connection with the new certificate.
            pair.client
                .await_metric("tulle_tls_handshakes_total", &[], handshakes + 1.0);
            load.await_more(100);
        }
    }
    load.assert_no_failure();
    assert_eq!(
        pair.client.metric("tulle_tls_handshakes_failed_total", &[]),
        0.0
    );
}

#[test]
fn the_authority_is_replaced_without_a_failed_request() {
    let app = Server::http(|_| ok(b"yes"));
    let pair = Pair::start(app.address());
    let (old, new) = (&pair.mesh.ca, TestCa::new("next root"));
    let both = format!("{}{}", old.pem(), new.pem());
    let load = Load::start(pair.address, CLIENTS, "/");
    let mut last = None;
    // First everybody trusts both, then everybody is signed by the new one, then the old one goes.
    for (ca, bundle) in [(old, both.as_str()), (&new, &both), (&new, new.pem())] {
        for service in [CLIENT, SERVER] {
            last = Some(install(&pair, service, ca, bundle));
            load.await_more(100);
        }
    }
    load.await_more(200);
    load.assert_no_failure();
    // The old authority opens no door any more; the new one does.
    let call = |ca: &TestCa| {
        let certificate = ca.issue(&id(CLIENT));
        TlsClient::connect(pair.inbound, Some(&certificate), TLS13, &["http/1.1"])?.get("/")
    };
    assert_eq!(call(&new).unwrap().status(), 200);
    assert!(call(old).is_err());
    let presented = TlsClient::http(pair.inbound, &new.issue(&id(CLIENT))).peer_certificates();
    assert_eq!(presented, last.expect("it was replaced").chain);
    let page: Value = serde_json::from_str(&pair.server.admin("/certificates").text()).unwrap();
    assert_eq!(page["trust_bundle"].as_array().unwrap().len(), 1);
}

#[test]
fn wrong_certificate_files_are_refused_and_the_last_good_ones_stay() {
    let app = Server::http(|_| ok(b"yes"));
    let pair = Pair::start(app.address());
    let load = Load::start(pair.address, CLIENTS, "/");
    let (ca, directory) = (&pair.mesh.ca, pair.mesh.path().join(SERVER));
    let certificates = ["what=\"certificates\""];
    // A look between two of three files finds another trouble first.
    let refused = |what: &str, names: &str| {
        eventually(what, || {
            let why = &shown(&pair.server)["refused"]["certificates"];
            why.as_str().is_some_and(|why| why.contains(names))
        });
        assert_eq!(
            pair.server.metric("tulle_config_refused", &certificates),
            1.0,
            "{what}"
        );
        load.await_more(20);
    };
    let good = ca.issue(&id(SERVER));
    std::fs::write(directory.join("cert.pem"), "").unwrap();
    refused("an empty certificate", "cert.pem: ");
    pair.mesh.install(SERVER, &ca.issue(&id("other")), ca.pem());
    refused("another service's", "is for spiffe://tulle.local/svc/other");
    pair.mesh.install(SERVER, &good, &good.chain_pem);
    refused("a workload's certificate as root", "cannot be a root");
    std::fs::remove_file(directory.join("key.pem")).unwrap();
    refused("no key", "cannot read");
    load.await_more(50);
    pair.mesh.install(SERVER, &good, ca.pem());
    eventually("no refusal is shown", || {
        pair.server.metric("tulle_config_refused", &[]) == 0.0
    });
    load.await_more(50);
    load.assert_no_failure();
}
