//! Whether a caller can send any request that a sidecar lets in.
//!
//! The answer is found with the code that sidecars decide by: each request tried is judged by it, so whoever is said to get
//! in does. Who is said to be kept out is, because the rules that allow are covered by rules that deny. Where neither is
//! certain, the answer says so.

use super::covers::{self, covers, is_apart, is_below};
use super::samples::matching;
use super::server::Server;
use super::statement::Requests;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tulle_model::identity::SpiffeId;
use tulle_model::network::Network;
use tulle_model::pattern;
use tulle_model::resource::{self, Action, PathMatch, PolicyMatch, PolicyRule, Protocol};
use tulle_proxy::config::authz::{Caller, Denial, Policy, Request};

/// A path and a method that no policy names.
const OTHER: &str = "tulle-prove";
/// Methods that are tried where none is named.
const METHODS: [&str; 4] = ["GET", "POST", "DELETE", "TULLE-PROVE"];
const CONNECT: &str = "CONNECT";

/// Whether a caller gets in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reach {
    /// With none of the requests.
    Kept,
    /// With this one.
    In(Witness),
    /// The rule that may let some in.
    Undecided(String),
}

/// A request that a sidecar lets in, and the rule that allows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) port: u16,
    /// `METHOD /path`, with the headers it needs; none: opaque bytes.
    pub(super) request: Option<String>,
    /// Empty: the mesh is permissive.
    pub(super) rule: String,
    /// The client's address, where it decides.
    pub(super) address: Option<IpAddr>,
}

impl Witness {
    /// The rule, or the setting, that lets it in.
    pub(super) fn allowed_by(&self) -> String {
        match self.rule.as_str() {
            "" => "permissiveMode of the Mesh".to_owned(),
            rule => rule.to_owned(),
        }
    }
}

/// A sidecar's policy, ready to be asked.
pub(super) struct Gate<'a> {
    server: &'a Server,
    /// Whether the workload takes no plaintext.
    strict: bool,
    whole: Policy,
    rules: Vec<Single>,
    addresses: Vec<IpAddr>,
}

/// A rule alone, to see whom it is about.
struct Single {
    rule: PolicyRule,
    /// The rule without its conditions on requests.
    bare: Policy,
}

impl Single {
    fn new(rule: &PolicyRule) -> Result<Self, String> {
        let bare = PolicyRule {
            matches: Vec::new(),
            ..rule.clone()
        };
        let bare = Policy::compile(&resource::Policy {
            permissive: rule.action == Action::Deny,
            rules: vec![bare],
        })?;
        Ok(Self {
            rule: rule.clone(),
            bare,
        })
    }

    /// Whether the rule is about the caller, whatever it asks for.
    fn is_about(&self, caller: &Caller<'_>) -> bool {
        let judged = self.bare.caller_policy(caller).judge(None);
        match self.rule.action {
            Action::Allow => judged.is_ok(),
            Action::Deny => matches!(judged, Err(Denial::Rule(_))),
            Action::AuditAllow | Action::AuditDeny => false,
        }
    }
}

impl<'a> Gate<'a> {
    /// # Errors
    /// An expression in the policy is not valid.
    pub(super) fn new(server: &'a Server, strict: bool) -> Result<Self, String> {
        let policy = &server.inbound.policy;
        let rules = policy.rules.iter().map(Single::new);
        Ok(Self {
            server,
            strict,
            whole: Policy::compile(policy)?,
            rules: rules.collect::<Result<_, _>>()?,
            addresses: addresses(policy.rules.iter().flat_map(|rule| &rule.networks)),
        })
    }

    /// The identities that rules name. All others are alike to them.
    pub(super) fn named(&self) -> BTreeSet<&'a SpiffeId> {
        let rules = self.server.inbound.policy.rules.iter();
        rules.flat_map(|rule| &rule.sources).collect()
    }

    /// Tries whether a caller gets in at any of these ports; none: at all. No identity: a client without a certificate.
    pub(super) fn reach(
        &self,
        identity: Option<&SpiffeId>,
        ports: &[u16],
        requests: &Requests,
    ) -> Reach {
        let mut undecided = None;
        for (port, protocol) in self.ports(ports) {
            for address in &self.addresses {
                let caller = Caller {
                    identity,
                    address: Some(*address),
                    port,
                    strict: self.strict,
                    by_identity: true,
                };
                match self.at_port(&caller, protocol, requests) {
                    Reach::In(witness) => return Reach::In(witness),
                    Reach::Undecided(rule) => undecided = Some(rule),
                    Reach::Kept => {}
                }
            }
        }
        undecided.map_or(Reach::Kept, Reach::Undecided)
    }

    /// The ports that are meant, by the number that rules are compared with.
    fn ports(&self, meant: &[u16]) -> BTreeMap<u16, Protocol> {
        let all = &self.server.inbound.ports;
        let known = |number: u16| all.iter().find(|p| p.port == number);
        let one = |port: &resource::InboundPort| (port.port, port.protocol);
        let listed = all.iter().filter(|port| !port.egress);
        match meant {
            [] => listed.map(one).collect(),
            meant => {
                // Rules mean a port without an entry by 0.
                let found = meant.iter().filter_map(|n| known(*n).or_else(|| known(0)));
                found.map(one).collect()
            }
        }
    }

    fn at_port(&self, caller: &Caller<'_>, protocol: Protocol, requests: &Requests) -> Reach {
        let judge = self.whole.caller_policy(caller);
        let is_bytes = protocol.is_opaque() || protocol == Protocol::Detect;
        // Opaque bytes may be any request.
        if is_bytes && judge.judge(None).is_ok() {
            return Reach::In(self.witness(caller, None, None));
        }
        if protocol.is_opaque() {
            return Reach::Kept;
        }
        let permissive =
            self.server.inbound.policy.permissive && !(caller.strict && caller.identity.is_none());
        let any = PolicyMatch::default();
        let mut allowed: Vec<(&PolicyMatch, Option<&PolicyRule>)> = Vec::new();
        if permissive {
            allowed.push((&any, None));
        }
        let mut denied: Vec<&PolicyMatch> = Vec::new();
        for single in self.rules.iter().filter(|single| single.is_about(caller)) {
            let rule = &single.rule;
            let matches = match rule.matches.as_slice() {
                [] => std::slice::from_ref(&any),
                matches => matches,
            };
            match rule.action {
                Action::Deny => denied.extend(matches),
                _ => allowed.extend(matches.iter().map(|m| (m, Some(rule)))),
            }
        }
        let mut undecided = None;
        for (wanted, rule) in allowed {
            if is_apart(wanted, requests) || denied.iter().any(|d| covers(d, wanted, requests)) {
                continue;
            }
            for try_out in Try::all(wanted, &denied, requests, &self.server.inbound.service) {
                if try_out.gets_in(&judge) {
                    return Reach::In(self.witness(caller, Some(&try_out), rule));
                }
            }
            let name = rule.map_or("the permissive mesh", |rule| rule.name.as_str());
            undecided = Some(name.to_owned());
        }
        undecided.map_or(Reach::Kept, Reach::Undecided)
    }

    fn witness(
        &self,
        caller: &Caller<'_>,
        request: Option<&Try>,
        rule: Option<&PolicyRule>,
    ) -> Witness {
        let of_bytes = || {
            let mut singles = self.rules.iter();
            let lets = |s: &&Single| s.rule.action == Action::Allow && s.rule.matches.is_empty();
            singles
                .find(|s| lets(s) && s.is_about(caller))
                .map(|s| &s.rule)
        };
        let rule = rule.or_else(|| request.is_none().then(of_bytes).flatten());
        let decides = rule.is_some_and(|rule| !rule.networks.is_empty());
        Witness {
            port: caller.port,
            request: request.map(Try::shown),
            rule: rule.map(|rule| rule.name.clone()).unwrap_or_default(),
            address: caller.address.filter(|_| decides),
        }
    }
}

/// A request that is tried.
#[derive(Debug)]
struct Try {
    method: String,
    path: String,
    host: String,
    headers: Vec<(String, String)>,
}

impl Try {
    /// Requests that the match allows, and that the rules that deny may have forgotten.
    fn all(
        wanted: &PolicyMatch,
        denied: &[&PolicyMatch],
        requests: &Requests,
        service: &str,
    ) -> Vec<Self> {
        let headers = headers(wanted);
        let hosts: Vec<String> = match wanted.hosts.as_slice() {
            [] => vec![service.to_owned()],
            hosts => hosts
                .iter()
                .map(|host| host.replacen('*', OTHER, 1))
                .collect(),
        };
        let paths = paths(wanted, denied, requests);
        let mut all = Vec::new();
        for method in methods(wanted, requests) {
            for path in &paths {
                for host in &hosts {
                    all.push(Self {
                        method: method.clone(),
                        path: path.clone(),
                        host: host.clone(),
                        headers: headers.clone(),
                    });
                }
            }
        }
        all
    }

    fn gets_in(&self, judge: &tulle_proxy::config::authz::CallerPolicy) -> bool {
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\n",
            self.method, self.path, self.host
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let request = Request::new(
            self.method.as_bytes(),
            self.path.as_bytes(),
            self.host.as_bytes(),
            head.as_bytes(),
        );
        judge.judge(Some(&request)).is_ok()
            && (self.method != CONNECT || judge.judge_tunnel(&request).is_ok())
    }

    fn shown(&self) -> String {
        let mut text = format!("{} {}", self.method, self.path);
        for (name, value) in &self.headers {
            text.push_str(&format!(" {name}: {value}"));
        }
        text
    }
}

fn methods(wanted: &PolicyMatch, requests: &Requests) -> Vec<String> {
    let listed = covers::methods(wanted);
    if !requests.methods.is_empty() {
        let is_wanted = |m: &&String| listed.is_none_or(|listed| listed.contains(m));
        return requests.methods.iter().filter(is_wanted).cloned().collect();
    }
    match listed {
        None => METHODS.iter().map(ToString::to_string).collect(),
        Some(listed) => listed.to_vec(),
    }
}

fn paths(wanted: &PolicyMatch, denied: &[&PolicyMatch], requests: &Requests) -> Vec<String> {
    let mut all = match &wanted.path {
        Some(path) => of_pattern(path),
        None if wanted.path_regex.is_empty() => of_pattern(&PathMatch::Prefix(String::new())),
        None => Vec::new(),
    };
    all.extend(
        requests
            .path
            .iter()
            .flat_map(|path| of_pattern(&PathMatch::Prefix(path.clone()))),
    );
    if !wanted.path_regex.is_empty() {
        all.extend(matching(&wanted.path_regex));
    }
    // Next to what is denied something may be left open.
    let of_denied = denied
        .iter()
        .filter_map(|d| d.path.as_ref())
        .flat_map(of_pattern);
    all.extend(of_denied);
    let limit = requests.path.as_deref().unwrap_or("/");
    all.retain(|path| path.starts_with('/') && is_below(path, limit));
    let mut seen = BTreeSet::new();
    all.retain(|path| seen.insert(path.clone()));
    all
}

fn of_pattern(path: &PathMatch) -> Vec<String> {
    match path {
        PathMatch::Exact(path) => vec![path.clone()],
        PathMatch::Prefix(prefix) => {
            let prefix = prefix.trim_end_matches('/');
            let itself = if prefix.is_empty() { "/" } else { prefix };
            vec![itself.to_owned(), format!("{prefix}/{OTHER}")]
        }
        PathMatch::Regex(pattern) => matching(pattern),
    }
}

/// Header fields with which the conditions on headers are met.
fn headers(wanted: &PolicyMatch) -> Vec<(String, String)> {
    let of_pattern = |pattern: &str| {
        let compiled = pattern::compile(pattern).ok();
        let texts = matching(pattern).into_iter();
        let mut texts = texts.filter(|text| !text.contains(['\r', '\n']));
        texts.find(|text| {
            compiled
                .as_ref()
                .is_some_and(|c| c.is_match(text.as_bytes()))
        })
    };
    let mut all: Vec<(String, String)> = Vec::new();
    for (name, pattern) in &wanted.headers {
        all.push((name.clone(), of_pattern(pattern).unwrap_or_default()));
    }
    for header in &wanted.header_matches {
        let value = match header.regex {
            true => of_pattern(&header.value).unwrap_or_default(),
            false => header.value.clone(),
        };
        all.push((header.name.clone(), value));
    }
    all.dedup();
    all
}

/// An address of each kind that rules tell apart: the first of all, the first of each range, and the first after it.
fn addresses<'a>(networks: impl Iterator<Item = &'a Network>) -> Vec<IpAddr> {
    let mut all = BTreeSet::from([
        IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::from(Ipv6Addr::UNSPECIFIED),
    ]);
    for network in networks {
        all.insert(network.first());
        all.extend(network.next_after());
    }
    all.into_iter().collect()
}
