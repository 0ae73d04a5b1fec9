//! Usual configurations: a client sidecar, a server sidecar, both in a row, and a gateway.

use crate::{CLIENT, Client, Mesh, Message, Proxy, SERVER, free_port, id};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};

/// A configuration with the address where its listener will be.
pub struct Config {
    /// The file.
    pub file: Value,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Config {
    /// Changes the file. `path` is a JSON pointer.
    #[must_use]
    pub fn set(mut self, path: &str, value: impl Into<Value>) -> Self {
        set(&mut self.file, path, value.into());
        self
    }
}

/// Sets the value at a JSON pointer; mappings on the way are made.
fn set(file: &mut Value, path: &str, value: Value) {
    let mut place = file;
    for part in path.trim_start_matches('/').split('/') {
        place = match place {
            Value::Array(list) => &mut list[part.parse::<usize>().unwrap()],
            other => &mut other[part],
        };
    }
    *place = value;
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

/// Sidecar of `productpage`: connections to its listener reach `ratings` at `endpoint`.
pub fn outbound_config(endpoint: SocketAddr) -> Config {
    let address = loopback();
    let file = json!({
        "listeners": [{
            "address": address.to_string(), "kind": "upstream", "service": SERVER, "port": 9080,
        }],
        "mesh": {},
        "services": [{
            "name": SERVER, "hostnames": [SERVER], "identities": [id(SERVER)],
            "ports": [{
                "port": 9080, "protocol": "http",
                "endpoints": [{ "address": endpoint.to_string() }],
            }],
        }],
    });
    Config { file, address }
}

/// Sidecar of `ratings` in front of the application; any identity of the mesh may call.
pub fn inbound_config(app: SocketAddr) -> Config {
    let address = loopback();
    let file = json!({
        "listeners": [{ "address": address.to_string(), "kind": "inboundPort", "port": 9080 }],
        "mesh": {},
        "inbound": {
            "service": SERVER,
            "ports": [{ "port": 9080, "protocol": "http", "target": app.to_string() }],
            "policy": { "permissive": true },
        },
    });
    Config { file, address }
}

/// A gateway in front of the service `ratings`, whose only endpoint is `app` in plaintext.
pub fn gateway_config(app: SocketAddr) -> Config {
    let address = loopback();
    let file = json!({
        "listeners": [{
            "address": address.to_string(), "kind": "gateway", "gateway": "edge", "port": 80,
        }],
        "mesh": {},
        "services": [{
            "name": SERVER, "identities": [id(SERVER)],
            "ports": [{
                "port": 9080, "protocol": "http",
                "endpoints": [{ "address": app.to_string(), "mutualTls": false }],
            }],
        }],
        "gateways": [{
            "name": "edge",
            "listeners": [{ "name": "http", "port": 80 }],
            "routes": [{
                "name": "all",
                "rules": [{ "backends": [{ "service": SERVER, "port": 9080 }] }],
            }],
        }],
    });
    Config { file, address }
}

/// client → sidecar of `productpage` ═ mutual TLS ═ sidecar of `ratings` → application.
pub struct Pair {
    /// Sidecar of the client.
    pub client: Proxy,
    /// Sidecar of the server.
    pub server: Proxy,
    /// Where the client connects.
    pub address: SocketAddr,
    /// Where the server's sidecar listens.
    pub inbound: SocketAddr,
    /// Their authority and files.
    pub mesh: Mesh,
}

impl Pair {
    /// The usual pair.
    pub fn start(app: SocketAddr) -> Self {
        Self::with(app, |client, server| (client, server))
    }

    /// A pair with other configurations.
    pub fn with(app: SocketAddr, change: impl FnOnce(Config, Config) -> (Config, Config)) -> Self {
        let mesh = Mesh::new();
        let server = inbound_config(app);
        let (client, server) = change(outbound_config(server.address), server);
        Self {
            client: Proxy::start(&mesh, CLIENT, client.file),
            server: Proxy::start(&mesh, SERVER, server.file),
            address: client.address,
            inbound: server.address,
            mesh,
        }
    }

    /// A pair that carries a port as given by `protocol`.
    pub fn speaking(app: SocketAddr, protocol: &str) -> Self {
        Self::with(app, |client, server| {
            (
                client.set("/services/0/ports/0/protocol", protocol),
                server.set("/inbound/ports/0/protocol", protocol),
            )
        })
    }

    /// A client's connection.
    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// The answer to a GET request of a new client, with these lines of fields.
    pub fn ask(&self, target: &str, fields: &str) -> Message {
        let mut client = self.connect();
        client.send(format!(
            "GET {target} HTTP/1.1\r\nHost: ratings\r\n{fields}\r\n"
        ));
        client.response("GET")
    }
}
