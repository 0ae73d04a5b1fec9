//! The port of health: readiness, and the application's own checks asked on behalf of a kubelet.

use rustls::crypto::aws_lc_rs;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};

use tests_local::{Client, Mesh, Proxy, SERVER, Server, free_port, inbound_config, ok, one};
use tonic::{Request, Response, Status};
use tulle_api::grpc_health::health_check_response::ServingStatus;
use tulle_api::grpc_health::health_server::{Health, HealthServer};
use tulle_api::grpc_health::{HealthCheckRequest, HealthCheckResponse};
use tulle_tls::testing::{Leaf, TestCa};

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

/// A sidecar with these checks, and where it is asked.
fn sidecar(mesh: &Mesh, app: SocketAddr, probes: serde_json::Value) -> (Proxy, SocketAddr) {
    let health = loopback();
    let config = inbound_config(app)
        .set("/health", health.to_string())
        .set("/probes", probes);
    (Proxy::start(mesh, SERVER, config.file), health)
}

#[test]
fn a_check_by_http_says_what_the_application_says() {
    let app = Server::http(|request| match request.target() {
        "/live?x=1" if request.header("x-probe") == "yes" => ok(b""),
        "/moved" => b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_vec(),
    });
    let port = app.address().port();
    let http = |path: &str, target: &str| {
        json!({
            "path": path, "timeoutMs": 5000,
            "check": {"http": {
                "port": port, "path": target, "headers": [{"name": "X-Probe", "value": "yes"}],
            }},
        })
    };
    let mesh = Mesh::new();
    let probes = json!([
        http("/probe/a/liveness", "/live?x=1"),
        http("/probe/a/readiness", "/moved"),
        http("/probe/b/liveness", "/no"),
    ]);
    let (_proxy, health) = sidecar(&mesh, app.address(), probes);
    assert_eq!(one(health, "/ready").text(), "ready\n");
    assert_eq!(one(health, "/probe/a/liveness").status(), 200);
    assert_eq!(one(health, "/probe/a/readiness").status(), 200);
    let refused = one(health, "/probe/b/liveness");
    assert_eq!(refused.status(), 500);
    assert_eq!(
        refused.text(),
        "not well: it answers 500 Internal Server Error\n"
    );
    let seen = app.received_text();
    assert!(seen.contains(&format!("host: 127.0.0.1:{port}")), "{seen}");
    assert!(seen.contains("user-agent: kube-probe"), "{seen}");
    // Nothing else is to be had here.
    for path in [
        "/probe/c/liveness",
        "/config",
        "/metrics",
        "/certificates",
        "/",
    ] {
        assert_eq!(one(health, path).status(), 404, "{path}");
    }
}

#[test]
fn a_check_by_tcp_reaches_the_application_and_not_its_sidecar() {
    let app = Server::echo();
    let nobody = free_port();
    let tcp = |path: &str, port: u16| json!({"path": path, "timeoutMs": 5000, "check": {"tcp": {"port": port}}});
    let mesh = Mesh::new();
    let probes = json!([
        tcp("/probe/a/liveness", app.address().port()),
        tcp("/probe/b/liveness", nobody)
    ]);
    let (_proxy, health) = sidecar(&mesh, app.address(), probes);
    assert_eq!(one(health, "/probe/a/liveness").status(), 200);
    let refused = one(health, "/probe/b/liveness");
    assert_eq!(refused.status(), 503);
    assert!(refused.text().contains("refused"), "{}", refused.text());
}

#[test]
fn a_check_by_https_takes_any_certificate() {
    let mesh = Mesh::new();
    let stranger = TestCa::new("nobody's").issue_leaf(&Leaf::new("spiffe://elsewhere/x"));
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(stranger.chain.clone(), stranger.key())
            .unwrap();
    let config = Arc::new(config);
    let app = Server::start(move |connection| {
        let tls = rustls::ServerConnection::new(config.clone()).unwrap();
        let mut stream = rustls::StreamOwned::new(tls, connection.stream());
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(&ok(b""));
    });
    let probes = json!([{
        "path": "/probe/a/liveness", "timeoutMs": 5000,
        "check": {"http": {"port": app.address().port(), "path": "/", "tls": true}},
    }]);
    let (_proxy, health) = sidecar(&mesh, app.address(), probes);
    let answer = one(health, "/probe/a/liveness");
    assert_eq!(answer.status(), 200, "{}", answer.text());
}

#[test]
fn a_check_that_hangs_is_ended() {
    let (held, hold) = mpsc::channel::<()>();
    let hold = std::sync::Mutex::new(hold);
    let app = Server::start(move |mut connection| {
        let _ = connection.request();
        let _ = hold.lock().map(|h| h.recv());
    });
    let mesh = Mesh::new();
    let probes = json!([{
        "path": "/probe/a/liveness", "timeoutMs": 200,
        "check": {"http": {"port": app.address().port(), "path": "/"}},
    }]);
    let (_proxy, health) = sidecar(&mesh, app.address(), probes);
    let answer = one(health, "/probe/a/liveness");
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.text(), "not well: no answer within 200ms\n");
    drop(held);
}

struct App;

#[tonic::async_trait]
impl Health for App {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let status = match request.into_inner().service.as_str() {
            "" => ServingStatus::Serving,
            "late" => ServingStatus::NotServing,
            _ => return Err(Status::not_found("no such service")),
        };
        Ok(Response::new(HealthCheckResponse {
            status: status.into(),
        }))
    }
}

#[test]
fn a_check_by_grpc_asks_for_the_service() {
    let address = loopback();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let server = tonic::transport::Server::builder().add_service(HealthServer::new(App));
            server.serve(address).await.unwrap();
        });
    });
    tests_local::eventually("the application listens", || {
        Client::try_connect(address).is_ok()
    });
    let grpc = |path: &str, service: &str| {
        json!({
            "path": path, "timeoutMs": 5000,
            "check": {"grpc": {"port": address.port(), "service": service}},
        })
    };
    let mesh = Mesh::new();
    let probes = json!([
        grpc("/probe/a/liveness", ""),
        grpc("/probe/a/readiness", "late"),
        grpc("/probe/a/startup", "unknown"),
    ]);
    let (_proxy, health) = sidecar(&mesh, address, probes);
    assert_eq!(one(health, "/probe/a/liveness").status(), 200);
    let late = one(health, "/probe/a/readiness");
    assert_eq!(
        (late.status(), late.text().as_str()),
        (503, "not well: it says NOT_SERVING\n")
    );
    let unknown = one(health, "/probe/a/startup");
    assert_eq!(unknown.text(), "not well: no such service\n");
}
