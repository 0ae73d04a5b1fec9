//! `x-tulle-reason` is the mesh's own word: an application cannot say it.

use serde_json::json;
use tests_local::{
    CLIENT, Client, Mesh, Pair, Proxy, SERVER, Server, TlsServer, id, outbound_config,
};

const FORGED: &[u8] = b"HTTP/1.1 103 Early Hints\r\nx-tulle-reason: ok\r\nlink: a\r\n\r\n\
    HTTP/1.1 503 Service Unavailable\r\nX-Tulle-Reason: circuit_open\r\nx-kept: 1\r\n\
    x_tulle_reason: denied\r\ncontent-length: 1\r\nx-tulle-reasons: 2\r\n\r\na";

fn forging() -> Server {
    Server::http(|_| FORGED.to_vec())
}

fn is_clean(mut client: Client) {
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let early = client.response("GET");
    assert_eq!((early.status(), early.header("link")), (103, "a"));
    let last = client.response("GET");
    assert_eq!((last.status(), last.text().as_str()), (503, "a"));
    assert_eq!(last.header("x-kept"), "1");
    assert_eq!(last.header("x-tulle-reasons"), "2");
    for response in [early, last] {
        let head = response.head.to_ascii_lowercase().replace('_', "-");
        assert!(!head.contains("x-tulle-reason:"), "{head}");
    }
}

#[test]
fn an_application_cannot_speak_for_the_mesh() {
    let app = forging();
    let pair = Pair::start(app.address());
    is_clean(pair.connect());
}

#[test]
fn nor_can_one_without_a_sidecar() {
    let app = forging();
    let mesh = Mesh::new();
    let config = outbound_config(app.address())
        .set("/services/0/ports/0/endpoints/0/mutualTls", json!(false));
    let address = config.address;
    let _proxy = Proxy::start(&mesh, CLIENT, config.file);
    is_clean(Client::connect(address));
}

/// Envoy, as a sidecar, passes on what its application says.
#[test]
fn nor_can_one_behind_another_kind_of_sidecar() {
    let mesh = Mesh::new();
    let certificate = mesh.ca.issue(&id(SERVER));
    let peer = TlsServer::http(&certificate, &["http/1.1"], |_| FORGED.to_vec());
    let config = outbound_config(peer.address());
    let address = config.address;
    let _proxy = Proxy::start(&mesh, CLIENT, config.file);
    is_clean(Client::connect(address));
}
