//! A chunked body cut into arbitrary pieces ends where the whole does, or fails as the whole does.
//! The first four bytes say how to cut the others.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/http1/tests/invariants/mod.rs"]
mod invariants;

fuzz_target!(|data: &[u8]| {
    let (pieces, body) = data.split_at(data.len().min(4));
    invariants::chunked(body, pieces);
});
