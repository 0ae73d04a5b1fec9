//! Conditions in CEL.

use serde_json::Value;

/// Whether there are texts, and none of them is a pattern.
pub(super) fn is_exact(all: &[String]) -> bool {
    !all.is_empty() && all.iter().all(|text| !text.contains('*'))
}

/// Whether a value is one of these, with `*` before or after a text; none: anything.
pub(super) fn any(value: &str, patterns: &[String]) -> Option<String> {
    let (exact, patterns): (Vec<&String>, Vec<&String>) =
        patterns.iter().partition(|p| !p.contains('*'));
    let mut all = Vec::new();
    match exact.as_slice() {
        [] => {}
        [one] => all.push(format!("{value} == {}", quoted(one))),
        many => {
            let many: Vec<String> = many.iter().map(|t| quoted(t)).collect();
            all.push(format!("{value} in [{}]", many.join(", ")));
        }
    }
    for pattern in patterns {
        all.push(
            match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
                (Some(""), _) => format!("{value} != \"\""),
                (Some(end), _) => format!("{value}.endsWith({})", quoted(end)),
                (None, Some(start)) => format!("{value}.startsWith({})", quoted(start)),
                // A star in the middle stands for itself.
                (None, None) => format!("{value} == {}", quoted(pattern)),
            },
        );
    }
    either(all)
}

pub(super) fn any_network(networks: &[String]) -> Option<String> {
    either(
        networks
            .iter()
            .map(|n| format!("cidr({}).containsIP(source.address)", quoted(n)))
            .collect(),
    )
}

/// A service account as caller, whatever the trust domain is.
pub(super) fn account(name: &str, namespace: Option<&str>) -> String {
    let name = format!("source.service == {}", quoted(name));
    match namespace {
        Some(namespace) => format!("source.namespace == {} && {name}", quoted(namespace)),
        None => name,
    }
}

pub(super) fn either(all: Vec<String>) -> Option<String> {
    match all.len() {
        0 => None,
        1 => all.into_iter().next(),
        _ => Some(format!("({})", all.join(" || "))),
    }
}

pub(super) fn negated(condition: Option<String>) -> Option<String> {
    condition.map(|condition| format!("!({condition})"))
}

/// A text in CEL, whose escapes JSON's are.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
