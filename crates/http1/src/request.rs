//! Request heads: parsing, and writing them for the next hop.

use std::mem::MaybeUninit;

use crate::connection::{Named, Options};
use crate::error::{BadHead, BadRequest};
use crate::field::{Field, Lines, classify, is_same_name, is_token_byte, list, split_once};
use crate::head::{
    Cuts, Framing, MAX_HEADERS, Slots, add_lines, copy_lines, diagnose, each_line, max_bytes,
    slice, usable,
};
use crate::target::{Authority, Target};
use crate::{BodyLength, ByteSpan, Limits, Method, Parsed};

/// A complete and valid request head, as offsets into the buffer it was parsed from.
#[derive(Clone, Debug)]
pub struct RequestHead {
    /// Bytes of the head in the buffer; the body begins here.
    pub len: usize,
    /// The method.
    pub method: Method,
    /// The method as sent.
    pub method_text: ByteSpan,
    /// The request target as sent, for logs.
    pub target: ByteSpan,
    /// The path without query and without authority: `/` if an absolute-form target has none, `*`
    /// for the asterisk-form, empty for CONNECT. It is not normalised, but forwarded as it is here.
    pub path: ByteSpan,
    /// The authority of the target if it has one, else `Host`; port included. May be empty.
    pub authority: ByteSpan,
    /// x of HTTP/1.x.
    pub minor: u8,
    /// Framing of the body; never [`BodyLength::UntilClose`].
    pub body: BodyLength,
    /// Whether the client lets the connection stay open after this request.
    pub keep_alive: bool,
    /// `Expect: 100-continue` on an HTTP/1.1 request with a body.
    pub expect_continue: bool,
    /// Whether the client asks to switch protocols. Never true for `h2c`: such a request goes on
    /// without its `Upgrade`, since a switch to HTTP/2 would take requests past the policy.
    pub upgrade: bool,
    /// Value of `x-request-id`, empty if absent; the first if there are several.
    pub request_id: ByteSpan,

    /// Offset of the first header line.
    fields: u32,
    /// Path and query to write instead of the target.
    rewrite: Option<ByteSpan>,
    /// Whether the authority of the target replaces `Host`.
    replace_host: bool,
    /// Whether the client accepts trailers.
    te_trailers: bool,
    has_client_cert: bool,
    has_forwarded_origin: bool,
    /// Whether `cuts` lacks some of the lines to leave out.
    rescan: bool,
    /// Whether `Connection` names further fields.
    named: bool,
    cuts: Cuts,
}

/// Changes to a request head on its way.
#[derive(Copy, Clone, Debug, Default)]
pub struct RequestEdit<'a> {
    /// Header lines to append, names in lower case. They are not compared with those present.
    pub add: &'a [(&'a str, &'a [u8])],
    /// Forward `x-forwarded-client-cert` as received, instead of removing it.
    pub keep_forwarded_client_cert: bool,
    /// Remove `x-forwarded-proto` and `x-forwarded-host` as received, because they are added anew.
    pub drop_forwarded_origin: bool,
    /// Further fields to remove, names in lower case; none that frames the message.
    pub drop: &'a [&'a str],
    /// Further fields that no client may send, names in lower case: they are removed also with `_`.
    pub forged: &'a [String],
}

/// Looks for a request head at the start of `buf`.
///
/// One empty line before it is skipped (RFC 9112, section 2.2); more are refused.
///
/// Every call begins at the start. A caller that reads few bytes at a time should call again only
/// once a line feed has come or the limit is reached, so that a slow sender costs little.
pub fn parse_request(buf: &[u8], limits: &Limits) -> Result<Parsed<RequestHead>, BadRequest> {
    let (start, head) = match buf {
        [b'\r', b'\n', b'\r' | b'\n', ..] => return Err(BadRequest::EmptyLines),
        [b'\r', b'\n', head @ ..] => (2, head),
        [b'\n', ..] => return Err(BadHead::LineEnding.into()),
        _ => (0, buf),
    };
    let max = max_bytes(limits);
    let mut slots: Slots<'_> = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(buf, usable(&mut slots, limits)) {
        Ok(httparse::Status::Complete(len)) if len <= max => read(buf, start, len, &request),
        Ok(httparse::Status::Partial) if buf.len() < max => Ok(Parsed::Partial),
        Ok(_) => Err(too_large(
            head.get(..max.saturating_sub(start)).unwrap_or(head),
        )),
        Err(error) => Err(refuse(head, error)),
    }
}

fn read(
    buf: &[u8],
    start: usize,
    len: usize,
    request: &httparse::Request<'_, '_>,
) -> Result<Parsed<RequestHead>, BadRequest> {
    let (Some(method_text), Some(target_text), Some(minor)) =
        (request.method, request.path, request.version)
    else {
        return Err(BadRequest::RequestLine);
    };
    let method = Method::from_bytes(method_text.as_bytes());
    let target_span = ByteSpan::locate(buf, target_text.as_bytes());
    let target = Target::parse(method, target_text.as_bytes(), target_span.start as usize)?;
    let replace_host = target.authority.is_some();

    let mut host = None;
    let mut framing = Framing::default();
    let mut options = Options::default();
    let mut cuts = Cuts::default();
    let mut request_id = ByteSpan::default();
    let mut expect_continue = false;
    let mut te_trailers = false;
    let mut has_client_cert = false;
    let mut has_forwarded_origin = false;
    let (mut has_upgrade, mut asks_upgrade, mut asks_h2c) = (false, false, false);

    let fields = each_line(buf, len, request.headers, |header, line| {
        let value = header.value;
        match classify(header.name.as_bytes()) {
            Field::Other => {}
            Field::Host => {
                if host.is_some() {
                    return Err(BadRequest::HostRepeated);
                }
                if Authority::parse(value).is_none() {
                    return Err(BadRequest::HostInvalid);
                }
                host = Some(ByteSpan::locate(buf, value));
                if replace_host {
                    cuts.push(line);
                }
            }
            Field::ContentLength => framing.content_length(value)?,
            Field::TransferEncoding => framing.transfer_encoding(value)?,
            Field::FramingLookalike => return Err(BadRequest::FramingLookalike),
            Field::Connection => {
                options.read(value)?;
                cuts.push(line);
            }
            Field::KeepAlive
            | Field::ProxyConnection
            | Field::Http2Settings
            | Field::Reason
            | Field::Mesh
            | Field::ForgedClientCert => cuts.push(line),
            Field::ForwardedClientCert => {
                has_client_cert = true;
                cuts.push(line);
            }
            Field::ForwardedOrigin => has_forwarded_origin = true,
            Field::Te => {
                te_trailers |= list(value).any(|coding| coding.eq_ignore_ascii_case(b"trailers"));
                cuts.push(line);
            }
            Field::Upgrade => {
                has_upgrade = true;
                for protocol in list(value) {
                    asks_upgrade = true;
                    asks_h2c |= is_h2c(protocol);
                }
            }
            Field::Expect => {
                expect_continue |=
                    list(value).any(|member| member.eq_ignore_ascii_case(b"100-continue"));
            }
            Field::RequestId => {
                if request_id.is_empty() {
                    request_id = ByteSpan::locate(buf, value);
                }
            }
        }
        Ok(())
    })?;

    if host.is_none() && minor == 1 {
        return Err(BadRequest::HostMissing);
    }
    let body = framing.finish(minor)?.unwrap_or(BodyLength::None);
    let has_body = !matches!(body, BodyLength::None | BodyLength::Length(0));
    if method == Method::Connect && has_body {
        return Err(BadRequest::ConnectBody);
    }
    Ok(Parsed::Complete(RequestHead {
        len,
        method,
        method_text: ByteSpan::new(start, start + method_text.len()),
        target: target_span,
        path: target.path,
        authority: target.authority.or(host).unwrap_or_default(),
        minor,
        body,
        keep_alive: !options.close && (minor == 1 || options.keep_alive),
        expect_continue: expect_continue && minor == 1 && has_body,
        // HTTP/1.0 has no Upgrade (RFC 9110, section 7.8).
        upgrade: options.upgrade && asks_upgrade && !asks_h2c && minor == 1,
        request_id,
        fields: fields as u32,
        rewrite: target.rewrite,
        replace_host,
        te_trailers: te_trailers && minor == 1,
        has_client_cert,
        has_forwarded_origin,
        rescan: cuts.overflow() || options.named > 0 || has_upgrade,
        named: options.named > 0,
        cuts,
    }))
}

/// Whether a protocol is `h2c`, perhaps with a version after it.
fn is_h2c(protocol: &[u8]) -> bool {
    let name = protocol.split(|&byte| byte == b'/').next();
    name.is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"h2c"))
}

impl RequestHead {
    /// Writes the head for the next hop: the same version, fields of this connection removed,
    /// an absolute-form target turned into origin-form and `Host`, and `edit` applied.
    ///
    /// `head` is the buffer that was parsed, or its first [`len`](Self::len) bytes.
    pub fn write(&self, head: &[u8], edit: &RequestEdit<'_>, out: &mut Vec<u8>) {
        let fields = self.fields as usize;
        let fields_end = self.len - 2;
        self.write_request_line(head, fields, out);
        let rescan = self.rescan
            || (edit.keep_forwarded_client_cert && self.has_client_cert)
            || (edit.drop_forwarded_origin && self.has_forwarded_origin)
            || !edit.drop.is_empty()
            || !edit.forged.is_empty();
        if rescan {
            let lines = slice(head, fields, self.len);
            let named = match self.named {
                true => Named::from_lines(Lines::new(lines)),
                false => Named::default(),
            };
            copy_lines(lines, |name| self.keeps(&named, name, edit), out);
        } else {
            self.cuts.copy(head, fields, fields_end, out);
        }
        out.extend_from_slice(match (self.upgrade, self.te_trailers) {
            (false, false) => b"",
            (true, false) => b"connection: upgrade\r\n",
            (false, true) => b"connection: te\r\nte: trailers\r\n",
            (true, true) => b"connection: upgrade, te\r\nte: trailers\r\n",
        });
        add_lines(edit.add, out);
        out.extend_from_slice(b"\r\n");
    }

    fn write_request_line(&self, head: &[u8], fields: usize, out: &mut Vec<u8>) {
        if let Some(target) = self.rewrite {
            let target = target.slice(head);
            out.extend_from_slice(self.method_text.slice(head));
            out.push(b' ');
            if target.first() == Some(&b'?') {
                out.push(b'/');
            }
            out.extend_from_slice(target);
            out.extend_from_slice(if self.minor == 0 {
                b" HTTP/1.0\r\n"
            } else {
                b" HTTP/1.1\r\n"
            });
        } else {
            let start = self.method_text.start as usize;
            out.extend_from_slice(slice(head, start, fields));
        }
        if self.replace_host {
            out.extend_from_slice(b"host: ");
            out.extend_from_slice(self.authority.slice(head));
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Decides on the slow path, as `read` does line by line, for heads with an `Upgrade`, with
    /// names in `Connection`, or with more lines to remove than `cuts` holds.
    fn keeps(&self, named: &Named<'_>, name: &[u8], edit: &RequestEdit<'_>) -> bool {
        match classify(name) {
            Field::Connection
            | Field::KeepAlive
            | Field::ProxyConnection
            | Field::Http2Settings
            | Field::Te
            | Field::Reason
            | Field::Mesh
            | Field::ForgedClientCert => false,
            Field::ForwardedClientCert => edit.keep_forwarded_client_cert,
            Field::ForwardedOrigin if edit.drop_forwarded_origin => false,
            Field::Host => !self.replace_host,
            Field::Upgrade => self.upgrade,
            Field::ContentLength | Field::TransferEncoding => true,
            _ if edit
                .drop
                .iter()
                .any(|d| name.eq_ignore_ascii_case(d.as_bytes())) =>
            {
                false
            }
            _ if edit.forged.iter().any(|f| is_same_name(name, f)) => false,
            _ => !named.holds(name),
        }
    }
}

/// The error for a large head: its target alone is too large, or the head as a whole.
#[cold]
fn too_large(head: &[u8]) -> BadRequest {
    let target = head.iter().position(|&byte| byte == b' ');
    if target.is_some() && !head.contains(&b'\n') {
        BadRequest::TargetTooLong
    } else {
        BadHead::TooLarge.into()
    }
}

/// Names the fault of a head that `httparse` refused. `head` begins at the request line.
#[cold]
fn refuse(head: &[u8], error: httparse::Error) -> BadRequest {
    use httparse::Error;
    let line = split_once(head, b'\n').map(|(line, _)| line);
    match error {
        Error::HeaderName | Error::HeaderValue | Error::TooManyHeaders => {
            return diagnose(head, error).into();
        }
        // Also the error for the line end of the request line itself.
        Error::NewLine if line.is_some_and(is_request_line) => {
            return diagnose(head, error).into();
        }
        _ => {}
    }
    let line = line.unwrap_or(head);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.contains(&b'\r') {
        return BadHead::LineEnding.into();
    }
    let mut words = line.split(|&byte| byte == b' ');
    let method = words.next().unwrap_or_default();
    if method.is_empty() || !method.iter().copied().all(is_token_byte) {
        return BadRequest::Method;
    }
    let target = words.next().unwrap_or_default();
    let version = words.next().unwrap_or_default();
    if target.iter().any(|byte| !(b'!'..=b'~').contains(byte)) {
        return BadRequest::Target;
    }
    if let Some(number) = version.strip_prefix(b"HTTP/")
        && words.next().is_none()
        && is_other_version(number)
    {
        return BadRequest::Version;
    }
    BadRequest::RequestLine
}

/// Whether `number` is a well-formed version, but not ours. It may be incomplete, as `httparse`
/// gives up at the first digit.
fn is_other_version(number: &[u8]) -> bool {
    match number {
        [major] | [major, b'.'] => major.is_ascii_digit() && *major != b'1',
        [major, b'.', minor] => major.is_ascii_digit() && minor.is_ascii_digit(),
        _ => false,
    }
}

/// Whether `line`, up to its LF, is a request line that ends in CRLF.
fn is_request_line(line: &[u8]) -> bool {
    (line.ends_with(b" HTTP/1.1\r") || line.ends_with(b" HTTP/1.0\r"))
        && line.iter().filter(|&&byte| byte == b' ').count() == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(data: &[u8], edit: &RequestEdit<'_>) -> String {
        let Ok(Parsed::Complete(head)) = parse_request(data, &Limits::default()) else {
            panic!("refused");
        };
        let mut out = b"before ".to_vec();
        head.write(data, edit, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn identity_is_kept_on_demand_but_not_its_lookalike() {
        let data = b"GET / HTTP/1.1\r\nX-Forwarded-Client-Cert: a\r\nHost: b\r\n\
            x_forwarded_client_cert: c\r\nTE: gzip\r\n\r\n";
        let keep = RequestEdit {
            add: &[],
            keep_forwarded_client_cert: true,
            ..Default::default()
        };
        assert_eq!(
            written(data, &keep),
            "before GET / HTTP/1.1\r\nX-Forwarded-Client-Cert: a\r\nHost: b\r\n\r\n"
        );
        assert_eq!(
            written(data, &RequestEdit::default()),
            "before GET / HTTP/1.1\r\nHost: b\r\n\r\n"
        );
    }

    #[test]
    fn what_a_client_says_of_its_origin_is_dropped_on_demand() {
        let data = b"GET / HTTP/1.1\r\nX-Forwarded-Proto: https\r\nHost: b\r\n\
            x_forwarded_host: c\r\nx-forwarded-for: d\r\n\r\n";
        let drop = RequestEdit {
            drop_forwarded_origin: true,
            ..Default::default()
        };
        assert_eq!(
            written(data, &drop),
            "before GET / HTTP/1.1\r\nHost: b\r\nx-forwarded-for: d\r\n\r\n"
        );
        assert!(written(data, &RequestEdit::default()).contains("X-Forwarded-Proto: https"));
    }

    #[test]
    fn further_fields_are_dropped_by_name() {
        let data =
            b"GET / HTTP/1.1\r\nHost: b\r\nB3: 0\r\nb3x: 1\r\nb3: 1\r\nContent-Length: 0\r\n\r\n";
        let drop = RequestEdit {
            drop: &["b3"],
            add: &[("b3", b"2")],
            ..Default::default()
        };
        assert_eq!(
            written(data, &drop),
            "before GET / HTTP/1.1\r\nHost: b\r\nb3x: 1\r\nContent-Length: 0\r\nb3: 2\r\n\r\n"
        );
    }

    #[test]
    fn an_added_value_cannot_begin_a_line() {
        let edit = RequestEdit {
            add: &[("a", b"b\r\nc: d\0"), ("e", b"")],
            ..Default::default()
        };
        assert_eq!(
            written(b"GET / HTTP/1.0\r\n\r\n", &edit),
            "before GET / HTTP/1.0\r\na: b  c: d \r\ne: \r\n\r\n"
        );
    }

    #[test]
    fn offsets_hold_behind_an_empty_line_and_before_a_body() {
        let data = b"\r\nPOST /a?b HTTP/1.1\r\nHost: c:80\r\nContent-Length: 3\r\n\r\nxyz";
        let Ok(Parsed::Complete(head)) = parse_request(data, &Limits::default()) else {
            panic!("refused");
        };
        assert_eq!(head.method_text.slice(data), b"POST");
        assert_eq!(head.target.slice(data), b"/a?b");
        assert_eq!(head.path.slice(data), b"/a");
        assert_eq!(head.authority.slice(data), b"c:80");
        assert_eq!(&data[head.len..], b"xyz");
        let names: Vec<_> = crate::headers(&data[..head.len]).collect();
        assert_eq!(
            names,
            [
                (&b"Host"[..], &b"c:80"[..]),
                (&b"Content-Length"[..], &b"3"[..])
            ]
        );
    }
}
