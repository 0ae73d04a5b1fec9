//! The controller's own figures as Prometheus text. docs/metrics.md says what each means.

mod serve;

pub(crate) use serve::serve;

use crate::metrics::{Text, process};
use crate::state::MeshState;
use std::fmt::Display;

/// The text of a scrape.
fn render(state: &MeshState) -> String {
    let mut text = Text::default();
    proxies(&mut text, state);
    certificates(&mut text, state);
    objects(&mut text, state);
    let build = "tulle_controller_build_info";
    text.metric(build, "gauge", "1, with the version as a label.");
    text.sample(build, &[("version", env!("CARGO_PKG_VERSION"))], 1);
    process::write(&mut text);
    if let Some(more) = state.more_metrics() {
        more(&mut text);
    }
    text.end()
}

fn row(text: &mut Text, name: &str, kind: &str, help: &str, value: impl Display) {
    text.single(&format!("tulle_controller_{name}"), kind, help, value);
}

fn proxies(text: &mut Text, state: &MeshState) {
    let metrics = &state.metrics;
    let streams = state.hub.streams();
    let help = "Proxies with an open configuration stream.";
    row(text, "proxies_connected", "gauge", help, streams.len());
    let refused = streams.iter().filter(|s| !s.status().last_error.is_empty());
    let help = "Connected proxies that have refused the last update.";
    row(text, "proxies_refusing", "gauge", help, refused.count());
    let help = "Updates sent to proxies.";
    let pushes = metrics.pushes.get();
    row(text, "config_updates_total", "counter", help, pushes);
    let help = "Updates that proxies refused.";
    let nacks = metrics.nacks.get();
    row(text, "config_rejections_total", "counter", help, nacks);
    metrics.push_seconds.write(
        text,
        "tulle_controller_config_push_seconds",
        "Time from a change, or a subscription, until a proxy has accepted the update about it.",
    );
    let ends = streams.iter().map(|s| s.status().certificate_not_after);
    if let Some(first) = ends.filter(|end| *end > 0).min() {
        let help = "When the first certificate of a connected proxy ends, in seconds since 1970.";
        let name = "proxy_certificate_not_after_seconds";
        row(text, name, "gauge", help, first);
    }
}

fn certificates(text: &mut Text, state: &MeshState) {
    let metrics = &state.metrics;
    let help = "Certificates issued to workloads and hosts.";
    let issued = metrics.certificates.get();
    row(text, "certificates_issued_total", "counter", help, issued);
    metrics.certificates_refused.write(
        text,
        "tulle_controller_certificates_refused_total",
        ["code"],
        "Requests for a certificate that got none, by gRPC's code.",
    );
    let failures = state.issuer().map_or(0, |issuer| issuer.failures());
    let help = "Requests for which another issuer gave no certificate.";
    row(text, "issuer_failures_total", "counter", help, failures);
    let authority = state.authority();
    let help = "When the root that signs ends, in seconds since 1970.";
    let ends = authority.trusted().first().map(|root| root.not_after);
    let ends = ends.map_or(0, time::OffsetDateTime::unix_timestamp);
    row(text, "root_not_after_seconds", "gauge", help, ends);
    let waiting = match authority.roots().progress() {
        Some(_) => state.waiting().len(),
        None => 0,
    };
    let help = "Sidecars and hosts that have not done what the rotation of the root asks.";
    row(text, "rotation_waiting", "gauge", help, waiting);
}

fn objects(text: &mut Text, state: &MeshState) {
    let (counts, cluster) = state.counts();
    let name = "tulle_controller_objects";
    text.metric(name, "gauge", "Objects in force, by kind.");
    for (kind, count) in counts {
        text.sample(name, &[("kind", kind)], count);
    }
    let Some(cluster) = cluster else { return };
    let help = "Services of the cluster.";
    row(text, "services", "gauge", help, cluster.services);
    let name = "tulle_controller_pods";
    text.metric(name, "gauge", "Pods of the cluster that run.");
    let without = cluster.pods - cluster.with_sidecar;
    for (sidecar, count) in [("true", cluster.with_sidecar), ("false", without)] {
        text.sample(name, &[("sidecar", sidecar)], count);
    }
    let help = "Gateways of the cluster that are served.";
    row(text, "gateways", "gauge", help, cluster.gateways);
}
