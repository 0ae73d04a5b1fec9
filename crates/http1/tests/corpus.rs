//! Runs the cases under `corpus/`; the README there describes the format.

#![allow(missing_docs, clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::Path;

use tulle_http1::{
    Body, BodyLength, Limits, Method, Parsed, RequestEdit, ResponseEdit, Span, parse_request,
    parse_response,
};

mod invariants;

const LIMITS: Limits = Limits {
    head_bytes: 8 * 1024,
    headers: 64,
};

#[derive(Debug, Default)]
struct Case {
    name: String,
    /// What stands in brackets after the name.
    option: Option<String>,
    input: Vec<u8>,
    verdict: String,
    output: Option<Vec<u8>>,
}

#[test]
fn requests() {
    run("requests", 150, |case| {
        invariants::request(&case.input);
        let head = match parse_request(&case.input, &LIMITS) {
            Err(bad) => return (format!("reject {} {}", bad.reason(), bad.status()), None),
            Ok(Parsed::Partial) => return ("partial".to_owned(), None),
            Ok(Parsed::Complete(head)) => head,
        };
        let text = |span: Span| lossy(span.of(&case.input));
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

/// Compares what `observe` sees with the verdict of every case; a `key=value` list in a verdict
/// need not name everything that was seen.
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

fn read(text: &str) -> Vec<Case> {
    #[derive(PartialEq)]
    enum Part {
        Comment,
        Input,
        Values,
        Output,
    }
    let mut cases = Vec::new();
    let mut part = Part::Comment;
    let mut case = Case::default();
    let mut template = String::new();
    let mut values: Vec<String> = Vec::new();
    let mut output: Vec<&str> = Vec::new();
    for line in text.lines().chain(["== end"]) {
        if let Some(title) = line.strip_prefix("== ") {
            if part != Part::Comment {
                assert!(!case.verdict.is_empty(), "{} has no verdict", case.name);
                while output.last().is_some_and(|line| line.is_empty()) {
                    output.pop();
                }
                let expected = output.join("\\r\\n") + "\\r\\n\\r\\n";
                if values.is_empty() {
                    values.push(String::new());
                }
                for value in values.drain(..) {
                    cases.push(Case {
                        name: format!("{} {value}", case.name),
                        option: case.option.clone(),
                        input: unescape(&template.replace("<%>", &value)),
                        verdict: lossy(&unescape(&case.verdict.replace("<%>", &value))),
                        output: (!output.is_empty())
                            .then(|| unescape(&expected.replace("<%>", &value))),
                    });
                }
            }
            case = Case::default();
            template.clear();
            output.clear();
            case.name = title.to_owned();
            if let Some((name, option)) = title.strip_suffix(']').and_then(|t| t.split_once(" [")) {
                case.name = name.to_owned();
                case.option = Some(option.to_owned());
            }
            part = Part::Input;
        } else if part == Part::Comment {
            assert!(
                line.is_empty() || line.starts_with('#'),
                "stray line: {line}"
            );
        } else if let Some(verdict) = line.strip_prefix("-> ") {
            case.verdict = verdict.to_owned();
            part = Part::Values;
        } else if part == Part::Input {
            match line.strip_suffix('\\') {
                Some(open) if !open.ends_with('\\') => template.push_str(open),
                _ => {
                    template.push_str(line);
                    template.push_str("\\r\\n");
                }
            }
        } else if let Some(value) = line.strip_prefix("% ") {
            values.push(value.to_owned());
        } else if line == "=>" {
            part = Part::Output;
        } else if part == Part::Output && !line.starts_with('#') {
            output.push(line);
        } else {
            assert!(
                line.is_empty() || line.starts_with('#'),
                "stray line: {line}"
            );
        }
    }
    cases
}

/// `\r \n \t \\ \xHH` and `\{TEXT*COUNT}`.
fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let (kind, after) = rest[at + 1..].split_at(1);
        rest = after;
        match kind {
            "r" => out.push(b'\r'),
            "n" => out.push(b'\n'),
            "t" => out.push(b'\t'),
            "\\" => out.push(b'\\'),
            "x" => {
                out.push(u8::from_str_radix(&rest[..2], 16).unwrap());
                rest = &rest[2..];
            }
            "{" => {
                let (repeat, after) = rest.split_once('}').unwrap();
                let (unit, count) = repeat.rsplit_once('*').unwrap();
                out.extend(
                    unescape(&unit.replace("/r/n", "\\r\\n")).repeat(count.parse().unwrap()),
                );
                rest = after;
            }
            _ => panic!("unknown escape \\{kind} in {text}"),
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out
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

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace("\r\n", "|")
}
