//! Gateways without the rights that they need: the controller becomes ready nevertheless, and says so.
//! The API server here answers as a real one answers a controller that has only its own role;
//! `tests/kube/tests/gateway.rs` shows the same on a real Kubernetes.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../control/tests/common/alone.rs"]
mod alone;

use alone::cluster;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kube::{Client, Config as ClientConfig};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tulle_control::jwks::LEAST_REFRESH;
use tulle_control::{Controller, ControllerConfig, HOST_AWAY, StoreKind};
use tulle_kube::gateway::{self, MISSING, Surroundings, Texts, View};
use tulle_kube::kinds::Missing;
use tulle_kube::status::StatusUpdates;

const LONG: Duration = Duration::from_secs(60);

fn reply(status: StatusCode, value: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(value.to_string()));
    *response.status_mut() = status;
    let kind = "application/json".parse().unwrap();
    response.headers_mut().insert("content-type", kind);
    response
}

/// Answers as the API server does for a controller that may see Services, and none of the kinds that
/// Gateways need.
async fn answer(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let is_watch = request.uri().query().is_some_and(|q| q.contains("watch="));
    match request.uri().path() {
        "/version" => reply(
            StatusCode::OK,
            &json!({
                "major": "1", "minor": "34", "gitVersion": "v1.34.4", "gitCommit": "", "gitTreeState": "",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
            }),
        ),
        // Nothing happens to them.
        "/api/v1/services" if is_watch => std::future::pending().await,
        "/api/v1/services" => reply(
            StatusCode::OK,
            &json!({ "apiVersion": "v1", "kind": "ServiceList", "metadata": { "resourceVersion": "1" }, "items": [] }),
        ),
        path => reply(
            StatusCode::FORBIDDEN,
            &json!({
                "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
                "reason": "Forbidden", "code": 403, "message": format!("{path} is forbidden"),
            }),
        ),
    }
}

async fn api_server() -> Client {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service =
                service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    let address = format!("http://127.0.0.1:{port}").parse().unwrap();
    Client::try_from(ClientConfig::new(address)).unwrap()
}

#[tokio::test]
async fn without_the_rights_of_gateways_the_controller_becomes_ready() {
    let directory = tempfile::tempdir().unwrap();
    let config = ControllerConfig {
        socket: directory.path().join("run/control.sock"),
        state_dir: directory.path().to_owned(),
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        store: StoreKind::Memory,
        metrics: None,
        host_away: HOST_AWAY,
        least_key_refresh: LEAST_REFRESH,
        observe: false,
    };
    let cluster = cluster("cluster.local");
    let controller = Controller::start_in_cluster(config, cluster).await.unwrap();
    let settings = json!({
        "image": "proxy", "controller": "tulle-controller:15010", "trustDomain": "cluster.local",
    });
    let (_leading, leads) = watch::channel(false);
    let (seen, views) = watch::channel(None);
    seen.send_replace(Some(View::default()));
    let (missing, mut still_missing) = watch::channel(Missing::from([MISSING]));
    let following = tokio::spawn(gateway::follow(Surroundings {
        client: api_server().await,
        feed: controller.feed(),
        settings: serde_json::from_value(settings).unwrap(),
        leads,
        views,
        presence: watch::channel(Texts::default()).0,
        wishes: StatusUpdates::default(),
        missing,
    }));
    let ready = timeout(LONG, still_missing.wait_for(Missing::is_empty))
        .await
        .is_ok();
    assert!(ready, "not ready: {:?}", *still_missing.borrow());
    following.abort();
}
