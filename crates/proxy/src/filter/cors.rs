//! CORS (Fetch standard, section 3.2): answers preflight requests, and adds to responses of the
//! upstream which origin may read them.

use crate::filter::header_edit::Draft;
use crate::telemetry::reason::{Failure, LocalResponse, Reason};
use tulle_http1::{is_field_name, is_field_value};
use tulle_model::resource;

/// A policy for cross-origin requests, compiled.
pub struct Cors {
    origins: Vec<Origin>,
    any: bool,
    methods: List,
    headers: List,
    exposed: List,
    credentials: bool,
    max_age: String,
}

enum Origin {
    Exact(String),
    /// The text before and after one or more labels.
    Labels(String, String),
}

/// A list of names as it is written in a field.
enum List {
    Any,
    These(String),
}

/// Fields of an answer, names in lower case.
pub type Lines = Vec<(&'static str, Vec<u8>)>;

impl List {
    fn compile(what: &str, names: &[String]) -> Result<Self, String> {
        if names.iter().any(|n| n == "*") {
            return Ok(Self::Any);
        }
        match names.iter().find(|n| !is_field_name(n.as_bytes())) {
            Some(bad) => Err(format!("{bad:?} in CORS {what} is not a name")),
            None => Ok(Self::These(names.join(", "))),
        }
    }
}

impl Cors {
    /// Checks and compiles.
    ///
    /// # Errors
    /// An origin or a name is not valid.
    pub fn compile(cors: &resource::Cors) -> Result<Self, String> {
        let any = cors.allow_origins.iter().any(|o| o == "*");
        let named = cors.allow_origins.iter().filter(|o| *o != "*");
        let origins = named
            .map(|o| Origin::compile(o))
            .collect::<Result<_, _>>()?;
        let max_age = if cors.max_age_s == 0 {
            5
        } else {
            cors.max_age_s
        };
        Ok(Self {
            origins,
            any,
            methods: List::compile("methods", &cors.allow_methods)?,
            headers: List::compile("headers", &cors.allow_headers)?,
            exposed: List::compile("exposed headers", &cors.expose_headers)?,
            credentials: cors.allow_credentials,
            max_age: max_age.to_string(),
        })
    }

    /// Answers a preflight; for other requests returns the fields to add to their response.
    ///
    /// # Errors
    /// The answer, if it was a preflight.
    pub fn look_at(&self, draft: &Draft<'_>) -> Result<Lines, Failure> {
        let asked = draft.field("access-control-request-method");
        let origin = draft.field("origin");
        let mut lines = Lines::new();
        let allowed = origin.is_some_and(|o| self.allows(o));
        if !self.is_same_for_all() {
            // Without this a cache would give one origin the answer for another.
            lines.push(("vary", b"origin".to_vec()));
        }
        if let (true, Some(origin)) = (allowed, origin) {
            let who = if self.is_same_for_all() { b"*" } else { origin };
            lines.push(("access-control-allow-origin", who.to_vec()));
            if self.credentials {
                lines.push(("access-control-allow-credentials", b"true".to_vec()));
            }
        }
        if allowed {
            // Useless in the answer to a preflight, but Gateway API wants it there, too.
            self.add(
                "access-control-expose-headers",
                &self.exposed,
                None,
                &mut lines,
            );
        }
        let (true, Some(asked), Some(_)) = (draft.method() == b"OPTIONS", asked, origin) else {
            return Ok(lines);
        };
        if allowed {
            let names = draft.field("access-control-request-headers");
            self.add(
                "access-control-allow-methods",
                &self.methods,
                Some(asked),
                &mut lines,
            );
            self.add(
                "access-control-allow-headers",
                &self.headers,
                names,
                &mut lines,
            );
            lines.push(("access-control-max-age", self.max_age.clone().into_bytes()));
        }
        let said = if allowed { "allowed" } else { "not allowed" };
        Err(
            Failure::new(Reason::CorsPreflight, said).with_response(LocalResponse {
                status: 204,
                headers: lines.into_iter().map(|(n, v)| (n.to_owned(), v)).collect(),
                body: None,
            }),
        )
    }

    /// Adds a list. With credentials `*` is an ordinary name (Fetch, section 3.2.5), so the
    /// requested names take its place.
    fn add(&self, name: &'static str, list: &List, asked: Option<&[u8]>, lines: &mut Lines) {
        let value = match (list, asked) {
            (List::These(names), _) => names.as_bytes(),
            (List::Any, _) if !self.credentials => b"*",
            (List::Any, Some(asked)) => asked,
            (List::Any, None) => return,
        };
        if !value.is_empty() && is_field_value(value) {
            lines.push((name, value.to_vec()));
        }
    }

    fn is_same_for_all(&self) -> bool {
        self.any && !self.credentials
    }

    fn allows(&self, origin: &[u8]) -> bool {
        self.any || self.origins.iter().any(|o| o.is(origin))
    }
}

impl Origin {
    fn compile(text: &str) -> Result<Self, String> {
        let valid = text.split_once("://").is_some_and(|(scheme, host)| {
            !scheme.is_empty() && !host.is_empty() && !host.contains('/')
        });
        let valid = valid && text.bytes().all(|b| b.is_ascii_graphic());
        match text.split_once('*') {
            _ if !valid => {}
            None => return Ok(Self::Exact(text.to_ascii_lowercase())),
            // Whole labels: `https://*.example.com`, not `https://a*b.example.com`.
            Some((before, after))
                if (before.ends_with("://") || before.ends_with('.'))
                    && after.starts_with('.')
                    && !after.contains('*') =>
            {
                return Ok(Self::Labels(
                    before.to_ascii_lowercase(),
                    after.to_ascii_lowercase(),
                ));
            }
            Some(_) => {}
        }
        Err(format!(
            "{text:?} is no origin: scheme://host[:port], with at most one `*` for labels"
        ))
    }

    fn is(&self, origin: &[u8]) -> bool {
        let origin = origin.to_ascii_lowercase();
        match self {
            Self::Exact(wanted) => origin == wanted.as_bytes(),
            Self::Labels(before, after) => origin
                .strip_prefix(before.as_bytes())
                .and_then(|rest| rest.strip_suffix(after.as_bytes()))
                .is_some_and(|labels| {
                    let fine = |b: &u8| b.is_ascii_alphanumeric() || b"-_".contains(b);
                    let mut labels = labels.split(|b| *b == b'.');
                    labels.all(|label| !label.is_empty() && label.iter().all(fine))
                }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_net::Buf;

    fn cors(origins: &[&str], credentials: bool) -> Cors {
        Cors::compile(&resource::Cors {
            allow_origins: origins.iter().map(|o| (*o).to_owned()).collect(),
            allow_methods: vec!["*".into()],
            allow_headers: vec!["x-a".into(), "x-b".into()],
            expose_headers: vec!["*".into()],
            allow_credentials: credentials,
            max_age_s: 0,
        })
        .unwrap()
    }

    fn ask(cors: &Cors, head: &str) -> Result<Lines, Failure> {
        let mut message = Buf::new();
        message.extend_from_slice(head.as_bytes());
        let len = message.len();
        cors.look_at(&Draft::new(&mut message, len))
    }

    fn actual(cors: &Cors, origin: &str) -> Vec<String> {
        let head = format!("GET / HTTP/1.1\r\nhost: h\r\norigin: {origin}\r\n\r\n");
        let lines = ask(cors, &head).unwrap();
        let show = |(n, v): &(&str, Vec<u8>)| format!("{n}: {}", String::from_utf8_lossy(v));
        lines.iter().map(show).collect()
    }

    #[test]
    fn origins() {
        let cors = cors(&["https://a.example", "https://*.b.example:8443"], false);
        let allowed = |origin: &str| actual(&cors, origin).len() > 1;
        assert!(allowed("https://a.example"));
        assert!(allowed("https://x.b.example:8443"));
        assert!(allowed("https://x.y.b.example:8443"));
        for origin in [
            "http://a.example",
            "https://a.example.evil",
            "https://b.example:8443",
            "https://x..b.example:8443",
            "https://evil/.b.example:8443",
            "https://.b.example:8443",
            "null",
            "",
        ] {
            assert!(!allowed(origin), "{origin}");
        }
        for bad in [
            "a.example",
            "https://a*.example",
            "https://*.*.example",
            "https://a/b",
            "*.",
        ] {
            assert!(Origin::compile(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn credentials_and_the_star() {
        assert_eq!(
            actual(&cors(&["*"], false), "https://a"),
            [
                "access-control-allow-origin: *",
                "access-control-expose-headers: *"
            ]
        );
        assert_eq!(
            actual(&cors(&["*"], true), "https://a"),
            [
                "vary: origin",
                "access-control-allow-origin: https://a",
                "access-control-allow-credentials: true"
            ],
            "a star says nothing beside credentials"
        );
    }

    #[test]
    fn a_preflight_is_answered() {
        let head = "OPTIONS / HTTP/1.1\r\nhost: h\r\norigin: https://a\r\n\
                    access-control-request-method: PUT\r\n\r\n";
        let failure = ask(&cors(&["*"], true), head).unwrap_err();
        let headers = failure.answer.unwrap().headers;
        let value = |name: &str| {
            let found = headers.iter().find(|(n, _)| n == name);
            found.map(|(_, v)| String::from_utf8_lossy(v).into_owned())
        };
        assert_eq!(
            value("access-control-allow-methods").as_deref(),
            Some("PUT")
        );
        assert_eq!(
            value("access-control-allow-headers").as_deref(),
            Some("x-a, x-b")
        );
        assert_eq!(value("access-control-max-age").as_deref(), Some("5"));
        let named = Cors {
            exposed: List::These("x-c".into()),
            ..cors(&["*"], true)
        };
        let headers = ask(&named, head).unwrap_err().answer.unwrap().headers;
        assert!(headers.contains(&("access-control-expose-headers".into(), b"x-c".to_vec())));
        let plain = "OPTIONS / HTTP/1.1\r\nhost: h\r\norigin: https://a\r\n\r\n";
        assert!(ask(&cors(&["*"], true), plain).is_ok(), "no preflight");
    }
}
