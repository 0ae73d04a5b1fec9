//! Invariants for any bytes at all. The property tests and the fuzz targets share it. It looks at
//! the written heads with code of its own, as simple and as lenient as careless servers are.

#![allow(dead_code, missing_docs, unreachable_pub)]

use tulle_http1::{
    BadBody, Body, BodyLength, Limits, Method, Parsed, RequestEdit, ResponseEdit, headers,
    parse_request, parse_response,
};

const LIMITS: Limits = Limits {
    head_bytes: 16 * 1024,
    headers: 100,
};
/// Writing may add lines, so written heads are read with more room.
const WIDE: Limits = Limits {
    head_bytes: 64 * 1024,
    headers: 128,
};

/// Returns whether the request was accepted.
pub fn request(data: &[u8]) -> bool {
    let Ok(Parsed::Complete(head)) = parse_request(data, &LIMITS) else {
        return false;
    };
    assert!(head.len <= data.len());
    assert_ne!(head.body, BodyLength::UntilClose);
    for end in prefixes(head.len) {
        let part = parse_request(&data[..end], &LIMITS);
        assert!(matches!(part, Ok(Parsed::Partial)), "{part:?} of {end}");
    }

    let edit = RequestEdit {
        add: &[("x-added", b"a\r\nb")],
        keep_forwarded_client_cert: false,
        ..Default::default()
    };
    let mut out = Vec::new();
    head.write(data, &edit, &mut out);
    let lines = split(&out);
    assert_eq!(lines.last().map(String::as_str), Some("x-added: a  b"));
    let lines = &lines[1..lines.len() - 1];
    let mut hosts = 0;
    for line in lines {
        let (name, value) = line.split_once(':').expect("a colon in every line");
        let name = name.to_ascii_lowercase();
        let value = value.trim_matches([' ', '\t']).to_ascii_lowercase();
        match name.replace('_', "-").as_str() {
            "host" => hosts += 1,
            "connection" if name == "connection" => {
                for option in value.split(", ") {
                    assert!(option == "te" || head.upgrade && option == "upgrade");
                }
            }
            "te" => assert_eq!(value, "trailers"),
            "upgrade" if name == "upgrade" => {
                let h2c = value.split([',', '/']).any(|part| part.trim() == "h2c");
                assert!(head.upgrade && !h2c);
            }
            "content-length" => {
                assert_eq!(name, "content-length");
                assert_eq!(value.parse().map(BodyLength::Length), Ok(head.body));
            }
            "transfer-encoding" => {
                assert_eq!(name, "transfer-encoding");
                assert_eq!(
                    (value.as_str(), head.body),
                    ("chunked", BodyLength::Chunked)
                );
            }
            "x-forwarded-client-cert" => panic!("forged identity passed"),
            other if other.starts_with("x-tulle-") && other.len() > 8 => {
                panic!("a field of the mesh's own passed: {other}")
            }
            _ if name == "keep-alive" || name == "proxy-connection" => {
                panic!("{name} passed")
            }
            _ => {}
        }
    }
    assert!(
        hosts <= 1 && (hosts == 1 || head.minor == 0),
        "{hosts} hosts"
    );

    // The written head means the same, and writing it again changes nothing.
    let Ok(Parsed::Complete(again)) = parse_request(&out, &WIDE) else {
        panic!("what was written is not accepted: {:?}", lossy(&out));
    };
    assert_eq!(again.len, out.len());
    assert_eq!(
        (again.method, again.minor, again.body),
        (head.method, head.minor, head.body)
    );
    assert_eq!(
        (again.upgrade, again.expect_continue),
        (head.upgrade, head.expect_continue)
    );
    for (new, old) in [
        (again.method_text, head.method_text),
        (again.path, head.path),
        (again.authority, head.authority),
        (again.request_id, head.request_id),
    ] {
        assert_eq!(lossy(new.slice(&out)), lossy(old.slice(data)));
    }
    let mut twice = Vec::new();
    again.write(&out, &RequestEdit::default(), &mut twice);
    let mut once = Vec::new();
    head.write(data, &RequestEdit::default(), &mut once);
    let without = |head: &[u8]| -> Vec<String> {
        let mut lines = split(head);
        lines.retain(|line| line != "x-added: a  b");
        lines
    };
    assert_eq!(without(&twice), without(&once));

    // The same head after an empty line, and with identity kept.
    let mut kept = Vec::new();
    let edit = RequestEdit {
        add: &[],
        keep_forwarded_client_cert: true,
        ..Default::default()
    };
    head.write(data, &edit, &mut kept);
    let others: Vec<String> = split(&kept)
        .into_iter()
        .filter(|line| {
            !line
                .to_ascii_lowercase()
                .starts_with("x-forwarded-client-cert:")
        })
        .collect();
    assert_eq!(others, split(&once));
    assert_eq!(
        headers(&data[..head.len]).count(),
        count_lines(data, head.len)
    );
    true
}

/// Returns whether the response was accepted, as the answer to a GET.
pub fn response(data: &[u8]) -> bool {
    let mut accepted = false;
    for method in [Method::Get, Method::Head, Method::Connect] {
        let Ok(Parsed::Complete(head)) = parse_response(data, &LIMITS, method) else {
            continue;
        };
        accepted |= method == Method::Get;
        assert!(head.len <= data.len());
        assert!((100..=999).contains(&head.status));
        for end in prefixes(head.len) {
            let part = parse_response(&data[..end], &LIMITS, method);
            assert!(matches!(part, Ok(Parsed::Partial)), "{part:?} of {end}");
        }
        for close in [false, true] {
            let edit = ResponseEdit {
                add: &[],
                close,
                keep_alive_1_0: false,
                strip_reason: close,
            };
            let mut out = Vec::new();
            head.write(data, &edit, &mut out);
            let interim = head.status < 200;
            for line in &split(&out)[1..] {
                let (name, value) = line.split_once(':').expect("a colon in every line");
                match name.to_ascii_lowercase().as_str() {
                    "connection" => {
                        assert!(["close", "upgrade", "close, upgrade"].contains(&value.trim()))
                    }
                    "keep-alive" | "proxy-connection" => panic!("{name} passed"),
                    "upgrade" => assert!(head.status == 101 || head.status == 426),
                    "transfer-encoding" | "content-length" => {
                        assert!(!interim && head.status != 204);
                    }
                    _ => {}
                }
            }
            let Ok(Parsed::Complete(again)) = parse_response(&out, &WIDE, method) else {
                panic!("what was written is not accepted: {:?}", lossy(&out));
            };
            assert_eq!(again.len, out.len());
            assert_eq!((again.status, again.minor), (head.status, 1));
            // Without its framing fields an answer to a wrong HTTP/1.0 sender stays as it was.
            assert_eq!(again.body, head.body);
            let closes = !interim && close;
            assert_eq!(
                again.keep_alive,
                !closes && head.body != BodyLength::UntilClose && head.status != 101
            );
        }
    }
    accepted
}

/// Feeds a chunked body in pieces of these lengths. Returns whether the body ended.
pub fn chunked(data: &[u8], pieces: &[u8]) -> bool {
    let whole = run(std::iter::once(data));
    let single = run(data.chunks(1));
    assert_eq!(whole, single);

    let mut rest = data;
    let mut lengths = pieces.iter().cycle();
    let cut = std::iter::from_fn(|| {
        if rest.is_empty() {
            return None;
        }
        let length = lengths
            .next()
            .map_or(rest.len(), |&length| usize::from(length).max(1));
        let (piece, more) = rest.split_at(length.min(rest.len()));
        rest = more;
        Some(piece)
    });
    assert_eq!(whole, run(cut));

    if let Ok((taken, true)) = whole {
        assert_eq!(
            lenient_end(data),
            Some(taken),
            "another reader sees another end"
        );
    }
    matches!(whole, Ok((_, true)))
}

fn run<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<(usize, bool), BadBody> {
    let mut body = Body::new(BodyLength::Chunked);
    let mut taken = 0;
    for piece in pieces {
        let length = body.advance(piece)?;
        assert!(length == piece.len() || body.is_done());
        taken += length;
    }
    Ok((taken, body.is_done()))
}

/// The end of a chunked body as a careless reader finds it: lines end at LF, a size is the
/// hexadecimal digits that a line begins with, and the bytes from a chunk's end to LF are ignored.
fn lenient_end(data: &[u8]) -> Option<usize> {
    let line = |at: usize| -> Option<(usize, &[u8])> {
        let end = at + data.get(at..)?.iter().position(|&byte| byte == b'\n')?;
        let text = &data[at..end];
        Some((end + 1, text.strip_suffix(b"\r").unwrap_or(text)))
    };
    let mut at = 0;
    loop {
        let (next, text) = line(at)?;
        let digits = text
            .iter()
            .take_while(|byte| byte.is_ascii_hexdigit())
            .count();
        let text = std::str::from_utf8(&text[..digits]).ok()?;
        let size = usize::from_str_radix(text, 16).ok()?;
        at = next;
        if size == 0 {
            break;
        }
        at = line(at.checked_add(size)?)?.0;
    }
    loop {
        let (next, text) = line(at)?;
        at = next;
        if text.is_empty() {
            return Some(at);
        }
    }
}

/// Lengths of incomplete heads to try: all of a short one, some of a long one.
fn prefixes(len: usize) -> impl Iterator<Item = usize> {
    (0..len).rev().step_by(1 + len / 64)
}

/// The lines of a head that ends where `head` ends; panics on any line end but CRLF.
fn split(head: &[u8]) -> Vec<String> {
    let text: String = head.iter().map(|&byte| char::from(byte)).collect();
    let text = text
        .strip_suffix("\r\n\r\n")
        .expect("an empty line at the end");
    let lines: Vec<String> = text.split("\r\n").map(str::to_owned).collect();
    for line in &lines {
        assert!(
            !line.is_empty() && !line.contains(['\r', '\n', '\0']),
            "{line:?}"
        );
    }
    lines
}

fn count_lines(data: &[u8], len: usize) -> usize {
    data[..len].iter().filter(|&&byte| byte == b'\n').count() - 2 - usize::from(data[0] == b'\r')
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
