//! Fields by which proxies tell an application who calls: whatever a client sends in them never
//! arrives, by whichever entrance the request comes.

use crate::jwt::Issuer;
use serde_json::{Value, json};
use std::net::SocketAddr;
use tests_local::{
    CLIENT, Client, Config, Http2Client, Mesh, Proxy, SERVER, Server, TlsClient, eventually,
    gateway_config, id, inbound_config, outbound_config, request,
};

/// Stands in every forged value, and in none that a proxy writes.
pub(crate) const FORGED: &str = "forged";

/// Milliseconds for the first bytes: however slow this machine is, handshakes do not count as silence.
const PATIENCE: u32 = 60_000;

/// Fields that a client may try. A token sets `x-user`, though not on the path of these requests.
const NAMES: [&str; 9] = [
    "X-Forwarded-Client-Cert",
    "x_forwarded_client_cert",
    "x-forwarded_client-CERT",
    "X-Tulle-Reason",
    "x_tulle_reason",
    "X-Tulle-Identity",
    "x-tulle_peer-with-a-long-name-that-nobody-uses",
    "X-User",
    "x_user",
];

fn fields() -> String {
    let line = |name: &&str| format!("{name}: {FORGED}\r\n");
    let lines: String = NAMES.iter().map(line).collect();
    format!("{lines}Connection: x-forwarded-client-cert, x-b\r\n")
}

/// A server's sidecar that takes everybody, and on one path tokens, too.
pub(crate) struct Entrances {
    pub(crate) app: Server,
    pub(crate) mesh: Mesh,
    pub(crate) inbound: Config,
    _server: Proxy,
}

impl Entrances {
    pub(crate) fn new(protocol: &str, rules: &Value) -> Self {
        let (app, mesh) = (Server::echo(), Mesh::new());
        let inbound = inbound_config(app.address())
            .set("/mesh/strictMtls", false)
            .set("/mesh/detectTimeoutMs", PATIENCE)
            .set("/inbound/ports/0/protocol", protocol)
            .set("/inbound/ports/0/rules", rules.clone());
        Self {
            _server: Proxy::start(&mesh, SERVER, inbound.file.clone()),
            app,
            mesh,
            inbound,
        }
    }

    /// A client's sidecar that believes this of the port.
    pub(crate) fn sidecar(&self, protocol: &str) -> (Proxy, SocketAddr) {
        let config = outbound_config(self.inbound.address)
            .set("/services/0/ports/0/protocol", protocol)
            .set("/mesh/detectTimeoutMs", PATIENCE);
        let proxy = Proxy::start(&self.mesh, CLIENT, config.file);
        (proxy, config.address)
    }

    /// A gateway whose listener takes this protocol.
    pub(crate) fn gateway(&self, protocol: &str) -> (Proxy, SocketAddr) {
        let endpoint = json!({ "address": self.inbound.address.to_string() });
        let mut config = gateway_config(self.inbound.address)
            .set("/services/0/ports/0/endpoints/0", endpoint)
            .set("/gateways/0/listeners/0/protocol", protocol);
        if protocol == "tcp" {
            let target = json!({ "service": SERVER, "port": 9080 });
            let route = json!([{ "name": "TCPRoute/x", "targets": [target] }]);
            config = config
                .set("/gateways/0/routes", json!([]))
                .set("/gateways/0/tcpRoutes", route);
        }
        let proxy = Proxy::start(&self.mesh, "edge", config.file);
        (proxy, config.address)
    }

    /// `what` has arrived and nothing that was forged has.
    fn check(&self, what: &str) {
        let heard = self.app.received_text().to_ascii_lowercase();
        assert!(heard.contains(&format!("/open/{what} ")), "{what}: {heard}");
        assert!(!heard.contains(FORGED), "{what}: {heard}");
    }
}

fn head(what: &str) -> String {
    format!("GET /open/{what} HTTP/1.1\r\nHost: a\r\n{}", fields())
}

/// Requests of HTTP/1: plain, one that asks for an upgrade, and one with trailers.
fn by_http1(entrances: &Entrances, what: &str, address: SocketAddr) {
    let mut client = Client::connect(address);
    client.send(format!("{}\r\n", head(what)));
    let answer = client.response("GET");
    assert_eq!(answer.status(), 200, "{what}: {answer:?}");
    entrances.check(what);
    let upgrade = head(&format!("{what}-upgrade"));
    client.send(format!(
        "{upgrade}Connection: upgrade\r\nUpgrade: x\r\n\r\n"
    ));
    let answer = client.response("GET");
    assert_eq!(answer.status(), 200, "{what}-upgrade: {answer:?}");
    entrances.check(&format!("{what}-upgrade"));
    for name in NAMES {
        let mut client = Client::connect(address);
        let _ = client.try_send(format!(
            "POST /open/{what}-trailers HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
             1\r\nx\r\n0\r\n{name}: {FORGED}\r\n\r\n"
        ));
        // Refused, or answered without: what counts is what arrives.
        let _ = client.try_response("POST");
        entrances.check(what);
    }
}

async fn by_http2(entrances: &Entrances, what: &str, address: SocketAddr) {
    if entrances.inbound.file["inbound"]["ports"][0]["protocol"] == "detect" {
        // The application would get HTTP/2, and this one does not speak it.
        return;
    }
    let client = Http2Client::connect(address).await;
    let mut asked = request("GET", &format!("/open/{what}"));
    let mut trailers = http::HeaderMap::new();
    for name in NAMES {
        let name = http::HeaderName::try_from(name.to_ascii_lowercase()).unwrap();
        let value = http::HeaderValue::from_static(FORGED);
        asked.headers_mut().append(name.clone(), value.clone());
        trailers.append(name, value);
    }
    let answer = client.exchange(asked, "", None).await.unwrap();
    assert_eq!(answer.status(), 200, "{what}");
    entrances.check(what);
    let asked = request("POST", &format!("/open/{what}-trailers"));
    let _ = client.exchange(asked, "x", Some(trailers)).await;
    entrances.check(what);
}

/// Tokens are asked for below `/api` only.
fn token_rules() -> Value {
    let jwt = json!({ "jwt": {
        "name": "AuthenticationPolicy/users",
        "providers": [{
            "issuer": "https://issuer", "jwks": Issuer::new().jwks(),
            "claimHeaders": [{ "claim": "sub", "header": "x-user" }],
        }],
    }});
    let matches = json!([{ "path": { "prefix": "/api" } }]);
    json!([{ "name": "AuthenticationPolicy/users", "matches": matches, "filters": [jwt] }])
}

#[tokio::test]
async fn nothing_forged_arrives_by_any_entrance() {
    for protocol in ["http", "detect"] {
        let entrances = Entrances::new(protocol, &token_rules());
        let direct = entrances.inbound.address;
        by_http1(&entrances, "plaintext", direct);
        by_http2(&entrances, "plaintext2", direct).await;
        // Use mutual TLS, but not `tulle/1`.
        let certificate = entrances.mesh.ca.issue(&id(CLIENT));
        for alpn in [&["http/1.1"][..], &[]] {
            let tls13 = tests_local::TLS13;
            let client = TlsClient::connect(direct, Some(&certificate), tls13, alpn);
            let mut client = client.unwrap();
            let what = format!("tls{}", alpn.len());
            client.send(format!("{}\r\n", head(&what))).unwrap();
            assert_eq!(client.response("GET").unwrap().status(), 200);
            entrances.check(&what);
        }
        // `tulle/1`: streams of exchanges, and of bytes.
        for view in ["http", "detect", "tcp"] {
            let (_proxy, address) = entrances.sidecar(view);
            by_http1(&entrances, view, address);
            by_http2(&entrances, &format!("{view}2"), address).await;
        }
        for kind in ["http", "tcp"] {
            let (_proxy, address) = entrances.gateway(kind);
            by_http1(&entrances, &format!("gateway-{kind}"), address);
            by_http2(&entrances, &format!("gateway-{kind}2"), address).await;
        }
    }
}

#[test]
fn nothing_forged_is_in_the_request_that_opens_a_tunnel() {
    let entrances = Entrances::new("http", &json!([]));
    let (_proxy, sidecar) = entrances.sidecar("http");
    let mut known = 0;
    for address in [entrances.inbound.address, sidecar] {
        let mut client = Client::connect(address);
        client.send(format!(
            "CONNECT db.test:5432 HTTP/1.1\r\nHost: db.test:5432\r\n{}\r\n",
            fields()
        ));
        let heard = || entrances.app.received_text().to_ascii_lowercase();
        let heads = || heard().matches("\r\n\r\n").count();
        eventually("the application has the request", || heads() > known);
        known = heads();
        let heard = heard();
        assert_eq!(
            heard.matches("connect db.test:5432 ").count(),
            known,
            "{heard}"
        );
        let forged = format!("x-user: {FORGED}\r\nx_user: {FORGED}\r\n");
        assert!(!heard.replace(&forged, "").contains(FORGED), "{heard}");
    }
}
