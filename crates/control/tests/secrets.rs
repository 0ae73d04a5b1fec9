//! The content of a Secret reaches the gateway that uses it, and nobody else.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use base64::Engine;
use common::{Stream, body, names, start, workload};
use serde_json::{Value, json};
use tonic::Code;
use tulle_api::v1;
use tulle_api::v1::certificates_client::CertificatesClient;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::Resource;
use tulle_tls::enrol::SigningRequest;

fn base64(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

fn gateway(name: &str) -> Value {
    let tls = json!({ "certificateRefs": [{ "name": "shop" }] });
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": { "name": name },
        "spec": { "listeners": [
            { "name": "web", "port": 8443, "protocol": "HTTPS", "tls": tls },
        ] },
    })
}

#[tokio::test]
async fn a_key_is_shown_to_its_gateway_alone() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    let own = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
    let (chain, key) = (own.cert.pem(), own.signing_key.serialize_pem());
    let encoded = base64(&chain);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "shop" },
        "type": "kubernetes.io/tls",
        "data": { "tls.crt": encoded }, "stringData": { "tls.key": key },
    });
    mesh.apply(&[gateway("edge"), gateway("other"), secret])
        .await;

    // The operator sees that there are keys, not what they are.
    let request = v1::ListRequest {
        kind: "Secret".into(),
        name: String::new(),
    };
    let listed = mesh
        .objects
        .list(request)
        .await
        .unwrap()
        .into_inner()
        .objects;
    let json = &listed[0].json;
    assert!(
        json.contains("tls.crt") && json.contains("tls.key"),
        "{json}"
    );
    assert!(
        !json.contains("PRIVATE KEY") && !json.contains(&base64(&key)) && !json.contains(&encoded),
        "{json}"
    );

    // The redacted form that is shown cannot be applied in place of the real Secret.
    let shown: Value = serde_json::from_str(json).unwrap();
    let refused = mesh.try_apply(&[shown]).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");

    // A proxy may ask for egress where there is none, and for its own gateway only.
    let identity = mesh.join("svc/edge").await;
    let mut stream: Stream = mesh.stream(&identity).await;
    stream.subscribe(&["gateway/edge", "egress"]).await;
    let update = stream.accept().await;
    assert_eq!(names(&update), ["gateway/edge"]);
    assert_eq!(update.removed, ["egress"]);
    let Resource::Gateway(edge) = body(&update, "gateway/edge") else {
        panic!("no gateway");
    };
    let tls = edge.listeners[0].tls.as_ref().unwrap();
    assert_eq!(tls.certificates[0].key, key);
    let egress = json!({
        "apiVersion": "tulle.dev/v1alpha1", "kind": "Egress", "metadata": { "name": "e" },
        "spec": { "hosts": ["a.example"] },
    });
    mesh.apply(&[egress]).await;
    assert_eq!(names(&stream.accept().await), ["egress"]);
    stream.subscribe(&["gateway/other"]).await;
    assert_eq!(
        stream.next().await.unwrap_err().code(),
        Code::PermissionDenied
    );
    mesh.running.shutdown().await;
}

/// A workload's key is made in its sidecar and stays there.
#[tokio::test]
async fn a_controller_is_never_told_the_key_of_a_workload() {
    let directory = tempfile::tempdir().unwrap();
    let mut mesh = start(directory.path()).await;
    mesh.apply(&[workload("a", 80)]).await;
    let token = mesh.token("svc/a").await;
    let id = SpiffeId::parse("spiffe://tulle.local/svc/a").unwrap();
    let request = SigningRequest::new(&id).unwrap();
    // All that a sidecar tells but the token and its version.
    let sent = request.csr_der.clone();
    let asked = v1::SignRequest {
        csr_der: sent.clone(),
        join_token: token,
        ..Default::default()
    };
    let mut client = CertificatesClient::new(mesh.dial(None).await);
    let answer = client.sign(asked).await.unwrap().into_inner();
    let chain = answer.chain_der.clone();
    let enrolled = request.complete(answer.chain_der, answer.trust_bundle_der);
    let enrolled = enrolled.unwrap();
    let blocks = enrolled.to_pem().map(|text| pem::parse(text).unwrap());
    let mut blocks = blocks.iter();
    let key = blocks.find(|b| b.tag().contains("PRIVATE KEY")).unwrap();
    // The secret number itself (RFC 5915), whatever is around it.
    let der = key.contents();
    let at = der.windows(2).position(|w| w == [0x04, 0x20]).unwrap();
    let secret = &der[at + 2..at + 34];
    let has = |bytes: &[u8]| bytes.windows(secret.len()).any(|w| w == secret);
    assert!(has(der) && !has(&sent) && !chain.iter().any(|c| has(c)));
    mesh.stream(&enrolled.identity).await;
    let mut left = vec![directory.path().to_owned()];
    let mut files = 0;
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap();
            left.extend(entries.map(|entry| entry.unwrap().path()));
        } else if path.is_file() {
            files += 1;
            assert!(!has(&std::fs::read(&path).unwrap()), "{}", path.display());
        }
    }
    assert!(files > 0, "the controller has a state directory");
}
