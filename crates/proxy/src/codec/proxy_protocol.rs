//! The PROXY protocol, versions 1 and 2: a load balancer in front of us names its client.
//!
//! It is read only where the configuration expects it, because its sender can name any address.
//! Pure: the caller reads and waits. The answer never needs more than `LIMIT` bytes.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest header. Version 2 could have 64 KiB. Addresses take 216 bytes, and additions of load
/// balancers (names, certificates' subjects) a few hundred.
pub const LIMIT: usize = 4096;

/// Longest line of version 1, with its end.
const LINE: usize = 107;
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const PREFIX: &[u8; 6] = b"PROXY ";

/// Result of reading the first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyHeader {
    /// More bytes are needed.
    NeedsMore,
    /// A header of this many bytes.
    Complete {
        /// Bytes before those of the connection itself.
        length: usize,
        /// The client; `None`: the load balancer speaks for itself (a health check), or does not
        /// know.
        client: Option<SocketAddr>,
    },
    /// The header is missing or wrong, and why.
    Invalid(&'static str),
}

/// Looks at the first bytes of a connection.
pub fn parse(bytes: &[u8]) -> ProxyHeader {
    let result = if bytes.first() == PREFIX.first() {
        version1(bytes)
    } else {
        version2(bytes)
    };
    result.unwrap_or_else(|early| early)
}

type Early<T> = Result<T, ProxyHeader>;

/// Checks that the next bytes, as far as they have come, are these.
fn expect(bytes: &[u8], wanted: &[u8]) -> Early<()> {
    let there = bytes.len().min(wanted.len());
    if bytes.get(..there) != wanted.get(..there) {
        return Err(ProxyHeader::Invalid("it begins with no PROXY header"));
    }
    if there < wanted.len() {
        return Err(ProxyHeader::NeedsMore);
    }
    Ok(())
}

fn version1(bytes: &[u8]) -> Early<ProxyHeader> {
    expect(bytes, PREFIX)?;
    let head = bytes.get(..LINE).unwrap_or(bytes);
    let Some(end) = head.windows(2).position(|pair| pair == b"\r\n") else {
        return Err(match head.len() {
            LINE => ProxyHeader::Invalid("the line of PROXY version 1 has no end"),
            _ => ProxyHeader::NeedsMore,
        });
    };
    let wrong = || ProxyHeader::Invalid("the line of PROXY version 1 is malformed");
    let line = head.get(PREFIX.len()..end).unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| wrong())?;
    let length = end + 2;
    // Everything after UNKNOWN is to be ignored, also addresses.
    if line == "UNKNOWN" || line.starts_with("UNKNOWN ") {
        return Ok(ProxyHeader::Complete {
            length,
            client: None,
        });
    }
    let mut parts = line.split(' ');
    let mut part = || parts.next().ok_or_else(wrong);
    let family = part()?;
    let addresses = (address(family, part()?), address(family, part()?));
    let ports = (port(part()?), port(part()?));
    match (addresses, ports, parts.next()) {
        ((Some(from), Some(_)), (Some(port), Some(_)), None) => Ok(ProxyHeader::Complete {
            length,
            client: Some(SocketAddr::new(from, port)),
        }),
        _ => Err(wrong()),
    }
}

fn address(family: &str, text: &str) -> Option<IpAddr> {
    match family {
        "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        "TCP6" => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        _ => None,
    }
}

/// Parses a port without sign or leading zeros, which other readers may take for something else.
fn port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

fn version2(bytes: &[u8]) -> Early<ProxyHeader> {
    expect(bytes, SIGNATURE)?;
    let Some((head, rest)) = bytes.split_first_chunk::<16>() else {
        return Err(ProxyHeader::NeedsMore);
    };
    let [.., command, family, high, low] = *head;
    let own = match command {
        0x20 => true,
        0x21 => false,
        _ => {
            return Err(ProxyHeader::Invalid(
                "not version 2 of PROXY, or a command unknown",
            ));
        }
    };
    let size = usize::from(u16::from_be_bytes([high, low]));
    let length = head.len() + size;
    if length > LIMIT {
        return Err(ProxyHeader::Invalid(
            "the PROXY header is longer than 4 KiB",
        ));
    }
    let Some(body) = rest.get(..size) else {
        return Err(ProxyHeader::NeedsMore);
    };
    let (client, extras) = match family {
        _ if own => (None, None),
        0x00 => (None, None),
        0x11 => {
            let (client, extras) = ends::<4>(body)?;
            (Some(client), Some(extras))
        }
        0x21 => {
            let (client, extras) = ends::<16>(body)?;
            (Some(client), Some(extras))
        }
        // The address of a Unix socket is of no use.
        0x31 if body.len() >= 216 => (None, body.get(216..)),
        _ => {
            return Err(ProxyHeader::Invalid(
                "the PROXY header names another transport than TCP",
            ));
        }
    };
    extras.map_or(Ok(()), check_extras)?;
    Ok(ProxyHeader::Complete { length, client })
}

/// Reads source and destination address of `N` bytes and their ports. Returns the source and the
/// rest.
fn ends<const N: usize>(body: &[u8]) -> Early<(SocketAddr, &[u8])>
where
    IpAddr: From<[u8; N]>,
{
    let short = ProxyHeader::Invalid("the PROXY header is too short for its addresses");
    let parts = || {
        let (source, rest) = body.split_first_chunk::<N>()?;
        let (_, rest) = rest.split_first_chunk::<N>()?;
        let (port, rest) = rest.split_first_chunk::<2>()?;
        let (_, rest) = rest.split_first_chunk::<2>()?;
        let client = SocketAddr::new((*source).into(), u16::from_be_bytes(*port));
        Some((client, rest))
    };
    parts().ok_or(short)
}

/// Checks the fields after the addresses: each has a kind, a length, and that many bytes.
fn check_extras(mut bytes: &[u8]) -> Early<()> {
    while !bytes.is_empty() {
        let next = bytes.split_first_chunk::<3>().and_then(|(head, rest)| {
            let [_, high, low] = *head;
            rest.get(u16::from_be_bytes([high, low]).into()..)
        });
        bytes = next.ok_or(ProxyHeader::Invalid(
            "a length after the addresses of the PROXY header is wrong",
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(bytes: &[u8], client: Option<&str>) {
        let wanted = ProxyHeader::Complete {
            length: bytes.len(),
            client: client.map(|c| c.parse().unwrap()),
        };
        assert_eq!(parse(bytes), wanted);
        assert_eq!(parse(&[bytes, b"GET / HTTP/1.1\r\n"].concat()), wanted);
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end]), ProxyHeader::NeedsMore, "{end}");
        }
    }

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, body].concat()
    }

    #[test]
    fn version_1() {
        complete(
            b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 443\r\n",
            Some("192.0.2.7:56324"),
        );
        complete(
            b"PROXY TCP6 2001:db8::7 ::1 56324 443\r\n",
            Some("[2001:db8::7]:56324"),
        );
        complete(b"PROXY UNKNOWN\r\n", None);
        complete(b"PROXY UNKNOWN ff:fe whatever 1 2\r\n", None);
        let longest = format!(
            "PROXY TCP6 {0} {0} 65535 65535\r\n",
            "ffff:".repeat(7) + "ffff"
        );
        assert_eq!(longest.len(), 104);
        complete(
            longest.as_bytes(),
            Some("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"),
        );
    }

    #[test]
    fn version_2() {
        let v4 = [192, 0, 2, 7, 10, 0, 0, 1, 0xdc, 4, 1, 0xbb];
        complete(&v2(0x21, 0x11, &v4), Some("192.0.2.7:56324"));
        let mut v6 = [0; 36];
        v6[..2].copy_from_slice(&[0x20, 1]);
        v6[32..].copy_from_slice(&[0xdc, 4, 1, 0xbb]);
        complete(&v2(0x21, 0x21, &v6), Some("[2001::]:56324"));
        complete(&v2(0x20, 0x00, &[]), None);
        complete(&v2(0x20, 0x11, &v4), None);
        complete(&v2(0x21, 0x00, &[]), None);
        complete(&v2(0x21, 0x31, &[0; 216]), None);
        let extras = [&v4[..], &[4, 0, 2, 9, 9, 0xe0, 0, 0]].concat();
        complete(&v2(0x21, 0x11, &extras), Some("192.0.2.7:56324"));
    }

    #[test]
    fn anything_else_is_refused_at_once() {
        let cut = [192, 0, 2, 7, 10, 0, 0, 1, 0xdc, 4, 1];
        let extras = [&cut[..], &[0xbb, 4, 0, 9, 0]].concat();
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\x16\x03\x01",
            b"PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n",
            b"PROXY TCP4 ::1 1.2.3.4 1 2\r\n",
            b"PROXY TCP6 1.2.3.4 ::1 1 2\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
            b"PROXY TCP4 1.2.3.4  1.2.3.4 1 2\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n",
            b"PROXY TCP4 01.2.3.4 1.2.3.4 1 2\r\n",
            b"PROXY UNKNOWNED\r\n",
            b"PROXY \xff\r\n",
            b"PROXY\tTCP4",
            &[b"PROXY ".as_slice(), &[b'x'; 200]].concat(),
            &v2(0x11, 0x11, &[0; 12]),
            &v2(0x22, 0x11, &[0; 12]),
            &v2(0x21, 0x12, &[0; 12]),
            &v2(0x21, 0x31, &[0; 215]),
            &v2(0x21, 0x11, &cut),
            &v2(0x21, 0x11, &extras),
            &v2(0x21, 0x11, &[0; 4081]),
            b"\r\n\r\n\0\r\nQUIT\r",
        ] {
            assert!(matches!(parse(bytes), ProxyHeader::Invalid(_)), "{bytes:?}");
        }
    }
}
