//! Health checks of the application, which its sidecar makes on behalf of the kubelet.
//!
//! A kubelet has no certificate of the mesh, and a check by TCP would always reach the sidecar. So it
//! asks the sidecar, which asks the application from within.

use serde::{Deserialize, Serialize};

/// One health check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Probe {
    /// Where the sidecar is asked, such as `/probe/reviews/liveness`.
    pub path: String,
    /// How the application is.
    pub check: ProbeCheck,
    /// How long it may take, in milliseconds.
    pub timeout_ms: u32,
}

/// How an application is asked whether it is well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ProbeCheck {
    /// A GET: well from 200 to 399.
    #[serde(rename_all = "camelCase")]
    Http {
        /// Port of the application.
        port: u16,
        /// Path and query.
        path: String,
        /// The check goes over TLS; any certificate is accepted.
        #[serde(default)]
        tls: bool,
        /// More fields of the request; `Host` replaces the default.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        headers: Vec<ProbeHeader>,
    },
    /// A connection: well when it is accepted.
    #[serde(rename_all = "camelCase")]
    Tcp {
        /// Port of the application.
        port: u16,
    },
    /// A call of `grpc.health.v1.Health/Check`: well when it says SERVING.
    #[serde(rename_all = "camelCase")]
    Grpc {
        /// Port of the application.
        port: u16,
        /// The service asked about; empty: the server as a whole.
        #[serde(default)]
        service: String,
    },
}

/// A field of a health check's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeHeader {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}
