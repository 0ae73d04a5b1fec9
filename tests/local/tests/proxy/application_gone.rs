//! When a pod ends, its application is gone before its sidecar is. A client without a sidecar must
//! not stay with the connection that it keeps: there is nobody behind it, and elsewhere there may be.

use std::net::SocketAddr;
use std::time::Duration;
use tests_local::{
    Client, Http2Client, Mesh, PATIENCE, Pair, Proxy, SERVER, Server, free_port, inbound_config,
    request,
};
use tokio::time::{sleep, timeout};

fn nobody() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

/// A sidecar that takes clients without one.
fn sidecar(app: SocketAddr) -> (Mesh, Proxy, SocketAddr) {
    let mesh = Mesh::new();
    let config = inbound_config(app).set("/mesh/strictMtls", false);
    let proxy = Proxy::start(&mesh, SERVER, config.file);
    (mesh, proxy, config.address)
}

#[test]
fn a_kept_connection_ends_with_the_first_refusal() {
    let app = Server::echo();
    let (_mesh, _proxy, address) = sidecar(app.address());
    let mut client = Client::connect(address);
    assert_eq!(client.get("/").status(), 200);
    drop(app);
    let refused = client.get("/");
    assert_eq!(
        (refused.status(), refused.header("x-tulle-reason")),
        (503, "connect_failed")
    );
    assert_eq!(refused.header("connection"), "close");
    assert!(client.is_ended());
}

#[tokio::test]
async fn an_http_2_client_is_told_to_open_another_connection() {
    let (_mesh, _proxy, address) = sidecar(nobody());
    let client = Http2Client::connect(address).await;
    let refused = client.get("/").await.unwrap();
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.header("x-tulle-reason"), Some("connect_failed"));
    let told = async {
        while client.open(request("GET", "/late"), true).await.is_ok() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, told).await.expect("GOAWAY comes");
}

/// The connection of a client's sidecar carries all ports of the pod, and the sidecar asks another
/// endpoint by itself.
#[test]
fn a_sidecar_keeps_its_connection() {
    let pair = Pair::start(nobody());
    let mut client = pair.connect();
    for _ in 0..3 {
        let refused = client.get("/");
        assert_eq!(
            (refused.status(), refused.header("x-tulle-reason")),
            (503, "connect_failed")
        );
    }
    let handshakes = pair.server.metric("tulle_tls_handshakes_total", &[]);
    assert_eq!(handshakes, 1.0);
}
