//! Runs the cases under `corpus/`; the README there describes the format.

#![allow(missing_docs, clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::Path;

use tulle_http1::{
    Body, BodyLength, ByteSpan, Limits, Method, Parsed, RequestEdit, ResponseEdit, parse_request,
    parse_response,
};

#[path = "../corpus/cases.rs"]
mod cases;
mod invariants;

use cases::{Case, lossy, read};

const LIMITS: Limits = Limits {
    head_bytes: 8 * 1024,
    headers: 64,
};

#[test]
fn requests() {
    run("requests", 150, |case| {
        invariants::request(&case.input);
        let head = match parse_request(&case.input, &LIMITS) {
            Err(bad) => return (format!("reject {} {}", bad.reason(), bad.status()), None),
            Ok(Parsed::Partial) => return ("partial".to_owned(), None),
            Ok(Parsed::Complete(head)) => head,
        };
        let text = |span: ByteSpan| lossy(span.slice(&case.input));
        let seen = format!(
            "accept method={} target={} path={} authority={} minor={} body={} keep={} expect={} \
             upgrade={} id={} rest={}",
            text(head.method_text),
            text(head.target),
            text(head.path),
            text(head.authority),
            head.minor,
            body(head.body),
            yes(head.keep_alive),
            yes(head.expect_continue),
            yes(head.upgrade),
            text(head.request_id),
            lossy(&case.input[head.len..]),
        );
        let mut out = Vec::new();
        head.write(&case.input, &RequestEdit::default(), &mut out);
        (seen, Some(out))
    });
}

#[test]
fn responses() {
    run("responses", 60, |case| {
        invariants::response(&case.input);
        let method = case.option.as_deref().unwrap_or("GET");
        let method = Method::from_bytes(method.as_bytes());
        let head = match parse_response(&case.input, &LIMITS, method) {
            Err(bad) => return (format!("reject {}", bad.reason()), None),
            Ok(Parsed::Partial) => return ("partial".to_owned(), None),
            Ok(Parsed::Complete(head)) => head,
        };
        let seen = format!(
            "accept status={} minor={} body={} keep={} upgrade={} rest={}",
            head.status,
            head.minor,
            body(head.body),
            yes(head.keep_alive),
            yes(head.upgrade),
            lossy(&case.input[head.len..]),
        );
        let mut out = Vec::new();
        head.write(&case.input, &ResponseEdit::default(), &mut out);
        (seen, Some(out))
    });
}

#[test]
fn chunked() {
    run("chunked", 80, |case| {
        invariants::chunked(&case.input, &[3, 1, 7]);
        let mut body = Body::new(BodyLength::Chunked);
        let seen = match body.advance(&case.input) {
            Err(bad) => format!("reject {}", bad.reason()),
            Ok(_) if !body.is_done() => "open".to_owned(),
            Ok(taken) => format!("done rest={}", lossy(&case.input[taken..])),
        };
        (seen, None)
    });
}

/// Compares the result of `observe` with the verdict of every case; a `key=value` list in a verdict
/// need not name every observed value.
fn run(file: &str, at_least: usize, observe: impl Fn(&Case) -> (String, Option<Vec<u8>>)) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("corpus/{file}.txt"));
    let text = std::fs::read_to_string(&path).unwrap();
    let cases = read(&text);
    assert!(cases.len() >= at_least, "only {} cases", cases.len());
    let mut failures = String::new();
    for case in &cases {
        let (seen, output) = observe(case);
        let mut seen_words = seen.split(' ');
        let matches = case
            .verdict
            .split(' ')
            .enumerate()
            .all(|(at, word)| match at {
                0 => seen_words.next() == Some(word),
                _ => seen.split(' ').skip(1).any(|seen| seen == word),
            });
        if !matches {
            writeln!(
                failures,
                "{file}: {}\n  expected: {}\n  seen:     {seen}\n  input:    {:?}",
                case.name,
                case.verdict,
                lossy(&case.input)
            )
            .unwrap();
        }
        if let Some(expected) = &case.output
            && output.as_ref() != Some(expected)
        {
            writeln!(
                failures,
                "{file}: {}\n  expected: {:?}\n  written:  {:?}",
                case.name,
                lossy(expected),
                output.as_deref().map(lossy)
            )
            .unwrap();
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

fn body(length: BodyLength) -> String {
    match length {
        BodyLength::None => "none".to_owned(),
        BodyLength::Length(length) => length.to_string(),
        BodyLength::Chunked => "chunked".to_owned(),
        BodyLength::UntilClose => "close".to_owned(),
    }
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}
