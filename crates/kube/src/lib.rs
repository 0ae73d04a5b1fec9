//! Tulle on Kubernetes: turns pods into workloads of the mesh, and the cluster's objects into the
//! same model that a single host has.
//!
//! ```text
//!  API server ──services, pods, routes, policies──> source ──edits──> index ──> proxies
//!             <──conditions── status <── (the leader of several replicas only)
//!             ──admission review──> webhook ──> inject ──patch──> pod with a sidecar
//!                                           ──> validate ──> an object, or why not
//!             <──token review── accounts <── certificates <── its token
//! ```
//!
//! [`controller`] puts it together; [`install`] writes what a cluster needs for it.

pub mod accounts;
pub mod console;
pub mod controller;
pub mod crd;
pub mod gateway;
mod gateway_fields;
mod grants;
mod https;
pub mod ingress;
pub mod inject;
pub mod install;
pub mod issuer;
pub mod kinds;
pub mod leader;
mod metadata;
pub mod metrics;
pub mod names;
mod object;
mod packed;
mod pod;
mod repair;
mod restarting_watch;
pub mod review;
pub mod root;
pub mod scrape;
pub mod smi;
pub mod source;
mod spawn;
pub mod status;
pub mod trust;
pub mod validate;
mod watch;
pub mod webhook;
mod workload;
