//! Any bytes, read as a request and as a response: parsing never panics, and an accepted message is
//! written as a head that means the same and has no forbidden field.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/http1/tests/invariants/mod.rs"]
mod invariants;

fuzz_target!(|data: &[u8]| {
    invariants::request(data);
    invariants::response(data);
});
