//! Order of a ServiceProfile's routes. Linkerd takes the first route that matches; here the one whose match is more specific
//! wins, and of two that are equally specific the first.

use crate::import::imported::Imported;
use serde_json::{Map, Value};
use tulle_model::pattern;

/// Names routes that win here over an earlier one where both match. Each is a rule of ours with its place.
pub(super) fn lose_outranking(id: &str, rules: &[(String, Value)], imported: &mut Imported) {
    for (number, (at, rule)) in rules.iter().enumerate() {
        let mut before = rules.iter().take(number);
        let earlier = before.find(|(_, other)| differs(rule, other) && may_win(rule, other));
        if let Some((other, _)) = earlier {
            let why = format!(
                "it is more specific than {other}, and wins here where both match; in Linkerd the first did"
            );
            imported.lose(
                id,
                &format!("{at}.condition"),
                &why,
                "give the first one's condition a `method` and a `pathRegex`, too",
            );
        }
    }
}

/// Whether it matters which of the two wins.
fn differs(one: &Value, other: &Value) -> bool {
    ["timeouts", "retry"]
        .iter()
        .any(|field| one.get(field) != other.get(field))
}

/// Whether a match of a rule may win over one of another rule.
fn may_win(rule: &Value, other: &Value) -> bool {
    let others = matches(other);
    matches(rule).iter().any(|one| {
        let mut beaten = others.iter().filter(|other| rank(one) > rank(other));
        beaten.any(|other| may_meet(one, other))
    })
}

/// Returns the matches of a rule; one without matches is about everything.
fn matches(rule: &Value) -> Vec<Map<String, Value>> {
    let all = rule["matches"].as_array().into_iter().flatten();
    let all: Vec<_> = all.filter_map(Value::as_object).cloned().collect();
    match all.is_empty() {
        true => vec![Map::new()],
        false => all,
    }
}

/// Greater is more specific, as the proxy has it: any regular expression before none, then a method.
fn rank(one: &Map<String, Value>) -> (bool, bool) {
    (one.contains_key("path"), one.contains_key("method"))
}

fn path(one: &Map<String, Value>) -> Option<&str> {
    one.get("path")?["value"].as_str()
}

/// Whether some request could match both, as far as methods, and paths without any special character, say.
fn may_meet(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    if let (Some(one), Some(other)) = (one.get("method"), other.get("method"))
        && one != other
    {
        return false;
    }
    let (Some(one), Some(other)) = (path(one), path(other)) else {
        return true;
    };
    let is_plain = |path: &str| regex_syntax::escape(path) == path;
    let may_match = |regex: &str, path: &str| match pattern::compile(regex) {
        Ok(regex) => regex.is_match(path.as_bytes()),
        Err(_) => true,
    };
    match (is_plain(one), is_plain(other)) {
        (true, _) => may_match(other, one),
        (false, true) => may_match(one, other),
        (false, false) => true,
    }
}
