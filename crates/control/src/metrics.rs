//! The controller's own figures as Prometheus text, on a loopback port.
//!
//! One path, one method, one answer per connection: no HTTP library is worth its size here.

use crate::world::World;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Scrapes at a time.
const MAX_SCRAPES: usize = 16;
/// Longest request head read.
const MAX_HEAD: usize = 8 * 1024;
/// For a whole scrape.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Counts since the controller started.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) pushes: Counter,
    pub(crate) nacks: Counter,
    pub(crate) certificates: Counter,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The text of a scrape.
pub(crate) fn render(world: &World) -> String {
    let metrics = &world.metrics;
    let proxies = u64::try_from(world.hub.streams().len()).unwrap_or(u64::MAX);
    let objects = u64::try_from(world.object_count()).unwrap_or(u64::MAX);
    let rows = [
        (
            "proxies_connected",
            "gauge",
            "Proxies with an open configuration stream.",
            proxies,
        ),
        ("objects", "gauge", "Objects stored.", objects),
        (
            "config_updates_total",
            "counter",
            "Updates sent to proxies.",
            metrics.pushes.get(),
        ),
        (
            "config_rejections_total",
            "counter",
            "Updates proxies refused.",
            metrics.nacks.get(),
        ),
        (
            "certificates_issued_total",
            "counter",
            "Certificates issued to workloads and hosts.",
            metrics.certificates.get(),
        ),
    ];
    let issuer_failures = world.issuer().map_or(0, |i| i.failures());
    let waiting = match world.authority().roots().progress() {
        Some(_) => u64::try_from(world.waiting().len()).unwrap_or(u64::MAX),
        None => 0,
    };
    let rows = rows.into_iter().chain([
        (
            "issuer_failures_total",
            "counter",
            "How often another issuer gave no certificate.",
            issuer_failures,
        ),
        (
            "rotation_waiting",
            "gauge",
            "Sidecars and hosts that have not done what the rotation of the root asks.",
            waiting,
        ),
    ]);
    let mut text = String::new();
    for (name, kind, help, value) in rows {
        let name = format!("tulle_controller_{name}");
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n"
        );
    }
    text
}

/// Answers scrapes until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, world: Arc<World>) {
    let slots = Arc::new(Semaphore::new(MAX_SCRAPES));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let world = world.clone();
                tokio::spawn(async move {
                    let _slot = slot;
                    // A scraper that does not finish in time is dropped; it will come again.
                    let _ = tokio::time::timeout(TIMEOUT, answer(stream, &world)).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "metrics connection not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, world: &World) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(1024);
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = if head.starts_with(b"GET /metrics ") {
        ("200 OK", render(world))
    } else {
        ("404 Not Found", "only GET /metrics\n".to_owned())
    };
    let response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}
