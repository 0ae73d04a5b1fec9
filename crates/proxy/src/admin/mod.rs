//! Administration: readiness, metrics and the configuration in force. It never shows a key.
//!
//! On loopback everything is read-only, and asked for by an address (`host.rs`). The Unix socket, which only its owner
//! can open, also takes the requests that change something. Metrics have a port of their own that may be scraped from
//! elsewhere and answers nothing else; so has health, with the application's own checks.

pub(crate) mod application_metrics;
mod host;
pub(crate) mod metrics_body;
pub(crate) mod probe;
pub mod redirected;
pub mod wait;

use crate::admin::application_metrics::Scraper;
use crate::admin::metrics_body::MetricsBody;
use crate::admin::probe::Probes;
use crate::balance;
use crate::context::Recent;
use crate::control::publish::Current;
use crate::dns::Dns;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::export_totals::ExportTotals;
use crate::telemetry::metrics::{TrafficText, WorkerReport};
use crate::telemetry::outside_peers;
use crate::telemetry::tap::Tap;
use crate::worker::Command;
use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tulle_model::resource::MetricSettings;
use tulle_net::places::{Class, HeldPlace, PlaceLimits, Places, Stage, node_class};

/// Connections of a port served at a time. [`tulle_net::places`] decides who gives way.
const CONNECTIONS: PlaceLimits = PlaceLimits {
    all: 64,
    source: 32,
    reserved: 8,
};
/// A connection ends after the request it is serving at this age, and is cut after as long again: a
/// client that reads nothing must not keep a place for ever.
const LIFETIME: Duration = Duration::from_secs(60);

/// Query of the mesh's own commands and controller, which want neither the application's metrics nor all labels.
const ONLY_PROXY: &str = "only=proxy";

type Body = Either<Full<Bytes>, Either<Tap, MetricsBody>>;

/// State that administration can see.
#[derive(Clone)]
pub struct Admin {
    /// The configuration in force.
    pub current: Current,
    /// The workers, asked for their numbers.
    pub workers: Arc<Vec<UnboundedSender<Command>>>,
    /// The access log, whose dropped lines are counted.
    pub log: AccessLog,
    /// Totals of the span exporter, shown among the metrics.
    pub spans: Arc<ExportTotals>,
    /// Totals of the log's exporter, too.
    pub logs: Arc<ExportTotals>,
    /// Whether a controller is configured; readiness then waits for its first answer.
    pub controlled: bool,
    /// Gateways whose listeners this proxy serves.
    pub gateways: Arc<[String]>,
    /// Another program that carries the traffic in place of the workers.
    pub engine: Option<Engine>,
    /// The resolver that answers the application's DNS.
    pub dns: Option<Arc<Dns>>,
    /// The application's health checks.
    pub probes: Option<Arc<Probes>>,
    /// The application's own metrics.
    pub application: Option<Arc<Scraper>>,
}

/// Another program that carries the traffic. The task that runs it answers for it.
#[derive(Clone)]
pub struct Engine {
    /// Why it does not serve yet; empty once it serves.
    pub missing: watch::Receiver<String>,
    /// Requests for its counters, answered as Prometheus text.
    pub metrics: mpsc::Sender<oneshot::Sender<String>>,
}

/// Rights of a client, by the port or socket it came through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Metrics,
    Health,
    Read,
    Change,
}

impl Admin {
    /// Serves the metrics port.
    pub async fn serve_metrics(self, listener: TcpListener) {
        self.serve_tcp(listener, Access::Metrics).await;
    }

    /// Serves the port of health.
    pub async fn serve_health(self, listener: TcpListener) {
        self.serve_tcp(listener, Access::Health).await;
    }

    /// Serves the loopback port.
    pub async fn serve_loopback(self, listener: TcpListener) {
        self.serve_tcp(listener, Access::Read).await;
    }

    async fn serve_tcp(self, listener: TcpListener, access: Access) {
        let serve = |stream, place| self.clone().connection(stream, access, place);
        let places = Places::new(CONNECTIONS);
        places.accept(listener, node_class(), serve).await;
    }

    /// Serves the Unix socket.
    pub async fn serve_socket(self, listener: UnixListener) {
        // All clients are the owner's, so the oldest silent one makes room.
        let source = IpAddr::from(Ipv4Addr::LOCALHOST);
        let places = Places::new(CONNECTIONS);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let admin = self.clone();
                    let serve = |place| admin.connection(stream, Access::Change, place);
                    places.serve(source, Class::Anyone, serve);
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Answers the requests of a connection. Clients can repeat every request, so its place may go
    /// to another connection at any time.
    async fn connection<S>(self, stream: S, access: Access, place: Arc<HeldPlace>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = service_fn(move |request| {
            let (admin, place) = (self.clone(), place.clone());
            async move {
                place.reach(Stage::Served);
                let response = admin.answer(request, access).await;
                // A tap keeps streaming; after any other answer the connection is silent.
                if !matches!(response.body(), Either::Right(Either::Left(_))) {
                    place.reach(Stage::Silent);
                }
                Ok::<_, Infallible>(response)
            }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_secs(10));
        builder.max_buf_size(16 * 1024);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        // A client that misbehaves concerns only itself.
        if timeout(LIFETIME, connection.as_mut()).await.is_err() {
            connection.as_mut().graceful_shutdown();
            let _ = timeout(LIFETIME, connection).await;
        }
    }

    async fn answer(&self, request: Request<Incoming>, access: Access) -> Response<Body> {
        if access == Access::Read && !host::is_address(request.headers()) {
            let fix = "ask for an address or localhost; other names are not answered\n";
            return text(StatusCode::MISDIRECTED_REQUEST, fix);
        }
        let path = request.uri().path();
        if access == Access::Health && !matches!(path, "/ready" | "/live") {
            return self.probe(path).await;
        }
        let metrics_only = access == Access::Metrics && path != "/metrics";
        let allowed = match path {
            _ if metrics_only => return unknown("GET /metrics\n"),
            "/metrics" | "/ready" | "/live" | "/config" | "/certificates" | "/errors"
            | "/endpoints" | "/outside" => "GET, HEAD",
            "/tap" => "GET",
            "/log-level" => "POST",
            _ => {
                return unknown(
                    "GET /ready /live /metrics /config /certificates /errors /endpoints /outside /tap, POST /log-level\n",
                );
            }
        };
        let method = request.method();
        if !allowed.split(", ").any(|a| a == method.as_str()) {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "");
            *response.body_mut() = full(format!("use {allowed}\n"));
            let allowed = hyper::header::HeaderValue::from_static(allowed);
            response.headers_mut().insert(hyper::header::ALLOW, allowed);
            return response;
        }
        match path {
            "/metrics" => {
                let short = request.uri().query() == Some(ONLY_PROXY);
                let (text, mut out) = self.metrics(short).await;
                // The mesh's own commands and controller never ask for the application's metrics.
                let own = access != Access::Metrics || short;
                if let Some(application) = self.application.as_ref().filter(|_| !own) {
                    application.append(&mut out, request.headers()).await;
                }
                let body = MetricsBody {
                    text,
                    rest: Some(out),
                };
                let mut response =
                    respond(StatusCode::OK, "text/plain; version=0.0.4", String::new());
                *response.body_mut() = Either::Right(Either::Right(body));
                response
            }
            "/ready" => self.ready().await,
            "/live" => text(StatusCode::OK, "live\n"),
            "/config" => json(&self.config()),
            "/certificates" => self.certificates(),
            "/errors" => self.errors().await,
            "/endpoints" => json(&self.endpoints().await),
            "/outside" => self.outside().await,
            "/tap" => self.tap(),
            _ if access == Access::Change => {
                let level = request.uri().query().and_then(|q| q.strip_prefix("level="));
                match level.is_some_and(crate::telemetry::logging::set_level) {
                    true => text(StatusCode::OK, "ok\n"),
                    false => text(
                        StatusCode::BAD_REQUEST,
                        "POST /log-level?level=error|warn|info|debug|trace\n",
                    ),
                }
            }
            _ => text(
                StatusCode::FORBIDDEN,
                "changes go through the Unix socket only (adminSocket)\n",
            ),
        }
    }

    /// Returns all of the proxy's own metrics as Prometheus text.
    pub(crate) async fn metrics_page(&self) -> String {
        let (traffic, rest) = self.metrics(false).await;
        traffic.chain([rest]).collect()
    }

    /// Returns the traffic, and all other metrics. A short answer has few labels and no sizes.
    async fn metrics(&self, short: bool) -> (TrafficText, String) {
        let mut report = WorkerReport::default();
        for worker in self.workers.iter() {
            if let Some(part) = ask(worker, Command::Metrics).await {
                report.merge(part);
            }
        }
        let mut out = String::new();
        let (snapshot, refused) = (self.current.get(), self.current.refused());
        let valid = snapshot.tls.as_ref().map(|t| t.identity().not_after());
        let seconds = valid
            .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
            .map_or(0, |d| d.as_secs());
        out.push_str(&format!(
            "# TYPE tulle_certificate_not_after_seconds gauge\n\
             tulle_certificate_not_after_seconds {seconds}\n\
             # TYPE tulle_config_generation gauge\ntulle_config_generation {}\n\
             # TYPE tulle_config_refused gauge\n\
             tulle_config_refused{{what=\"configuration\"}} {}\n\
             tulle_config_refused{{what=\"certificates\"}} {}\n\
             # TYPE tulle_config_refused_total counter\ntulle_config_refused_total {}\n\
             # TYPE tulle_access_log_dropped_total counter\ntulle_access_log_dropped_total {}\n",
            snapshot.generation,
            u8::from(refused.configuration.is_some()),
            u8::from(refused.certificates.is_some()),
            refused.count,
            self.log.dropped(),
        ));
        out.push_str(&self.spans.metrics("traces", "Spans"));
        out.push_str(&self.logs.metrics("logs", "Lines of the access log"));
        out.push_str(&crate::config::gateway_listener::metrics(
            &snapshot.gateways,
        ));
        if let Some(dns) = &self.dns {
            dns.encode(&mut out);
        }
        balance::show::metrics(&snapshot, &mut out);
        if let Some(engine) = &self.engine {
            let (reply, answer) = oneshot::channel();
            if engine.metrics.send(reply).await.is_ok() {
                out.push_str(&answer.await.unwrap_or_default());
            }
        }
        let settings = match short {
            true => MetricSettings {
                compact: true,
                without_sizes: true,
                osm_names: false,
            },
            false => snapshot.mesh.metrics,
        };
        (report.into_text(settings), out)
    }

    async fn ready(&self) -> Response<Body> {
        if self.current.is_draining() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "not ready: draining\n");
        }
        let snapshot = self.current.get();
        let now = std::time::SystemTime::now();
        let expired = |t: &tulle_tls::Context| t.identity().not_after() < now;
        let missing = match (&snapshot.tls, snapshot.complete || !self.controlled) {
            (Some(tls), _) if expired(tls) => "not ready: the certificate has expired\n",
            (Some(_), true) if self.current.is_taking_over() => {
                "not ready: the process before has the listeners yet\n"
            }
            (Some(_), true) => {
                let missing = self.engine.as_ref().map(|e| e.missing.borrow().clone());
                let missing = missing.unwrap_or_default();
                if missing.is_empty() {
                    // A worker may still use the snapshot before this one.
                    for worker in self.workers.iter() {
                        ask(worker, Command::Ping).await;
                    }
                    return text(StatusCode::OK, "ready\n");
                }
                let kind = "text/plain; charset=utf-8";
                let missing = format!("not ready: {missing}\n");
                return respond(StatusCode::SERVICE_UNAVAILABLE, kind, missing);
            }
            (None, _) => "not ready: no certificate yet\n",
            (_, false) => {
                let known = |name: &&String| snapshot.gateways.contains_key(*name);
                if let Some(name) = self.gateways.iter().find(|name| !known(name)) {
                    let kind = "text/plain; charset=utf-8";
                    let why = format!(
                        "not ready: no configuration of Gateway/{name} yet; does it exist?\n"
                    );
                    return respond(StatusCode::SERVICE_UNAVAILABLE, kind, why);
                }
                "not ready: no configuration yet\n"
            }
        };
        text(StatusCode::SERVICE_UNAVAILABLE, missing)
    }

    async fn probe(&self, path: &str) -> Response<Body> {
        let asked = match &self.probes {
            Some(probes) => probes.ask(path).await,
            None => None,
        };
        match asked {
            Some((status, why)) => respond(status, "text/plain; charset=utf-8", why),
            None => unknown("GET /ready /live /probe/CONTAINER/KIND\n"),
        }
    }

    /// Returns the configuration in force as `/config` shows it.
    pub(crate) fn config(&self) -> serde_json::Value {
        let snapshot = self.current.get();
        let services: serde_json::Map<_, _> = snapshot
            .services
            .values()
            .map(|s| {
                let ports: Vec<_> = s
                    .ports
                    .iter()
                    .map(|p| {
                        serde_json::json!({
                            "port": p.port, "protocol": p.protocol, "endpoints": p.endpoints,
                        })
                    })
                    .collect();
                let shown = serde_json::json!({ "identities": &*s.identities, "ports": ports });
                (s.name.to_string(), shown)
            })
            .collect();
        let inbound = snapshot.inbound.as_ref().map(|i| {
            let ports: Vec<_> = i
                .ports
                .iter()
                .map(|p| {
                    serde_json::json!({
                        "port": p.port, "protocol": p.protocol, "target": p.target,
                    })
                })
                .collect();
            serde_json::json!({
                "service": &*i.service, "ports": ports, "policy": i.policy.summary(),
            })
        });
        serde_json::json!({
            "identity": snapshot.identity,
            "generation": snapshot.generation,
            "refused": self.current.refused(),
            "mesh": snapshot.mesh,
            "revoked": &*snapshot.revoked,
            "services": services,
            "inbound": inbound,
            "gateways": snapshot.gateways.keys().collect::<Vec<_>>(),
            "egress": snapshot.egress.as_ref().map(|e| e.rule_names()),
            "addresses": snapshot.addresses,
        })
    }

    fn certificates(&self) -> Response<Body> {
        let snapshot = self.current.get();
        let Some(context) = &snapshot.tls else {
            return json(&serde_json::json!({}));
        };
        let public = context.identity().public();
        let seconds = |t: std::time::SystemTime| {
            t.duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |d| d.as_secs())
        };
        let roots: Vec<_> = context
            .bundle()
            .roots()
            .iter()
            .map(|r| {
                serde_json::json!({
                    "subject": r.subject, "fingerprint": r.fingerprint,
                    "not_after": seconds(r.not_after),
                })
            })
            .collect();
        json(&serde_json::json!({
            "spiffe_id": public.spiffe_id,
            "serial": public.serial,
            "not_before": seconds(public.not_before),
            "not_after": seconds(public.not_after),
            "chain": public.chain_pem,
            "trust_bundle": roots,
        }))
    }

    /// Returns the endpoints of what was called as `/endpoints` shows them.
    pub(crate) async fn endpoints(&self) -> serde_json::Value {
        let mut views = Vec::new();
        for worker in self.workers.iter() {
            views.extend(ask(worker, Command::Endpoints).await);
        }
        balance::show::endpoints(&self.current.get(), views)
    }

    /// Streams one JSON object a line until the watcher leaves or the time limit is reached.
    fn tap(&self) -> Response<Body> {
        match self.log.taps().watch() {
            Some(tap) => {
                let mut response = Response::new(Either::Right(Either::Left(tap)));
                let kind = hyper::header::HeaderValue::from_static("application/x-ndjson");
                response
                    .headers_mut()
                    .insert(hyper::header::CONTENT_TYPE, kind);
                response
            }
            None => text(
                StatusCode::TOO_MANY_REQUESTS,
                "too many watchers; try again later\n",
            ),
        }
    }

    async fn errors(&self) -> Response<Body> {
        let mut all: Vec<Recent> = Vec::new();
        for worker in self.workers.iter() {
            all.extend(ask(worker, Command::Errors).await.unwrap_or_default());
        }
        all.sort_by(|a, b| a.time.total_cmp(&b.time));
        json(&serde_json::json!(all))
    }

    async fn outside(&self) -> Response<Body> {
        let mut all = Vec::new();
        for worker in self.workers.iter() {
            all.extend(ask(worker, Command::Outside).await.unwrap_or_default());
        }
        json(&serde_json::json!(outside_peers::together(all)))
    }
}

/// Asks a worker. One that has ended gives no answer.
pub(crate) async fn ask<T>(
    worker: &UnboundedSender<Command>,
    command: impl FnOnce(oneshot::Sender<T>) -> Command,
) -> Option<T> {
    let (reply, answer) = oneshot::channel();
    worker.send(command(reply)).ok()?;
    answer.await.ok()
}

fn json(value: &serde_json::Value) -> Response<Body> {
    respond(StatusCode::OK, "application/json", format!("{value:#}\n"))
}

fn full(body: String) -> Body {
    Either::Left(Full::from(body))
}

fn unknown(paths: &'static str) -> Response<Body> {
    text(StatusCode::NOT_FOUND, paths)
}

fn text(status: StatusCode, body: &'static str) -> Response<Body> {
    respond(status, "text/plain; charset=utf-8", body.to_owned())
}

fn respond(status: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static(kind);
    response
        .headers_mut()
        .insert(hyper::header::CONTENT_TYPE, kind);
    response
}
