//! Arbitrary bytes to both ends of `tulle/1`: nothing panics, and the bytes that a peer can make
//! the owner hold stay within the promised ones.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tulle_transport::{Config, Connection, GoAwayCode, Handler, ResetCode, StreamId, StreamKind};

const CONFIG: Config = Config {
    window: 65_536,
    max_window: 100_000,
    max_streams: 256,
    connection_budget: 1_000_000,
};
const MOST_PROMISED: u64 = 2 * 256 * 65_536 + 1_000_000;

/// Keeps the last streams seen and how many bytes were delivered and not consumed.
#[derive(Default)]
struct Owner {
    last: Option<StreamId>,
    delivered: u64,
}

impl Handler for Owner {
    fn on_open(&mut self, id: StreamId, _: StreamKind) -> usize {
        self.last = Some(id);
        id.value() as usize
    }
    fn on_data(&mut self, token: usize, id: StreamId, data: &[u8]) {
        assert_eq!(token, id.value() as usize);
        self.last = Some(id);
        self.delivered += data.len() as u64;
    }
    fn on_end(&mut self, _: usize, id: StreamId) {
        self.last = Some(id);
    }
    fn on_reset(&mut self, token: usize, id: StreamId, _: ResetCode) {
        assert_eq!(token, id.value() as usize);
    }
    fn on_credit(&mut self, _: usize, id: StreamId) {
        self.last = Some(id);
    }
    fn on_go_away(&mut self, _: u32, _: GoAwayCode) {}
    fn on_pong(&mut self, _: [u8; 8]) {}
}

fuzz_target!(|input: &[u8]| {
    let Some((&seed, input)) = input.split_first() else {
        return;
    };
    let mut out = Vec::new();
    let mut owner = Owner::default();
    // Without a valid start the fuzzer would spend its time guessing SETTINGS.
    let mut settings = Vec::new();
    let _peer = Connection::server(CONFIG, &mut settings);
    let mut conn = if seed & 1 == 0 {
        Connection::server(CONFIG, &mut out)
    } else {
        let mut conn = Connection::client(CONFIG, &mut out);
        for i in 0..seed >> 4 {
            if let Some(id) = conn.open(StreamKind::Tcp, 0) {
                conn.set_token(id, id.value() as usize);
                let _ = conn.send(id, &[i; 100], i & 1 == 0, &mut out);
                owner.last = Some(id);
            }
        }
        conn
    };
    if seed & 2 == 0 {
        let _ = conn.receive(&settings, &mut owner, &mut out);
    }
    let mut rest = input;
    while let Some((&step, tail)) = rest.split_first() {
        let (piece, tail) = tail.split_at(tail.len().min(usize::from(step >> 3) + 1));
        rest = tail;
        out.clear();
        let result = conn.receive(piece, &mut owner, &mut out);
        assert!(out.len() <= piece.len() * 3 / 2 + 32);
        assert!(conn.unread_bytes() <= conn.promised_bytes());
        assert!(conn.unread_bytes() <= owner.delivered);
        assert!(conn.promised_bytes() <= MOST_PROMISED);
        if let Some(id) = owner.last {
            match step & 7 {
                0 => conn.consumed(id, usize::from(step) * 64, &mut out),
                1 => conn.consumed(id, usize::MAX, &mut out),
                2 => conn.reset(id, ResetCode::Cancelled, &mut out),
                3 => conn.release(id, &mut out),
                4 => drop(conn.send(id, &[step; 20_000], step & 8 != 0, &mut out)),
                5 if step & 0x40 != 0 => conn.go_away(GoAwayCode::NoError, &mut out),
                5 if step & 0x20 != 0 => conn.drain(&mut out),
                _ => conn.tick(std::time::Duration::from_millis(100)),
            }
        }
        if result.is_err() {
            assert!(conn.receive(piece, &mut owner, &mut out).is_err());
            break;
        }
    }
    conn.close(ResetCode::Internal, &mut owner);
    assert_eq!(conn.active_streams(), 0);
    assert_eq!(conn.promised_bytes(), 0);
});
