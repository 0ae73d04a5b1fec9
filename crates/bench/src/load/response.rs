//! Reads one response to one request, however it is cut into pieces, and checks it.

use std::ops::Range;

/// More fields than any sidecar adds.
const MOST_FIELDS: usize = 64;
/// Longest head.
const LONGEST_HEAD: usize = 16 << 10;

/// Why a response does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wrong {
    /// Not the status that was expected.
    Status(u16),
    /// Not HTTP, or not the body that was expected.
    Body(&'static str),
}

/// A response that is being read.
#[derive(Debug, Default)]
pub(super) struct Response {
    /// The part of the head that has arrived, if it did not arrive in one piece.
    head: Vec<u8>,
    stage: Stage,
    /// Bytes of the body so far.
    body: usize,
    /// The other side will close the connection.
    pub(super) last: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Head,
    /// Bytes of the body to come.
    Length(usize),
    /// The size before a chunk: its value so far, whether there was a digit, and whether the digits are
    /// over.
    Size(usize, bool, bool),
    /// Bytes of a chunk to come.
    Chunk(usize),
    /// The end of a line after a chunk.
    ChunkEnd,
    /// The lines after the last chunk; the length of the line so far.
    Trailer(usize),
}

impl Response {
    /// Forgets the last response.
    pub(super) fn reset(&mut self) {
        self.head.clear();
        self.stage = Stage::Head;
        self.body = 0;
        self.last = false;
    }

    /// Takes what came next. True: the response is complete and as expected.
    pub(super) fn take(&mut self, bytes: &[u8], expected: &[u8]) -> Result<bool, Wrong> {
        if self.stage != Stage::Head {
            return self.take_body(bytes, expected);
        }
        if self.head.is_empty() {
            // Nearly always: the head in one piece, and never copied.
            return match self.take_head(bytes, expected)? {
                Some(end) => self.take_body(&bytes[end..], expected),
                None => {
                    self.head.extend_from_slice(bytes);
                    Ok(false)
                }
            };
        }
        let mut head = std::mem::take(&mut self.head);
        head.extend_from_slice(bytes);
        let end = self.take_head(&head, expected)?;
        let done = match end {
            Some(end) => self.take_body(&head[end..], expected),
            None => Ok(false),
        };
        if end.is_some() {
            head.clear();
        }
        self.head = head;
        done
    }

    /// Where the head ends, if it does.
    fn take_head(&mut self, bytes: &[u8], expected: &[u8]) -> Result<Option<usize>, Wrong> {
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        let end = match response.parse(bytes) {
            Ok(httparse::Status::Complete(end)) => end,
            Ok(httparse::Status::Partial) if bytes.len() < LONGEST_HEAD => return Ok(None),
            Ok(httparse::Status::Partial) => return Err(Wrong::Body("a head that does not end")),
            Err(_) => return Err(Wrong::Body("no HTTP response")),
        };
        let status = response.code.unwrap_or(0);
        if status != 200 {
            return Err(Wrong::Status(status));
        }
        let (mut length, mut chunked) = (None, false);
        self.last = response.version == Some(0);
        for field in response.headers.iter() {
            if field.name.eq_ignore_ascii_case("content-length") {
                let text = std::str::from_utf8(field.value).unwrap_or_default();
                length = Some(
                    text.parse::<usize>()
                        .map_err(|_| Wrong::Body("no length"))?,
                );
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                chunked = field.value.eq_ignore_ascii_case(b"chunked");
            } else if field.name.eq_ignore_ascii_case("connection") {
                self.last |= field.value.eq_ignore_ascii_case(b"close");
            }
        }
        self.stage = match length {
            _ if chunked => Stage::Size(0, false, false),
            Some(length) if length == expected.len() => Stage::Length(length),
            Some(_) => return Err(Wrong::Body("a Content-Length that is not the body's")),
            None => return Err(Wrong::Body("neither Content-Length nor chunks")),
        };
        Ok(Some(end))
    }

    fn take_body(&mut self, mut bytes: &[u8], expected: &[u8]) -> Result<bool, Wrong> {
        loop {
            if self.stage == Stage::Length(0) {
                return if bytes.is_empty() {
                    Ok(true)
                } else {
                    Err(Wrong::Body("more than was asked for"))
                };
            }
            let Some(&byte) = bytes.first() else {
                return Ok(false);
            };
            match self.stage {
                Stage::Length(left) | Stage::Chunk(left) => {
                    let count = left.min(bytes.len());
                    self.check(&bytes[..count], expected)?;
                    bytes = &bytes[count..];
                    self.stage = match self.stage {
                        Stage::Length(_) => Stage::Length(left - count),
                        _ if count == left => Stage::ChunkEnd,
                        _ => Stage::Chunk(left - count),
                    };
                    continue;
                }
                Stage::Size(size, digits, over) => {
                    self.stage = match (byte as char).to_digit(16) {
                        Some(digit) if !over => {
                            let size = size.saturating_mul(16).saturating_add(digit as usize);
                            Stage::Size(size, true, false)
                        }
                        _ if !digits => return Err(Wrong::Body("a chunk without a size")),
                        _ if byte != b'\n' => Stage::Size(size, true, true),
                        _ if size == 0 => Stage::Trailer(0),
                        _ => Stage::Chunk(size),
                    };
                }
                Stage::ChunkEnd => match byte {
                    b'\r' => {}
                    b'\n' => self.stage = Stage::Size(0, false, false),
                    _ => return Err(Wrong::Body("a chunk that is longer than its size")),
                },
                Stage::Trailer(line) => match byte {
                    b'\r' => {}
                    b'\n' if line == 0 => {
                        if self.body != expected.len() {
                            return Err(Wrong::Body("a body that is too short"));
                        }
                        self.stage = Stage::Length(0);
                    }
                    b'\n' => self.stage = Stage::Trailer(0),
                    _ => self.stage = Stage::Trailer(line + 1),
                },
                Stage::Head => return Err(Wrong::Body("no head")),
            }
            bytes = &bytes[1..];
        }
    }

    fn check(&mut self, bytes: &[u8], expected: &[u8]) -> Result<(), Wrong> {
        let place: Range<usize> = self.body..self.body + bytes.len();
        match expected.get(place.clone()) {
            Some(part) if part == bytes => {
                self.body = place.end;
                Ok(())
            }
            Some(_) => Err(Wrong::Body("another body than was asked for")),
            None => Err(Wrong::Body("a body that is too long")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome, with the response in one piece and in single bytes: the same.
    fn read(text: &str, expected: &str) -> Result<bool, Wrong> {
        let whole = Response::default().take(text.as_bytes(), expected.as_bytes());
        let mut bytewise = Response::default();
        let mut outcome = Ok(false);
        for byte in text.as_bytes() {
            outcome = bytewise.take(&[*byte], expected.as_bytes());
            if outcome.is_err() {
                break;
            }
        }
        assert_eq!(whole, outcome, "{text:?}");
        whole
    }

    #[test]
    fn takes_both_framings_in_any_pieces() {
        let head = "HTTP/1.1 200 OK\r\n";
        assert_eq!(
            read(&format!("{head}Content-Length: 4\r\n\r\nabcd"), "abcd"),
            Ok(true)
        );
        assert_eq!(
            read(&format!("{head}content-length: 0\r\n\r\n"), ""),
            Ok(true)
        );
        assert_eq!(
            read(&format!("{head}Content-Length: 4\r\n\r\nabc"), "abcd"),
            Ok(false)
        );
        let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
        assert_eq!(
            read(
                &format!("{chunked}3\r\nabc\r\n1;x=y\r\nd\r\n0\r\n\r\n"),
                "abcd"
            ),
            Ok(true)
        );
        assert_eq!(
            read(
                &format!("{chunked}4\r\nabcd\r\n00\r\nA: b\r\nC: d\r\n\r\n"),
                "abcd"
            ),
            Ok(true)
        );
        assert_eq!(
            read(&format!("{chunked}4\r\nabcd\r\n0\r\n"), "abcd"),
            Ok(false)
        );
    }

    #[test]
    fn refuses_what_is_not_the_answer() {
        let body = |text: &str| match read(text, "abcd") {
            Err(Wrong::Body(why)) => why,
            other => panic!("{text:?}: {other:?}"),
        };
        let head = "HTTP/1.1 200 OK\r\n";
        let cases = [
            (format!("{head}Content-Length: 4\r\n\r\nabxd"), "another"),
            (
                format!("{head}Content-Length: 3\r\n\r\nabc"),
                "Content-Length",
            ),
            (format!("{head}Content-Length: -4\r\n\r\nabcd"), "no length"),
            (format!("{head}\r\nabcd"), "neither"),
            (
                format!("{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
                "short",
            ),
            (
                format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n"),
                "long",
            ),
            (
                format!("{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n"),
                "longer than",
            ),
            (
                format!("{head}Transfer-Encoding: chunked\r\n\r\nxyz\r\n"),
                "without a size",
            ),
            (format!("{head}Content-Length: 4\r\n\r\nabcd{head}"), "more"),
            ("garbage\r\n\r\n".to_owned(), "no HTTP"),
            (
                format!("HTTP/1.1 200 OK\r\nA: {}", "a".repeat(20_000)),
                "does not end",
            ),
        ];
        for (text, part) in cases {
            assert!(body(&text).contains(part), "{text:?}: {}", body(&text));
        }
        let status = Err(Wrong::Status(503));
        assert_eq!(
            read("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", "abcd"),
            status
        );
    }

    #[test]
    fn knows_that_the_connection_ends() {
        let mut response = Response::default();
        let text = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(response.take(text, b"ok"), Ok(true));
        assert!(response.last);
        response.reset();
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(response.take(text, b"ok"), Ok(true));
        assert!(!response.last);
    }
}
