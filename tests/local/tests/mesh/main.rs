//! The whole mesh: `tulle up` with its controller, sidecars and applications, and every command on
//! one host. One program, because its tests mostly wait for processes that start.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod churn;
mod cli_address;
mod cli_ends;
mod cli_join;
mod cli_terminal;
mod console;
mod demo;
mod direct;
mod dns;
mod egress;
mod envoy_mesh;
mod feature_pages;
mod first_calls;
mod first_contact;
mod gateway_certificates;
mod isolation;
mod joined_hosts;
mod life;
mod limits;
mod live_listeners;
mod loopback;
mod observability;
mod operate;
mod page;
mod policy;
mod quick_starts;
mod replicas;
mod revoked;
mod rotation;
mod scraping;
mod service;
mod traffic;
mod why;
mod wire;
