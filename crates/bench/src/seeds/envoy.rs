//! Reads Envoy's own counters as evidence that does not rest on its agent: requests and connections before
//! an application, and that each connection was TLS with a verified certificate.

/// Counters of one sidecar's inbound side since it started.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Seen {
    workload: String,
    requests: u64,
    connections: u64,
    tls: u64,
    handshakes: u64,
    without_certificate: u64,
    /// Refusals on either side: a certificate of nobody's authority, or of another identity.
    refused: u64,
}

impl Seen {
    /// Reads Envoy's statistics in Prometheus' format.
    pub(super) fn from_metrics(workload: &str, metrics: &str) -> Self {
        let mut seen = Self {
            workload: workload.to_owned(),
            ..Self::default()
        };
        for line in metrics.lines() {
            let Some((name, rest)) = line.split_once('{') else {
                continue;
            };
            let Some((labels, value)) = rest.rsplit_once("} ") else {
                continue;
            };
            let value = value.trim().parse().unwrap_or(0);
            let inbound = labels.contains("envoy_http_conn_manager_prefix=\"inbound_");
            match name {
                "envoy_http_downstream_rq_total" if inbound => seen.requests += value,
                "envoy_http_downstream_cx_total" if inbound => seen.connections += value,
                "envoy_http_downstream_cx_ssl_total" if inbound => seen.tls += value,
                "envoy_listener_ssl_handshake" => seen.handshakes += value,
                "envoy_listener_ssl_no_certificate" => seen.without_certificate += value,
                "envoy_listener_ssl_fail_verify_san"
                | "envoy_listener_ssl_fail_verify_error"
                | "envoy_cluster_ssl_fail_verify_san"
                | "envoy_cluster_ssl_fail_verify_error" => seen.refused += value,
                _ => {}
            }
        }
        seen
    }

    /// Evidence for `answered` requests since `before`, or what is wrong.
    pub(super) fn prove(&self, before: &Self, answered: u64) -> Result<String, String> {
        let whose = format!("Envoy of {}", self.workload);
        let requests = self.requests.saturating_sub(before.requests);
        if requests < answered {
            return Err(format!(
                "{answered} requests were answered, but the {whose} saw only {requests}"
            ));
        }
        let (all, tls) = (self.connections, self.tls);
        if all == 0 || tls != all || self.handshakes < tls {
            return Err(format!(
                "of {all} connections to the {whose} {tls} were TLS, with {} handshakes",
                self.handshakes
            ));
        }
        let (without, refused) = (self.without_certificate, self.refused);
        if without > 0 || refused > 0 {
            return Err(format!(
                "{without} connections to the {whose} came without a certificate, {refused} certificates were refused"
            ));
        }
        Ok(format!(
            "{whose}: {requests} requests, {tls} of {all} connections TLS, each with a certificate of the trust domain, none refused"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = r#"# TYPE envoy_http_downstream_rq_total counter
envoy_http_downstream_rq_total{envoy_http_conn_manager_prefix="admin"} 4
envoy_http_downstream_rq_total{envoy_http_conn_manager_prefix="inbound_8101"} 10
envoy_http_downstream_cx_total{envoy_http_conn_manager_prefix="inbound_8101"} 3
envoy_http_downstream_cx_total{envoy_http_conn_manager_prefix="outbound_ratings_8101"} 7
envoy_http_downstream_cx_ssl_total{envoy_http_conn_manager_prefix="inbound_8101"} 3
envoy_listener_ssl_handshake{envoy_listener_address="[__]_15006"} 3
"#;

    #[test]
    fn each_request_and_connection_must_be_accounted_for() {
        let seen = Seen::from_metrics("ratings", METRICS);
        let evidence = seen.prove(&Seen::default(), 10).unwrap();
        assert!(
            evidence.contains("10 requests, 3 of 3 connections TLS"),
            "{evidence}"
        );
        assert!(seen.prove(&Seen::default(), 11).is_err());
        assert!(seen.prove(&seen, 1).is_err());
        assert!(seen.prove(&seen, 0).is_ok());
    }

    #[test]
    fn plaintext_and_refused_certificates_spoil_it() {
        for change in [
            "envoy_http_downstream_cx_total{envoy_http_conn_manager_prefix=\"inbound_8101\"} 1",
            "envoy_listener_ssl_no_certificate{envoy_listener_address=\"[__]_15006\"} 1",
            "envoy_listener_ssl_fail_verify_san{envoy_listener_address=\"[__]_15006\"} 1",
            "envoy_cluster_ssl_fail_verify_error{envoy_cluster_name=\"outbound|ratings|8101\"} 1",
        ] {
            let seen = Seen::from_metrics("ratings", &format!("{METRICS}{change}\n"));
            assert!(seen.prove(&Seen::default(), 10).is_err(), "{change}");
        }
        assert!(
            Seen::from_metrics("ratings", "")
                .prove(&Seen::default(), 0)
                .is_err()
        );
    }
}
