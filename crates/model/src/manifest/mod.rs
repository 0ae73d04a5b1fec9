//! Manifests: Kubernetes-style documents (`apiVersion`, `kind`, `metadata`, `spec`).

mod types;
pub use types::*;
