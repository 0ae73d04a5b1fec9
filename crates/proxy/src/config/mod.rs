//! The configuration in force, compiled from resources: what is looked up for a request, and nothing that does it.

pub mod authz;
pub mod conditions;
pub mod connection_route;
pub mod egress_rule;
pub mod gateway_guard;
pub mod gateway_listener;
pub mod inbound_rules;
pub mod path_readings;
pub mod retry;
pub mod route;
pub mod snapshot;
