//! Header fields by name, and the small pieces of syntax that field values need.

use memchr::memchr;

/// The fields this crate acts on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    KeepAlive,
    ProxyConnection,
    Te,
    Upgrade,
    /// Accompanies `Upgrade: h2c`, which is never forwarded.
    Http2Settings,
    Expect,
    RequestId,
    ForwardedClientCert,
    /// `x_forwarded_client_cert` and similar names. Servers that map names to variables (CGI, WSGI)
    /// read it as the real one, and no proxy writes it, so it is always forged.
    ForgedClientCert,
    /// `x-forwarded-proto` and `x-forwarded-host`, which the proxy at the edge knows best; also
    /// with `_`, as above.
    ForwardedOrigin,
    /// `x-tulle-reason`, by which proxies of the mesh explain a refusal; also with `_`.
    Reason,
    /// Other fields `x-tulle-…`, which only the mesh may set; also with `_`.
    Mesh,
    /// `content_length`, `transfer_encoding` and similar names.
    FramingLookalike,
    Other,
}

/// Recognises a field name, in any case. Few names get past the comparison of lengths.
#[inline]
pub(crate) fn classify(name: &[u8]) -> Field {
    let has = |at, byte| name.get(at).is_some_and(|b: &u8| b | 0x20 == byte);
    if name.len() > MESH.len() && has(2, b't') && same_but_underscores(name, MESH) {
        return match is_same_name(name, "x-tulle-reason") {
            true => Field::Reason,
            false => Field::Mesh,
        };
    }
    match name.len() {
        2 => named(name, b"te", Field::Te),
        4 => named(name, b"host", Field::Host),
        6 => named(name, b"expect", Field::Expect),
        7 => named(name, b"upgrade", Field::Upgrade),
        10 if has(0, b'k') => named(name, b"keep-alive", Field::KeepAlive),
        10 => named(name, b"connection", Field::Connection),
        12 => named(name, b"x-request-id", Field::RequestId),
        14 if has(0, b'h') => named(name, b"http2-settings", Field::Http2Settings),
        14 => named(name, b"content-length", Field::ContentLength),
        16 if has(0, b'x') => named(name, b"x-forwarded-host", Field::ForwardedOrigin),
        16 => named(name, b"proxy-connection", Field::ProxyConnection),
        17 if has(0, b'x') => named(name, b"x-forwarded-proto", Field::ForwardedOrigin),
        17 => named(name, b"transfer-encoding", Field::TransferEncoding),
        23 => named(name, b"x-forwarded-client-cert", Field::ForwardedClientCert),
        _ => Field::Other,
    }
}

/// Returns `field` if the name is `known`, and what its lookalike with `_` is.
#[inline]
fn named<const N: usize>(name: &[u8], known: &[u8; N], field: Field) -> Field {
    if is_folded(name, known) {
        return field;
    }
    if !same_but_underscores(name, known) {
        return Field::Other;
    }
    match field {
        Field::ContentLength | Field::TransferEncoding => Field::FramingLookalike,
        Field::ForwardedClientCert => Field::ForgedClientCert,
        Field::ForwardedOrigin => field,
        _ => Field::Other,
    }
}

/// Whether a name is `known` in any case. The length is known when this is compiled, so a name is compared in words,
/// not in bytes. In a token only the letters of `known` become them with this bit: a control byte is in no name.
#[inline]
fn is_folded<const N: usize>(name: &[u8], known: &[u8; N]) -> bool {
    let Ok(name) = <&[u8; N]>::try_from(name) else {
        return false;
    };
    let pairs = name.iter().zip(known);
    pairs.fold(0, |differs, (byte, known)| {
        differs | ((byte | 0x20) ^ known)
    }) == 0
}

/// Prefix of the names of the mesh's own fields.
pub(crate) const MESH: &[u8] = b"x-tulle-";

/// Whether a field's name is `known` (in lower case) for a server that ignores case and takes `_`
/// for `-`. Servers that map names to variables (CGI, WSGI) do so.
pub fn is_same_name(name: &[u8], known: &str) -> bool {
    name.len() == known.len() && same_but_underscores(name, known.as_bytes())
}

/// Whether `name` reads as the lower-case `known` when case is ignored and `_` taken for `-`.
fn same_but_underscores(name: &[u8], known: &[u8]) -> bool {
    name.iter().zip(known).all(|(&byte, &known)| {
        byte.to_ascii_lowercase() == known || (byte == b'_' && known == b'-')
    })
}

/// A set of bytes, by which a byte is judged with one load.
pub(crate) struct ByteSet([bool; 256]);

impl ByteSet {
    /// The letters and digits of ASCII, and `more`.
    #[expect(clippy::indexing_slicing, reason = "it runs when this is compiled")]
    pub(crate) const fn alphanumeric_and(more: &[u8]) -> Self {
        let mut set = [false; 256];
        let mut byte = 0u8;
        while byte < 0x80 {
            set[byte as usize] = byte.is_ascii_alphanumeric();
            byte += 1;
        }
        let mut at = 0;
        while at < more.len() {
            set[more[at] as usize] = true;
            at += 1;
        }
        Self(set)
    }

    #[inline]
    pub(crate) fn has(&self, byte: u8) -> bool {
        self.0.get(usize::from(byte)).is_some_and(|has| *has)
    }
}

/// Whether a token may contain `byte` (RFC 9110, section 5.6.2).
pub(crate) fn is_token_byte(byte: u8) -> bool {
    static TOKEN: ByteSet = ByteSet::alphanumeric_and(b"!#$%&'*+-.^_`|~");
    TOKEN.has(byte)
}

/// Whether a field value may contain `byte`: anything but control bytes other than a tab.
pub(crate) fn is_value_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// Removes the spaces and tabs around a value.
pub(crate) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Splits a text at the first `byte`.
pub(crate) fn split_once(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let (before, rest) = text.split_at_checked(memchr(byte, text)?)?;
    Some((before, rest.get(1..)?))
}

/// The members of a comma-separated list, trimmed; empty members are skipped (RFC 9110, 5.6.1).
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(trim)
        .filter(|member| !member.is_empty())
}

/// One header line of a head: the whole line with its CRLF, its name and its trimmed value.
pub(crate) struct Line<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// Walks the header lines that follow the request or status line of a validated head.
#[derive(Clone)]
pub(crate) struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Lines<'a> {
    /// `fields` begins at the first header line.
    pub(crate) fn new(fields: &'a [u8]) -> Self {
        Self { rest: fields }
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        let end = memchr(b'\n', self.rest)? + 1;
        let (bytes, rest) = self.rest.split_at(end);
        let text = bytes.strip_suffix(b"\r\n")?;
        let (name, value) = split_once(text, b':')?; // none in the empty line that ends the head
        self.rest = rest;
        Some(Line {
            bytes,
            name,
            value: trim(value),
        })
    }
}

/// Iterator of [`headers`].
#[derive(Clone)]
pub struct Headers<'a>(Lines<'a>);

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|line| (line.name, line.value))
    }
}

/// Name and trimmed value of every header line, in order and as sent, of a head that
/// [`parse_request`](crate::parse_request) or [`parse_response`](crate::parse_response) accepted.
/// Names are in the sender's case: compare with `eq_ignore_ascii_case`.
pub fn headers(head: &[u8]) -> Headers<'_> {
    let head = head.strip_prefix(b"\r\n").unwrap_or(head);
    let fields = split_once(head, b'\n').map_or(&b""[..], |(_, fields)| fields);
    Headers(Lines::new(fields))
}
