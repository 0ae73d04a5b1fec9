//! The PROXY protocol's header: the same answer however the bytes arrive, and soon.
#![no_main]

use libfuzzer_sys::fuzz_target;

// Pure; depending on its crate would put all of the proxy under the sanitizer.
#[path = "../../crates/proxy/src/codec/proxy_protocol.rs"]
mod proxy_protocol;

use proxy_protocol::{ProxyHeader, LIMIT, parse};

fuzz_target!(|data: &[u8]| {
    let whole = parse(data);
    assert!(whole != ProxyHeader::NeedsMore || data.len() < LIMIT);
    if let ProxyHeader::Complete { length, .. } = whole {
        assert!((8..=LIMIT).contains(&length) && length <= data.len());
        assert_eq!(parse(&data[..length]), whole);
        assert_eq!(parse(&data[..length - 1]), ProxyHeader::NeedsMore);
    }
    let mut known = ProxyHeader::NeedsMore;
    for end in 0..=data.len().min(600) {
        let now = parse(&data[..end]);
        match known {
            ProxyHeader::NeedsMore => known = now,
            _ => assert_eq!(now, known, "more bytes changed the answer"),
        }
    }
});
