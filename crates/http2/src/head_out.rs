//! Turns an HTTP/1.1 head into a header block.

use crate::hpack;

/// Appends the block of a request with the head `head`; `upgrade` is the protocol it asks to switch
/// to.
pub(crate) fn request(
    head: &[u8],
    parsed: &tulle_http1::RequestHead,
    scheme: &[u8],
    upgrade: Option<&[u8]>,
    scratch: &mut Vec<u8>,
    block: &mut Vec<u8>,
) {
    let connect = parsed.method == tulle_http1::Method::Connect;
    let method = match upgrade {
        Some(_) => b"CONNECT",
        None => parsed.method_text.slice(head),
    };
    hpack::encode(b":method", method, block);
    if let Some(protocol) = upgrade {
        hpack::encode(b":protocol", protocol, block);
    }
    if !connect {
        hpack::encode(b":scheme", scheme, block);
        hpack::encode(b":path", parsed.target.slice(head), block);
    }
    if !parsed.authority.is_empty() {
        hpack::encode(b":authority", parsed.authority.slice(head), block);
    }
    fields(head, scratch, block, |name, value| match name {
        b"host" => false,
        b"te" => value.eq_ignore_ascii_case(b"trailers"),
        b"sec-websocket-key" => upgrade.is_none(),
        _ => true,
    });
}

/// Appends the block of a response. `tunnel`: it grants an extended CONNECT.
pub(crate) fn response(
    head: &[u8],
    status: u16,
    tunnel: bool,
    scratch: &mut Vec<u8>,
    block: &mut Vec<u8>,
) {
    let digit = |n: u16| b'0' + (n % 10) as u8;
    let text = [digit(status / 100), digit(status / 10), digit(status)];
    hpack::encode(b":status", &text, block);
    fields(head, scratch, block, |name, _| match name {
        b"sec-websocket-accept" => !tunnel,
        _ => true,
    });
}

/// Appends the block of trailers, given as lines.
pub(crate) fn trailers(lines: &[u8], scratch: &mut Vec<u8>, block: &mut Vec<u8>) {
    for line in lines.split(|&byte| byte == b'\n') {
        let colon = memchr::memchr(b':', line);
        if let Some((name, [b':', value @ ..])) = colon.and_then(|at| line.split_at_checked(at)) {
            field(name, value.trim_ascii(), scratch, block, &|_, _| true);
        }
    }
}

fn fields(
    head: &[u8],
    scratch: &mut Vec<u8>,
    block: &mut Vec<u8>,
    keep: impl Fn(&[u8], &[u8]) -> bool,
) {
    for (name, value) in tulle_http1::headers(head) {
        field(name, value, scratch, block, &keep);
    }
}

fn field(
    name: &[u8],
    value: &[u8],
    scratch: &mut Vec<u8>,
    block: &mut Vec<u8>,
    keep: &impl Fn(&[u8], &[u8]) -> bool,
) {
    let name = if name.iter().any(u8::is_ascii_uppercase) {
        scratch.clear();
        scratch.extend(name.iter().map(u8::to_ascii_lowercase));
        scratch.as_slice()
    } else {
        name
    };
    let connections_own = matches!(
        name,
        b"connection"
            | b"keep-alive"
            | b"proxy-connection"
            | b"transfer-encoding"
            | b"upgrade"
            | b"http2-settings"
    );
    if !connections_own && keep(name, value) {
        hpack::encode(name, value, block);
    }
}
