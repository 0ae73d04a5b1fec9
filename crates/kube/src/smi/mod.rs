//! SMI's metrics API (`metrics.smi-spec.io/v1alpha1`, TrafficMetrics): how resources of the cluster
//! answer, and with whom they talk.
//!
//! ```text
//!  user ──> API server: RBAC ──its front proxy's certificate──> front_proxy ──> path ──> answer
//!                                     the proxies' own counters ──pods──> rounds ──window──┘
//! ```
//!
//! The API server has authenticated and authorized who asks; so nobody but its front proxy is
//! answered. Numbers are of the proxies themselves, between two looks; nothing is stored.

mod answer;
mod discovery;
mod front_proxy;
mod path;
mod pods;
mod scrape_window;

use crate::https::{self, HANDSHAKE, HttpResponse, accept};
use crate::metadata::{Metadata, all_metadata};
use crate::smi::path::{RequestedPath, Resource};
use front_proxy::FrontProxy;
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use k8s_openapi::api::core::v1::Service;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use scrape_window::ScrapeWindows;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tulle_control::feed::Feed;

/// The API's group.
pub const GROUP: &str = "metrics.smi-spec.io";
/// Its version.
pub const VERSION: &str = "v1alpha1";
/// Name of the APIService.
pub const API_SERVICE: &str = "v1alpha1.metrics.smi-spec.io";

/// Serves the API until the process ends.
pub async fn serve(client: Client, feed: Feed, listener: TcpListener, names: Vec<String>) {
    let front_proxy = FrontProxy::new(client.clone(), feed, names);
    let metrics = Arc::new(Metrics {
        rounds: ScrapeWindows::new(client.clone()),
        client,
    });
    accept(listener, |stream, place| {
        let (present, metrics) = (front_proxy.present(), metrics.clone());
        async move {
            // The server admits no client until it knows the front proxy's authority.
            let Some(present) = present else { return };
            let Ok(Ok(tls)) = timeout(HANDSHAKE, present.tls.accept(stream)).await else {
                return;
            };
            let lets_in = present.lets_in(&tls);
            let answer = move |request| {
                let (metrics, lets_in) = (metrics.clone(), lets_in.clone());
                async move {
                    match lets_in {
                        Ok(()) => metrics.answer(request).await,
                        Err(why) => status(StatusCode::FORBIDDEN, "Forbidden", &why),
                    }
                }
            };
            https::connection(tls, place, answer).await;
        }
    })
    .await;
}

struct Metrics {
    client: Client,
    rounds: ScrapeWindows,
}

/// Why there is no answer, and the code for it.
type Refusal = (StatusCode, String);

impl Metrics {
    async fn answer(&self, request: Request<Incoming>) -> HttpResponse {
        if request.method() != Method::GET {
            let why = "traffic metrics can only be read";
            return status(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", why);
        }
        let uri = request.uri();
        let Some(asked) = path::parse(uri.path()) else {
            return status(
                StatusCode::NOT_FOUND,
                "NotFound",
                "this API has no such path",
            );
        };
        if let Some(known) = discovery::answer(&asked) {
            return https::json(StatusCode::OK, &known);
        }
        let selector = path::query(uri.query().unwrap_or_default(), "labelSelector");
        match self.metrics(&asked, selector).await {
            Ok(found) => https::json(StatusCode::OK, &found),
            Err((code, why)) if code == StatusCode::NOT_FOUND => status(code, "NotFound", &why),
            Err((code, why)) if code == StatusCode::BAD_REQUEST => status(code, "BadRequest", &why),
            Err((_, why)) => {
                tracing::warn!("traffic metrics are not available: {why}");
                status(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &why)
            }
        }
    }

    async fn metrics(
        &self,
        asked: &RequestedPath,
        selector: Option<String>,
    ) -> Result<Value, Refusal> {
        let (resource, namespace, name) = match asked {
            RequestedPath::List(resource, namespace) => (resource, namespace, None),
            RequestedPath::One(resource, namespace, name)
            | RequestedPath::Edges(resource, namespace, name) => (resource, namespace, Some(name)),
            RequestedPath::Discovery(_) => return Err(unavailable("it is asked for nothing")),
        };
        let objects = self
            .objects(resource, namespace.as_deref(), name, selector.as_deref())
            .await?;
        // The pods of the object's namespace are asked, or all pods if it has none.
        let scope = match (resource.kind, name) {
            ("Namespace", Some(name)) => Some(name.clone()),
            _ => namespace.clone(),
        };
        let window = self.rounds.window(scope).await;
        let window = window.map_err(|why| unavailable(&why))?;
        let RequestedPath::Edges(..) = asked else {
            let items = objects
                .iter()
                .map(|object| answer::received(object, &window));
            let mut items: Vec<Value> = items.collect();
            return Ok(match name {
                Some(_) => items.pop().unwrap_or_default(),
                None => answer::list(resource, namespace.as_deref(), selector, items),
            });
        };
        let Some(object) = objects.first() else {
            return Err(unavailable("the resource is gone"));
        };
        let items = answer::edges(object, &window, &self.peers().await?);
        let mut list = answer::list(resource, namespace.as_deref(), None, items);
        list["resource"] = object.reference();
        Ok(list)
    }

    /// Returns the possible peers of a resource.
    async fn peers(&self) -> Result<answer::Peers, Refusal> {
        let api = all_metadata::<Service>(self.client.clone());
        let found = api.list(&ListParams::default()).await;
        let found = found.map_err(refusal)?.items.into_iter();
        let pods = pods::list(&self.client, None).await;
        Ok(answer::Peers {
            pods: pods.map_err(refusal)?,
            services: found
                .map(|s| (s.namespace().unwrap_or_default(), s.name_any()))
                .collect(),
        })
    }

    /// The resources themselves, as the API server has them.
    async fn objects(
        &self,
        resource: &'static Resource,
        namespace: Option<&str>,
        name: Option<&String>,
        selector: Option<&str>,
    ) -> Result<Vec<answer::Object>, Refusal> {
        let of = resource.api();
        let client = self.client.clone();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &of),
            None => Api::all_with(client, &of),
        };
        let found: Vec<Metadata> = match name {
            Some(name) => vec![api.get_metadata(name).await.map_err(refusal)?],
            None => {
                let params = ListParams {
                    label_selector: selector.map(str::to_owned),
                    ..ListParams::default()
                };
                api.list_metadata(&params).await.map_err(refusal)?.items
            }
        };
        let each = found.into_iter().map(|found| answer::Object {
            resource,
            namespace: found.namespace().unwrap_or_default(),
            name: found.name_any(),
        });
        Ok(each.collect::<BTreeSet<_>>().into_iter().collect())
    }
}

fn unavailable(why: &str) -> Refusal {
    (StatusCode::SERVICE_UNAVAILABLE, why.to_owned())
}

fn refusal(error: kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) if matches!(status.code, 400 | 404) => {
            let code = StatusCode::from_u16(status.code);
            (code.unwrap_or(StatusCode::BAD_REQUEST), status.message)
        }
        other => unavailable(&other.to_string()),
    }
}

/// An error as the API server's own are (meta/v1, Status).
fn status(code: StatusCode, reason: &str, why: &str) -> HttpResponse {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": why, "reason": reason, "code": code.as_u16(),
    });
    https::json(code, &status)
}
