//! The first bytes of a connection: the answer never changes once it is given, is given soon, and
//! agrees with what the HTTP/1.1 reader makes of the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tulle_http1::{Limits, Parsed, parse_request};

// Both are pure; depending on their crates would put all of the proxy under the sanitizer.
#[path = "../../crates/proxy/src/detect.rs"]
mod detect;
#[path = "../../crates/tls/src/hello.rs"]
mod hello;

use detect::{Detected, LIMIT, detect};

fuzz_target!(|data: &[u8]| {
    let start = &data[..data.len().min(2 * LIMIT)];
    let (mut spoken, mut tls) = (Detected::NeedsMore, None);
    for end in 0..=start.len() {
        let now = detect(&start[..end]);
        match spoken {
            Detected::NeedsMore => spoken = now,
            known => assert_eq!(now, known, "more bytes changed the answer"),
        }
        let now = hello::is_client_hello(&start[..end]);
        match tls {
            None => tls = now,
            known => assert_eq!(now, known, "more bytes changed the answer"),
        }
    }
    assert!(data.len() < LIMIT || spoken != Detected::NeedsMore);
    assert!(data.len() < LIMIT || tls.is_some());
    assert_eq!(detect(data), spoken, "all at once as byte by byte");
    assert!(tls != Some(true) || spoken == Detected::Opaque);
    if let Ok(Parsed::Complete(head)) = parse_request(data, &Limits::default()) {
        let method = head.method_text.of(data);
        let usual = method.len() <= 20 && method.iter().all(u8::is_ascii_uppercase);
        let target = head.target.of(data);
        let at_once = data.starts_with(method);
        if usual && at_once && (target.starts_with(b"/") || target.starts_with(b"http")) {
            assert_eq!(spoken, Detected::Http, "HTTP would pass without policy");
        }
    }
});
