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
mod tests;
