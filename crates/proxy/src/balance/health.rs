//! Active health checks: probes endpoints before a request finds a failure.
//!
//! One worker of the proxy probes for all, with the same mutual TLS as requests, and only while the
//! port is in use: a mesh of a thousand clients must not probe for those that never call.

use super::{InForce, Port};
use crate::config::traffic::checks::{Checks, Running};
use crate::config::traffic::shared::Shared;
use crate::context::WorkerContext;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::Upstream;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;
use tokio::task::JoinSet;
use tulle_http1::{Limits, Method, Parsed};
use tulle_net::Buf;
use tulle_transport::StreamKind;

/// Longest head of an answer.
const HEAD_BYTES: usize = 32 * 1024;

/// The port is in use. The first worker that says so asks its endpoints for all.
pub fn used(checks: &Arc<Checks>, context: &Rc<WorkerContext>, port: &Port, now: u64) {
    if let Some(running) = checks.used(now) {
        let (context, service, number) = (context.clone(), port.service.clone(), port.number);
        let ports = port.in_force.clone();
        tokio::task::spawn_local(run(context, ports, service, number, running));
    }
}

/// Probes all endpoints repeatedly, until the port is no longer in use or no longer checked.
async fn run(
    context: Rc<WorkerContext>,
    ports: Rc<InForce>,
    service: Arc<str>,
    number: u16,
    running: Running,
) {
    let checks = running.checks();
    let interval = u64::from(checks.rule().interval_ms);
    while !checks.is_unused() && !context.is_draining() {
        let port = ports.find(&service, number);
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
        round(&context, &port, &shared, checks).await;
        // Proxies that started together must not probe together for ever.
        let jitter = context.random() % (interval / 4 + 1);
        tokio::time::sleep(Duration::from_millis(interval - interval / 8 + jitter)).await;
    }
}

async fn round(
    context: &Rc<WorkerContext>,
    port: &Port,
    shared: &Arc<Shared>,
    checks: &Arc<Checks>,
) {
    let mut asked = JoinSet::new();
    for (upstream, place) in port.members() {
        let Some(state) = shared.endpoints.get(place).cloned() else {
            continue;
        };
        let (context, upstream, checks) = (context.clone(), upstream.clone(), checks.clone());
        let host = port.service.clone();
        asked.spawn_local(async move {
            let limit = Duration::from_millis(checks.rule().timeout_ms.into());
            let one = check(&context, &upstream, &checks.rule().path, &host);
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
    context: &Rc<WorkerContext>,
    upstream: &Rc<Upstream>,
    path: &str,
    host: &str,
) -> Result<(), Failure> {
    if path.is_empty() {
        return upstream.probe(context).await;
    }
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: tulle-health-check\r\n\
         connection: close\r\n\r\n"
    );
    if let Some(lease) = upstream.checkout(context, StreamKind::Http) {
        let reused_may_be_dead = ask(lease, &request).await;
        if reused_may_be_dead.is_ok() {
            return Ok(());
        }
    }
    ask(upstream.connect(context, StreamKind::Http).await?, &request).await
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
