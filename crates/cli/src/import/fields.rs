//! Fields of an object, which are taken out as they are translated.

use super::imported::Imported;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Methods that a match of Gateway API takes.
pub(super) const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// Takes a field out; the names of a path are parted by `/`. None: it is not there, or is null.
pub(super) fn take(value: &mut Value, path: &str) -> Option<Value> {
    let (fields, name) = place(value, path)?;
    fields.remove(name).filter(|v| !v.is_null())
}

/// The object that has a field, and the field's name.
fn place<'v, 'p>(
    value: &'v mut Value,
    path: &'p str,
) -> Option<(&'v mut Map<String, Value>, &'p str)> {
    let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut at = value;
    for parent in parents.split('/').filter(|p| !p.is_empty()) {
        at = at.get_mut(parent)?;
    }
    Some((at.as_object_mut()?, name))
}

/// Takes a field out if it is as it should be. Another value stays, so that it is named with what is left.
fn take_if(value: &mut Value, path: &str, is_meant: impl Fn(&Value) -> bool) -> Option<Value> {
    let (fields, name) = place(value, path)?;
    let found = fields.get_mut(name)?;
    if found.is_null() || is_meant(&*found) {
        return fields.remove(name).filter(|v| !v.is_null());
    }
    // One without a part that could be named has its text stand for it.
    if is_nameless(&*found) {
        *found = found.to_string().into();
    }
    None
}

/// Whether [`lose_rest`] would name nothing of a value.
fn is_nameless(value: &Value) -> bool {
    match value {
        Value::Null => true,
        // It names those of its items that are null.
        Value::Array(items) => items.iter().all(|i| !i.is_null() && is_nameless(i)),
        Value::Object(fields) => fields.values().all(is_nameless),
        _ => false,
    }
}

/// Takes a text.
pub(super) fn text(value: &mut Value, path: &str) -> Option<String> {
    match take_if(value, path, Value::is_string) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

/// Takes a list, none of whose items is null; empty: there is none.
pub(super) fn list(value: &mut Value, path: &str) -> Vec<Value> {
    let is_meant = |v: &Value| {
        let items = v.as_array();
        items.is_some_and(|items| !items.contains(&Value::Null))
    };
    match take_if(value, path, is_meant) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// Takes a list of texts.
pub(super) fn texts(value: &mut Value, path: &str) -> Vec<String> {
    let is_meant = |v: &Value| {
        let items = v.as_array();
        items.is_some_and(|items| items.iter().all(Value::is_string))
    };
    let all = take_if(value, path, is_meant);
    let all = all.as_ref().and_then(Value::as_array).into_iter().flatten();
    all.filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// Takes a mapping of texts, such as labels: without one of them it would be about more.
pub(super) fn text_map(value: &mut Value, path: &str) -> BTreeMap<String, String> {
    let is_meant = |v: &Value| {
        let fields = v.as_object();
        fields.is_some_and(|fields| fields.values().all(Value::is_string))
    };
    let map = take_if(value, path, is_meant);
    let all = map
        .as_ref()
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    all.filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned())))
        .collect()
}

/// Takes a field, and puts it into an object under another name.
pub(super) fn carry(from: &mut Value, path: &str, to: &mut Map<String, Value>, name: &str) {
    if let Some(value) = take(from, path) {
        to.insert(name.to_owned(), value);
    }
}

/// Puts an object into another, unless it has no fields.
pub(super) fn nest(to: &mut Map<String, Value>, name: &str, inner: Map<String, Value>) {
    if !inner.is_empty() {
        to.insert(name.to_owned(), inner.into());
    }
}

/// Names everything that is left.
pub(super) fn lose_rest(
    imported: &mut Imported,
    object: &str,
    at: &str,
    left: &Value,
    instead: &str,
) {
    match left {
        Value::Object(fields) => {
            for (name, value) in fields {
                let at = match at.is_empty() {
                    true => name.clone(),
                    false => format!("{at}.{name}"),
                };
                lose_rest(imported, object, &at, value, instead);
            }
        }
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                let at = format!("{at}[{number}]");
                match item {
                    Value::Null => imported.lose(object, &at, "it is empty", instead),
                    _ => lose_rest(imported, object, &at, item, instead),
                }
            }
        }
        Value::Null => {}
        _ => imported.lose(object, at, "has no counterpart", instead),
    }
}

/// Takes a duration, and puts it into an object; one that cannot be said is lost.
pub(super) fn time(
    id: &str,
    at: &str,
    from: &mut Value,
    path: &str,
    to: &mut Map<String, Value>,
    name: &str,
    imported: &mut Imported,
) {
    let Some(text) = text(from, path) else {
        return;
    };
    match duration(&text) {
        Some(duration) => drop(to.insert(name.to_owned(), duration.into())),
        None => imported.lose(
            id,
            &format!("{at}.{}", path.replace('/', ".")),
            &format!("`{text}` is no duration of whole milliseconds"),
            &format!("set `{name}`"),
        ),
    }
}

/// Go's duration in milliseconds. None: it is finer, or none.
pub(super) fn milliseconds(text: &str) -> Option<u64> {
    let mut millis = 0.0;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(unit);
        let number: f64 = number.parse().ok()?;
        millis += number
            * match unit {
                "h" => 3_600_000.0,
                "m" => 60_000.0,
                "s" => 1_000.0,
                "ms" => 1.0,
                "us" | "µs" => 0.001,
                _ => return None,
            };
        rest = next;
    }
    // A policy may not ask for more than a century.
    if !(1.0..=3_155_760_000_000.0).contains(&millis) || millis.fract() != 0.0 {
        return None;
    }
    // Whole, positive and in range: just asked.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Some(millis as u64)
}

/// Go's duration as Tulle's: whole numbers with `h`, `m`, `s` and `ms`. None: it is finer than a millisecond, or none.
pub(super) fn duration(text: &str) -> Option<String> {
    let millis = milliseconds(text)?;
    let parts = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let mut left = millis;
    let mut written = String::new();
    for (unit, size) in parts {
        if left >= size {
            written += &format!("{}{unit}", left / size);
            left %= size;
        }
    }
    Some(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations_of_go_are_written_in_whole_numbers() {
        for (go, ours) in [
            ("24h", Some("24h")),
            ("1h30m0s", Some("1h30m")),
            ("0.5s", Some("500ms")),
            ("1.5h", Some("1h30m")),
            ("1000ms", Some("1s")),
            ("10us", None),
            ("0s", None),
            ("5", None),
            ("s", None),
            ("1d", None),
            ("", None),
        ] {
            assert_eq!(duration(go).as_deref(), ours, "{go}");
        }
    }

    #[test]
    fn what_is_no_text_or_list_stays_and_is_named() {
        for (odd, place) in [
            (json!(7), "spec.a"),
            (json!(true), "spec.a"),
            (json!({}), "spec.a"),
            (json!({ "b": 1 }), "spec.a.b"),
            (json!({ "b": null }), "spec.a"),
            (json!({ "b": [{}] }), "spec.a"),
            (json!([null]), "spec.a[0]"),
            (json!(["b", 1]), "spec.a[0]"),
        ] {
            let mut value = json!({ "a": odd });
            assert_eq!(text(&mut value, "a"), None);
            assert!(texts(&mut value, "a").is_empty());
            assert!(text_map(&mut value, "a").is_empty());
            let mut imported = Imported::default();
            lose_rest(&mut imported, "X", "spec", &value, "nothing");
            assert_eq!(imported.lost[0].field, place, "{odd}");
        }
        for (mut value, left) in [(json!({ "a": null }), json!({})), (json!([]), json!([]))] {
            assert_eq!(text(&mut value, "a"), None);
            assert!(list(&mut value, "a").is_empty());
            assert_eq!(value, left);
        }
        let mut value = json!({ "a": [1, null], "b": [1, "c"], "d": { "e": "f" } });
        assert!(list(&mut value, "a").is_empty());
        assert_eq!(list(&mut value, "b"), [json!(1), json!("c")]);
        let labels = text_map(&mut value, "d");
        assert_eq!(labels, BTreeMap::from([("e".into(), "f".into())]));
        assert_eq!(value, json!({ "a": [1, null] }));
    }

    #[test]
    fn what_is_left_is_named_by_its_path() {
        let mut value = json!({ "a": { "b": 1, "c": [{ "d": true }] }, "e": null });
        assert_eq!(take(&mut value, "a/b"), Some(json!(1)));
        assert_eq!(take(&mut value, "a/none/b"), None);
        let mut imported = Imported::default();
        lose_rest(&mut imported, "X", "spec", &value, "nothing");
        let fields: Vec<&str> = imported.lost.iter().map(|l| l.field.as_str()).collect();
        assert_eq!(fields, ["spec.a.c[0].d"]);
    }
}
