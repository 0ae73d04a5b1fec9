//! Clusters: one for each protocol of a service port, and one for each port of the application.

use crate::whole::Translator;
use crate::{Untranslatable, tls};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tulle_model::resource::{Balancer, Endpoint, Service, ServicePort};

/// Cluster for refused connections.
pub(crate) const REFUSED: &str = "refused";
/// Cluster for connections that leave the mesh.
pub(crate) const EGRESS: &str = "egress";

/// Protocol of a service's endpoints. Peers tell HTTP from opaque bytes by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Speech {
    Http,
    Tcp,
}

/// Name of a service port's cluster.
pub(crate) fn outbound(service: &str, port: u16, speech: Speech) -> String {
    match speech {
        Speech::Http => format!("outbound|{service}|{port}"),
        Speech::Tcp => format!("outbound|{service}|{port}|tcp"),
    }
}

/// Name of the cluster of one of the application's ports.
pub(crate) fn inbound(port: u16) -> String {
    format!("inbound|{port}")
}

/// Formats a time of the model.
pub(crate) fn millis(millis: u32) -> String {
    format!("{}.{:03}s", millis / 1000, millis % 1000)
}

/// Formats an address; the one of all interfaces accepts both families.
pub(crate) fn address(address: SocketAddr) -> Value {
    let mut socket = json!({ "address": address.ip().to_string(), "port_value": address.port() });
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket["ipv4_compat"] = true.into();
    }
    json!({ "socket_address": socket })
}

impl Translator<'_> {
    /// Returns the cluster of a service port.
    pub(crate) fn service_cluster(
        &self,
        service: &Service,
        port: &ServicePort,
        speech: Speech,
    ) -> Result<Value, Untranslatable> {
        let name = outbound(&service.name, port.port, speech);
        let mut cluster = self.cluster(&name, &port.endpoints);
        match port.traffic.as_ref().map(|t| &t.balancer) {
            Some(Balancer::LeastRequest) => cluster["lb_policy"] = "LEAST_REQUEST".into(),
            Some(Balancer::Random) => cluster["lb_policy"] = "RANDOM".into(),
            _ => {}
        }
        let secure = port.endpoints.iter().filter(|e| e.mutual_tls).count();
        if secure == 0 {
            self.http_options(&mut cluster, speech, false);
            return Ok(cluster);
        }
        if service.identities.is_empty() {
            return Err(Untranslatable::NoIdentity {
                service: service.name.clone(),
            });
        }
        let mixed = secure < port.endpoints.len();
        let http2 = self.options.upstream_h2 && speech == Speech::Http;
        if mixed && http2 {
            return Err(Untranslatable::MixedEndpoints {
                service: service.name.clone(),
                port: port.port,
            });
        }
        let alpn: &[&str] = match speech {
            Speech::Http if http2 => &["h2"],
            Speech::Http => &["http/1.1"],
            Speech::Tcp => &[],
        };
        let socket = tls::to_server(&self.certificates, &service.identities, alpn);
        if mixed {
            cluster["transport_socket_matches"] = json!([
                { "name": "tls", "match": { "mtls": true }, "transport_socket": socket },
                {
                    "name": "plain",
                    "match": {},
                    "transport_socket": {
                        "name": "envoy.transport_sockets.raw_buffer",
                        "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"
                        },
                    },
                },
            ]);
        } else {
            cluster["transport_socket"] = socket;
        }
        self.http_options(&mut cluster, speech, http2);
        Ok(cluster)
    }

    /// Returns the cluster of one of the application's ports.
    pub(crate) fn app_cluster(&self, port: u16, target: SocketAddr) -> Value {
        let endpoint = Endpoint::new(target, false);
        let mut cluster = self.cluster(&inbound(port), &[endpoint]);
        self.http_options(&mut cluster, Speech::Http, false);
        cluster
    }

    /// Returns a cluster without endpoints.
    pub(crate) fn refused_cluster(&self) -> Value {
        self.cluster(REFUSED, &[])
    }

    /// Returns the cluster for the original destination.
    pub(crate) fn egress_cluster(&self) -> Value {
        json!({
            "name": EGRESS,
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "connect_timeout": millis(self.mesh().connect_timeout_ms),
            "circuit_breakers": breakers(),
        })
    }

    fn cluster(&self, name: &str, endpoints: &[Endpoint]) -> Value {
        let mixed =
            endpoints.iter().any(|e| e.mutual_tls) && !endpoints.iter().all(|e| e.mutual_tls);
        let endpoints: Vec<Value> = endpoints
            .iter()
            .map(|endpoint| {
                let mut value = json!({ "endpoint": { "address": address(endpoint.address) } });
                if mixed && endpoint.mutual_tls {
                    value["metadata"] = json!({
                        "filter_metadata": { "envoy.transport_socket_match": { "mtls": true } }
                    });
                }
                value
            })
            .collect();
        json!({
            "name": name,
            "type": "STATIC",
            "connect_timeout": millis(self.mesh().connect_timeout_ms),
            "circuit_breakers": breakers(),
            "load_assignment": {
                "cluster_name": name,
                "endpoints": [{ "lb_endpoints": endpoints }],
            },
        })
    }

    fn http_options(&self, cluster: &mut Value, speech: Speech, http2: bool) {
        if speech == Speech::Tcp {
            return;
        }
        let explicit = if http2 {
            // WebSocket comes as an extended CONNECT.
            json!({ "http2_protocol_options": { "allow_connect": true } })
        } else {
            json!({ "http_protocol_options": {} })
        };
        cluster["typed_extension_protocol_options"] = json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "common_http_protocol_options": {
                    "idle_timeout": millis(self.mesh().idle_timeout_ms),
                },
                "explicit_http_config": explicit,
            }
        });
    }
}

/// Tulle has no limits of this kind. Envoy's own, 1024 of each, would refuse a busy service.
fn breakers() -> Value {
    let much = 1_000_000;
    json!({ "thresholds": [{
        "max_connections": much,
        "max_pending_requests": much,
        "max_requests": much,
        "max_retries": 1000,
    }] })
}
