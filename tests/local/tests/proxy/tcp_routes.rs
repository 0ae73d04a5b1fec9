//! Connections routed by the server name of their TLS, or by port alone, through two sidecars.

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use tests_local::{
    CLIENT, Client, Config, Mesh, Proxy, Server, TLS13, TlsClient, TlsServer, client_config,
    gateway_config, id, inbound_config, ok, outbound_config,
};
use tulle_tls::testing::{Issued, Leaf, TestCa};

/// A service with its sidecar: the entry for the other side's file.
fn service(mesh: &Mesh, name: &str, app: SocketAddr, protocol: &str) -> (Value, Proxy) {
    let config = inbound_config(app)
        .set("/inbound/service", name)
        .set("/inbound/ports/0/protocol", protocol);
    let entry = json!({
        "name": name, "identities": [id(name)],
        "ports": [{
            "port": 9080, "protocol": protocol,
            "endpoints": [{ "address": config.address.to_string() }],
        }],
    });
    (entry, Proxy::start(mesh, name, config.file))
}

/// A server whose TLS is its own, with the certificate it presents.
fn tls_server(web: &TestCa, name: &str) -> (TlsServer, Issued) {
    let leaf = Leaf {
        dns: vec![name.to_owned()],
        ..Leaf::new("spiffe://none/none")
    };
    let issued = web.issue_leaf(&leaf);
    let body = name.to_owned();
    let server = TlsServer::http(&issued, &[], move |_| ok(body.as_bytes()));
    (server, issued)
}

fn ask(address: SocketAddr, web: &TestCa, name: &str) -> Option<(String, Vec<u8>)> {
    let own = web.issue("spiffe://none/client");
    let config = client_config(Some(&own), TLS13, &[]);
    let mut client = TlsClient::connect_to(address, &config, name).ok()?;
    let presented = client.peer_certificates()[0].to_vec();
    Some((client.get("/").ok()?.text(), presented))
}

fn tls_route(name: &str, hosts: &[&str], service: &str) -> Value {
    json!({
        "name": format!("TLSRoute/{name}"), "hostnames": hosts,
        "targets": [{ "service": service, "port": 9080 }],
    })
}

/// Two servers with TLS of their own behind sidecars, and what leads to them.
struct Shops {
    web: TestCa,
    servers: [(TlsServer, Issued); 2],
    _sidecars: [Proxy; 2],
    front: Proxy,
    address: SocketAddr,
}

impl Shops {
    fn start(front: &str, config: impl FnOnce([Value; 2], Vec<Value>) -> Config) -> Self {
        let (mesh, web) = (Mesh::new(), TestCa::new("web root"));
        let servers = [
            tls_server(&web, "a.example"),
            tls_server(&web, "x.b.example"),
        ];
        let [a, b] = ["a", "b"].map(|name| name.to_owned());
        let (a, sidecar_a) = service(&mesh, &a, servers[0].0.address(), "tls");
        let (b, sidecar_b) = service(&mesh, &b, servers[1].0.address(), "tls");
        let routes = vec![
            tls_route("b", &["*.b.example"], "b"),
            tls_route("a", &["a.example"], "a"),
        ];
        let config = config([a, b], routes);
        Self {
            web,
            servers,
            _sidecars: [sidecar_a, sidecar_b],
            address: config.address,
            front: Proxy::start(&mesh, front, config.file),
        }
    }

    /// Each name reaches its server, whose own certificate the client sees.
    fn check(&self) {
        for (name, (server, issued)) in ["a.example", "x.b.example"].iter().zip(&self.servers) {
            let (body, presented) = ask(self.address, &self.web, name).unwrap();
            assert_eq!(&body, name);
            assert_eq!(presented, issued.chain[0].to_vec(), "not terminated");
            assert_eq!(server.connections(), 1);
        }
    }
}

#[test]
fn a_gateway_passes_tls_on_by_server_name() {
    let shops = Shops::start("edge", |services, routes| {
        let mut config = gateway_config(([127, 0, 0, 1], 9).into());
        let all = config.file["services"].as_array_mut().unwrap();
        all.extend(services);
        config
            .set("/gateways/0/routes", json!([]))
            .set("/gateways/0/tlsRoutes", routes)
            .set("/gateways/0/listeners/0/protocol", "tls")
    });
    shops.check();
    assert!(ask(shops.address, &shops.web, "c.example").is_none());
    assert!(ask(shops.address, &shops.web, "b.example").is_none());
    let error = shops.front.await_error("no_route");
    let detail = error["detail"].as_str().unwrap();
    assert!(detail.contains("\"b.example\"") || detail.contains("\"c.example\""));
    let labels = ["destination_service=\"a\"", "mutual_tls"];
    shops
        .front
        .await_metric("istio_tcp_connections_opened_total", &labels, 1.0);
}

#[test]
fn a_sidecar_routes_a_services_connections_by_server_name() {
    let shops = Shops::start(CLIENT, |services, routes| {
        let mut config = outbound_config(([127, 0, 0, 1], 9).into())
            .set("/services/0/ports/0/protocol", "tcp")
            // A busy machine may send the client's first bytes late.
            .set("/mesh/detectTimeoutMs", 60_000)
            .set("/services/0/tlsRoutes", routes)
            .set(
                "/services/0/tcpRoutes",
                json!([{ "name": "TCPRoute/rest", "targets": [{ "service": "a", "port": 9080 }] }]),
            );
        let all = config.file["services"].as_array_mut().unwrap();
        all.extend(services);
        config
    });
    shops.check();
    // Another name, or none: the service's TCP route.
    let (body, _) = ask(shops.address, &shops.web, "elsewhere.example").unwrap();
    assert_eq!(body, "a.example");
}

#[test]
fn tcp_by_weight_and_on_the_fly() {
    let mesh = Mesh::new();
    let greet = |text: &'static str| {
        Server::start(move |mut connection| {
            connection.send(text);
            let _ = connection.read_some();
        })
    };
    let (one, two) = (greet("one"), greet("two"));
    let (a, _sidecar_a) = service(&mesh, "a", one.address(), "tcp");
    let (b, _sidecar_b) = service(&mesh, "b", two.address(), "tcp");
    let routes = |a: u32, b: u32| {
        json!([{
            "name": "TCPRoute/split", "targets": [
                { "service": "a", "port": 9080, "weight": a },
                { "service": "b", "port": 9080, "weight": b },
            ],
        }])
    };
    let mut gateway = gateway_config(([127, 0, 0, 1], 9).into())
        .set("/gateways/0/routes", json!([]))
        .set("/gateways/0/tcpRoutes", routes(1, 3))
        .set("/gateways/0/listeners/0/protocol", "tcp");
    let services = gateway.file["services"].as_array_mut().unwrap();
    services.extend([a, b]);
    let address = gateway.address;
    let gateway = Proxy::start(&mesh, "edge", gateway.file);
    let count = |times: usize| {
        let answers = (0..times).map(|_| Client::connect(address).read_exact(3));
        answers.filter(|answer| answer == b"two").count()
    };
    // 200 draws with a share of 3/4: outside of this once in a billion times.
    let two = count(200);
    assert!((105..=190).contains(&two), "{two} of 200");

    // Established connections remain when the weights change.
    let mut stays = Client::connect(address);
    let greeting = stays.read_exact(3);
    assert!(greeting == b"one" || greeting == b"two");
    let mut file = gateway.config.clone();
    file["gateways"][0]["tcpRoutes"] = routes(1, 0);
    gateway.reload(&file);
    assert_eq!(count(20), 0);
    assert!(stays.is_silent(std::time::Duration::from_millis(50)));

    file["gateways"][0]["tcpRoutes"] = routes(0, 0);
    gateway.reload(&file);
    assert!(Client::is_cut(address, ""), "nobody may be asked");
    let error = gateway.await_error("no_service");
    assert!(error["detail"].as_str().unwrap().contains("TCPRoute/split"));
}

#[test]
fn tls_that_ends_at_the_gateway_goes_on_as_tcp() {
    let (mesh, web) = (Mesh::new(), TestCa::new("web root"));
    let app = Server::start(|mut connection| {
        connection.send("hello ");
        while let Ok(bytes) = connection.read_some() {
            if bytes.is_empty() {
                return connection.half_close();
            }
            connection.send(bytes);
        }
    });
    let (a, _sidecar) = service(&mesh, "a", app.address(), "tcp");
    let issued = web.issue_leaf(&Leaf {
        dns: vec!["db.example".into()],
        ..Leaf::new("spiffe://none/none")
    });
    let tls = json!({ "certificates": [{ "chain": issued.chain_pem, "key": issued.key_pem }] });
    let mut gateway = gateway_config(([127, 0, 0, 1], 9).into())
        .set("/gateways/0/routes", json!([]))
        .set(
            "/gateways/0/tcpRoutes",
            json!([{ "name": "TCPRoute/db", "targets": [{ "service": "a", "port": 9080 }] }]),
        )
        .set("/gateways/0/listeners/0/protocol", "tls")
        .set("/gateways/0/listeners/0/tls", tls);
    gateway.file["services"].as_array_mut().unwrap().push(a);
    let address = gateway.address;
    let _gateway = Proxy::start(&mesh, "edge", gateway.file);
    let config: Arc<_> = client_config(None, TLS13, &[]);
    let mut client = TlsClient::connect_to(address, &config, "db.example").unwrap();
    assert_eq!(client.read_exact(6).unwrap(), b"hello ");
    let data = tests_local::pattern(1_000_000);
    for part in data.chunks(100_000) {
        client.send(part).unwrap();
        assert_eq!(client.read_exact(part.len()).unwrap(), part);
    }
}

#[test]
fn one_port_ends_tls_of_some_names_and_passes_that_of_others_on() {
    let (mesh, web) = (Mesh::new(), TestCa::new("web root"));
    let (server, issued) = tls_server(&web, "a.example");
    let plain = Server::start(|mut connection| {
        if connection.read_some().is_ok_and(|bytes| bytes == b"ping") {
            connection.send("pong");
        }
    });
    let (a, _sidecar_a) = service(&mesh, "a", server.address(), "tls");
    let (b, _sidecar_b) = service(&mesh, "b", plain.address(), "tcp");
    let own = web.issue_leaf(&Leaf {
        dns: vec!["db.example".into()],
        ..Leaf::new("spiffe://none/none")
    });
    let certificate = json!({ "chain": own.chain_pem, "key": own.key_pem });
    let mut gateway = gateway_config(([127, 0, 0, 1], 9).into());
    gateway = gateway.set("/gateways/0/routes", json!([])).set(
        "/gateways/0/listeners",
        json!([
            { "name": "ends", "port": 80, "protocol": "tls", "hostname": "*.example",
              "tls": { "certificates": [certificate] } },
            { "name": "passes", "port": 80, "protocol": "tls", "hostname": "a.example" },
        ]),
    );
    let at = |listener: &str, mut route: Value| {
        route["listener"] = listener.into();
        route
    };
    // A route without hostnames takes what its listener takes, and nothing of the other's.
    gateway = gateway.set(
        "/gateways/0/tlsRoutes",
        json!([
            at("passes", tls_route("a", &[], "a")),
            at("ends", tls_route("b", &["db.example"], "b")),
        ]),
    );
    let services = gateway.file["services"].as_array_mut().unwrap();
    services.extend([a, b]);
    let address = gateway.address;
    let gateway = Proxy::start(&mesh, "edge", gateway.file);

    let (body, presented) = ask(address, &web, "a.example").unwrap();
    assert_eq!(body, "a.example");
    assert_eq!(presented, issued.chain[0].to_vec(), "passed on");
    let config: Arc<_> = client_config(None, TLS13, &[]);
    let mut client = TlsClient::connect_to(address, &config, "db.example").unwrap();
    assert_eq!(
        client.peer_certificates()[0].to_vec(),
        own.chain[0].to_vec()
    );
    client.send(b"ping").unwrap();
    assert_eq!(client.read_exact(4).unwrap(), b"pong");
    // The listener takes the name, and none of its routes does.
    if let Ok(mut client) = TlsClient::connect_to(address, &config, "c.example") {
        assert!(client.read_exact(1).is_err());
    }
    let error = gateway.await_error("no_route");
    assert!(error["detail"].as_str().unwrap().contains("\"c.example\""));
}

#[test]
fn listeners_that_do_not_go_together_are_refused() {
    let app = Server::http(|_| ok(b"ok"));
    let mesh = Mesh::new();
    let config = gateway_config(app.address());
    let gateway = Proxy::start(&mesh, "edge", config.file);
    for (listeners, why) in [
        (
            json!([{ "name": "a", "port": 80 }, { "name": "b", "port": 80, "protocol": "tcp" }]),
            "listeners a and b cannot both be on port 80",
        ),
        (
            json!([{ "name": "a", "port": 80 }, { "name": "b", "port": 80 }]),
            "they must differ in hostname",
        ),
        (
            json!([{ "name": "a", "port": 80, "protocol": "https" }]),
            "listener a: protocol https needs a certificate",
        ),
    ] {
        let mut file = gateway.config.clone();
        file["gateways"][0]["listeners"] = listeners;
        gateway.write_config(&file);
        tests_local::eventually(why, || gateway.admin("/config").text().contains(why));
        assert_eq!(Client::connect(config.address).get("/").status(), 200);
    }
}
