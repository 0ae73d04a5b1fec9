//! A reader of HTTP/1.1 as strict as RFC 9112 allows, and as plain as possible. It shares nothing
//! with the proxy's: what it takes has exactly one meaning.

/// One message.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    /// The request or status line.
    pub(crate) start: String,
    /// The header lines as they stand.
    pub(crate) lines: Vec<Vec<u8>>,
    /// The body as it stands: with chunk sizes, if any.
    pub(crate) body: Vec<u8>,
}

/// The result of reading the first bytes of a stream.
pub(crate) enum Read {
    /// A message and how many bytes it takes.
    Message(Message, usize),
    /// So far nothing wrong, but it does not end. `Some`: the head is complete.
    Partial(Option<Message>),
}

/// The kind of message to read.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind<'a> {
    Request,
    /// The response to a request with this method; whether its connection has ended.
    Response(&'a str, bool),
}

impl Message {
    /// A word of the start line.
    pub(crate) fn word(&self, at: usize) -> &str {
        self.start.splitn(3, ' ').nth(at).unwrap_or_default()
    }

    /// Status of a response.
    pub(crate) fn status(&self) -> u16 {
        self.word(1).parse().unwrap_or_default()
    }

    /// All values of a field.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        let fields = self.lines.iter().map(|line| field(line).unwrap());
        let wanted = fields.filter(|(n, _)| n.eq_ignore_ascii_case(name));
        wanted.map(|(_, value)| value).collect()
    }
}

fn is_token(text: &[u8]) -> bool {
    let special = b"!#$%&'*+-.^_`|~";
    !text.is_empty()
        && text
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || special.contains(b))
}

/// The line at the beginning, without CRLF, and what follows it. `None`: it does not end.
fn line(bytes: &[u8]) -> Result<Option<(&[u8], &[u8])>, String> {
    let end = bytes.iter().position(|b| matches!(b, b'\r' | b'\n'));
    let Some(end) = end else { return Ok(None) };
    match &bytes[end..] {
        [b'\r'] => Ok(None),
        [b'\r', b'\n', rest @ ..] => Ok(Some((&bytes[..end], rest))),
        _ => Err("a bare CR or LF".into()),
    }
}

fn field(line: &[u8]) -> Result<(String, String), String> {
    let shown = String::from_utf8_lossy(line).into_owned();
    let colon = line.iter().position(|&b| b == b':');
    let Some(colon) = colon else {
        return Err(format!("no colon in {shown:?}"));
    };
    let value = &line[colon + 1..];
    if !is_token(&line[..colon]) {
        return Err(format!("the name in {shown:?}"));
    }
    if value.iter().any(|b| b.is_ascii_control() && *b != b'\t') {
        return Err(format!("a control byte in {shown:?}"));
    }
    let value = String::from_utf8_lossy(value);
    let value = value.trim_matches([' ', '\t']).to_owned();
    Ok((shown[..colon].to_owned(), value))
}

/// Header or trailer lines up to the empty one.
fn fields(mut rest: &[u8]) -> Result<Option<(Vec<Vec<u8>>, &[u8])>, String> {
    let mut lines = Vec::new();
    while let Some((text, after)) = line(rest)? {
        rest = after;
        if text.is_empty() {
            return Ok(Some((lines, rest)));
        }
        field(text)?;
        lines.push(text.to_vec());
    }
    Ok(None)
}

/// Reads one message.
pub(crate) fn read(bytes: &[u8], kind: Kind<'_>) -> Result<Read, String> {
    let Some((start, rest)) = line(bytes)? else {
        return Ok(Read::Partial(None));
    };
    let mut message = Message {
        start: String::from_utf8_lossy(start).into_owned(),
        ..Message::default()
    };
    start_line(start, kind)?;
    let Some((lines, rest)) = fields(rest)? else {
        return Ok(Read::Partial(None));
    };
    message.lines = lines;
    let Some(length) = body_length(&message, kind, rest)? else {
        return Ok(Read::Partial(Some(message)));
    };
    message.body = rest[..length].to_vec();
    Ok(Read::Message(message, bytes.len() - rest.len() + length))
}

fn start_line(line: &[u8], kind: Kind<'_>) -> Result<(), String> {
    let shown = String::from_utf8_lossy(line).into_owned();
    let words: Vec<_> = line.split(|&b| b == b' ').collect();
    let good = match kind {
        Kind::Request => {
            words.len() == 3
                && is_token(words[0])
                && !words[1].is_empty()
                && words[1].iter().all(u8::is_ascii_graphic)
                && matches!(words[2], b"HTTP/1.1" | b"HTTP/1.0")
        }
        Kind::Response(..) => {
            words.len() >= 3
                && words[0] == b"HTTP/1.1"
                && words[1].len() == 3
                && words[1].iter().all(u8::is_ascii_digit)
                && !line.iter().any(|b| b.is_ascii_control() && *b != b'\t')
        }
    };
    good.then_some(())
        .ok_or_else(|| format!("the start line {shown:?}"))
}

/// How many of the bytes after the head are the body. Names are compared as careless servers do,
/// which take `_` for `-`.
fn body_length(message: &Message, kind: Kind<'_>, rest: &[u8]) -> Result<Option<usize>, String> {
    let mut lengths = Vec::new();
    let mut codings = Vec::new();
    let mut hosts = 0;
    for line in &message.lines {
        let (name, value) = field(line)?;
        match name.to_ascii_lowercase().replace('_', "-").as_str() {
            "content-length" if kind == Kind::Request || !name.contains('_') => lengths.push(value),
            "transfer-encoding" => codings.push(value.to_ascii_lowercase()),
            "host" => hosts += 1,
            _ => {}
        }
    }
    if kind == Kind::Request && (hosts > 1 || hosts == 0 && message.word(2) == "HTTP/1.1") {
        return Err(format!("{hosts} hosts"));
    }
    let framing = match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => None,
        ([length], []) if !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit()) => {
            Some(length.parse::<usize>().map_err(|e| e.to_string())?)
        }
        ([], [coding]) if coding == "chunked" => Some(usize::MAX),
        _ => return Err(format!("ambiguous framing: {lengths:?} {codings:?}")),
    };
    if let Kind::Response(method, ended) = kind {
        let status = message.status();
        if method == "HEAD" || status < 200 || matches!(status, 204 | 304) {
            return Ok(Some(0));
        }
        if framing.is_none() {
            return Ok(ended.then_some(rest.len()));
        }
    }
    match framing {
        None => Ok(Some(0)),
        Some(usize::MAX) => chunked(rest),
        Some(length) => Ok((rest.len() >= length).then_some(length)),
    }
}

fn chunked(body: &[u8]) -> Result<Option<usize>, String> {
    let mut rest = body;
    loop {
        let Some((size, after)) = line(rest)? else {
            return Ok(None);
        };
        let digits = size.split(|&b| b == b';').next().unwrap_or_default();
        let good = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
        if !good || size.iter().any(|b| b.is_ascii_control() && *b != b'\t') {
            return Err(format!(
                "the chunk size {:?}",
                String::from_utf8_lossy(size)
            ));
        }
        let digits = String::from_utf8_lossy(digits);
        let size = usize::from_str_radix(&digits, 16).map_err(|e| e.to_string())?;
        if size == 0 {
            let end = fields(after)?;
            return Ok(end.map(|(_, rest)| body.len() - rest.len()));
        }
        let Some(end) = after.get(size..) else {
            return Ok(None);
        };
        match end {
            [b'\r', b'\n', next @ ..] => rest = next,
            [] | [b'\r'] => return Ok(None),
            _ => return Err("a chunk does not end where it says".into()),
        }
    }
}

/// Reads all messages and what is left after them.
pub(crate) fn read_all(
    mut bytes: &[u8],
    kind: Kind<'_>,
) -> Result<(Vec<Message>, Vec<u8>), String> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        match read(bytes, kind)? {
            Read::Message(message, length) => {
                messages.push(message);
                bytes = &bytes[length..];
            }
            Read::Partial(_) => break,
        }
    }
    Ok((messages, bytes.to_vec()))
}
