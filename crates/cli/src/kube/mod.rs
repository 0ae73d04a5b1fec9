//! Tulle on Kubernetes: what is installed, and the programs of its pods.

pub(crate) mod controller;
pub(crate) mod install;
pub(crate) mod redirect;
