//! Statements about who may call whom, as people write them: `only gateway reaches ratings`.

use std::fmt;

/// The claim of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claim {
    /// None of the callers can send such a request to the destination.
    Refused {
        callers: Callers,
        to: Destination,
        requests: Requests,
    },
    /// Each of the callers can send such a request to the destination.
    Allowed {
        callers: Vec<Party>,
        to: Destination,
        requests: Requests,
    },
    /// None of the callers can leave the mesh.
    Stays { callers: Callers },
    /// Each of the callers can leave the mesh.
    Leaves { callers: Vec<Party> },
}

/// The callers that a statement is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Callers {
    These(Vec<Party>),
    AllBut(Vec<Party>),
}

/// A caller, or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Party {
    /// A service, gateway, service account or SPIFFE id.
    Named(String),
    /// All of a namespace.
    Namespace(String),
    /// Clients without a certificate.
    Plaintext,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Namespace(name) => write!(f, "namespace {name}"),
            Self::Plaintext => f.write_str("plaintext"),
        }
    }
}

/// The called side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A service or workload, and one of its ports.
    Named(String, Option<u16>),
    Namespace(String),
    Anything,
}

/// The requests that a statement is about. Nothing said: all, and opaque bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    pub(crate) methods: Vec<String>,
    /// This path and those below it.
    pub(crate) path: Option<String>,
}

const FORMS: &str = "write `only A, B reach C`, `nobody outside namespace N reaches C:PORT`, `A does not reach C`, \
                     `A reaches C`, `no plaintext to C`, `only A leaves the mesh`; after it `with METHOD` and `at PATH`";

/// Words of a statement, from the first on.
struct Words<'a> {
    all: Vec<&'a str>,
    next: usize,
}

impl<'a> Words<'a> {
    fn peek(&self) -> &'a str {
        self.all.get(self.next).copied().unwrap_or_default()
    }

    fn take(&mut self) -> &'a str {
        let word = self.peek();
        self.next += 1;
        word
    }

    /// Takes the next word if it is one of these.
    fn takes(&mut self, words: &[&str]) -> bool {
        let found = words.iter().any(|w| w.eq_ignore_ascii_case(self.peek()));
        self.next += usize::from(found);
        found
    }

    fn is_at_end(&self) -> bool {
        self.next >= self.all.len()
    }

    /// A name; the next word must be one.
    fn name(&mut self, what: &str) -> Result<String, String> {
        match self.take() {
            "" => Err(format!("the name of {what} is missing; {FORMS}")),
            name => Ok(name.to_owned()),
        }
    }
}

const REACH: [&str; 4] = ["reach", "reaches", "call", "calls"];
const LEAVE: [&str; 2] = ["leave", "leaves"];

/// Reads a statement.
///
/// # Errors
/// Says what is wrong with it, and which forms there are.
pub(crate) fn parse(text: &str) -> Result<Claim, String> {
    // A comma belongs to no name.
    let spaced = text.replace(',', " , ");
    let mut words = Words {
        all: spaced.split_whitespace().collect(),
        next: 0,
    };
    let claim = claim(&mut words)?;
    match words.is_at_end() {
        true => Ok(claim),
        false => Err(format!("{:?} is not understood; {FORMS}", words.peek())),
    }
}

fn claim(words: &mut Words<'_>) -> Result<Claim, String> {
    if words.takes(&["no"]) {
        if !words.takes(&["plaintext"]) || !words.takes(&["to", "reaches"]) {
            return Err(format!("after `no` comes `plaintext to`; {FORMS}"));
        }
        return refused(words, Callers::These(vec![Party::Plaintext]));
    }
    if words.takes(&["nobody"]) {
        let but = match words.takes(&["outside", "but", "except"]) {
            true => parties(words)?,
            false => Vec::new(),
        };
        return verb(words, Callers::AllBut(but));
    }
    if words.takes(&["only"]) {
        let callers = parties(words)?;
        return verb(words, Callers::AllBut(callers));
    }
    let callers = parties(words)?;
    if words.takes(&["cannot", "never"]) {
        return verb(words, Callers::These(callers));
    }
    if words.takes(&["does", "do"]) {
        if !words.takes(&["not"]) {
            return Err(format!("after `does` comes `not`; {FORMS}"));
        }
        return verb(words, Callers::These(callers));
    }
    if words.takes(&LEAVE) {
        the_mesh(words)?;
        return Ok(Claim::Leaves { callers });
    }
    reach(words)?;
    let (to, requests) = object(words)?;
    Ok(Claim::Allowed {
        callers,
        to,
        requests,
    })
}

/// The claim that callers cannot do this.
fn verb(words: &mut Words<'_>, callers: Callers) -> Result<Claim, String> {
    if words.takes(&LEAVE) {
        the_mesh(words)?;
        return Ok(Claim::Stays { callers });
    }
    reach(words)?;
    refused(words, callers)
}

fn refused(words: &mut Words<'_>, callers: Callers) -> Result<Claim, String> {
    let (to, requests) = object(words)?;
    Ok(Claim::Refused {
        callers,
        to,
        requests,
    })
}

fn reach(words: &mut Words<'_>) -> Result<(), String> {
    if words.takes(&REACH) {
        return Ok(());
    }
    Err(match words.peek() {
        "" => format!("`reaches` or `leaves the mesh` is missing; {FORMS}"),
        word => format!("{word:?} is not understood; {FORMS}"),
    })
}

fn the_mesh(words: &mut Words<'_>) -> Result<(), String> {
    let understood = words.takes(&["the"]) && words.takes(&["mesh"]);
    understood
        .then_some(())
        .ok_or_else(|| format!("after `leaves` comes `the mesh`; {FORMS}"))
}

/// Callers up to the verb: `A, B and namespace C`.
fn parties(words: &mut Words<'_>) -> Result<Vec<Party>, String> {
    list(words, party)
}

/// Things with commas, `and` or `or` between them.
fn list<'a, T>(
    words: &mut Words<'a>,
    one: impl Fn(&mut Words<'a>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let mut all = Vec::new();
    loop {
        all.push(one(words)?);
        let mut more = false;
        while words.takes(&[",", "and", "or"]) {
            more = true;
        }
        if !more {
            return Ok(all);
        }
    }
}

fn party(words: &mut Words<'_>) -> Result<Party, String> {
    if words.takes(&["namespace"]) {
        return words.name("the namespace").map(Party::Namespace);
    }
    if words.takes(&["plaintext"]) {
        return Ok(Party::Plaintext);
    }
    let is_verb = |all: &[&str]| all.iter().any(|w| w.eq_ignore_ascii_case(words.peek()));
    if is_verb(&REACH) || is_verb(&LEAVE) {
        return Err(format!("the name of the caller is missing; {FORMS}"));
    }
    words.name("the caller").map(Party::Named)
}

/// The destination and the requests.
fn object(words: &mut Words<'_>) -> Result<(Destination, Requests), String> {
    let to = destination(words)?;
    let mut requests = Requests::default();
    loop {
        if words.takes(&["with"]) {
            requests.methods = list(words, method)?;
        } else if words.takes(&["at"]) {
            let path = words.name("the path")?;
            if !path.starts_with('/') || path.contains(['?', '#', '*']) {
                return Err(format!(
                    "{path:?} is no path: it begins with / and has no pattern; those below it are meant, too"
                ));
            }
            requests.path = Some(path);
        } else {
            return Ok((to, requests));
        }
    }
}

fn method(words: &mut Words<'_>) -> Result<String, String> {
    let method = words.name("the method")?;
    let is_method = |b: u8| b.is_ascii_uppercase() || b == b'-' || b == b'_';
    if method.bytes().all(is_method) {
        return Ok(method);
    }
    Err(format!(
        "{method:?} is no method: they are in capitals, such as GET"
    ))
}

fn destination(words: &mut Words<'_>) -> Result<Destination, String> {
    if words.takes(&["namespace"]) {
        return words.name("the namespace").map(Destination::Namespace);
    }
    if words.takes(&["anything", "everything"]) {
        return Ok(Destination::Anything);
    }
    let name = words.name("the destination")?;
    let Some((service, port)) = name.rsplit_once(':') else {
        return Ok(Destination::Named(name, None));
    };
    match port.parse() {
        Ok(port) if port > 0 => Ok(Destination::Named(service.to_owned(), Some(port))),
        _ => Err(format!("{port:?} of {name:?} is no port")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Party {
        Party::Named(name.into())
    }

    fn to(name: &str, port: Option<u16>) -> Destination {
        Destination::Named(name.into(), port)
    }

    fn refused(callers: Callers, to: Destination) -> Claim {
        Claim::Refused {
            callers,
            to,
            requests: Requests::default(),
        }
    }

    #[test]
    fn reads_the_forms() {
        for (text, claim) in [
            (
                "only gateway reaches ratings",
                refused(Callers::AllBut(vec![named("gateway")]), to("ratings", None)),
            ),
            (
                "Only a, b and namespace shop reach web.shop:80",
                refused(
                    Callers::AllBut(vec![
                        named("a"),
                        named("b"),
                        Party::Namespace("shop".into()),
                    ]),
                    to("web.shop", Some(80)),
                ),
            ),
            (
                "no plaintext to anything",
                refused(
                    Callers::These(vec![Party::Plaintext]),
                    Destination::Anything,
                ),
            ),
            (
                "nobody outside namespace shop reaches namespace shop",
                refused(
                    Callers::AllBut(vec![Party::Namespace("shop".into())]),
                    Destination::Namespace("shop".into()),
                ),
            ),
            (
                "nobody reaches db",
                refused(Callers::AllBut(Vec::new()), to("db", None)),
            ),
            (
                "a does not reach b",
                refused(Callers::These(vec![named("a")]), to("b", None)),
            ),
            (
                "only a leaves the mesh",
                Claim::Stays {
                    callers: Callers::AllBut(vec![named("a")]),
                },
            ),
            (
                "a leaves the mesh",
                Claim::Leaves {
                    callers: vec![named("a")],
                },
            ),
        ] {
            assert_eq!(parse(text).unwrap(), claim, "{text}");
        }
        let Claim::Allowed { requests, .. } =
            parse("a reaches b with GET, HEAD at /health").unwrap()
        else {
            panic!("it says that it is allowed");
        };
        assert_eq!(requests.methods, ["GET", "HEAD"]);
        assert_eq!(requests.path.as_deref(), Some("/health"));
    }

    #[test]
    fn refuses_others_and_says_why() {
        for (text, why) in [
            ("", "missing"),
            ("only reaches ratings", "caller is missing"),
            ("only gateway reaches", "destination is missing"),
            ("only gateway sees ratings", "\"sees\""),
            ("a reaches b:x", "no port"),
            ("a reaches b:0", "no port"),
            ("a reaches b at health", "no path"),
            ("a reaches b at /x/*", "no path"),
            ("a reaches b with get", "capitals"),
            ("a reaches b today", "\"today\""),
            ("a does reach b", "`not`"),
            ("no tls to b", "plaintext"),
            ("a leaves home", "the mesh"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
