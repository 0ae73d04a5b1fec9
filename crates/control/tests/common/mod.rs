//! A controller on loopback and the clients that talk to it, as proxies and operators do.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use tulle_api::v1;
use tulle_api::v1::certificates_client::CertificatesClient;
use tulle_api::v1::config_client::ConfigClient;
use tulle_api::v1::objects_client::ObjectsClient;
use tulle_control::jwks::LEAST_REFRESH;
use tulle_control::{Controller, ControllerConfig, HOST_AWAY, RunningController, StoreKind};
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_model::resource::Resource;
use tulle_tls::Identity;
use tulle_tls::controller::{Anchor, client_config};
use tulle_tls::enrol::SigningRequest;

pub struct Mesh {
    pub running: RunningController,
    pub objects: ObjectsClient<Channel>,
    pub socket: PathBuf,
}

pub fn config(directory: &Path) -> ControllerConfig {
    ControllerConfig {
        state_dir: directory.join("state"),
        listen: "127.0.0.1:0".parse().unwrap(),
        socket: directory.join("run/control.sock"),
        store: StoreKind::Embedded,
        metrics: Some("127.0.0.1:0".parse().unwrap()),
        host_away: HOST_AWAY,
        least_key_refresh: LEAST_REFRESH,
        observe: false,
    }
}

pub async fn start(directory: &Path) -> Mesh {
    start_with(directory, StoreKind::Embedded).await
}

pub async fn start_with(directory: &Path, store: StoreKind) -> Mesh {
    start_as(ControllerConfig {
        store,
        ..config(directory)
    })
    .await
}

pub async fn start_as(config: ControllerConfig) -> Mesh {
    let socket = config.socket.clone();
    let running = Controller::start(config).await.unwrap();
    let objects = local(&socket).await;
    Mesh {
        running,
        objects,
        socket,
    }
}

pub async fn local(socket: &Path) -> ObjectsClient<Channel> {
    let socket = socket.to_owned();
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://controller");
    let channel = endpoint.connect_with_connector(connect).await.unwrap();
    ObjectsClient::new(channel).max_decoding_message_size(128 << 20)
}

/// A channel to the controller's port, with or without a certificate.
pub async fn dial(
    address: SocketAddr,
    fingerprint: &str,
    identity: Option<&Identity>,
) -> Result<Channel, tonic::transport::Error> {
    let trust_domain = TrustDomain::parse("tulle.local").unwrap();
    let tls = client_config(
        Anchor::Fingerprint(fingerprint.into()),
        &trust_domain,
        identity,
    )
    .unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(tls));
    let connect = tower::service_fn(move |_| {
        let tls = tls.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let name = "controller".try_into().unwrap();
            tls.connect(name, stream).await.map(TokioIo::new)
        }
    });
    let endpoint = Endpoint::from_static("http://controller");
    endpoint.connect_with_connector(connect).await
}

impl Mesh {
    pub async fn dial(&self, identity: Option<&Identity>) -> Channel {
        let address = self.running.local_addr();
        let channel = dial(address, self.running.ca_fingerprint(), identity).await;
        channel.unwrap()
    }

    pub async fn apply(&mut self, manifests: &[serde_json::Value]) -> Vec<String> {
        self.try_apply(manifests).await.unwrap()
    }

    pub async fn try_apply(
        &mut self,
        manifests: &[serde_json::Value],
    ) -> Result<Vec<String>, Status> {
        apply(&mut self.objects, manifests).await
    }

    pub async fn token(&mut self, identity: &str) -> String {
        let request = v1::JoinTokenRequest {
            identity: identity.into(),
            ttl_seconds: 0,
        };
        let made = self.objects.create_join_token(request).await.unwrap();
        let made = made.into_inner();
        assert_eq!(made.ca_fingerprint, self.running.ca_fingerprint());
        made.token
    }

    /// Everything a new proxy does to get its identity.
    pub async fn join(&mut self, identity: &str) -> Identity {
        let token = self.token(identity).await;
        self.sign(identity, &token, None).await.unwrap()
    }

    pub async fn sign(
        &self,
        identity: &str,
        token: &str,
        with: Option<&Identity>,
    ) -> Result<Identity, Status> {
        let client = CertificatesClient::new(self.dial(with).await);
        let proof = v1::SignRequest {
            join_token: token.into(),
            ..Default::default()
        };
        sign(client, identity, proof).await
    }

    pub async fn place(&mut self, workload: &str, port: u16, at: u16) {
        self.report(placement(workload, port, at)).await;
    }

    pub async fn report(&mut self, placement: v1::Placement) {
        self.objects.report_placement(placement).await.unwrap();
    }

    pub async fn stream(&self, identity: &Identity) -> Stream {
        let channel = self.dial(Some(identity)).await;
        Stream::open(channel).await.unwrap()
    }
}

pub async fn apply(
    objects: &mut ObjectsClient<Channel>,
    manifests: &[serde_json::Value],
) -> Result<Vec<String>, Status> {
    let object = |m: &serde_json::Value| v1::Object {
        kind: m["kind"].as_str().unwrap_or_default().into(),
        name: m["metadata"]["name"].as_str().unwrap_or_default().into(),
        json: m.to_string(),
    };
    let request = v1::ApplyRequest {
        objects: manifests.iter().map(object).collect(),
        ..Default::default()
    };
    let applied = objects.apply(request).await?.into_inner();
    Ok(applied.results.into_iter().map(|r| r.outcome).collect())
}

/// A proxy's end of a configuration stream.
pub struct Stream {
    pub requests: mpsc::Sender<v1::SubscribeRequest>,
    pub updates: Streaming<v1::ConfigUpdate>,
}

impl Stream {
    pub async fn open(channel: Channel) -> Result<Self, Status> {
        let (requests, outgoing) = mpsc::channel(64);
        let mut client = ConfigClient::new(channel);
        let updates = client.subscribe(ReceiverStream::new(outgoing)).await?;
        Ok(Self {
            requests,
            updates: updates.into_inner(),
        })
    }

    pub async fn subscribe(&self, names: &[&str]) {
        let request = v1::SubscribeRequest {
            subscribe: names.iter().map(|n| (*n).to_owned()).collect(),
            ..Default::default()
        };
        self.requests.send(request).await.unwrap();
    }

    pub async fn next(&mut self) -> Result<v1::ConfigUpdate, Status> {
        let update = self.updates.message();
        let update = tokio::time::timeout(std::time::Duration::from_secs(20), update).await;
        let update = update.expect("an update within 20 s")?;
        Ok(update.expect("the stream goes on"))
    }

    pub async fn ack(&self, nonce: u64, error: &str) {
        let ack = v1::Ack {
            nonce,
            error: error.into(),
            ..v1::Ack::default()
        };
        self.answer(ack).await;
    }

    pub async fn answer(&self, ack: v1::Ack) {
        let request = v1::SubscribeRequest {
            ack: Some(ack),
            ..Default::default()
        };
        self.requests.send(request).await.unwrap();
    }

    /// The next update, accepted.
    pub async fn accept(&mut self) -> v1::ConfigUpdate {
        let update = self.next().await.unwrap();
        self.ack(update.nonce, "").await;
        update
    }
}

pub fn names(update: &v1::ConfigUpdate) -> Vec<&str> {
    update.resources.iter().map(|r| r.name.as_str()).collect()
}

pub fn workload(name: &str, port: u16) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "tulle.dev/v1alpha1",
        "kind": "Workload",
        "metadata": { "name": name },
        "spec": {
            "command": ["/bin/true"],
            "ports": [{ "port": port, "appProtocol": "http" }],
            "env": [{ "name": "PASSWORD", "value": "hunter2" }],
        },
    })
}

/// A workload that a joined host brings.
pub fn workload_of(node: &str, name: &str, port: u16) -> serde_json::Value {
    let mut workload = workload(name, port);
    workload["metadata"]["labels"] = serde_json::json!({ "tulle.dev/node": node });
    workload
}

pub fn mesh(trust_domain: &str, permissive: bool) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "tulle.dev/v1alpha1",
        "kind": "Mesh",
        "metadata": { "name": "mesh" },
        "spec": { "trustDomain": trust_domain, "permissiveMode": permissive },
    })
}

pub fn target(name: &str, from: &str, to: &str) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "access.smi-spec.io/v1alpha3",
        "kind": "TrafficTarget",
        "metadata": { "name": name },
        "spec": {
            "destination": { "kind": "ServiceAccount", "name": to },
            "sources": [{ "kind": "ServiceAccount", "name": from }],
        },
    })
}

pub fn placement(workload: &str, port: u16, at: u16) -> v1::Placement {
    v1::Placement {
        workload: workload.into(),
        node: String::new(),
        ports: vec![v1::PlacedPort {
            port: port.into(),
            endpoint: format!("127.0.0.1:{at}"),
            target: format!("127.0.0.1:{port}"),
            mutual_tls: true,
        }],
        addresses: vec![],
        ..Default::default()
    }
}

/// A resource of an update.
pub fn body(update: &v1::ConfigUpdate, name: &str) -> Resource {
    let found = update.resources.iter().find(|r| r.name == name).unwrap();
    tulle_api::decode_body(&found.body).unwrap()
}

/// Asks for a certificate of an identity; `proof` has the token.
pub async fn sign(
    mut client: CertificatesClient<Channel>,
    identity: &str,
    proof: v1::SignRequest,
) -> Result<Identity, Status> {
    let id = SpiffeId::parse(&format!("spiffe://tulle.local/{identity}")).unwrap();
    let request = SigningRequest::new(&id).unwrap();
    let asked = v1::SignRequest {
        csr_der: request.csr_der.clone(),
        ..proof
    };
    let answer = client.sign(asked).await?.into_inner();
    let enrolled = request.complete(answer.chain_der, answer.trust_bundle_der);
    Ok(enrolled.unwrap().identity)
}
