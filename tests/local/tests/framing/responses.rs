//! Responses: what reaches the client when the application answers with anything at all.

use crate::cases::{Case, lossy};
use crate::reader::{Kind, Message, Read, read, read_all};
use crate::{Place, corpus, named, place, report};
use std::io::Read as _;
use std::sync::{Arc, Mutex};
use tests_local::{Client, Connection, Server};

/// An application that answers with whatever the test says next.
struct App {
    server: Server,
    /// The bytes.
    next: Arc<Mutex<Vec<u8>>>,
}

impl App {
    fn start() -> Self {
        let next = Arc::new(Mutex::new(Vec::new()));
        let answers = next.clone();
        let server = Server::start(move |mut connection: Connection| {
            let mut bytes = Vec::new();
            loop {
                match read(&bytes, Kind::Request).unwrap() {
                    Read::Message(request, used) => {
                        bytes.drain(..used);
                        if request.word(1) == "/after" {
                            let after =
                                "HTTP/1.1 200 OK\r\nX-After: yes\r\nContent-Length: 0\r\n\r\n";
                            connection.send(after);
                            continue;
                        }
                        let answer = answers.lock().unwrap().clone();
                        connection.send(&answer);
                        // Whoever reads on waits for the end, or for what never comes.
                        if !is_whole(&answer, request.word(0)) {
                            return connection.half_close();
                        }
                    }
                    Read::Partial(_) => match connection.read_some() {
                        Ok(more) if !more.is_empty() => bytes.extend(more),
                        _ => return,
                    },
                }
            }
        });
        Self { server, next }
    }
}

/// Whether a plain reader sees just one whole response that does not need the connection's end.
fn is_whole(answer: &[u8], method: &str) -> bool {
    let kind = Kind::Response(method, false);
    matches!(read(answer, kind), Ok(Read::Message(m, used)) if used == answer.len() && m.status() >= 200)
}

/// The client's answers: final and interim responses, and whether the connection was cut.
struct Answered {
    responses: Vec<Message>,
    rest: Vec<u8>,
    cut: bool,
    bytes: Vec<u8>,
}

/// A request, and another one behind it on the same connection.
fn exchange(place: &Place, method: &str) -> Result<Answered, String> {
    let mut client = Client::connect(place.address);
    let target = if method == "CONNECT" { "a:80" } else { "/" };
    client.send(format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    let mut bytes = Vec::new();
    let mut followed = false;
    let mut cut = false;
    loop {
        let (responses, rest) = read_all(&bytes, Kind::Response(method, false))
            .map_err(|why| format!("{why} in {:?}", lossy(&bytes)))?;
        let last = responses.iter().find(|r| r.status() >= 200);
        if last.is_some() && !followed {
            followed = true;
            let verb = if method == "HEAD" { "HEAD" } else { "GET" };
            let after = format!("{verb} /after HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            // It may have closed instead.
            let _ = client.try_send(after);
        }
        let mut some = [0; 65_536];
        match client.stream().read(&mut some) {
            Ok(0) => {}
            Ok(count) => {
                bytes.extend_from_slice(&some[..count]);
                continue;
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => cut = true,
            Err(error) => return Err(format!("{error} after {:?}", lossy(&bytes))),
        }
        let (responses, rest) = match followed {
            true => (responses, rest),
            // Ended by the connection's end, unless it was cut.
            false => read_all(&bytes, Kind::Response(method, !cut))?,
        };
        return Ok(Answered {
            responses,
            rest,
            cut,
            bytes,
        });
    }
}

fn everywhere(check: impl Fn(&Place, &App) -> Vec<String>) {
    for name in [
        "two sidecars, limits at the server's",
        "plaintext to a sidecar",
        "a gateway",
    ] {
        let app = App::start();
        let place = place(name, app.server.address());
        report(name, &check(&place, &app));
    }
}

/// The client learns that the application's answer was refused, and sees no byte of it.
fn is_refused(answered: &Answered) -> Result<(), String> {
    let shown = lossy(&answered.bytes);
    let [bad, rest @ ..] = answered.responses.as_slice() else {
        return Err(format!("got {shown:?}"));
    };
    let reason = bad.all("x-tulle-reason").concat();
    let known = matches!(reason.as_str(), "bad_response" | "upstream_reset");
    if bad.status() != 502 || !known || !answered.rest.is_empty() {
        return Err(format!("got {shown:?}"));
    }
    follows(rest, bad)
}

/// The next request on the connection was answered with its own answer, or not at all.
fn follows(rest: &[Message], first: &Message) -> Result<(), String> {
    match rest {
        [] if first.all("connection").contains(&"close".to_owned()) => Ok(()),
        [after] if after.all("x-after") == ["yes"] => Ok(()),
        other => Err(format!("the next request got {other:?}")),
    }
}

fn describe(case: &Case, why: &str) -> String {
    let input = lossy(&case.input);
    let shown: String = input.chars().take(300).collect();
    format!(
        "{}: {why}\n  verdict: {}\n  input: {shown:?}",
        case.name, case.verdict
    )
}

/// The answer with the body that it announces, and how many bytes belong to the message.
fn complete(case: &Case) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = case.input.clone();
    let head = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    let rest = bytes.len() - head;
    match named(case, "body").unwrap_or("0") {
        "chunked" => bytes.extend_from_slice(b"5;a\r\nhello\r\n0\r\na: b\r\n\r\n"),
        "close" => bytes.extend_from_slice(b"to the end"),
        "none" if named(case, "status").is_none() && rest == 0 => {}
        "none" => {}
        length => bytes.resize(head + length.parse::<usize>().unwrap().max(rest), b'x'),
    }
    let status = lossy(&bytes[9..12]);
    if status.starts_with('1') {
        if rest == 0 {
            bytes.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
        return (bytes, Vec::new());
    }
    let body = bytes[head..].to_vec();
    (bytes, body)
}

#[test]
fn a_refused_response_is_a_502_and_none_of_it_is_seen() {
    let cases: Vec<_> = corpus("responses", 60)
        .into_iter()
        .filter(|case| !case.verdict.starts_with("accept"))
        .collect();
    assert!(cases.len() > 60, "only {}", cases.len());
    everywhere(|place, app| {
        let mut failures = Vec::new();
        for case in &cases {
            app.next.lock().unwrap().clone_from(&case.input);
            let method = case.option.as_deref().unwrap_or("GET");
            let result = exchange(place, method).and_then(|answered| is_refused(&answered));
            if let Err(why) = result {
                failures.push(describe(case, &why));
            }
        }
        failures
    });
}

#[test]
fn an_accepted_response_reaches_the_client_with_one_meaning() {
    let cases: Vec<_> = corpus("responses", 60)
        .into_iter()
        .filter(|case| case.verdict.starts_with("accept"))
        .collect();
    assert!(cases.len() > 30, "only {}", cases.len());
    everywhere(|place, app| {
        let mut failures = Vec::new();
        for case in &cases {
            let method = case.option.as_deref().unwrap_or("GET");
            // A gateway opens no tunnels.
            if method == "CONNECT" && place.name == "a gateway" {
                continue;
            }
            let (answer, body) = complete(case);
            *app.next.lock().unwrap() = answer;
            let result = exchange(place, method).and_then(|answered| {
                // Nobody asked for an upgrade.
                if case.input.starts_with(b"HTTP/1.1 101") {
                    return is_refused(&answered);
                }
                compare(case, &answered, &body)
            });
            if let Err(why) = result {
                failures.push(describe(case, &why));
            }
        }
        failures
    });
}

fn compare(case: &Case, answered: &Answered, body: &[u8]) -> Result<(), String> {
    let shown = lossy(&answered.bytes);
    let is_interim = case.input.starts_with(b"HTTP/1.1 1");
    let at = answered.responses.iter().position(|r| r.status() >= 200);
    let Some(at) = at.filter(|at| *at == usize::from(is_interim)) else {
        return Err(format!("got {shown:?}"));
    };
    let (first, last) = (&answered.responses[0], &answered.responses[at]);
    if !answered.rest.is_empty() || answered.cut {
        return Err(format!("bytes without a message, or cut: {shown:?}"));
    }
    if first.start.split(' ').nth(1) != Some(&lossy(&case.input[9..12])) {
        return Err(format!("another status: {shown:?}"));
    }
    if !is_interim && last.body != body {
        return Err(format!(
            "the body is {:?}, not {:?}",
            lossy(&last.body),
            lossy(body)
        ));
    }
    if let Some(output) = &case.output {
        let own = |line: &&Vec<u8>| !matches!(line.as_slice(), b"connection: close");
        let mut lines: Vec<_> = first.lines.iter().filter(own).cloned().collect();
        lines.insert(0, first.start.clone().into_bytes());
        let written = lossy(&lines.join(&b"\r\n"[..]));
        let expected = lossy(output.strip_suffix(b"\r\n\r\n").unwrap());
        if written != expected {
            return Err(format!("the head is {written:?}, not {expected:?}"));
        }
    }
    let after = &answered.responses[at + 1..];
    // No request follows in a tunnel.
    match case.option.as_deref() == Some("CONNECT") && (200..300).contains(&last.status()) {
        true if after.is_empty() => Ok(()),
        _ => follows(after, last),
    }
}

#[test]
fn a_refused_response_body_is_never_a_complete_response() {
    let cases = corpus("chunked", 150);
    everywhere(|place, app| {
        let mut failures = Vec::new();
        for case in &cases {
            let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            answer.extend_from_slice(&case.input);
            *app.next.lock().unwrap() = answer;
            let rest = named(case, "rest").unwrap_or_default().len();
            let result = exchange(place, "GET").and_then(|answered| {
                match answered.responses.as_slice() {
                    [one, after @ ..] if case.verdict.starts_with("done") => {
                        if one.body != case.input[..case.input.len() - rest] {
                            return Err(format!("the body is {:?}", lossy(&one.body)));
                        }
                        follows(after, one)
                    }
                    // Cut: the head had gone before the body was found wrong.
                    [] if answered.cut || !answered.rest.is_empty() => Ok(()),
                    [_, ..] => is_refused(&answered),
                    [] => Err("no answer".into()),
                }
            });
            if let Err(why) = result {
                failures.push(describe(case, &why));
            }
        }
        failures
    });
}
