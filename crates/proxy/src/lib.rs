//! The sidecar. A request passes through the files in this order:
//!
//! `listen` accepts (`spread` says in which worker), `outbound` (or `gateway`, or `inbound` with
//! `authz`) decides with `route` and `balance`, and `filter` runs the route's filters. `upstream`
//! lends a connection (`mux` or `tls_stream`, seen as a `link`). `forward_http` with `relay`, or
//! `forward_tcp`, carries the bytes (`retry` decides about another try). `metrics`, `access_log`
//! and `span` record. `snapshot` is the configuration, made by `publish` from the resources that
//! `control` (or `config_file`) brings.

pub mod access_log;
pub mod admin;
pub mod admission;
pub mod application_metrics;
pub mod arguments;
pub mod authz;
pub mod balance;
pub mod call;
pub mod conditions;
pub mod config_file;
pub mod connect;
pub mod connection_route;
pub mod control;
pub mod cors;
pub mod detect;
pub mod dial;
pub mod dns;
pub mod egress;
pub mod egress_rule;
pub mod exposition;
pub mod ext_authz;
pub mod fault;
pub mod filter;
pub mod first_bytes;
pub mod forward_http;
pub mod forward_tcp;
pub mod gateway;
pub mod gateway_guard;
pub mod gateway_listener;
pub mod gateway_tls;
pub mod grpc_status;
pub mod header_edit;
pub mod host;
pub mod http2;
pub mod inbound;
pub mod inbound_rules;
pub mod jwt;
pub mod link;
pub mod listen;
pub mod logging;
pub mod memory_limit;
pub mod metrics;
pub mod mirror;
pub mod mux;
pub mod outbound;
pub mod outside_peers;
pub mod outside_tls;
pub mod path_readings;
pub mod peers;
pub mod plain_path;
pub mod probe;
pub mod proxied;
pub mod proxy_protocol;
pub mod publish;
pub mod rate_limit;
pub mod reason;
pub mod redirect;
pub mod redirected;
pub mod relay;
pub mod reply;
pub mod retry;
pub mod route;
pub mod run;
pub mod scope;
pub mod snapshot;
pub mod sni;
pub mod span;
pub mod span_export;
pub mod spread;
pub mod tap;
pub mod tls_stream;
pub mod trace_context;
pub mod upstream;
pub mod wait;
pub mod worker;
