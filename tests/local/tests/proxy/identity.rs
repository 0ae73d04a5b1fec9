//! Tests authentication over the wire and in both directions: every kind of wrong certificate is refused,
//! the reason is named to the operator, and nothing of a request reaches an impostor.

use rustls::SupportedProtocolVersion;
use serde_json::json;
use std::io;
use std::time::{Duration, SystemTime};
use tests_local::{
    CLIENT, Client, Config, Mesh, Message, Proxy, SERVER, Server, TLS12, TLS13, TlsClient,
    TlsServer, client_config, eventually, id, inbound_config, ok, outbound_config, post,
};
use tulle_tls::testing::{Issued, Leaf, TestCa};

const HOUR: Duration = Duration::from_secs(3600);

/// Certificates that nobody may accept from `name`, with the code of the refusal.
fn never_accepted(ca: &TestCa, name: &str) -> Vec<(&'static str, Issued, &'static str)> {
    let now = SystemTime::now();
    let good = || Leaf::new(&id(name));
    let with_uris = |uris: &[String]| Leaf {
        uris: uris.to_vec(),
        ..good()
    };
    let at = |domain: &str| with_uris(&[format!("spiffe://{domain}/svc/{name}")]);
    let expired = Leaf {
        not_before: now - 3 * HOUR,
        not_after: now - HOUR,
        ..good()
    };
    let future = Leaf {
        not_before: now + HOUR,
        not_after: now + 2 * HOUR,
        ..good()
    };
    let dns_only = Leaf {
        uris: Vec::new(),
        dns: vec![name.to_owned(), format!("{name}.tulle.local")],
        ..good()
    };
    let id_as_dns = Leaf {
        uris: Vec::new(),
        dns: vec![id(name)],
        ..good()
    };
    let two = with_uris(&[id(name), id("other")]);
    let twice = with_uris(&[id(name), id(name)]);
    let authority = Leaf {
        is_ca: true,
        ..good()
    };
    let by_a_leaf = ca.issue(&id("other")).issue_leaf(&good());
    // The name of the root is the same; only its key is not.
    let other_ca = TestCa::new("test root");
    let issue = |leaf: Leaf| ca.issue_leaf(&leaf);
    vec![
        (
            "another trust domain",
            issue(at("other.local")),
            "wrong_trust_domain",
        ),
        (
            "a trust domain that ours begins",
            issue(at("tulle.local.evil")),
            "wrong_trust_domain",
        ),
        (
            "a trust domain that ends in ours",
            issue(at("eviltulle.local")),
            "wrong_trust_domain",
        ),
        (
            "a trust domain in capitals",
            issue(at("Tulle.local")),
            "not_spiffe",
        ),
        (
            "another authority",
            other_ca.issue_leaf(&good()),
            "unknown_issuer",
        ),
        ("signed by a workload", by_a_leaf, "bad_usage"),
        ("expired", issue(expired), "expired"),
        ("not valid yet", issue(future), "not_yet_valid"),
        ("two SPIFFE ids", issue(two), "not_spiffe"),
        ("one SPIFFE id twice", issue(twice), "not_spiffe"),
        ("no name at all", issue(with_uris(&[])), "not_spiffe"),
        ("only DNS names", issue(dns_only), "not_spiffe"),
        ("the id as a DNS name", issue(id_as_dns), "not_spiffe"),
        (
            "another scheme",
            issue(with_uris(&[format!("https://tulle.local/svc/{name}")])),
            "not_spiffe",
        ),
        (
            "a dot segment",
            issue(with_uris(&[format!(
                "spiffe://tulle.local/svc/x/../{name}"
            )])),
            "not_spiffe",
        ),
        (
            "a trailing slash",
            issue(with_uris(&[format!("{}/", id(name))])),
            "not_spiffe",
        ),
        ("an authority's certificate", issue(authority), "bad_usage"),
    ]
}

/// Valid identities that look like `name`'s.
fn lookalikes(name: &str) -> Vec<String> {
    let shorter = &name[..name.len() - 1];
    let capital = format!("{}{}", name[..1].to_ascii_uppercase(), &name[1..]);
    vec![
        id("other"),
        id(shorter),
        id(&format!("{name}2")),
        id(&format!("{name}/sub")),
        id(&capital),
        format!("spiffe://tulle.local/{name}"),
        format!("spiffe://tulle.local/svc/svc/{name}"),
    ]
}

// ---- towards the server's sidecar

struct Inbound {
    mesh: Mesh,
    app: Server,
    proxy: Proxy,
    config: Config,
}

impl Inbound {
    fn start(change: impl FnOnce(Config) -> Config) -> Self {
        let (mesh, app) = (Mesh::new(), Server::echo());
        let config = change(inbound_config(app.address()));
        let proxy = Proxy::start(&mesh, SERVER, config.file.clone());
        Self {
            mesh,
            app,
            proxy,
            config,
        }
    }

    /// A request with this certificate.
    fn request(
        &self,
        certificate: Option<&Issued>,
        version: &'static SupportedProtocolVersion,
    ) -> io::Result<Message> {
        let alpn = ["http/1.1"];
        TlsClient::connect(self.config.address, certificate, version, &alpn)?.get("/secret")
    }

    /// The connection is refused, counted and explained, and the application hears nothing.
    fn assert_refused(
        &self,
        what: &str,
        certificate: Option<&Issued>,
        version: &'static SupportedProtocolVersion,
        code: &str,
    ) {
        let metric = "tulle_tls_handshakes_failed_total";
        let label = format!("reason=\"{code}\"");
        let before = self.proxy.metric(metric, &[&label]);
        let answer = self.request(certificate, version);
        assert!(answer.is_err(), "{what}: was answered {answer:?}");
        self.proxy.await_metric(metric, &[&label], before + 1.0);
        eventually(&format!("{what}: an error with {code}"), || {
            let errors = self.proxy.errors();
            let last = errors.last().map(|e| e["detail"].to_string());
            last.is_some_and(|detail| detail.contains(code))
        });
        assert_eq!(self.app.connections(), 0, "{what}");
    }

    fn denied(&self) -> f64 {
        let labels = ["response_flags=\"denied\"", "response_code=\"403\""];
        self.proxy.metric("istio_requests_total", &labels)
    }
}

#[test]
fn a_server_refuses_every_certificate_that_is_no_workloads() {
    let inbound = Inbound::start(|c| c);
    for (what, certificate, code) in never_accepted(&inbound.mesh.ca, CLIENT) {
        inbound.assert_refused(what, Some(&certificate), TLS13, code);
    }
    let server_only = Leaf {
        client_auth: false,
        ..Leaf::new(&id(CLIENT))
    };
    let server_only = inbound.mesh.ca.issue_leaf(&server_only);
    inbound.assert_refused("no clientAuth", Some(&server_only), TLS13, "bad_usage");
    inbound.assert_refused("no certificate", None, TLS13, "no_certificate");
    let good = inbound.mesh.ca.issue(&id(CLIENT));
    inbound.assert_refused("TLS 1.2", Some(&good), TLS12, "protocol");
    // All that was wrong was the certificate.
    assert_eq!(inbound.request(Some(&good), TLS13).unwrap().status(), 200);
}

#[test]
fn the_refused_client_learns_why_from_the_alert() {
    let inbound = Inbound::start(|c| c);
    let alert = |certificate: Option<&Issued>| {
        let answer = inbound.request(certificate, TLS13);
        answer.expect_err("it is refused").to_string()
    };
    let ca = &inbound.mesh.ca;
    let expired = Leaf {
        not_after: SystemTime::now() - HOUR / 2,
        ..Leaf::new(&id(CLIENT))
    };
    assert!(alert(None).contains("CertificateRequired"));
    assert!(alert(Some(&ca.issue_leaf(&expired))).contains("CertificateExpired"));
    let foreign = TestCa::new("other").issue(&id(CLIENT));
    assert!(alert(Some(&foreign)).contains("UnknownCA"));
}

#[test]
fn a_workload_the_policy_leaves_out_gets_403_and_keeps_its_connection() {
    let policy = json!({ "rules": [{ "name": "pages", "sources": [id(CLIENT)] }] });
    let inbound = Inbound::start(|c| c.set("/inbound/policy", policy));
    let ca = &inbound.mesh.ca;
    for (count, who) in lookalikes(CLIENT).iter().enumerate() {
        let mut client = TlsClient::http(inbound.config.address, &ca.issue(who));
        let response = client.get("/secret").unwrap();
        assert_eq!(response.status(), 403, "{who}");
        assert_eq!(response.header("x-tulle-reason"), "denied");
        let text = response.text();
        assert!(text.contains(who.as_str()), "{text}");
        assert!(text.contains("pages"), "names the policy: {text}");
        // The connection is not to blame.
        assert_eq!(client.get("/again").unwrap().status(), 403, "{who}");
        let principal = format!("source_principal=\"{who}\"");
        inbound
            .proxy
            .await_metric("istio_requests_total", &[&principal], 2.0);
        assert_eq!(inbound.denied(), 2.0 * (count as f64 + 1.0));
        let last = inbound.proxy.errors().pop().unwrap();
        assert_eq!(
            (&last["source"], &last["reason"]),
            (&json!(who), &json!("denied"))
        );
    }
    assert_eq!(inbound.app.connections(), 0);
    let good = ca.issue(&id(CLIENT));
    assert_eq!(inbound.request(Some(&good), TLS13).unwrap().status(), 200);
}

#[test]
fn no_rule_allows_nobody() {
    let inbound = Inbound::start(|c| c.set("/inbound/policy", json!({ "rules": [] })));
    let good = inbound.mesh.ca.issue(&id(CLIENT));
    let response = inbound.request(Some(&good), TLS13).unwrap();
    assert_eq!(
        (response.status(), response.header("x-tulle-reason")),
        (403, "denied")
    );
    assert_eq!(inbound.app.connections(), 0);
}

#[test]
fn a_policy_holds_for_the_bytes_that_are_forwarded() {
    let rule = json!({ "rules": [{
        "name": "public", "sources": [id(CLIENT)],
        "matches": [{ "name": "get", "methods": ["GET"], "pathRegex": "/public/[a-z]+" }],
    }] });
    let inbound = Inbound::start(|c| c.set("/inbound/policy", rule));
    let mut client = TlsClient::http(inbound.config.address, &inbound.mesh.ca.issue(&id(CLIENT)));
    for allowed in ["/public/a", "/public/a?x=/secret"] {
        assert_eq!(client.get(allowed).unwrap().status(), 200, "{allowed}");
    }
    for refused in [
        "/secret",
        "/public/",
        "/public/a/b",
        "/public/a/../../secret",
        "/public/%2e%2e/secret",
        "//public/a",
        "/PUBLIC/a",
        "/public/a;b",
        "/public%2fa",
        "/x/public/a",
    ] {
        let response = client.get(refused).unwrap();
        assert!(
            matches!(response.status(), 400 | 403),
            "{refused}: {}",
            response.status()
        );
        let line = format!("GET {refused} ");
        assert!(!inbound.app.received_text().contains(&line), "{refused}");
        if response.header("connection") == "close" {
            client = TlsClient::http(inbound.config.address, &inbound.mesh.ca.issue(&id(CLIENT)));
        }
    }
    client.send(post("/public/a", b"x")).unwrap();
    assert_eq!(client.response("POST").unwrap().status(), 403);
    assert!(!inbound.app.received_text().contains("POST"));
}

#[test]
fn a_resumed_session_does_not_outlive_the_trust_it_rests_on() {
    let inbound = Inbound::start(|c| c);
    let (old, address) = (&inbound.mesh.ca, inbound.config.address);
    let good = old.issue(&id(CLIENT));
    let config = client_config(Some(&good), TLS13, &["http/1.1"]);
    let call = || -> io::Result<bool> {
        let mut client = TlsClient::connect_with(address, &config)?;
        assert_eq!(client.get("/")?.status(), 200);
        Ok(client.is_resumed())
    };
    assert!(!call().unwrap());
    assert!(call().unwrap(), "sessions can be resumed");
    inbound
        .proxy
        .await_metric("tulle_tls_resumptions_total", &[], 1.0);

    // The authority of the client's certificate is no longer trusted.
    let new = TestCa::new("next root");
    inbound.proxy.reloads(|| {
        let issued = new.issue(&id(SERVER));
        inbound.mesh.install(SERVER, &issued, new.pem());
    });
    assert!(call().is_err());
    assert!(call().is_err());
    let labels = ["reason=\"unknown_issuer\""];
    let failed = "tulle_tls_handshakes_failed_total";
    inbound.proxy.await_metric(failed, &labels, 2.0);
}

#[test]
fn a_resumed_session_is_judged_by_the_policy_of_now() {
    let inbound = Inbound::start(|c| c);
    let good = inbound.mesh.ca.issue(&id(CLIENT));
    let config = client_config(Some(&good), TLS13, &["http/1.1"]);
    let status = || {
        let client = TlsClient::connect_with(inbound.config.address, &config);
        let mut client = client.unwrap_or_else(|e| panic!("{e}"));
        let status = client.get("/").map(|r| r.status()).unwrap_or_default();
        (client.is_resumed(), status)
    };
    assert_eq!(status(), (false, 200));
    let mut file = inbound.proxy.config.clone();
    file["inbound"]["policy"] = json!({ "rules": [] });
    inbound.proxy.reload(&file);
    assert_eq!(status(), (true, 403));
}

#[test]
fn a_certificate_that_runs_out_takes_its_connection_and_session_with_it() {
    let inbound = Inbound::start(|c| c);
    let short = Leaf {
        not_after: SystemTime::now() + Duration::from_secs(8),
        ..Leaf::new(&id(CLIENT))
    };
    let short = inbound.mesh.ca.issue_leaf(&short);
    let config = client_config(Some(&short), TLS13, &["http/1.1"]);
    let connect = || TlsClient::connect_with(inbound.config.address, &config);
    let mut client = connect().unwrap();
    assert_eq!(client.get("/").unwrap().status(), 200);
    eventually("the connection ends", || match client.get("/") {
        Ok(response) => response.header("connection") == "close",
        Err(_) => true,
    });
    // A certificate is valid until the end of its last second.
    eventually("no new connection is made", || {
        connect().and_then(|mut client| client.get("/")).is_err()
    });
    let labels = ["reason=\"expired\""];
    let failed = "tulle_tls_handshakes_failed_total";
    inbound.proxy.await_metric(failed, &labels, 1.0);
}

// ---- towards the client's sidecar

/// A client's sidecar whose endpoint presents `certificate`.
struct Outbound {
    impostor: TlsServer,
    proxy: Proxy,
    response: Message,
}

impl Outbound {
    fn call(mesh: &Mesh, certificate: &Issued, alpn: &[&str]) -> Self {
        let impostor = TlsServer::http(certificate, alpn, |_| ok(b"trust me"));
        let config = outbound_config(impostor.address());
        let proxy = Proxy::start(mesh, CLIENT, config.file);
        let mut client = Client::connect(config.address);
        client.send(post("/pay", b"card number"));
        let response = client.response("POST");
        Self {
            impostor,
            proxy,
            response,
        }
    }

    fn assert_refused(&self, what: &str, code: &str) {
        let response = &self.response;
        assert_eq!(response.status(), 502, "{what}: {}", response.text());
        assert_eq!(response.header("x-tulle-reason"), "tls_failed", "{what}");
        assert!(
            response.text().contains(&format!(" {code}: ")),
            "{what}: {}",
            response.text()
        );
        let error = self.proxy.await_error("tls_failed");
        assert!(
            error["detail"].to_string().contains(code),
            "{what}: {error}"
        );
        let label = format!("reason=\"{code}\"");
        self.proxy
            .await_metric("tulle_tls_handshakes_failed_total", &[&label], 1.0);
        let labels = ["response_flags=\"tls_failed\"", "response_code=\"502\""];
        self.proxy
            .await_metric("istio_requests_total", &labels, 1.0);
        eventually(&format!("{what}: the impostor sees the end"), || {
            self.impostor.connections() + self.impostor.refused() > 0
        });
        assert_eq!(self.impostor.received(), "", "{what}");
    }
}

#[test]
fn a_client_sends_nothing_to_a_server_that_is_no_workload() {
    let mesh = Mesh::new();
    let mut cases = never_accepted(&mesh.ca, SERVER);
    let client_only = Leaf {
        server_auth: false,
        ..Leaf::new(&id(SERVER))
    };
    let client_only = mesh.ca.issue_leaf(&client_only);
    cases.push(("no serverAuth", client_only, "bad_usage"));
    for (what, certificate, code) in cases {
        Outbound::call(&mesh, &certificate, &["tulle/1", "http/1.1"]).assert_refused(what, code);
    }
}

#[test]
fn a_client_sends_nothing_to_another_service() {
    let mesh = Mesh::new();
    for who in lookalikes(SERVER) {
        let call = Outbound::call(&mesh, &mesh.ca.issue(&who), &["http/1.1"]);
        call.assert_refused(&who, "wrong_identity");
        // The failure names the identity found and the identity expected.
        let text = call.response.text();
        assert!(text.contains(&who) && text.contains(&id(SERVER)), "{text}");
    }
}

#[test]
fn a_client_sends_its_request_to_the_right_server() {
    let mesh = Mesh::new();
    let call = Outbound::call(&mesh, &mesh.ca.issue(&id(SERVER)), &["http/1.1"]);
    assert_eq!(
        (call.response.status(), call.response.text().as_str()),
        (200, "trust me")
    );
    assert!(call.impostor.received().ends_with("card number"));
}

#[test]
fn a_client_never_falls_back_to_plaintext() {
    let (mesh, app) = (Mesh::new(), Server::echo());
    let config = outbound_config(app.address());
    let proxy = Proxy::start(&mesh, CLIENT, config.file);
    let mut client = Client::connect(config.address);
    client.send(post("/pay", b"card number"));
    let response = client.response("POST");
    assert_eq!(
        (response.status(), response.header("x-tulle-reason")),
        (502, "tls_failed")
    );
    proxy.await_error("tls_failed");
    // The server received a ClientHello and nothing of the request.
    assert!(!app.received_text().contains("pay"));
    assert!(!app.received_text().contains("card number"));
}

#[test]
fn a_good_endpoint_is_found_beside_an_impostor() {
    let mesh = Mesh::new();
    let impostor = TlsServer::http(&mesh.ca.issue(&id("other")), &["http/1.1"], |_| ok(b"no"));
    let right = TlsServer::http(&mesh.ca.issue(&id(SERVER)), &["http/1.1"], |_| ok(b"yes"));
    let endpoints = json!([
        { "address": impostor.address().to_string() },
        { "address": right.address().to_string() },
    ]);
    let config = outbound_config(right.address()).set("/services/0/ports/0/endpoints", endpoints);
    let _proxy = Proxy::start(&mesh, CLIENT, config.file);
    let mut client = Client::connect(config.address);
    for _ in 0..10 {
        assert_eq!(client.get("/").text(), "yes");
    }
    assert_eq!(impostor.received(), "");
}

#[test]
fn a_proxy_does_not_start_with_a_certificate_that_is_not_its_own() {
    let mesh = Mesh::new();
    let app = Server::echo();
    for (what, leaf) in [
        ("another service", Leaf::new(&id("other"))),
        (
            "no id",
            Leaf {
                uris: Vec::new(),
                ..Leaf::new(&id(SERVER))
            },
        ),
    ] {
        let directory = mesh.certificate_as(SERVER, &leaf, &mesh.ca);
        let mut config = inbound_config(app.address());
        config = config
            .set("/identity", id(SERVER))
            .set(
                "/certificates",
                json!({
                    "certificate": directory.join("cert.pem"),
                    "key": directory.join("key.pem"),
                    "trustBundle": directory.join("ca.pem"),
                }),
            )
            .set("/admin", format!("127.0.0.1:{}", tests_local::free_port()))
            .set(
                "/metrics",
                format!("127.0.0.1:{}", tests_local::free_port()),
            );
        let file = mesh.path().join("wrong.yaml");
        std::fs::write(&file, format!("{:#}", config.file)).unwrap();
        let output = std::process::Command::new(tests_local::proxy_binary())
            .arg("--config")
            .arg(&file)
            .output()
            .unwrap();
        assert!(!output.status.success(), "{what}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("cert.pem"), "{what}: {text}");
    }
}
