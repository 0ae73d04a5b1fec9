//! Arbitrary bytes to both ends of HTTP/2: nothing panics. The HTTP/1.1 parser reads heads as they
//! are or not at all. The bytes that a peer can make the owner hold or answer are bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tulle_http1::{Limits, Method, Parsed};
use tulle_http2::{Config, Connection, ErrorCode, Framing, Handler, PREFACE};

const CONFIG: Config = Config {
    window: 65_536,
    max_window: 100_000,
    max_streams: 16,
    connection_budget: 1_000_000,
    head_bytes: 4096,
    head_fields: 100,
    secure: false,
    seed: 1,
};

#[derive(Default)]
struct Owner {
    server: bool,
    open: Vec<usize>,
    held: usize,
}

impl Handler for Owner {
    fn on_open(&mut self, key: usize) {
        self.open.push(key);
    }
    fn on_head(&mut self, _: usize, head: &[u8], _: Framing) {
        assert!(head.len() <= 2 * CONFIG.head_bytes + 200, "{}", head.len());
        let limits = Limits { head_bytes: CONFIG.head_bytes, headers: 128 };
        // A complete head ends where its bytes end: no value has begun a line of its own.
        if self.server {
            if let Ok(Parsed::Complete(parsed)) = tulle_http1::parse_request(head, &limits) {
                assert_eq!(parsed.len, head.len());
            }
        } else if let Ok(Parsed::Complete(parsed)) =
            tulle_http1::parse_response(head, &limits, Method::Get)
        {
            assert_eq!(parsed.len, head.len());
        }
    }
    fn on_data(&mut self, _: usize, data: &[u8]) {
        self.held += data.len();
        // The bound counts each stream's window, also of ended streams that were not released.
        assert!(self.held <= 32 * 100_000);
    }
    fn on_trailers(&mut self, _: usize, lines: &[u8]) {
        assert!(lines.len() <= 2 * CONFIG.head_bytes);
        assert!(lines.ends_with(b"\r\n"));
    }
    fn on_end(&mut self, _: usize) {}
    fn on_reset(&mut self, _: usize, _: ErrorCode) {}
    fn on_credit(&mut self, _: usize) {}
    fn on_connection_credit(&mut self) {}
}

fuzz_target!(|input: &[u8]| {
    let Some((&seed, input)) = input.split_first() else {
        return;
    };
    let mut out = Vec::new();
    let mut owner = Owner { server: seed & 1 == 0, ..Owner::default() };
    let mut incoming = Vec::new();
    let mut connection = if owner.server {
        incoming.extend_from_slice(PREFACE);
        Connection::server(CONFIG, &mut out)
    } else {
        Connection::client(CONFIG, &mut out)
    };
    // Without settings the fuzzer would spend its time guessing them.
    incoming.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    for _ in 0..seed >> 5 {
        if let Some(key) = connection.open() {
            owner.open.push(key);
            let _ = connection.write(key, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", &mut out);
        }
    }
    // The input comes in pieces, and the owner acts between them.
    for piece in input.chunks(1 + usize::from(seed)) {
        incoming.extend_from_slice(piece);
        out.clear();
        match connection.receive(&incoming, &mut owner, &mut out) {
            Ok(taken) => drop(incoming.drain(..taken)),
            Err(_) => break,
        }
        assert!(incoming.len() < 16_384 + 9 + piece.len());
        if let Some(key) = owner.open.pop() {
            let _ = connection.write(key, piece, &mut out);
            match piece.len() % 3 {
                0 => connection.consumed(key, &mut out),
                1 => connection.release(key, &mut out),
                _ => connection.shutdown(key, &mut out),
            }
        }
    }
    connection.close(&mut owner);
});
