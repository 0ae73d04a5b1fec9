//! Callers: identities and networks of authentications, as conditions in CEL. Linkerd's identities have no trust
//! domain of ours, so they are compared by namespace and service account.

use crate::import::cel::{account, any_network, either, negated, quoted};
use crate::import::fields::{list, take, text};
use crate::import::texts;
use serde_json::Value;

/// The part of every identity of theirs behind the account and its namespace.
const KIND: &str = ".serviceaccount.identity.";

/// Any caller with a certificate.
pub(super) const ANYBODY_KNOWN: &str = "source.identity != \"\"";

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

/// A condition for networks, each with its exceptions. None: none is given.
pub(super) fn networks(spec: &mut Value) -> Option<String> {
    let mut all = Vec::new();
    for mut network in list(spec, "networks") {
        let Some(cidr) = text(&mut network, "cidr") else {
            continue;
        };
        let mut except = texts(&mut network, "except");
        except.extend(text(&mut network, "except"));
        take(&mut network, "except");
        let inside = any_network(&[cidr]);
        let outside = negated(any_network(&except));
        let both: Vec<String> = [inside, outside].into_iter().flatten().collect();
        all.push(both.join(" && "));
    }
    either(all)
}
