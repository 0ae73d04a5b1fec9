//! Envoy as a data plane: translates a proxy's configuration into Envoy's.
//!
//! [`translate`] is pure: a [`Bootstrap`](tulle_model::bootstrap::Bootstrap) with its listeners,
//! services and inbound ports goes in, Envoy v3 listeners and clusters come out as JSON.
//! [`static_config`] makes a whole configuration of them, for an Envoy that runs alone. A feature
//! that Envoy lacks is an [`Untranslatable`] that names it: nothing is left out silently.
//!
//! [`agent`] runs one Envoy in place of a sidecar: it enrols, translates the controller's
//! resources, and passes them to Envoy live.
//!
//! It does not translate gateways (they stay with Tulle's own proxy).

pub mod agent;
mod cluster;
mod error;
mod http;
mod inbound;
mod outbound;
mod pattern;
mod policy;
mod route;
mod supported;
mod tls;
mod whole;

pub use error::Untranslatable;
pub use whole::{Certificates, Resources, TranslationOptions, static_config, translate};
