//! Detects the protocol of a connection from its client's first line, when `appProtocol` is not
//! set.
//!
//! Pure: the caller reads, waits and counts. A connection that is taken for opaque bytes passes no
//! policy for requests, and nobody checks its headers. So the first line is read to its end,
//! whenever it comes and in whatever pieces, and every line that a lenient HTTP server would take
//! for the beginning of a request counts as one. No server acts on a request before its first line
//! is complete. So a caller that never forwards the bytes that made [`FirstLineReader::read`] return
//! [`Detected::Http`] lets no request pass unread. The tests compare this with readers modelled on
//! the request lines that servers accept (`detect/lenient.rs`).

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

#[cfg(test)]
mod lenient;
#[cfg(test)]
mod tests;

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detected {
    /// A request line of HTTP/1.x or HTTP/0.9, or the preface of HTTP/2, has begun.
    Http,
    /// Something else, whatever follows.
    Opaque,
    /// It may become a request: worth a short wait.
    NeedsMore,
    /// It does not look like a request, so nothing need wait for it. It is not certain either: the
    /// line has to be read to its end.
    Watched,
}

/// Longest method that is waited for; IANA's longest registered one has 17 characters.
const METHOD_BYTES: u32 = 20;
/// Longest line that is read. Of the usual servers Go's reads the longest: 1 MiB and 4 KiB.
const LINE_BYTES: u32 = 1200 * 1024;
/// The words of a request line: method, target, version.
const WORDS: u8 = 3;

/// Reads the first line of a connection, in pieces.
#[derive(Debug, Clone)]
pub struct FirstLineReader {
    /// The answer, once it is certain.
    certain: Option<Detected>,
    /// So far the line has only bytes that a sensible client would send in a request line.
    likely: bool,
    /// Bytes of the line, without those that servers skip before it.
    length: u32,
    /// Words of the line so far, up to `WORDS`.
    words: u8,
    /// A byte has come that some servers take for a separator of words and others for a part of
    /// one.
    odd: bool,
    /// The first word consists of upper-case letters, `_` and `-`: a method also for servers that
    /// read HTTP/0.9, which has no version.
    upper: bool,
    /// The last bytes in lower case, the latest in the lowest place; zero at the start.
    last: u64,
    /// The first bytes of the line, as they came, the latest in the lowest place.
    first: u64,
    version: Version,
    /// Remaining bytes of a load balancer's binary header: first of its four fixed bytes, then of
    /// the addresses, whose length is the last two of them.
    header: u8,
    addresses: u16,
}

/// How much of `/1.1` is at the end of the bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Absent,
    Slash,
    Major,
    Dot,
    Minor,
}

impl Default for FirstLineReader {
    fn default() -> Self {
        Self::new()
    }
}

impl FirstLineReader {
    /// The state before the first byte.
    pub const fn new() -> Self {
        Self {
            certain: None,
            likely: true,
            length: 0,
            words: 0,
            odd: false,
            upper: true,
            last: 0,
            first: 0,
            version: Version::Absent,
            header: 0,
            addresses: 0,
        }
    }

    /// Reads the next bytes of the client.
    pub fn read(&mut self, bytes: &[u8]) -> Detected {
        for &byte in bytes {
            if let Some(certain) = self.certain {
                return certain;
            }
            self.certain = self.step(byte);
        }
        self.answer()
    }

    /// The client sends nothing more; some servers take this for the end of a line.
    pub fn end(&mut self) -> Detected {
        self.read(b"\n")
    }

    fn answer(&self) -> Detected {
        match (self.certain, self.likely) {
            (Some(certain), _) => certain,
            (None, true) => Detected::NeedsMore,
            (None, false) => Detected::Watched,
        }
    }

    fn step(&mut self, byte: u8) -> Option<Detected> {
        if self.header > 0 {
            self.header -= 1;
            self.addresses = self.addresses << 8 | u16::from(byte);
            return None;
        }
        if self.addresses > 0 {
            self.addresses -= 1;
            return None;
        }
        if self.length == 0 && (byte <= b' ' || (0x7f..=0xa0).contains(&byte)) {
            // Netty skips all control characters before a request, others only line ends.
            self.likely &= matches!(byte, b'\r' | b'\n' | b' ' | b'\t');
            // Others take them for words; for all of them a line begins after LF.
            self.last = if byte == b'\n' {
                0
            } else {
                self.last << 8 | u64::from(byte)
            };
            return None;
        }
        if byte == b'\n' {
            return self.end_of_line();
        }
        self.length += 1;
        if self.length > LINE_BYTES {
            return Some(Detected::Opaque);
        }
        let [.., before] = self.last.to_be_bytes();
        let begins = self.length == 1 || is_space(before);
        let space = is_space(byte);
        if begins && !space {
            self.words = (self.words + 1).min(WORDS);
        }
        self.odd |= matches!(byte, 0x1c..=0x1f | 0x85 | 0xa0);
        if self.words == 1 && !space {
            self.upper &= byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_');
            self.likely &= is_token(byte) && self.length <= METHOD_BYTES;
            if self.length <= 8 {
                self.first = self.first << 8 | u64::from(byte);
            }
        }
        self.likely &= space || (b'!'..=b'~').contains(&byte);
        self.version = self.version.after(byte, space);
        self.last = self.last << 8 | u64::from(byte.to_ascii_lowercase());
        self.is_request(byte, space, begins)
            .then_some(Detected::Http)
    }

    /// Whether this byte shows that the line is a request's.
    fn is_request(&self, byte: u8, space: bool, begins: bool) -> bool {
        let of_upper = self.upper && self.words > 1;
        let [_, _, before, ..] = self.last.to_be_bytes();
        // Any method and any target, with a version.
        (self.ends_with(b"http/") && is_space(before))
            // HTTP/0.9 of a server that takes any target.
            || (space && self.words == 1 && self.first == u64::from_be_bytes(*b"\0\0\0\0\0GET"))
            // HTTP/0.9 of others; this also detects sensible requests at once.
            || (of_upper && self.words == 2 && begins && matches!(byte, b'/' | b'*'))
            || (of_upper && self.ends_with(b"://"))
    }

    fn end_of_line(&mut self) -> Option<Detected> {
        if self.words + u8::from(self.odd) >= WORDS && self.version == Version::Minor {
            // `get / FOO/1.1`: some do not look at the name.
            return Some(Detected::Http);
        }
        // The header of a load balancer, which stands before the request: `PROXY TCP4 …`, or the
        // binary one, which begins with line ends and `QUIT`.
        let binary = self.length == 4 && self.first == u64::from_be_bytes(*b"\0\0\0\0QUIT");
        if !binary && self.first != u64::from_be_bytes(*b"\0\0\0PROXY") {
            return Some(Detected::Opaque);
        }
        *self = Self {
            likely: false,
            header: if binary { 4 } else { 0 },
            ..Self::new()
        };
        None
    }

    fn ends_with(&self, text: &[u8]) -> bool {
        self.last.to_be_bytes().ends_with(text)
    }
}

impl Version {
    fn after(self, byte: u8, space: bool) -> Self {
        match (self, byte) {
            (_, b'/') => Self::Slash,
            (Self::Slash | Self::Major, b'0'..=b'9') => Self::Major,
            (Self::Major, b'.') => Self::Dot,
            (Self::Dot | Self::Minor, b'0'..=b'9') => Self::Minor,
            // Blanks at the end of the line.
            (Self::Minor, _) if space => Self::Minor,
            _ => Self::Absent,
        }
    }
}

/// Whether the byte separates the words of a request line for some server. Python's `split` has the
/// largest set.
fn is_space(byte: u8) -> bool {
    matches!(
        byte,
        b'\t' | 0x0b | 0x0c | b'\r' | 0x1c..=b' ' | 0x85 | 0xa0
    )
}

/// Whether a method may contain it (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
