//! The Envoy process of a sidecar and its administration, which only this process can reach.

use super::xds;
use crate::whole::runtime;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use tulle_model::bootstrap::Bootstrap;

/// How long connections of a replaced listener may go on. Envoy asks their clients to leave in this
/// time and then cuts them.
const DRAIN_SECONDS: &str = "20";
/// Idle connections are asked to leave, too; clients need a moment to notice.
const FAREWELL: Duration = Duration::from_millis(500);
/// How long Envoy may take to end.
const END: Duration = Duration::from_secs(2);
/// Longest wait for an answer of its administration.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval between checks for open requests.
const LOOK: Duration = Duration::from_millis(100);

/// A running Envoy.
pub(super) struct Envoy {
    process: Child,
    admin: EnvoyAdmin,
}

/// Its administration.
#[derive(Clone)]
pub(super) struct EnvoyAdmin(PathBuf);

impl Envoy {
    /// Starts Envoy. Its files are in `directory`; none holds a secret.
    pub(super) fn start(
        program: &Path,
        directory: &Path,
        bootstrap: &Bootstrap,
    ) -> io::Result<Self> {
        let admin = EnvoyAdmin(directory.join("envoy.sock"));
        let file = directory.join("envoy.json");
        std::fs::write(&file, config(bootstrap, directory).to_string())?;
        let workers = match bootstrap.workers {
            0 => tulle_proxy::run::allowed_cores(),
            count => count.into(),
        };
        // At `info` Envoy logs each of its hundreds of extensions.
        let level = match bootstrap.mesh.log_level.as_str() {
            "info" => "warn",
            other => other,
        };
        let process = Command::new(program)
            .arg("-c")
            .arg(file)
            .args(["--concurrency", &workers.to_string()])
            .args(["--log-level", level])
            .args(["--drain-time-s", DRAIN_SECONDS])
            // Drains with the next response, not some time before the end: a connection's filters
            // allow what was allowed when they were made.
            .args(["--drain-strategy", "immediate"])
            // Hot restart uses shared memory, for which all Envoys of a host would compete.
            .arg("--disable-hot-restart")
            // The agent's own standard input is the file that holds the key.
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self { process, admin })
    }

    /// Its administration.
    pub(super) fn admin(&self) -> EnvoyAdmin {
        self.admin.clone()
    }

    /// Waits until it ends by itself; returns its status as text.
    pub(super) async fn ended(&mut self) -> String {
        match self.process.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }

    /// Asks clients to leave and waits until no HTTP request is under way.
    pub(super) async fn drain(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let path = "/drain_listeners?graceful&skip_exit";
        if let Err(error) = self.admin.ask("POST", path).await {
            tracing::warn!(error, "Envoy does not drain");
            return;
        }
        sleep(FAREWELL).await;
        while Instant::now() < until && self.admin.is_busy().await {
            sleep(LOOK).await;
        }
    }

    /// Ends Envoy.
    pub(super) async fn end(mut self) {
        let pid = self.process.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            // It may have ended already.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if timeout(END, self.process.wait()).await.is_err() {
            let _ = self.process.kill().await;
        }
    }
}

impl EnvoyAdmin {
    /// Whether it serves.
    pub(super) async fn is_ready(&self) -> bool {
        self.ask("GET", "/ready").await.is_ok()
    }

    /// Returns its counters, as Prometheus text.
    pub(super) async fn metrics(&self) -> Option<String> {
        self.ask("GET", "/stats/prometheus?usedonly").await.ok()
    }

    async fn is_busy(&self) -> bool {
        let path = "/stats?filter=^http\\.(in|out)bound_.*\\.downstream_rq_active$";
        let text = self.ask("GET", path).await.unwrap_or_default();
        text.lines().any(|line| !line.ends_with(": 0"))
    }

    /// Returns the body of a successful answer, or why there is none.
    async fn ask(&self, method: &str, path: &str) -> Result<String, String> {
        timeout(PATIENCE, self.exchange(method, path))
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")))
    }

    async fn exchange(&self, method: &str, path: &str) -> Result<String, String> {
        use http_body_util::BodyExt;
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let stream = UnixStream::connect(&self.0).await.map_err(|e| text(&e))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| text(&e))?;
        let connection = tokio::spawn(connection);
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .body(http_body_util::Full::<Bytes>::default())
            .map_err(|e| text(&e))?;
        let response = sender.send_request(request).await.map_err(|e| text(&e))?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|e| text(&e))?;
        connection.abort();
        let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        if status.is_success() {
            Ok(body)
        } else {
            Err(format!("{status}: {}", body.trim()))
        }
    }
}

/// Returns Envoy's start-up configuration: where to get everything else.
fn config(bootstrap: &Bootstrap, directory: &Path) -> Value {
    let socket = |name: &str| json!({ "pipe": { "path": directory.join(name), "mode": 0o600 } });
    json!({
        "node": { "id": bootstrap.identity.as_str(), "cluster": bootstrap.identity.name() },
        "admin": { "address": socket("envoy.sock") },
        "layered_runtime": runtime(),
        "dynamic_resources": { "lds_config": xds::source(), "cds_config": xds::source() },
        "static_resources": { "clusters": [{
            "name": xds::CLUSTER,
            "type": "STATIC",
            "connect_timeout": "1s",
            "load_assignment": {
                "cluster_name": xds::CLUSTER,
                "endpoints": [{ "lb_endpoints": [
                    { "endpoint": { "address": socket("xds.sock") } }
                ] }],
            },
        }] },
    })
}
