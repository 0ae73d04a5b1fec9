//! HTTP/2 (RFC 9113) without I/O: one end of a connection whose streams read and write as HTTP/1.1.
//!
//! Bytes come in through [`Connection::receive`], frames are appended to a `Vec<u8>`. The peer's
//! message on a stream is passed on as an HTTP/1.1 head ([`Handler::on_head`]), data and trailers.
//! The owner writes an HTTP/1.1 message to a stream ([`Connection::write`]). So routing, policy and
//! forwarding see the same bytes in both versions, and either version can be on either side.
//!
//! The rules of section 8 are strict: a message that HTTP/1.1 cannot express without ambiguity is
//! malformed. Every buffer has a bound, and frames that carry no work are paid from a budget that
//! work refills.
//!
//! It has no sockets, TLS, time, server push, priorities (deprecated, ignored), or `Upgrade: h2c`
//! from HTTP/1.1 (removed by RFC 9113).
//!
//! # What the caller must do
//!
//! - **Fairness**: give each stream at most 16 KB to [`Connection::write`] per event turn.
//! - **Back-pressure**: stop calling `write`, and stop reading the socket, while `out` holds more
//!   than a bound: what is received may have to be answered.
//! - **Credit**: buffer what [`Handler::on_data`] gives and call [`Connection::consumed`] when all of
//!   it went on. A stream never has more than its window unread.
//! - **Chunks**: with [`Framing::Chunked`] the head announces chunks; the caller writes their sizes
//!   when it hands data on, as many bytes in one as it has.
//! - **Time**: end a connection that is idle, or [in the middle](Connection::is_waiting) of a header
//!   block, or does not take its bytes, for too long. Call [`Connection::tick`] about ten times a second
//!   while bytes come.
//! - **Ending**: after an error from `receive`, write `out` and close; call [`Connection::close`] to
//!   tell every stream.
//!
//! ```
//! use tulle_http2::{Config, Connection, ErrorCode, Framing, Handler};
//!
//! #[derive(Default)]
//! struct Print(String);
//! impl Handler for Print {
//!     fn on_open(&mut self, _: usize) {}
//!     fn on_head(&mut self, _: usize, head: &[u8], _: Framing) {
//!         self.0.push_str(&String::from_utf8_lossy(head));
//!     }
//!     fn on_data(&mut self, _: usize, _: &[u8]) {}
//!     fn on_trailers(&mut self, _: usize, _: &[u8]) {}
//!     fn on_end(&mut self, _: usize) {}
//!     fn on_reset(&mut self, _: usize, _: ErrorCode) {}
//!     fn on_credit(&mut self, _: usize) {}
//!     fn on_connection_credit(&mut self) {}
//! }
//!
//! let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
//! let mut client = Connection::client(Config::default(), &mut to_server);
//! let mut server = Connection::server(Config::default(), &mut to_client);
//! let stream = client.open().ok_or("no place")?;
//! client.write(stream, b"GET /a HTTP/1.1\r\nHost: b\r\nX-Y: z\r\n\r\n", &mut to_server)?;
//! let mut seen = Print::default();
//! server.receive(&to_server, &mut seen, &mut to_client)?;
//! assert_eq!(seen.0, "GET /a HTTP/1.1\r\nhost: b\r\nx-y: z\r\n\r\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), deny(clippy::indexing_slicing))] // nothing from the network may panic

mod chunks;
mod connection;
mod error;
mod flood;
mod frame;
mod head_in;
mod head_out;
mod hpack;
mod receive;
mod send;
mod stream;
mod websocket;

pub use connection::{Config, Connection, Handler};
pub use error::{ConnectionError, ErrorCode, WriteError};
pub use head_in::Framing;

/// The first bytes of a client (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The protocol's name in the TLS handshake (RFC 7301).
pub const ALPN: &[u8] = b"h2";
