//! The harness of the proxy's integration tests: processes, certificates, a scripted server and a
//! raw client. It knows nothing of the proxy's insides; what it sees is what a peer sees.
//!
//! Every test is self-contained: its own authority, directory, ports and processes, all of which
//! end with it, also when it panics.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, clippy::expect_used)]

mod alone;
mod binary;
mod capture;
mod client;
mod collector;
mod daemon;
mod demo;
mod envoy;
mod fleet;
mod gate;
mod http2;
mod interrupt;
mod link;
mod load;
mod memory;
mod mesh;
mod message;
mod no_ipv6;
mod pair;
mod ports;
mod process;
mod server;
mod skips;
mod study;
mod tls;
mod waits;
mod wire;
mod yard;

pub use alone::{Alone, alone, full_sockets};
pub use binary::{is_emulated, program, proxy_binary, release_binary, repository};
pub use capture::{Capture, Stream};
pub use client::{Client, get, one, post};
pub use collector::{Collector, Taken, said};
pub use daemon::{Daemon, installed};
pub use demo::{
    Answer, Demo, RATING, can_redirect, edge, is_root, read_demo, redirects, runs_as_root, signal,
};
pub use envoy::{Envoy, EnvoyPair, bootstrap, envoy_binary, validate};
pub use fleet::{Fleet, number};
pub use gate::Gate;
pub use http2::{Answered, Http2Client, Http2Server, echo, read, request, send_all};
pub use interrupt::interruptible;
pub use link::Crossed;
pub use load::Load;
pub use mesh::{CLIENT, Mesh, SERVER, id};
pub use message::{Message, read_message};
pub use no_ipv6::without_ipv6;
pub use pair::{Config, Pair, gateway_config, inbound_config, outbound_config};
pub use ports::{free_port, free_ports};
pub use process::Proxy;
pub use server::{Connection, Server, ok};
pub use skips::{skip, skip_part};
pub use study::Study;
pub use tls::{
    TLS12, TLS13, TlsClient, TlsConnection, TlsServer, client_config, public_config, server_config,
};
pub use waits::{holds_within, note_wait, pause};
pub use wire::Wire;
pub use yard::{Host, Yard};

use std::time::Duration;

/// Longest wait for something that must happen; a limit against hanging, not a measurement.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `holds`; panics with `what` if it never does.
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    // Some events take several tries with pauses between them on a busy machine.
    let held = holds_within(PATIENCE * 3, what, holds);
    assert!(held, "never happened: {what}");
}

/// Bytes that depend on their place, so that a missing, doubled or swapped part is seen.
pub fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(length);
    out
}
