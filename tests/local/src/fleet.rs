//! One client's sidecar before several servers, each with a sidecar of its own.

use crate::{
    CLIENT, Client, Config, Mesh, Message, Proxy, SERVER, inbound_config, outbound_config,
};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// client → sidecar of `productpage` ═ mutual TLS ═ sidecars of `ratings` → applications.
pub struct Fleet {
    /// Sidecar of the client.
    pub client: Proxy,
    /// Sidecars of the servers.
    pub servers: Vec<Proxy>,
    /// Where the client connects.
    pub address: SocketAddr,
    /// Where the servers' sidecars listen.
    pub inbound: Vec<SocketAddr>,
    /// Their authority and files.
    pub mesh: Mesh,
}

impl Fleet {
    /// Starts as many sidecars as applications. `traffic` is the policy of the port, and `change` makes
    /// further changes to the client's sidecar.
    pub fn start(
        apps: &[SocketAddr],
        traffic: Value,
        change: impl FnOnce(Config) -> Config,
    ) -> Self {
        let mesh = Mesh::new();
        let configs: Vec<_> = apps.iter().map(|app| inbound_config(*app)).collect();
        let inbound: Vec<_> = configs.iter().map(|c| c.address).collect();
        let servers = configs
            .into_iter()
            .map(|c| Proxy::start(&mesh, SERVER, c.file));
        let servers = servers.collect();
        let endpoints: Vec<_> = inbound
            .iter()
            .map(|a| json!({ "address": a.to_string() }))
            .collect();
        let client = outbound_config(inbound[0])
            .set("/services/0/ports/0/endpoints", endpoints)
            .set("/services/0/ports/0/traffic", traffic);
        let client = change(client);
        Self {
            address: client.address,
            client: Proxy::start(&mesh, CLIENT, client.file),
            servers,
            inbound,
            mesh,
        }
    }

    /// A client's connection.
    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Sends this many requests one after the other; how often each answer came, by the applications
    /// whose numbers are the answers' bodies.
    pub fn spread(&self, count: usize, request: impl Fn(usize) -> String) -> Vec<usize> {
        let mut client = self.connect();
        let mut seen = vec![0; self.servers.len()];
        for i in 0..count {
            client.send(request(i));
            let response = client.response("GET");
            assert_eq!(
                response.status(),
                200,
                "{}{}",
                response.head,
                response.text()
            );
            seen[number(&response)] += 1;
        }
        seen
    }

    /// Returns the client's sidecar's endpoints, in their order.
    pub fn endpoints(&self) -> Vec<Value> {
        let shown = self.shown();
        let endpoints = shown["endpoints"].as_array().cloned();
        endpoints.unwrap_or_default()
    }

    /// Returns the client's sidecar's view of the port.
    pub fn shown(&self) -> Value {
        let all: Value = serde_json::from_str(&self.client.admin("/endpoints").text()).unwrap();
        all[0].clone()
    }

    /// The states of the endpoints, in their order.
    pub fn states(&self) -> Vec<String> {
        let state = |e: &Value| e["state"].as_str().unwrap_or_default().to_owned();
        self.endpoints().iter().map(state).collect()
    }
}

/// The number of the application that has answered.
pub fn number(response: &Message) -> usize {
    response.text().parse().unwrap()
}
