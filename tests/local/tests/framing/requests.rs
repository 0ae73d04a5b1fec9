//! Requests: what reaches the application.

use crate::cases::{Case, lossy};
use crate::reader::{Kind, Message, Read, read, read_all};
use crate::{ADDED, Place, corpus, named, place, report};
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex};
use tests_local::{Client, Connection, Server, get};

/// Appended to what is refused or complete: a second request that some other reader might find.
const NEXT: &str = "GET /next HTTP/1.1\r\nHost: next\r\n\r\n";
/// Bodies longer than this are announced only.
const LONG: usize = 1 << 20;

/// An application that frames what it gets strictly and notes it down.
struct App {
    server: Server,
    messages: Arc<Mutex<Vec<Result<Message, String>>>>,
}

impl App {
    fn start() -> Self {
        let messages = Arc::new(Mutex::new(Vec::new()));
        let noted = messages.clone();
        let server = Server::start(move |mut connection: Connection| {
            let mut bytes = Vec::new();
            loop {
                let (note, used) = match read(&bytes, Kind::Request) {
                    Ok(Read::Message(message, used)) => (Ok(message), used),
                    Ok(Read::Partial(head)) => match head {
                        Some(head) if announced(&head) > LONG => (Ok(head), usize::MAX),
                        _ => {
                            match connection.read_some() {
                                Ok(more) if !more.is_empty() => bytes.extend(more),
                                _ => return,
                            }
                            continue;
                        }
                    },
                    Err(why) => (Err(why), usize::MAX),
                };
                let refuse = note.as_ref().map_or("", |m| m.word(0)) == "CONNECT";
                noted.lock().unwrap().push(note);
                let status = if refuse { "405 No" } else { "200 OK" };
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                if connection.try_send(answer).is_err() || used == usize::MAX {
                    return;
                }
                bytes.drain(..used);
            }
        });
        Self { server, messages }
    }

    fn take(&self) -> Vec<Result<Message, String>> {
        std::mem::take(&mut self.messages.lock().unwrap())
    }
}

fn announced(head: &Message) -> usize {
    let lengths = head.all("content-length");
    lengths.first().map_or(0, |l| l.parse().unwrap())
}

fn everywhere(check: impl Fn(&Place, &App)) {
    for name in [
        "two sidecars, limits at the client's",
        "plaintext to a sidecar",
        "a gateway",
    ] {
        let app = App::start();
        let place = place(name, app.server.address());
        check(&place, &app);
    }
}

/// Sends bytes and reads everything that comes; the responses and what is left.
fn exchange(address: SocketAddr, bytes: &[u8], end: bool) -> Result<Vec<Message>, String> {
    let mut client = Client::connect(address);
    // The proxy may refuse and close before it has read everything.
    let _ = client.try_send(bytes);
    if end {
        // Then there is nothing to end any more.
        let _ = client.stream().shutdown(Shutdown::Write);
    }
    let received = client.read_to_end().map_err(|e| e.to_string())?;
    let method = String::from_utf8_lossy(bytes);
    let method = method.trim_start().split(' ').next().unwrap_or_default();
    let (messages, rest) = read_all(&received, Kind::Response(method, true))?;
    if !rest.is_empty() {
        return Err(format!("bytes after the response: {:?}", lossy(&rest)));
    }
    Ok(messages)
}

/// Runs `check` on several cases at once; they are many and each waits for the network.
fn in_parallel(cases: &[Case], check: impl Fn(&Case) -> Result<(), String> + Sync) -> Vec<String> {
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for part in cases.chunks(cases.len().div_ceil(8).max(1)) {
            let (check, failures) = (&check, &failures);
            scope.spawn(move || {
                for case in part {
                    if let Err(why) = check(case) {
                        failures.lock().unwrap().push(describe(case, &why));
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap()
}

fn describe(case: &Case, why: &str) -> String {
    let input = lossy(&case.input);
    let shown: String = input.chars().take(300).collect();
    format!(
        "{}: {why}\n  verdict: {}\n  input: {shown:?}",
        case.name, case.verdict
    )
}

/// Nothing has reached the application but this one good request.
fn nothing_else_arrived(place: &Place, app: &App) {
    let good = exchange(place.address, get("/last").as_bytes(), true).unwrap();
    assert_eq!(good[0].status(), 200, "the proxy still serves");
    let received = app.server.received().concat();
    let (messages, rest) = read_all(&received, Kind::Request).unwrap();
    assert!(
        messages.len() == 1 && messages[0].word(1) == "/last" && rest.is_empty(),
        "{}: the application received {}",
        place.name,
        lossy(&received)
    );
}

/// The one response says which status and why.
fn is_refused(case: &Case, responses: &[Message]) -> Result<(), String> {
    let status = case.verdict.split(' ').nth(2).unwrap();
    match responses {
        [one] if one.word(1) == status => match one.all("x-tulle-reason").as_slice() {
            [reason] if reason == "bad_request" => Ok(()),
            other => Err(format!("the reason is {other:?}")),
        },
        other => Err(format!("answered {other:?}")),
    }
}

#[test]
fn not_one_byte_of_a_refused_head_reaches_the_application() {
    let cases: Vec<_> = corpus("requests", 400)
        .into_iter()
        .filter(|case| case.verdict.starts_with("reject"))
        .collect();
    assert!(cases.len() > 250, "only {}", cases.len());
    everywhere(|place, app| {
        let failures = in_parallel(&cases, |case| {
            // There a TLS handshake may begin; it is not one.
            if place.name.starts_with("plaintext") && case.input.starts_with(b"\x16\x03") {
                return Ok(());
            }
            let whole = case.input.ends_with(b"\n\r\n") || case.input.ends_with(b"\n\n");
            // Five bytes that are an empty chunked body, too: a lenient reader finds its end.
            let tails: &[&str] = if whole { &["", "0\r\n\r\n"] } else { &[] };
            let tails = tails.iter().map(|body| format!("{body}{NEXT}"));
            for tail in tails.chain([String::new()]) {
                let mut bytes = case.input.clone();
                bytes.extend_from_slice(tail.as_bytes());
                let responses = exchange(place.address, &bytes, false)?;
                is_refused(case, &responses)?;
            }
            Ok(())
        });
        report(place.name, &failures);
        nothing_else_arrived(place, app);
    });
}

#[test]
fn not_one_byte_of_an_incomplete_head_reaches_the_application() {
    let cases: Vec<_> = corpus("requests", 400)
        .into_iter()
        .filter(|case| case.verdict == "partial")
        .collect();
    assert!(cases.len() > 10, "only {}", cases.len());
    everywhere(|place, app| {
        let failures = in_parallel(&cases, |case| {
            match exchange(place.address, &case.input, true)?.as_slice() {
                [] => Ok(()),
                other => Err(format!("answered {other:?}")),
            }
        });
        report(place.name, &failures);
        nothing_else_arrived(place, app);
    });
}

/// How the body of an accepted request is announced, as a plain reader sees it.
fn complete(case: &Case) -> (Vec<u8>, usize, bool) {
    let mut bytes = case.input.clone();
    let head = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    let text = lossy(&bytes[..head]).to_ascii_lowercase();
    let value = |name: &str| {
        let mut lines = text.split('|').filter_map(|line| line.split_once(':'));
        let found = lines.find(|(n, _)| *n == name);
        found.map(|(_, value)| value.trim().to_owned())
    };
    if value("transfer-encoding").is_some() {
        bytes.extend_from_slice(b"5;a=b\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n");
        return (bytes, head, true);
    }
    let length: usize = value("content-length").map_or(0, |l| l.parse().unwrap());
    let there = bytes.len() - head;
    if length > there && length < LONG {
        bytes.resize(head + length, b'x');
    }
    (bytes, head, length < LONG)
}

/// Proxies write the names of their own fields in lower case.
fn is_added(line: &[u8]) -> bool {
    let name = line.split(|&b| b == b':').next().unwrap_or_default();
    ADDED.iter().any(|added| added.as_bytes() == name)
}

/// Compares what the application received with what the verdict names.
fn compare(case: &Case, seen: &Message, body: &[u8]) -> Result<(), String> {
    let target = seen.word(1);
    let hosts = seen.all("host");
    let mut checks = vec![("body sent", lossy(body), lossy(&seen.body))];
    if let Some(method) = named(case, "method") {
        checks.push(("method", method.to_owned(), seen.word(0).to_owned()));
    }
    if let Some(path) = named(case, "path") {
        let seen_path = match seen.word(0) {
            "CONNECT" => "",
            _ => target.split('?').next().unwrap(),
        };
        checks.push(("path", path.to_owned(), seen_path.to_owned()));
    }
    if let Some(authority) = named(case, "authority") {
        let host = hosts.first().cloned().unwrap_or_default();
        checks.push(("authority", authority.to_owned(), host));
    }
    if let Some(minor) = named(case, "minor") {
        let version = format!("HTTP/1.{minor}");
        checks.push(("version", version, seen.word(2).to_owned()));
    }
    if let Some(body) = named(case, "body") {
        let announced = match (seen.all("transfer-encoding"), seen.all("content-length")) {
            (coding, _) if !coding.is_empty() => "chunked".to_owned(),
            (_, length) if !length.is_empty() => length[0].trim_start_matches('0').to_owned(),
            _ => "none".to_owned(),
        };
        let expected = body.trim_start_matches('0').to_owned();
        checks.push(("framing", expected, announced));
    }
    if let Some(output) = &case.output {
        let mut lines: Vec<_> = seen
            .lines
            .iter()
            .filter(|l| !is_added(l))
            .cloned()
            .collect();
        lines.insert(0, seen.start.clone().into_bytes());
        let written = lines.join(&b"\r\n"[..]);
        let expected = output.strip_suffix(b"\r\n\r\n").unwrap();
        checks.push(("head", lossy(expected), lossy(&written)));
    }
    for (what, expected, seen) in checks {
        if expected != seen {
            return Err(format!("{what} is {seen:?}, not {expected:?}"));
        }
    }
    Ok(())
}

#[test]
fn an_accepted_head_reaches_the_application_with_one_meaning() {
    let cases: Vec<_> = corpus("requests", 400)
        .into_iter()
        .filter(|case| case.verdict.starts_with("accept"))
        .collect();
    assert!(cases.len() > 100, "only {}", cases.len());
    everywhere(|place, app| {
        let mut failures = Vec::new();
        for case in &cases {
            let (mut bytes, head, whole) = complete(case);
            let after_head = lossy(&bytes[head..]);
            let rest =
                named(case, "rest").is_some_and(|r| !r.is_empty() && after_head.starts_with(r));
            let body = match whole && !(rest && named(case, "body") == Some("0")) {
                true => bytes[head..].to_vec(),
                false => Vec::new(),
            };
            // A second request right behind must be the second request there, too.
            let follow =
                whole && bytes.len() - head == body.len() && named(case, "upgrade") != Some("yes");
            if follow {
                bytes.extend_from_slice(NEXT.as_bytes());
            }
            let answered = exchange(place.address, &bytes, whole);
            let seen = app.take();
            let result = answered.and_then(|answered| {
                // A gateway's routes are for paths: it has none for `*`, and opens no tunnels.
                let pathless =
                    named(case, "path") == Some("*") || case.input.starts_with(b"CONNECT ");
                let unrouted = place.name == "a gateway" && pathless;
                if unrouted {
                    let status = answered.first().map_or(0, Message::status);
                    let next =
                        |m: &Result<Message, _>| m.as_ref().is_ok_and(|m| m.word(1) == "/next");
                    return match status == 404 && seen.iter().all(next) {
                        true => Ok(()),
                        false => Err(format!("answered {status}, arrived {seen:?}")),
                    };
                }
                let messages = seen.into_iter().collect::<Result<Vec<_>, _>>()?;
                let [first, rest @ ..] = messages.as_slice() else {
                    return Err(format!("nothing arrived; answered {answered:?}"));
                };
                compare(case, first, &body)?;
                match rest {
                    [] if follow && answered[0].all("connection").iter().all(|c| c != "close") => {
                        Err(format!("the second request was lost: {answered:?}"))
                    }
                    [] => Ok(()),
                    [next] if follow && next.word(1) == "/next" => Ok(()),
                    more => Err(format!("{} more requests arrived", more.len())),
                }
            });
            if let Err(why) = result {
                failures.push(describe(case, &why));
            }
        }
        report(place.name, &failures);
    });
}

#[test]
fn a_refused_body_is_never_a_complete_request() {
    let cases = corpus("chunked", 150);
    everywhere(|place, app| {
        let head = b"POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut failures = Vec::new();
        for case in &cases {
            let mut bytes = head.to_vec();
            bytes.extend_from_slice(&case.input);
            let done = case.verdict.starts_with("done");
            let rest = named(case, "rest").unwrap_or_default().len();
            // A cut message may end with a reset: then there is no response to look at.
            let answered = exchange(place.address, &bytes, !case.verdict.starts_with("reject"));
            let seen = app.take();
            let statuses: Vec<_> = answered.iter().flatten().map(Message::status).collect();
            let result = match (done, seen.as_slice()) {
                (true, [Ok(one)]) if one.body == case.input[..case.input.len() - rest] => {
                    (statuses == [200]).then_some(()).ok_or("not answered")
                }
                (false, []) => match statuses.as_slice() {
                    [] | [400] => Ok(()),
                    _ => Err("answered as if it were complete"),
                },
                _ => Err("other requests arrived"),
            };
            if let Err(why) = result {
                failures.push(describe(case, &format!("{why}: {seen:?}, {answered:?}")));
            }
        }
        report(place.name, &failures);
        // The remains of a cut request are never followed by another one.
        for bytes in app.server.received() {
            if let Err(why) = read_all(&bytes, Kind::Request) {
                panic!("{}: {why} in {}", place.name, lossy(&bytes));
            }
        }
    });
}
