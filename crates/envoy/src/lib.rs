//! Envoy as a data plane: what a proxy of the mesh knows, said in Envoy's words.
//!
//! [`translate`] is pure: a [`Bootstrap`](tulle_model::bootstrap::Bootstrap) with its listeners,
//! services and inbound ports goes in, Envoy v3 listeners and clusters come out as JSON.
//! [`static_config`] makes a whole configuration of them, for an Envoy that runs alone. What
//! Envoy cannot do is an [`Untranslatable`] that names it: nothing is left out in silence.
//!
//! [`agent`] runs one Envoy in the place of a sidecar: it enrols, translates what the controller
//! says, and gives it to Envoy live.
//!
//! What it does not do: gateways (they stay with Tulle's own proxy).

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
pub use whole::{Certificates, Options, Resources, static_config, translate};
