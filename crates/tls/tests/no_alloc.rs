//! Sealing and opening must not allocate once the buffers have grown.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use tulle_tls::Opened;
use tulle_tls::testing::TestCa;

struct Counting;

thread_local! {
    // Per thread, so that the test harness's own threads do not count.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // During thread exit there is nothing left to count.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

#[allow(unsafe_code)]
// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn sealing_and_opening_allocate_nothing_after_warm_up() {
    let ca = TestCa::new("mesh");
    let (mut client, mut server) = pair(&ca);
    let (client, server) = (client.session(), server.session());
    let data = vec![7_u8; 100_000];
    let mut wire = Vec::new();
    let mut round = || {
        wire.clear();
        client
            .seal_vectored(&[&data[..200], &data], &mut wire)
            .unwrap();
        let mut at = 0;
        let mut received = 0;
        while at < wire.len() {
            match server.open(&mut wire[at..]).unwrap() {
                Opened::Data {
                    consumed,
                    plaintext,
                } => {
                    received += plaintext.len();
                    at += consumed;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(received, data.len() + 200);
    };
    round();
    let before = ALLOCATIONS.get();
    for _ in 0..100 {
        round();
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(before > 0, "the allocator counts");
}
