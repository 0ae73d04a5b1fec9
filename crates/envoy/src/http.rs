//! The last filter of a chain: the HTTP connection manager, or the TCP proxy.

use crate::cluster::millis;
use crate::whole::Translator;
use serde_json::{Value, json};

/// Origin of an HTTP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The application, or a client outside the mesh.
    Plain,
    /// A peer whose certificate was verified; the application gets its identity.
    Verified,
}

impl Translator<'_> {
    /// Returns filters that forward HTTP requests.
    pub(crate) fn http_filters(
        &self,
        stat_prefix: &str,
        arrival: Arrival,
        routes: Value,
        policy: Option<Value>,
    ) -> Value {
        let mesh = self.mesh();
        let router = json!({
            "name": "envoy.filters.http.router",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                "suppress_envoy_headers": true,
            },
        });
        let verified = arrival == Arrival::Verified;
        let http2 = verified && self.options.upstream_h2;
        let mut manager = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": stat_prefix,
            "codec_type": if http2 { "AUTO" } else { "HTTP1" },
            "route_config": routes,
            "http_filters": policy.into_iter().chain([router]).collect::<Vec<_>>(),
            "common_http_protocol_options": {
                "idle_timeout": millis(mesh.idle_timeout_ms),
                "max_headers_count": mesh.max_headers,
            },
            "max_request_headers_kb": mesh.max_header_bytes.div_ceil(1024).clamp(1, 8192),
            "request_headers_timeout": millis(mesh.header_timeout_ms),
            "stream_idle_timeout": millis(mesh.idle_timeout_ms),
            "http_protocol_options": { "accept_http_10": true },
            "server_header_transformation": "PASS_THROUGH",
            // The policy must judge the path that is forwarded.
            "normalize_path": false,
            "upgrade_configs": [{ "upgrade_type": "websocket" }],
        });
        if http2 {
            manager["http2_protocol_options"] = json!({ "allow_connect": true });
        }
        if verified {
            manager["forward_client_cert_details"] = "SANITIZE_SET".into();
            manager["set_current_client_cert_details"] = json!({ "uri": true });
        }
        if mesh.access_log {
            manager["access_log"] = json!([access_log(&[
                ("method", "%REQ(:METHOD)%"),
                ("path", "%REQ(:PATH)%"),
                ("authority", "%REQ(:AUTHORITY)%"),
                ("response_code", "%RESPONSE_CODE%"),
            ])]);
        }
        json!([{ "name": "envoy.filters.network.http_connection_manager", "typed_config": manager }])
    }

    /// Returns filters that forward bytes.
    pub(crate) fn tcp_filters(&self, stat_prefix: &str, cluster: &str) -> Value {
        let mut proxy = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": stat_prefix,
            "cluster": cluster,
            "idle_timeout": millis(self.mesh().idle_timeout_ms),
            "max_connect_attempts": 3,
        });
        if self.mesh().access_log {
            proxy["access_log"] = json!([access_log(&[])]);
        }
        json!([{ "name": "envoy.filters.network.tcp_proxy", "typed_config": proxy }])
    }
}

/// Writes one JSON line on standard output.
fn access_log(more: &[(&str, &str)]) -> Value {
    let mut fields = json!({
        "time": "%START_TIME%",
        "duration_ms": "%DURATION%",
        "peer": "%DOWNSTREAM_PEER_URI_SAN%",
        "upstream": "%UPSTREAM_CLUSTER%",
        "upstream_address": "%UPSTREAM_HOST%",
        "bytes_received": "%BYTES_RECEIVED%",
        "bytes_sent": "%BYTES_SENT%",
        "response_flags": "%RESPONSE_FLAGS%",
    });
    for (name, value) in more {
        fields[*name] = (*value).into();
    }
    json!({
        "name": "envoy.access_loggers.stdout",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": { "json_format": fields },
        },
    })
}
