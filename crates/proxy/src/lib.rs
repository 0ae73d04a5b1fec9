//! The sidecar. Its folders stand in call order, from the top:
//!
//! `run` starts everything. `admin` answers operators, `dns` the application's questions, `export` tells a collector of traces,
//! `control` brings the configuration. A request comes down from `listener`, which accepts, to `serve`, which knows the entrance by which
//! a connection came, and `http` or `tcp`, which carry it. `decision` says where it goes, with the routes and policies of
//! `config` and the endpoint that `balance` chooses; `upstream` lends the connection there, `filter` edits the request,
//! `telemetry` remembers. `codec` reads what the network sends.

#![allow(
    unreachable_pub,
    reason = "a module says whether others may use it; what is `pub` in one is for all who see the module"
)]

pub mod admin;
pub mod arguments;
pub mod balance;
pub mod codec;
pub mod config;
pub(crate) mod context;
pub mod control;
pub(crate) mod decision;
pub(crate) mod dns;
pub(crate) mod export;
pub mod filter;
pub(crate) mod http;
pub(crate) mod listener;
pub mod run;
pub mod serve;
pub(crate) mod tcp;
pub mod telemetry;
pub(crate) mod upstream;
pub(crate) mod worker;
