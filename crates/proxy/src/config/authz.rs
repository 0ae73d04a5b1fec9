//! Authorization: judges the peer's identity and address by the policy, on the bytes that are
//! forwarded.

use crate::config::conditions::Conditions;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use tulle_expression::NoValue;
use tulle_model::condition;
use tulle_model::identity::SpiffeId;
use tulle_model::network::Network;
use tulle_model::resource::{self, Action};

pub use crate::codec::request_values::Parties;
pub use crate::config::conditions::Request;

/// A compiled policy.
pub struct Policy {
    permissive: bool,
    denies: Vec<Arc<Rule>>,
    allows: Vec<Arc<Rule>>,
    audits: Vec<Arc<Rule>>,
}

/// The rules of a policy that concern one caller. Rules for other ports and callers are left out,
/// so a request meets only rules that can decide about it.
pub struct CallerPolicy {
    /// Callers that no rule denies are allowed.
    permissive: bool,
    /// The caller lacks a certificate that is required.
    plaintext: bool,
    /// The first rule for the port that looks at paths, whoever its callers.
    by_path: Option<Arc<Rule>>,
    denies: Vec<Arc<Rule>>,
    allows: Vec<Arc<Rule>>,
    audits: Vec<Arc<Rule>>,
    /// Whether a rule reads the claims of tokens.
    reads_claims: bool,
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

/// The caller, and the port it asks for.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// The verified identity; `None`: a client without a certificate.
    pub identity: Option<&'a SpiffeId>,
    /// Source address of its connection.
    pub address: Option<IpAddr>,
    /// The service port it asks for.
    pub port: u16,
    /// Mutual TLS is required of every client whose address is not admitted.
    pub strict: bool,
    /// Callers are known by identity, as at a sidecar: a caller without one could be anybody.
    pub by_identity: bool,
}

/// Why a caller is refused.
#[derive(Debug, PartialEq, Eq)]
pub enum Denial {
    /// This rule refuses it.
    Rule(Arc<str>),
    /// No rule allows it.
    NoRule,
    /// This rule looks at paths, and the path can be read in more ways than one.
    Path(Arc<str>),
    /// This rule looks at requests, which a tunnel would hide.
    Tunnel(Arc<str>),
    /// A certificate is required.
    Plaintext,
    /// A condition of this rule has no value for the request, so that it denies or does not allow.
    NoValue {
        /// The rule.
        rule: Arc<str>,
        /// Whether it denies.
        denies: bool,
        /// Why it has none.
        fault: NoValue,
    },
}

impl Denial {
    /// Explains the refusal to an operator; `policy` is the one that refuses.
    pub fn explain(&self, policy: &Policy) -> String {
        match self {
            Self::Rule(name) => format!("{name} denies it"),
            Self::NoRule if policy.allows.is_empty() => {
                "no TrafficTarget or AuthorizationPolicy allows anyone".into()
            }
            Self::NoRule => {
                let names: Vec<_> = policy.allows.iter().map(|r| &*r.name).collect();
                format!("none of {} allows it", names.join(", "))
            }
            Self::Path(name) => format!(
                "{name} looks at paths, and servers read this one in different ways: \
                 send it without empty or dot segments, `;`, `\\` and needless percent-encoding"
            ),
            Self::Tunnel(name) => format!(
                "{name} looks at requests, which a tunnel hides: CONNECT has to be allowed by a \
                 rule without conditions or with the method CONNECT"
            ),
            Self::Plaintext => "mutual TLS is required".into(),
            Self::NoValue {
                rule,
                denies,
                fault,
            } => {
                let effect = if *denies {
                    "denies it"
                } else {
                    "does not allow it"
                };
                format!(
                    "{rule} {effect}, because its `when` has no value for this request: {fault}"
                )
            }
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
            list.push(Arc::new(Rule::compile(rule, name)?));
        }
        Ok(compiled)
    }

    /// Returns the rules that concern `caller`.
    pub fn caller_policy(&self, caller: &Caller<'_>) -> CallerPolicy {
        let plaintext = caller.strict && caller.identity.is_none();
        let permissive = self.permissive && !plaintext;
        let meant = |rules: &[Arc<Rule>]| {
            let applies_to =
                |rule: &&Arc<Rule>| rule.covers(caller.port) && rule.applies_to(caller);
            rules.iter().filter(applies_to).cloned().collect()
        };
        let allows: &[_] = if self.permissive { &[] } else { &self.allows };
        let mut judging = self.denies.iter().chain(allows);
        let by_path = judging.find(|r| r.conditions.look_at_paths() && r.covers(caller.port));
        let all = self.denies.iter().chain(allows).chain(&self.audits);
        let reads_claims = all
            .filter(|r| r.covers(caller.port))
            .any(|r| r.conditions.read_claims());
        CallerPolicy {
            reads_claims,
            permissive,
            plaintext: plaintext && !self.admits_plaintext(caller.port, caller.address),
            by_path: by_path.cloned(),
            denies: meant(&self.denies),
            allows: meant(&self.allows),
            audits: meant(&self.audits),
        }
    }

    /// Whether a client without a certificate can be let in by its address.
    pub fn admits_plaintext(&self, port: u16, address: Option<IpAddr>) -> bool {
        let mut rules = self.allows.iter();
        rules.any(|r| r.covers(port) && r.has_address(address))
    }

    /// Summarizes the policy for an operator.
    pub fn summary(&self) -> String {
        let list = |title: &str, rules: &[Arc<Rule>]| {
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
}

impl CallerPolicy {
    /// Whether the caller may; `request` is `None` for opaque TCP.
    ///
    /// # Errors
    /// Returns why the caller is refused.
    pub fn judge(&self, request: Option<&Request<'_>>) -> Result<(), Denial> {
        // The policy would judge one reading of an ambiguous path, and the application obey
        // another.
        if let (Some(rule), Some(request)) = (&self.by_path, request)
            && !request.is_plain()
        {
            return Err(Denial::Path(rule.name.clone()));
        }
        if let Some(rule) = self.denies.iter().find(|r| r.matches(request)) {
            let fault = rule.no_value(request);
            return Err(fault.unwrap_or_else(|| Denial::Rule(rule.name.clone())));
        }
        if self.permissive || self.allows.iter().any(|r| r.matches(request)) {
            return Ok(());
        }
        Err(match self.plaintext {
            true => Denial::Plaintext,
            false => {
                let fault = self.allows.iter().find_map(|r| r.no_value(request));
                fault.unwrap_or(Denial::NoRule)
            }
        })
    }

    /// Whether one of its rules reads the claims of tokens.
    pub fn reads_claims(&self) -> bool {
        self.reads_claims
    }

    /// Whether a CONNECT that [`Self::judge`] allows may open a tunnel to the application. Nobody
    /// judges the bytes in the tunnel, and an application that is no proxy may take them for
    /// requests.
    ///
    /// # Errors
    /// Returns why the tunnel is refused.
    pub fn judge_tunnel(&self, request: &Request<'_>) -> Result<(), Denial> {
        let mut denies = self.denies.iter();
        if let Some(rule) = denies.find(|r| r.conditions.forbid_tunnel(request)) {
            return Err(Denial::Tunnel(rule.name.clone()));
        }
        let mut allows = self.allows.iter();
        if self.permissive || allows.any(|r| r.conditions.allow_tunnel(request)) {
            return Ok(());
        }
        let first = self.allows.first();
        Err(Denial::Tunnel(
            first.map_or_else(|| "".into(), |r| r.name.clone()),
        ))
    }

    /// Returns the names of audit rules that match.
    pub fn audited<'a>(
        &'a self,
        request: Option<&'a Request<'_>>,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        let rules = self.audits.iter();
        rules.filter(move |r| r.matches(request)).map(|r| &r.name)
    }
}

/// Numbers the rules of the same object from 1.
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

impl Rule {
    fn compile(rule: &resource::PolicyRule, name: Arc<str>) -> Result<Self, String> {
        let conditions = Conditions::compile(&rule.matches, condition::policy)
            .map_err(|e| format!("{}: {e}", rule.name))?;
        Ok(Self {
            name,
            denies: rule.action.denies(),
            any_identity: rule.any_identity,
            sources: rule.sources.clone(),
            networks: rule.networks.clone(),
            ports: rule.ports.clone(),
            conditions,
        })
    }

    /// Whether the rule matches a request of one of its callers. An uncertain condition allows
    /// nothing and does not escape a denial.
    fn matches(&self, request: Option<&Request<'_>>) -> bool {
        match request {
            Some(request) if self.denies => self.conditions.may_match(request),
            Some(request) => self.conditions.surely_match(request),
            None => self.denies || self.conditions.is_empty(),
        }
    }

    #[cold]
    fn no_value(&self, request: Option<&Request<'_>>) -> Option<Denial> {
        Some(Denial::NoValue {
            rule: self.name.clone(),
            denies: self.denies,
            fault: self.conditions.fault(request?)?,
        })
    }

    fn covers(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.contains(&port)
    }

    fn applies_to(&self, caller: &Caller<'_>) -> bool {
        let nobody = !self.any_identity && self.sources.is_empty() && self.networks.is_empty();
        if nobody {
            // Allows nobody, denies everybody.
            return self.denies;
        }
        // A caller must not escape a denial of its identity by leaving its certificate out.
        if self.denies
            && caller.by_identity
            && caller.identity.is_none()
            && !self.sources.is_empty()
        {
            return true;
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

    fn judge(
        policy: &Policy,
        caller: &Caller<'_>,
        request: Option<&Request<'_>>,
    ) -> Result<(), Denial> {
        policy.caller_policy(caller).judge(request)
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
            by_identity: true,
        }
    }

    fn outside(address: [u8; 4], strict: bool) -> Caller<'static> {
        Caller {
            identity: None,
            address: Some(address.into()),
            port: 8101,
            strict,
            by_identity: true,
        }
    }

    fn get(path: &str) -> Request<'_> {
        let head = b"GET / HTTP/1.1\r\n\r\n";
        Request::new(b"GET", path.as_bytes(), b"ratings", head)
    }

    #[test]
    fn a_tunnel_is_allowed_by_what_could_not_look_into_it_anyway() {
        let head = b"CONNECT db.example.com:5432 HTTP/1.1\r\n\r\n";
        let connect = Request::new(b"CONNECT", b"", b"db.example.com:5432", head);
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
            let caller_policy = policy.caller_policy(&caller(&id, 8101));
            caller_policy.judge(Some(&connect)).is_ok()
                && caller_policy.judge_tunnel(&connect).is_ok()
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
        assert_eq!(judge(&policy, &caller(&id("gateway"), 8101), None), Ok(()));
        for name in ["gateway2", "gatewa", "Gateway", "gateway.x"] {
            let id = id(name);
            let refusal = judge(&policy, &caller(&id, 8101), None).unwrap_err();
            assert_eq!(refusal, Denial::NoRule, "{name}");
            assert_eq!(
                refusal.explain(&policy),
                "none of TrafficTarget/t allows it"
            );
        }
        assert!(judge(&policy, &outside([10, 0, 0, 1], false), None).is_err());
        assert_eq!(
            judge(&policy, &outside([10, 0, 0, 1], true), None),
            Err(Denial::Plaintext)
        );
        assert!(judge(&policy, &caller(&id("gateway"), 8102), None).is_err());
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
        assert_eq!(judge(&allows, &ask, Some(&get("/a"))), Ok(()));
        assert!(judge(&allows, &ask, None).is_err());
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
            judge(&denies, &ask, None),
            Err(Denial::Rule("AuthorizationPolicy/d".into()))
        );
        assert!(judge(&denies, &ask, Some(&get("/a"))).is_err());
        assert_eq!(judge(&denies, &ask, Some(&get("/b"))), Ok(()));
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
            assert_eq!(judge(&policy, &caller(&id("good"), 8101), None), Ok(()));
            assert_eq!(
                judge(&policy, &caller(&id("evil"), 8101), None),
                Err(Denial::Rule("AuthorizationPolicy/d".into()))
            );
            assert_eq!(judge(&policy, &caller(&id("evil"), 8102), None), Ok(()));
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
            assert_eq!(judge(&policy, &outside([10, 1, 1, 1], true), None), Ok(()));
            assert_eq!(
                judge(&policy, &outside([11, 1, 1, 1], true), None),
                Err(Denial::Plaintext)
            );
            let unknown = Caller {
                address: None,
                ..outside([0; 4], true)
            };
            assert_eq!(judge(&policy, &unknown, None), Err(Denial::Plaintext));
            let other_port = Caller {
                port: 8102,
                ..outside([10, 1, 1, 1], true)
            };
            assert_eq!(judge(&policy, &other_port, None), Err(Denial::Plaintext));
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
            assert_eq!(judge(&policy, &ask, None), Err(Denial::NoRule));
            let caller_policy = policy.caller_policy(&ask);
            let names: Vec<_> = caller_policy.audited(None).map(|n| &**n).collect();
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
                judge(&policy, &caller(&gateway, 8101), Some(&get(path))),
                Err(Denial::Path("AuthorizationPolicy/d".into())),
                "{path}"
            );
            let elsewhere = judge(&policy, &caller(&gateway, 8102), Some(&get(path)));
            assert_eq!(elsewhere, Ok(()), "{path}");
        }
    }

    #[test]
    fn a_denial_is_not_escaped_by_what_servers_overlook() {
        let deny = PolicyRule {
            name: "AuthorizationPolicy/d".into(),
            action: Action::Deny,
            matches: exact("/admin"),
            ..Default::default()
        };
        let allow = PolicyRule {
            matches: exact("/admin"),
            ..allow("gateway")
        };
        let gateway = id("gateway");
        let denies = policy(true, vec![deny]);
        let allows = policy(false, vec![allow]);
        for path in ["/admin/", "/admin%20", "/admin%20/"] {
            for policy in [&denies, &allows] {
                let judged = judge(policy, &caller(&gateway, 8101), Some(&get(path)));
                assert!(judged.is_err(), "{path}");
            }
        }
        assert!(judge(&allows, &caller(&gateway, 8101), Some(&get("/admin"))).is_ok());
        assert!(judge(&denies, &caller(&gateway, 8101), Some(&get("/admins"))).is_ok());
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
