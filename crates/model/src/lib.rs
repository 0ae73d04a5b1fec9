//! The mesh as plain types: manifests in, resources out. No I/O.

pub mod bootstrap;
pub mod condition;
mod document;
pub mod grpc_status;
mod hex;
pub mod https_uri;
pub mod identity;
pub mod letter_case;
pub mod log_format;
pub mod manifest;
pub mod namespaced;
pub mod network;
pub mod pattern;
pub mod resource;
pub mod samples;

pub use document::{Booleans, Place, YamlDocument, to_yaml};
pub use hex::hex;
