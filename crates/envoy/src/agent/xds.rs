//! Envoy's configuration service, REST over a Unix socket: Envoy sends the version it has, and gets
//! an answer when there is another one.
//!
//! Clusters are sent before the listeners that need them, and removed after those: no request meets
//! a missing cluster. The private key passes through this socket, which only its owner can open,
//! and is never written to a file.

use crate::{Resources, tls};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tulle_proxy::control::publish::Current;

/// Name of the cluster that stands for this service in Envoy.
pub(super) const CLUSTER: &str = "tulle-agent";
/// How long a request without news is held.
const HOLD: Duration = Duration::from_secs(30);
/// How long Envoy waits for an answer.
const ENVOY_PATIENCE: &str = "60s";
/// Shortest time before a refused version is sent again.
const AGAIN: Duration = Duration::from_secs(5);
/// Longest request; Envoy describes itself in each.
const LONGEST: usize = 256 * 1024;

type Body = http_body_util::Full<Bytes>;

/// Returns the config source for Envoy.
pub(super) fn source() -> Value {
    json!({
        "api_config_source": {
            "api_type": "REST",
            "transport_api_version": "V3",
            "cluster_names": [CLUSTER],
            "refresh_delay": "0.010s",
            "request_timeout": ENVOY_PATIENCE,
        },
        "resource_api_version": "V3",
        // Without a configuration Envoy must not start to serve.
        "initial_fetch_timeout": "0s",
    })
}

/// One kind of resource.
#[derive(Default)]
struct Kind {
    /// 0: there is no version yet.
    version: u64,
    resources: Vec<Value>,
    /// The last version that Envoy accepted.
    accepted: u64,
    sent: Option<(u64, Instant)>,
    /// Whether Envoy asked again for a version that it had been sent.
    refused: bool,
}

impl Kind {
    fn set(&mut self, resources: Vec<Value>) {
        if self.version == 0 || self.resources != resources {
            self.version += 1;
            self.resources = resources;
            self.refused = false;
        }
    }

    /// Returns the version to answer a request with; `None`: wait for news.
    fn offer(&mut self, what: &str, seen: u64) -> Option<u64> {
        if seen == self.version {
            self.accepted = seen;
            self.refused = false;
            return None;
        }
        let refused =
            |(version, at): (u64, Instant)| version == self.version && at.elapsed() < AGAIN;
        if self.sent.is_some_and(refused) {
            tracing::warn!("Envoy refuses the {what}; see this log");
            self.refused = true;
            return None;
        }
        self.sent = Some((self.version, Instant::now()));
        Some(self.version)
    }
}

#[derive(Default)]
struct State {
    listeners: Kind,
    clusters: Kind,
    /// Version of the clusters that the listeners need.
    needed: u64,
    /// The clusters without those that only older listeners need.
    newest: Vec<Value>,
    identity: Kind,
    trust_bundle: Kind,
}

/// Configuration for Envoy.
#[derive(Clone)]
pub(super) struct Xds {
    state: Arc<Mutex<State>>,
    changed: Arc<watch::Sender<()>>,
}

impl Default for Xds {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::new(watch::Sender::new(())),
        }
    }
}

impl State {
    fn publish(&mut self, resources: Resources) {
        let name = |r: &Value| r["name"].as_str().unwrap_or_default().to_owned();
        let old = self.clusters.resources.iter().chain(&resources.clusters);
        let merged: BTreeMap<String, Value> = old.map(|c| (name(c), c.clone())).collect();
        self.clusters.set(merged.into_values().collect());
        self.needed = self.clusters.version;
        self.newest = resources.clusters;
        self.newest.sort_by_key(name);
        self.listeners.set(resources.listeners);
        self.prune();
    }

    /// Removes clusters that only older listeners need, once the newest listeners are in force.
    fn prune(&mut self) {
        let Kind {
            version, accepted, ..
        } = self.listeners;
        if version > 0 && accepted == version {
            self.clusters.set(self.newest.clone());
        }
    }

    fn offer(&mut self, kind: &str, secret: &str, seen: u64) -> Option<Value> {
        let (found, message) = match (kind, secret) {
            ("clusters", _) => (&mut self.clusters, "config.cluster.v3.Cluster"),
            ("listeners", _) => {
                if seen != self.listeners.version && self.clusters.accepted < self.needed {
                    return None;
                }
                (&mut self.listeners, "config.listener.v3.Listener")
            }
            (_, tls::IDENTITY) => (&mut self.identity, SECRET),
            (_, tls::TRUST_BUNDLE) => (&mut self.trust_bundle, SECRET),
            _ => return None,
        };
        let version = found.offer(kind, seen);
        let answer = version.map(|v| answer(v, message, found));
        self.prune();
        answer
    }
}

const SECRET: &str = "extensions.transport_sockets.tls.v3.Secret";

fn answer(version: u64, message: &str, kind: &Kind) -> Value {
    let url = format!("type.googleapis.com/envoy.{message}");
    let typed = |resource: &Value| {
        let mut resource = resource.clone();
        resource["@type"] = url.clone().into();
        resource
    };
    let resources: Vec<Value> = kind.resources.iter().map(typed).collect();
    json!({ "version_info": version.to_string(), "type_url": url, "resources": resources })
}

impl Xds {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes another configuration.
    pub(super) fn publish(&self, resources: Resources) {
        self.state().publish(resources);
        self.changed.send_replace(());
    }

    /// Publishes other certificates: key, chain and roots as PEM.
    pub(super) fn set_secrets(&self, [key, chain, roots]: [&str; 3]) {
        let mut state = self.state();
        state.identity.set(vec![json!({
            "name": tls::IDENTITY,
            "tls_certificate": {
                "certificate_chain": { "inline_string": chain },
                "private_key": { "inline_string": key },
            },
        })]);
        state.trust_bundle.set(vec![json!({
            "name": tls::TRUST_BUNDLE,
            "validation_context": { "trusted_ca": { "inline_string": roots } },
        })]);
        drop(state);
        self.changed.send_replace(());
    }

    /// Waits until Envoy has accepted listeners for the first time.
    pub(super) async fn accepted(&self) {
        let mut changed = self.changed.subscribe();
        while self.state().listeners.accepted == 0 {
            // The sender lives as long as this.
            let _ = changed.changed().await;
        }
    }

    /// Notes whether Envoy accepts its configuration, until the process ends.
    pub(super) async fn watch(self, current: Current) {
        let mut changed = self.changed.subscribe();
        let mut before = "";
        loop {
            let refused = {
                let state = self.state();
                match (state.clusters.refused, state.listeners.refused) {
                    (true, _) => "Envoy refuses the clusters; see its log",
                    (_, true) => "Envoy refuses the listeners; see its log",
                    _ => "",
                }
            };
            if refused != before {
                let result = if refused.is_empty() {
                    Ok(())
                } else {
                    Err(refused)
                };
                current.note_configuration(result);
                before = refused;
            }
            // The sender lives as long as this.
            let _ = changed.changed().await;
        }
    }

    /// Answers Envoy until the process ends.
    pub(super) async fn serve(self, listener: UnixListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let xds = self.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let xds = xds.clone();
                    async move { Ok::<_, Infallible>(xds.ask(request).await) }
                });
                let builder = hyper::server::conn::http1::Builder::new();
                // Envoy is the only client and connects again.
                let _ = builder
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    }

    async fn ask(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let Some(kind) = path.strip_prefix("/v3/discovery:") else {
            return respond(StatusCode::NOT_FOUND, String::new());
        };
        let Some(question) = read(request).await else {
            return respond(StatusCode::BAD_REQUEST, String::new());
        };
        let seen = question["version_info"].as_str().unwrap_or_default();
        let seen: u64 = seen.parse().unwrap_or(0);
        let secret = question["resource_names"][0].as_str().unwrap_or_default();
        let until = Instant::now() + HOLD;
        loop {
            let mut changed = self.changed.subscribe();
            let (before, answer, after) = {
                let mut state = self.state();
                let before = progress(&state);
                let answer = state.offer(kind, secret, seen);
                (before, answer, progress(&state))
            };
            if before != after {
                self.changed.send_replace(());
                changed.mark_unchanged();
            }
            if let Some(answer) = answer {
                return respond(StatusCode::OK, answer.to_string());
            }
            if timeout_at(until, changed.changed()).await.is_err() {
                return respond(StatusCode::NOT_MODIFIED, String::new());
            }
        }
    }
}

/// Returns the parts of the state that others may wait for.
fn progress(state: &State) -> (u64, u64, u64, bool) {
    let State {
        listeners,
        clusters,
        ..
    } = state;
    let refused = listeners.refused || clusters.refused;
    (
        clusters.accepted,
        listeners.accepted,
        clusters.version,
        refused,
    )
}

async fn read(request: Request<Incoming>) -> Option<Value> {
    use http_body_util::{BodyExt, Limited};
    let body = Limited::new(request.into_body(), LONGEST).collect().await;
    serde_json::from_slice(&body.ok()?.to_bytes()).ok()
}

fn respond(status: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static("application/json");
    response
        .headers_mut()
        .insert(hyper::header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(listener: &str, clusters: &[&str]) -> Resources {
        Resources {
            listeners: vec![json!({ "name": listener })],
            clusters: clusters.iter().map(|c| json!({ "name": c })).collect(),
        }
    }

    fn names(answer: &Value) -> Vec<&str> {
        let resources = answer["resources"].as_array().unwrap();
        resources
            .iter()
            .map(|r| r["name"].as_str().unwrap())
            .collect()
    }

    #[test]
    fn clusters_come_before_the_listeners_and_leave_after_them() {
        let mut state = State::default();
        assert!(state.offer("listeners", "", 0).is_none());
        state.publish(resources("a", &["one", "two"]));
        assert!(state.offer("listeners", "", 0).is_none());
        let clusters = state.offer("clusters", "", 0).unwrap();
        assert_eq!(names(&clusters), ["one", "two"]);
        assert!(state.offer("clusters", "", 1).is_none());
        assert_eq!(names(&state.offer("listeners", "", 0).unwrap()), ["a"]);
        assert!(state.offer("listeners", "", 1).is_none());

        state.publish(resources("b", &["two", "three"]));
        assert!(state.offer("listeners", "", 1).is_none());
        let clusters = state.offer("clusters", "", 1).unwrap();
        assert_eq!(names(&clusters), ["one", "three", "two"]);
        assert!(state.offer("clusters", "", 2).is_none());
        assert_eq!(names(&state.offer("listeners", "", 1).unwrap()), ["b"]);
        assert!(state.offer("clusters", "", 2).is_none());
        assert!(state.offer("listeners", "", 2).is_none());
        let clusters = state.offer("clusters", "", 2).unwrap();
        assert_eq!(names(&clusters), ["three", "two"]);
    }

    #[test]
    fn what_is_the_same_is_not_sent_and_what_was_refused_not_at_once() {
        let mut state = State::default();
        state.publish(resources("a", &["one"]));
        assert!(state.offer("clusters", "", 0).is_some());
        // Envoy asks for the same version again, because it refused it.
        assert!(!state.clusters.refused);
        assert!(state.offer("clusters", "", 0).is_none());
        assert!(state.clusters.refused);
        state.publish(resources("a", &["one"]));
        assert!(state.offer("clusters", "", 0).is_none());
        state.publish(resources("a", &["one", "two"]));
        assert!(!state.clusters.refused);
        assert!(state.offer("clusters", "", 0).is_some());
    }
}
