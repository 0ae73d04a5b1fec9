//! Tests the traffic that may leave the mesh: by host, server name, address, port, caller, request.

use crate::outside::{OUTSIDE, World, at, told};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use std::net::TcpListener;
use std::time::{Duration, SystemTime};
use tests_local::{Client, Http2Client, TlsServer, eventually, id, is_root, ok, public_config};
use tulle_tls::testing::Leaf;

const DENIED: (u16, &str) = (403, "egress_denied");

fn is(answer: &(u16, String), expected: (u16, &str)) -> bool {
    answer.0 == expected.0 && answer.1 == expected.1
}

#[test]
fn requests_by_host_and_each_by_itself() {
    if !is_root() {
        return;
    }
    let mut world = World::new();
    let (here, there) = (at(OUTSIDE[0], 80), at(OUTSIDE[1], 80));
    let server = world.http(here);
    let other = world.http(there);
    let more = json!({});
    world.rules(
        json!([{
            "name": "Egress/api", "hosts": ["api.example.com", "*.example.org"],
            "networks": ["198.51.100.0/24"], "ports": [{ "port": 80, "protocol": "http" }],
        }, {
            "name": "Egress/reads", "hosts": ["files.example.com"],
            "matches": [{ "methods": ["GET"], "pathRegex": "/public/.*" }],
        }, {
            "name": "Egress/others", "hosts": ["others.example.com"], "sources": [id("somebody-else")],
        }]),
        more.clone(),
    );
    for host in [
        "api.example.com",
        "API.example.com:80",
        "api.example.com.",
        "a.b.example.org",
    ] {
        let answer = world.ask(here, host, "/a").unwrap();
        assert_eq!(answer.status(), 200, "{host}: {}", answer.text());
    }
    for host in [
        "example.org",
        "evil.test",
        "xapi.example.com",
        "others.example.com",
        "198.51.100.2",
    ] {
        let answer = told(world.ask(here, host, "/secret"));
        assert!(is(&answer, DENIED), "{host}: {answer:?}");
    }
    // The name is right, the address is not where the rule leads.
    let answer = told(world.ask(there, "api.example.com", "/secret"));
    assert!(is(&answer, DENIED), "{answer:?}");
    // Requests are judged on a connection that has carried others.
    world.app(|| {
        let mut client = Client::connect(here);
        for (host, path, status) in [
            ("api.example.com", "/a", 200),
            ("evil.test", "/secret", 403),
            ("files.example.com", "/public/a", 200),
            ("files.example.com", "/secret", 403),
            ("files.example.com", "/public/../secret", 403),
            ("files.example.com", "/public/%2e%2e/secret", 403),
        ] {
            client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(client.response("GET").status(), status, "{host}{path}");
        }
        client.send(
            "POST /public/secret HTTP/1.1\r\nHost: files.example.com\r\nContent-Length: 0\r\n\r\n",
        );
        assert_eq!(client.response("POST").status(), 403);
    });
    // A proxy outside would lead past all rules.
    let answer = world.app(|| {
        let mut client = Client::connect(here);
        client.send("CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n");
        client.response("CONNECT").status()
    });
    assert_eq!(answer, 403);
    // Nothing but HTTP.
    assert!(world.app(|| Client::is_cut(here, b"\x00\x01\x02 opaque secret")));
    assert!(!server.received_text().contains("secret"));
    assert_eq!(other.received_text(), "");
    let shown = world.sidecar(|proxy| {
        let labels = ["destination_service=\"Egress/api\"", "\"200\""];
        proxy.await_metric("istio_requests_total", &labels, 5.0);
        let denied = ["response_flags=\"egress_denied\""];
        proxy.await_metric("istio_requests_total", &denied, 8.0);
        (
            proxy.await_error("egress_denied"),
            proxy.admin("/config").text(),
        )
    });
    let detail = shown.0["detail"].as_str().unwrap();
    assert!(
        detail.contains("198.51.100.2:80") || detail.contains("203.0.113.2:80"),
        "{detail}"
    );
    assert!(shown.1.contains("Egress/reads"));

    // If everything is allowed, the rules only choose the way.
    world.rules(json!([]), json!({ "mesh": { "allowEgress": true } }));
    assert_eq!(world.ask(there, "evil.test", "/").unwrap().status(), 200);
    world.rules(
        json!([{ "name": "Egress/none", "hosts": ["a"] }]),
        json!({ "mesh": { "allowEgress": true } }),
    );
    assert_eq!(world.ask(there, "evil.test", "/").unwrap().status(), 200);
    // Where it went without a rule is remembered, for who wants to be strict.
    world.sidecar(|proxy| {
        let shown = proxy.admin("/outside").text();
        let rows: Value = serde_json::from_str(&shown).unwrap();
        let row = rows
            .as_array()
            .unwrap()
            .iter()
            .find(|r| r["address"] == json!(there.ip()) && r["port"] == json!(there.port()));
        let row = row.unwrap_or_else(|| panic!("{shown}"));
        assert_eq!(row["direction"], "outbound");
        assert!(row["allowed"].as_u64() >= Some(2), "{row}");
    });
}

#[test]
fn tls_by_server_name_is_passed_on_as_it_is() {
    if !is_root() {
        return;
    }
    let mut world = World::new();
    let here = at(OUTSIDE[0], 443);
    let _server = world.openssl(here, "a.example.com");
    world.rules(
        json!([{
            "name": "Egress/wild", "hosts": ["*.example.com"],
            "ports": [{ "port": 443, "protocol": "tls" }],
        }]),
        json!({}),
    );
    assert_eq!(world.ask_tls(here, "a.example.com").unwrap().status(), 200);
    for name in ["example.com", "evil.test", "a.example.com.evil.test"] {
        assert!(world.ask_tls(here, name).is_none(), "{name}");
    }
    // An address is no server name, so none is sent.
    assert!(world.ask_tls(here, OUTSIDE[0]).is_none());
    // Plain HTTP with the right host is not TLS.
    let answer = world.ask(here, "a.example.com", "/");
    assert!(is(&told(answer), DENIED));
    let error = world.sidecar(|proxy| {
        let labels = ["destination_service=\"Egress/wild\""];
        proxy.await_metric("istio_tcp_connections_opened_total", &labels, 1.0);
        proxy.await_error("egress_denied")
    });
    assert!(
        error["detail"].as_str().unwrap().contains("Egress"),
        "{error}"
    );
    // curl, with the name looked up elsewhere.
    let status = world.app(|| {
        std::process::Command::new("curl")
            .args(["-sS", "-o", "/dev/null", "-w", "%{http_code}"])
            .arg("-k")
            .args(["--resolve", &format!("a.example.com:443:{}", OUTSIDE[0])])
            .arg("https://a.example.com/")
            .output()
            .unwrap()
    });
    assert_eq!(String::from_utf8_lossy(&status.stdout), "200", "{status:?}");
}

#[test]
fn tcp_by_address_and_port_until_it_is_no_longer_allowed() {
    if !is_root() {
        return;
    }
    let mut world = World::new();
    let (here, there) = (at(OUTSIDE[0], 5000), at(OUTSIDE[1], 5000));
    let _servers = [
        world.greeter(here),
        world.greeter(there),
        world.greeter(at(OUTSIDE[0], 5001)),
    ];
    let rules = json!([{
        "name": "Egress/db", "networks": ["198.51.100.2"],
        "ports": [{ "port": 5000, "protocol": "tcp" }],
    }]);
    // No client here says anything before it is answered: the sidecar need not wait for that.
    let silent = json!({ "mesh": { "accessLog": true, "detectTimeoutMs": 300 } });
    world.rules(rules.clone(), silent.clone());
    // The server speaks first.
    let mut client = world.app(|| {
        let mut client = Client::connect(here);
        assert_eq!(client.read_exact(6), b"hello ");
        client.send("and back");
        assert_eq!(client.read_exact(8), b"and back");
        client
    });
    for elsewhere in [there, at(OUTSIDE[0], 5001)] {
        assert!(world.is_cut(elsewhere), "{elsewhere}");
    }
    // A change that still allows it does not hurt; one that does not ends it.
    let mut wider = rules.clone();
    wider[0]["networks"] = json!(["198.51.100.0/24"]);
    world.rules(wider, silent.clone());
    client.send("more");
    assert_eq!(client.read_exact(4), b"more");
    world.rules(
        json!([{ "name": "Egress/other", "ports": [{ "port": 9 }] }]),
        silent.clone(),
    );
    assert!(client.is_ended());
    // Without any rule nothing leaves.
    world.rules(json!([]), silent);
    assert!(world.is_cut(here));
}

#[test]
fn http_that_leaves_as_tls() {
    if !is_root() {
        return;
    }
    let mut world = World::new();
    let _server = world.openssl(at(OUTSIDE[0], 8443), "secure.example");
    let _opaque = world.openssl(at(OUTSIDE[0], 9443), "tcp.example");
    let rule = |roots: &str, name: &str| {
        json!([{
            "name": "Egress/secure", "hosts": ["secure.example", "other.example"],
            "ports": [{ "port": 80, "protocol": "http" }],
            "tls": { "roots": roots, "serverName": name, "port": 8443 },
        }, {
            "name": "Egress/tcp", "ports": [{ "port": 9443, "protocol": "tcp" }],
            "tls": { "roots": roots, "serverName": "tcp.example" },
        }])
    };
    let roots = world.web.pem().to_owned();
    world.rules(rule(&roots, ""), json!({}));
    let here = at(OUTSIDE[0], 80);
    let answer = world.ask(here, "secure.example", "/").unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert!(answer.text().contains("s_server"), "{}", answer.text());
    assert!(answer.text().contains("TLSv1.3"), "{}", answer.text());
    // A client that lies about the host reaches nobody: the server must prove the name.
    let answer = told(world.ask(here, "other.example", "/"));
    assert!(is(&answer, (502, "tls_failed")), "{answer:?}");
    let answer = told(world.ask(here, "evil.test", "/"));
    assert!(is(&answer, DENIED), "{answer:?}");
    // Bytes that are no HTTP.
    let page = world.app(|| {
        let mut client = Client::connect(at(OUTSIDE[0], 9443));
        client.send("GET / HTTP/1.0\r\n\r\n");
        String::from_utf8_lossy(&client.read_to_end().unwrap_or_default()).into_owned()
    });
    assert!(page.contains("s_server"), "{page}");
    // The rule's name instead of the request's.
    world.rules(rule(&roots, "secure.example"), json!({}));
    assert_eq!(world.ask(here, "other.example", "/").unwrap().status(), 200);
    // Use a revocation list of the authority: first empty, then with this certificate.
    let chain = std::fs::read(world.mesh.path().join("8443-c")).unwrap();
    let own = CertificateDer::from_pem_slice(&chain).unwrap();
    let later = SystemTime::now() + Duration::from_secs(3600);
    for (revoked, expected) in [(vec![], 200), (vec![&own], 502)] {
        let list = world.web.revocation_list_until(&revoked, later);
        world.rules(rule(&format!("{roots}{list}"), ""), json!({}));
        let answer = world.ask(here, "secure.example", "/").unwrap();
        assert_eq!(answer.status(), expected, "{}", answer.text());
    }
    // Not of this authority.
    let stranger = tulle_tls::testing::TestCa::new("another");
    world.rules(rule(stranger.pem(), ""), json!({}));
    let answer = told(world.ask(here, "secure.example", "/"));
    assert!(is(&answer, (502, "tls_failed")), "{answer:?}");
    world.rules(rule("", ""), json!({}));
    let answer = told(world.ask(here, "secure.example", "/"));
    assert!(
        is(&answer, (502, "tls_failed")),
        "the system's roots: {answer:?}"
    );
    world.sidecar(|proxy| {
        eventually("the cause is told", || {
            let errors = proxy.admin("/errors").text();
            ["unknown_issuer", "bad_certificate", "revoked"]
                .iter()
                .all(|code| errors.contains(code))
        });
    });
}

#[test]
fn a_server_that_chose_http_1_gets_no_connection_for_each_request_that_came_as_http_2() {
    if !is_root() {
        return;
    }
    let mut world = World::new();
    let certificate = world.web.issue_leaf(&Leaf {
        dns: vec!["secure.example".to_owned()],
        ..Leaf::new("spiffe://none/none")
    });
    let server = world.outside(|| {
        let listener = TcpListener::bind(at(OUTSIDE[0], 8443)).unwrap();
        let config = public_config(&certificate, &["http/1.1"]);
        TlsServer::with(listener, config, |mut connection| {
            while connection.request().is_ok() && connection.send(ok(b"hello")).is_ok() {}
        })
    });
    let rule = json!([{
        "name": "Egress/secure", "hosts": ["secure.example"],
        "ports": [{ "port": 80, "protocol": "http" }],
        "tls": { "roots": world.web.pem(), "port": 8443 },
    }]);
    world.rules(rule, json!({}));
    world.app(|| {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Http2Client::connect(at(OUTSIDE[0], 80)).await;
            for _ in 0..3 {
                let request = http::Request::get("http://secure.example/")
                    .body(())
                    .unwrap();
                let answered = client.exchange(request, "", None).await.unwrap();
                assert_eq!((answered.status(), &*answered.body), (200, &b"hello"[..]));
            }
        });
    });
    assert_eq!(server.connections(), 1);
    world.outside(|| drop(server));
}
