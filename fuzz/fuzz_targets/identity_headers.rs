//! Whatever a client sends, by any entrance: no application receives a forged field in a proxy's
//! name. The check reads the forwarded head and trailers as leniently as careless servers do.
//!
//! This runs the code that reads and writes a request, without sockets. HTTP/1.1 and HTTP/2 enter a
//! sidecar, a gateway or an inbound listener (also a CONNECT, an upgrade, and pipelined requests),
//! then pass the hop between two proxies, and leave as HTTP/2 to the application. `tulle/1` carries
//! the same bytes between proxies unchanged. Bytes after an upgrade or a CONNECT are opaque, and
//! the target `detect` covers which bytes of a TCP connection are a request. The real programs get
//! the same requests in `tests/local/tests/proxy/forged_heads.rs`.
//!
//! The first byte of the input chooses the variant. The rest is the input: bytes of HTTP/1.1, or
//! lines `name:value` of HTTP/2, where an empty line stands before the trailers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tulle_http1::{BodyLength, Limits, Parsed, parse_request};
use tulle_http2::{Config, Connection, ErrorCode, Framing, Handler, PREFACE};

// Both are pure; depending on their crate would put all of the proxy under the sanitizer.
#[path = "../../crates/proxy/src/http/exchange/outgoing.rs"]
mod outgoing;
#[allow(dead_code)]
#[path = "../../crates/proxy/src/telemetry/trace_context/mod.rs"]
mod trace_context;

/// Where `outgoing` looks for it.
mod telemetry {
    pub(crate) use super::trace_context;
}

use outgoing::Outgoing;

/// The proxy's own statement about the client.
const CERT: &[u8] = b"By=spiffe://mesh/svc/a;Hash=00";
const CLAIMS: [&str; 2] = ["x-user", "x-user-mail"];

/// Entrance of a request.
#[derive(Clone, Copy, PartialEq)]
enum Entrance {
    /// The application beside a sidecar.
    Outbound,
    /// A client outside the mesh.
    Gateway,
    /// Another proxy, or a client in plaintext.
    Inbound,
}

impl Entrance {
    fn outgoing(self, claims: &[String]) -> Outgoing<'_> {
        Outgoing {
            request_id: b"1",
            client_cert: (self != Self::Outbound).then_some(CERT),
            forwarded_for: (self != Self::Outbound).then_some(b"192.0.2.1"),
            scheme: (self == Self::Gateway).then_some(b"https"),
            onward: None,
            claims: if self == Self::Outbound { &[] } else { claims },
        }
    }
}

/// Passes pipelined requests through a proxy. Returns the bytes it sends.
fn pass(entrance: Entrance, claims: &[String], mut bytes: &[u8]) -> Vec<u8> {
    let outgoing = entrance.outgoing(claims);
    let mut sent = Vec::new();
    while let Ok(Parsed::Complete(head)) = parse_request(bytes, &Limits::default()) {
        let (text, rest) = bytes.split_at(head.len);
        let mut written = Vec::new();
        outgoing.write(&head, text, |_| &mut written);
        check_head(entrance, outgoing.claims, &written);
        sent.extend_from_slice(&written);
        let mut body = outgoing.body(&head);
        let Ok(count) = body.advance(rest) else { break };
        let (body_bytes, rest) = rest.split_at(count);
        sent.extend_from_slice(body_bytes);
        if head.body == BodyLength::Chunked && body.is_done() {
            check_trailers(outgoing.claims, trailers(body_bytes));
        }
        if !body.is_done() || !head.keep_alive || head.upgrade {
            break;
        }
        bytes = rest;
    }
    sent
}

/// Returns the bytes after the last chunk.
fn trailers(mut body: &[u8]) -> &[u8] {
    loop {
        let end = body.iter().position(|&b| b == b'\n').expect("a size") + 1;
        let (line, rest) = body.split_at(end);
        let digits: Vec<u8> = line
            .iter()
            .copied()
            .take_while(u8::is_ascii_hexdigit)
            .collect();
        let size = usize::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap();
        if size == 0 {
            return rest;
        }
        body = &rest[size + 2..];
    }
}

/// Returns the names of lines for a server that stops at any line end, trims, and takes `_` for
/// `-`.
fn names(lines: &[u8]) -> impl Iterator<Item = (String, &[u8])> {
    let lines = lines.split(|byte| matches!(byte, b'\r' | b'\n'));
    lines.filter_map(|line| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
        let name = name.trim_matches(|c: char| c <= ' ').replace('_', "-");
        Some((name, line[colon + 1..].trim_ascii()))
    })
}

fn check_head(entrance: Entrance, claims: &[String], head: &[u8]) {
    let start = head.iter().position(|&byte| byte == b'\n').expect("a line") + 1;
    let (mut certificates, mut schemes) = (Vec::new(), 0);
    for (name, value) in names(&head[start..]) {
        match name.as_str() {
            "x-forwarded-client-cert" => certificates.push(value),
            "x-forwarded-proto" => schemes += 1,
            _ => {}
        }
        let forged = name.starts_with("x-tulle-") && name != "x-tulle-";
        assert!(!forged && !claims.contains(&name), "forged: {name}");
    }
    let own: &[&[u8]] = if entrance == Entrance::Outbound {
        &[]
    } else {
        &[CERT]
    };
    assert_eq!(certificates, own, "a certificate that is not the proxy's");
    assert!(entrance != Entrance::Gateway || schemes == 1);
}

fn check_trailers(claims: &[String], lines: &[u8]) {
    for (name, _) in names(lines) {
        let forged = name.starts_with("x-tulle-") && name != "x-tulle-";
        let forged = forged || name == "x-forwarded-client-cert" || claims.contains(&name);
        assert!(!forged, "forged, as a trailer: {name}");
    }
}

/// The message of one stream, as HTTP/1.1.
#[derive(Default)]
struct Message {
    head: Vec<u8>,
    framing: Option<Framing>,
    body: Vec<u8>,
    trailers: Vec<u8>,
}

impl Message {
    /// Returns the message as the proxy forwards it.
    fn bytes(self) -> Vec<u8> {
        let mut out = self.head;
        if self.framing != Some(Framing::Chunked) {
            out.extend_from_slice(&self.body);
            return out;
        }
        if !self.body.is_empty() {
            out.extend_from_slice(format!("{:x}\r\n", self.body.len()).as_bytes());
            out.extend_from_slice(&self.body);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"0\r\n");
        out.extend_from_slice(&self.trailers);
        out.extend_from_slice(b"\r\n");
        out
    }
}

impl Handler for Message {
    fn on_open(&mut self, _: usize) {}
    fn on_head(&mut self, _: usize, head: &[u8], framing: Framing) {
        self.head.extend_from_slice(head);
        self.framing = Some(framing);
    }
    fn on_data(&mut self, _: usize, data: &[u8]) {
        self.body.extend_from_slice(data);
    }
    fn on_trailers(&mut self, _: usize, lines: &[u8]) {
        self.trailers.extend_from_slice(lines);
    }
    fn on_end(&mut self, _: usize) {}
    fn on_reset(&mut self, _: usize, _: ErrorCode) {}
    fn on_credit(&mut self, _: usize) {}
    fn on_connection_credit(&mut self) {}
}

const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Returns a proxy's form of lines that come as fields of HTTP/2.
fn from_http2(lines: &[u8]) -> Vec<u8> {
    let blank = lines.windows(2).position(|two| two == b"\n\n");
    let (head, trailers) = lines.split_at(blank.unwrap_or(lines.len()));
    let mut fields = Vec::new();
    if !head.starts_with(b":") {
        fields = block(b":method:POST\n:scheme:http\n:path:/\n:authority:a");
    }
    fields.extend(block(head));
    let trailers = block(trailers);
    let mut frames = [PREFACE, &SETTINGS].concat();
    frame(1, 4, &fields, &mut frames);
    frame(0, u8::from(trailers.is_empty()), b"x", &mut frames);
    if !trailers.is_empty() {
        frame(1, 5, &trailers, &mut frames);
    }
    let mut out = Vec::new();
    let mut message = Message::default();
    let mut server = Connection::server(Config::default(), &mut out);
    let _ = server.receive(&frames, &mut message, &mut out);
    message.bytes()
}

/// Returns a request as an application receives it over HTTP/2.
fn to_http2(request: &[u8]) -> Message {
    let mut sent = Vec::new();
    let mut ignored = Vec::new();
    let mut client = Connection::client(Config::default(), &mut sent);
    // These settings allow extended CONNECT.
    let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1];
    let _ = client.receive(&settings, &mut Message::default(), &mut ignored);
    if let Some(key) = client.open() {
        let _ = client.write(key, request, &mut sent);
    }
    let mut message = Message::default();
    let mut server = Connection::server(Config::default(), &mut ignored);
    let _ = server.receive(&sent, &mut message, &mut ignored);
    message
}

/// A frame of stream 1.
fn frame(kind: u8, flags: u8, payload: &[u8], out: &mut Vec<u8>) {
    let payload = &payload[..payload.len().min(16_384)];
    let [_, high, middle, low] = (payload.len() as u32).to_be_bytes();
    out.extend_from_slice(&[high, middle, low, kind, flags, 0, 0, 0, 1]);
    out.extend_from_slice(payload);
}

/// A header block of literals.
fn block(lines: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines.split(|&byte| byte == b'\n').filter(|l| !l.is_empty()) {
        let colon = line.iter().skip(1).position(|&byte| byte == b':');
        let (name, value) = line.split_at(colon.map_or(line.len(), |at| at + 1));
        out.push(0);
        for text in [name, value.get(1..).unwrap_or_default()] {
            let text = &text[..text.len().min(126)];
            out.push(text.len() as u8);
            out.extend_from_slice(text);
        }
    }
    out
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else {
        return;
    };
    let claims: Vec<String> = match how & 1 {
        0 => Vec::new(),
        _ => CLAIMS.map(str::to_owned).to_vec(),
    };
    let came = match how & 2 {
        0 => data.to_vec(),
        _ => from_http2(data),
    };
    let first = match how >> 2 & 3 {
        0 | 1 => Entrance::Outbound,
        2 => Entrance::Gateway,
        _ => Entrance::Inbound,
    };
    let mut sent = pass(first, &claims, &came);
    if first != Entrance::Inbound {
        // The second proxy must not trust the first one's fields about its own client.
        sent = pass(Entrance::Inbound, &claims, &sent);
    }
    let heard = to_http2(&sent);
    if heard.head.ends_with(b"\r\n\r\n") {
        check_head(Entrance::Inbound, &claims, &heard.head);
    }
    check_trailers(&claims, &heard.trailers);
});
