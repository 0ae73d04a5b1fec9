//! One proxy, two sidecars, or a sidecar and a gateway: the real `tulle-proxy` with files, real
//! connections and scripted peers. One program, because its tests mostly wait: for time limits, for
//! certificates that run out, for queues that fill.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access_log;
mod admin;
mod authorization;
mod balance_care;
mod balance_choice;
mod connect;
mod databases;
mod descriptors;
mod dns;
mod drain;
mod egress;
mod egress_gateway;
mod envoy_static;
mod ext_authz;
mod failures;
mod forged_reason;
mod gateway_http2;
mod gateway_ready;
mod gateway_tls;
mod health;
mod http;
mod http2;
mod identity;
mod ipv6;
mod jwt;
mod outside;
mod plaintext;
mod pressure;
mod proxy_protocol;
mod rate_limit;
mod reasons;
mod reload;
mod resumption;
mod retry;
mod route_filters;
mod routing;
mod smoke;
mod splice;
mod tcp;
mod tcp_routes;
mod tracing;
mod udp;
mod workers;
