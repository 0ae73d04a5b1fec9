//! Administration: what it shows, to whom, and that nothing sent to it does harm or brings a key
//! to light.

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use std::fs::Permissions;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, SystemTime};
use tests_local::{
    CLIENT, Client, Mesh, Message, Pair, Proxy, SERVER, Server, eventually, free_port, id,
    inbound_config, ok, one, proxy_binary,
};
use tulle_tls::testing::Leaf;

const PAGES: [&str; 6] = [
    "/ready",
    "/live",
    "/metrics",
    "/config",
    "/certificates",
    "/errors",
];

/// A pair whose server's sidecar has an admin socket.
fn pair(app: &Server) -> WithSocket {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("admin.sock");
    let pair = Pair::with(app.address(), |client, server| {
        (client, server.set("/adminSocket", socket.to_str()))
    });
    WithSocket {
        pair,
        _directory: directory,
    }
}

struct WithSocket {
    pair: Pair,
    _directory: tempfile::TempDir,
}

impl std::ops::Deref for WithSocket {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.pair
    }
}

fn admin_address(proxy: &Proxy) -> SocketAddr {
    let address = proxy.config["admin"].as_str().unwrap_or_default();
    address.parse().expect("the harness sets it")
}

fn json_of(message: &Message) -> Value {
    serde_json::from_str(&message.text()).unwrap_or_else(|e| panic!("{e}: {}", message.text()))
}

#[test]
fn the_pages_say_what_is_in_force() {
    let app = Server::echo();
    let pair = pair(&app);
    assert_eq!(pair.connect().get("/").status(), 200);
    let proxy = &pair.server;
    for page in PAGES {
        let (loopback, socket) = (proxy.admin(page), proxy.socket_request("GET", page));
        assert_eq!((loopback.status(), socket.status()), (200, 200), "{page}");
    }
    assert_eq!(proxy.admin("/ready").text(), "ready\n");
    assert_eq!(proxy.admin("/live").text(), "live\n");
    let config = json_of(&proxy.admin("/config"));
    assert_eq!(config["identity"], id(SERVER));
    assert_eq!(config["mesh"]["strictMtls"], true);
    assert_eq!(config["inbound"]["service"], SERVER);
    assert_eq!(
        config["inbound"]["ports"][0]["target"],
        app.address().to_string()
    );
    let config = json_of(&pair.client.admin("/config"));
    assert_eq!(
        config["services"][SERVER]["identities"],
        json!([id(SERVER)])
    );
    let endpoint = &config["services"][SERVER]["ports"][0]["endpoints"][0]["address"];
    assert_eq!(endpoint, &json!(pair.inbound.to_string()));
    assert_eq!(json_of(&proxy.admin("/errors")), json!([]));
}

#[test]
fn the_certificates_page_shows_the_public_part() {
    let app = Server::echo();
    let pair = pair(&app);
    let page = json_of(&pair.server.admin("/certificates"));
    let file = |name: &str| {
        let path = pair.mesh.path().join(SERVER).join(name);
        std::fs::read_to_string(path).unwrap().replace("\r\n", "\n")
    };
    assert_eq!(page["spiffe_id"], id(SERVER));
    let chain = page["chain"].as_str().unwrap().replace("\r\n", "\n");
    assert_eq!(chain.trim(), file("cert.pem").trim());
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    assert!(
        page["not_before"].as_u64().unwrap() < now && page["not_after"].as_u64().unwrap() > now
    );
    let roots = page["trust_bundle"].as_array().unwrap();
    assert_eq!(roots.len(), 1);
    assert_eq!(roots[0]["fingerprint"].as_str().unwrap().len(), 64);
    let metric = pair
        .server
        .metric("tulle_certificate_not_after_seconds", &[]);
    assert_eq!(metric, page["not_after"].as_f64().unwrap());
}

/// Texts that would betray a key, in any form in which it could have come out.
fn secrets(pem: &str) -> Vec<Vec<u8>> {
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("a key of the harness");
    let der = key.secret_der();
    // PKCS#8 of a P-256 key (RFC 5958, RFC 5915): the secret is an octet string of 32 bytes.
    let at = der.windows(2).position(|w| w == [4, 32]).expect("P-256") + 2;
    let scalar = &der[at..at + 32];
    let hex: String = scalar.iter().map(|b| format!("{b:02x}")).collect();
    let listed: Vec<_> = scalar.iter().map(u8::to_string).collect();
    let lines = pem.lines().filter(|l| !l.starts_with("-----"));
    let mut secrets: Vec<_> = lines.map(|l| l.trim().as_bytes().to_vec()).collect();
    secrets.extend([
        b"PRIVATE KEY".to_vec(),
        scalar.to_vec(),
        hex.to_uppercase().into_bytes(),
        hex.into_bytes(),
        listed.join(",").into_bytes(),
        listed.join(", ").into_bytes(),
    ]);
    secrets
}

#[test]
fn no_page_and_no_log_holds_a_private_key() {
    let app = Server::echo();
    let pair = pair(&app);
    // The most talkative a proxy can be.
    assert_eq!(
        pair.server
            .socket_request("POST", "/log-level?level=trace")
            .status(),
        200
    );
    assert_eq!(pair.connect().get("/").status(), 200);
    let files = |name: &str| {
        [CLIENT, SERVER]
            .map(|s| std::fs::read_to_string(pair.mesh.path().join(s).join(name)).unwrap())
    };
    let mut secrets: Vec<_> = files("key.pem")
        .iter()
        .flat_map(|pem| secrets(pem))
        .collect();
    // A new certificate, and a pair of files that do not belong together, at the same level.
    pair.server.reloads(|| {
        pair.mesh.certificate(SERVER);
    });
    let other = pair.mesh.ca.issue(&id(SERVER));
    let key_file = pair.mesh.path().join(SERVER).join("key.pem");
    secrets.extend(self::secrets(&std::fs::read_to_string(&key_file).unwrap()));
    secrets.extend(self::secrets(&other.key_pem));
    std::fs::write(&key_file, &other.key_pem).unwrap();
    pair.server
        .await_metric("tulle_config_refused", &["what=\"certificates\""], 1.0);

    let mut told: Vec<(String, Vec<u8>)> = Vec::new();
    for proxy in [&pair.client, &pair.server] {
        for page in PAGES {
            told.push((page.to_owned(), proxy.admin(page).body));
        }
        for path in proxy.log_files() {
            told.push((path.display().to_string(), std::fs::read(path).unwrap()));
        }
    }
    told.push((
        "/metrics".to_owned(),
        one(pair.server.metrics_address(), "/metrics").body,
    ));
    for (what, text) in &told {
        for secret in &secrets {
            let found = text.windows(secret.len()).any(|w| w == secret.as_slice());
            assert!(!found, "{what} holds a part of a key");
        }
    }
    // The search finds what is there.
    let certificate = pair.mesh.path().join(CLIENT).join("cert.pem");
    let certificate = std::fs::read_to_string(certificate).unwrap();
    let line = certificate.lines().nth(1).unwrap();
    assert!(
        told.iter()
            .any(|(_, text)| String::from_utf8_lossy(text).contains(line))
    );
}

#[test]
fn a_log_level_of_its_own_goes_before_the_meshs() {
    let mesh = Mesh::new();
    let program = mesh.path().join("debugging");
    let run = format!(
        "#!/bin/sh\nTULLE_LOG=debug exec {} \"$@\"\n",
        proxy_binary().display()
    );
    std::fs::write(&program, run).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
    // A refusal is a line of debugging.
    let app = Server::echo();
    let strict = inbound_config(app.address())
        .set("/inbound/policy/permissive", false)
        .set("/mesh/logLevel", "warn");
    let proxy = Proxy::start_binary(&program, &mesh, SERVER, strict.file.clone());
    let lines = || proxy.log().matches("\"level\":\"DEBUG\"").count();
    let refuse = |what: &str| {
        let before = lines();
        assert_eq!(Client::connect(strict.address).get("/").status(), 403);
        eventually(what, || lines() > before);
    };
    refuse("a line of debugging");
    let mut config = proxy.config.clone();
    config["mesh"]["logLevel"] = "error".into();
    proxy.reload(&config);
    refuse("and one after the mesh's level has changed");

    let run = std::process::Command::new(proxy_binary())
        .args(["--config", "/nonexistent"])
        .env("TULLE_LOG", "loud")
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(65));
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        said.contains("TULLE_LOG=loud: the level is one of error, warn"),
        "{said}"
    );
}

#[test]
fn the_log_level_changes_on_the_socket_and_nowhere_else() {
    let app = Server::echo();
    let pair = pair(&app);
    let proxy = &pair.server;
    let refuse = || {
        let before = proxy.errors().len();
        assert_eq!(Client::connect(pair.inbound).get("/").status(), 403);
        eventually("the refusal is known", || proxy.errors().len() > before);
    };
    let debug_lines = || proxy.log().matches("\"level\":\"DEBUG\"").count();
    let target = "/log-level?level=debug";
    refuse();
    assert_eq!(proxy.admin_request("POST", target).status(), 403);
    for page in [target, "/log-level"] {
        assert_eq!(one(proxy.metrics_address(), page).status(), 404);
    }
    refuse();
    assert_eq!(debug_lines(), 0);
    assert_eq!(proxy.socket_request("POST", target).status(), 200);
    refuse();
    eventually("a line of debugging", || debug_lines() > 0);
    assert!(proxy.log().contains("plaintext_refused"));
    assert_eq!(
        proxy
            .socket_request("POST", "/log-level?level=info")
            .status(),
        200
    );
    let lines = debug_lines();
    refuse();
    assert_eq!(debug_lines(), lines);
    for wrong in [
        "",
        "?level=",
        "?level=loud",
        "?level=off",
        "?level=5",
        "?levels=info",
    ] {
        let answer = proxy.socket_request("POST", &format!("/log-level{wrong}"));
        assert_eq!(answer.status(), 400, "{wrong}: {}", answer.text());
    }
    // The configuration's own level, when it changes, counts again.
    let mut config = proxy.config.clone();
    config["mesh"]["logLevel"] = "debug".into();
    proxy.reload(&config);
    refuse();
    eventually("a line of debugging", || debug_lines() > lines);
}

#[test]
fn unknown_paths_are_404_and_wrong_methods_405() {
    let app = Server::echo();
    let pair = pair(&app);
    let proxy = &pair.server;
    for path in [
        "/",
        "/nothing",
        "/config/",
        "/CONFIG",
        "/config/..",
        "/ready/x",
        "//ready",
        "/quitquitquit",
    ] {
        for method in ["GET", "POST", "DELETE"] {
            assert_eq!(
                proxy.admin_request(method, path).status(),
                404,
                "{method} {path}"
            );
            assert_eq!(
                proxy.socket_request(method, path).status(),
                404,
                "{method} {path}"
            );
        }
    }
    for path in PAGES {
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
            let answer = proxy.admin_request(method, path);
            assert_eq!(answer.status(), 405, "{method} {path}");
            assert_eq!(answer.header("allow"), "GET, HEAD");
            assert_eq!(
                proxy.socket_request(method, path).status(),
                405,
                "{method} {path}"
            );
        }
        let head = proxy.admin_request("HEAD", path);
        assert_eq!((head.status(), head.body.len()), (200, 0), "{path}");
    }
    for method in ["GET", "PUT", "DELETE"] {
        let answer = proxy.socket_request(method, "/log-level?level=debug");
        assert_eq!((answer.status(), answer.header("allow")), (405, "POST"));
    }
    // The metrics port may be open to others: it tells nothing else.
    let metrics = proxy.metrics_address();
    for path in PAGES
        .into_iter()
        .filter(|p| *p != "/metrics")
        .chain(["/", "/log-level"])
    {
        assert_eq!(one(metrics, path).status(), 404, "{path}");
    }
    let mut client = Client::connect(metrics);
    client.send("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.response("POST").status(), 405);
}

/// Tests that a web page whose name leads here reads nothing, and that who asks for metrics and health by a name is answered.
#[test]
fn the_loopback_port_answers_to_no_name_but_localhost() {
    let app = Server::echo();
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("admin.sock");
    let health = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let pair = Pair::with(app.address(), |client, server| {
        let server = server.set("/adminSocket", socket.to_str());
        (client, server.set("/health", health.to_string()))
    });
    let proxy = &pair.server;
    let at = admin_address(proxy);
    let head =
        |page: &str, host: &str| format!("GET {page} HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
    let ask = |address: SocketAddr, page: &str, host: &str| {
        let mut client = Client::connect(address);
        client.send(head(page, host));
        client.response("GET")
    };
    let port = at.port();
    for host in [
        format!("Host: {at}\r\n"),
        "Host: 127.0.0.1\r\n".to_owned(),
        format!("Host: localhost:{port}\r\n"),
        format!("Host: [::1]:{port}\r\n"),
    ] {
        assert_eq!(ask(at, "/config", &host).status(), 200, "{host}");
    }
    for host in [
        format!("Host: evil.example:{port}\r\n"),
        format!("Host: 127.0.0.1.evil.example:{port}\r\n"),
        format!("Host: {at}\r\nHost: evil.example\r\n"),
    ] {
        for page in PAGES
            .into_iter()
            .chain(["/outside", "/endpoints", "/tap", "/x"])
        {
            let answer = ask(at, page, &host);
            assert_eq!(answer.status(), 421, "{page} {host}: {}", answer.text());
        }
    }
    let named = "Host: web.example\r\n";
    let metrics = proxy.metrics_address();
    assert_eq!(ask(metrics, "/metrics", named).status(), 200);
    assert_eq!(ask(health, "/ready", named).status(), 200);
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(head("/config", named).as_bytes()).unwrap();
    let answer = tests_local::read_message(&mut BufReader::new(stream), Some("GET")).unwrap();
    assert_eq!(answer.status(), 200);
}

#[test]
fn the_metrics_page_is_well_formed() {
    let app = Server::echo();
    let pair = pair(&app);
    assert_eq!(pair.connect().get("/\"\\{}").status(), 200);
    let page = one(pair.server.metrics_address(), "/metrics");
    assert!(
        page.header("content-type")
            .starts_with("text/plain; version=0.0.4")
    );
    let text = page.text();
    let mut typed = std::collections::HashSet::new();
    let mut seen = std::collections::HashSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let name = rest.split(' ').next().unwrap();
            assert!(typed.insert(name.to_owned()), "two types of {name}");
        } else if !line.starts_with('#') {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(seen.insert(sample.to_owned()), "twice: {sample}");
            let name = sample.split('{').next().unwrap();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end).filter(|n| typed.contains(*n)))
                .unwrap_or(name);
            assert!(typed.contains(family), "no type: {line}");
        }
    }
    // No label comes from what a client sends.
    assert!(!text.contains("\\{}"), "{text}");
}

#[test]
fn administration_listens_on_loopback_only() {
    let mesh = Mesh::new();
    let check = |key: &str, address: &str| {
        let config = inbound_config((Ipv4Addr::LOCALHOST, 1).into())
            .set("/identity", id(SERVER))
            .set(
                "/certificates",
                json!({ "certificate": "a", "key": "b", "trustBundle": "c" }),
            )
            .set(key, address);
        let file = mesh.path().join("check.yaml");
        std::fs::write(&file, format!("{:#}", config.file)).unwrap();
        let output = std::process::Command::new(proxy_binary())
            .args(["--check", "--config"])
            .arg(&file)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), text)
    };
    for address in ["127.0.0.1:15000", "[::1]:15000", "127.1.2.3:15000"] {
        assert!(check("/admin", address).0, "{address}");
    }
    for address in [
        "0.0.0.0:15000",
        "[::]:15000",
        "192.0.2.1:15000",
        "[::ffff:192.0.2.1]:1",
    ] {
        let (good, text) = check("/admin", address);
        assert!(!good && text.contains("loopback"), "{address}: {text}");
    }
    assert!(check("/metrics", "0.0.0.0:15020").0);
}

#[test]
fn the_sockets_file_is_its_owners_alone_and_goes_with_the_proxy() {
    let app = Server::echo();
    let mesh = Mesh::new();
    let socket = mesh.path().join("admin.sock");
    let start = || {
        let config = inbound_config(app.address()).set("/adminSocket", socket.to_str());
        Proxy::start(&mesh, SERVER, config.file)
    };
    let proxy = start();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // One that was killed leaves its file, which is no obstacle.
    proxy.kill();
    assert!(socket.exists());
    let mut proxy = start();
    assert_eq!(proxy.socket_request("GET", "/ready").status(), 200);
    proxy.terminate();
    assert_eq!(proxy.wait().code(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn a_proxy_whose_certificate_has_expired_is_not_ready() {
    let app = Server::http(|_| ok(b"yes"));
    let mesh = Mesh::new();
    let config = inbound_config(app.address());
    let proxy = Proxy::start(&mesh, SERVER, config.file);
    let leaf = Leaf {
        not_after: SystemTime::now() + Duration::from_secs(3),
        ..Leaf::new(&id(SERVER))
    };
    mesh.certificate_as(SERVER, &leaf, &mesh.ca);
    eventually("it is not ready any more", || {
        proxy.admin("/ready").status() == 503
    });
    assert!(proxy.admin("/ready").text().contains("expired"));
    assert_eq!(
        proxy.admin("/live").status(),
        200,
        "a restart would not help"
    );
    mesh.certificate(SERVER);
    eventually("it is ready again", || {
        proxy.admin("/ready").status() == 200
    });
}

#[test]
fn what_is_sent_to_administration_does_no_harm() {
    let app = Server::echo();
    let pair = pair(&app);
    let proxy = &pair.server;
    let long = |line: &str| format!("{line} HTTP/1.1\r\nHost: localhost\r\n");
    let cases: Vec<Vec<u8>> = vec![
        b"\0\0\0\0\r\n\r\n".to_vec(),
        vec![0xff; 100_000],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        long(&format!("GET /{}", "a".repeat(1_000_000))).into_bytes(),
        format!("{}X: {}\r\n\r\n", long("GET /ready"), "y".repeat(2_000_000)).into_bytes(),
        format!("{}{}\r\n", long("GET /ready"), "X: y\r\n".repeat(100_000)).into_bytes(),
        format!(
            "{}Content-Length: 99999999999999999999\r\n\r\n",
            long("POST /log-level")
        )
        .into_bytes(),
        format!(
            "{}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
            long("POST /log-level")
        )
        .into_bytes(),
        format!(
            "{}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            long("POST /ready")
        )
        .into_bytes(),
        [
            long("POST /config").as_bytes(),
            b"Content-Length: 50000000\r\n\r\n",
            &[b'x'; 5_000_000],
        ]
        .concat(),
        long("GET /ready").repeat(2).into_bytes(),
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200),
    ];
    for address in [admin_address(proxy), proxy.metrics_address()] {
        for case in &cases {
            let mut client = Client::connect(address);
            // Refused half-way is fine.
            let _ = client.try_send(case);
            let _ = client.stream().shutdown(std::net::Shutdown::Write);
            let _ = client.read_to_end();
        }
        assert_eq!(one(proxy.metrics_address(), "/metrics").status(), 200);
        assert_eq!(proxy.admin("/ready").status(), 200);
    }
    assert_eq!(pair.connect().get("/").status(), 200);
    assert!(
        proxy.memory_peak() < 64 * 1024 * 1024,
        "{}",
        proxy.memory_peak()
    );
}

#[test]
fn clients_that_hold_administrations_places_lose_them() {
    let app = Server::echo();
    let pair = pair(&app);
    let proxy = &pair.server;
    let holders: Vec<_> = (0..100)
        .map(|number| {
            let mut client = Client::connect(admin_address(proxy));
            if number % 2 == 0 {
                client.send("GET /ready HT");
            }
            client
        })
        .collect();
    // Traffic, metrics and the socket have places of their own.
    assert_eq!(pair.connect().get("/").status(), 200);
    assert_eq!(one(proxy.metrics_address(), "/metrics").status(), 200);
    assert_eq!(proxy.socket_request("GET", "/ready").status(), 200);
    eventually("there is a place again", || {
        let ready = Client::try_connect(admin_address(proxy)).and_then(|mut client| {
            client.try_send("GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
            client.try_response("GET")
        });
        ready.is_ok_and(|response| response.status() == 200)
    });
    drop(holders);
}
