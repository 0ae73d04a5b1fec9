//! Who may call: the peer's identity and address against the policy, on the bytes that are
//! forwarded.

use crate::conditions::Conditions;
use crate::plain_path;
use regex::bytes::Regex;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use tulle_model::identity::SpiffeId;
use tulle_model::network::Network;
use tulle_model::resource::{self, Action};

pub use crate::conditions::Request;

/// A compiled policy.
pub struct Policy {
    permissive: bool,
    denies: Vec<Rule>,
    allows: Vec<Rule>,
    audits: Vec<Rule>,
}

struct Rule {
    name: Arc<str>,
    denies: bool,
    any_identity: bool,
    sources: Vec<SpiffeId>,
    networks: Vec<Network>,
    ports: Vec<u16>,
    conditions: Conditions,
}

/// Who asks, and for which port.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// Verified; `None`: a client without a certificate.
    pub identity: Option<&'a SpiffeId>,
    /// Where its connection comes from.
    pub address: Option<IpAddr>,
    /// The service port it asks for.
    pub port: u16,
    /// Mutual TLS is required of everybody whose address is not let in.
    pub strict: bool,
}

/// Why somebody may not.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal<'a> {
    /// This rule refuses it.
    Rule(&'a str),
    /// None of the rules that could allow it does.
    NoRule(Vec<&'a str>),
    /// This rule looks at paths, and the path can be read in more ways than one.
    Path(&'a str),
    /// This rule looks at requests, which a tunnel would hide.
    Tunnel(&'a str),
    /// A certificate is required.
    Plaintext,
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(name) => write!(f, "{name} denies it"),
            Self::NoRule(names) if names.is_empty() => {
                f.write_str("no TrafficTarget or AuthorizationPolicy allows anyone")
            }
            Self::NoRule(names) => write!(f, "none of {} allows it", names.join(", ")),
            Self::Path(name) => write!(
                f,
                "{name} looks at paths, and servers read this one in different ways: \
                 send it without empty or dot segments, `;`, `\\` and needless percent-encoding"
            ),
            Self::Tunnel(name) => write!(
                f,
                "{name} looks at requests, which a tunnel hides: CONNECT has to be allowed by a \
                 rule without conditions or with the method CONNECT"
            ),
            Self::Plaintext => f.write_str("mutual TLS is required"),
        }
    }
}

impl Policy {
    /// Compiles a policy.
    ///
    /// # Errors
    /// A regular expression is not valid.
    pub fn compile(policy: &resource::Policy) -> Result<Self, String> {
        let mut compiled = Self {
            permissive: policy.permissive,
            denies: Vec::new(),
            allows: Vec::new(),
            audits: Vec::new(),
        };
        let names = names(&policy.rules);
        for (rule, name) in policy.rules.iter().zip(names) {
            let list = match rule.action {
                Action::Allow => &mut compiled.allows,
                Action::Deny => &mut compiled.denies,
                Action::AuditAllow | Action::AuditDeny => &mut compiled.audits,
            };
            list.push(Rule::compile(rule, name)?);
        }
        Ok(compiled)
    }

    /// Whether `caller` may; `request` is `None` for opaque TCP.
    ///
    /// # Errors
    /// Why not.
    pub fn judge(
        &self,
        caller: &Caller<'_>,
        request: Option<&Request<'_>>,
    ) -> Result<(), Refusal<'_>> {
        if let Some(request) = request {
            self.check_path(caller.port, request.path)?;
        }
        if let Some(rule) = self.denies.iter().find(|r| r.matches(caller, request)) {
            return Err(Refusal::Rule(&rule.name));
        }
        let plaintext = caller.strict && caller.identity.is_none();
        if self.permissive && !plaintext {
            return Ok(());
        }
        if self.allows.iter().any(|r| r.matches(caller, request)) {
            return Ok(());
        }
        if plaintext && !self.admits_plaintext(caller.port, caller.address) {
            return Err(Refusal::Plaintext);
        }
        Err(Refusal::NoRule(
            self.allows.iter().map(|r| &*r.name).collect(),
        ))
    }

    /// Whether a CONNECT that [`Self::judge`] allows may open a tunnel to the application. What is
    /// said there nobody judges, and an application that is no proxy may take it for requests.
    ///
    /// # Errors
    /// Why not.
    pub fn judge_tunnel(
        &self,
        caller: &Caller<'_>,
        request: &Request<'_>,
    ) -> Result<(), Refusal<'_>> {
        let holds = |rule: &&Rule| rule.covers(caller.port) && rule.means(caller);
        let mut denies = self.denies.iter().filter(holds);
        if let Some(rule) = denies.find(|r| r.conditions.forbid_tunnel(request)) {
            return Err(Refusal::Tunnel(&rule.name));
        }
        if self.permissive && !(caller.strict && caller.identity.is_none()) {
            return Ok(());
        }
        let mut allows = self.allows.iter().filter(holds).peekable();
        let first = allows.peek().map_or("", |r| &*r.name);
        match allows.any(|r| r.conditions.allow_tunnel(request)) {
            true => Ok(()),
            false => Err(Refusal::Tunnel(first)),
        }
    }

    /// Whether a client without a certificate can be let in by its address.
    pub fn admits_plaintext(&self, port: u16, address: Option<IpAddr>) -> bool {
        let mut rules = self.allows.iter();
        rules.any(|r| r.covers(port) && r.has_address(address))
    }

    /// There are rules that only watch.
    pub fn audits(&self) -> bool {
        !self.audits.is_empty()
    }

    /// Names of the rules that only watch and match.
    pub fn audited<'a>(
        &'a self,
        caller: &'a Caller<'_>,
        request: Option<&'a Request<'_>>,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        let rules = self.audits.iter();
        rules
            .filter(move |r| r.matches(caller, request))
            .map(|r| &r.name)
    }

    /// What the policy holds, for an operator.
    pub fn summary(&self) -> String {
        let list = |title: &str, rules: &[Rule]| {
            let names: Vec<_> = rules.iter().map(|r| &*r.name).collect();
            (!names.is_empty()).then(|| format!("{title} {}", names.join(", ")))
        };
        let parts = [
            list("denied by", &self.denies),
            self.permissive
                .then(|| "allowed to anyone in the mesh".to_owned()),
            list("allowed by", &self.allows),
            list("watched by", &self.audits),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => "nothing allows anyone".to_owned(),
            false => parts.join("; "),
        }
    }

    /// A path that can be read in several ways would be judged in one and obeyed in another.
    fn check_path(&self, port: u16, path: &[u8]) -> Result<(), Refusal<'_>> {
        let allows: &[Rule] = if self.permissive { &[] } else { &self.allows };
        let mut rules = self.denies.iter().chain(allows);
        match rules.find(|r| r.conditions.look_at_paths() && r.covers(port)) {
            Some(rule) if !plain_path::is_plain(path) => Err(Refusal::Path(&rule.name)),
            _ => Ok(()),
        }
    }
}

/// Rules of the same object are told apart by their number, from 1.
fn names(rules: &[resource::PolicyRule]) -> Vec<Arc<str>> {
    let mut total: HashMap<&str, usize> = HashMap::new();
    for rule in rules {
        *total.entry(&rule.name).or_default() += 1;
    }
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let mut names = Vec::with_capacity(rules.len());
    for rule in rules {
        let number = seen.entry(&rule.name).or_default();
        *number += 1;
        names.push(match total.get(rule.name.as_str()) {
            Some(2..) => format!("{} rule {number}", rule.name).into(),
            _ => rule.name.as_str().into(),
        });
    }
    names
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

impl Rule {
    fn compile(rule: &resource::PolicyRule, name: Arc<str>) -> Result<Self, String> {
        let conditions =
            Conditions::compile(&rule.matches).map_err(|e| format!("{}: {e}", rule.name))?;
        Ok(Self {
            name,
            denies: matches!(rule.action, Action::Deny | Action::AuditDeny),
            any_identity: rule.any_identity,
            sources: rule.sources.clone(),
            networks: rule.networks.clone(),
            ports: rule.ports.clone(),
            conditions,
        })
    }

    /// What is not certain allows nothing and does not escape a denial.
    fn matches(&self, caller: &Caller<'_>, request: Option<&Request<'_>>) -> bool {
        self.covers(caller.port)
            && self.means(caller)
            && match request {
                Some(request) if self.denies => self.conditions.may_match(request),
                Some(request) => self.conditions.surely_match(request),
                None => self.denies || self.conditions.is_empty(),
            }
    }

    fn covers(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.contains(&port)
    }

    fn means(&self, caller: &Caller<'_>) -> bool {
        let nobody = !self.any_identity && self.sources.is_empty() && self.networks.is_empty();
        if nobody {
            // Allows nobody, denies everybody.
            return self.denies;
        }
        let identity = |id| self.any_identity || self.sources.contains(id);
        caller.identity.is_some_and(identity) || self.has_address(caller.address)
    }

    fn has_address(&self, address: Option<IpAddr>) -> bool {
        let inside = |address| self.networks.iter().any(|n| n.contains(address));
        !self.networks.is_empty() && address.is_some_and(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resource::{PolicyMatch, PolicyRule};

    fn id(name: &str) -> SpiffeId {
        SpiffeId::parse(&format!("spiffe://tulle.local/svc/{name}")).unwrap()
    }

    fn policy(permissive: bool, rules: Vec<PolicyRule>) -> Policy {
        Policy::compile(&resource::Policy { permissive, rules }).unwrap()
    }

    fn allow(source: &str) -> PolicyRule {
        PolicyRule {
            name: "TrafficTarget/t".into(),
            sources: vec![id(source)],
            ports: vec![8101],
            ..Default::default()
        }
    }

    fn caller(identity: &SpiffeId, port: u16) -> Caller<'_> {
        Caller {
            identity: Some(identity),
            address: Some([10, 0, 0, 1].into()),
            port,
            strict: true,
        }
    }

    fn outside(address: [u8; 4], strict: bool) -> Caller<'static> {
        Caller {
            identity: None,
            address: Some(address.into()),
            port: 8101,
            strict,
        }
    }

    fn get(path: &str) -> Request<'_> {
        Request {
            method: b"GET",
            path: path.as_bytes(),
            authority: b"ratings",
            head: b"GET / HTTP/1.1\r\n\r\n",
        }
    }

    #[test]
    fn a_tunnel_is_allowed_by_what_could_not_look_into_it_anyway() {
        let connect = Request {
            method: b"CONNECT",
            path: b"",
            authority: b"db.example.com:5432",
            head: b"CONNECT db.example.com:5432 HTTP/1.1\r\n\r\n",
        };
        let by = |methods: &[&str], hosts: &[&str]| {
            let strings = |list: &[&str]| list.iter().map(|&s| s.to_owned()).collect();
            vec![PolicyMatch {
                methods: strings(methods),
                hosts: strings(hosts),
                ..Default::default()
            }]
        };
        let opens = |permissive, action, matches| {
            let conditioned = PolicyRule {
                action,
                matches,
                ..allow("gateway")
            };
            let mut rules = vec![conditioned];
            if action == Action::Deny {
                rules.push(allow("gateway"));
            }
            let policy = policy(permissive, rules);
            let id = id("gateway");
            let caller = caller(&id, 8101);
            policy.judge(&caller, Some(&connect)).is_ok()
                && policy.judge_tunnel(&caller, &connect).is_ok()
        };
        let host = &["db.example.com"][..];
        for (action, methods, hosts, expected) in [
            (Action::Allow, &[][..], &[][..], false),
            (Action::Allow, &[], host, false),
            (Action::Allow, &["*"], host, false),
            (Action::Allow, &["GET"], &[], false),
            (Action::Allow, &["GET", "CONNECT"], host, true),
            (Action::Allow, &["CONNECT"], &["other.example.com"], false),
            (Action::Deny, &["GET"], &[], false),
            (Action::Deny, &[], &["other.example.com"], false),
            (
                Action::Deny,
                &["CONNECT", "GET"],
                &["other.example.com"],
                false,
            ),
            (Action::Deny, &["CONNECT"], &["other.example.com"], true),
            (Action::Deny, &["CONNECT"], host, false),
        ] {
            let opened = opens(false, action, by(methods, hosts));
            assert_eq!(opened, expected, "{action:?} {methods:?} {hosts:?}");
        }
        for action in [Action::Allow, Action::Deny] {
            let expected = action == Action::Allow;
            assert_eq!(opens(false, action, Vec::new()), expected);
            assert_eq!(opens(true, action, exact("/admin")), expected);
        }
    }

    fn exact(path: &str) -> Vec<PolicyMatch> {
        vec![PolicyMatch {
            path_regex: path.into(),
            ..Default::default()
        }]
    }

    #[test]
    fn identity_is_compared_exactly() {
        let policy = policy(false, vec![allow("gateway")]);
        assert_eq!(policy.judge(&caller(&id("gateway"), 8101), None), Ok(()));
        for name in ["gateway2", "gatewa", "Gateway", "gateway.x"] {
            let id = id(name);
            let refusal = policy.judge(&caller(&id, 8101), None).unwrap_err();
            assert_eq!(refusal, Refusal::NoRule(vec!["TrafficTarget/t"]), "{name}");
        }
        assert!(policy.judge(&outside([10, 0, 0, 1], false), None).is_err());
        assert_eq!(
            policy.judge(&outside([10, 0, 0, 1], true), None),
            Err(Refusal::Plaintext)
        );
        assert!(policy.judge(&caller(&id("gateway"), 8102), None).is_err());
    }

    #[test]
    fn a_rule_with_matches_allows_no_raw_tcp_and_one_that_denies_refuses_it() {
        let matches = exact("/a");
        let allows = policy(
            false,
            vec![PolicyRule {
                matches: matches.clone(),
                ..allow("gateway")
            }],
        );
        let gateway = id("gateway");
        let ask = caller(&gateway, 8101);
        assert_eq!(allows.judge(&ask, Some(&get("/a"))), Ok(()));
        assert!(allows.judge(&ask, None).is_err());
        let denies = policy(
            true,
            vec![PolicyRule {
                name: "AuthorizationPolicy/d".into(),
                action: Action::Deny,
                matches,
                ..Default::default()
            }],
        );
        assert_eq!(
            denies.judge(&ask, None),
            Err(Refusal::Rule("AuthorizationPolicy/d"))
        );
        assert!(denies.judge(&ask, Some(&get("/a"))).is_err());
        assert_eq!(denies.judge(&ask, Some(&get("/b"))), Ok(()));
    }

    #[test]
    fn denials_come_first_also_where_anyone_may_call() {
        let deny = PolicyRule {
            name: "AuthorizationPolicy/d".into(),
            action: Action::Deny,
            ..allow("evil")
        };
        for permissive in [false, true] {
            let any = PolicyRule {
                name: "AuthorizationPolicy/a".into(),
                any_identity: true,
                ..Default::default()
            };
            let policy = policy(permissive, vec![any, deny.clone()]);
            assert_eq!(policy.judge(&caller(&id("good"), 8101), None), Ok(()));
            assert_eq!(
                policy.judge(&caller(&id("evil"), 8101), None),
                Err(Refusal::Rule("AuthorizationPolicy/d"))
            );
            assert_eq!(policy.judge(&caller(&id("evil"), 8102), None), Ok(()));
        }
    }

    #[test]
    fn an_address_lets_in_without_a_certificate_and_nothing_else_does() {
        let rule = PolicyRule {
            name: "AccessControl/scraper".into(),
            networks: vec!["10.0.0.0/8".parse().unwrap()],
            ports: vec![8101],
            ..Default::default()
        };
        let any = PolicyRule {
            any_identity: true,
            ..Default::default()
        };
        for permissive in [false, true] {
            let policy = policy(permissive, vec![rule.clone(), any.clone()]);
            assert_eq!(policy.judge(&outside([10, 1, 1, 1], true), None), Ok(()));
            assert_eq!(
                policy.judge(&outside([11, 1, 1, 1], true), None),
                Err(Refusal::Plaintext)
            );
            let unknown = Caller {
                address: None,
                ..outside([0; 4], true)
            };
            assert_eq!(policy.judge(&unknown, None), Err(Refusal::Plaintext));
            let other_port = Caller {
                port: 8102,
                ..outside([10, 1, 1, 1], true)
            };
            assert_eq!(policy.judge(&other_port, None), Err(Refusal::Plaintext));
        }
    }

    #[test]
    fn rules_that_only_watch_change_nothing() {
        let gateway = id("gateway");
        let audits = |action| {
            let rule = PolicyRule {
                name: "AuthorizationPolicy/w".into(),
                action,
                ..allow("gateway")
            };
            policy(false, vec![rule])
        };
        for action in [Action::AuditAllow, Action::AuditDeny] {
            let policy = audits(action);
            let ask = caller(&gateway, 8101);
            assert_eq!(policy.judge(&ask, None), Err(Refusal::NoRule(vec![])));
            let names: Vec<_> = policy.audited(&ask, None).map(|n| &**n).collect();
            assert_eq!(names, ["AuthorizationPolicy/w"]);
        }
    }

    #[test]
    fn a_path_of_two_meanings_is_refused_only_where_paths_matter() {
        let deny = PolicyRule {
            name: "AuthorizationPolicy/d".into(),
            action: Action::Deny,
            matches: exact("/admin"),
            ports: vec![8101],
            ..Default::default()
        };
        let policy = policy(true, vec![deny]);
        let gateway = id("gateway");
        for path in ["/x/../admin", "//admin", "/%61dmin", "/admin;x", "/a%2fb"] {
            assert_eq!(
                policy.judge(&caller(&gateway, 8101), Some(&get(path))),
                Err(Refusal::Path("AuthorizationPolicy/d")),
                "{path}"
            );
            let elsewhere = policy.judge(&caller(&gateway, 8102), Some(&get(path)));
            assert_eq!(elsewhere, Ok(()), "{path}");
        }
    }

    #[test]
    fn rules_of_one_object_are_told_apart() {
        let rule = |name: &str| PolicyRule {
            name: name.into(),
            action: Action::Deny,
            ..allow("a")
        };
        let names = names(&[rule("A/x"), rule("A/y"), rule("A/x")]);
        let names: Vec<_> = names.iter().map(|n| &**n).collect();
        assert_eq!(names, ["A/x rule 1", "A/y", "A/x rule 2"]);
    }
}
