//! Matches of a VirtualService: what Gateway API can say, and conditions in CEL for the rest.

use super::hosts::is_compared;
use crate::import::cel::{negated, quoted};
use crate::import::fields::{METHODS, lose_rest, take, text};
use crate::import::imported::Imported;
use serde_json::{Map, Value, json};

pub(super) const SEE: &str = "see docs/features/routing.md";

/// A match.
#[derive(Debug, Default)]
pub(super) struct Match {
    path: Option<Text>,
    method: Option<String>,
    headers: Vec<(String, Text)>,
    query: Vec<(String, Text)>,
    conditions: Vec<String>,
}

/// How a text must be.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Text {
    Exact(String),
    Prefix(String),
    Regex(String),
}

impl Text {
    /// None: it says nothing, so anything will do.
    fn read(value: &Value) -> Option<Self> {
        let of = |name: &str| value[name].as_str().map(str::to_owned);
        let exact = of("exact").map(Self::Exact);
        exact
            .or_else(|| of("prefix").map(Self::Prefix))
            .or_else(|| of("regex").map(Self::Regex))
    }

    /// As a regular expression for the whole text.
    fn regex(&self) -> String {
        match self {
            Self::Exact(text) => regex_syntax::escape(text),
            Self::Prefix(text) => format!("{}.*", regex_syntax::escape(text)),
            Self::Regex(text) => text.clone(),
        }
    }

    /// As a condition about a value.
    fn condition(&self, value: &str) -> String {
        match self {
            Self::Exact(text) => format!("{value} == {}", quoted(text)),
            Self::Prefix(text) => format!("{value}.startsWith({})", quoted(text)),
            Self::Regex(text) => format!("{value}.matches({})", quoted(&format!("^(?:{text})$"))),
        }
    }

    /// As a text for `request.host`. None: it has what no host here has.
    fn for_host(&self) -> Option<Self> {
        match self {
            Self::Exact(text) => is_compared(text).then(|| Self::Exact(text.to_ascii_lowercase())),
            Self::Prefix(text) => {
                (!text.contains(':')).then(|| Self::Prefix(text.to_ascii_lowercase()))
            }
            // A colon of a group is none of a port.
            Self::Regex(text) => {
                let has_port = text.replace("(?:", "").contains(':');
                (!has_port).then(|| Self::Regex(format!("(?i){text}")))
            }
        }
    }

    /// `type` and `value` of Gateway API, which knows prefixes of paths alone.
    fn written(&self) -> Map<String, Value> {
        let (kind, value) = match self {
            Self::Exact(text) => ("Exact", text.clone()),
            _ => ("RegularExpression", self.regex()),
        };
        let mut written = Map::new();
        written.insert("type".into(), kind.into());
        written.insert("value".into(), value.into());
        written
    }
}

impl Match {
    /// None: a part has no counterpart, and without it more would match.
    pub(super) fn read(
        id: &str,
        at: &str,
        mut one: Value,
        imported: &mut Imported,
    ) -> Option<Self> {
        let before = imported.lost.len();
        let mut read = Self::default();
        // A name for metrics.
        for name in ["name", "statPrefix"] {
            take(&mut one, name);
        }
        let any_case = take(&mut one, "ignoreUriCase") == Some(Value::Bool(true));
        read.path = take(&mut one, "uri").and_then(|uri| Text::read(&uri));
        if let (Some(path), true) = (&read.path, any_case) {
            read.path = Some(Text::Regex(format!("(?i){}", path.regex())));
        }
        match take(&mut one, "method").and_then(|method| Text::read(&method)) {
            Some(Text::Exact(method)) if METHODS.contains(&method.as_str()) => {
                read.method = Some(method)
            }
            Some(other) => read.conditions.push(other.condition("request.method")),
            None => {}
        }
        if let Some(host) = take(&mut one, "authority").and_then(|host| Text::read(&host)) {
            match host.for_host() {
                Some(host) => read.conditions.push(host.condition("request.host")),
                None => {
                    let why = "the port of a Host is not compared";
                    let instead = "leave the port out, and translate it again";
                    imported.lose(id, &format!("{at}.authority"), why, instead);
                }
            }
        }
        if let Some(namespace) = text(&mut one, "sourceNamespace") {
            read.conditions
                .push(format!("source.namespace == {}", quoted(&namespace)));
        }
        let no_header = |name: &str, field: &str, imported: &mut Imported| {
            // Istio writes claims of tokens, and what HTTP/2 says before the headers, among them.
            let is_none = name.starts_with(['@', ':']);
            if is_none {
                let why = "it is no header, and a route here compares no claims of tokens";
                let instead = "compare a header that an Authentication makes of the claim: docs/features/jwt.md";
                imported.lose(id, &format!("{at}.{field}.{name}"), why, instead);
            }
            is_none
        };
        for (name, how) in fields(take(&mut one, "headers")) {
            if no_header(&name, "headers", imported) {
                continue;
            }
            // Without a word it has to be there.
            let how = Text::read(&how).unwrap_or_else(|| Text::Regex(".*".into()));
            read.headers.push((name, how));
        }
        for (name, how) in fields(take(&mut one, "withoutHeaders")) {
            if no_header(&name, "withoutHeaders", imported) {
                continue;
            }
            let name = quoted(&name);
            let there = format!("{name} in request.headers");
            let condition = match Text::read(&how) {
                Some(how) => format!(
                    "{there} && {}",
                    how.condition(&format!("request.headers[{name}]"))
                ),
                None => there,
            };
            read.conditions.extend(negated(Some(condition)));
        }
        for (name, how) in fields(take(&mut one, "queryParams")) {
            let how = Text::read(&how).unwrap_or_else(|| Text::Regex(".*".into()));
            read.query.push((name, how));
        }
        lose_rest(imported, id, at, &one, SEE);
        (imported.lost.len() == before).then_some(read)
    }

    pub(super) fn is_prefix(&self) -> bool {
        matches!(&self.path, Some(Text::Prefix(path)) if path != "/")
    }

    pub(super) fn is_exact(&self) -> bool {
        matches!(self.path, Some(Text::Exact(_)))
    }

    /// The condition that lists cannot express.
    pub(super) fn condition(&self) -> Option<String> {
        (!self.conditions.is_empty()).then(|| self.conditions.join(" && "))
    }

    /// As Gateway API says it.
    pub(super) fn written(&self) -> Value {
        let mut written = Map::new();
        match &self.path {
            Some(Text::Prefix(path)) => {
                let path = match path.trim_end_matches('/') {
                    "" => "/",
                    path => path,
                };
                written.insert(
                    "path".into(),
                    json!({ "type": "PathPrefix", "value": path }),
                );
            }
            Some(path) => drop(written.insert("path".into(), path.written().into())),
            None => {}
        }
        if let Some(method) = &self.method {
            written.insert("method".into(), method.clone().into());
        }
        for (field, all) in [("headers", &self.headers), ("queryParams", &self.query)] {
            let named = |(name, how): &(String, Text)| {
                let mut one = how.written();
                one.insert("name".into(), name.clone().into());
                Value::from(one)
            };
            let all: Vec<Value> = all.iter().map(named).collect();
            if !all.is_empty() {
                written.insert(field.into(), all.into());
            }
        }
        written.into()
    }

    /// Whether proxies try it before the other: an exact path, a regular expression, a longer prefix, a method, more headers,
    /// more parameters, a condition.
    pub(super) fn outranks(&self, other: &Self) -> bool {
        self.rank() > other.rank()
    }

    /// As proxies rank it. All regular expressions are equal.
    fn rank(&self) -> (u8, usize, bool, usize, usize, usize) {
        let (kind, length) = match &self.path {
            Some(Text::Exact(path)) => (2, path.len()),
            Some(Text::Regex(_)) => (1, usize::MAX),
            Some(Text::Prefix(path)) => (1, path.trim_end_matches('/').len()),
            None => (1, 0),
        };
        (
            kind,
            length,
            self.method.is_some(),
            self.headers.len(),
            self.query.len(),
            // A rule has all of them as one.
            usize::from(!self.conditions.is_empty()),
        )
    }

    /// Whether some request could match both, as far as paths and methods say.
    pub(super) fn may_meet(&self, other: &Self) -> bool {
        let methods = match (&self.method, &other.method) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        let paths = match (&self.path, &other.path) {
            (Some(Text::Exact(one)), Some(Text::Exact(other))) => one == other,
            (Some(Text::Exact(exact)), Some(Text::Prefix(prefix)))
            | (Some(Text::Prefix(prefix)), Some(Text::Exact(exact))) => {
                exact.starts_with(prefix.as_str())
            }
            (Some(Text::Prefix(one)), Some(Text::Prefix(other))) => {
                one.starts_with(other.as_str()) || other.starts_with(one.as_str())
            }
            _ => true,
        };
        methods && paths
    }
}

fn fields(map: Option<Value>) -> Vec<(String, Value)> {
    match map {
        Some(Value::Object(fields)) => fields.into_iter().collect(),
        _ => Vec::new(),
    }
}
