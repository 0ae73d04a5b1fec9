//! Tests which lines are recognised, and that no line passes that a lenient server reads.

use super::lenient::read_by;
use super::*;
use proptest::prelude::*;

fn detect(bytes: impl AsRef<[u8]>) -> Detected {
    FirstLineReader::new().read(bytes.as_ref())
}

#[test]
fn http() {
    for text in [
        "GET / ",
        "OPTIONS * HTTP/1.1",
        "POST http://a/",
        "M-SEARCH * HTTP/1.1",
        "PRI * HTTP/2.0",
        "\r\n\r\n\nGET / HTTP/1.1",
        " \tGET / HTTP/1.1",
        "\0\x01GET / HTTP/1.1",
        "get / HTTP/1.1",
        "brew x http/1.1",
        "gEt\t/\x0bHTTP/1.1",
        "GET\x1c/",
        "\u{ff}GET / HTTP/1.1",
        "CONNECT a:80 HTTP/1.1",
        "GET x",
        "POST   /",
        "a b FOO/1.1\r\n",
        "PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\nGET / HTTP/1.1",
        "\r\n\r\n\0\r\nQUIT\n!\x11\0\x0c123412341212GET /a HTTP/1.1",
        "\x16\x03\x01\x01\x01\x01\x01\x01\x1c\x03\x03GET / HTTP/1.1\r\n",
    ] {
        assert_eq!(detect(text), Detected::Http, "{text:?}");
    }
}

#[test]
fn opaque() {
    for text in [
        "*1\r\n$4\r\nPING",
        "SSH-2.0-OpenSSH_9\r\n",
        "EHLO a\r\n",
        "MAIL FROM:<a@b.example>\r\n",
        "USER anonymous\r\n",
        "a1 LOGIN a b\r\n",
        "get key\r\n",
        "set key 0 900 5\r\nGET / HTTP/1.1\r\n",
        "SET a b\r\n",
        "CONNECT {\"verbose\":false}\r\n",
        "PING\r\n",
        "HTTP/1.1 200 OK\r\n",
    ] {
        assert_eq!(detect(text), Detected::Opaque, "{text:?}");
    }
}

#[test]
fn what_no_sensible_client_sends_is_not_waited_for_but_read_to_the_end_of_the_line() {
    let mut hello = vec![22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];
    // In a hello the names of protocols have their lengths before them.
    hello.extend_from_slice(b"\x02h2\x08http/1.1");
    for bytes in [
        &hello[..],
        b"\0",
        b"\0\0\0\x08\x04\xd2\x16/",
        b"{\"a\":1}",
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        b"get \xff",
        b"\x05",
    ] {
        assert_eq!(detect(bytes), Detected::Watched, "{bytes:?}");
    }
}

#[test]
fn needs_more_only_while_undecided() {
    for text in ["", "\r\n", "G", "GET", "EHLO a", "get /x", "PRI", "PRI "] {
        assert_eq!(detect(text), Detected::NeedsMore, "{text}");
    }
}

#[test]
fn the_end_of_the_stream_ends_the_line() {
    let mut watch = FirstLineReader::new();
    assert_eq!(watch.read(b"get /x FOO/1.0"), Detected::NeedsMore);
    assert_eq!(watch.end(), Detected::Http);
}

#[test]
fn a_line_that_no_server_would_read_is_given_up() {
    let mut watch = FirstLineReader::new();
    let piece = [b'x'; 16 * 1024];
    let count = (0..).find(|_| watch.read(&piece) == Detected::Opaque);
    assert!(count.is_some_and(|count| (64..128).contains(&count)));
}

/// Parts of which request lines, and lines that resemble them, are made.
fn part() -> impl Strategy<Value = Vec<u8>> {
    let fixed = |texts: &[&'static [u8]]| {
        let texts: Vec<Vec<u8>> = texts.iter().map(|t| t.to_vec()).collect();
        proptest::sample::select(texts)
    };
    prop_oneof![
        4 => fixed(&[b"GET", b"get", b"POST", b"PUT", b"M-SEARCH", b"X_Y", b"PRI", b"x", b"CONNECT"]),
        6 => fixed(&[b" ", b" ", b"  ", b"\t", b"\x0b", b"\x1c", b"\x85", b"\xa0", b"\r", b"\0"]),
        4 => fixed(&[b"/", b"*", b"/a", b"a", b"http://a", b"a:80", b"/\xff", b"\x01"]),
        4 => fixed(&[b"HTTP/1.1", b"http/1.0", b"HTTP/2.0", b"FOO/1.1", b"RTSP/1.0", b"HTTP/"]),
        4 => fixed(&[b"\r\n", b"\n", b"\r\n\r\n", b"\r"]),
        1 => fixed(&[b"PROXY TCP4 1 2 3 4\r\n", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\0", b"\x16\x03\x01"]),
        1 => proptest::collection::vec(any::<u8>(), 1..4),
    ]
}

/// Lines that some server reads as a request's, but for one byte that may be another. Random parts seldom
/// make one.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let one = |texts: &[&'static [u8]]| proptest::sample::select(texts.to_vec());
    let space = || one(&[b" ", b" ", b"  ", b"\t", b"\x0b", b"\x1c", b"\x85", b"\xa0"]);
    let words = (
        one(&[
            b"",
            b"",
            b"\r\n",
            b"\n\r\n",
            b" ",
            b"\0",
            b"PROXY TCP4 1 2 3 4\r\n",
        ]),
        one(&[
            b"GET",
            b"get",
            b"POST",
            b"Brew",
            b"x",
            b"M-SEARCH",
            b"CONNECT",
            b"OPTIONS",
        ]),
        space(),
        one(&[
            b"/",
            b"/a",
            b"*",
            b"a",
            b"http://a",
            b"a:80",
            b"/\xff",
            b"/ b",
        ]),
        space(),
        one(&[
            b"HTTP/1.1",
            b"HTTP/1.1",
            b"http/1.0",
            b"FOO/1.1",
            b"RTSP/1.0",
            b"",
        ]),
        one(&[b"\r\n", b"\n", b" \r\n", b"\r"]),
    );
    let changed = proptest::option::weighted(0.3, (any::<proptest::sample::Index>(), any::<u8>()));
    (words, changed).prop_map(
        |((before, method, one, target, two, version, end), changed)| {
            let mut line = [before, method, one, target, two, version, end].concat();
            if let Some((at, byte)) = changed {
                let at = at.index(line.len());
                line[at] = byte;
            }
            line
        },
    )
}

proptest! {
    /// The differential test: bytes that were forwarded before the answer was `Http` are not a
    /// request for any server, however they were cut into pieces.
    #[test]
    fn nothing_passes_that_a_lenient_server_reads(
        bytes in prop_oneof![
            proptest::collection::vec(part(), 1..14).prop_map(|parts| parts.concat()),
            line(),
        ],
        cut in 1usize..9,
    ) {
        let mut watch = FirstLineReader::new();
        let mut forwarded = Vec::new();
        for piece in bytes.chunks(cut) {
            if watch.read(piece) == Detected::Http {
                break;
            }
            forwarded.extend_from_slice(piece);
        }
        prop_assert_eq!(read_by(&forwarded), None, "{:?}", String::from_utf8_lossy(&forwarded));
    }

    /// The cuts do not change the answer, and an answer once given stays.
    #[test]
    fn pieces_change_nothing(parts in proptest::collection::vec(part(), 1..14)) {
        let bytes = parts.concat();
        let mut watch = FirstLineReader::new();
        let mut known = Detected::NeedsMore;
        for byte in &bytes {
            let now = watch.read(&[*byte]);
            if matches!(known, Detected::Http | Detected::Opaque) {
                prop_assert_eq!(known, now);
            }
            known = now;
        }
        prop_assert_eq!(known, detect(&bytes));
    }
}
