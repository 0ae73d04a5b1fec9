//! Who may call: the peer's SPIFFE id against the policy, on the bytes that are forwarded.

use regex::bytes::Regex;
use tulle_model::identity::SpiffeId;
use tulle_model::pattern;
use tulle_model::resource;

/// A compiled policy.
pub struct Policy {
    permissive: bool,
    rules: Vec<Rule>,
}

struct Rule {
    name: String,
    sources: Vec<SpiffeId>,
    ports: Vec<u16>,
    matches: Vec<Match>,
}

struct Match {
    methods: Vec<String>,
    path: Option<Regex>,
    headers: Vec<(String, Regex)>,
}

/// What is asked for.
pub struct Request<'a> {
    /// Method, as sent.
    pub method: &'a [u8],
    /// Path without query, exactly as it will be forwarded.
    pub path: &'a [u8],
    /// The whole head.
    pub head: &'a [u8],
}

impl Policy {
    /// Compiles a policy.
    ///
    /// # Errors
    /// A regular expression is not valid.
    pub fn compile(policy: &resource::Policy) -> Result<Self, String> {
        let rules = policy
            .rules
            .iter()
            .map(Rule::compile)
            .collect::<Result<_, _>>()?;
        Ok(Self {
            permissive: policy.permissive,
            rules,
        })
    }

    /// Whether `peer` (`None`: plaintext from outside the mesh) may call `port`; `request` is
    /// `None` for opaque TCP.
    pub fn allows(
        &self,
        peer: Option<&SpiffeId>,
        port: u16,
        request: Option<&Request<'_>>,
    ) -> bool {
        if self.permissive {
            return true;
        }
        // Without an identity there is nothing to compare: fail closed.
        let Some(peer) = peer else { return false };
        self.rules
            .iter()
            .any(|rule| rule.allows(peer, port, request))
    }

    /// Names of the rules, for an operator who asks why.
    pub fn rule_names(&self) -> String {
        if self.rules.is_empty() {
            return "no TrafficTarget allows anyone".to_owned();
        }
        let names: Vec<_> = self.rules.iter().map(|r| r.name.as_str()).collect();
        format!("none of {} allows it", names.join(", "))
    }
}

impl Rule {
    fn compile(rule: &resource::PolicyRule) -> Result<Self, String> {
        let plain = rule.action == resource::Action::Allow
            && !rule.any_identity
            && rule.networks.is_empty()
            && rule
                .matches
                .iter()
                .all(|m| m.path.is_none() && m.header_matches.is_empty() && m.hosts.is_empty());
        if !plain {
            return Err(format!(
                "{}: this proxy does not carry out this kind of rule",
                rule.name
            ));
        }
        let matches = rule.matches.iter().map(|m| {
            let path = match m.path_regex.as_str() {
                "" => None,
                pattern => Some(pattern::compile(pattern)?),
            };
            let headers = m
                .headers
                .iter()
                .map(|(name, value)| Ok((name.to_ascii_lowercase(), pattern::compile(value)?)))
                .collect::<Result<_, String>>()?;
            let any = m.methods.iter().any(|m| m == "*");
            let methods = if any { Vec::new() } else { m.methods.clone() };
            Ok(Match {
                methods,
                path,
                headers,
            })
        });
        Ok(Self {
            name: rule.name.clone(),
            sources: rule.sources.clone(),
            ports: rule.ports.clone(),
            matches: matches.collect::<Result<_, String>>()?,
        })
    }

    fn allows(&self, peer: &SpiffeId, port: u16, request: Option<&Request<'_>>) -> bool {
        self.sources.contains(peer)
            && (self.ports.is_empty() || self.ports.contains(&port))
            && (self.matches.is_empty()
                || request.is_some_and(|r| self.matches.iter().any(|m| m.allows(r))))
    }
}

impl Match {
    fn allows(&self, request: &Request<'_>) -> bool {
        let method =
            self.methods.is_empty() || self.methods.iter().any(|m| m.as_bytes() == request.method);
        method
            && self
                .path
                .as_ref()
                .is_none_or(|path| path.is_match(request.path))
            && self
                .headers
                .iter()
                .all(|(name, value)| has_header(request.head, name, value))
    }
}

/// Every field of that name must match and there must be one: a second, different field must not
/// let a request through that the application reads otherwise.
pub fn has_header(head: &[u8], name: &str, value: &Regex) -> bool {
    let mut found = false;
    for (field, text) in tulle_http1::headers(head) {
        if field.eq_ignore_ascii_case(name.as_bytes()) {
            if !value.is_match(text) {
                return false;
            }
            found = true;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn id(name: &str) -> SpiffeId {
        SpiffeId::parse(&format!("spiffe://tulle.local/svc/{name}")).unwrap()
    }

    fn policy(matches: Vec<resource::PolicyMatch>) -> Policy {
        Policy::compile(&resource::Policy {
            permissive: false,
            rules: vec![resource::PolicyRule {
                name: "TrafficTarget/t".into(),
                sources: vec![id("gateway")],
                ports: vec![8101],
                matches,
                ..Default::default()
            }],
        })
        .unwrap()
    }

    fn get<'a>(path: &'a str, head: &'a [u8]) -> Request<'a> {
        Request {
            method: b"GET",
            path: path.as_bytes(),
            head,
        }
    }

    #[test]
    fn identity_is_compared_exactly() {
        let policy = policy(vec![]);
        assert!(policy.allows(Some(&id("gateway")), 8101, None));
        for name in ["gateway2", "gatewa", "Gateway", "gateway.x"] {
            assert!(!policy.allows(Some(&id(name)), 8101, None), "{name}");
        }
        assert!(!policy.allows(None, 8101, None), "no identity, no access");
        assert!(
            !policy.allows(Some(&id("gateway")), 8102, None),
            "another port"
        );
    }

    #[test]
    fn a_path_pattern_matches_the_whole_path() {
        let policy = policy(vec![resource::PolicyMatch {
            methods: vec!["GET".into()],
            path_regex: "/ratings/[0-9a-f-]+".into(),
            headers: BTreeMap::from([("x-team".into(), "a|b".into())]),
            ..Default::default()
        }]);
        let head = b"GET /ratings/1 HTTP/1.1\r\nHost: r\r\nX-Team: a\r\n\r\n";
        let peer = id("gateway");
        let allows = |request: &Request<'_>| policy.allows(Some(&peer), 8101, Some(request));
        assert!(allows(&get("/ratings/1", head)));
        assert!(!allows(&get("/x/ratings/1", head)));
        assert!(!allows(&get("/ratings/1/../../admin", head)));
        assert!(!allows(&Request {
            method: b"POST",
            ..get("/ratings/1", head)
        }));
        let twice = b"GET /ratings/1 HTTP/1.1\r\nX-Team: a\r\nx-team: evil\r\n\r\n";
        assert!(
            !allows(&get("/ratings/1", twice)),
            "every field of the name has to match"
        );
        let alternation = b"GET /ratings/1 HTTP/1.1\r\nX-Team: bad\r\n\r\n";
        assert!(
            !allows(&get("/ratings/1", alternation)),
            "a|b is anchored as a whole"
        );
        assert!(
            !policy.allows(Some(&peer), 8101, None),
            "a rule with matches allows no raw TCP"
        );
    }
}
