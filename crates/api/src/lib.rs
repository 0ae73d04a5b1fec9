//! The contract between the planes: code generated from `api/mesh/v1/*.proto`, and the bodies of
//! resources. No I/O and no decisions.

mod body;

pub use body::{InvalidBody, decode_body, encode_body};

/// Messages, clients and servers of `tulle.mesh.v1`.
#[allow(missing_docs, clippy::all)] // generated
pub mod v1 {
    tonic::include_proto!("tulle.mesh.v1");
}
