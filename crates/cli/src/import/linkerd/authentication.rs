//! Callers: identities of authentications as conditions in CEL, networks as ranges of addresses or conditions. Linkerd's
//! identities have no trust domain of ours, so they are compared by namespace and service account.

use crate::import::cel::{account, any_network, either, negated, quoted};
use crate::import::fields::{list, take, text};
use crate::import::{EVERYWHERE, texts};
use serde_json::{Map, Value, json};
use tulle_model::network::Network;

/// The part of every identity of theirs behind the account and its namespace.
const KIND: &str = ".serviceaccount.identity.";

/// Any caller with a certificate.
pub(super) const ANYBODY_KNOWN: &str = "source.identity != \"\"";

/// The callers that a policy lets in: each demand must hold.
#[derive(Default)]
pub(super) struct Callers {
    /// Whether a caller needs a certificate.
    pub(super) is_known: bool,
    /// Conditions in CEL for its identity.
    pub(super) identities: Vec<String>,
    /// Ranges that its address must be in.
    pub(super) networks: Vec<Networks>,
}

/// Ranges of addresses, of which one is enough.
pub(super) struct Networks {
    ranges: Vec<String>,
    /// The same as a condition in CEL, with the exceptions.
    condition: String,
    has_exceptions: bool,
}

impl Callers {
    /// Returns callers whose identity fulfils a condition.
    pub(super) fn known(condition: String) -> Self {
        Self {
            is_known: true,
            identities: vec![condition],
            networks: Vec::new(),
        }
    }

    /// Makes the rule that lets them send such requests. A rule without `from` is about callers with a certificate, so
    /// callers that need none are named by their addresses.
    pub(super) fn rule(&self, mut to: Map<String, Value>) -> Value {
        let mut rule = Map::new();
        let mut when = self.identities.clone();
        let mut is_said = false;
        if !self.is_known {
            let ranges = match self.networks.first() {
                Some(networks) => json!(networks.ranges),
                None => json!(EVERYWHERE),
            };
            rule.insert("from".into(), json!({ "networks": ranges }));
            is_said = self.networks.len() < 2 && self.networks.iter().all(|n| !n.has_exceptions);
        }
        // A condition in CEL is about requests, so one that `from` has said already would shut out TCP.
        if !is_said {
            when.extend(self.networks.iter().map(|n| n.condition.clone()));
        }
        if !when.is_empty() {
            to.insert("when".into(), when.join(" && ").into());
        }
        rule.insert("to".into(), to.into());
        rule.into()
    }
}

/// A condition for the identities of a MeshTLSAuthentication. None: one of them cannot be read.
pub(super) fn identities(spec: &mut Value, namespace: Option<&str>) -> Option<String> {
    let mut all = Vec::new();
    for identity in texts(spec, "identities") {
        all.push(by_name(&identity)?);
    }
    for mut reference in list(spec, "identityRefs") {
        let kind = text(&mut reference, "kind").unwrap_or_default();
        let name = text(&mut reference, "name");
        let of = text(&mut reference, "namespace").or_else(|| namespace.map(str::to_owned));
        take(&mut reference, "group");
        // Without the part that is left it would be another caller.
        if reference.as_object().is_none_or(|left| !left.is_empty()) {
            return None;
        }
        all.push(match (kind.as_str(), name) {
            ("ServiceAccount", Some(name)) => account(&name, of.as_deref()),
            ("Namespace", Some(name)) => format!("source.namespace == {}", quoted(&name)),
            // Every identity of the policy's own namespace.
            ("Namespace", None) => format!(
                "source.namespace == {}",
                quoted(of.as_deref().unwrap_or_default())
            ),
            _ => return None,
        });
    }
    either(all)
}

/// `account.namespace.serviceaccount.identity.…`, with `*` for all of a namespace or all.
fn by_name(identity: &str) -> Option<String> {
    if identity == "*" {
        return Some(ANYBODY_KNOWN.to_owned());
    }
    let (whose, _) = identity.split_once(KIND)?;
    let (name, namespace) = whose.split_once('.')?;
    match name {
        "*" => Some(format!("source.namespace == {}", quoted(namespace))),
        _ => Some(account(name, Some(namespace))),
    }
}

/// Reads networks, each with its exceptions. `Ok(None)`: none are given, so any address will do.
///
/// # Errors
/// Returns why they cannot be read. Without one of its parts a network would be another one.
pub(super) fn networks(spec: &mut Value) -> Result<Option<Networks>, String> {
    let given = match take(spec, "networks") {
        None => return Ok(None),
        Some(Value::Array(given)) => given,
        Some(other) => return Err(format!("`{other}` is no list of networks")),
    };
    let (mut ranges, mut conditions, mut has_exceptions) = (Vec::new(), Vec::new(), false);
    for mut network in given {
        let cidr = range(&take(&mut network, "cidr").unwrap_or_default())?;
        let except = match take(&mut network, "except") {
            None => Vec::new(),
            Some(Value::Array(all)) => all,
            Some(one) => vec![one],
        };
        let except: Vec<String> = except.iter().map(range).collect::<Result<_, _>>()?;
        if network.as_object().is_some_and(|left| !left.is_empty()) {
            return Err(format!("`{network}` of a network has no counterpart"));
        }
        has_exceptions |= !except.is_empty();
        let inside = any_network(std::slice::from_ref(&cidr));
        let both: Vec<String> = [inside, negated(any_network(&except))]
            .into_iter()
            .flatten()
            .collect();
        conditions.push(both.join(" && "));
        ranges.push(cidr);
    }
    let condition = either(conditions).ok_or("no network is named")?;
    Ok(Some(Networks {
        ranges,
        condition,
        has_exceptions,
    }))
}

/// A range of addresses in the form that CEL reads, too.
fn range(value: &Value) -> Result<String, String> {
    let text = value.as_str().unwrap_or_default();
    let network: Network = text.parse().map_err(|_| format!("{value} is no network"))?;
    Ok(network.to_string())
}
