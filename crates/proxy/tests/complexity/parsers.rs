//! Every parser of network input, as a function of bytes. A crate that includes this file has the
//! proxy's parsers in `modules`.

use crate::modules::{
    detect, exposition, hello, keys, message, plain_path, proxy_protocol, sni, token, trace_context,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::hint::black_box;
use tulle_http1::{Body, BodyLength, Limits, Method, Parsed, RequestEdit};

/// A parser.
pub struct Parser {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Longest input that is not refused for its length alone.
    pub longest: usize,
}

const fn parser(name: &'static str, run: fn(&[u8]), longest: usize) -> Parser {
    Parser { name, run, longest }
}

/// The length of the longest head, or of several frames.
const LONG: usize = 60 * 1024;

pub const PARSERS: [Parser; 21] = [
    parser("http1-request", request, LONG),
    parser("http1-response", response, LONG),
    parser("http1-edit", edit, LONG),
    parser("http1-chunks", chunks, LONG),
    parser("http2-frames", http2_frames, LONG),
    parser("http2-block", http2_block, LONG),
    parser("http2-huffman", http2_huffman, LONG),
    parser("http2-out", http2_out, LONG),
    parser("transport", transport, LONG),
    parser("dns", dns, LONG),
    parser("jwt", jwt, token::MAX_BYTES),
    parser("jwt-claims", claims, token::MAX_BYTES / 2),
    parser("jwks", jwks, LONG),
    parser("trace-context", trace, LONG),
    parser("plain-path", path, LONG),
    parser("proxy-protocol", proxied, proxy_protocol::LIMIT),
    parser("proxy-protocol-tlvs", tlvs, proxy_protocol::LIMIT - 28),
    parser("sni", server_name, sni::LIMIT),
    parser("sni-extensions", extensions, sni::LIMIT - 60),
    parser("detect", first_bytes, LONG),
    parser("exposition", metrics, LONG),
];

/// Limits wider than the proxy's, to see costs that the proxy's hide.
const LIMITS: Limits = Limits {
    head_bytes: 1024 * 1024,
    headers: 128,
};

fn request(data: &[u8]) {
    let Ok(Parsed::Complete(head)) = tulle_http1::parse_request(data, &LIMITS) else {
        return;
    };
    let forged = ["x-claim".to_owned(), "x-claim-other".to_owned()];
    let mut out = Vec::new();
    for edit in [
        RequestEdit::default(),
        RequestEdit {
            add: &[("x-request-id", b"1")],
            forged: &forged,
            drop: &["traceparent", "tracestate"],
            keep_forwarded_client_cert: true,
            drop_forwarded_origin: true,
        },
    ] {
        head.write(data, &edit, &mut out);
    }
    black_box(tulle_http1::split_authority(head.authority.slice(data)));
    black_box(out);
}

fn response(data: &[u8]) {
    let parsed = tulle_http1::parse_response(data, &LIMITS, Method::Get);
    if let Ok(Parsed::Complete(head)) = parsed {
        let mut out = Vec::new();
        head.write(data, &Default::default(), &mut out);
        black_box((out, head.reason(data)));
    }
}

/// Edits a head as filters do.
fn edit(data: &[u8]) {
    let mut out = Vec::new();
    let keep = |name: &[u8]| !tulle_http1::is_same_name(name, "x-claim");
    tulle_http1::edit_head(data, None, keep, &[("x-added", data)], &mut out);
    black_box((tulle_http1::request_line(data), tulle_http1::head_len(data)));
    black_box((tulle_http1::headers(data).count(), out));
}

/// Reads a chunked body all at once, and in pieces.
fn chunks(data: &[u8]) {
    let mut body = Body::new(BodyLength::Chunked);
    let _ = black_box(body.advance(data));
    let mut body = Body::new(BodyLength::Chunked);
    let _ = black_box(
        data.chunks(7)
            .try_for_each(|piece| body.advance(piece).map(drop)),
    );
}

const HTTP2: tulle_http2::Config = tulle_http2::Config {
    window: 1024 * 1024,
    max_window: 1024 * 1024,
    max_streams: 256,
    connection_budget: 8 * 1024 * 1024,
    head_bytes: 1024 * 1024,
    head_fields: 65_536,
    secure: false,
    seed: 1,
};

struct Nobody;

impl tulle_http2::Handler for Nobody {
    fn on_open(&mut self, _: usize) {}
    fn on_head(&mut self, _: usize, head: &[u8], _: tulle_http2::Framing) {
        black_box(head);
    }
    fn on_data(&mut self, _: usize, data: &[u8]) {
        black_box(data);
    }
    fn on_trailers(&mut self, _: usize, lines: &[u8]) {
        black_box(lines);
    }
    fn on_end(&mut self, _: usize) {}
    fn on_reset(&mut self, _: usize, _: tulle_http2::ErrorCode) {}
    fn on_credit(&mut self, _: usize) {}
    fn on_connection_credit(&mut self) {}
}

/// The header of a frame of HTTP/2.
fn frame(length: usize, kind: u8, flags: u8, id: u8) -> [u8; 9] {
    let [_, high, middle, low] = (length as u32).to_be_bytes();
    [high, middle, low, kind, flags, 0, 0, 0, id]
}

/// Feeds bytes that a client sends after its preface and empty SETTINGS.
fn http2_frames(frames: &[u8]) {
    let mut out = Vec::new();
    let mut server = tulle_http2::Connection::server(HTTP2, &mut out);
    let sent = [tulle_http2::PREFACE, &frame(0, 4, 0, 0), frames].concat();
    let _ = black_box(server.receive(&sent, &mut Nobody, &mut out));
    black_box(out);
}

/// The header block of a request, in as many frames as it takes.
fn http2_block(block: &[u8]) {
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let mut frames = Vec::new();
    let pieces = block.chunks(16_384).count();
    for (number, piece) in block.chunks(16_384).enumerate() {
        let last = if number + 1 == pieces { END_HEADERS } else { 0 };
        let (kind, first) = if number == 0 { (1, END_STREAM) } else { (9, 0) };
        frames.extend_from_slice(&frame(piece.len(), kind, last | first, 1));
        frames.extend_from_slice(piece);
    }
    http2_frames(&frames);
}

/// The value of a field, Huffman-coded.
fn http2_huffman(text: &[u8]) {
    // A literal with a name of one letter, then the length as an integer of seven bits and more.
    let mut block = vec![0, 1, b'a', 0xff];
    let mut length = text.len().saturating_sub(127);
    while length >= 128 {
        block.push(0x80 | (length & 0x7f) as u8);
        length >>= 7;
    }
    block.push(length as u8);
    block.extend_from_slice(text);
    http2_block(&block);
}

/// Writes a message of HTTP/1.1 as HTTP/2.
fn http2_out(message: &[u8]) {
    let mut out = Vec::new();
    let mut client = tulle_http2::Connection::client(HTTP2, &mut out);
    let _ = client.receive(&frame(0, 4, 0, 0), &mut Nobody, &mut out);
    if let Some(key) = client.open() {
        let _ = black_box(client.write(key, message, &mut out));
    }
    black_box(out);
}

struct Noone;

impl tulle_transport::Handler for Noone {
    fn on_open(&mut self, id: tulle_transport::StreamId, _: tulle_transport::StreamKind) -> usize {
        id.value() as usize
    }
    fn on_data(&mut self, _: usize, _: tulle_transport::StreamId, data: &[u8]) {
        black_box(data);
    }
    fn on_end(&mut self, _: usize, _: tulle_transport::StreamId) {}
    fn on_reset(&mut self, _: usize, _: tulle_transport::StreamId, _: tulle_transport::ResetCode) {}
    fn on_credit(&mut self, _: usize, _: tulle_transport::StreamId) {}
    fn on_go_away(&mut self, _: u32, _: tulle_transport::GoAwayCode) {}
    fn on_pong(&mut self, _: [u8; 8]) {}
}

/// Feeds bytes that a client sends after its SETTINGS, all at once and in pieces.
fn transport(frames: &[u8]) {
    use tulle_transport::{Config, Connection};
    let mut settings = Vec::new();
    let _client = Connection::client(Config::default(), &mut settings);
    for piece in [frames.len().max(1), 7] {
        let mut out = Vec::new();
        let mut server = Connection::server(Config::default(), &mut out);
        let _ = server.receive(&settings, &mut Noone, &mut out);
        let mut pieces = frames.chunks(piece);
        let _ = black_box(pieces.try_for_each(|p| server.receive(p, &mut Noone, &mut out)));
    }
}

fn metrics(data: &[u8]) {
    let mut out = String::new();
    let text = std::str::from_utf8(data).unwrap_or_default();
    let _ = black_box(exposition::merge(text, &mut out));
    black_box(out);
}

fn dns(data: &[u8]) {
    if let Ok(query) = message::Query::read(data) {
        black_box((query.forwarded(data, 1), query.key(data)));
        black_box(query.is_answered_by(data, 1, data));
        black_box(query.name.as_deref().and_then(message::pointed));
    }
    if let Some(held) = message::lifetime(data) {
        let mut older = data.to_vec();
        message::age(&mut older, &held.places, 1);
        black_box(older);
    }
    // The whole input is the name.
    black_box(std::str::from_utf8(data).ok().and_then(message::pointed));
}

fn jwt(text: &[u8]) {
    if let Ok(token) = token::Token::parse(text) {
        black_box(token.issuer());
    }
}

/// Reads the claims of a token, as JSON.
fn claims(json: &[u8]) {
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256"}"#);
    let text = format!("{header}.{}.AAAA", URL_SAFE_NO_PAD.encode(json));
    jwt(text.as_bytes());
}

fn jwks(json: &[u8]) {
    if let Ok(text) = std::str::from_utf8(json) {
        let _ = black_box(keys::Keys::parse(text));
    }
}

/// Reads fields, given as lines.
fn trace(data: &[u8]) {
    let lines = data.split(|&byte| byte == b'\n');
    black_box(trace_context::read(lines.map(|line| {
        let at = line.iter().position(|&byte| byte == b':');
        let (name, value) = line.split_at(at.unwrap_or(line.len()));
        (name, value.get(1..).unwrap_or_default())
    })));
}

fn path(data: &[u8]) {
    black_box((plain_path::reading(data), plain_path::decoded(data)));
}

fn proxied(data: &[u8]) {
    black_box(proxy_protocol::parse(data));
}

/// Reads the bytes after the addresses of version 2.
fn tlvs(data: &[u8]) {
    let length = (12 + data.len()) as u16;
    let start = b"\r\n\r\n\0\r\nQUIT\n\x21\x11";
    proxied(&[start, &length.to_be_bytes()[..], &[1; 12], data].concat());
}

/// The extensions of a hello in one record.
fn extensions(data: &[u8]) {
    let length = data.len() as u16;
    let hello = [
        &[3; 34][..],
        b"\0\0\x02\x13\x01\x01\0",
        &length.to_be_bytes(),
        data,
    ]
    .concat();
    let [high, low] = (hello.len() as u16).to_be_bytes();
    let record = (hello.len() as u16 + 4).to_be_bytes();
    server_name(&[b"\x16\x03\x01", &record[..], &[1, 0, high, low], &hello].concat());
}

fn server_name(data: &[u8]) {
    black_box((sni::server_name(data), hello::is_client_hello(data)));
}

/// Reads the bytes all at once, and in pieces.
fn first_bytes(data: &[u8]) {
    black_box(detect::FirstLineReader::new().read(data));
    let mut watch = detect::FirstLineReader::new();
    black_box(data.chunks(7).map(|piece| watch.read(piece)).last());
}
