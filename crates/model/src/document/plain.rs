//! YAML that is read without a type: manifests of others, kubeconfigs, files of values.
//!
//! It is read as our own manifests are, so that there is one reader of YAML for all. One for each type is a quarter of a
//! megabyte of the command's program.

use super::node::{Node, Position, Value};
use serde_saphyr::Spanned;
use std::fmt;

/// A document, which remembers where its parts stood.
#[derive(Debug)]
pub struct YamlDocument(Node);

/// Which words are truth values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Booleans {
    /// `true` and `false` (YAML 1.2)
    Strict,
    /// `yes`, `on` … as well (YAML 1.1), as `kubectl` reads them
    Wide,
}

/// Where a part of a document begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(Position);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.0.line, self.0.column)
    }
}

impl YamlDocument {
    /// Every document of a file of YAML or JSON.
    ///
    /// # Errors
    /// The file is not YAML; the text says why and where, for people.
    pub fn read(text: &str, booleans: Booleans) -> Result<Vec<Self>, String> {
        let strict_booleans = booleans == Booleans::Strict;
        let options =
            serde_saphyr::options! { strict_booleans: strict_booleans, with_snippet: false };
        let read: Result<Vec<Spanned<Value>>, _> =
            serde_saphyr::from_multiple_with_options(text, options);
        let documents = read.map_err(|e| e.to_string())?;
        Ok(documents.into_iter().map(|d| Self(d.into())).collect())
    }

    /// The same as JSON.
    ///
    /// # Errors
    /// As for `read`.
    pub fn read_json(text: &str, booleans: Booleans) -> Result<Vec<serde_json::Value>, String> {
        let documents = Self::read(text, booleans)?;
        Ok(documents.iter().map(Self::json).collect())
    }

    /// Its value.
    pub fn json(&self) -> serde_json::Value {
        json(&self.0)
    }

    /// Where a part is; of a field, its name. A path has names of fields and, in lists, numbers from 0.
    pub fn place(&self, path: &[String]) -> Option<Place> {
        let (mut node, mut at) = (&self.0, self.0.at);
        for step in path {
            (at, node) = match &node.value {
                Value::List(items) => {
                    let item = items.get(step.parse::<usize>().ok()?)?;
                    (item.at, item)
                }
                Value::Map(entries) => {
                    let entry = entries.iter().find(|e| e.key == *step)?;
                    (entry.key_at, &entry.value)
                }
                _ => return None,
            };
        }
        Some(Place(at))
    }
}

fn json(node: &Node) -> serde_json::Value {
    use serde_json::{Number, Value as Json};
    match &node.value {
        Value::Null => Json::Null,
        Value::Bool(b) => Json::Bool(*b),
        // A number that JSON has no room for keeps its digits.
        Value::Integer(i) => {
            Number::from_i128(*i).map_or_else(|| Json::String(i.to_string()), Json::Number)
        }
        Value::Float(f) => Number::from_f64(*f).map_or(Json::Null, Json::Number),
        Value::Text(text) => Json::String(text.clone()),
        Value::List(items) => Json::Array(items.iter().map(json).collect()),
        Value::Map(entries) => {
            let entries = entries.iter().map(|e| (e.key.clone(), json(&e.value)));
            Json::Object(entries.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn documents_become_json_and_say_where_things_are() {
        let text = "a: [1, -2.5, 'x', null, yes]\nb:\n  c: &d {e: true}\n  f: *d\n---\n18446744073709551615\n";
        let documents = YamlDocument::read(text, Booleans::Strict).unwrap();
        let values: Vec<_> = documents.iter().map(YamlDocument::json).collect();
        let first = json!({ "a": [1, -2.5, "x", null, "yes"], "b": { "c": { "e": true }, "f": { "e": true } } });
        assert_eq!(values, [first, json!(u64::MAX)]);
        let wide = YamlDocument::read_json("[yes, off, 7]", Booleans::Wide).unwrap();
        assert_eq!(wide, [json!([true, false, 7])]);
        let place = |path: &[&str]| {
            let path: Vec<_> = path.iter().map(|&s| s.to_owned()).collect();
            documents[0].place(&path).map(|place| place.to_string())
        };
        assert_eq!(place(&["a", "2"]).unwrap(), "line 1, column 14");
        assert_eq!(place(&["b", "c", "e"]).unwrap(), "line 3, column 10");
        assert_eq!(place(&["b", "g"]), None);
        assert_eq!(place(&["a", "5"]), None);
    }

    #[test]
    fn what_is_no_yaml_or_says_something_twice_is_refused() {
        for text in ["[", "a: 1\na: 2\n", "a: *b\n"] {
            let why = YamlDocument::read_json(text, Booleans::Strict).unwrap_err();
            assert!(why.contains("line"), "{text:?}: {why}");
        }
    }
}
