//! `tulle/1`: many streams over one mTLS connection between two sidecars.
//!
//! All requests of a worker to one peer share few connections, so that k requests cost one TLS
//! record and one `send`. A stream carries one HTTP/1.1 exchange, its bytes unchanged, or one TCP
//! connection. The wire format is in `docs/tulle-1.md`.
//!
//! This crate is one end of the protocol without I/O: bytes in through [`Connection::receive`],
//! frames out appended to a `Vec<u8>`. It owns frames, stream states, credit and limits. It has no
//! socket, no TLS, no clock, and keeps no payload: [`Handler::on_data`] gets the bytes as they come.
//!
//! # What the caller must do
//!
//! - **Fairness**: give each stream at most 16 KB to [`Connection::send`] per event turn, then the
//!   next stream. Credit keeps a slow stream from stalling others; turns keep a fast one from it.
//! - **Back-pressure out**: stop calling `send` while `out` holds more than a bound (say 256 KB).
//! - **Back-pressure in**: stop reading the socket while `out` is over that bound, because
//!   `receive` may answer (pongs, refusals) with up to 1.5 times the bytes it was given.
//! - **Back-pressure to the peer**: buffer what `on_data` gives and call [`Connection::consumed`]
//!   when the bytes went on. A stream never has more than its window unread. A stream that has ended
//!   keeps its place until its bytes are consumed or it is [released](Connection::release).
//! - **Time**: idle and age limits, ping timers, deadlines. Call [`Connection::tick`] about ten
//!   times a second while bytes come; it pays back part of what pings and resets used of the flood
//!   budget.
//! - **Ending**: after an error from `receive`, write `out`, close, and call [`Connection::close`]
//!   to tell every stream. A client closes a draining connection when
//!   [`Connection::active_streams`] is 0. A server calls [`Connection::drain`], waits for that as
//!   long as it chooses, then [`Connection::go_away`]; when its streams have finished it shuts down
//!   writing and reads until the client closes, so that no unread byte turns the close into a reset.
//! - **Waiting for a place**: nothing calls back when a stream may be opened again; look at
//!   [`Connection::can_open`] after `receive`.
//!
//! # Example
//!
//! ```
//! use tulle_transport::{Config, Connection, GoAwayCode, Handler, ResetCode, StreamId, StreamKind};
//!
//! #[derive(Default)]
//! struct Print(Vec<u8>);
//! impl Handler for Print {
//!     fn on_open(&mut self, _: StreamId, _: StreamKind) -> usize { 7 }
//!     fn on_data(&mut self, token: usize, _: StreamId, data: &[u8]) {
//!         assert_eq!(token, 7);
//!         self.0.extend_from_slice(data);
//!     }
//!     fn on_end(&mut self, _: usize, _: StreamId) {}
//!     fn on_reset(&mut self, _: usize, _: StreamId, _: ResetCode) {}
//!     fn on_credit(&mut self, _: usize, _: StreamId) {}
//!     fn on_go_away(&mut self, _: u32, _: GoAwayCode) {}
//!     fn on_pong(&mut self, _: [u8; 8]) {}
//! }
//!
//! let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
//! let mut client = Connection::client(Config::default(), &mut to_server);
//! let mut server = Connection::server(Config::default(), &mut to_client);
//! let id = client.open(StreamKind::Http, 0).ok_or("no place")?;
//! client.send(id, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", true, &mut to_server)?;
//! let mut seen = Print::default();
//! server.receive(&to_server, &mut seen, &mut to_client)?;
//! assert!(seen.0.starts_with(b"GET /"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), deny(clippy::indexing_slicing))] // nothing from the network may panic

mod code;
mod connection;
mod error;
mod flood;
mod frame;
mod receive;
mod stream;

pub use code::{GoAwayCode, ResetCode};
pub use connection::{Config, Connection, Handler};
pub use error::{ConnectionError, StreamGone};
pub use stream::{StreamId, StreamKind};

/// The protocol's name in the TLS handshake (RFC 7301). An incompatible change gets a new name.
pub const ALPN: &[u8] = b"tulle/1";
/// Bytes of a frame's header.
pub const FRAME_HEADER: usize = 8;
/// Most payload bytes in a frame: header and payload fit one TLS record of 16,384 bytes.
pub const MAX_PAYLOAD: usize = 16_376;
/// Longest description of a workload in bytes.
pub const MAX_WORKLOAD: usize = 512;
/// Credit each direction of a stream starts with before SETTINGS says more, in bytes.
pub const DEFAULT_WINDOW: u32 = 64 * 1024;
/// Streams a client may have open before the server's SETTINGS says more.
pub const DEFAULT_MAX_STREAMS: u32 = 256;
/// The revision of `tulle/1` this crate implements, sent in SETTINGS.
pub const REVISION: u16 = 1;
