//! Shows the state of endpoints, for the operator (`GET /endpoints`) and for metrics.

use super::Port;
use crate::config::snapshot::Snapshot;
use crate::config::traffic::shared::{Shared, WHOLE, now};
use crate::telemetry::metrics::ServiceName;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// One worker's view of an endpoint.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Its address.
    pub address: SocketAddr,
    /// Its index in the resource.
    pub index: usize,
    /// Exchanges under way.
    pub active: u32,
    /// A recent connection attempt failed.
    pub down: bool,
    /// Moving average; 0: not measured.
    pub latency_ms: f64,
}

/// One worker's view of the ports it has used.
pub type WorkerView = Vec<((String, u16), Vec<Seen>)>;

/// One worker's view of a port.
pub fn view(port: &Port) -> ((String, u16), Vec<Seen>) {
    let seen = port.members().map(|(upstream, index)| Seen {
        address: upstream.key.address,
        index,
        active: upstream.active(),
        down: upstream.is_down(),
        latency_ms: upstream.latency().ms(),
    });
    ((port.service.to_string(), port.number), seen.collect())
}

/// Merges the workers' views, with the state they share.
pub fn endpoints(snapshot: &Snapshot, views: Vec<WorkerView>) -> serde_json::Value {
    let mut ports: BTreeMap<(String, u16), BTreeMap<usize, Seen>> = BTreeMap::new();
    for (port, seen) in views.into_iter().flatten() {
        let all = ports.entry(port).or_default();
        for one in seen {
            match all.get_mut(&one.index) {
                None => drop(all.insert(one.index, one)),
                Some(known) => {
                    known.active += one.active;
                    known.down |= one.down;
                    known.latency_ms = known.latency_ms.max(one.latency_ms);
                }
            }
        }
    }
    let shown = ports.into_iter().map(|((service, number), seen)| {
        let port = snapshot.services.get(&service).and_then(|s| s.port(number));
        let shared = port.and_then(|p| p.shared.as_deref());
        let now = now();
        let endpoints: Vec<_> = seen
            .into_values()
            .map(|seen| endpoint(&seen, shared, now))
            .collect();
        let breaker = shared.and_then(|s| s.breaker.as_ref());
        serde_json::json!({
            "service": service,
            "port": number,
            "policy": shared.map(|s| &s.traffic.name),
            "breaker": breaker.map(|b| b.state(now)),
            "pending": shared.and_then(|s| s.limits.as_ref()).map(|l| l.pending()),
            "endpoints": endpoints,
        })
    });
    shown.collect()
}

fn endpoint(seen: &Seen, shared: Option<&Shared>, now: u64) -> serde_json::Value {
    let state = shared.and_then(|s| s.endpoints.get(seen.index));
    let ejected_for = state.map_or(0, |s| s.ejected_for(now));
    let share = match (shared, state) {
        (Some(shared), Some(state)) => state.share(now, shared.traffic.slow_start_ms),
        _ => WHOLE,
    };
    let word = match state {
        Some(state) if state.is_unhealthy() => "unhealthy",
        _ if ejected_for > 0 => "ejected",
        _ if seen.down => "down",
        _ if share < WHOLE => "warming",
        _ => "ready",
    };
    serde_json::json!({
        "address": seen.address,
        "state": word,
        "ejectedForMs": ejected_for,
        "share": share as f64 / WHOLE as f64,
        "active": seen.active,
        "latencyMs": (seen.latency_ms * 1000.0).round() / 1000.0,
    })
}

/// Endpoints that no worker chooses now, because they were ejected or health checks find them unhealthy. Only ports with a
/// traffic policy have any.
pub fn left_out(snapshot: &Snapshot) -> impl Iterator<Item = SocketAddr> {
    let now = now();
    let ports = snapshot
        .services
        .values()
        .flat_map(|service| &service.ports);
    ports.flat_map(move |port| {
        let states = port.shared.iter().flat_map(|shared| &shared.endpoints);
        let unwell = port.endpoints.iter().zip(states);
        let unwell = unwell.filter(move |(_, state)| !state.is_well(now));
        unwell.map(|(endpoint, _)| endpoint.address)
    })
}

/// Writes the shared state of ports as Prometheus text. There are as many series as ports with a
/// traffic policy.
pub fn metrics(snapshot: &Snapshot, out: &mut String) {
    let mut rows: Vec<(&str, u16, &Shared)> = Vec::new();
    for service in snapshot.services.values() {
        for port in &service.ports {
            if let Some(shared) = port.shared.as_deref() {
                rows.push((&service.name, port.port, shared));
            }
        }
    }
    rows.sort_by_key(|(service, port, _)| (*service, *port));
    let of_cluster = snapshot.identity.service_account().is_some();
    let mut family =
        |name: &str, kind: &str, help: &str, value: &dyn Fn(&Shared) -> Option<u64>| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (service, port, shared) in &rows {
                if let Some(value) = value(shared) {
                    let service = ServiceName::new(service, of_cluster).host;
                    let _ = writeln!(
                        out,
                        "{name}{{destination_service=\"{service}\",port=\"{port}\"}} {value}"
                    );
                }
            }
        };
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    family(
        "tulle_endpoint_ejected_total",
        "counter",
        "Times an endpoint was ejected for failing.",
        &|s| {
            s.outlier
                .as_ref()
                .map(|_| s.ejections.load(Ordering::Relaxed))
        },
    );
    family(
        "tulle_endpoints_ejected",
        "gauge",
        "Endpoints ejected for failing.",
        &|s| {
            let out = |e: &&std::sync::Arc<crate::config::traffic::shared::EndpointState>| {
                e.is_ejected(now())
            };
            s.outlier
                .as_ref()
                .map(|_| count(s.endpoints.iter().filter(out).count()))
        },
    );
    family(
        "tulle_endpoints_unhealthy",
        "gauge",
        "Endpoints that health checks find unhealthy.",
        &|s| {
            let unwell = s.endpoints.iter().filter(|e| e.is_unhealthy());
            s.checks.as_ref().map(|_| count(unwell.count()))
        },
    );
    family(
        "tulle_circuit_open",
        "gauge",
        "1 while the circuit breaker refuses requests.",
        &|s| s.breaker.as_ref().map(|b| b.is_open().into()),
    );
    family(
        "tulle_circuit_opened_total",
        "counter",
        "Times the circuit was opened.",
        &|s| s.breaker.as_ref().map(|b| b.opened()),
    );
    family(
        "tulle_requests_pending",
        "gauge",
        "Requests and connections that wait for their turn.",
        &|s| s.limits.as_ref().map(|l| l.pending().into()),
    );
    family(
        "tulle_requests_limited_total",
        "counter",
        "Requests and connections refused at a limit.",
        &|s| s.limits.as_ref().map(|l| l.refused()),
    );
}
