//! Properties of generated messages, most of them almost valid.

#![allow(missing_docs)]

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tulle_http1::{Limits, Parsed, parse_request};

mod invariants;

fn request_line() -> impl Strategy<Value = String> {
    let methods = select(vec![
        "GET", "POST", "HEAD", "OPTIONS", "CONNECT", "get", "P-Q",
    ]);
    let targets = select(vec![
        "/",
        "/a/b?c=d",
        "//a",
        "*",
        "http://h/p?q",
        "http://h",
        "HTTPS://h:8?q",
        "h:443",
        "/%2e%2e/x",
    ]);
    let versions = select(vec!["HTTP/1.1", "HTTP/1.1", "HTTP/1.0"]);
    (methods, targets, versions).prop_map(|(m, t, v)| format!("{m} {t} {v}\r\n"))
}

fn header() -> impl Strategy<Value = String> {
    let names = select(vec![
        "Host",
        "Connection",
        "Keep-Alive",
        "Proxy-Connection",
        "TE",
        "Upgrade",
        "HTTP2-Settings",
        "Content-Length",
        "Transfer-Encoding",
        "Expect",
        "X-Request-Id",
        "X-Forwarded-Client-Cert",
        "X-Tulle-Reason",
        "x_tulle-Peer",
        "x_forwarded_client_cert",
        "X-A",
        "x-b",
        "Cookie",
        "Accept",
    ]);
    let values = prop_oneof![
        4 => select(vec![
            "h", "close", "keep-alive", "upgrade", "te, x-a", "X-B, cookie, close", "trailers",
            "gzip, trailers", "websocket", "h2c", "5", "0", "chunked", "100-continue", "",
        ]).prop_map(str::to_owned),
        1 => "[ -~\t]{0,20}",
    ];
    let space = select(vec!["", " ", "\t", "  "]);
    (names, space.clone(), values, space).prop_map(|(n, a, v, b)| format!("{n}:{a}{v}{b}\r\n"))
}

/// A head that is often valid: one `Host`, and lines chosen so that many combine.
fn request() -> impl Strategy<Value = String> {
    (request_line(), any::<bool>(), vec(header(), 0..20)).prop_map(|(line, host, mut headers)| {
        if host {
            headers.retain(|header| {
                !["Host", "Content-Length", "Transfer-Encoding"]
                    .iter()
                    .any(|name| header.starts_with(name))
            });
            headers.insert(headers.len() / 2, "Host: h\r\n".to_owned());
        }
        format!("{line}{}\r\n", headers.concat())
    })
}

fn response() -> impl Strategy<Value = String> {
    let lines = select(vec![
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 200 OK\r\n",
        "HTTP/1.1 204\r\n",
        "HTTP/1.1 101 Switching\r\n",
        "HTTP/1.1 103 x\r\n",
        "HTTP/1.1 304 x\r\n",
        "HTTP/1.1 426 x\r\n",
    ]);
    (lines, vec(header(), 0..20))
        .prop_map(|(line, headers)| format!("{line}{}\r\n", headers.concat()))
}

/// Chunked bodies; mostly valid.
fn chunked() -> impl Strategy<Value = Vec<u8>> {
    let chunk = (
        vec(any::<u8>(), 1..40),
        "(;[a-z]{1,5}(=[a-z]{1,3})?)?",
        any::<bool>(),
    );
    // "x-" keeps the names clear of fields that are refused as trailers, "te" and "host" for two.
    let trailers = "(x-[a-z]{1,9}: ?[a-z ]{0,9}\r\n){0,3}";
    (vec(chunk, 0..6), trailers, "[A-Z]{0,9}").prop_map(|(chunks, trailers, rest)| {
        let mut out = Vec::new();
        for (data, extension, upper) in chunks {
            let size = data.len();
            let size = if upper {
                format!("{size:X}")
            } else {
                format!("0{size:x}")
            };
            out.extend_from_slice(format!("{size}{extension}\r\n").as_bytes());
            out.extend_from_slice(&data);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(format!("0\r\n{trailers}\r\n{rest}").as_bytes());
        out
    })
}

/// Bytes to overwrite, insert or delete in a message.
fn mutations() -> impl Strategy<Value = Vec<(Index, u8, u8)>> {
    let byte = prop_oneof![select(b"\r\n \t:;,0aA_\0\x7f\xff".to_vec()), any::<u8>()];
    vec((any::<Index>(), byte, 0u8..3), 1..6)
}

fn mutate(message: &mut Vec<u8>, mutations: &[(Index, u8, u8)]) {
    for (index, byte, kind) in mutations {
        let at = index.index(message.len() + 1);
        match kind {
            0 => message.insert(at, *byte),
            1 if at < message.len() => message[at] = *byte,
            _ if at < message.len() => {
                message.remove(at);
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests(message in request()) {
        invariants::request(message.as_bytes());
    }

    #[test]
    fn mutated_requests(message in request(), mutations in mutations()) {
        let mut message = message.into_bytes();
        mutate(&mut message, &mutations);
        invariants::request(&message);
    }

    #[test]
    fn responses(message in response()) {
        invariants::response(message.as_bytes());
    }

    #[test]
    fn mutated_responses(message in response(), mutations in mutations()) {
        let mut message = message.into_bytes();
        mutate(&mut message, &mutations);
        invariants::response(&message);
    }

    #[test]
    fn any_bytes(message in vec(any::<u8>(), 0..200)) {
        invariants::request(&message);
        invariants::response(&message);
        invariants::chunked(&message, &[2, 5]);
    }

    #[test]
    fn chunked_bodies_end(message in chunked(), pieces in vec(1u8..20, 1..5)) {
        prop_assert!(invariants::chunked(&message, &pieces));
    }

    #[test]
    fn mutated_chunked_bodies(
        message in chunked(),
        mutations in mutations(),
        pieces in vec(1u8..20, 1..5),
    ) {
        let mut message = message;
        mutate(&mut message, &mutations);
        invariants::chunked(&message, &pieces);
    }

    /// Reading on after more bytes came gives the same result as reading all at once.
    #[test]
    fn pieces_change_nothing(message in request(), mutations in mutations(), cut in any::<Index>()) {
        let mut message = message.into_bytes();
        mutate(&mut message, &mutations);
        let limits = Limits::default();
        let cut = cut.index(message.len() + 1);
        let whole = parse_request(&message, &limits);
        match parse_request(&message[..cut], &limits) {
            Ok(Parsed::Partial) => {}
            Ok(Parsed::Complete(part)) => {
                let Ok(Parsed::Complete(whole)) = whole else {
                    panic!("accepted in part only");
                };
                prop_assert_eq!(format!("{part:?}"), format!("{whole:?}"));
            }
            Err(_) => prop_assert!(whole.is_err()),
        }
    }
}

/// The generator is useful only if many of its requests are accepted.
#[test]
fn many_generated_requests_are_valid() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let accepted = (0..500)
        .filter(|_| {
            let message = request().new_tree(&mut runner).unwrap().current();
            invariants::request(message.as_bytes())
        })
        .count();
    assert!(accepted > 100, "only {accepted} of 500");
}
