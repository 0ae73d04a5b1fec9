//! Through an egress gateway: CONNECT over mutual TLS, judged, looked up and dialled there.

use crate::outside::{GATEWAY, OUTSIDE, World, at, told};
use serde_json::{Value, json};
use tests_local::{
    CLIENT, Client, Mesh, Proxy, TLS13, TlsClient, eventually, free_port, id, is_root,
};

const PORT: u16 = 15443;

/// The gateway's file: who may call it, and where it leads.
fn gateway_file(address: &str, policy: &Value, rules: &Value) -> Value {
    json!({
        "listeners": [{ "address": address, "kind": "inboundPort", "port": PORT }],
        "mesh": { "accessLog": true },
        "inbound": {
            "service": "egress",
            "ports": [{
                "port": PORT, "protocol": "http", "target": "127.0.0.1:1", "egress": true,
            }],
            "policy": policy,
        },
        "egress": { "rules": rules },
    })
}

/// Returns the sidecar's knowledge of the gateway.
fn known() -> Value {
    json!({ "services": [{
        "name": "egress", "identities": [id("egress")],
        "ports": [{
            "port": PORT, "protocol": "http",
            "endpoints": [{ "address": format!("{GATEWAY}:{PORT}") }],
        }],
    }] })
}

fn through(mut rules: Value) -> Value {
    for rule in rules.as_array_mut().unwrap() {
        rule["gateway"] = json!({ "service": "egress", "port": PORT });
    }
    rules
}

#[test]
fn the_gateway_looks_names_up_itself_and_leads_nowhere_inside() {
    if !is_root() {
        return;
    }
    let mut world = World::new();
    // Only the gateway's own host is called so.
    let server = world.http(at("127.0.0.1", 8080));
    let _tls = world.openssl(at("127.0.0.1", 8443), "localhost");
    let _db = world.greeter(at(OUTSIDE[0], 5000));
    let rules = json!([{
        "name": "Egress/named", "hosts": ["localhost"], "networks": ["127.0.0.0/8"],
        "ports": [{ "port": 8080, "protocol": "http" }, { "port": 8443, "protocol": "tls" }],
    }, {
        "name": "Egress/secure", "hosts": ["localhost"], "networks": ["127.0.0.0/8"],
        "ports": [{ "port": 80, "protocol": "http" }, { "port": 8443 }],
        "tls": { "roots": world.web.pem(), "port": 8443 },
    }, {
        "name": "Egress/db", "networks": ["198.51.100.2"],
        "ports": [{ "port": 5000, "protocol": "tcp" }],
    }]);
    let policy = json!({ "rules": [{ "name": "TrafficTarget/egress", "sources": [id(CLIENT)] }] });
    let listen = format!("{GATEWAY}:{PORT}");
    let gateway = world.outside(|| {
        Proxy::start(
            &world.mesh,
            "egress",
            gateway_file(&listen, &policy, &rules),
        )
    });
    // The sidecar's rules name no networks: the application dials any address it likes, and comes
    // to where the gateway finds the name.
    let mut own = through(rules.clone());
    own[0].as_object_mut().unwrap().remove("networks");
    own[1].as_object_mut().unwrap().remove("networks");
    world.rules(own, known());
    let anywhere = |port| at("203.0.113.77", port);

    world.app(|| {
        let mut client = Client::connect(anywhere(8080));
        for turn in ["/one", "/two", "/three"] {
            client.send(format!(
                "POST {turn} HTTP/1.1\r\nHost: localhost:8080\r\nContent-Length: 3\r\n\r\nabc"
            ));
            let answer = client.response("POST");
            assert_eq!(answer.status(), 200, "{}", answer.head);
            assert!(answer.text().contains(turn));
        }
    });
    assert_eq!(server.connections(), 1, "the way is used again");
    let answer = told(world.ask(anywhere(8080), "elsewhere.test", "/"));
    assert_eq!(answer, (403, "egress_denied".into()));
    // TLS of the application's own, and TLS that begins in the sidecar.
    assert_eq!(
        world.ask_tls(anywhere(8443), "localhost").unwrap().status(),
        200
    );
    let answer = world.ask(anywhere(80), "localhost", "/").unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert!(answer.text().contains("s_server"));
    // Bytes, whose server speaks first.
    let mut database = world.app(|| {
        let mut client = Client::connect(at(OUTSIDE[0], 5000));
        assert_eq!(client.read_exact(6), b"hello ");
        let data = tests_local::pattern(300_000);
        for part in data.chunks(50_000) {
            client.send(part);
            assert!(client.read_exact(part.len()) == part);
        }
        client
    });
    world.outside(|| {
        let labels = [
            &*format!("source_principal=\"{}\"", id(CLIENT)),
            "mutual_tls",
        ];
        gateway.await_metric("istio_tcp_connections_opened_total", &labels, 4.0);
    });

    // A name without networks must not lead to the gateway's own host.
    let mut bare = rules.clone();
    bare[0].as_object_mut().unwrap().remove("networks");
    world.outside(|| gateway.reload(&with(&gateway, "egress", json!({ "rules": bare }))));
    let again = world.ask(anywhere(8080), "localhost", "/after");
    // The way that was open before is closed, and no other one opens.
    assert_eq!(told(again), (403, "egress_denied".into()));
    assert!(!server.received_text().contains("/after"));
    let error = world.outside(|| gateway.await_error("egress_denied"));
    assert!(
        error["detail"].as_str().unwrap().contains("127.0.0.1")
            || error["detail"].as_str().unwrap().contains("::1"),
        "{error}"
    );
    assert_eq!(error["source"], id(CLIENT));

    // Nor may somebody whom the gateway's policy does not know ask at all.
    world.outside(|| {
        let file = with(&gateway, "inbound", json!({
            "service": "egress",
            "ports": [{ "port": PORT, "protocol": "http", "target": "127.0.0.1:1", "egress": true }],
            "policy": { "rules": [{ "name": "TrafficTarget/egress", "sources": [id("other")] }] },
        }));
        gateway.reload(&file);
    });
    assert!(database.is_ended(), "what is open is judged again");
    assert!(world.is_cut(at(OUTSIDE[0], 5000)));
    world.outside(|| gateway.await_error("denied"));
    let refused = world.sidecar(|proxy| {
        eventually("the sidecar says who refuses", || {
            proxy
                .admin("/errors")
                .text()
                .contains("egress gateway egress refuses 198.51.100.2:5000: 403 denied")
        });
        proxy.metrics()
    });
    assert!(refused.contains("destination_service=\"Egress/db\""));
}

fn with(proxy: &Proxy, key: &str, value: Value) -> Value {
    let mut file = proxy.config.clone();
    file[key] = value;
    file
}

/// Peers that are no sidecars of ours, on the gateway's port.
#[test]
fn what_is_no_connect_of_a_member_goes_nowhere() {
    let server = tests_local::Server::echo();
    let mesh = Mesh::new();
    let address = at("127.0.0.1", free_port());
    let rules = json!([{
        "name": "Egress/local", "networks": ["127.0.0.0/8"], "sources": [id(CLIENT)],
    }]);
    let policy = json!({ "permissive": true });
    let gateway = Proxy::start(
        &mesh,
        "egress",
        gateway_file(&address.to_string(), &policy, &rules),
    );
    let member = mesh.ca.issue(&id(CLIENT));
    let other = mesh.ca.issue(&id("other"));
    let to = server.address();
    let ask = |certificate, head: &str| {
        let mut client =
            TlsClient::connect(address, Some(certificate), TLS13, &["http/1.1"]).unwrap();
        client.send(head).unwrap();
        let answer = client.response("HEAD").unwrap();
        (client, answer)
    };
    let connect = |to: &str| format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");

    let (mut client, answer) = ask(&member, &connect(&to.to_string()));
    assert_eq!(answer.status(), 200);
    assert_eq!(client.get("/inside").unwrap().status(), 200);
    assert!(
        server
            .received_text()
            .starts_with("GET /inside HTTP/1.1\r\nHost: ratings\r\n\r\n")
    );

    for (certificate, head, status, reason) in [
        (&other, connect(&to.to_string()), 403, "egress_denied"),
        (&member, connect("8.8.8.8:53"), 403, "egress_denied"),
        (&member, connect("[::1]:80"), 403, "egress_denied"),
        (
            &member,
            connect("does-not-exist.invalid:80"),
            503,
            "connect_failed",
        ),
        (
            &member,
            connect(&format!("127.0.0.1:{}", free_port())),
            503,
            "connect_failed",
        ),
        (&member, connect("127.0.0.1:0"), 400, "bad_request"),
        (&member, connect("127.0.0.1"), 400, "bad_request"),
        (
            &member,
            format!("GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\n\r\n"),
            405,
            "bad_request",
        ),
        (
            &member,
            "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nContent-Length: 5\r\n\r\n".into(),
            400,
            "bad_request",
        ),
    ] {
        let (_, answer) = ask(certificate, &head);
        assert_eq!(
            (answer.status(), answer.header("x-tulle-reason")),
            (status, reason),
            "{head}"
        );
    }
    assert_eq!(server.connections(), 1);
    // A caller without a certificate has no identity that could be allowed.
    let mut plain = Client::connect(address);
    plain.send(connect(&to.to_string()));
    assert_eq!(plain.response("CONNECT").status(), 403);
    let config = with(&gateway, "mesh", json!({ "strictMtls": false }));
    gateway.reload(&config);
    let mut plain = Client::connect(address);
    plain.send(connect(&to.to_string()));
    let answer = plain.response("CONNECT");
    assert_eq!(answer.status(), 403);
    assert_eq!(answer.header("x-tulle-reason"), "plaintext_refused");
    assert_eq!(server.connections(), 1);
    // A head that never ends is not waited for.
    let config = with(&gateway, "mesh", json!({ "headerTimeoutMs": 2000 }));
    gateway.reload(&config);
    let mut slow = TlsClient::connect(address, Some(&member), TLS13, &["http/1.1"]).unwrap();
    slow.send("CONNECT 127.0").unwrap();
    assert_eq!(slow.response("CONNECT").unwrap().status(), 408);
}
