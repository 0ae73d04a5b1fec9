//! A gateway that ends TLS, for real clients: curl and OpenSSL.

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};
use tests_local::{
    Client, Config, Mesh, Proxy, SERVER, Server, TLS12, TLS13, TlsClient, eventually,
    gateway_config, inbound_config, ok, pattern,
};
use tulle_tls::testing::{Issued, Leaf, TestCa};

/// An authority of the web, a gateway in front of a sidecar in front of an application.
struct Edge {
    web: TestCa,
    mesh: Mesh,
    gateway: Proxy,
    _sidecar: Option<Proxy>,
    address: SocketAddr,
}

fn web_leaf(names: &[&str]) -> Leaf {
    Leaf {
        uris: vec![],
        dns: names.iter().map(|n| (*n).to_owned()).collect(),
        client_auth: false,
        ..Leaf::new("spiffe://none/none")
    }
}

fn certificate(issued: &Issued) -> Value {
    json!({ "chain": issued.chain_pem, "key": issued.key_pem })
}

fn listener(name: &str, hostname: &str, tls: Value) -> Value {
    json!({ "name": name, "port": 80, "hostname": hostname, "protocol": "https", "tls": tls })
}

impl Edge {
    fn start(app: &Server, listeners: impl FnOnce(&TestCa) -> Value) -> Self {
        Self::with(app, |web, config| {
            config.set("/gateways/0/listeners", listeners(web))
        })
    }

    fn with(app: &Server, change: impl FnOnce(&TestCa, Config) -> Config) -> Self {
        let (mesh, web) = (Mesh::new(), TestCa::new("web root"));
        let inbound = inbound_config(app.address());
        let config = gateway_config(inbound.address);
        let config = config.set("/services/0/ports/0/endpoints/0/mutualTls", true);
        let config = change(&web, config);
        std::fs::write(mesh.path().join("web.pem"), web.pem()).unwrap();
        Self {
            _sidecar: Some(Proxy::start(&mesh, SERVER, inbound.file)),
            gateway: Proxy::start(&mesh, "edge", config.file),
            address: config.address,
            mesh,
            web,
        }
    }

    /// One certificate for `shop.example`.
    fn usual(app: &Server) -> Self {
        Self::start(app, |web| {
            let issued = web.issue_leaf(&web_leaf(&["shop.example"]));
            json!([listener(
                "shop",
                "",
                json!({ "certificates": [certificate(&issued)] })
            )])
        })
    }

    fn root(&self) -> PathBuf {
        self.mesh.path().join("web.pem")
    }

    fn curl(&self, host: &str, path: &str, more: &[&str]) -> Output {
        let port = self.address.port();
        Command::new("curl")
            .args(["-sS", "-i", "--max-time", "20", "--cacert"])
            .arg(self.root())
            .args(["--connect-to", &format!("::127.0.0.1:{port}")])
            .args(match more.contains(&"--http2") {
                true => &[][..],
                false => &["--http1.1"],
            })
            .args(more)
            .arg(format!("https://{host}{path}"))
            .output()
            .unwrap()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.mesh.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn text(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    format!("{out}{}", String::from_utf8_lossy(&output.stderr))
}

fn status(output: &Output) -> u16 {
    let out = String::from_utf8_lossy(&output.stdout);
    out.split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or_default()
}

fn openssl(args: &[&str], directory: &Path) {
    let output = Command::new("openssl")
        .args(args)
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn the_access_log_has_the_server_name() {
    let app = Server::echo();
    let edge = Edge::with(&app, |web, config| {
        let issued = web.issue_leaf(&web_leaf(&["shop.example"]));
        let tls = json!({ "certificates": [certificate(&issued)] });
        let config = config.set("/gateways/0/listeners", json!([listener("shop", "", tls)]));
        config.set("/mesh/accessLog", true)
    });
    assert_eq!(status(&edge.curl("shop.example", "/a", &[])), 200);
    eventually("a line in the access log", || {
        !edge.gateway.access_log().is_empty()
    });
    let line = edge.gateway.access_log().remove(0);
    assert_eq!(line["requested_server_name"], "shop.example");
}

#[test]
fn curl_is_served_and_the_application_learns_how_the_client_came() {
    let app = Server::echo();
    let edge = Edge::usual(&app);
    let more = [
        "-H",
        "X-Forwarded-Proto: gopher",
        "-H",
        "X-Forwarded-Host: evil",
        "-H",
        "X-Forwarded-Client-Cert: URI=spiffe://evil",
    ];
    let answer = edge.curl("shop.example", "/a", &more);
    assert_eq!(status(&answer), 200, "{}", text(&answer));
    let seen = app.received_text().to_ascii_lowercase();
    assert!(seen.contains("x-forwarded-proto: https\r\n"), "{seen}");
    assert!(
        seen.contains("x-forwarded-host: shop.example\r\n"),
        "{seen}"
    );
    assert!(seen.contains("x-forwarded-for: 127.0.0.1\r\n"), "{seen}");
    for forged in ["gopher", "evil"] {
        assert!(!seen.contains(forged), "{seen}");
    }
    edge.gateway
        .await_metric("tulle_tls_handshakes_total", &[], 1.0);
    let body = pattern(3_000_000);
    let file = edge.mesh.path().join("body");
    std::fs::write(&file, &body).unwrap();
    let data = format!("@{}", file.display());
    let answer = edge.curl("shop.example", "/big", &["--data-binary", &data]);
    assert_eq!(status(&answer), 200);
    assert!(answer.stdout.ends_with(&body), "a large body both ways");
}

#[test]
fn a_cookie_for_who_came_by_tls_is_for_tls_only() {
    let app = Server::echo();
    let edge = Edge::with(&app, |web, config| {
        let issued = web.issue_leaf(&web_leaf(&["shop.example"]));
        let tls = json!({ "certificates": [certificate(&issued)] });
        let affinity = json!({ "affinity": { "name": "server" } });
        config
            .set("/gateways/0/listeners", json!([listener("shop", "", tls)]))
            .set("/services/0/ports/0/traffic", affinity)
    });
    let answer = text(&edge.curl("shop.example", "/", &[])).to_ascii_lowercase();
    assert!(answer.contains("set-cookie: server="), "{answer}");
    assert!(
        answer.contains("; httponly; samesite=lax; secure\r\n"),
        "{answer}"
    );
}

#[test]
fn both_versions_of_tls_and_sessions_that_go_on() {
    let app = Server::http(|_| ok(b"ok"));
    let edge = Edge::usual(&app);
    for version in ["-tls1_2", "-tls1_3"] {
        let sessions = edge.write("session", "");
        for (turn, option) in ["-sess_out", "-sess_in"].into_iter().enumerate() {
            let mut child = Command::new("openssl")
                .args(["s_client", "-quiet", version, "-servername", "shop.example"])
                .args([
                    "-CAfile",
                    edge.root().to_str().unwrap(),
                    "-verify_return_error",
                ])
                .args(["-verify_hostname", "shop.example", option, &sessions])
                .args(["-connect", &edge.address.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            use std::io::Write;
            let request = "GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n";
            let mut stdin = child.stdin.take().unwrap();
            stdin.write_all(request.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            assert_eq!(status(&output), 200, "{version} {turn}: {}", text(&output));
        }
    }
    edge.gateway
        .await_metric("tulle_tls_resumptions_total", &[], 2.0);
}

#[test]
fn certificates_by_server_name_and_hosts_of_their_listener_only() {
    let app = Server::http(|_| ok(b"ok"));
    let edge = Edge::start(&app, |web| {
        let tls = |names: &[&str]| {
            let issued = web.issue_leaf(&web_leaf(names));
            json!({ "certificates": [certificate(&issued)] })
        };
        json!([
            listener("wild", "*.example.com", tls(&["*.example.com"])),
            listener("shop", "shop.example.com", tls(&["shop.example.com"])),
            listener("other", "other.test", tls(&["wrong.test", "other.test"])),
        ])
    });
    for host in ["shop.example.com", "a.example.com", "OTHER.test"] {
        let answer = edge.curl(host, "/", &[]);
        assert_eq!(status(&answer), 200, "{host}: {}", text(&answer));
    }
    // Each name gets the certificate of the closest listener: with that of the wildcard the host
    // itself would fit, too.
    let config = tests_local::client_config(None, TLS13, &["http/1.1"]);
    let names: Vec<_> = ["shop.example.com", "b.example.com"]
        .iter()
        .map(|host| {
            let client = TlsClient::connect_to(edge.address, &config, host).unwrap();
            client.peer_certificates()[0].clone()
        })
        .collect();
    assert_ne!(names[0], names[1]);
    // A host of another listener is refused, so that what that one asks for is not passed by.
    for host in ["a.example.com", "other.test", "nowhere.test"] {
        let header = format!("Host: {host}");
        let answer = edge.curl("shop.example.com", "/", &["-H", &header]);
        assert_eq!(status(&answer), 421, "{host}: {}", text(&answer));
        assert!(text(&answer).contains("x-tulle-reason: misdirected"));
    }
    assert_eq!(app.received().concat().len(), app.received_text().len());
    assert!(!app.received_text().contains("nowhere"));
    let answer = edge.curl("unknown.test", "/", &[]);
    assert!(!answer.status.success());
    assert!(
        text(&answer).contains("unrecognized name"),
        "{}",
        text(&answer)
    );
    edge.gateway.await_metric(
        "tulle_tls_handshakes_failed_total",
        &["unrecognized_name"],
        1.0,
    );
    let error = edge.gateway.await_error("tls_failed");
    assert!(error["detail"].as_str().unwrap().contains("unknown.test"));
}

#[test]
fn keys_of_every_usual_form() {
    let app = Server::http(|_| ok(b"ok"));
    let edge = Edge::usual(&app);
    let directory = edge.mesh.path();
    let self_signed = |key: &str, out: &str| {
        let san = "subjectAltName=DNS:shop.example";
        let args = [
            "req", "-x509", "-key", key, "-out", out, "-days", "2", "-subj", "/CN=x",
        ];
        openssl(&[&args[..], &["-addext", san]].concat(), directory);
    };
    let forms: [(&str, &[&str], &str); 3] = [
        (
            "PKCS #1",
            &["genrsa", "-traditional", "-out", "k", "2048"],
            "BEGIN RSA PRIVATE KEY",
        ),
        (
            "PKCS #8",
            &["genpkey", "-algorithm", "ed25519", "-out", "k"],
            "BEGIN PRIVATE KEY",
        ),
        (
            "SEC1",
            &[
                "ecparam",
                "-genkey",
                "-noout",
                "-name",
                "secp384r1",
                "-out",
                "k",
            ],
            "BEGIN EC PRIVATE KEY",
        ),
    ];
    for (what, make, begins) in forms {
        openssl(make, directory);
        self_signed("k", "c");
        let key = std::fs::read_to_string(directory.join("k")).unwrap();
        assert!(key.contains(begins), "{what}");
        let chain = std::fs::read_to_string(directory.join("c")).unwrap();
        let mut config = edge.gateway.config.clone();
        config["gateways"][0]["listeners"][0]["tls"]["certificates"] =
            json!([{ "chain": chain, "key": key }]);
        edge.gateway.reload(&config);
        std::fs::write(edge.root(), chain).unwrap();
        let answer = edge.curl("shop.example", "/", &[]);
        assert_eq!(status(&answer), 200, "{what}: {}", text(&answer));
    }
}

#[test]
fn clients_that_must_show_a_certificate() {
    let app = Server::echo();
    let clients = TestCa::new("client root");
    let edge = Edge::with(&app, |web, config| {
        let issued = web.issue_leaf(&web_leaf(&["a.test", "b.test"]));
        let tls = |optional: bool| {
            json!({
                "certificates": [certificate(&issued)],
                "clientRoots": clients.pem(),
                "clientOptional": optional,
            })
        };
        let listeners = json!([
            listener("required", "a.test", tls(false)),
            listener("optional", "b.test", tls(true)),
        ]);
        // Straight to the application: a sidecar would tell it who the gateway is instead.
        config
            .set("/gateways/0/listeners", listeners)
            .set("/services/0/ports/0/endpoints/0/mutualTls", false)
            .set(
                "/services/0/ports/0/endpoints/0/address",
                app.address().to_string(),
            )
    });
    let write = |name: &str, issued: &Issued| {
        let path = edge.write(&format!("{name}.pem"), &issued.chain_pem);
        let key = edge.write(&format!("{name}.key"), &issued.key_pem);
        [String::from("--cert"), path, String::from("--key"), key]
    };
    let leaf = Leaf {
        server_auth: false,
        ..Leaf::new("urn:customer:7;By=evil")
    };
    let good = write("good", &clients.issue_leaf(&leaf));
    let stranger = write("stranger", &TestCa::new("another").issue_leaf(&leaf));
    let past = SystemTime::now() - Duration::from_secs(60);
    let expired = Leaf {
        not_after: past,
        ..leaf.clone()
    };
    let expired = write("expired", &clients.issue_leaf(&expired));
    let ask = |host: &str, certificate: &[String]| {
        let mut more: Vec<&str> = certificate.iter().map(String::as_str).collect();
        more.extend(["-H", "x-forwarded-client-cert: URI=urn:forged"]);
        let answer = edge.curl(host, "/", &more);
        (status(&answer), text(&answer).to_ascii_lowercase())
    };
    for host in ["a.test", "b.test"] {
        let (status, seen) = ask(host, &good);
        assert_eq!(status, 200, "{host}: {seen}");
        assert!(seen.contains("x-forwarded-client-cert: hash="), "{seen}");
        assert!(seen.contains("subject=\"cn=workload\""), "{seen}");
        assert!(seen.contains("uri=\"urn:customer:7;by=evil\""), "{seen}");
        assert!(!seen.contains("forged"), "{seen}");
    }
    for (what, certificate) in [
        ("stranger", &stranger[..]),
        ("expired", &expired),
        ("none", &[]),
    ] {
        let (status, seen) = ask("a.test", certificate);
        assert_eq!(status, 0, "{what} is refused: {seen}");
        let (status, seen) = ask("b.test", certificate);
        assert_eq!(status, 200, "{what} is let in where it is optional: {seen}");
        assert!(!seen.contains("forwarded-client-cert"), "{what}: {seen}");
    }
    // A listener that asks for none is no way to the hosts of one that does.
    let answer = edge.curl("b.test", "/", &["-H", "Host: a.test"]);
    assert_eq!(status(&answer), 421, "{}", text(&answer));
    for code in ["no_certificate", "unknown_issuer", "expired"] {
        edge.gateway
            .await_metric("tulle_tls_handshakes_failed_total", &[code], 1.0);
    }
}

#[test]
fn clients_on_a_revocation_list_are_refused() {
    let app = Server::echo();
    let clients = TestCa::new("client root");
    let leaf = Leaf {
        server_auth: false,
        ..Leaf::new("urn:customer:7")
    };
    let (good, revoked) = (clients.issue_leaf(&leaf), clients.issue_leaf(&leaf));
    let edge = Edge::with(&app, |web, config| {
        let issued = web.issue_leaf(&web_leaf(&["a.test"]));
        let tls = json!({
            "certificates": [certificate(&issued)],
            "clientRoots": clients.pem(),
        });
        config.set(
            "/gateways/0/listeners",
            json!([listener("a", "a.test", tls)]),
        )
    });
    let sessions = edge.write("session", "");
    let shows = |issued: &Issued, session: &str| {
        let chain = edge.write("client.pem", &issued.chain_pem);
        let key = edge.write("client.key", &issued.key_pem);
        let mut child = Command::new("openssl")
            .args(["s_client", "-quiet", "-tls1_2", "-servername", "a.test"])
            .args(["-cert", &chain, "-key", &key, session, &sessions])
            .args(["-connect", &edge.address.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        use std::io::Write;
        let request = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
        // One that is refused at once may have gone.
        let _ = child.stdin.take().unwrap().write_all(request.as_bytes());
        status(&child.wait_with_output().unwrap())
    };
    let listed = |list: &str| {
        let mut file = edge.gateway.config.clone();
        let roots = format!("{}{list}", clients.pem());
        file["gateways"][0]["listeners"][0]["tls"]["clientRoots"] = roots.into();
        edge.gateway.reload(&file);
    };
    assert_eq!(shows(&good, "-sess_out"), 200);
    assert_eq!(shows(&revoked, "-sess_out"), 200);

    let hour = Duration::from_secs(3600);
    listed(&clients.revocation_list_until(&[&revoked.chain[0]], SystemTime::now() + hour));
    assert_eq!(shows(&revoked, "-sess_in"), 0, "a session brings it, too");
    assert_eq!(shows(&revoked, "-sess_out"), 0);
    assert_eq!(shows(&good, "-sess_out"), 200);
    edge.gateway
        .await_metric("tulle_tls_handshakes_failed_total", &["revoked"], 2.0);

    // A list of another authority says nothing of this one's certificates.
    let another = TestCa::new("another").revocation_list_until(&[], SystemTime::now() + hour);
    listed(&another);
    assert_eq!(shows(&revoked, "-sess_out"), 200);

    // One that is out of date cannot say who is not on it.
    listed(&clients.revocation_list_until(&[], SystemTime::now() - Duration::from_secs(60)));
    assert_eq!(shows(&good, "-sess_out"), 0);
    eventually("the cause is told", || {
        let mut errors = edge.gateway.errors().into_iter();
        errors.any(|e| {
            let detail = e["detail"].to_string().to_lowercase().replace(' ', "");
            detail.contains("revocationlist")
        })
    });
}

/// A policy and a listener hold for a host in whatever form its name comes.
#[test]
fn a_host_cannot_be_written_so_that_its_policy_is_missed() {
    let app = Server::http(|_| ok(b"ok"));
    let edge = Edge::start(&app, |web| {
        let issued = web.issue_leaf(&web_leaf(&["*.example.com"]));
        let tls = json!({ "certificates": [certificate(&issued)] });
        let mut admin = listener("admin", "admin.example.com", tls.clone());
        admin["policy"] = json!({ "rules": [] });
        let mut other = listener("wild", "*.example.com", tls);
        // The content of the request counts, too.
        other["policy"] = json!({ "rules": [
            { "name": "all", "networks": ["0.0.0.0/0"] },
            { "name": "no-internal", "action": "deny", "networks": ["0.0.0.0/0"],
              "matches": [{ "hosts": ["internal.example.com"] }] },
        ] });
        json!([admin, other])
    });
    let ask = |server_name: &str, host: &str| {
        let mut child = Command::new("openssl")
            .args(["s_client", "-quiet", "-servername", server_name])
            .args(["-connect", &edge.address.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        use std::io::Write;
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let _ = child.stdin.take().unwrap().write_all(request.as_bytes());
        status(&child.wait_with_output().unwrap())
    };
    assert_eq!(ask("a.example.com", "a.example.com"), 200);
    for form in [
        "admin.example.com",
        "admin.example.com.",
        "Admin.EXAMPLE.com",
        "ADMIN.example.com.",
    ] {
        for host in [form.to_owned(), format!("{form}:443")] {
            assert_eq!(ask(form, &host), 403, "{form} {host}");
            assert_eq!(ask("admin.example.com", &host), 403, "{host}");
            assert_eq!(ask("a.example.com", &host), 421, "{host}");
        }
        let internal = form.to_lowercase().replace("admin", "Internal");
        assert_eq!(ask("a.example.com.", &internal), 403, "{internal}");
    }
    assert_eq!(ask("b.Example.com.", "B.example.com."), 200);
    assert_eq!(app.received_text().matches("GET ").count(), 2);
}

#[test]
fn new_certificates_without_a_lost_connection_and_bad_ones_refused() {
    let app = Server::http(|_| ok(b"ok"));
    let edge = Edge::usual(&app);
    let config = tests_local::client_config(None, TLS12, &["http/1.1"]);
    let mut client = TlsClient::connect_to(edge.address, &config, "shop.example").unwrap();
    assert_eq!(client.get("/").unwrap().status(), 200);
    let first = client.peer_certificates()[0].clone();

    let renewed = edge.web.issue_leaf(&web_leaf(&["shop.example"]));
    let mut file = edge.gateway.config.clone();
    file["gateways"][0]["listeners"][0]["tls"]["certificates"] = json!([certificate(&renewed)]);
    edge.gateway.reload(&file);
    assert_eq!(client.get("/").unwrap().status(), 200, "it goes on");
    let next = TlsClient::connect_to(edge.address, &config, "shop.example").unwrap();
    assert_ne!(next.peer_certificates()[0], first);

    // A key that does not fit is refused and named. The listener goes on with the certificate it had,
    // another one that came with it is served, and one that has no other certificate takes nobody.
    let other = edge.web.issue_leaf(&web_leaf(&["other.example"]));
    let good = json!({ "certificates": [certificate(&other)] });
    let unfit = json!({ "certificates": [{ "chain": renewed.chain_pem, "key": other.key_pem }] });
    let mut bad = file.clone();
    bad["gateways"][0]["listeners"] = json!([
        listener("shop", "", unfit.clone()),
        listener("other", "other.example", good),
        listener("new", "new.example", unfit),
    ]);
    edge.gateway.write_config(&bad);
    eventually("it is refused", || {
        edge.gateway
            .metric("tulle_config_refused", &["what=\"configuration\""])
            > 0.0
    });
    let shown = edge.gateway.admin("/config").text();
    assert!(
        shown.contains("listener shop: the key of certificate 1"),
        "{shown}"
    );
    for host in ["shop.example", "other.example"] {
        let answer = edge.curl(host, "/", &[]);
        assert_eq!(status(&answer), 200, "{}", text(&answer));
    }
    let answer = edge.curl("new.example", "/", &["-k"]);
    assert!(!answer.status.success(), "{}", text(&answer));
    let error = edge.gateway.await_error("tls_failed");
    let detail = error["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("certificate: listener new: "),
        "{detail}"
    );
    // No key is shown anywhere.
    let secret = renewed.key_pem.lines().nth(1).unwrap();
    for page in ["/config", "/certificates", "/errors", "/metrics"] {
        let page = edge.gateway.admin(page).text();
        assert!(
            !page.contains(secret) && !page.contains("PRIVATE"),
            "{page}"
        );
    }
    assert!(!edge.gateway.log().contains("PRIVATE"));
}

/// A gateway that starts again serves from what the controller said last.
#[test]
fn one_bad_certificate_in_the_snapshot_leaves_the_other_listeners() {
    let (mesh, web) = (Mesh::new(), TestCa::new("web root"));
    let issued = |name: &str| web.issue_leaf(&web_leaf(&[name]));
    let (good, bad) = (issued("good.example"), issued("bad.example"));
    let unfit = json!({ "chain": bad.chain_pem, "key": good.key_pem });
    let gateway = json!({ "name": "edge", "listeners": [
        listener("good", "good.example", json!({ "certificates": [certificate(&good)] })),
        listener("bad", "bad.example", json!({ "certificates": [unfit] })),
    ] });
    let held = json!({
        "mesh": [1, { "mesh": {} }],
        "gateway/edge": [1, { "gateway": gateway }],
    });
    let snapshot = mesh.path().join("snapshot");
    let saved = json!({ "held": held, "unowned": [] });
    std::fs::write(&snapshot, saved.to_string()).unwrap();
    std::fs::write(mesh.path().join("web.pem"), web.pem()).unwrap();
    let config = gateway_config("127.0.0.1:1".parse().unwrap());
    let file = json!({
        "listeners": config.file["listeners"],
        "control": {
            // Nobody is there.
            "address": "127.0.0.1:1",
            "caFingerprint": "0".repeat(64),
            "joinTokenFile": mesh.path().join("token"),
            "snapshot": snapshot,
        },
    });
    let edge = Edge {
        gateway: Proxy::start_unready(&mesh, "edge", file),
        _sidecar: None,
        address: config.address,
        mesh,
        web,
    };
    // No route says where to, but TLS has ended here.
    let answer = edge.curl("good.example", "/", &[]);
    assert_eq!(status(&answer), 404, "{}", text(&answer));
    let answer = edge.curl("bad.example", "/", &["-k"]);
    assert!(!answer.status.success(), "{}", text(&answer));
    let shown = edge.gateway.admin("/config").text();
    let fault = "Gateway/edge: listener bad: the key of certificate 1";
    assert!(shown.contains(fault), "{shown}");
}

#[test]
fn an_expired_certificate_is_told() {
    let app = Server::http(|_| ok(b"ok"));
    let past = SystemTime::now() - Duration::from_secs(60);
    let edge = Edge::start(&app, |web| {
        let leaf = Leaf {
            not_after: past,
            ..web_leaf(&["shop.example"])
        };
        let issued = web.issue_leaf(&leaf);
        json!([listener(
            "shop",
            "",
            json!({ "certificates": [certificate(&issued)] })
        )])
    });
    assert!(
        edge.gateway.log().contains("has expired"),
        "{}",
        edge.gateway.log()
    );
    let name = "tulle_gateway_certificate_not_after_seconds";
    let until = edge
        .gateway
        .metric(name, &["gateway=\"edge\"", "listener=\"shop\""]);
    let past = past.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert!((until - past.as_secs_f64()).abs() < 2.0, "{until}");
    // Clients decide for themselves.
    assert!(!edge.curl("shop.example", "/", &[]).status.success());
    assert_eq!(status(&edge.curl("shop.example", "/", &["-k"])), 200);
}

#[test]
fn http_2_where_the_client_speaks_it() {
    let app = Server::echo();
    let edge = Edge::usual(&app);
    let body = pattern(500_000);
    let file = edge.mesh.path().join("body");
    std::fs::write(&file, &body).unwrap();
    let data = format!("@{}", file.display());
    let answer = edge.curl("shop.example", "/a", &["--http2", "--data-binary", &data]);
    assert!(
        answer.stdout.starts_with(b"HTTP/2 200"),
        "{}",
        text(&answer)
    );
    assert!(answer.stdout.ends_with(&body));
    let seen = app.received_text().to_ascii_lowercase();
    assert!(seen.contains("x-forwarded-proto: https\r\n"), "{seen}");
    // Each request is judged by itself here, too.
    let answer = edge.curl("shop.example", "/b", &["--http2"]);
    assert!(
        answer.stdout.starts_with(b"HTTP/2 200"),
        "{}",
        text(&answer)
    );
}

#[test]
fn what_is_no_tls_ends_at_once() {
    let app = Server::http(|_| ok(b"ok"));
    let edge = Edge::usual(&app);
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n"[..],
        b"\x16\x03\x01\x00\x05\x01\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
    ] {
        let mut client = Client::connect(edge.address);
        client.send(bytes);
        // It may have ended before that.
        let _ = client.stream().shutdown(std::net::Shutdown::Write);
        assert!(client.is_ended(), "{bytes:?}");
    }
    assert_eq!(app.connections(), 0);
    edge.gateway
        .await_metric("tulle_tls_handshakes_failed_total", &["not_tls"], 3.0);
    assert_eq!(status(&edge.curl("shop.example", "/", &[])), 200);
}

#[test]
fn a_hello_in_single_bytes_and_many_at_once() {
    let app = Server::http(|_| ok(b"ok"));
    let edge = Edge::usual(&app);
    // Clients that begin and stay there do not keep others from being served.
    let mut slow: Vec<_> = (0..50).map(|_| Client::connect(edge.address)).collect();
    for client in &mut slow {
        client.send(b"\x16\x03\x01\x02\x00\x01\x00");
    }
    assert_eq!(status(&edge.curl("shop.example", "/", &[])), 200);
    let config = tests_local::client_config(None, TLS13, &["http/1.1"]);
    let mut client = TlsClient::connect_dripping(edge.address, &config, "shop.example").unwrap();
    assert_eq!(client.get("/").unwrap().status(), 200);
}

#[test]
fn websocket_inside_tls() {
    let app = Server::start(|mut connection| {
        let Ok(_) = connection.request() else { return };
        connection.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
        );
        while let Ok(bytes) = connection.read_some() {
            if bytes.is_empty() || connection.try_send(&bytes).is_err() {
                return;
            }
        }
    });
    let edge = Edge::usual(&app);
    let config = tests_local::client_config(None, TLS13, &["http/1.1"]);
    let mut client = TlsClient::connect_to(edge.address, &config, "shop.example").unwrap();
    client
        .send(
            "GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
        )
        .unwrap();
    assert_eq!(client.response("GET").unwrap().status(), 101);
    let data = pattern(200_000);
    for part in data.chunks(50_000) {
        client.send(part).unwrap();
        assert_eq!(client.read_exact(part.len()).unwrap(), part);
    }
}
