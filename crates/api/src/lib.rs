//! The contract between the planes: code generated from `api/mesh/v1/*.proto`, and the bodies of
//! resources. Beside it are the protocols of others: services that decide about requests, health of
//! applications, collectors of telemetry. No I/O and no decisions.

pub mod away;
mod body;
pub mod codec;
mod name;
mod packing;
mod patch;
mod revocation;

pub use body::{Encoded, InvalidBody, decode, decode_body, encode, encode_body};
pub use name::is_service;
pub use patch::{apply_patch, patch, version};

/// Metadata of the status with which a controller that ends closes a stream of configuration: within how many
/// milliseconds its proxies come back, each at a random moment.
pub const RECONNECT_WITHIN: &str = "tulle-reconnect-within-ms";

/// Messages, clients and servers of `tulle.mesh.v1`.
#[allow(missing_docs, clippy::all)] // generated
pub mod v1 {
    tonic::include_proto!("tulle.mesh.v1");
}

/// Messages of Envoy's external authorization over gRPC, and a server for it.
#[allow(missing_docs, clippy::all)] // generated
pub mod ext_authz {
    tonic::include_proto!("envoy.service.auth.v3");
}

/// Messages of gRPC's health checks.
#[allow(missing_docs, clippy::all)] // generated
pub mod grpc_health {
    tonic::include_proto!("grpc.health.v1");
}

/// Messages for collectors (OTLP), and servers for them.
pub mod otlp {
    /// The parts that spans, metrics and log records share.
    #[allow(missing_docs, clippy::all)] // generated
    pub mod common {
        tonic::include_proto!("opentelemetry.proto.common.v1");
    }
    /// Spans.
    #[allow(missing_docs, clippy::all)] // generated
    pub mod trace {
        tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
    }
    /// Metrics.
    #[allow(missing_docs, clippy::all)] // generated
    pub mod metrics {
        tonic::include_proto!("opentelemetry.proto.collector.metrics.v1");
    }
    /// Log records.
    #[allow(missing_docs, clippy::all)] // generated
    pub mod logs {
        tonic::include_proto!("opentelemetry.proto.collector.logs.v1");
    }
}
