//! Conditions of rules: what their `when` demands of a caller or a token.

use super::callers::{CLIENT, GATEWAY, networks, spiffe};
use crate::import::POLICY;
use crate::import::cel::{any, any_network, either, negated, quoted};
use crate::import::fields::{lose_rest, text};
use crate::import::imported::Imported;
use crate::import::texts;
use serde_json::Value;

/// Claims that are a list in a text.
const SPACED: [&str; 2] = ["scope", "permission"];

/// Conditions by their key, which is no port's.
pub(super) fn condition(
    id: &str,
    at: &str,
    mut one: Value,
    imported: &mut Imported,
) -> Vec<String> {
    let key = text(&mut one, "key").unwrap_or_default();
    let (values, not) = (texts(&mut one, "values"), texts(&mut one, "notValues"));
    lose_rest(imported, id, at, &one, POLICY);
    let header = key
        .strip_prefix("request.headers[")
        .and_then(|k| k.strip_suffix(']'));
    // Istio reads what HTTP/2 says before the headers by such names, too.
    let is_none = header.is_some_and(|name| name.starts_with([':', '@']));
    let made = if let Some(name) = header.filter(|_| !is_none) {
        let name = quoted(name);
        let value = format!("request.headers[{name}]");
        let has = format!("{name} in request.headers");
        // A star is any value, also an empty one.
        let is_one_of = |all: &[String]| match all.iter().any(|v| v == "*") {
            true => Some(has.clone()),
            false => any(&value, all).map(|c| format!("{has} && {c}")),
        };
        Some((is_one_of(&values), is_one_of(&not)))
    } else if let Some(names) = claim_names(&key) {
        let is_one_of = |all: &[String]| claim(&names, all);
        is_one_of(&values).zip(is_one_of(&not))
    } else {
        match key.as_str() {
            "source.namespace" => Some((any(&key, &values), any(&key, &not))),
            "source.principal" => {
                let is_one_of = |all: &[String]| any("source.identity", &spiffe(all));
                Some((is_one_of(&values), is_one_of(&not)))
            }
            "source.ip" => {
                let is_in = |all: &[String]| any_network(&networks(all));
                Some((is_in(&values), is_in(&not)))
            }
            _ => None,
        }
    };
    let Some((wanted, unwanted)) = made else {
        match key.as_str() {
            "remote.ip" => imported.lose(id, at, CLIENT, GATEWAY),
            _ if is_none => {
                let instead = "say `paths`, `methods` or `hosts` of an operation instead";
                imported.lose(id, at, &format!("`{key}` is no header"), instead);
            }
            _ => imported.lose(id, at, &format!("`{key}` is not known here"), POLICY),
        }
        return Vec::new();
    };
    let both = [wanted, negated(unwanted)];
    both.into_iter().flatten().collect()
}

/// Names of a claim and of what it is in, the outermost first.
fn claim_names(key: &str) -> Option<Vec<&str>> {
    let names = match key {
        "request.auth.audiences" => return Some(vec!["aud"]),
        "request.auth.presenter" => return Some(vec!["azp"]),
        other => other.strip_prefix("request.auth.claims[")?,
    };
    Some(names.strip_suffix(']')?.split("][").collect())
}

/// Whether a claim is, or as a list has, one of these values; `Some(None)`: of no values. `None`: a pattern would have to be
/// tried on each item of a list.
#[expect(
    clippy::option_option,
    reason = "no demand is not the same as one that cannot be said"
)]
fn claim(names: &[&str], values: &[String]) -> Option<Option<String>> {
    let mut claim = "jwt.claims".to_owned();
    let mut has = Vec::new();
    for name in names {
        has.push(format!("{} in {claim}", quoted(name)));
        claim = format!("{claim}[{}]", quoted(name));
    }
    let text = match names {
        [name] if SPACED.contains(name) => format!("{claim}.split(\" \")"),
        _ => format!("[{claim}]"),
    };
    let mut all = Vec::new();
    for value in values.iter().filter(|v| *v != "*") {
        if value.contains('*') {
            return None;
        }
        let value = quoted(value);
        all.push(format!(
            "{value} in (type({claim}) == list ? {claim} : {text})"
        ));
    }
    if values.iter().all(|v| v != "*") {
        has.extend(either(all));
    }
    Some((!values.is_empty()).then(|| has.join(" && ")))
}
