//! The contract between the planes: code generated from `api/mesh/v1/*.proto`, and the bodies of
//! resources; beside it, what services that decide about requests are asked. No I/O and no decisions.

mod body;

pub use body::{InvalidBody, decode_body, encode_body};

/// Messages, clients and servers of `tulle.mesh.v1`.
#[allow(missing_docs, clippy::all)] // generated
pub mod v1 {
    tonic::include_proto!("tulle.mesh.v1");
}

/// What Envoy's external authorization says over gRPC, and a server of it.
#[allow(missing_docs, clippy::all)] // generated
pub mod ext_authz {
    tonic::include_proto!("envoy.service.auth.v3");
}
