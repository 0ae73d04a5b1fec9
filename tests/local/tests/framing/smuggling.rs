//! Requests made to be read in two ways, with a second request hidden where one of the readers
//! would find it; on one connection, and at once from many.

use crate::cases::lossy;
use crate::place;
use crate::reader::{Kind, read_all};
use tests_local::{Client, Server, get, ok};

/// The request that nobody may see.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: hidden\r\nX: yyyyyyyyy\r\n\r\n";

/// Requests sent before the hidden one, and the status of the answer; all are refused.
const REFUSED: [(&str, &str, u16); 30] = [
    (
        "CL.TE",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 58\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    (
        "TE.CL",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n35\r\n",
        400,
    ),
    (
        "TE.TE",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
        400,
    ),
    (
        "TE tab",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    (
        "CL.CL",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 53\r\n\r\n",
        400,
    ),
    (
        "CL list",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 53\r\n\r\n",
        400,
    ),
    (
        "CL sign",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +0\r\n\r\n",
        400,
    ),
    (
        "CL space before colon",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 53\r\n\r\n",
        400,
    ),
    (
        "TE space before colon",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n",
        400,
    ),
    (
        "CL with underscore",
        "POST / HTTP/1.1\r\nHost: a\r\nContent_Length: 53\r\n\r\n",
        400,
    ),
    (
        "TE with underscore",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer_Encoding: chunked\r\n\r\n",
        400,
    ),
    (
        "CL folded",
        "POST / HTTP/1.1\r\nHost: a\r\nX: y\r\n Content-Length: 53\r\n\r\n",
        400,
    ),
    (
        "bare LF before CL",
        "POST / HTTP/1.1\r\nHost: a\r\nX: y\nContent-Length: 53\r\n\r\n",
        400,
    ),
    (
        "bare CR before CL",
        "POST / HTTP/1.1\r\nHost: a\r\nX: y\rContent-Length: 53\r\n\r\n",
        400,
    ),
    (
        "bare LF ends the head",
        "POST / HTTP/1.1\r\nHost: a\n\n",
        400,
    ),
    (
        "NUL in a value",
        "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
        400,
    ),
    (
        "NUL in a name",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length\0: 53\r\n\r\n",
        400,
    ),
    (
        "control in the method",
        "GE\x01T / HTTP/1.1\r\nHost: a\r\n\r\n",
        400,
    ),
    (
        "control in the target",
        "GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n",
        400,
    ),
    (
        "space in the target",
        "GET / /x HTTP/1.1\r\nHost: a\r\n\r\n",
        400,
    ),
    (
        "two hosts",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        400,
    ),
    ("no host", "GET / HTTP/1.1\r\nX: y\r\n\r\n", 400),
    (
        "user in the authority",
        "GET http://a@b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        400,
    ),
    ("HTTP/0.9", "GET /\r\n", 400),
    (
        "HTTP/1.0 chunked",
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    (
        "framing named by Connection",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 53\r\nConnection: content-length\r\n\r\n",
        400,
    ),
    (
        "coding before chunked",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        501,
    ),
    (
        "CONNECT with a body",
        "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\nContent-Length: 53\r\n\r\n",
        400,
    ),
    (
        "preface of a version to come",
        "PRI * HTTP/4.0\r\n\r\nSM\r\n\r\n",
        505,
    ),
    (
        "chunk size 2^64",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n",
        400,
    ),
];

/// Bodies that must be taken as they are framed, with the hidden request inside them.
const INSIDE: [&str; 3] = [
    "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 52\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n34\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n34;x=\"y\"\r\n",
];

const PLACES: [&str; 3] = [
    "two sidecars, limits at the client's",
    "plaintext to a sidecar",
    "a gateway",
];

#[test]
fn nothing_behind_an_ambiguous_request_is_ever_served() {
    for name in PLACES {
        let app = Server::http(|_| ok(b""));
        let place = place(name, app.address());
        // Also right behind a good request, on a connection that was in order until then.
        for before in ["", "GET /good HTTP/1.1\r\nHost: a\r\n\r\n"] {
            for (what, ambiguous, status) in REFUSED {
                let mut client = Client::connect(place.address);
                client.send(format!("{before}{ambiguous}{HIDDEN}{HIDDEN}"));
                let received = client.read_to_end().unwrap();
                let (answers, rest) = read_all(&received, Kind::Response("GET", true)).unwrap();
                let statuses: Vec<_> = answers.iter().map(|a| a.status()).collect();
                let expected = match before {
                    "" => vec![status],
                    _ => vec![200, status],
                };
                assert_eq!(statuses, expected, "{name}: {what}: {}", lossy(&received));
                assert!(rest.is_empty(), "{name}: {what}");
            }
        }
        let received = app.received();
        for bytes in &received {
            let (requests, rest) = read_all(bytes, Kind::Request).unwrap();
            let good = requests.iter().all(|r| r.word(1) == "/good");
            assert!(good && rest.is_empty(), "{name}: {}", lossy(bytes));
        }
    }
}

#[test]
fn a_request_inside_a_body_stays_there() {
    assert_eq!(HIDDEN.len(), 52);
    for name in PLACES {
        let app = Server::http(|_| ok(b""));
        let place = place(name, app.address());
        for head in INSIDE {
            let end = if head.contains("chunked") {
                "\r\n0\r\n\r\n"
            } else {
                ""
            };
            // The request is sent in one piece, and cut at every byte of the hidden request's first line.
            for cut in [
                0,
                1,
                head.len() - 1,
                head.len(),
                head.len() + 4,
                head.len() + 51,
            ] {
                let message = format!("{head}{HIDDEN}{end}");
                let mut client = Client::connect(place.address);
                client.send(&message[..cut]);
                tests_local::pause("between two parts", std::time::Duration::from_millis(2));
                client.send(&message[cut..]);
                assert_eq!(client.response("POST").status(), 200);
                client.send(get("/after"));
                assert_eq!(client.response("GET").status(), 200);
            }
        }
        for bytes in app.received() {
            let (requests, rest) = read_all(&bytes, Kind::Request).unwrap();
            let hidden = requests.iter().any(|r| r.word(1) == "/hidden");
            assert!(!hidden && rest.is_empty(), "{name}: {}", lossy(&bytes));
        }
    }
}

#[test]
fn the_authority_in_the_target_replaces_the_host() {
    for name in PLACES {
        let app = Server::http(|_| ok(b""));
        let place = place(name, app.address());
        let mut client = Client::connect(place.address);
        client.send("GET http://public/x HTTP/1.1\r\nHost: internal\r\nX-Forwarded-Client-Cert: a\r\nx_forwarded_client_cert: b\r\n\r\n");
        assert_eq!(client.response("GET").status(), 200);
        let received = app.received().concat();
        let (requests, _) = read_all(&received, Kind::Request).unwrap();
        assert_eq!(requests[0].word(1), "/x", "{name}");
        assert_eq!(requests[0].all("host"), ["public"], "{name}");
        let text = lossy(&received).to_ascii_lowercase();
        assert!(!text.contains("internal"), "{name}: {text}");
        assert!(
            !text.contains("cert: a") && !text.contains("_cert"),
            "{name}: {text}"
        );
    }
}
