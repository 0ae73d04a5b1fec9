//! HTTP/1.1 messages as a strict reader sees them: every byte is kept.

use std::io::{self, BufRead};

/// One message.
#[derive(Debug, Clone, Default)]
pub struct Message {
    /// Request or status line.
    pub start: String,
    /// Fields in order, names as sent.
    pub headers: Vec<(String, String)>,
    /// Decoded body.
    pub body: Vec<u8>,
    /// Trailer fields.
    pub trailers: Vec<(String, String)>,
    /// The head as it came.
    pub head: String,
}

impl Message {
    /// Status of a response.
    pub fn status(&self) -> u16 {
        self.start
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .unwrap_or_default()
    }

    /// Method of a request.
    pub fn method(&self) -> &str {
        self.start.split(' ').next().unwrap_or_default()
    }

    /// Target of a request.
    pub fn target(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or_default()
    }

    /// All values of a field.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let wanted = self
            .headers
            .iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name));
        wanted.map(|(_, value)| value.as_str()).collect()
    }

    /// The value of a field that occurs at most once; empty if it is not there.
    pub fn header(&self, name: &str) -> &str {
        let all = self.all(name);
        assert!(
            all.len() <= 1,
            "{name} occurs more than once: {}",
            self.head
        );
        all.first().copied().unwrap_or_default()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn bad(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

fn line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\r\n") {
        Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
        None if line.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
        None => Err(bad("a line without CRLF")),
    }
}

fn fields(from: &mut impl BufRead, head: &mut String) -> io::Result<Vec<(String, String)>> {
    let mut fields = Vec::new();
    loop {
        let line = line(from)?;
        head.push_str(&line);
        head.push_str("\r\n");
        if line.is_empty() {
            return Ok(fields);
        }
        let (name, value) = line.split_once(':').ok_or_else(|| bad(&line))?;
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
}

/// Reads one message. `request` is the method of the request that a response answers; `None`: the
/// message is a request.
///
/// # Errors
/// The stream broke (`UnexpectedEof`: it ended before the message did), or it is no HTTP.
pub fn read_message(from: &mut impl BufRead, request: Option<&str>) -> io::Result<Message> {
    let start = line(from)?;
    let mut head = format!("{start}\r\n");
    let headers = fields(from, &mut head)?;
    let mut message = Message {
        start,
        headers,
        head,
        ..Message::default()
    };
    let status = message.status();
    let empty = match request {
        Some(method) => method == "HEAD" || status < 200 || status == 204 || status == 304,
        None => false,
    };
    if empty {
        return Ok(message);
    }
    if message
        .header("transfer-encoding")
        .eq_ignore_ascii_case("chunked")
    {
        read_chunked(from, &mut message)?;
    } else if let Ok(length) = message.header("content-length").parse() {
        message.body = vec![0; length];
        from.read_exact(&mut message.body)?;
    } else if request.is_some() {
        from.read_to_end(&mut message.body)?;
    }
    Ok(message)
}

fn read_chunked(from: &mut impl BufRead, message: &mut Message) -> io::Result<()> {
    loop {
        let size = line(from)?;
        let digits = size.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(digits, 16).map_err(|_| bad("chunk size"))?;
        if size == 0 {
            message.trailers = fields(from, &mut String::new())?;
            return Ok(());
        }
        let before = message.body.len();
        message.body.resize(before + size, 0);
        from.read_exact(&mut message.body[before..])?;
        if !line(from)?.is_empty() {
            return Err(bad("bytes after a chunk"));
        }
    }
}
