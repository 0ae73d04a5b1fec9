//! Takes a chunked body (RFC 9112, section 7.1) apart: HTTP/2 frames have lengths of their own.
//!
//! The body was checked when it was received (`tulle-http1`), so this only finds the parts. Invalid
//! bytes are still refused, not guessed at.

/// Bytes of trailer lines held.
const MAX_TRAILERS: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    /// After the digits, until the line's end.
    SizeEnd,
    Data,
    /// The line's end after the data.
    DataEnd,
    Trailers,
    /// After the CR of the empty line.
    Last,
    Done,
}

/// Next part of a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// More bytes are needed.
    More,
    /// This many bytes of data follow.
    Data(u64),
    /// The body has ended.
    Done,
}

/// Follows one chunked body.
#[derive(Debug)]
pub(crate) struct Chunks {
    state: State,
    left: u64,
    /// Trailer lines, each with its CRLF.
    pub(crate) trailers: Vec<u8>,
}

impl Chunks {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Size,
            left: 0,
            trailers: Vec::new(),
        }
    }

    /// Skips framing at the start of `bytes`; returns its length, and the part that follows.
    /// `None`: this is not a chunked body.
    pub(crate) fn skip(&mut self, bytes: &[u8]) -> Option<(usize, Next)> {
        let mut at = 0;
        loop {
            match self.state {
                State::Data => return Some((at, Next::Data(self.left))),
                State::Done => return Some((at, Next::Done)),
                _ => {}
            }
            let Some(&byte) = bytes.get(at) else {
                return Some((at, Next::More));
            };
            at += 1;
            match self.state {
                State::Size => match (byte as char).to_digit(16) {
                    Some(digit) if self.left < 1 << 59 => {
                        self.left = self.left << 4 | u64::from(digit);
                    }
                    Some(_) => return None,
                    None => self.state = State::SizeEnd,
                },
                State::SizeEnd if byte != b'\n' => {}
                State::SizeEnd if self.left > 0 => self.state = State::Data,
                State::SizeEnd => self.state = State::Trailers,
                State::DataEnd if byte == b'\n' => self.state = State::Size,
                State::DataEnd if byte == b'\r' => {}
                // Most bodies have no trailers, so nothing is allocated for them.
                State::Trailers if byte == b'\r' && self.begins_line() => self.state = State::Last,
                State::Trailers => self.trailer(byte)?,
                State::Last if byte == b'\n' => self.state = State::Done,
                State::DataEnd | State::Data | State::Last | State::Done => return None,
            }
        }
    }

    fn trailer(&mut self, byte: u8) -> Option<()> {
        if self.trailers.len() >= MAX_TRAILERS {
            return None;
        }
        self.trailers.push(byte);
        Some(())
    }

    fn begins_line(&self) -> bool {
        self.trailers.last().is_none_or(|byte| *byte == b'\n')
    }

    /// Notes that this many bytes of data were taken.
    pub(crate) fn took(&mut self, count: u64) {
        self.left = self.left.saturating_sub(count);
        if self.left == 0 && self.state == State::Data {
            self.state = State::DataEnd;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data and trailers of a body that comes in pieces of `piece` bytes.
    fn take_apart(body: &[u8], piece: usize) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut chunks = Chunks::new();
        let mut data = Vec::new();
        for mut bytes in body.chunks(piece) {
            loop {
                let (skipped, next) = chunks.skip(bytes)?;
                bytes = &bytes[skipped..];
                match next {
                    Next::More => break,
                    Next::Done => return Some((data, chunks.trailers)),
                    Next::Data(left) => {
                        let count = bytes.len().min(left as usize);
                        data.extend_from_slice(&bytes[..count]);
                        chunks.took(count as u64);
                        bytes = &bytes[count..];
                        if bytes.is_empty() {
                            break;
                        }
                    }
                }
            }
        }
        None
    }

    #[test]
    fn any_split_gives_the_same() {
        let body = b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\na: b\r\nc: d\r\n\r\n";
        for piece in 1..=body.len() {
            let (data, trailers) = take_apart(body, piece).unwrap();
            assert_eq!(data, b"abc0123456789");
            assert_eq!(trailers, b"a: b\r\nc: d\r\n");
        }
        assert_eq!(take_apart(b"0\r\n\r\n", 2), Some((vec![], vec![])));
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(take_apart(b"fffffffffffffffff\r\n", 9), None);
        assert_eq!(take_apart(b"1\r\nab\r\n0\r\n\r\n", 99), None);
        let long = [b"0\r\n".as_slice(), &[b'a'; 2 * MAX_TRAILERS]].concat();
        assert_eq!(take_apart(&long, 100), None);
    }
}
