//! Responses of the proxy itself: refusals.

use crate::telemetry::access_log::ExchangeEnd;
use crate::telemetry::metrics::RequestSeries;
use crate::telemetry::reason::Failure;
use crate::worker::Worker;
use std::io::Write;
use std::time::Instant;
use tulle_http1::Method;

/// Counts and logs bytes that were refused before they could be read as a request.
pub fn refused_unread(worker: &Worker, series: &RequestSeries, status: u16, failure: &Failure) {
    let now = Instant::now();
    series.request(status.into(), failure.reason, (now, now), (0, 0));
    let labels = &series.labels;
    let source = labels.source.as_ref().map(|id| id.as_str());
    worker.failed(source, &labels.destination_service, b"", status, failure);
    if worker.logs() {
        let ended = ExchangeEnd {
            answer: status.into(),
            reason: failure.reason,
            started: now,
            first_byte: Some(now),
            now,
            received: 0,
            sent: 0,
            upstream: None,
            upstream_time: None,
        };
        let lines = worker.log_rules_at_random();
        worker.log.unread(&ended, labels, lines.as_deref());
    }
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        414 => "URI Too Long",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        // RFC 9112, section 4: a phrase may be empty.
        _ => "",
    }
}

/// Most bytes that edits add to a head, beside given fields.
pub const EDIT_BYTES: usize = 64;

/// Writes an answer of this proxy: status, reason code in `x-tulle-reason`, and a line for the
/// operator, or the configured content.
pub fn write(status: u16, failure: &Failure, close: bool, method: Method, out: &mut Vec<u8>) {
    let usual;
    let answer = failure.answer.as_deref();
    let (kind, body): (&str, &[u8]) = match answer.and_then(|a| a.body.as_ref()) {
        Some((kind, body)) => (kind, body),
        None => {
            usual = format!("tulle: {failure}\n");
            ("text/plain; charset=utf-8", usual.as_bytes())
        }
    };
    // Writing to memory does not fail.
    let _ = write!(
        out,
        "HTTP/1.1 {status} {}\r\nserver: tulle\r\n",
        phrase(status)
    );
    // RFC 9110, section 8.6: these have neither content nor a length that could be taken for one.
    let bodiless = matches!(status, 204 | 304);
    if !bodiless {
        let _ = write!(
            out,
            "content-type: {kind}\r\ncontent-length: {}\r\n",
            body.len()
        );
    }
    let _ = write!(out, "x-tulle-reason: {}\r\n", failure.reason);
    for (name, value) in answer.map(|a| a.headers.as_slice()).unwrap_or_default() {
        tulle_http1::write_line(name, value, out);
    }
    if close {
        out.extend_from_slice(b"connection: close\r\n");
    }
    out.extend_from_slice(b"\r\n");
    if !bodiless && method != Method::Head {
        out.extend_from_slice(body);
    }
}

/// Writes a refusal for gRPC: a response of headers only (over HTTP/2), with status and message.
pub fn write_grpc(failure: &Failure, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = write!(
        out,
        "HTTP/1.1 200 OK\r\nserver: tulle\r\ncontent-type: application/grpc\r\n\
         content-length: 0\r\nx-tulle-reason: {}\r\ngrpc-status: {}\r\ngrpc-message: ",
        failure.reason,
        failure.reason.grpc_status(),
    );
    // Percent-encoded by gRPC's own rule.
    for byte in format!("tulle: {failure}").bytes() {
        match byte {
            b' '..=b'$' | b'&'..=b'~' => out.push(byte),
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out.extend_from_slice(b"\r\n\r\n");
}

/// A random UUID (RFC 9562 version 4) from two random numbers, without allocation.
pub fn request_id(a: u64, b: u64, out: &mut [u8; 36]) {
    let bits = (u128::from(a) << 64) | u128::from(b);
    let bits = (bits & !(0xf << 76) | (4 << 76)) & !(0b11 << 62) | (0b10 << 62);
    let (head, tail) = (hex((bits >> 64) as u64), hex(bits as u64));
    out[..8].copy_from_slice(&head[..8]);
    out[9..13].copy_from_slice(&head[8..12]);
    out[14..18].copy_from_slice(&head[12..]);
    out[19..23].copy_from_slice(&tail[..4]);
    out[24..].copy_from_slice(&tail[4..]);
    for dash in [8, 13, 18, 23] {
        out[dash] = b'-';
    }
}

/// Writes sixteen digits at once: each has a byte of a number. Most requests need an id.
fn hex(number: u64) -> [u8; 16] {
    /// The four bits of each of four bytes, spread over eight.
    fn spread(half: u64) -> u64 {
        let pairs = (half | half << 16) & 0x0000_ffff_0000_ffff;
        let bytes = (pairs | pairs << 8) & 0x00ff_00ff_00ff_00ff;
        (bytes | bytes << 4) & 0x0f0f_0f0f_0f0f_0f0f
    }
    /// Turns 0 to 15 in each byte into digits: `a` lies 39 above the place after `9`.
    fn digits(nibbles: u64) -> [u8; 8] {
        let letters = (nibbles + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
        (nibbles + 0x3030_3030_3030_3030 + letters * 39).to_be_bytes()
    }
    let mut out = [0; 16];
    out[..8].copy_from_slice(&digits(spread(number >> 32)));
    out[8..].copy_from_slice(&digits(spread(number & 0xffff_ffff)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::reason::Reason;

    #[test]
    fn a_request_id_is_a_version_4_uuid() {
        let mut out = [0; 36];
        request_id(u64::MAX, u64::MAX, &mut out);
        assert_eq!(&out, b"ffffffff-ffff-4fff-bfff-ffffffffffff");
        request_id(0x0123_4567_89ab_cdef, 0x0f1e_2d3c_4b5a_6978, &mut out);
        assert_eq!(&out, b"01234567-89ab-4def-8f1e-2d3c4b5a6978");
        request_id(0, 0, &mut out);
        assert_eq!(&out, b"00000000-0000-4000-8000-000000000000");
    }

    #[test]
    fn a_refusal_in_the_words_of_grpc() {
        let failure = Failure::new(Reason::NoRoute, "100% of\nthem");
        let mut out = Vec::new();
        write_grpc(&failure, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        let end = "grpc-status: 12\r\ngrpc-message: tulle: no_route: 100%25 of%0Athem\r\n\r\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn a_refusal_says_why() {
        let failure = Failure::new(Reason::Denied, "a may not call b");
        let mut out = Vec::new();
        write(403, &failure, true, Method::Get, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{text}");
        assert!(
            text.contains("x-tulle-reason: denied\r\nconnection: close\r\n"),
            "{text}"
        );
        assert!(
            text.ends_with("\r\n\r\ntulle: denied: a may not call b\n"),
            "{text}"
        );
    }
}
