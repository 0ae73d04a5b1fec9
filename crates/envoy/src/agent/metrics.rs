//! Envoy's counters under Istio's and Tulle's names, as far as Envoy has the data.
//!
//! It counts by cluster, that is by destination, and its certificate check gives the destination's
//! identity. It does not count by caller, so only the calling side reports.

use std::fmt::Write;
use tulle_model::samples::CLUSTER_DOMAIN;
use tulle_proxy::config::snapshot::{Service, Snapshot};

const REQUESTS: &str = "istio_requests_total";
const DURATIONS: &str = "istio_request_duration_milliseconds";
const CONNECTIONS: &str = "istio_tcp_connections_opened_total";

/// Converts Envoy's own Prometheus text.
pub(super) fn istio(native: &str, snapshot: &Snapshot) -> String {
    let mut requests = String::new();
    let mut durations = String::new();
    let mut connections = String::new();
    for sample in native.lines().filter_map(Sample::parse) {
        let cluster = sample.label("envoy_cluster_name").unwrap_or_default();
        let mut parts = cluster.split('|');
        let (Some("outbound"), Some(service), Some(port), speech) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let port = port.parse().unwrap_or(0);
        let labels = labels(snapshot, service, port);
        let value = sample.value;
        // Writing to a String cannot fail.
        let _ = match (sample.name, speech) {
            ("envoy_cluster_upstream_rq", None) => {
                let code = sample.label("envoy_response_code").unwrap_or_default();
                writeln!(
                    requests,
                    "{REQUESTS}{{{labels},response_code=\"{code}\",response_flags=\"-\"}} {value}"
                )
            }
            ("envoy_cluster_upstream_rq_time_bucket", None) => {
                let le = sample.label("le").unwrap_or_default();
                writeln!(
                    durations,
                    "{DURATIONS}_bucket{{{labels},le=\"{le}\"}} {value}"
                )
            }
            ("envoy_cluster_upstream_rq_time_sum", None) => {
                writeln!(durations, "{DURATIONS}_sum{{{labels}}} {value}")
            }
            ("envoy_cluster_upstream_rq_time_count", None) => {
                writeln!(durations, "{DURATIONS}_count{{{labels}}} {value}")
            }
            ("envoy_cluster_upstream_cx_total", Some("tcp")) => {
                writeln!(connections, "{CONNECTIONS}{{{labels}}} {value}")
            }
            _ => Ok(()),
        };
    }
    format!(
        "# TYPE {REQUESTS} counter\n{requests}# TYPE {DURATIONS} histogram\n{durations}\
         # TYPE {CONNECTIONS} counter\n{connections}"
    )
}

fn labels(snapshot: &Snapshot, service: &str, port: u16) -> String {
    let known = snapshot.services.get(service);
    // If there are several identities, Envoy does not say which of them answered.
    let destination = match known.map(|s| &*s.identities) {
        Some([one]) => one.as_str(),
        _ => "unknown",
    };
    let security = match known.is_some_and(|s| is_secure(s, port)) {
        true => "mutual_tls",
        false => "none",
    };
    let id = &snapshot.identity;
    let domain = id.service_account().map_or("", |_| CLUSTER_DOMAIN);
    format!(
        "reporter=\"source\",source_principal=\"{id}\",source_workload=\"{}\",\
         destination_principal=\"{destination}\",destination_service=\"{service}{domain}\",\
         connection_security_policy=\"{security}\"",
        id.name()
    )
}

fn is_secure(service: &Service, port: u16) -> bool {
    let endpoints = service.port(port).map(|p| &p.endpoints);
    endpoints.is_some_and(|e| e.iter().all(|e| e.mutual_tls))
}

struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: &'a str,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (name, rest) = line.split_once('{')?;
        let (labels, value) = rest.rsplit_once("} ")?;
        Some(Self {
            name,
            labels,
            value,
        })
    }

    /// Names of services need no escapes.
    fn label(&self, name: &str) -> Option<&'a str> {
        let mut labels = self.labels.split("\",");
        labels.find_map(|label| {
            let (key, value) = label.split_once("=\"")?;
            (key == name).then(|| value.trim_end_matches('"'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::identity::SpiffeId;
    use tulle_model::resource::{self, Endpoint, Resource, ServicePort};

    #[test]
    fn counters_of_clusters_become_those_of_callers() {
        let id = |name: &str| SpiffeId::parse(&format!("spiffe://t/svc/{name}")).unwrap();
        let mut snapshot = Snapshot::empty(id("a"));
        let port = |port| ServicePort {
            port,
            protocol: resource::Protocol::Http,
            endpoints: vec![Endpoint::new("127.0.0.1:1".parse().unwrap(), true)],
            ..Default::default()
        };
        let service = Resource::Service(resource::Service {
            name: "b".into(),
            identities: vec![id("b")],
            ports: vec![port(80), port(81)],
            ..Default::default()
        });
        snapshot.apply("service/b", &service).unwrap();
        let native = "\
# TYPE envoy_cluster_upstream_rq counter
envoy_cluster_upstream_rq{envoy_response_code=\"200\",envoy_cluster_name=\"outbound|b|80\"} 7
envoy_cluster_upstream_rq{envoy_response_code=\"200\",envoy_cluster_name=\"inbound|80\"} 9
envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name=\"outbound|b|80\",le=\"0.5\"} 3
envoy_cluster_upstream_cx_total{envoy_cluster_name=\"outbound|b|80\"} 2
envoy_cluster_upstream_cx_total{envoy_cluster_name=\"outbound|b|81|tcp\"} 4
envoy_server_live{} 1
";
        let text = istio(native, &snapshot);
        let labels = "reporter=\"source\",source_principal=\"spiffe://t/svc/a\",source_workload=\"a\",\
             destination_principal=\"spiffe://t/svc/b\",destination_service=\"b\",\
             connection_security_policy=\"mutual_tls\"";
        let samples: Vec<_> = text.lines().filter(|l| !l.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                format!(
                    "istio_requests_total{{{labels},response_code=\"200\",response_flags=\"-\"}} 7"
                ),
                format!("istio_request_duration_milliseconds_bucket{{{labels},le=\"0.5\"}} 3"),
                format!("istio_tcp_connections_opened_total{{{labels}}} 4"),
            ]
        );
    }
}
