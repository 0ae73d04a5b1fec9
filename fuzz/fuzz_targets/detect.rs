//! The first bytes of a connection: the answer does not depend on how they are cut, and never
//! changes once it is certain. No bytes pass that a lenient HTTP server, or our own reader, takes
//! for a request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tulle_http1::{Limits, Parsed, parse_request};

// Both are pure; depending on their crates would put all of the proxy under the sanitizer.
#[path = "../../crates/proxy/src/codec/detect/mod.rs"]
mod detect;
#[path = "../../crates/tls/src/hello.rs"]
mod hello;
#[path = "../../crates/proxy/src/codec/detect/lenient.rs"]
mod lenient;

use detect::{Detected, FirstLineReader};

fuzz_target!(|data: &[u8]| {
    let Some((cut, data)) = data.split_first() else {
        return;
    };
    let (mut watch, mut spoken, mut tls) = (FirstLineReader::new(), Detected::NeedsMore, None);
    for (at, byte) in data.iter().enumerate() {
        let now = watch.read(&[*byte]);
        if matches!(spoken, Detected::Http | Detected::Opaque) {
            assert_eq!(now, spoken, "more bytes changed the answer");
        }
        spoken = now;
        let now = hello::is_client_hello(&data[..=at]);
        match tls {
            None => tls = now,
            known => assert_eq!(now, known, "more bytes changed the answer"),
        }
    }
    assert!(data.len() < 6 || tls.is_some());
    assert_eq!(
        FirstLineReader::new().read(data),
        spoken,
        "all at once as byte by byte"
    );

    let (mut watch, mut forwarded) = (FirstLineReader::new(), 0);
    for piece in data.chunks(usize::from(*cut).max(1)) {
        if watch.read(piece) == Detected::Http {
            break;
        }
        forwarded += piece.len();
    }
    let passed = &data[..forwarded];
    assert_eq!(
        lenient::read_by(passed),
        None,
        "a request would pass unread"
    );
    let parsed = parse_request(passed, &Limits::default());
    assert!(
        !matches!(parsed, Ok(Parsed::Complete(_))),
        "HTTP would pass without policy"
    );
});
