//! The mesh as plain types: manifests in, resources out. No I/O.

pub mod bootstrap;
pub mod identity;
pub mod manifest;
pub mod resource;
