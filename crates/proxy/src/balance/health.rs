//! Active health checks: probes endpoints before a request finds a failure.
//!
//! One worker of the proxy probes for all, with the same mutual TLS as requests, and only while the
//! port is in use: a mesh of a thousand clients must not probe for those that never call.

use super::Port;
use super::shared::{EndpointState, Shared, now};
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::Upstream;
use crate::worker::Worker;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, ready};
use std::time::Duration;
use tokio::task::JoinSet;
use tulle_http1::{Limits, Method, Parsed};
use tulle_model::resource;
use tulle_net::Buf;
use tulle_transport::StreamKind;

/// A port without requests for this many intervals, and for this long, is not in use.
const UNUSED_INTERVALS: u64 = 6;
const UNUSED_MS: u64 = 60_000;
/// Longest head of an answer.
const HEAD_BYTES: usize = 32 * 1024;

/// The checks of one port.
#[derive(Debug)]
pub struct Checks {
    rule: resource::HealthCheck,
    running: AtomicBool,
    used: AtomicU64,
}

impl Checks {
    /// Creates checks that do not run yet. Defaults are filled in.
    pub fn new(rule: &resource::HealthCheck) -> Arc<Self> {
        let or = |value: u32, default| if value == 0 { default } else { value };
        let mut rule = rule.clone();
        rule.interval_ms = or(rule.interval_ms, 10_000);
        rule.timeout_ms = or(rule.timeout_ms, 1_000);
        rule.healthy = or(rule.healthy, 2);
        rule.unhealthy = or(rule.unhealthy, 3);
        Arc::new(Self {
            rule,
            running: AtomicBool::new(false),
            used: AtomicU64::new(0),
        })
    }

    /// Notes that the port is in use. The first worker to note it probes for all.
    pub fn used(self: &Arc<Self>, worker: &Rc<Worker>, port: &Port, now: u64) {
        self.used.store(now, Ordering::Relaxed);
        if self.running.load(Ordering::Relaxed) || self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let (worker, service, number) = (worker.clone(), port.service.clone(), port.number);
        tokio::task::spawn_local(run(worker, service, number, Running(self.clone())));
    }

    fn is_unused(&self) -> bool {
        let most = UNUSED_MS.max(u64::from(self.rule.interval_ms) * UNUSED_INTERVALS);
        now().saturating_sub(self.used.load(Ordering::Relaxed)) > most
    }

    fn record(&self, endpoint: &EndpointState, good: bool) {
        let (same, other) = match good {
            true => (&endpoint.good, &endpoint.bad),
            false => (&endpoint.bad, &endpoint.good),
        };
        other.store(0, Ordering::Relaxed);
        let row = same.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let enough = match good {
            true => self.rule.healthy,
            false => self.rule.unhealthy,
        };
        if row >= enough {
            endpoint.set_healthy(good);
        }
    }
}

struct Running(Arc<Checks>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}

/// Probes all endpoints repeatedly, until the port is no longer in use or no longer checked.
async fn run(worker: Rc<Worker>, service: Arc<str>, number: u16, running: Running) {
    let checks = &running.0;
    let interval = u64::from(checks.rule.interval_ms);
    while !checks.is_unused() && !worker.is_draining() {
        let config = worker.config();
        let port = worker
            .destination(&config, &service)
            .and_then(|d| d.port(number).cloned());
        drop(config);
        let shared = port.as_ref().and_then(|p| p.shared().cloned());
        // The next request starts the checks again, as configured then.
        let (Some(port), Some(shared)) = (port, shared) else {
            return;
        };
        if !shared
            .checks
            .as_ref()
            .is_some_and(|c| Arc::ptr_eq(c, checks))
        {
            return;
        }
        round(&worker, &port, &shared, checks).await;
        // Proxies that started together must not probe together for ever.
        let jitter = worker.random() % (interval / 4 + 1);
        tokio::time::sleep(Duration::from_millis(interval - interval / 8 + jitter)).await;
    }
}

async fn round(worker: &Rc<Worker>, port: &Port, shared: &Arc<Shared>, checks: &Arc<Checks>) {
    let mut asked = JoinSet::new();
    for (upstream, place) in port.members() {
        let Some(state) = shared.endpoints.get(place).cloned() else {
            continue;
        };
        let (worker, upstream, checks) = (worker.clone(), upstream.clone(), checks.clone());
        let host = port.service.clone();
        asked.spawn_local(async move {
            let limit = Duration::from_millis(checks.rule.timeout_ms.into());
            let one = check(&worker, &upstream, &checks.rule.path, &host);
            let result = tokio::time::timeout(limit, one).await;
            let result = result.unwrap_or_else(|_| {
                let text = format!("no answer within {limit:?}");
                Err(Failure::new(Reason::RequestTimeout, text))
            });
            let before = state.is_unhealthy();
            checks.record(&state, result.is_ok());
            if before != state.is_unhealthy() {
                let address = upstream.key.address;
                match &result {
                    Ok(()) => tracing::info!(service = &*host, %address, "the endpoint is healthy"),
                    Err(error) => {
                        tracing::warn!(service = &*host, %address, %error, "the endpoint is unhealthy");
                    }
                }
            }
        });
    }
    while asked.join_next().await.is_some() {}
}

async fn check(
    worker: &Rc<Worker>,
    upstream: &Rc<Upstream>,
    path: &str,
    host: &str,
) -> Result<(), Failure> {
    if path.is_empty() {
        return upstream.probe(worker).await;
    }
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: tulle-health-check\r\n\
         connection: close\r\n\r\n"
    );
    if let Some(lease) = upstream.checkout(worker, StreamKind::Http) {
        let reused_may_be_dead = ask(lease, &request).await;
        if reused_may_be_dead.is_ok() {
            return Ok(());
        }
    }
    ask(upstream.connect(worker, StreamKind::Http).await?, &request).await
}

async fn ask(mut lease: crate::upstream::Lease, request: &str) -> Result<(), Failure> {
    let link = &mut lease.link;
    let (mut sent, mut answer) = (0, Buf::new());
    let limits = Limits {
        head_bytes: HEAD_BYTES,
        headers: 100,
    };
    let broke = |e: std::io::Error| Failure::new(Reason::UpstreamReset, e.to_string());
    let result = poll_fn(|cx| {
        while let Some(rest) = request.as_bytes().get(sent..).filter(|r| !r.is_empty()) {
            sent += ready!(link.poll_write(cx, rest, true)).map_err(broke)?;
        }
        ready!(link.poll_flush(cx)).map_err(broke)?;
        loop {
            let parsed = tulle_http1::parse_response(answer.as_slice(), &limits, Method::Get);
            match parsed {
                Ok(Parsed::Complete(head)) if head.status < 200 => answer.consume(head.len),
                Ok(Parsed::Complete(head)) => return Poll::Ready(verdict(head.status)),
                Ok(Parsed::Partial) => {
                    if ready!(link.poll_read(cx, &mut answer)).map_err(broke)? == 0 {
                        let end = std::io::ErrorKind::UnexpectedEof.into();
                        return Poll::Ready(Err(broke(end)));
                    }
                }
                Err(bad) => {
                    let text = format!("{}: {bad}", bad.reason());
                    return Poll::Ready(Err(Failure::new(Reason::BadResponse, text)));
                }
            }
        }
    })
    .await;
    // The answer's body is not needed.
    lease.link.abort();
    result
}

fn verdict(status: u16) -> Result<(), Failure> {
    if (200..400).contains(&status) {
        return Ok(());
    }
    let text = format!("status {status}");
    Err(Failure::new(Reason::BadResponse, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_in_a_row_turn_an_endpoint() {
        let checks = Checks::new(&resource::HealthCheck::default());
        let endpoint = EndpointState::default();
        let turns = |answers: &[bool]| {
            answers
                .iter()
                .for_each(|good| checks.record(&endpoint, *good));
            endpoint.is_unhealthy()
        };
        assert!(!turns(&[false, false, true, false, false]));
        assert!(turns(&[false]));
        assert!(turns(&[true, false, true]));
        assert!(!turns(&[true]));
    }
}
