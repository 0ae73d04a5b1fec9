//! The contract between the planes: code generated from `api/mesh/v1/*.proto`, and conversions
//! between its messages and the types of `tulle-model`. No I/O and no decisions.

pub mod convert;

pub use convert::{InvalidWire, decode_body, encode_body};

/// Messages, clients and servers of `tulle.mesh.v1`.
#[allow(missing_docs, clippy::all)] // generated
pub mod v1 {
    tonic::include_proto!("tulle.mesh.v1");
}
