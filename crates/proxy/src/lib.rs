//! The sidecar. A folder imports only those below it (`floors.txt`), and a request comes down the same stairs:
//!
//! `run` starts everything, and `takeover` has it go on in another process. `report` tells the controller what is counted, `admin` answers operators, `dns` the application's questions, `export` tells a collector of traces,
//! `control` brings the configuration. `listener` accepts, `serve` knows the entrance by which a connection came, and `http` or
//! `tcp` carries it. `decision` says whether and where it goes. A `worker` has destinations, whose endpoints `balance` chooses, and
//! pools of connections, which `upstream` lends. `context` is what all code of a worker knows, `config` what is in force, `filter` what
//! is done to a request. `telemetry` remembers, and `codec` reads what the network sends.

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
#[cfg(feature = "plugins")]
pub mod plugin_trial;
pub mod report;
pub mod run;
pub mod serve;
pub(crate) mod takeover;
pub(crate) mod tcp;
pub mod telemetry;
pub(crate) mod upstream;
pub(crate) mod worker;
