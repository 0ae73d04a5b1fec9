//! A steady flow of streams allocates nothing: a budget that can fail.
#![allow(unsafe_code)] // a global allocator cannot be written without

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use tulle_transport::{Config, Connection, GoAwayCode, Handler, ResetCode, StreamId, StreamKind};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: forwards to the system allocator unchanged; the counter does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `System` with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Default)]
struct Count {
    data: usize,
    ends: usize,
}

impl Handler for Count {
    fn on_open(&mut self, id: StreamId, _: StreamKind) -> usize {
        id.value() as usize
    }
    fn on_data(&mut self, _: usize, _: StreamId, data: &[u8]) {
        self.data += data.len();
    }
    fn on_end(&mut self, _: usize, _: StreamId) {
        self.ends += 1;
    }
    fn on_reset(&mut self, _: usize, _: StreamId, _: ResetCode) {}
    fn on_credit(&mut self, _: usize, _: StreamId) {}
    fn on_go_away(&mut self, _: u32, _: GoAwayCode) {}
    fn on_pong(&mut self, _: [u8; 8]) {}
}

#[test]
fn steady_streams_do_not_allocate() {
    const OPEN_AT_ONCE: usize = 150;
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let mut client = Connection::client(Config::default(), &mut to_server);
    let mut server = Connection::server(Config::default(), &mut to_client);
    let (mut at_client, mut at_server) = (Count::default(), Count::default());
    let mut open = std::collections::VecDeque::with_capacity(OPEN_AT_ONCE + 1);
    let mut counted = 0;
    for round in 0..20_000 {
        if round == 4000 {
            counted = ALLOCATIONS.with(Cell::get);
        }
        let id = client.open(StreamKind::Http, round).unwrap();
        client.send(id, &[b'q'; 500], true, &mut to_server).unwrap();
        open.push_back(id);
        server
            .receive(&to_server, &mut at_server, &mut to_client)
            .unwrap();
        to_server.clear();
        server.consumed(id, 500, &mut to_client);
        if open.len() > OPEN_AT_ONCE {
            let oldest = open.pop_front().unwrap();
            server
                .send(oldest, &[b'r'; 2000], true, &mut to_client)
                .unwrap();
            client
                .receive(&to_client, &mut at_client, &mut to_server)
                .unwrap();
            to_client.clear();
            client.consumed(oldest, 2000, &mut to_server);
        }
    }
    assert_eq!(at_server.ends, 20_000);
    assert_eq!(at_client.ends, 20_000 - OPEN_AT_ONCE);
    assert_eq!(ALLOCATIONS.with(Cell::get) - counted, 0);
}

#[test]
fn an_idle_connection_is_small() {
    // Many idle connections are kept; streams and buffers come on top only when used.
    assert!(
        size_of::<Connection>() <= 256,
        "{}",
        size_of::<Connection>()
    );
    let mut out = Vec::with_capacity(64);
    let before = ALLOCATIONS.with(Cell::get);
    let _idle = Connection::server(Config::default(), &mut out);
    assert_eq!(ALLOCATIONS.with(Cell::get), before);
}
