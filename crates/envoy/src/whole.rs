//! All resources of a proxy, and a whole configuration made of them.

use crate::cluster::{Speech, address};
use crate::{Untranslatable, supported};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tulle_model::bootstrap::{Bootstrap, CertificateFiles, ListenerKind};
use tulle_model::resource::{MeshSettings, Protocol};

/// Tulle accepts expressions that compile to some hundred kilobytes; Envoy's own limit is 100
/// instructions.
const LARGEST_PATTERN: u32 = 100_000;

/// Choices of the translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TranslationOptions {
    /// Use HTTP/2 between sidecars rather than HTTP/1.1.
    pub upstream_h2: bool,
    /// Send a request again that no server can have seen.
    pub retry: bool,
}

impl Default for TranslationOptions {
    fn default() -> Self {
        Self {
            upstream_h2: false,
            retry: true,
        }
    }
}

/// Source of certificate, key and roots for Envoy.
#[derive(Debug, Clone)]
pub enum Certificates {
    /// Files.
    Files(CertificateFiles),
    /// Secrets `identity` and `trust-bundle` of this config source.
    Secrets(Value),
}

/// Envoy v3 resources.
#[derive(Debug, Clone, PartialEq)]
pub struct Resources {
    /// `envoy.config.listener.v3.Listener`, with their routes.
    pub listeners: Vec<Value>,
    /// `envoy.config.cluster.v3.Cluster`, with their endpoints.
    pub clusters: Vec<Value>,
}

pub(crate) struct Translator<'a> {
    pub(crate) bootstrap: &'a Bootstrap,
    pub(crate) certificates: Certificates,
    pub(crate) options: TranslationOptions,
}

impl Translator<'_> {
    pub(crate) fn mesh(&self) -> &MeshSettings {
        &self.bootstrap.mesh
    }
}

/// Translates a proxy's resources.
///
/// # Errors
/// Names the first feature that Envoy lacks.
pub fn translate(
    bootstrap: &Bootstrap,
    certificates: Certificates,
    options: TranslationOptions,
) -> Result<Resources, Untranslatable> {
    supported::check(bootstrap)?;
    let translator = Translator {
        bootstrap,
        certificates,
        options,
    };
    Ok(Resources {
        listeners: translator.listeners()?,
        clusters: translator.clusters()?,
    })
}

/// Returns a configuration for an Envoy that runs alone. Its `/stats/prometheus` is at the
/// bootstrap's `admin` address; the number of workers belongs on its command line
/// (`--concurrency`).
///
/// # Errors
/// Names the first feature that Envoy lacks.
pub fn static_config(
    bootstrap: &Bootstrap,
    options: TranslationOptions,
) -> Result<Value, Untranslatable> {
    let files = bootstrap.certificates.clone();
    let files = files.ok_or(Untranslatable::NoCertificates)?;
    let made = translate(bootstrap, Certificates::Files(files), options)?;
    Ok(json!({
        "node": { "id": bootstrap.identity.as_str(), "cluster": bootstrap.identity.name() },
        "admin": { "address": address(bootstrap.admin) },
        "layered_runtime": runtime(),
        "static_resources": { "listeners": made.listeners, "clusters": made.clusters },
    }))
}

/// Returns settings that Envoy accepts nowhere else.
pub(crate) fn runtime() -> Value {
    json!({ "layers": [{
        "name": "static",
        "static_layer": {
            "re2.max_program_size.error_level": LARGEST_PATTERN,
            "re2.max_program_size.warn_level": LARGEST_PATTERN,
            // A condition on a header applies to all fields of that name, joined, and not to any
            // single one: the application may read another one than was judged.
            "envoy.reloadable_features.match_headers_individually": false,
            "envoy.reloadable_features.rbac_match_headers_individually": false,
        },
    }] })
}

impl Translator<'_> {
    fn listeners(&self) -> Result<Vec<Value>, Untranslatable> {
        let listeners = self.bootstrap.listeners.iter().map(|listener| {
            let at = listener.address;
            match &listener.kind {
                ListenerKind::Outbound => self.outbound_listener(at),
                ListenerKind::Upstream { service, port } => {
                    self.upstream_listener(at, service, *port)
                }
                ListenerKind::Inbound => self.inbound_listener(at),
                ListenerKind::InboundPort { port } => self.port_listener(at, *port),
                ListenerKind::Gateway { gateway, .. } => Err(Untranslatable::Gateway {
                    gateway: gateway.clone(),
                }),
            }
        });
        listeners.collect()
    }

    fn clusters(&self) -> Result<Vec<Value>, Untranslatable> {
        let services = &self.bootstrap.services;
        let routes = services.iter().flat_map(|s| &s.routes);
        // A route may send requests to a port that is otherwise opaque.
        let backends: BTreeSet<(&str, u16)> = routes
            .flat_map(|r| &r.rules)
            .flat_map(|r| &r.backends)
            .map(|b| (b.service.as_str(), b.port))
            .collect();
        let mut clusters = Vec::new();
        for service in services {
            for port in &service.ports {
                let named = backends.contains(&(service.name.as_str(), port.port));
                if named || matches!(port.protocol, Protocol::Detect | Protocol::Http) {
                    clusters.push(self.service_cluster(service, port, Speech::Http)?);
                }
                if port.protocol != Protocol::Http {
                    clusters.push(self.service_cluster(service, port, Speech::Tcp)?);
                }
            }
        }
        for port in self.bootstrap.inbound.iter().flat_map(|i| &i.ports) {
            clusters.push(self.app_cluster(port.port, port.target));
        }
        let is_outbound = |k: &ListenerKind| *k == ListenerKind::Outbound;
        let outbound = self
            .bootstrap
            .listeners
            .iter()
            .any(|l| is_outbound(&l.kind));
        if outbound && self.mesh().allow_egress {
            clusters.extend([self.refused_cluster(), self.egress_cluster()]);
        }
        Ok(clusters)
    }
}

fn listener_filter(name: &str, module: &str, message: &str) -> Value {
    json!({
        "name": format!("envoy.filters.listener.{name}"),
        "typed_config": {
            "@type": format!("type.googleapis.com/envoy.extensions.filters.listener.{module}.v3.{message}")
        },
    })
}

pub(crate) fn original_destination() -> Value {
    listener_filter("original_dst", "original_dst", "OriginalDst")
}

pub(crate) fn tls_inspector() -> Value {
    listener_filter("tls_inspector", "tls_inspector", "TlsInspector")
}

/// Returns a filter that reads the first bytes of connections to these ports; none: to every port.
/// Elsewhere it would only delay servers that speak first.
pub(crate) fn http_inspector(ports: &[u16]) -> Value {
    let mut filter = listener_filter("http_inspector", "http_inspector", "HttpInspector");
    let mut matches: Vec<Value> = ports
        .iter()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .map(|port| {
            // The end is not part of the range.
            let range = json!({ "start": port, "end": u32::from(*port) + 1 });
            json!({ "destination_port_range": range })
        })
        .collect();
    let those = match matches.len() {
        0 => return filter,
        1 => matches.remove(0),
        _ => json!({ "or_match": { "rules": matches } }),
    };
    filter["filter_disabled"] = json!({ "not_match": those });
    filter
}
