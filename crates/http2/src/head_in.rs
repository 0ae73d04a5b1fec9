//! Turns the fields of a header block into an HTTP/1.1 head, by the strict rules of RFC 9113,
//! section 8.
//!
//! Fields that HTTP/1.1 cannot express without ambiguity are malformed here, so that no value can
//! begin a line of its own and no length can disagree with the body that follows.

use crate::websocket;
use tulle_http1::Method;

/// Kind of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    /// The answer to a request of that method; the flag: the request asked for a tunnel.
    Response(Method, bool),
    Trailers,
}

/// How the bytes after a head are framed in the HTTP/1.1 form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Nothing follows.
    None,
    /// `content-length` bytes.
    Length,
    /// Chunks, then trailers.
    Chunked,
    /// A tunnel: bytes as they are, until the stream ends.
    Raw,
}

/// Facts about a head that has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) framing: Framing,
    /// Whether the head is over a limit, and is passed on only to be refused.
    pub(crate) too_large: bool,
    /// Bytes of DATA that must come.
    pub(crate) length: Option<u64>,
    /// A 1xx response: another head follows.
    pub(crate) interim: bool,
    /// Method of the request.
    pub(crate) method: Method,
}

/// Reads one block after another, reusing its buffers.
#[derive(Debug)]
pub(crate) struct HeadReader {
    /// The head in its HTTP/1.1 form.
    pub(crate) out: Vec<u8>,
    limit: usize,
    max_fields: usize,
    fields: usize,
    /// Fields that are pieces of a cookie: browsers send one field for each.
    crumbs: usize,
    kind: Kind,
    fault: Option<&'static str>,
    too_large: bool,
    /// Whether the start line is written: no pseudo-header field may follow.
    started: bool,
    method: Vec<u8>,
    path: Vec<u8>,
    authority: Vec<u8>,
    protocol: Vec<u8>,
    has: Pseudo,
    status: u16,
    cookies: Vec<u8>,
    length: Option<u64>,
    /// Place of the `content-length` line in `out`.
    length_line: (usize, usize),
    /// Whether trailers are expected: chunks can carry them, a length cannot.
    trailers_likely: bool,
}

#[derive(Debug, Default, Clone, Copy)]
struct Pseudo {
    method: bool,
    path: bool,
    /// Whether `:authority` or `host` has come.
    authority: bool,
    scheme: bool,
    protocol: bool,
    status: bool,
}

/// Most pieces of cookies in a head; browsers keep about 180 cookies for a site.
const MAX_CRUMBS: usize = 256;
const REPEATED: &str = "a pseudo-header field is given twice";

impl HeadReader {
    /// Limits a head to `limit` bytes and `max_fields` fields. Of a larger head enough is kept that
    /// its reader finds it too large.
    pub(crate) fn new(limit: usize, max_fields: usize) -> Self {
        Self {
            out: Vec::new(),
            limit,
            max_fields,
            fields: 0,
            crumbs: 0,
            kind: Kind::Request,
            fault: None,
            too_large: false,
            started: false,
            method: Vec::new(),
            path: Vec::new(),
            authority: Vec::new(),
            protocol: Vec::new(),
            has: Pseudo::default(),
            status: 0,
            cookies: Vec::new(),
            length: None,
            length_line: (0, 0),
            trailers_likely: false,
        }
    }

    pub(crate) fn begin(&mut self, kind: Kind) {
        self.out.clear();
        self.fields = 0;
        self.crumbs = 0;
        self.kind = kind;
        self.fault = None;
        self.too_large = false;
        self.started = kind == Kind::Trailers;
        self.method.clear();
        self.path.clear();
        self.authority.clear();
        self.protocol.clear();
        self.has = Pseudo::default();
        self.status = 0;
        self.cookies.clear();
        self.length = None;
        self.length_line = (0, 0);
        self.trailers_likely = false;
    }

    /// Reads the next field.
    pub(crate) fn field(&mut self, name: &[u8], value: &[u8]) {
        if self.fault.is_some() || self.too_large {
            return;
        }
        let held = self.out.len() + self.cookies.len() + self.path.len();
        match name {
            b"cookie" => self.crumbs += 1,
            _ => self.fields += 1,
        }
        let many = self.fields > self.max_fields || self.crumbs > MAX_CRUMBS;
        if many || held + name.len() + value.len() > self.limit {
            self.too_large = true;
            return;
        }
        let result = match name {
            [b':', ..] => self.pseudo(name, value),
            _ => self.regular(name, value),
        };
        self.fault = result.err();
    }

    fn pseudo(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if self.started {
            return Err("a pseudo-header field stands after other fields, or in trailers");
        }
        let request = self.kind == Kind::Request;
        let seen = match name {
            b":method" if request => {
                if value.is_empty() || !value.iter().all(|&b| is_token(b)) {
                    return Err(":method is not a token");
                }
                self.method.extend_from_slice(value);
                std::mem::replace(&mut self.has.method, true)
            }
            b":path" if request => {
                let valid = value
                    .iter()
                    .all(|b| (b'!'..=b'~').contains(b) && *b != b'#');
                if !valid || (value.first() != Some(&b'/') && value != b"*") {
                    return Err(
                        ":path does not begin with `/`, or has a byte that it must not have",
                    );
                }
                self.path.extend_from_slice(value);
                std::mem::replace(&mut self.has.path, true)
            }
            b":scheme" if request => {
                let valid = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
                if value.is_empty() || !value.iter().all(valid) {
                    return Err(":scheme is not a scheme");
                }
                std::mem::replace(&mut self.has.scheme, true)
            }
            b":authority" if request => {
                if !value.iter().all(|b| (b'!'..=b'~').contains(b)) {
                    return Err(":authority has a byte that it must not have");
                }
                self.authority.extend_from_slice(value);
                std::mem::replace(&mut self.has.authority, true)
            }
            b":protocol" if request => {
                if value.is_empty() || !value.iter().all(|&b| is_token(b)) {
                    return Err(":protocol is not a token");
                }
                self.protocol.extend_from_slice(value);
                std::mem::replace(&mut self.has.protocol, true)
            }
            b":status" if !request => {
                let &[a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] = value else {
                    return Err(":status is not a number of three digits");
                };
                let digit = |byte: u8| u16::from(byte - b'0');
                self.status = digit(a) * 100 + digit(b) * 10 + digit(c);
                std::mem::replace(&mut self.has.status, true)
            }
            _ => return Err("an unknown pseudo-header field, or one that does not belong here"),
        };
        if seen { Err(REPEATED) } else { Ok(()) }
    }

    fn regular(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if name.is_empty() || !name.iter().all(|&b| is_token(b) && !b.is_ascii_uppercase()) {
            return Err("a field name is not a token in lower case");
        }
        if matches!(value, [b' ' | b'\t', ..] | [.., b' ' | b'\t'])
            || value.iter().any(|&b| (b < b' ' && b != b'\t') || b == 0x7f)
        {
            return Err("a field value has a control byte, or white space around it");
        }
        if !self.started {
            self.start()?;
        }
        let trailers = self.kind == Kind::Trailers;
        match name {
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding"
            | b"upgrade" => return Err("a field that belongs to an HTTP/1.1 connection"),
            b"te" if value != b"trailers" => return Err("te says more than `trailers`"),
            // Servers that merge trailers into headers would obey them; RFC 9110, section 6.5.1,
            // allows dropping them.
            _ if trailers && !tulle_http1::trailer_allowed(name) => return Ok(()),
            b"host" if !trailers => {
                if self.has.authority {
                    if self.authority != value {
                        return Err("host and :authority differ");
                    }
                    return Ok(());
                }
                if self.kind == Kind::Request {
                    self.authority.extend_from_slice(value);
                    self.has.authority = true;
                }
            }
            b"cookie" if self.kind == Kind::Request => {
                if !self.cookies.is_empty() {
                    self.cookies.extend_from_slice(b"; ");
                }
                self.cookies.extend_from_slice(value);
                return Ok(());
            }
            b"content-length" => {
                if self.length.is_some() {
                    return Err("content-length is given twice");
                }
                self.length = Some(decimal(value).ok_or("content-length is not a number")?);
                if self.is_tunnel() {
                    return Ok(());
                }
                let start = self.out.len();
                self.line(name, value);
                self.length_line = (start, self.out.len());
                return Ok(());
            }
            b"trailer" => self.trailers_likely = true,
            b"content-type" => {
                self.trailers_likely |=
                    self.kind != Kind::Request && value.starts_with(b"application/grpc");
            }
            // This proxy adds these fields itself towards HTTP/1.1.
            b"sec-websocket-key" if self.has.protocol => return Ok(()),
            b"sec-websocket-accept" if self.is_tunnel() => return Ok(()),
            _ => {}
        }
        self.line(name, value);
        Ok(())
    }

    fn line(&mut self, name: &[u8], value: &[u8]) {
        self.out.extend_from_slice(name);
        self.out.extend_from_slice(b": ");
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Whether this is CONNECT, the extended one, or an answer that grants one.
    fn is_tunnel(&self) -> bool {
        match self.kind {
            Kind::Request => self.method == b"CONNECT",
            Kind::Response(method, extended) => {
                (extended || method == Method::Connect) && (200..300).contains(&self.status)
            }
            Kind::Trailers => false,
        }
    }

    /// Writes the start line once all pseudo-header fields have come.
    fn start(&mut self) -> Result<(), &'static str> {
        self.started = true;
        match self.kind {
            Kind::Request => self.request_line(),
            Kind::Response(_, extended) => self.status_line(extended),
            Kind::Trailers => Ok(()),
        }
    }

    fn request_line(&mut self) -> Result<(), &'static str> {
        let has = self.has;
        if !has.method {
            return Err(":method is missing");
        }
        let connect = self.method == b"CONNECT";
        if has.protocol && !connect {
            return Err(":protocol belongs to CONNECT only");
        }
        let authority = self.authority.as_slice();
        if connect && !has.protocol {
            if has.path || has.scheme || authority.is_empty() {
                return Err("CONNECT has :method and :authority only");
            }
            self.out.extend_from_slice(b"CONNECT ");
            self.out.extend_from_slice(authority);
        } else {
            if !has.path || !has.scheme {
                return Err(":path or :scheme is missing");
            }
            let method: &[u8] = if connect { b"GET" } else { &self.method };
            self.out.extend_from_slice(method);
            self.out.push(b' ');
            self.out.extend_from_slice(&self.path);
        }
        self.out.extend_from_slice(b" HTTP/1.1\r\n");
        if self.has.authority {
            self.out.extend_from_slice(b"host: ");
            self.out.extend_from_slice(authority);
            self.out.extend_from_slice(b"\r\n");
        }
        if has.protocol {
            self.out
                .extend_from_slice(b"connection: upgrade\r\nupgrade: ");
            self.out.extend_from_slice(&self.protocol);
            self.out.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    fn status_line(&mut self, extended: bool) -> Result<(), &'static str> {
        if !self.has.status {
            return Err(":status is missing");
        }
        if self.status == 101 {
            return Err("HTTP/2 has no status 101");
        }
        let (status, phrase) = match self.status {
            200..300 if extended => (101, "Switching Protocols"),
            status => (status, phrase(status)),
        };
        self.out.extend_from_slice(format_status(status).as_slice());
        self.out.extend_from_slice(phrase.as_bytes());
        self.out.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Ends the block, and perhaps the stream. `websocket`: towards the server a key for its
    /// handshake, towards the client the answer to its own.
    pub(crate) fn finish(
        &mut self,
        end: bool,
        websocket: impl FnOnce() -> websocket::Text,
    ) -> Result<Head, &'static str> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.too_large && self.kind == Kind::Trailers {
            return Err("the trailers are larger than the limit");
        }
        if !self.started {
            self.start()?;
        }
        if !self.cookies.is_empty() {
            let cookies = std::mem::take(&mut self.cookies);
            self.line(b"cookie", &cookies);
            self.cookies = cookies;
        }
        let mut head = self.framing(end)?;
        if head.framing == Framing::Raw {
            match self.kind {
                Kind::Request if self.protocol.eq_ignore_ascii_case(b"websocket") => {
                    self.line(b"sec-websocket-key", &websocket());
                }
                Kind::Response(_, true) => {
                    self.out.extend_from_slice(
                        b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: ",
                    );
                    self.out.extend_from_slice(&websocket());
                    self.out.extend_from_slice(b"\r\n");
                }
                _ => {}
            }
        }
        if self.too_large || self.out.len() > self.limit {
            head.too_large = true;
            // The head gets no end: its reader finds it too large, and counts and logs that.
            self.out.resize((self.limit + 1).max(self.out.len()), b'x');
        } else if self.kind != Kind::Trailers {
            self.out.extend_from_slice(b"\r\n");
        }
        Ok(head)
    }

    fn framing(&mut self, end: bool) -> Result<Head, &'static str> {
        let mut head = Head {
            framing: Framing::None,
            too_large: false,
            length: self.length,
            interim: false,
            method: Method::from_bytes(&self.method),
        };
        if self.kind == Kind::Trailers {
            return Ok(head);
        }
        if self.is_tunnel() {
            head.framing = Framing::Raw;
            head.length = None;
            return Ok(head);
        }
        // Some responses have no body whatever their fields say.
        let mut bodiless = false;
        if let Kind::Response(method, _) = self.kind {
            if self.status < 200 {
                if end {
                    return Err("a 1xx response ends the stream");
                }
                head.interim = true;
                head.length = None;
                return Ok(head);
            }
            bodiless = method == Method::Head || matches!(self.status, 204 | 304);
        }
        if bodiless {
            head.length = Some(0);
        } else if end {
            if self.length.is_some_and(|length| length > 0) {
                return Err("content-length announces a body, and none comes");
            }
            if self.length.is_none() && self.kind != Kind::Request {
                self.line(b"content-length", b"0");
            }
        } else if self.length.is_some() && !self.trailers_likely {
            // HTTP/1.1 has trailers only after chunks, and most recipients value a length more than
            // unannounced trailers: those are dropped.
            head.framing = Framing::Length;
        } else {
            self.out.drain(self.length_line.0..self.length_line.1);
            self.line(b"transfer-encoding", b"chunked");
            head.framing = Framing::Chunked;
        }
        Ok(head)
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A plain decimal number below 2^63.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 19 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = text.iter().try_fold(0_u64, |n, b| {
        n.checked_mul(10)?.checked_add(u64::from(b - b'0'))
    });
    number.filter(|n| *n <= i64::MAX as u64)
}

fn format_status(status: u16) -> [u8; 13] {
    let mut line = *b"HTTP/1.1 000 ";
    let digit = |n: u16| b'0' + (n % 10) as u8;
    line[9] = digit(status / 100);
    line[10] = digit(status / 10);
    line[11] = digit(status);
    line
}

/// HTTP/2 has no reason phrases; some HTTP/1.1 clients show them.
fn phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "",
    }
}
