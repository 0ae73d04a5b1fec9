//! The configuration in force, compiled from resources: what is looked up for a request, and nothing that does it.

pub mod authz;
pub(crate) mod conditions;
pub(crate) mod connection_route;
pub(crate) mod egress_rule;
pub(crate) mod gateway_guard;
pub mod gateway_listener;
pub(crate) mod head_limits;
pub(crate) mod inbound_rules;
pub mod path_readings;
pub mod route;
pub mod snapshot;
pub(crate) mod token_claims;
pub(crate) mod traffic;
