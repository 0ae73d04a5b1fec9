//! The server name of a TLS client: the same answer however the bytes arrive, soon, and the same
//! name when the hello is cut into records in another way.
#![no_main]

use libfuzzer_sys::fuzz_target;

// All are pure; depending on their crate would put all of the proxy under the sanitizer.
#[allow(dead_code)]
#[path = "../../crates/proxy/src/codec/host.rs"]
mod host;
#[path = "../../crates/proxy/src/codec/sni.rs"]
mod sni;

use sni::{LIMIT, Sni, server_name};

fuzz_target!(|data: &[u8]| {
    let whole = server_name(data);
    assert!(whole != Sni::NeedsMore || data.len() < LIMIT + 5);
    if data.len() < 600 {
        let mut known = Sni::NeedsMore;
        for end in 0..=data.len() {
            let now = server_name(&data[..end]);
            match known {
                Sni::NeedsMore => known = now,
                _ => assert_eq!(now, known, "more bytes changed the answer"),
            }
        }
        assert_eq!(known, whole);
    }
    if let Sni::Name(name) = &whole {
        assert!(!name.is_empty() && name.len() <= 253);
        assert!(!name.bytes().any(|b| b.is_ascii_uppercase() || b <= b' '));
    }
    // The same message in records of seven bytes.
    if data.len() < 2000 && !data.is_empty() {
        let message: Vec<u8> = data
            .chunks(7)
            .flat_map(|part| [&[22, 3, 1, 0, part.len() as u8][..], part].concat())
            .collect();
        let one = [&[22, 3, 1][..], &(data.len() as u16).to_be_bytes(), data].concat();
        let (one, many) = (server_name(&one), server_name(&message));
        if one != Sni::NeedsMore && many != Sni::NeedsMore {
            assert_eq!(one, many);
        }
    }
});
