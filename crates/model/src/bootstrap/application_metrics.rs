//! Where an application serves its own metrics.

use serde::{Deserialize, Serialize};

/// Metrics of the application that its sidecar serves together with its own: a scraper has no certificate
/// of the mesh and could not ask the application itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApplicationMetrics {
    /// Port of the application.
    pub port: u16,
    /// Path and query.
    pub path: String,
    /// The scrape goes over TLS; any certificate is accepted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tls: bool,
}
