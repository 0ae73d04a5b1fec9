//! Any bytes, read as a request and as a response: parsing never panics, and what is accepted is
//! written as a head that means the same and carries nothing it must not.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/http1/tests/invariants/mod.rs"]
mod invariants;

fuzz_target!(|data: &[u8]| {
    invariants::request(data);
    invariants::response(data);
});
