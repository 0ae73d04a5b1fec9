//! Proxies and certificates.

use super::Observer;
use super::pages::{
    AuthorityFacts, CertificateRow, CertificatesPage, ProxyPage, ProxyRow, RootFacts,
};
use super::shown::Series1;
use crate::hub::Stream;
use crate::index::Nodes;
use crate::reports::{Facts, Proxy, SERIES_STEP, now};
use std::collections::HashMap;
use std::sync::Arc;

/// A proxy whose certificate has less than this part of its life left should have renewed it.
const DUE: f64 = 0.25;
/// Seconds before its end that a root is due.
const ROOT_DUE: i64 = 30 * 86_400;
/// The same of a gateway's certificate, which somebody has to replace.
const GATEWAY_DUE: i64 = 14 * 86_400;

impl Observer {
    /// All connected proxies.
    pub fn proxies(&self) -> Vec<ProxyRow> {
        let nodes = self.state.nodes_known();
        let reporting = self.state.reports.proxies().into_iter();
        let reporting: HashMap<String, Arc<Proxy>> = reporting.map(|p| (p.id.clone(), p)).collect();
        let streams = self.state.hub.streams();
        // The last one first: one that is not known to be dead, or finishes what it began, may be there beside its successor.
        let streams = streams.iter().rev();
        let rows = streams.map(|stream| row(stream, &reporting, &nodes));
        let mut rows: Vec<ProxyRow> = rows.collect();
        rows.sort_by(|a, b| a.id.cmp(&b.id));
        rows.dedup_by(|a, b| a.id == b.id && a.reporting);
        rows
    }

    /// All about a proxy.
    pub fn proxy(&self, id: &str) -> Option<ProxyPage> {
        let row = self.proxies().into_iter().find(|row| row.id == id)?;
        let facts = self.state.reports.proxy(id).map(|proxy| proxy.facts());
        let facts = facts.unwrap_or_default();
        let lifetime = self.state.certificate_terms().borrow().lifetime_seconds;
        Some(ProxyPage {
            cpu_series: series(&facts, |cpu, _| f64::from(cpu)),
            memory_series: series(&facts, |_, kib| f64::from(kib) * 1024.0),
            certificates: vec![certificate(&row, lifetime)],
            row,
        })
    }

    /// Certificates of proxies, gateways and roots.
    pub fn certificates(&self) -> CertificatesPage {
        let status = self.state.authority_status();
        let lifetime = self.state.certificate_terms().borrow().lifetime_seconds;
        let rows = self.proxies();
        let mut all: Vec<CertificateRow> =
            rows.iter().map(|row| certificate(row, lifetime)).collect();
        let roots = status.roots.iter().map(|root| {
            let end = root.not_after_unix_seconds;
            kept(&root.sha256, "root", &root.role, end, ROOT_DUE)
        });
        all.extend(roots);
        let listeners = self.state.with_index(|index| index.listener_certificates());
        let gateways = listeners.into_iter().map(|(gateway, secret, end)| {
            kept(
                &secret,
                "gateway",
                &format!("gateway/{gateway}"),
                end,
                GATEWAY_DUE,
            )
        });
        all.extend(gateways);
        all.sort_by_key(|row| row.not_after);
        CertificatesPage {
            authority: AuthorityFacts {
                step: status.step,
                issuer: status.issuer,
                roots: status
                    .roots
                    .into_iter()
                    .map(|root| RootFacts {
                        sha256: root.sha256,
                        role: root.role,
                        not_after: root.not_after_unix_seconds,
                    })
                    .collect(),
            },
            certificates: all,
        }
    }
}

fn row(stream: &Stream, reporting: &HashMap<String, Arc<Proxy>>, nodes: &Nodes) -> ProxyRow {
    let status = stream.status();
    let identity = stream.identity.as_str();
    // A proxy of an earlier version does not say what instance it is.
    let instance = match status.instance.is_empty() {
        true => format!("stream-{}", stream.id()),
        false => status.instance.clone(),
    };
    let id = format!("{identity}#{instance}");
    let proxy = reporting.get(&id);
    let facts = proxy.map(|proxy| (proxy.facts(), proxy.stale));
    let facts = facts.filter(|(facts, stale)| now() - facts.at < *stale);
    let facts = facts.map(|(facts, _)| facts).unwrap_or_default();
    let node = nodes.of_proxy(identity, &status.instance);
    let known = nodes.all.get(node);
    let of_node = match known.map(|node| node.kind) {
        Some("gateway") => "gateway",
        _ => "sidecar",
    };
    ProxyRow {
        spiffe_id: identity.to_owned(),
        name: known.map_or_else(|| stream.identity.name().to_owned(), |node| node.name.clone()),
        kind: proxy.map_or(of_node, |proxy| proxy.kind).to_owned(),
        host: proxy.map(|proxy| proxy.host.clone()).unwrap_or_default(),
        version: proxy.map(|proxy| proxy.version.clone()).unwrap_or_default(),
        #[allow(clippy::cast_precision_loss)] // seconds of this century
        started_at: proxy.map(|proxy| proxy.started_at as f64),
        cpu: facts.cpu,
        memory: facts.memory,
        connections: facts.connections,
        requests_rate: facts.rate,
        subscriptions: status.subscriptions,
        sent: status.sent,
        acked: status.acked,
        last_error: status.last_error,
        faults: status.faults,
        certificate_not_after: status.certificate_not_after,
        reporting: proxy.is_some(),
        log_level: facts.log_level,
        id,
    }
}

#[allow(clippy::cast_possible_truncation)] // seconds of this century
fn left(not_after: i64) -> i64 {
    not_after - now() as i64
}

#[allow(clippy::cast_precision_loss)]
fn certificate(row: &ProxyRow, lifetime: i64) -> CertificateRow {
    let due = (lifetime as f64 * DUE) as i64;
    let mut certificate = kept(&row.spiffe_id, "proxy", "", row.certificate_not_after, due);
    certificate.place.clone_from(&row.id);
    certificate
}

fn kept(subject: &str, of: &'static str, place: &str, not_after: i64, due: i64) -> CertificateRow {
    let left = left(not_after);
    CertificateRow {
        subject: subject.to_owned(),
        of,
        not_after,
        left,
        state: match () {
            () if left <= 0 => "expired",
            () if left < due => "due",
            () => "ok",
        },
        place: place.to_owned(),
    }
}

/// One of the numbers over time; a step without a report has none.
fn series(facts: &Facts, of: impl Fn(f32, u32) -> f64) -> Series1 {
    let Some((first, ..)) = facts.series.front() else {
        return Series1::default();
    };
    let mut values = Vec::new();
    for (step, cpu, kib) in &facts.series {
        let place = (step - first) as usize;
        values.resize(place, None);
        values.push(Some(of(*cpu, *kib)));
    }
    Series1 {
        from: f64::from(*first) * f64::from(SERIES_STEP),
        step: SERIES_STEP,
        values,
    }
}
