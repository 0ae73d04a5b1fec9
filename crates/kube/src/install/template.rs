//! Templates describe once what is installed, for `tulle install` and for the Helm chart: objects in which
//! some places are still open. Here they are filled in from values; `chart` writes Helm's expressions in
//! their stead. A test with the real helm shows that both give the same objects.
//!
//! An open place is an object with the one key `$`, so that templates are written with `json!` like
//! everything else. In a mapping, the key `...` takes in a whole mapping of the values; the template's own
//! keys win.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tulle_model::hex;

const OPEN: &str = "$";
/// The key that takes in a mapping.
pub(super) const SPREAD: &str = "...";

/// The content of an open place.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum OpenValue {
    /// The value at this path: `controller.replicas`.
    Value(String),
    /// The namespace it is installed in.
    Namespace,
    /// The version of this program.
    Version,
    /// Texts and places for texts, one after the other.
    Text(Vec<Value>),
    /// One of two; without a second one the key or item is left out.
    If(Condition, Value, Option<Value>),
    /// A template as text in JSON, keys sorted. The name is the chart's.
    Json(String, Value),
    /// Its SHA-256, in hexadecimal.
    Digest(String, Value),
    /// An object for each namespace: the one it is installed in, and those that the values list there.
    EachNamespace(String, Value),
    /// The namespace of the present object within [`OpenValue::EachNamespace`].
    Item,
}

/// A condition on the values.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Condition {
    /// The value is neither empty, nor 0, nor false.
    Set(String),
    /// The number is greater than one.
    Several(String),
    /// One of them holds.
    Any(Vec<Condition>),
    /// All of them hold.
    All(Vec<Condition>),
    /// It does not hold.
    Not(Box<Condition>),
    /// The cluster has this object. Only Helm looks; where nothing is asked of a cluster there is none.
    Present(ObjectPlace),
}

/// Where the API server has an object of a namespace.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ObjectPlace {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

pub(super) fn set(path: &str) -> Condition {
    Condition::Set(path.into())
}

pub(super) fn not(condition: Condition) -> Condition {
    Condition::Not(Box::new(condition))
}

pub(super) fn value(path: &str) -> Value {
    OpenValue::Value(path.into()).open()
}

pub(crate) fn namespace() -> Value {
    OpenValue::Namespace.open()
}

pub(super) fn text(parts: &[Value]) -> Value {
    OpenValue::Text(parts.to_vec()).open()
}

pub(super) fn when(condition: Condition, then: Value) -> Value {
    OpenValue::If(condition, then, None).open()
}

pub(super) fn either(condition: Condition, then: Value, otherwise: Value) -> Value {
    OpenValue::If(condition, then, Some(otherwise)).open()
}

/// A value, or `otherwise` where it is not set.
pub(super) fn or(path: &str, otherwise: Value) -> Value {
    either(set(path), value(path), otherwise)
}

impl OpenValue {
    pub(super) fn open(self) -> Value {
        json!({ OPEN: self })
    }

    /// The open place that a part of a template is, if it is one.
    pub(super) fn from_template(template: &Value) -> Option<Self> {
        let open = template.as_object()?.get(OPEN)?;
        Self::deserialize(open).ok()
    }
}

/// Fills open places in.
#[derive(Debug)]
pub(super) struct Filler<'a> {
    pub(super) namespace: &'a str,
    pub(super) values: &'a Value,
    /// The namespace of the present object, where a template makes one object for each namespace.
    pub(super) item: &'a str,
}

impl Filler<'_> {
    /// The objects that a template gives.
    pub(super) fn objects(&self, template: &Value) -> Vec<Value> {
        let Some(OpenValue::EachNamespace(path, each)) = OpenValue::from_template(template) else {
            return self.fill(template).into_iter().collect();
        };
        let listed = self.value(&path).as_array().into_iter().flatten();
        let listed = listed.filter_map(Value::as_str);
        let mut namespaces = vec![self.namespace];
        for namespace in listed {
            if !namespaces.contains(&namespace) {
                namespaces.push(namespace);
            }
        }
        let made = namespaces.into_iter().filter_map(|item| {
            let filler = Filler { item, ..*self };
            filler.fill(&each)
        });
        made.collect()
    }

    /// The template with all its places filled in; none: it is left out as a whole.
    pub(super) fn fill(&self, template: &Value) -> Option<Value> {
        if let Some(place) = OpenValue::from_template(template) {
            return self.place(place);
        }
        Some(match template {
            Value::Object(fields) => Value::Object(self.mapping(fields)),
            Value::Array(items) => items.iter().filter_map(|item| self.fill(item)).collect(),
            other => other.clone(),
        })
    }

    fn mapping(&self, fields: &Map<String, Value>) -> Map<String, Value> {
        let mut filled = Map::new();
        for (key, template) in fields {
            let Some(value) = self.fill(template) else {
                continue;
            };
            match value {
                Value::Object(more) if key == SPREAD => {
                    let more = more
                        .into_iter()
                        .filter(|(key, _)| !fields.contains_key(key));
                    filled.extend(more);
                }
                value => {
                    filled.insert(key.clone(), value);
                }
            }
        }
        filled
    }

    fn place(&self, place: OpenValue) -> Option<Value> {
        Some(match place {
            OpenValue::Value(path) => self.value(&path).clone(),
            OpenValue::Namespace => self.namespace.into(),
            OpenValue::Item => self.item.into(),
            // A whole object, see `objects`.
            OpenValue::EachNamespace(..) => return None,
            OpenValue::Version => env!("CARGO_PKG_VERSION").into(),
            OpenValue::Text(parts) => {
                let parts = parts.iter().filter_map(|part| self.fill(part));
                parts
                    .map(|part| part.as_str().unwrap_or_default().to_owned())
                    .collect::<String>()
                    .into()
            }
            OpenValue::If(condition, then, otherwise) => {
                return match self.holds(&condition) {
                    true => self.fill(&then),
                    false => self.fill(&otherwise?),
                };
            }
            OpenValue::Json(_, template) => self.json(&template).into(),
            OpenValue::Digest(_, template) => {
                let digest = aws_lc_rs::digest::digest(
                    &aws_lc_rs::digest::SHA256,
                    self.json(&template).as_bytes(),
                );
                hex(digest.as_ref()).into()
            }
        })
    }

    fn json(&self, template: &Value) -> String {
        let mut filled = self.fill(template).unwrap_or_default();
        filled.sort_all_objects();
        filled.to_string()
    }

    fn value(&self, path: &str) -> &Value {
        path.split('.').fold(self.values, |value, key| &value[key])
    }

    fn holds(&self, condition: &Condition) -> bool {
        match condition {
            Condition::Set(path) => match self.value(path) {
                Value::Null => false,
                Value::Bool(set) => *set,
                Value::Number(number) => number.as_f64() != Some(0.0),
                Value::String(text) => !text.is_empty(),
                Value::Array(items) => !items.is_empty(),
                Value::Object(fields) => !fields.is_empty(),
            },
            Condition::Several(path) => self.value(path).as_u64().is_some_and(|n| n > 1),
            Condition::Any(conditions) => conditions.iter().any(|one| self.holds(one)),
            Condition::All(conditions) => conditions.iter().all(|one| self.holds(one)),
            Condition::Not(condition) => !self.holds(condition),
            Condition::Present(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_in() {
        let values =
            json!({ "count": 2, "name": "", "tags": { "a": "of values", "b": "2" }, "list": [] });
        let filler = Filler {
            namespace: "mesh",
            values: &values,
            item: "",
        };
        let template = json!({
            "count": value("count"),
            "name": or("name", text(&["in-".into(), namespace()])),
            "left out": when(set("list"), value("list")),
            "tags": { "a": "of the template", SPREAD: value("tags") },
            "items": [when(set("name"), json!(1)), when(not(set("name")), json!(2))],
            "several": when(Condition::Any(vec![set("list"), Condition::Several("count".into())]), json!(true)),
            "text": OpenValue::Json("x".into(), json!({ "b": value("count"), "a": [] })).open(),
        });
        let filled = json!({
            "count": 2,
            "name": "in-mesh",
            "tags": { "a": "of the template", "b": "2" },
            "items": [2],
            "several": true,
            "text": r#"{"a":[],"b":2}"#,
        });
        assert_eq!(filler.fill(&template), Some(filled));
        let digest = OpenValue::Digest("x".into(), json!({})).open();
        let known = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        assert_eq!(filler.fill(&digest), Some(known.into()));
    }
    #[test]
    fn there_is_an_object_for_each_namespace() {
        let values = json!({ "more": ["a", "mesh", "b", "a"] });
        let filler = Filler {
            namespace: "mesh",
            values: &values,
            item: "",
        };
        let each = json!({ "in": OpenValue::Item.open(), "of": namespace() });
        let template = OpenValue::EachNamespace("more".into(), each).open();
        let expected = ["mesh", "a", "b"].map(|item| json!({ "in": item, "of": "mesh" }));
        assert_eq!(filler.objects(&template), expected);
        assert_eq!(filler.objects(&json!({ "a": 1 })), [json!({ "a": 1 })]);
        assert!(filler.objects(&when(set("less"), json!({}))).is_empty());
    }
}
