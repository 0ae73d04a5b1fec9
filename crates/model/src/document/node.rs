//! A YAML or JSON document as a tree that remembers where everything stood.

use super::error::{Finding, Path, Step};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};
use std::cell::Cell;
use std::fmt;

/// Largest file read. A mesh of a thousand workloads is about 1 MiB.
const MAX_BYTES: usize = 8 << 20;

/// Line and column from 1; 0: unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Position {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl From<serde_saphyr::Location> for Position {
    fn from(location: serde_saphyr::Location) -> Self {
        Self {
            line: u32::try_from(location.line()).unwrap_or(u32::MAX),
            column: u32::try_from(location.column()).unwrap_or(u32::MAX),
        }
    }
}

/// A value and where it stood.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) value: Value,
    /// Already complained about; not looked at again.
    pub(super) skip: Cell<bool>,
}

/// The value of a node.
#[derive(Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key with its value.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_at: Position,
    pub(crate) value: Node,
}

impl Node {
    fn new(at: Position, value: Value) -> Self {
        Self {
            at,
            value,
            skip: Cell::new(false),
        }
    }

    /// A document with nothing in it, for errors that come before there is one.
    pub(crate) fn empty() -> Self {
        Self::new(Position::default(), Value::Null)
    }

    /// Every document of a YAML file. Empty ones are left out.
    ///
    /// Only what cannot be read as a tree is an error here: syntax, a budget, an unknown tag.
    pub(crate) fn parse_yaml(text: &str) -> Result<Vec<Self>, Finding> {
        let refuse = |at: Option<Position>, problem: String, hint: &str| Finding {
            path: Path::default(),
            at,
            problem,
            hint: hint.into(),
        };
        if text.len() > MAX_BYTES {
            let problem = format!("the file has {} bytes, more than {MAX_BYTES}", text.len());
            return Err(refuse(
                Some(Position::default()),
                problem,
                "split it into several files",
            ));
        }
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_depth: 32,
                max_events: 400_000,
                max_nodes: 200_000,
                max_aliases: 1_000,
                max_anchors: 1_000,
                max_merge_keys: 1_000,
                max_total_scalar_bytes: MAX_BYTES,
            },
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
            strict_booleans: true,
            // Found here, with both places known.
            duplicate_keys: DuplicateKeyPolicy::PassThrough,
            leading_zero_numbers_as_strings: true,
            underscored_numbers_as_strings: true,
            reject_unsupported_tags: true,
            with_snippet: false,
        };
        let documents: Vec<Spanned<Value>> =
            serde_saphyr::from_multiple_with_options(text, options).map_err(|e| {
                let at = e.location().map(Position::from).unwrap_or_default();
                let message = e.without_snippet().to_string();
                // The position is given once, in front.
                let message = message.split(" at line ").next().unwrap_or_default();
                let problem = format!("not valid YAML: {message}");
                refuse(Some(at), problem, "nothing of this file was read")
            })?;
        Ok(documents.into_iter().map(Node::from).collect())
    }

    /// A JSON value; positions are unknown.
    pub(crate) fn from_json(json: serde_json::Value) -> Self {
        use serde_json::Value as Json;
        let value = match json {
            Json::Null => Value::Null,
            Json::Bool(b) => Value::Bool(b),
            Json::Number(n) => match (n.as_i128(), n.as_f64()) {
                (Some(i), _) => Value::Integer(i),
                (None, Some(f)) => Value::Float(f),
                (None, None) => Value::Text(n.to_string()),
            },
            Json::String(text) => Value::Text(text),
            Json::Array(items) => Value::List(items.into_iter().map(Self::from_json).collect()),
            Json::Object(entries) => {
                let entry = |(key, value)| Entry {
                    key,
                    key_at: Position::default(),
                    value: Self::from_json(value),
                };
                Value::Map(entries.into_iter().map(entry).collect())
            }
        };
        Self::new(Position::default(), value)
    }

    /// The value of a key, if this is a mapping that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|e| e.key == key).map(|e| &e.value),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the position of the field, or of the innermost node around it that exists.
    pub(super) fn locate(&self, path: &[Step]) -> Position {
        let mut node = self;
        for step in path {
            let next = match (step, &node.value) {
                (Step::Key(key), _) => node.get(key),
                (Step::Index(index), Value::List(items)) => items.get(*index),
                (Step::Index(_), _) => None,
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node.at
    }

    /// Describes the value in words for a message.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".into(),
            Value::Bool(b) => format!("`{b}`"),
            Value::Integer(i) => format!("the number {i}"),
            Value::Float(f) => format!("the number {f}"),
            Value::Text(text) => format!("`{}`", super::error::shorten(text)),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a mapping".into(),
        }
    }
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        Self::new(spanned.referenced.into(), spanned.value)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }
    fn visit_bool<E>(self, b: bool) -> Result<Value, E> {
        Ok(Value::Bool(b))
    }
    fn visit_i64<E>(self, i: i64) -> Result<Value, E> {
        Ok(Value::Integer(i.into()))
    }
    fn visit_u64<E>(self, i: u64) -> Result<Value, E> {
        Ok(Value::Integer(i.into()))
    }
    fn visit_i128<E>(self, i: i128) -> Result<Value, E> {
        Ok(Value::Integer(i))
    }
    fn visit_u128<E>(self, i: u128) -> Result<Value, E> {
        Ok(i128::try_from(i).map_or_else(|_| Value::Text(i.to_string()), Value::Integer))
    }
    fn visit_f64<E>(self, f: f64) -> Result<Value, E> {
        Ok(Value::Float(f))
    }
    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }
    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Spanned<Value>>()? {
            items.push(item.into());
        }
        Ok(Value::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let key_at = key.referenced.into();
            let mut value = Node::from(map.next_value::<Spanned<Value>>()?);
            if matches!(value.value, Value::Null) {
                // The reader of YAML puts an absent value at the next token.
                value.at = key_at;
            }
            entries.push(Entry {
                key: key.value,
                key_at,
                value,
            });
        }
        Ok(Value::Map(entries))
    }
}
