//! Callers that rules of policies are about, and their addresses.

use super::ports::Place;
use crate::import::POLICY;
use crate::import::cel::{account, any, any_network, either, is_exact, negated};
use crate::import::fields::{lose_rest, take};
use crate::import::imported::Imported;
use crate::import::texts;
use serde_json::{Map, Value};

pub(super) const CLIENT: &str =
    "behind a gateway the address of the client is not that of the caller";
pub(super) const GATEWAY: &str = "write a policy about the Gateway, where `from.networks` has clients' addresses: docs/features/gateway-policies.md";
/// Issuer and subject of a token, which Istio calls its principal.
const TOKEN_OF: &str = "(string(jwt.claims.iss) + \"/\" + string(jwt.claims.sub))";

/// Callers. What the lists cannot say goes to the conditions: these are all demanded, and one of the lists is enough.
pub(super) fn from(
    (id, namespace): (&str, Option<&str>),
    at: &str,
    mut source: Value,
    place: &Place<'_>,
    when: &mut Vec<String>,
    imported: &mut Imported,
) -> Map<String, Value> {
    let mut from = Map::new();
    let principals = spiffe(&texts(&mut source, "principals"));
    let networks = networks(&texts(&mut source, "ipBlocks"));
    if is_exact(&principals) {
        from.insert("principals".into(), principals.into());
    } else {
        when.extend(any("source.identity", &principals));
    }
    // A denial lets nobody in.
    let by_address = place.denies || place.plaintext;
    if from.is_empty() && !networks.is_empty() && by_address {
        from.insert("networks".into(), networks.into());
    } else {
        when.extend(any_network(&networks));
    }
    when.extend(any("source.namespace", &texts(&mut source, "namespaces")));
    let accounts = |source: &mut Value, name: &str| {
        let one = |text: String| match text.split_once('/') {
            Some((namespace, name)) => account(name, Some(namespace)),
            None => account(&text, namespace),
        };
        either(texts(source, name).into_iter().map(one).collect())
    };
    let tokens = |source: &mut Value, name: &str| {
        let whose = any(TOKEN_OF, &texts(source, name));
        whose.map(|whose| format!("has(jwt.claims.iss) && has(jwt.claims.sub) && {whose}"))
    };
    when.extend(tokens(&mut source, "requestPrincipals"));
    when.extend(negated(tokens(&mut source, "notRequestPrincipals")));
    when.extend(accounts(&mut source, "serviceAccounts"));
    when.extend(negated(accounts(&mut source, "notServiceAccounts")));
    let not = spiffe(&texts(&mut source, "notPrincipals"));
    when.extend(negated(any("source.identity", &not)));
    let not = texts(&mut source, "notNamespaces");
    when.extend(negated(any("source.namespace", &not)));
    let not = self::networks(&texts(&mut source, "notIpBlocks"));
    when.extend(negated(any_network(&not)));
    for name in ["remoteIpBlocks", "notRemoteIpBlocks"] {
        if take(&mut source, name).is_some() {
            imported.lose(id, &format!("{at}.{name}"), CLIENT, GATEWAY);
        }
    }
    lose_rest(imported, id, at, &source, POLICY);
    from
}

/// Istio's principals as identities.
pub(super) fn spiffe(principals: &[String]) -> Vec<String> {
    let identity = |text: &String| match text.starts_with('*') {
        true => text.clone(),
        false => format!("spiffe://{text}"),
    };
    principals.iter().map(identity).collect()
}

/// An address is the network of one.
pub(super) fn networks(blocks: &[String]) -> Vec<String> {
    let network = |text: &String| match (text.contains('/'), text.contains(':')) {
        (true, _) => text.clone(),
        (false, true) => format!("{text}/128"),
        (false, false) => format!("{text}/32"),
    };
    blocks.iter().map(network).collect()
}
