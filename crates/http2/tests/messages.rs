//! Messages of all shapes across a connection, and malformed ones (RFC 9113, section 8).
#![allow(clippy::unwrap_used)]

mod common;
use common::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, End, HEADERS, RST_STREAM, block, frame, frames,
    get, pair, settle,
};
use tulle_http2::{Config, ErrorCode, Framing};

#[test]
fn a_request_and_its_response_with_trailers_both_ways() {
    let (mut client, mut server) = pair(Config::default());
    let stream = client.connection.open().unwrap();
    let request = b"POST /x?y HTTP/1.1\r\nHost: svc:80\r\nTE: trailers\r\nConnection: te\r\n\
        B-Second: 2\r\na-first: 1\r\nTransfer-Encoding: chunked\r\n\r\n\
        5\r\nhello\r\n6\r\n world\r\n0\r\ngrpc-x: 1\r\n\r\n";
    // One byte at a time is taken as well as all at once.
    for byte in request {
        assert_eq!(client.write(stream, &[*byte]), 1);
    }
    settle(&mut client, &mut server);
    let seen = server.owner.at(0).clone();
    assert_eq!(
        seen.head,
        "POST /x?y HTTP/1.1\r\nhost: svc:80\r\nte: trailers\r\nb-second: 2\r\na-first: 1\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    assert_eq!(seen.framing, Some(Framing::Chunked));
    assert_eq!(seen.data, b"hello world");
    assert_eq!(seen.trailers, "grpc-x: 1\r\n");
    assert!(seen.ended);
    let response = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nset-cookie: a\r\n\
        Set-Cookie: b\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\ngrpc-status: 0\r\n\r\n";
    assert_eq!(server.write(0, response), response.len());
    settle(&mut client, &mut server);
    let seen = client.owner.at(stream).clone();
    assert_eq!(
        seen.head,
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nset-cookie: a\r\nset-cookie: b\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    assert_eq!((seen.data.as_slice(), seen.ended), (&b"x"[..], true));
    assert_eq!(seen.trailers, "grpc-status: 0\r\n");
    assert_eq!(client.connection.active_streams(), 0);
    assert_eq!(server.connection.active_streams(), 0);
}

#[test]
fn the_end_goes_with_the_last_frame() {
    let (mut client, mut server) = pair(Config::default());
    let stream = client.connection.open().unwrap();
    client.write(stream, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let sent = frames(&client.out);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].1, END_HEADERS | END_STREAM);
    settle(&mut client, &mut server);
    server.write(0, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi");
    let sent = frames(&server.out);
    assert_eq!(sent.len(), 2);
    assert_eq!((sent[0].1, sent[1].1), (END_HEADERS, END_STREAM));
    settle(&mut client, &mut server);
    assert_eq!(client.owner.at(stream).data, b"hi");
    let head = &client.owner.at(stream).head;
    assert_eq!(head, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n");
}

#[test]
fn a_response_without_body_says_so_to_http_1() {
    for (method, status, expected) in [
        (
            "GET",
            "200 OK",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        ),
        ("GET", "204 x", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "304 x", "HTTP/1.1 304 Not Modified\r\n\r\n"),
        (
            "HEAD",
            "200 OK",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n",
        ),
    ] {
        let (mut client, mut server) = pair(Config::default());
        let stream = client.connection.open().unwrap();
        client.write(
            stream,
            format!("{method} / HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes(),
        );
        settle(&mut client, &mut server);
        let length = match method {
            "HEAD" => "content-length: 9\r\n",
            _ if status.starts_with("200") => "transfer-encoding: chunked\r\n",
            _ => "",
        };
        let mut response = format!("HTTP/1.1 {status}\r\n{length}\r\n");
        if length.starts_with("tr") {
            response.push_str("0\r\n\r\n");
        }
        server.write(0, response.as_bytes());
        assert_eq!(frames(&server.out).len(), 1, "{method} {status}");
        settle(&mut client, &mut server);
        assert_eq!(client.owner.at(stream).head, expected);
        assert!(client.owner.at(stream).ended);
    }
}

#[test]
fn cookies_are_joined_and_a_length_gives_way_to_trailers() {
    let mut server = End::greeted(Config::default());
    let head = get(&[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2")]);
    server
        .receive(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &head))
        .unwrap();
    let seen = server.owner.at(0);
    assert_eq!(
        seen.head,
        "GET / HTTP/1.1\r\nhost: a\r\nx: y\r\ncookie: a=1; b=2\r\n\r\n"
    );
    let head = get(&[("content-length", "1"), ("trailer", "x")]);
    server
        .receive(&frame(HEADERS, END_HEADERS, 3, &head))
        .unwrap();
    let seen = server.owner.at(1);
    assert_eq!(
        seen.head,
        "GET / HTTP/1.1\r\nhost: a\r\ntrailer: x\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    // Forbidden trailers are left out.
    server.receive(&frame(DATA, 0, 3, b"a")).unwrap();
    let trailers = block(&[("x", "1"), ("content_length", "9"), ("host", "b")]);
    server
        .receive(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &trailers))
        .unwrap();
    assert_eq!(server.owner.at(1).trailers, "x: 1\r\n");
    assert!(server.owner.at(1).ended);
}

#[test]
fn a_websocket_crosses_as_extended_connect() {
    let (mut client, mut server) = pair(Config {
        seed: 7,
        ..Config::default()
    });
    let stream = client.connection.open().unwrap();
    client.write(
        stream,
        b"GET /chat HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
          sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n",
    );
    settle(&mut client, &mut server);
    let seen = server.owner.at(0).clone();
    assert_eq!(seen.framing, Some(Framing::Raw));
    let (before, key) = seen.head.split_once("sec-websocket-key: ").unwrap();
    assert_eq!(
        before,
        "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\n"
    );
    assert_eq!(key.len(), 24 + 4);
    server.write(
        0,
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
          sec-websocket-accept: x\r\nsec-websocket-protocol: p\r\n\r\nfrom server",
    );
    client.write(stream, b"from client");
    settle(&mut client, &mut server);
    let seen = client.owner.at(stream).clone();
    assert_eq!(
        seen.head,
        "HTTP/1.1 101 Switching Protocols\r\nsec-websocket-protocol: p\r\nconnection: upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    );
    assert_eq!(seen.data, b"from server");
    assert_eq!(server.owner.at(0).data, b"from client");
    client.connection.shutdown(stream, &mut client.out);
    server.connection.shutdown(0, &mut server.out);
    settle(&mut client, &mut server);
    assert!(client.owner.at(stream).ended && server.owner.at(0).ended);
}

/// Each is refused with a reset of its stream, and the connection goes on.
#[test]
fn malformed_requests() {
    let cases: &[&[(&str, &str)]] = &[
        &[(":scheme", "http"), (":path", "/")],
        &[(":method", "GET"), (":path", "/")],
        &[(":method", "GET"), (":scheme", "http")],
        &[(":method", "GET"), (":scheme", "http"), (":path", "")],
        &[(":method", "GET"), (":scheme", "http"), (":path", "a")],
        &[(":method", "GET"), (":scheme", "http"), (":path", "/a b")],
        &[(":method", "G T"), (":scheme", "http"), (":path", "/")],
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/\r\nx: y"),
        ],
        &[
            (":method", "GET"),
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
        ],
        &[
            (":method", "GET"),
            (":scheme", "http"),
            ("x", "y"),
            (":path", "/"),
        ],
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":status", "200"),
        ],
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":new", ""),
        ],
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":protocol", "websocket"),
        ],
        &[
            (":method", "CONNECT"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "a:1"),
        ],
        &[(":method", "CONNECT")],
    ];
    let fields: &[(&str, &str)] = &[
        ("X-Upper", "a"),
        ("", "a"),
        ("a b", "c"),
        ("a:", "c"),
        ("x", "a\r\nb: c"),
        ("x", "a\0"),
        ("x", " a"),
        ("x", "a\t"),
        ("connection", "close"),
        ("keep-alive", "1"),
        ("proxy-connection", "x"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
        ("te", "gzip"),
        ("host", "other"),
        ("content-length", "1x"),
        ("content-length", "-1"),
        ("content-length", "5"), // and no body comes
    ];
    let blocks = cases.iter().map(|c| block(c));
    let blocks = blocks.chain(fields.iter().map(|f| get(&[*f])));
    let mut server = End::greeted(Config::default());
    let mut id = 1;
    for block in blocks {
        server
            .receive(&frame(HEADERS, END_HEADERS | END_STREAM, id, &block))
            .unwrap();
        let said = frames(&std::mem::take(&mut server.out));
        let text = String::from_utf8_lossy(&block).into_owned();
        assert_eq!(said, [(RST_STREAM, 0, id, vec![0, 0, 0, 1])], "{text:?}");
        id += 2;
    }
    assert!(server.owner.opened.is_empty());
    server
        .receive(&frame(HEADERS, END_HEADERS | END_STREAM, id, &get(&[])))
        .unwrap();
    assert_eq!(server.owner.opened.len(), 1);
}

#[test]
fn bodies_that_disagree_with_their_length() {
    for (length, bodies) in [("3", &["ab"][..]), ("3", &["ab", "cd"]), ("0", &["a"])] {
        let mut server = End::greeted(Config::default());
        let head = get(&[("content-length", length)]);
        server
            .receive(&frame(HEADERS, END_HEADERS, 1, &head))
            .unwrap();
        for (at, body) in bodies.iter().enumerate() {
            let end = u8::from(at + 1 == bodies.len());
            server
                .receive(&frame(DATA, end, 1, body.as_bytes()))
                .unwrap();
        }
        assert_eq!(
            server.owner.at(0).reset,
            Some(ErrorCode::Protocol),
            "{length}"
        );
        assert!(!server.owner.at(0).ended);
    }
}

#[test]
fn a_head_over_the_limit_is_given_so_that_its_reader_refuses_it() {
    let config = Config {
        head_bytes: 2000,
        ..Config::default()
    };
    let mut server = End::greeted(config);
    let value = "v".repeat(100);
    let fields: Vec<_> = (0..50).map(|_| ("x", value.as_str())).collect();
    server
        .receive(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &get(&fields)))
        .unwrap();
    let seen = server.owner.at(0);
    assert!(seen.head.len() > 2000 && seen.head.len() < 2300);
    assert!(!seen.head.ends_with("\r\n\r\n") && seen.head.starts_with("GET / HTTP/1.1\r\n"));
    // The next request is not affected.
    server
        .receive(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &get(&[])))
        .unwrap();
    assert_eq!(server.owner.at(1).head, "GET / HTTP/1.1\r\nhost: a\r\n\r\n");
}

/// 128 of the operator's limit, and those that sidecars add.
#[test]
fn heads_of_all_fields_that_are_accepted_are_sent() {
    let (mut client, mut server) = pair(Config {
        head_fields: 144,
        ..Config::default()
    });
    let fields = "x: y\r\n".repeat(143);
    let stream = client.connection.open().unwrap();
    client.write(
        stream,
        format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n").as_bytes(),
    );
    settle(&mut client, &mut server);
    assert_eq!(server.owner.at(0).head.matches("x: y").count(), 143);
    server.write(
        0,
        format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{fields}\r\n").as_bytes(),
    );
    settle(&mut client, &mut server);
    let seen = client.owner.at(stream);
    assert_eq!(seen.head.matches("x: y").count(), 143);
}

#[test]
fn a_block_in_pieces_and_padding() {
    let mut server = End::greeted(Config::default());
    let block = get(&[("x", "y")]);
    let mut padded = vec![4];
    padded.extend_from_slice(&block[..7]);
    padded.extend_from_slice(&[0; 4]);
    server.receive(&frame(HEADERS, 0x08, 1, &padded)).unwrap();
    server
        .receive(&frame(CONTINUATION, 0, 1, &block[7..20]))
        .unwrap();
    server
        .receive(&frame(CONTINUATION, END_HEADERS, 1, &block[20..]))
        .unwrap();
    assert!(server.owner.at(0).head.contains("x: y\r\n"));
    server
        .receive(&frame(DATA, 0x08, 1, b"\x02ab\0\0"))
        .unwrap();
    assert_eq!(server.owner.at(0).data, b"ab");
}
