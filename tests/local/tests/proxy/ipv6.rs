//! IPv6 wherever an address is: between sidecars, to the application, at the gateway, in headers,
//! and a mesh that has no IPv4 at all.

use serde_json::{Value, json};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use tests_local::{
    CLIENT, Client, Config, Host, Mesh, Pair, Proxy, SERVER, Server, Yard, free_port,
    gateway_config, get, id, inbound_config, is_root, outbound_config, pattern, without_ipv6,
};

/// The port's address on `::1`.
fn local(port: u16) -> SocketAddr {
    (Ipv6Addr::LOCALHOST, port).into()
}

/// A configuration whose first listener is moved.
fn listening(mut config: Config, address: SocketAddr) -> Config {
    config.address = address;
    config.set("/listeners/0/address", address.to_string())
}

fn echo_at(address: SocketAddr) -> Server {
    Server::on(address, tests_local::Connection::echo)
}

fn http_at(address: SocketAddr) -> Server {
    Server::on(address, |mut connection| {
        while let Ok(request) = connection.request() {
            let answer = tests_local::ok(request.head.as_bytes());
            if connection.try_send(answer).is_err() {
                return;
            }
        }
    })
}

#[test]
fn sidecars_and_applications_on_ipv6() {
    let tcp = echo_at(local(0));
    let http = http_at(local(0));
    for (app, protocol) in [(&http, "http"), (&tcp, "tcp"), (&http, "detect")] {
        let pair = Pair::with(app.address(), |client, server| {
            let inbound = local(free_port());
            let client = listening(client, local(free_port()))
                .set(
                    "/services/0/ports/0/endpoints/0/address",
                    inbound.to_string(),
                )
                .set("/services/0/ports/0/protocol", protocol)
                .set("/mesh/detectTimeoutMs", 60_000);
            let server = listening(server, inbound)
                .set("/inbound/ports/0/protocol", protocol)
                .set("/mesh/accessLog", true);
            (client, server)
        });
        let mut client = pair.connect();
        if protocol == "tcp" {
            let bytes = pattern(1_000_000);
            let mut writer = client.stream().try_clone().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| std::io::Write::write_all(&mut writer, &bytes).unwrap());
                assert!(client.read_exact(bytes.len()) == bytes);
            });
            client.half_close();
            assert_eq!(client.read_to_end().unwrap(), b"");
        } else {
            // An address as the host, in brackets, with and without a port.
            for host in ["[::1]", "[::1]:9080", "[2001:db8::1]:80"] {
                client.send(format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n"));
                let answer = client.response("GET");
                assert_eq!(answer.status(), 200);
                let seen = answer.text().to_ascii_lowercase();
                assert!(seen.contains(&format!("host: {host}\r\n")), "{seen}");
            }
        }
        tests_local::eventually("a line in the access log", || {
            !pair.server.access_log().is_empty()
        });
        let upstream = pair.server.access_log()[0]["upstream_host"].clone();
        assert_eq!(upstream, app.address().to_string());
    }
}

/// `localhost` is `::1` to some runtimes, and the sidecar is told 127.0.0.1.
#[test]
fn an_application_that_listens_on_the_other_loopback_address_is_found() {
    let port = free_port();
    let app = http_at(local(port));
    let pair = Pair::start(([127, 0, 0, 1], port).into());
    assert_eq!(pair.connect().get("/").status(), 200);
    assert_eq!(app.connections(), 1);
    drop(app);
    // Until the sidecar sees that the connection it keeps is gone, that is what fails.
    let mut answer = pair.connect().get("/");
    tests_local::eventually("nobody listens", || {
        answer = pair.connect().get("/");
        answer.status() == 503
    });
    assert_eq!(answer.header("x-tulle-reason"), "connect_failed");
    let detail = pair.server.await_error("connect_failed")["detail"].to_string();
    assert!(detail.contains(&format!("127.0.0.1:{port}")), "{detail}");
}

#[test]
fn a_gateway_names_its_client_in_x_forwarded_for() {
    let app = http_at(local(0));
    let mesh = Mesh::new();
    // An IPv6 wildcard takes clients of both families.
    let port = free_port();
    let config = listening(
        gateway_config(app.address()),
        (Ipv6Addr::UNSPECIFIED, port).into(),
    );
    let _gateway = Proxy::start(&mesh, "edge", config.file);
    for (client, forwarded) in [("[::1]", "::1"), ("127.0.0.1", "127.0.0.1")] {
        let address = format!("{client}:{port}").parse().unwrap();
        let mut client = Client::connect(address);
        client.send(format!("GET / HTTP/1.1\r\nHost: [::1]:{port}\r\n\r\n"));
        let answer = client.response("GET");
        assert_eq!(answer.status(), 200);
        let seen = answer.text().to_ascii_lowercase();
        let line = format!("x-forwarded-for: {forwarded}\r\n");
        assert!(seen.contains(&line), "{seen}");
    }
}

/// A pod is told wildcards of IPv6. Where the node's kernel has no such thing, they are IPv4's.
#[test]
fn without_ipv6_its_wildcards_are_ipv4s() {
    let app = http_at(([127, 0, 0, 1], 0).into());
    without_ipv6(|| {
        let refused = std::net::TcpListener::bind("[::]:0").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EAFNOSUPPORT));
        let health = free_port();
        let any = |port: u16| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).to_string();
        let pair = Pair::with(app.address(), |client, server| {
            let wildcard = |config: Config| {
                let listener = any(config.address.port());
                config.set("/listeners/0/address", listener)
            };
            let server = wildcard(server).set("/health", any(health));
            (wildcard(client), server.set("/metrics", any(free_port())))
        });
        assert_eq!(pair.connect().get("/").status(), 200);
        for port in [
            &pair.server.config["metrics"],
            &pair.server.config["health"],
        ] {
            let port: SocketAddr = port.as_str().unwrap().parse().unwrap();
            let page = if port.port() == health {
                "/ready"
            } else {
                "/metrics"
            };
            let local = ([127, 0, 0, 1], port.port()).into();
            assert_eq!(tests_local::one(local, page).status(), 200, "{page}");
        }
    });
    assert_eq!(app.connections(), 1);
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

const PORT: u16 = 9080;

/// The sidecars of both hosts, with redirected connections alone.
fn transparent(yard: &Yard, mesh: &Mesh, service: &[IpAddr], endpoint: IpAddr) -> (Proxy, Proxy) {
    let listeners = json!([
        { "address": "[::]:15001", "kind": "outbound" },
        { "address": "[::]:15006", "kind": "inbound" },
    ]);
    let own = |mut config: Value, app: &str| {
        config["listeners"] = listeners.clone();
        if config.get("services").is_none() {
            config["services"] = json!([]);
            config["mesh"]["allowEgress"] = json!(true);
        }
        if config.get("inbound").is_none() {
            config["inbound"] = json!({ "service": CLIENT, "ports": [] });
        } else {
            config["inbound"]["ports"][0]["target"] = json!(app);
        }
        config
    };
    let mut outbound = outbound_config(SocketAddr::new(endpoint, PORT)).file;
    outbound["services"][0]["addresses"] = json!(service);
    let inbound = inbound_config(local(PORT)).file;
    let client = yard.sidecar(Host::Client, || {
        Proxy::start(mesh, CLIENT, own(outbound, ""))
    });
    let server = yard.sidecar(Host::Server, || {
        Proxy::start(mesh, SERVER, own(inbound, "[::1]:9080"))
    });
    (client, server)
}

/// An application that binds IPv6, calls of both families where there are both, original
/// destinations of both, and no IPv4 where there is none.
#[test]
fn a_mesh_without_ipv4_and_one_with_both() {
    if !is_root() {
        return;
    }
    let v6 = (ip("fd74:1::a"), ip("fd74:1::b"));
    let v4 = (ip("10.99.7.1"), ip("10.99.7.2"));
    for both in [false, true] {
        let mut addresses = vec![v6];
        let mut service = vec![ip("fd74:1::80")];
        if both {
            addresses.push(v4);
            service.push(ip("10.99.7.80"));
        }
        let yard = Yard::new(&addresses);
        yard.redirect(|rules| rules);
        let mesh = Mesh::new();
        let app = yard.application(Host::Server, || http_at(local(PORT)));
        let (client, server) = transparent(&yard, &mesh, &service, v6.1);
        let called = yard.application(Host::Client, || {
            for address in &service {
                let mut client = Client::connect(SocketAddr::new(*address, PORT));
                client.send(get("/over"));
                let answer = client.response("GET");
                assert_eq!(answer.status(), 200, "{address}");
                let seen = answer.text();
                let caller = format!("URI={}", id(CLIENT));
                assert!(seen.contains(&caller), "{address}: {seen}");
            }
            service.len()
        });
        let mutual = ["connection_security_policy=\"mutual_tls\"", "\"200\""];
        for (host, proxy) in [(Host::Client, &client), (Host::Server, &server)] {
            yard.sidecar(host, || {
                proxy.await_metric("istio_requests_total", &mutual, called as f64);
            });
        }
        // A call past the client's sidecar comes to the server's all the same.
        yard.sidecar(Host::Client, || {
            let mut direct = Client::connect(SocketAddr::new(v6.1, PORT));
            direct.send(get("/past"));
            assert_eq!(direct.response("GET").status(), 403);
        });
        assert_eq!(app.connections(), 1, "the sidecar's, shared");
        assert!(!app.received_text().contains("/past"));
    }
}
