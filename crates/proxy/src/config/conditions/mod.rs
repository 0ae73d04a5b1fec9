//! Conditions of rules on an inbound port: method, host, path and headers, as they are forwarded.
//!
//! An ambiguous request must neither slip past a denial nor into a permission. So there are two
//! questions: does it match in every reading, and does it match in any reading.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::plain_path::{self, Reading};
use crate::codec::request_values::{Claims, Parties, RequestValues};
use crate::config::route::matching::HostMatch;
use regex::bytes::Regex;
use std::borrow::Cow;
use std::cell::OnceCell;
use tulle_expression::{Error, Expression, NoValue, request};
use tulle_model::letter_case::folded;
use tulle_model::pattern;
use tulle_model::resource::{self, PathMatch};

const CONNECT: &str = "CONNECT";

/// The parts of a request that conditions look at.
#[derive(Clone)]
pub struct Request<'a> {
    /// Method, as sent.
    pub method: &'a [u8],
    /// Path without query, exactly as it will be forwarded.
    pub path: &'a [u8],
    /// Host, with or without port.
    pub authority: &'a [u8],
    /// The whole head, as it will be forwarded.
    pub head: &'a [u8],
    /// Caller and destination; `None`: they are not known here.
    pub parties: Option<&'a dyn Parties>,
    /// Claims of its tokens; `None`: nobody reads them, or nothing checks tokens here.
    pub claims: Option<&'a dyn Claims>,
    /// How servers read the path, once a rule has looked at it.
    reading: OnceCell<Reading>,
}

/// Alternatives; empty: every request matches.
pub struct Conditions(Vec<Alternative>);

struct Alternative {
    methods: Vec<String>,
    hosts: Vec<HostMatch>,
    paths: Vec<PathPattern>,
    /// Path patterns with letter case folded; empty: case matters.
    folded: Vec<PathPattern>,
    headers: Vec<(String, ValuePattern)>,
    when: Vec<Expression>,
}

/// How certain a match has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// It matches in every reading.
    Surely,
    /// As `Surely`, but in any letter case where the rule ignores case.
    SurelyInItsCase,
    /// It matches in at least one reading.
    Maybe,
}

enum PathPattern {
    Exact(Vec<u8>),
    Prefix(Vec<u8>),
    Regex(Regex),
}

enum ValuePattern {
    Exact(String),
    Regex(Regex),
}

impl<'a> Request<'a> {
    /// A request.
    pub fn new(method: &'a [u8], path: &'a [u8], authority: &'a [u8], head: &'a [u8]) -> Self {
        Self {
            method,
            path,
            authority,
            head,
            parties: None,
            claims: None,
            reading: OnceCell::new(),
        }
    }

    /// The request between these.
    #[must_use]
    pub fn between(mut self, parties: &'a dyn Parties) -> Self {
        self.parties = Some(parties);
        self
    }

    /// The request with the claims of its tokens.
    #[must_use]
    pub fn with_claims(mut self, claims: &'a dyn Claims) -> Self {
        self.claims = Some(claims);
        self
    }

    /// Whether servers agree on the meaning of the path.
    pub fn is_plain(&self) -> bool {
        self.reading() != Reading::Ambiguous
    }

    /// The request as expressions read it, with this reading of its path.
    fn values<'r>(&'r self, path: &'r [u8]) -> RequestValues<'r> {
        RequestValues {
            method: self.method,
            path,
            authority: self.authority,
            head: self.head,
            parties: self.parties,
            claims: self.claims,
        }
    }

    fn reading(&self) -> Reading {
        *self.reading.get_or_init(|| plain_path::reading(self.path))
    }
}

impl Conditions {
    /// Compiles alternatives; `when` compiles a condition in CEL, with the names that it may use here.
    ///
    /// # Errors
    /// A regular expression or a condition is not valid.
    pub fn compile(
        matches: &[resource::PolicyMatch],
        when: fn(&str) -> Result<Expression, Error>,
    ) -> Result<Self, String> {
        let alternatives = matches.iter().map(|m| Alternative::compile(m, when));
        Ok(Self(alternatives.collect::<Result<_, String>>()?))
    }

    /// Whether there are no conditions, so that every request matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any condition looks at paths.
    pub fn look_at_paths(&self) -> bool {
        let mut all = self.0.iter();
        all.any(|a| !a.paths.is_empty() || a.when.iter().any(|w| w.reads(request::PATH)))
    }

    /// Whether a condition reads the claims of tokens.
    pub fn read_claims(&self) -> bool {
        let mut when = self.0.iter().flat_map(|a| &a.when);
        when.any(|condition| condition.reads(request::CLAIMS))
    }

    /// Why a condition in CEL has no value for a request.
    #[cold]
    pub fn fault(&self, request: &Request<'_>) -> Option<NoValue> {
        let mut when = self.0.iter().flat_map(|a| &a.when);
        when.find_map(|condition| condition.condition(&request.values(request.path)).err())
    }

    /// Whether a request matches in every reading. For rules that allow.
    pub fn surely_match(&self, request: &Request<'_>) -> bool {
        self.matches(request, Reads::Surely)
    }

    /// As [`Self::surely_match`], for rules that demand something: they may ignore the letter case
    /// of paths.
    pub fn surely_demand(&self, request: &Request<'_>) -> bool {
        self.matches(request, Reads::SurelyInItsCase)
    }

    /// Whether a request matches in any reading. For rules that deny or demand.
    pub fn may_match(&self, request: &Request<'_>) -> bool {
        self.matches(request, Reads::Maybe)
    }

    /// Whether an allowing rule lets a tunnel open, through which any request can be sent: it has
    /// no conditions, or names CONNECT.
    pub fn allow_tunnel(&self, request: &Request<'_>) -> bool {
        let named = |a: &&Alternative| a.methods.iter().any(|m| m == CONNECT);
        let mut about = self.0.iter().filter(named);
        self.0.is_empty() || about.any(|a| a.matches(request, Reads::Surely))
    }

    /// Whether a denying or demanding rule applies to a tunnel. Unless the rule is about CONNECT
    /// alone, the tunnel could hide requests that it matches.
    pub fn forbid_tunnel(&self, request: &Request<'_>) -> bool {
        let mut all = self.0.iter();
        self.0.is_empty() || all.any(|a| !a.is_about_connect() || a.matches(request, Reads::Maybe))
    }

    /// Whether all conditions are about CONNECT alone.
    pub fn are_about_connect(&self) -> bool {
        self.0.iter().all(Alternative::is_about_connect)
    }

    fn matches(&self, request: &Request<'_>, reads: Reads) -> bool {
        self.0.is_empty() || self.0.iter().any(|a| a.matches(request, reads))
    }
}

impl Alternative {
    fn compile(
        m: &resource::PolicyMatch,
        when: fn(&str) -> Result<Expression, Error>,
    ) -> Result<Self, String> {
        let paths = patterns(m, <[u8]>::to_vec, pattern::compile)?;
        let folded = match m.ignore_case {
            true => patterns(m, folded, pattern::compile_any_case)?,
            false => Vec::new(),
        };
        let mut headers = Vec::new();
        for (name, value) in &m.headers {
            let value = ValuePattern::Regex(pattern::compile(value)?);
            headers.push((name.to_ascii_lowercase(), value));
        }
        for header in &m.header_matches {
            let value = match header.regex {
                true => ValuePattern::Regex(pattern::compile(&header.value)?),
                false => ValuePattern::Exact(header.value.clone()),
            };
            headers.push((header.name.to_ascii_lowercase(), value));
        }
        let any = m.methods.iter().any(|m| m == "*");
        let conditions = m.when.iter();
        let conditions = conditions.map(|source| when(source).map_err(|e| format!("when: {e}")));
        Ok(Self {
            when: conditions.collect::<Result<_, _>>()?,
            methods: if any { Vec::new() } else { m.methods.clone() },
            hosts: m.hosts.iter().map(|h| HostMatch::new(h)).collect(),
            paths,
            folded,
            headers,
        })
    }

    /// Whether CONNECT is its only method.
    fn is_about_connect(&self) -> bool {
        matches!(self.methods.as_slice(), [only] if only == CONNECT)
    }

    fn matches(&self, request: &Request<'_>, reads: Reads) -> bool {
        let surely = reads != Reads::Maybe;
        // Methods have a case (RFC 9110, section 9.1), which not every server knows.
        let method = |m: &String| match surely {
            true => m.as_bytes() == request.method,
            false => m.as_bytes().eq_ignore_ascii_case(request.method),
        };
        (self.methods.is_empty() || self.methods.iter().any(method))
            && (self.hosts.is_empty() || self.hosts.iter().any(|h| h.covers(request.authority)))
            && (self.paths.is_empty() || self.matches_path(request, reads))
            && self
                .headers
                .iter()
                .all(|(name, value)| matches_header(request.head, name, value, surely))
            && self
                .when
                .iter()
                .all(|condition| holds(condition, request, reads))
    }

    /// Matches the path as it is sent and as the application decodes it. Rules that deny or demand
    /// also match without the slash at its end, which many servers ignore.
    fn matches_path(&self, request: &Request<'_>, reads: Reads) -> bool {
        let matches = |path: &[u8]| {
            let pattern = match reads {
                Reads::Surely | Reads::SurelyInItsCase => PathPattern::matches,
                Reads::Maybe => PathPattern::may_match,
            };
            self.paths.iter().all(|p| pattern(p, path))
                || (reads != Reads::Surely && self.matches_in_any_case(path, pattern))
        };
        match (matches(request.path), reads != Reads::Maybe) {
            (true, false) => true,
            (false, true) => false,
            (sent, _) if request.reading() == Reading::Plain => sent,
            _ => matches(&plain_path::decoded(request.path)),
        }
    }

    fn matches_in_any_case(&self, path: &[u8], matches: fn(&PathPattern, &[u8]) -> bool) -> bool {
        if self.folded.is_empty() {
            return false;
        }
        let path = folded(path);
        self.folded.iter().all(|p| matches(p, &path))
    }
}

/// Builds the path patterns; `read` converts texts and `compile` expressions.
fn patterns(
    m: &resource::PolicyMatch,
    read: fn(&[u8]) -> Vec<u8>,
    compile: fn(&str) -> Result<Regex, String>,
) -> Result<Vec<PathPattern>, String> {
    let mut patterns = Vec::new();
    if !m.path_regex.is_empty() {
        patterns.push(PathPattern::Regex(compile(&m.path_regex)?));
    }
    match &m.path {
        None => {}
        Some(PathMatch::Exact(path)) => patterns.push(PathPattern::Exact(read(path.as_bytes()))),
        Some(PathMatch::Prefix(path)) => {
            let prefix = path.trim_end_matches('/');
            if !prefix.is_empty() {
                patterns.push(PathPattern::Prefix(read(prefix.as_bytes())));
            }
        }
        Some(PathMatch::Regex(path)) => patterns.push(PathPattern::Regex(compile(path)?)),
    }
    Ok(patterns)
}

/// Whether all fields with the name match (`surely`), or any: applications differ in which they
/// read. A name with `_` in place of `-` is the same for applications that map names to variables
/// (CGI, WSGI).
fn matches_header(head: &[u8], name: &str, value: &ValuePattern, surely: bool) -> bool {
    let mut found = false;
    for (field, text) in tulle_http1::headers(head) {
        if !tulle_http1::is_same_name(field, name) {
            continue;
        }
        match (value.matches(text), surely) {
            (true, false) => return true,
            (false, true) => return false,
            (matches, _) => found |= matches,
        }
    }
    found
}

impl PathPattern {
    fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Exact(wanted) => path == wanted.as_slice(),
            Self::Prefix(prefix) => path
                .strip_prefix(prefix.as_slice())
                .is_some_and(|rest| matches!(rest, [] | [b'/', ..])),
            Self::Regex(pattern) => pattern.is_match(path),
        }
    }

    /// Whether some server takes the path for one that matches.
    fn may_match(&self, path: &[u8]) -> bool {
        match self {
            Self::Exact(wanted) => without_slash(path) == without_slash(wanted),
            Self::Prefix(_) => self.matches(path),
            Self::Regex(_) => self.matches(path) || self.matches(without_slash(path)),
        }
    }
}

/// Whether a condition in CEL holds: one that looks at the path, in the readings that are asked for.
fn holds(condition: &Expression, request: &Request<'_>, reads: Reads) -> bool {
    let is_met = |path: &[u8]| match (condition.condition(&request.values(path)), reads) {
        (Ok(met), _) => met,
        (Err(_), Reads::Maybe) => true,
        // Ambiguous: it would be demanded of one reading and not of another.
        (Err(fault), Reads::SurelyInItsCase) => fault != NoValue::Ambiguous,
        (Err(_), Reads::Surely) => false,
    };
    if !condition.reads(request::PATH) {
        return is_met(request.path);
    }
    let decoded = match request.reading() {
        Reading::Plain => Cow::Borrowed(request.path),
        _ => plain_path::decoded(request.path),
    };
    match reads {
        Reads::Maybe => [request.path, &decoded]
            .into_iter()
            .any(|path| is_met(path) || is_met(without_slash(path))),
        Reads::Surely | Reads::SurelyInItsCase => is_met(request.path) && is_met(&decoded),
    }
}

/// Removes one slash at the end, except from the root. A path with several is not plain.
fn without_slash(path: &[u8]) -> &[u8] {
    match path {
        [shorter @ .., b'/'] if !shorter.is_empty() => shorter,
        _ => path,
    }
}

impl ValuePattern {
    fn matches(&self, text: &[u8]) -> bool {
        match self {
            Self::Exact(wanted) => text == wanted.as_bytes(),
            Self::Regex(pattern) => pattern.is_match(text),
        }
    }
}

#[cfg(test)]
mod tests;
