//! Generates load with a generator and a server of our own. Each is a process of its own, so that it can
//! be pinned to a CPU and its time be told from that of the sidecars.
//!
//! Other generators lack some of this: requests at a fixed rate, a new connection for each request, idle
//! connections, and a count of every loss. Latencies at a fixed rate count from when requests were due, so
//! that a stalled server cannot hide by delaying the client. Nothing is allocated for a request. It takes
//! one write and one read, on the client and on the server.
//!
//! It must not be the bottleneck that hides the sidecars. Beside wrk 4.1 and nginx 1.22, 200
//! connections, 200-byte bodies, each pair on one core of the same machine: the generator takes 5.6 µs
//! of CPU a request where wrk takes 7.0, the server 5.6 where nginx takes 6.8, so that together they
//! do about a fifth more requests a second (three interleaved runs of 3 s; 21 November 2026).
//!
//! Not here: HTTP/2, more than one thread.

mod client;
mod engine;
mod generate;
mod handshakes;
mod process;
mod response;
mod server;
mod storm;
mod timer;

pub(crate) use client::encode;
pub use client::{Beside, Errors, Load, Pattern, Report, decode};
pub use generate::{main, run};
pub use process::{Event, Generator, Server, server_command};
pub use server::{Serve, main as serve};
