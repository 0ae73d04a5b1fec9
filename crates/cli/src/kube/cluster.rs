//! The API server of the cluster that is meant, and what can be reached through it: objects, the
//! ports of a pod, the controller. Nothing here needs more than `kubectl` does.

use super::kubeconfig;
use crate::args::cluster::Which;
use crate::client::{self, Objects};
use crate::failure::{Failure, OrFail, Result};
use http::header::AUTHORIZATION;
use k8s_openapi::api::core::v1::Pod;
use kube::api::AttachParams;
use kube::client::{Body, ConfigExt};
use kube::config::KubeConfigOptions;
use kube::{Api, Client, Config, Error};
use serde_json::Value;
use std::future::ready;
use tonic::transport::Endpoint;
use tower::{BoxError, Layer, ServiceExt, service_fn};
use tulle_kube::names::{CONTROLLER, WEBHOOK};
use tulle_proxy::control::dial::{self, Stream};

/// Objects asked for at a time.
const PAGE: usize = 500;
/// Where a mesh is that says nothing else.
const USUAL: &str = "tulle-system";

/// A cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    config: Config,
    /// The context it is known by.
    pub(crate) context: String,
    /// The namespace of the context.
    pub(crate) namespace: String,
    /// Where its API server is.
    pub(crate) server: String,
}

impl Cluster {
    /// The cluster that options, or else the environment, name.
    pub(crate) async fn open(which: &Which) -> Result<Self> {
        let read = kubeconfig::read(which.kubeconfig.as_deref());
        let known = read.map_err(|e| {
            Failure::new("cannot find a cluster")
                .because(e)
                .fix("name a file with --kubeconfig or KUBECONFIG")
        })?;
        let context = which.context.clone().or(known.current_context.clone());
        let options = KubeConfigOptions {
            context: context.clone(),
            ..Default::default()
        };
        let config = Config::from_custom_kubeconfig(known, &options).await;
        let config = config.map_err(|e| {
            Failure::new("cannot use the kubeconfig")
                .because(e)
                .fix("`kubectl config get-contexts` lists what --context may name")
        })?;
        Self::at(config, context.unwrap_or_default())
    }

    /// The cluster that this pod is in, with the rights of its account.
    pub(crate) fn of_pod() -> Result<Self> {
        let config = Config::incluster().or_fail(|| "this is no pod of a cluster".to_owned())?;
        Self::at(config, String::new())
    }

    fn at(config: Config, context: String) -> Result<Self> {
        let (namespace, server) = (
            config.default_namespace.clone(),
            config.cluster_url.to_string(),
        );
        let client = Client::try_from(config.clone());
        let client = client.or_fail(|| format!("cannot use the cluster at {server}"))?;
        Ok(Self {
            client,
            config,
            context,
            namespace,
            server,
        })
    }

    /// An object, or another answer in JSON; none if there is no such thing.
    pub(crate) async fn get(&self, path: &str) -> Result<Option<Value>> {
        match self.ask_server("GET", path, None).await {
            Ok(text) => {
                let found = serde_json::from_str(&text);
                found
                    .or_fail(|| format!("the answer to {path} is not JSON"))
                    .map(Some)
            }
            Err(Error::Api(status)) if status.code == 404 => Ok(None),
            Err(e) => Err(self.failure(&format!("cannot read {path}"), e)),
        }
    }

    /// An answer as text.
    pub(crate) async fn text(&self, path: &str) -> Result<String> {
        let text = self.ask_server("GET", path, None).await;
        text.map_err(|e| self.failure(&format!("cannot read {path}"), e))
    }

    /// All objects of a kind; none if the cluster does not have the kind.
    pub(crate) async fn list(&self, path: &str) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        let mut more = String::new();
        let with = if path.contains('?') { '&' } else { '?' };
        loop {
            let page = format!("{path}{with}limit={PAGE}{more}");
            let Some(mut list) = self.get(&page).await? else {
                return Ok(all);
            };
            if let Some(Value::Array(items)) = list.get_mut("items").map(Value::take) {
                all.extend(items);
            }
            match list.pointer("/metadata/continue").and_then(Value::as_str) {
                Some(next) if !next.is_empty() => more = format!("&continue={}", encode(next)),
                _ => return Ok(all),
            }
        }
    }

    /// Makes an object, or asks for a review.
    pub(crate) async fn create(&self, path: &str, object: &Value) -> Result<Value> {
        let made = self.ask_server("POST", path, Some(object)).await;
        let made = made.map_err(|e| self.failure(&format!("cannot create at {path}"), e))?;
        serde_json::from_str(&made).or_fail(|| format!("the answer to {path} is not JSON"))
    }

    /// Changes an object by a merge patch (RFC 7386).
    pub(crate) async fn patch(&self, path: &str, change: &Value) -> Result<()> {
        let done = self.ask_server("PATCH", path, Some(change)).await;
        done.map(drop)
            .map_err(|e| self.failure(&format!("cannot change {path}"), e))
    }

    /// Removes an object; whether there was one.
    pub(crate) async fn delete(&self, path: &str) -> Result<bool> {
        match self.ask_server("DELETE", path, None).await {
            Ok(_) => Ok(true),
            Err(Error::Api(status)) if status.code == 404 => Ok(false),
            Err(e) => Err(self.failure(&format!("cannot delete {path}"), e)),
        }
    }

    async fn ask_server(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> std::result::Result<String, Error> {
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .body(body.map(Value::to_string).unwrap_or_default().into_bytes());
        let request = request.map_err(Error::HttpError)?;
        self.client.request_text(request).await
    }

    fn failure(&self, what: &str, error: Error) -> Failure {
        match error {
            Error::Api(status) if matches!(status.code, 401 | 403) => Failure::new(what)
                .because(status.message)
                .fix("use a context with these rights, or ask the cluster's administrator"),
            Error::Api(status) => Failure::new(what).because(status.message),
            other => Failure::new(what).because(deepest(&other)).fix(format!(
                "check that the API server at {} is up",
                self.server
            )),
        }
    }

    /// The bearer token with which the API server knows this user; none: it knows them by something else, such as a
    /// certificate.
    pub(crate) async fn bearer_token(&self) -> Result<Option<String>> {
        let what = || "cannot get the token of the kubeconfig".to_owned();
        let Some(layer) = self.config.auth_layer().or_fail(what)? else {
            return Ok(None);
        };
        // The library hands out no token, but writes it into requests.
        let service = layer.layer(service_fn(|request: http::Request<Body>| {
            let written = request.headers().get(AUTHORIZATION).cloned();
            ready(Ok::<_, BoxError>(http::Response::new(written)))
        }));
        let written = service.oneshot(http::Request::new(Body::empty())).await;
        let written = written.map_err(|error| Failure::new(what()).because(error))?;
        let value = written.into_body();
        let text = value.as_ref().and_then(|value| value.to_str().ok());
        let token = text.and_then(|text| text.strip_prefix("Bearer "));
        Ok(token.map(str::to_owned))
    }

    /// Seconds that this computer's clock is ahead of the API server's, if it says its time.
    pub(crate) async fn ahead(&self) -> Option<i64> {
        let request = http::Request::get("/version").body(kube::client::Body::empty());
        let answer = self.client.send(request.ok()?).await.ok()?;
        let date = answer.headers().get("date")?.to_str().ok()?;
        let date = k8s_openapi::jiff::fmt::rfc2822::parse(date).ok()?;
        Some(crate::proxies::now() - date.timestamp().as_second())
    }

    /// The namespace of the mesh's controller: where the webhook's service is.
    pub(crate) async fn home(&self) -> Result<String> {
        let path = webhook_path("mutating", WEBHOOK);
        let webhook = self.get(&path).await?.unwrap_or_default();
        let named = webhook.pointer("/webhooks/0/clientConfig/service/namespace");
        Ok(named.and_then(Value::as_str).unwrap_or(USUAL).to_owned())
    }

    /// A connection to a port of a pod: to its loopback, where a sidecar's administration is.
    pub(crate) async fn forward(
        &self,
        (namespace, pod): (&str, &str),
        port: u16,
    ) -> Result<impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + use<>> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let what = || format!("cannot reach port {port} of pod {namespace}/{pod}");
        let forwarded = api.portforward(pod, &[port]).await;
        let mut forwarded = forwarded.map_err(|e| self.failure(&what(), e))?;
        let stream = forwarded.take_stream(port);
        stream.ok_or_else(|| Failure::new(what()).because("the API server forwarded another port"))
    }

    /// A pod of the controller that is ready.
    pub(crate) async fn controller(&self, home: &str) -> Result<String> {
        let path = format!(
            "/api/v1/namespaces/{home}/pods?labelSelector=app.kubernetes.io%2Fname%3D{CONTROLLER}"
        );
        let pods = self.list(&path).await?;
        let ready = pods.iter().find(|pod| super::workloads::is_ready(pod));
        let name = ready.and_then(|pod| pod.pointer("/metadata/name")?.as_str());
        name.map(str::to_owned).ok_or_else(|| {
            let what = format!("no controller is ready in the namespace {home}");
            Failure::new(what)
                .fix("`tulle check` shows the reason, `tulle install` prints the missing objects")
        })
    }

    /// The controller, as on a host: its socket is in its pod, and a program there passes on what
    /// goes over it.
    pub(crate) async fn objects(&self) -> Result<Objects> {
        let home = self.home().await?;
        let pod = self.controller(&home).await?;
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &home);
        let how = AttachParams::default()
            .container("controller")
            .stdin(true)
            .stdout(true)
            .stderr(false);
        let command = ["/usr/local/bin/tulle", super::stream::SUBCOMMAND];
        let running = api.exec(&pod, command, &how).await;
        let what = format!("cannot ask the controller in pod {home}/{pod}");
        let mut running = running.map_err(|e| self.failure(&what, e))?;
        let (Some(stdin), Some(stdout)) = (running.stdin(), running.stdout()) else {
            return Err(
                Failure::new(what).because("the API server opened no input and output for it")
            );
        };
        let both = tokio::io::join(stdout, stdin);
        // The process ends with its handle, so that belongs to the connection.
        let mut once = Some((both, running));
        let connect = dial::connector(move || {
            let taken = once.take();
            async move {
                let (stream, running) =
                    taken.ok_or_else(|| std::io::Error::other("the connection has ended"))?;
                tokio::spawn(async move {
                    let _ = running.join().await;
                });
                Ok(Box::new(stream) as Box<dyn Stream>)
            }
        });
        let channel =
            Endpoint::from_static("http://controller").connect_with_connector_lazy(connect);
        Ok(client::objects_over(channel))
    }
}

/// Path of a webhook's configuration.
pub(crate) fn webhook_path(kind: &str, name: &str) -> String {
    format!("/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{name}")
}

/// Encodes a text for a query.
fn encode(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    let part = |b: u8| match plain(b) {
        true => char::from(b).to_string(),
        false => format!("%{b:02X}"),
    };
    text.bytes().map(part).collect()
}

/// The reason at the end of a chain of errors.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
