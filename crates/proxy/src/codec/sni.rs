//! Reads the server name in a TLS hello from a client's first bytes, without terminating its TLS.
//!
//! Pure: the caller reads and waits. A hello may come in any pieces, and in several records; the
//! answer never needs more than `LIMIT` bytes. Malformed hellos are reported: a reader that guesses
//! would route by another name than the server sees.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use super::host::Host;
use std::borrow::Cow;

/// Longest hello that is read, with its records' headers. Those of browsers with post-quantum keys
/// have 2 KiB.
pub const LIMIT: usize = 16 * 1024;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// Longest fragment of a record (RFC 8446 5.1).
const RECORD: usize = 16 * 1024;
const LONGEST_NAME: usize = 253;

/// Result of reading the first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sni {
    /// More bytes are needed.
    NeedsMore,
    /// The name, in lower case.
    Name(String),
    /// A hello without a name.
    Absent,
    /// Not the beginning of TLS.
    NotTls,
    /// A hello that no server should accept, and why.
    Malformed(&'static str),
}

/// Looks at the first bytes of a connection.
pub fn server_name(bytes: &[u8]) -> Sni {
    read(bytes).unwrap_or_else(|other| other)
}

/// Early end of reading.
type Early<T> = Result<T, Sni>;

fn read(bytes: &[u8]) -> Early<Sni> {
    if bytes.first().is_some_and(|b| *b != HANDSHAKE) || bytes.get(1).is_some_and(|b| *b != 3) {
        return Err(Sni::NotTls);
    }
    let message = message(bytes)?;
    hello(&mut Reader(&message))
}

/// The hello's body, put together from its records.
fn message(mut bytes: &[u8]) -> Early<Cow<'_, [u8]>> {
    let mut whole: Cow<'_, [u8]> = Cow::Borrowed(&[]);
    let mut seen = 0;
    loop {
        let Some((header, rest)) = bytes.split_first_chunk::<5>() else {
            return Err(Sni::NeedsMore);
        };
        let [kind, major, minor, high, low] = *header;
        if kind != HANDSHAKE || major != 3 || minor > 4 {
            return Err(Sni::Malformed("the hello is not in handshake records"));
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        // An empty record would be a way to keep a reader busy (RFC 8446 5.1 forbids it).
        if length == 0 || length > RECORD {
            return Err(Sni::Malformed("a record has a forbidden length"));
        }
        let available = rest.get(..length).unwrap_or(rest);
        if whole.is_empty() {
            whole = Cow::Borrowed(available);
        } else {
            whole.to_mut().extend_from_slice(available);
        }
        seen += header.len() + available.len();
        if let Some((header, body)) = whole.split_first_chunk::<4>() {
            let [kind, a, b, c] = *header;
            if kind != CLIENT_HELLO {
                return Err(Sni::NotTls);
            }
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            if length > LIMIT - header.len() {
                return Err(Sni::Malformed("the hello is longer than 16 KiB"));
            }
            if body.len() >= length {
                let end = header.len() + length;
                return Ok(match whole {
                    Cow::Borrowed(all) => Cow::Borrowed(all.get(4..end).unwrap_or_default()),
                    Cow::Owned(all) => Cow::Owned(all.get(4..end).unwrap_or_default().to_vec()),
                });
            }
        }
        if seen >= LIMIT {
            return Err(Sni::Malformed("the hello is longer than 16 KiB"));
        }
        let Some(next) = rest.get(length..) else {
            return Err(Sni::NeedsMore);
        };
        bytes = next;
    }
}

fn hello(body: &mut Reader<'_>) -> Early<Sni> {
    let lengths = "a length in the hello is wrong";
    // Version and random.
    body.take(2 + 32, lengths)?;
    let session = body.vector8(lengths)?;
    let suites = body.vector16(lengths)?;
    let compressions = body.vector8(lengths)?;
    if session.0.len() > 32 || suites.0.is_empty() || suites.0.len() % 2 != 0 {
        return Err(Sni::Malformed(lengths));
    }
    if compressions.0.is_empty() {
        return Err(Sni::Malformed(lengths));
    }
    if body.0.is_empty() {
        return Ok(Sni::Absent);
    }
    let mut extensions = body.vector16(lengths)?;
    if !body.0.is_empty() {
        return Err(Sni::Malformed(lengths));
    }
    // Unknown kinds, such as those of GREASE, are skipped. All are read, so that a second name is
    // seen: the server might choose another than we do.
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number(lengths)?;
        let value = extensions.vector16(lengths)?;
        if kind == SERVER_NAME && found.replace(name(value)?).is_some() {
            return Err(Sni::Malformed("there are two server names"));
        }
    }
    Ok(found.map_or(Sni::Absent, Sni::Name))
}

fn name(mut value: Reader<'_>) -> Early<String> {
    let lengths = "a length in the server name is wrong";
    let mut list = value.vector16(lengths)?;
    let kind = list.take(1, lengths)?;
    let name = list.vector16(lengths)?.0;
    if !value.0.is_empty() || kind != [HOST_NAME] {
        return Err(Sni::Malformed(lengths));
    }
    // RFC 6066 allows no second name of a kind and no other kind exists.
    if !list.0.is_empty() {
        return Err(Sni::Malformed("there are two server names"));
    }
    let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':');
    if name.is_empty() || name.len() > LONGEST_NAME || !name.iter().all(plain) {
        return Err(Sni::Malformed("the server name is no host name"));
    }
    Ok(Host::named(name).to_text())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize, wrong: &'static str) -> Early<&'a [u8]> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(Sni::Malformed(wrong))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, wrong: &'static str) -> Early<u16> {
        let bytes = self.take(2, wrong)?.first_chunk().copied();
        Ok(u16::from_be_bytes(bytes.unwrap_or_default()))
    }

    fn vector8(&mut self, wrong: &'static str) -> Early<Self> {
        let length = self.take(1, wrong)?.first().copied().unwrap_or_default();
        Ok(Self(self.take(length.into(), wrong)?))
    }

    fn vector16(&mut self, wrong: &'static str) -> Early<Self> {
        let length = self.number(wrong)?;
        Ok(Self(self.take(length.into(), wrong)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(length: usize, content: &[u8]) -> Vec<u8> {
        let size = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&size[4 - length..], content].concat()
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector(2, content)].concat()
    }

    fn named(name: &str) -> Vec<u8> {
        let entry = [&[HOST_NAME][..], &vector(2, name.as_bytes())].concat();
        extension(SERVER_NAME, &vector(2, &entry))
    }

    /// A handshake message with these extensions.
    fn message_with(extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend(vector(1, &[9; 32]));
        // A suite of GREASE first.
        body.extend(vector(2, &[0x0a, 0x0a, 0x13, 0x01]));
        body.extend(vector(1, &[0]));
        body.extend(vector(2, &extensions.concat()));
        [&[CLIENT_HELLO][..], &vector(3, &body)].concat()
    }

    fn records(message: &[u8], fragment: usize) -> Vec<u8> {
        let parts = message.chunks(fragment);
        parts
            .flat_map(|part| [&[HANDSHAKE, 3, 1][..], &vector(2, part)].concat())
            .collect()
    }

    fn greased(name: &str) -> Vec<u8> {
        message_with(&[
            extension(0x1a1a, &[]),
            extension(43, &[2, 3, 4]),
            named(name),
            extension(0xcaca, &[0]),
        ])
    }

    #[test]
    fn a_name_in_any_records_and_pieces() {
        let message = greased("WWW.Example.com");
        let wanted = Sni::Name("www.example.com".into());
        for fragment in [1, 2, 3, 5, 40, 100, 16 * 1024] {
            let bytes = records(&message, fragment);
            assert_eq!(server_name(&bytes), wanted, "records of {fragment}");
            for end in 0..bytes.len() {
                assert_eq!(
                    server_name(&bytes[..end]),
                    Sni::NeedsMore,
                    "{fragment} {end}"
                );
            }
            // Bytes after the hello are not read.
            assert_eq!(server_name(&[&bytes[..], &[0xff; 9]].concat()), wanted);
        }
    }

    #[test]
    fn no_name() {
        let none = message_with(&[extension(43, &[2, 3, 4])]);
        assert_eq!(server_name(&records(&none, 99)), Sni::Absent);
        let mut old = vec![3, 1];
        old.extend([7; 32]);
        old.extend([0, 0, 2, 0, 47, 1, 0]);
        let old = [&[CLIENT_HELLO][..], &vector(3, &old)].concat();
        assert_eq!(server_name(&records(&old, 99)), Sni::Absent);
    }

    #[test]
    fn not_tls() {
        for bytes in [
            &b"GET / HTTP/1.1"[..],
            b"\0",
            b"\x16\x02",
            b"\x16\x03\x01\0\x04\x02\0\0\0",
        ] {
            assert_eq!(server_name(bytes), Sni::NotTls, "{bytes:?}");
        }
    }

    #[test]
    fn lies_are_told() {
        let malformed = |message: &[u8]| {
            let said = server_name(&records(message, 16 * 1024));
            assert!(matches!(said, Sni::Malformed(_)), "{said:?}: {message:?}");
        };
        malformed(&message_with(&[named("a.test"), named("b.test")]));
        let two = [&[0][..], &vector(2, b"a.test"), &[0], &vector(2, b"b.test")].concat();
        malformed(&message_with(&[extension(SERVER_NAME, &vector(2, &two))]));
        for name in ["", "a b", "a\0b", "é", &"a".repeat(254)] {
            malformed(&message_with(&[named(name)]));
        }
        malformed(&message_with(&[extension(SERVER_NAME, &[])]));
        malformed(&message_with(&[extension(
            SERVER_NAME,
            &[0, 9, 0, 0, 1, b'a'],
        )]));
        // Each length of the hello, wrong by one in both directions.
        let good = greased("a.test");
        let session = 4 + 2 + 32;
        for at in [session, session + 34, session + 34 + 5, session + 34 + 8] {
            for change in [1u8, 0xff] {
                let mut bad = good.clone();
                bad[at] = bad[at].wrapping_add(change);
                let said = server_name(&records(&bad, 16 * 1024));
                assert_ne!(said, Sni::Name("a.test".into()), "length at {at}");
            }
        }
        assert!(matches!(server_name(&[22, 3, 1, 0, 0]), Sni::Malformed(_)));
        assert!(matches!(
            server_name(&[22, 3, 1, 0, 4, 1, 0, 0x40, 0]),
            Sni::Malformed(_)
        ));
    }

    #[test]
    fn the_answer_comes_within_the_limit() {
        let long = message_with(&[extension(21, &vec![0; 12_000]), named("late.test")]);
        assert_eq!(
            server_name(&records(&long, 4096)),
            Sni::Name("late.test".into())
        );
        // Each record has one byte: the headers count, too.
        let drip = records(&long, 1);
        assert!(matches!(server_name(&drip[..LIMIT + 5]), Sni::Malformed(_)));
    }
}
