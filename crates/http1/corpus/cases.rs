//! Reads the files in this directory; the README describes the format. The codec's tests and the
//! tests with whole proxies share it.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::missing_panics_doc
)]

/// One case.
#[derive(Debug, Default)]
pub struct Case {
    /// Its name, and the value it was made of.
    pub name: String,
    /// The text in brackets after the name.
    pub option: Option<String>,
    /// Bytes to read.
    pub input: Vec<u8>,
    /// Expected verdict.
    pub verdict: String,
    /// Expected written head, if the case has one.
    pub output: Option<Vec<u8>>,
}

/// Reads a file of cases.
pub fn read(text: &str) -> Vec<Case> {
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

/// Makes bytes printable, for people and for comparing `rest`.
pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace("\r\n", "|")
}
