//! Turns the texts of a manifest into values, with defaults filled in.

mod access;
mod filters;
mod gateway;
mod guards;
mod revoked;
mod routes;
mod secret;
mod traffic;

use filters::field_values;
pub use filters::{FilterRefs, filters_of};
pub(in crate::manifest) use gateway::{LOCALITY, PROXY_PROTOCOL};

use super::quantity::{
    InvalidQuantity, parse_cpu, parse_duration, parse_memory, parse_pause, parse_percent,
};
use super::{
    AccessLogSpec, HostAuthoritySpec, Manifest, MeshSpec, MetricLabels, MetricSpec, OtlpSpec,
    TracingSpec, WorkloadPort, WorkloadSpec,
};
use crate::resource::{
    Collector, DEFAULT_SAMPLING_PPM, EVERY_REQUEST_PPM, LogLines, MeshSettings, MetricSettings,
    Otlp, Protocol, Revoked, Tracing,
};
use std::collections::BTreeSet;
use std::time::Duration;

/// Longest life of a host's authority: a month without its controller.
pub(super) const MAX_HOST_AUTHORITY: Duration = Duration::from_hours(30 * 24);

impl MeshSpec {
    /// Returns all revocations of the Mesh. Those that cannot be read were refused before.
    fn revoked(&self) -> Revoked {
        let mut revoked = Revoked::default();
        let read = self.revoked.iter().filter_map(|spec| spec.read().ok());
        read.for_each(|more| revoked.extend(more));
        revoked
    }

    /// Returns the settings for all proxies.
    ///
    /// # Errors
    /// A duration cannot be read; never for an object that was parsed.
    pub fn settings(&self) -> Result<MeshSettings, InvalidQuantity> {
        let default = MeshSettings::default();
        let timeouts = &self.timeouts;
        Ok(MeshSettings {
            trust_domain: self.trust_domain.clone(),
            strict_mtls: self.mtls.mode == super::MtlsMode::Strict,
            log_level: self
                .log_level
                .clone()
                .unwrap_or_else(|| default.log_level.clone()),
            access_log: self.access_log.is_some(),
            access_log_lines: self
                .access_log
                .as_ref()
                .map_or_else(|| Ok(LogLines::default()), AccessLogSpec::lines)?,
            detect_timeout_ms: ms(&timeouts.protocol_detection, default.detect_timeout_ms)?,
            header_timeout_ms: ms(&timeouts.header, default.header_timeout_ms)?,
            idle_timeout_ms: ms(&timeouts.idle, default.idle_timeout_ms)?,
            request_timeout_ms: ms(&timeouts.request, default.request_timeout_ms)?,
            connect_timeout_ms: ms(&timeouts.connect, default.connect_timeout_ms)?,
            max_header_bytes: self.limits.header_bytes.unwrap_or(default.max_header_bytes),
            max_headers: self.limits.header_count.unwrap_or(default.max_headers),
            allow_egress: self.allow_egress,
            economy_us: self.sidecar.economy.as_deref().map_or(Ok(0), parse_pause)?,
            max_connections: self.sidecar.max_connections.unwrap_or(0),
            dns: self.dns,
            tracing: self
                .tracing
                .as_ref()
                .map(TracingSpec::settings)
                .transpose()?
                .map(Box::new),
            otlp: self
                .otlp
                .as_ref()
                .map(OtlpSpec::settings)
                .transpose()?
                .map(Box::new),
            metrics: self.metrics.settings(),
            revoked: self.revoked(),
            strict_namespaces: BTreeSet::new(), // which these are, namespaces themselves say
        })
    }

    /// How long a workload's certificate is valid.
    ///
    /// # Errors
    /// As [`MeshSpec::settings`].
    pub fn certificate_lifetime(&self) -> Result<Duration, InvalidQuantity> {
        match &self.certificates.lifetime {
            Some(text) => parse_duration(text),
            None => Ok(Duration::from_hours(24)),
        }
    }

    /// The age at which a workload's certificate is renewed, if the manifest names one.
    ///
    /// # Errors
    /// As [`MeshSpec::settings`].
    pub fn certificate_renew_after(&self) -> Result<Option<Duration>, InvalidQuantity> {
        let age = self.certificates.renew_after.as_deref();
        age.map(parse_duration).transpose()
    }

    /// How long the authority of a host that joined is valid, if this host gets one.
    ///
    /// # Errors
    /// As [`MeshSpec::settings`].
    pub fn host_authority_lifetime(&self, host: &str) -> Result<Option<Duration>, InvalidQuantity> {
        let spec = self.certificates.host_authority.as_ref();
        let is_meant =
            |s: &&HostAuthoritySpec| s.hosts.is_empty() || s.hosts.iter().any(|h| h == host);
        let Some(spec) = spec.filter(is_meant) else {
            return Ok(None);
        };
        let lifetime = spec.lifetime.as_deref().map(parse_duration).transpose()?;
        Ok(Some(
            lifetime
                .unwrap_or(MAX_HOST_AUTHORITY)
                .min(MAX_HOST_AUTHORITY),
        ))
    }

    /// The CPU limit of a sidecar in thousandths of a core.
    ///
    /// # Errors
    /// As [`MeshSpec::settings`].
    pub fn sidecar_cpu_milli(&self) -> Result<Option<u32>, InvalidQuantity> {
        self.sidecar.cpu_limit.as_deref().map(parse_cpu).transpose()
    }

    /// The memory limit of a sidecar in bytes.
    ///
    /// # Errors
    /// As [`MeshSpec::settings`].
    pub fn sidecar_memory_bytes(&self) -> Result<Option<u64>, InvalidQuantity> {
        let limit = self.sidecar.memory_limit.as_deref();
        limit.map(parse_memory).transpose()
    }
}

impl AccessLogSpec {
    /// Returns the settings of the access log for all proxies.
    ///
    /// # Errors
    /// The same as of [`MeshSpec::settings`].
    pub fn lines(&self) -> Result<LogLines, InvalidQuantity> {
        let sampling = self.sampling.as_deref().map(parse_percent).transpose()?;
        Ok(LogLines {
            sampling_ppm: sampling.unwrap_or(EVERY_REQUEST_PPM),
            only_errors: self.only_errors,
            format: self.format.clone().unwrap_or_default(),
            when: self.when.clone().unwrap_or_default(),
            fields: field_values(&self.fields, str::to_owned),
        })
    }
}

impl MetricSpec {
    fn settings(&self) -> MetricSettings {
        MetricSettings {
            compact: self.labels == MetricLabels::Compact,
            without_sizes: self.sizes == Some(false),
            osm_names: self.osm_names,
        }
    }
}

impl TracingSpec {
    /// Returns the settings of tracing for all proxies.
    ///
    /// # Errors
    /// The same as of [`MeshSpec::settings`].
    pub fn settings(&self) -> Result<Tracing, InvalidQuantity> {
        let sampling = self.sampling.as_deref().map(parse_percent).transpose()?;
        Ok(Tracing {
            endpoint: self.endpoint.clone(),
            protocol: self.protocol,
            roots: self.roots.clone(),
            sampling_ppm: sampling.unwrap_or(DEFAULT_SAMPLING_PPM),
            attributes: self.attributes.clone(),
        })
    }
}

impl OtlpSpec {
    /// Returns the settings for all proxies.
    ///
    /// # Errors
    /// The same as of [`MeshSpec::settings`].
    pub fn settings(&self) -> Result<Otlp, InvalidQuantity> {
        Ok(Otlp {
            collector: Collector {
                endpoint: self.endpoint.clone(),
                protocol: self.protocol,
                roots: self.roots.clone(),
                attributes: self.attributes.clone(),
            },
            metrics_ms: ms(&self.metrics, 0)?,
            access_log: self.access_log,
        })
    }
}

/// Milliseconds of an optional duration; 0 without one. An unreadable duration counts as not given:
/// objects were checked when they were applied.
fn ms_or_0(text: Option<&String>) -> u32 {
    text.map_or(0, |text| ms(&Some(text.clone()), 0).unwrap_or(0))
}

/// Reads a duration like [`ms_or_0`], except that `0s` means "none" rather than "not set".
fn ms_or_none(text: Option<&String>) -> u32 {
    match text.map(|text| ms(&Some(text.clone()), 0)) {
        Some(Ok(0)) => u32::MAX,
        Some(Ok(ms)) => ms,
        _ => 0,
    }
}

/// Whole seconds of an optional duration, at least 1; 0 without one.
fn seconds_or_0(text: Option<&String>) -> u32 {
    match ms_or_0(text) {
        0 => 0,
        ms => ms.div_ceil(1000),
    }
}

/// Milliseconds of a duration text; too long ones are cut to the longest.
fn ms(text: &Option<String>, default: u32) -> Result<u32, InvalidQuantity> {
    match text {
        Some(text) => {
            let ms = parse_duration(text)?.as_millis();
            Ok(u32::try_from(ms).unwrap_or(u32::MAX))
        }
        None => Ok(default),
    }
}

impl Manifest<WorkloadSpec> {
    /// The service it belongs to.
    pub fn service(&self) -> &str {
        self.spec.service.as_deref().unwrap_or(&self.metadata.name)
    }

    /// The last segment of its identity.
    pub fn identity(&self) -> &str {
        self.spec.identity.as_deref().unwrap_or(self.service())
    }
}

impl WorkloadPort {
    /// Returns the protocol of the port. `tcp-server-first` is TCP: no bytes are inspected.
    pub fn protocol(&self) -> Protocol {
        match self.app_protocol.as_deref() {
            Some("http") => Protocol::Http,
            Some("http2" | "kubernetes.io/h2c") => Protocol::Http2,
            Some("grpc") => Protocol::Grpc,
            Some("tcp" | "tcp-server-first") => Protocol::Tcp,
            Some("tls") => Protocol::Tls,
            _ => Protocol::Detect,
        }
    }

    /// Where the application listens.
    pub fn target(&self) -> u16 {
        self.target_port.unwrap_or(self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_mesh_has_the_documented_defaults() {
        let mesh = MeshSpec::default();
        assert_eq!(mesh.settings(), Ok(MeshSettings::default()));
        assert_eq!(mesh.certificate_lifetime(), Ok(Duration::from_hours(24)));
        assert_eq!(mesh.sidecar_cpu_milli(), Ok(None));
    }

    #[test]
    fn every_app_protocol_has_a_meaning() {
        for name in super::super::check::APP_PROTOCOLS {
            let port = WorkloadPort {
                name: None,
                port: 1,
                target_port: None,
                app_protocol: Some(name.into()),
                proxy_protocol: false,
            };
            assert_ne!(port.protocol(), Protocol::Detect, "{name}");
        }
    }
}
