//! Plugins that see bodies, on real traffic through two sidecars.

use crate::plugins::{calls, pair, plugin};
use serde_json::Value;
use std::time::Duration;
use tests_local::{Client, Server, get, ok, pause, post};

/// Leaves out what nobody needs to know, both ways.
const REDACTS: &str = r"
    const strip = (text) => text.replace(/card=\d+/g, 'card=***');
    export const onRequestBody = (body, request) => {
        request.headers.set('x-bytes', body.length);
        return strip(body.text());
    };
    export async function onResponseBody(body, response, context) {
        response.headers.set('x-bytes', body.length);
        return strip(await body.text());
    }";

/// A server that answers every request with these bytes.
fn says(response: Vec<u8>) -> Server {
    Server::http(move |_| response.clone())
}

/// Bytes in chunks of so many bytes, then trailers.
fn chunked(content: &[u8], size: usize, trailers: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in content.chunks(size) {
        out.extend_from_slice(format!("{:x};a=b\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
    out
}

/// Sends bytes in pieces, each a moment after the last.
fn send_slowly(client: &mut Client, bytes: &[u8], size: usize) {
    for piece in bytes.chunks(size) {
        client.send(piece);
        pause("the next piece is read by itself", Duration::from_millis(1));
    }
}

fn with(source: &str, field: &str, value: impl Into<Value>) -> Value {
    let mut own = plugin(source);
    own[field] = value.into();
    own
}

#[test]
fn bodies_are_seen_and_replaced_however_they_are_framed() {
    let app = Server::echo();
    let pair = pair(app.address(), &[plugin(REDACTS)]);
    let mut client = pair.connect();
    let content = b"name=a&card=1234567812345678&b=c".repeat(100);
    let hidden = "name=a&card=***&b=c".repeat(100);
    let head = "POST /pay HTTP/1.1\r\nHost: ratings\r\n";
    let whole = post("/pay", &content);
    let mut in_chunks = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    in_chunks.extend(chunked(&content, 7, "x-after: 1\r\n"));
    for round in 0..2 {
        // On one connection: what follows a replaced body is the next request.
        for (bytes, frames) in [
            (&whole, format!("content-length: {}", hidden.len())),
            (&in_chunks, "transfer-encoding: chunked".to_owned()),
        ] {
            match round {
                0 => client.send(bytes),
                _ => send_slowly(&mut client, bytes, 997),
            }
            let answer = client.response("POST");
            assert_eq!(answer.status(), 200, "{}", answer.text());
            let text = answer.text().to_ascii_lowercase();
            assert!(text.ends_with(&hidden), "{text}");
            assert!(text.contains(&frames), "{frames}: {text}");
            let seen = format!("x-bytes: {}\r\n", content.len());
            assert!(text.contains(&seen), "{text}");
            assert!(answer.header("x-bytes").parse::<usize>().unwrap() > hidden.len());
        }
    }
    assert!(!app.received_text().contains("card=1"));
    assert!(app.received_text().contains("x-after: 1"));
    calls(&pair.server, "passed", 4.0);
}

#[test]
fn responses_of_every_framing_are_replaced() {
    let content = b"card=99 ".repeat(2000);
    let hidden = "card=*** ".repeat(2000);
    let length = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
        content.len()
    );
    let by_length = [length.as_bytes(), &content].concat();
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n";
    let in_chunks = [&head[..], &chunked(&content, 100, "x-sum: 5\r\n")].concat();
    for response in [by_length, in_chunks] {
        let app = says(response);
        let pair = pair(app.address(), &[plugin(REDACTS)]);
        let mut client = pair.connect();
        for _ in 0..2 {
            client.send(get("/"));
            let answer = client.response("GET");
            assert_eq!(answer.text(), hidden);
            assert_eq!(answer.header("x-bytes"), content.len().to_string());
        }
        // A response to HEAD has no body to be seen.
        client.send("HEAD / HTTP/1.1\r\nHost: ratings\r\n\r\n");
        let answer = client.response("HEAD");
        assert_eq!((answer.status(), answer.header("x-bytes")), (200, ""));
    }
    // Until the end of the connection.
    let app = Server::start(move |mut connection| {
        connection.request().unwrap();
        let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        connection.send([&head[..], b"card=", b"7"].concat());
    });
    let pair = pair(app.address(), &[plugin(REDACTS)]);
    assert_eq!(pair.ask("/", "").text(), "card=***");
}

#[test]
fn the_body_of_a_request_that_asks_for_another_protocol_is_seen_too() {
    let app = Server::echo();
    let pair = pair(app.address(), &[plugin(REDACTS)]);
    let content = b"card=1234567812345678";
    let framings = [
        [
            format!("Content-Length: {}\r\n\r\n", content.len()).into_bytes(),
            content.to_vec(),
        ]
        .concat(),
        [
            b"Transfer-Encoding: chunked\r\n\r\n".to_vec(),
            chunked(content, 7, ""),
        ]
        .concat(),
    ];
    for framing in framings {
        let mut client = pair.connect();
        client.send("POST /pay HTTP/1.1\r\nHost: ratings\r\nConnection: upgrade\r\nUpgrade: x\r\n");
        client.send(&framing);
        assert_eq!(client.response("POST").status(), 200);
    }
    let received = app.received_text();
    assert!(
        received.contains("card=***") && !received.contains("card=1"),
        "{received}"
    );
}

#[test]
fn a_body_that_is_too_long_is_not_passed_on_unseen() {
    let long = vec![b'a'; 5000];
    let echo = Server::echo();
    let both = [("onRequestBody", true), ("onResponseBody", false)];
    for (hook, of_request) in both {
        let source = format!("export const {hook} = (body) => body.text().toUpperCase();");
        for open in [false, true] {
            let mut own = with(&source, "bodyKib", 4);
            own["failOpen"] = open.into();
            let app = says(ok(&long));
            let address = match of_request {
                true => echo.address(),
                false => app.address(),
            };
            let pair = pair(address, &[own]);
            let mut client = pair.connect();
            client.send(post("/", if of_request { &long } else { b"short" }));
            let answer = client.response("POST");
            match open {
                false => {
                    assert_eq!(answer.status(), 500, "{hook}");
                    assert_eq!(answer.header("x-tulle-reason"), "plugin_failed");
                    assert!(!answer.text().contains("aaaa"));
                    let why = "the body has more than 4096 bytes (limits.body)";
                    assert!(answer.text().contains(why), "{}", answer.text());
                }
                true => assert!(answer.body.ends_with(&long), "{hook}"),
            }
            calls(&pair.server, "busy", 1.0);
            if of_request {
                // One that fits is seen.
                let mut client = pair.connect();
                client.send(post("/", &long[..4096]));
                assert!(client.response("POST").body.ends_with(&[b'A'; 4096]));
            }
        }
    }
}

#[test]
fn long_bodies_are_held_whole() {
    let long: Vec<u8> = (0..250_000u32).map(|n| b'a' + (n % 26) as u8).collect();
    let source = "export const onRequestBody = (body, request) => { request.headers.set('x-length', body.length) };
        export const onResponseBody = (body, response) => { response.headers.set('x-length', body.length) };";
    let app = Server::echo();
    let pair = pair(app.address(), &[plugin(source)]);
    let mut client = pair.connect();
    for size in [1000, 60_000, 250_000] {
        for piece in post("/", &long[..size]).chunks(10_000) {
            client.send(piece);
        }
        let answer = client.response("POST");
        let seen = format!("x-length: {size}\r\n");
        assert!(answer.text().contains(&seen), "{size}");
        assert!(answer.body.ends_with(&long[..size]), "{size}");
        assert_eq!(answer.header("x-length"), answer.body.len().to_string());
    }
}

#[test]
fn a_plugin_leaves_bodies_that_it_does_not_want() {
    let source = r"
        export const onRequest = (request) => { if (request.path === '/stream') request.skipBody() };
        export const onResponse = (response) => { if (response.headers.get('x-stream')) response.skipBody() };
        export const onRequestBody = () => 'seen';
        export const onResponseBody = (body) => `${body.text()} seen`;";
    // The second half of the response comes when the client has had the first.
    let app = Server::start(|mut connection| {
        while let Ok(request) = connection.request() {
            if request.target() != "/stream" {
                connection.send(ok(&request.body));
                continue;
            }
            assert_eq!(request.text(), "unseen");
            connection.send("HTTP/1.1 200 OK\r\nX-Stream: 1\r\nContent-Length: 12\r\n\r\nfirst;");
            let next = connection.request().unwrap();
            assert_eq!(next.target(), "/never");
        }
    });
    let pair = pair(app.address(), &[plugin(source)]);
    let mut client = pair.connect();
    client.send(post("/", b"body"));
    assert_eq!(client.response("POST").text(), "seen seen");
    client.send(post("/stream", b"unseen"));
    let head = client.read_exact(17);
    assert_eq!(head, b"HTTP/1.1 200 OK\r\n");
    let mut rest = Vec::new();
    while !rest.ends_with(b"first;") {
        rest.extend(client.read_exact(1));
    }
}

#[test]
fn a_body_is_answered_in_place_of_the_application() {
    let app = Server::echo();
    let source = r"
        export async function onRequestBody(body, request, context) {
            let order;
            try { order = body.json(); } catch { return new Response('no JSON\n', { status: 422 }); }
            await mesh.sleep(1);
            order.by = context.source.identity.split('/').pop();
            request.headers.set('content-type', 'application/json');
            return new TextEncoder().encode(JSON.stringify(order));
        }";
    let pair = pair(app.address(), &[plugin(source)]);
    let mut client = pair.connect();
    client.send(post("/", b"{"));
    let answer = client.response("POST");
    assert_eq!(
        (answer.status(), answer.text().as_str()),
        (422, "no JSON\n")
    );
    assert_eq!(app.connections(), 0);
    let mut client = pair.connect();
    client.send(post("/", br#"{"item":"a"}"#));
    let text = client.response("POST").text();
    assert!(
        text.ends_with(r#"{"item":"a","by":"productpage"}"#),
        "{text}"
    );
    assert!(
        text.contains("content-type: application/json\r\n"),
        "{text}"
    );
    // Without a body there is nothing to see.
    client.send(get("/"));
    assert_eq!(client.response("GET").status(), 200);
    // A client that goes away in the middle disturbs nobody.
    let mut gone = pair.connect();
    gone.send("POST / HTTP/1.1\r\nHost: ratings\r\nContent-Length: 100\r\n\r\n{");
    drop(gone);
    client.send(post("/", b"{}"));
    assert_eq!(client.response("POST").status(), 200);
}

#[test]
fn a_hook_that_returns_what_it_may_not_fails() {
    for (source, why) in [
        (
            "export const onRequestBody = () => 5",
            "onRequestBody returns nothing, another body",
        ),
        (
            "export const onRequest = () => 'a'",
            "onRequest returns nothing or a Response",
        ),
        (
            "export const onResponseBody = () => new Response('a')",
            "onResponseBody neither waits nor answers",
        ),
        (
            "export const onResponseBody = () => mesh.sleep(1)",
            "onResponseBody neither waits nor answers",
        ),
        (
            "export const onResponseBody = () => 'a'.repeat(2 ** 20 + 1)",
            "a body has at most 1 MiB",
        ),
    ] {
        let app = Server::echo();
        let pair = pair(app.address(), &[plugin(source)]);
        let mut client = pair.connect();
        client.send(post("/", b"body"));
        let answer = client.response("POST");
        assert_eq!(answer.header("x-tulle-reason"), "plugin_failed", "{source}");
        assert!(answer.text().contains(why), "{source}: {}", answer.text());
    }
}

#[test]
fn many_bodies_at_once_are_told_apart() {
    let app = Server::echo();
    let source = "export const onResponseBody = (body) => body.text().replace('GET', 'seen');";
    let pair = pair(app.address(), &[plugin(source)]);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let mut client = pair.connect();
            scope.spawn(move || {
                for round in 0..20 {
                    client.send(get(&format!("/{number}/{round}")));
                    let text = client.response("GET").text();
                    assert!(
                        text.starts_with(&format!("seen /{number}/{round} ")),
                        "{text}"
                    );
                }
            });
        }
    });
}
