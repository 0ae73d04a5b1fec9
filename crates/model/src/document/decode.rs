//! Typed values out of a tree, strictly, with every complaint a document deserves.
//!
//! serde stops at the first error. Here each error is recorded where it arises, the offending value
//! is set aside and the document is read again, until nothing new is found.

use super::error::{Finding, Path, Report};
use super::node::{Entry, Node, Position, Value};
use super::suggest::did_you_mean;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use std::cell::RefCell;
use std::fmt;

/// Explains a field that a type does not have: from the type's and the field's name, it returns why
/// the field is not accepted although a user may expect it.
pub(crate) type Explain = fn(&str, &str) -> Option<(String, String)>;

/// Reads `root` as a `T`. `None` if there are complaints, which are then in the report.
pub(crate) fn decode<T: de::DeserializeOwned>(
    root: &Node,
    explain: Explain,
    report: &mut Report,
) -> Option<T> {
    let context = Context {
        report: RefCell::new(Report::default()),
        explain,
    };
    loop {
        let result = T::deserialize(Reader {
            node: root,
            path: Path::default(),
            context: &context,
        });
        match result {
            Ok(value) => {
                let found = context.report.into_inner().into_findings();
                let clean = found.is_empty();
                found.into_iter().for_each(|f| report.push(f));
                return clean.then_some(value);
            }
            Err(error) => {
                context.record(error, root, &Path::default());
                if root.skip.get() || context.report.borrow().is_full() {
                    let found = context.report.into_inner().into_findings();
                    found.into_iter().for_each(|f| report.push(f));
                    return None;
                }
            }
        }
    }
}

struct Context {
    report: RefCell<Report>,
    explain: Explain,
}

impl Context {
    fn add(&self, path: &Path, at: Position, problem: String, hint: String) {
        self.report.borrow_mut().push(Finding {
            path: path.clone(),
            at: Some(at),
            problem,
            hint,
        });
    }

    /// Notes the error at the value it arose in and sets the value aside.
    fn record(&self, error: Refused, node: &Node, path: &Path) -> Refused {
        match error {
            Refused::Recorded => return Refused::Recorded,
            Refused::Missing(field) => self.add(
                &path.key(field),
                node.at,
                "required field is missing".into(),
                required(field),
            ),
            Refused::Because { problem, hint } => self.add(path, node.at, problem, hint),
        }
        node.skip.set(true);
        Refused::Recorded
    }
}

/// Returns the hint for a missing field.
pub(crate) fn required(field: &str) -> String {
    format!("add `{field}: …`")
}

/// Why a value was not accepted.
#[derive(Debug)]
enum Refused {
    /// Already in the report.
    Recorded,
    Missing(&'static str),
    Because {
        problem: String,
        hint: String,
    },
}

fn because(problem: String, hint: impl Into<String>) -> Refused {
    Refused::Because {
        problem,
        hint: hint.into(),
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recorded => f.write_str("already reported"),
            Self::Missing(field) => write!(f, "missing field {field}"),
            Self::Because { problem, .. } => f.write_str(problem),
        }
    }
}

impl std::error::Error for Refused {}

impl de::Error for Refused {
    fn custom<T: fmt::Display>(message: T) -> Self {
        let problem = match message.to_string().as_str() {
            "invalid IP address syntax" => "expected an IP address such as 10.0.0.1".into(),
            "invalid socket address syntax" => {
                "expected an address with port such as 127.0.0.1:8080".into()
            }
            other => other.to_owned(),
        };
        because(problem, "")
    }
    fn missing_field(field: &'static str) -> Self {
        Self::Missing(field)
    }
}

#[derive(Clone)]
struct Reader<'a> {
    node: &'a Node,
    path: Path,
    context: &'a Context,
}

impl<'a> Reader<'a> {
    fn expected(&self, what: &str) -> Refused {
        because(
            format!("expected {what}, found {}", self.node.describe()),
            "",
        )
    }

    fn integer(&self, min: i128, max: i128) -> Result<i128, Refused> {
        match self.node.value {
            Value::Integer(i) if (min..=max).contains(&i) => Ok(i),
            _ if self.path.is_port() => Err(self.expected("a port from 1 to 65535")),
            Value::Text(ref text) if text.parse::<i128>().is_ok() => Err(because(
                format!("expected a whole number, found the text `{text}`"),
                "remove the quotes",
            )),
            _ => Err(self.expected(&format!("a whole number from {min} to {max}"))),
        }
    }

    fn as_text(&self) -> Result<&'a str, Refused> {
        match &self.node.value {
            Value::Text(text) => Ok(text),
            Value::Bool(_) | Value::Integer(_) | Value::Float(_) => Err(because(
                format!("expected text, found {}", self.node.describe()),
                "put it in quotes",
            )),
            _ => Err(self.expected("text")),
        }
    }

    /// A serde error about this text, with the text.
    fn text<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Refused> {
        let text = self.as_text()?;
        visitor.visit_str(text).map_err(|e| match e {
            Refused::Because { problem, hint } => {
                because(format!("{problem}, found {}", self.node.describe()), hint)
            }
            other => other,
        })
    }

    fn child(&self, node: &'a Node, path: Path) -> Self {
        Self {
            node,
            path,
            context: self.context,
        }
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $t:ty),*) => {$(
        fn $method<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Refused> {
            let number = self.integer(<$t>::MIN.into(), <$t>::MAX.into())?;
            match <$t>::try_from(number) {
                Ok(number) => visitor.$visit(number),
                Err(_) => Err(self.expected("a whole number")),
            }
        }
    )*};
}

impl<'a> Deserializer<'a> for Reader<'a> {
    type Error = Refused;

    integers! {
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32, deserialize_u64 visit_u64 u64,
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64
    }

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Refused> {
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::Integer(i) => match i64::try_from(*i) {
                Ok(i) => visitor.visit_i64(i),
                Err(_) => visitor.visit_i128(*i),
            },
            Value::Float(f) => visitor.visit_f64(*f),
            Value::Text(text) => visitor.visit_str(text),
            Value::List(_) => self.deserialize_seq(visitor),
            Value::Map(_) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.node.value {
            Value::Bool(b) => visitor.visit_bool(b),
            _ => Err(self.expected("`true` or `false`")),
        }
    }

    fn deserialize_str<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.text(visitor)
    }

    fn deserialize_string<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.text(visitor)
    }

    fn deserialize_identifier<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.text(visitor)
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Refused> {
        match &self.node.value {
            Value::List(items) => visitor.visit_seq(Items {
                reader: &self,
                items: items.iter().enumerate(),
            }),
            _ => Err(self.expected("a list")),
        }
    }

    fn deserialize_tuple<V: Visitor<'a>>(
        self,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'a>>(
        self,
        _name: &'static str,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Refused> {
        let Value::Map(entries) = &self.node.value else {
            return Err(self.expected("a mapping"));
        };
        self.refuse_duplicates(entries);
        visitor.visit_map(Entries {
            reader: &self,
            entries: entries.iter(),
            value: None,
            keep_null: true,
        })
    }

    fn deserialize_struct<V: Visitor<'a>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let Value::Map(entries) = &self.node.value else {
            let fields = some_of(fields);
            return Err(self.expected(&format!("a mapping with fields such as {fields}")));
        };
        self.refuse_duplicates(entries);
        self.refuse_unknown(name, fields, entries);
        let result = visitor.visit_map(Entries {
            reader: &self,
            entries: entries.iter(),
            value: None,
            keep_null: false,
        });
        match result {
            // The field exists, but was complained about already.
            Err(Refused::Missing(field))
                if entries.iter().any(|e| e.key == field && e.value.skip.get()) =>
            {
                self.node.skip.set(true);
                Err(Refused::Recorded)
            }
            // Known here to be this mapping; a caller would take it for its own.
            Err(Refused::Missing(field)) => {
                Err(self
                    .context
                    .record(Refused::Missing(field), self.node, &self.path))
            }
            other => other,
        }
    }

    fn deserialize_enum<V: Visitor<'a>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let (name, content) = match &self.node.value {
            Value::Text(text) => (text.as_str(), None),
            Value::Map(entries) if entries.len() == 1 => {
                (entries[0].key.as_str(), Some(&entries[0].value))
            }
            _ => return Err(self.expected(&one_of(variants))),
        };
        let Some(known) = variants.iter().find(|v| **v == name) else {
            let hint = did_you_mean(name, variants.iter().copied());
            let hint = hint.map_or_else(String::new, |v| format!("did you mean `{v}`?"));
            let problem = format!(
                "expected {}, found `{}`",
                one_of(variants),
                super::error::shorten(name)
            );
            return Err(because(problem, hint));
        };
        visitor.visit_enum(Variant {
            name: known,
            content: content.map(|node| self.child(node, self.path.key(known))),
        })
    }

    // No manifest has such a field; its value is offered as it is.
    serde::forward_to_deserialize_any! {
        <V: Visitor<'a>>
        f32 f64 i128 u128 char bytes byte_buf unit unit_struct ignored_any
    }
}

impl<'a> Reader<'a> {
    fn refuse_duplicates(&self, entries: &'a [Entry]) {
        let mut first = std::collections::HashMap::new();
        for entry in entries {
            if let Some(at) = first.insert(entry.key.as_str(), entry.key_at)
                && !entry.value.skip.replace(true)
            {
                self.context.add(
                    &self.path.key(&entry.key),
                    entry.key_at,
                    format!("it is given twice, first on line {}", at.line),
                    "remove one of them".into(),
                );
            }
        }
    }

    fn refuse_unknown(&self, name: &str, fields: &'static [&'static str], entries: &'a [Entry]) {
        for entry in entries {
            let key = entry.key.as_str();
            if fields.contains(&key) || entry.value.skip.replace(true) {
                continue;
            }
            let (problem, hint) = (self.context.explain)(name, key).unwrap_or_else(|| {
                let problem = format!(
                    "unknown field `{}`, expected {}",
                    super::error::shorten(key),
                    one_of(fields)
                );
                let close = did_you_mean(key, fields.iter().copied());
                let hint = close.map_or_else(
                    || "remove it".to_owned(),
                    |field| format!("did you mean `{field}`?"),
                );
                (problem, hint)
            });
            self.context
                .add(&self.path.key(key), entry.key_at, problem, hint);
        }
    }
}

fn one_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".into(),
        [only] => format!("`{only}`"),
        [a, b] => format!("`{a}` or `{b}`"),
        many => format!("one of `{}`", many.join("`, `")),
    }
}

fn some_of(names: &[&str]) -> String {
    let shown: Vec<_> = names.iter().take(3).map(|n| format!("`{n}`")).collect();
    shown.join(", ")
}

struct Items<'r, 'a> {
    reader: &'r Reader<'a>,
    items: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
}

impl<'a> SeqAccess<'a> for Items<'_, 'a> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'a>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refused> {
        let Some((index, node)) = self.items.by_ref().find(|(_, node)| !node.skip.get()) else {
            return Ok(None);
        };
        let path = self.reader.path.index(index);
        let reader = self.reader.child(node, path.clone());
        seed.deserialize(reader)
            .map(Some)
            .map_err(|e| self.reader.context.record(e, node, &path))
    }
}

struct Entries<'r, 'a> {
    reader: &'r Reader<'a>,
    entries: std::slice::Iter<'a, Entry>,
    value: Option<&'a Entry>,
    /// In a map a missing value is a mistake; in a struct the field counts as absent.
    keep_null: bool,
}

impl<'a> MapAccess<'a> for Entries<'_, 'a> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'a>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refused> {
        let keep_null = self.keep_null;
        let wanted = |e: &&Entry| {
            !e.value.skip.get() && (keep_null || !matches!(e.value.value, Value::Null))
        };
        let Some(entry) = self.entries.by_ref().find(wanted) else {
            return Ok(None);
        };
        self.value = Some(entry);
        seed.deserialize(entry.key.as_str().into_deserializer())
            .map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        let Some(entry) = self.value.take() else {
            return Err(because("a key without value".into(), ""));
        };
        let path = self.reader.path.key(&entry.key);
        let reader = self.reader.child(&entry.value, path.clone());
        seed.deserialize(reader)
            .map_err(|e| self.reader.context.record(e, &entry.value, &path))
    }
}

struct Variant<'a> {
    name: &'static str,
    content: Option<Reader<'a>>,
}

impl<'a> EnumAccess<'a> for Variant<'a> {
    type Error = Refused;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'a>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), Refused> {
        let name = seed.deserialize(self.name.into_deserializer())?;
        Ok((name, self))
    }
}

impl<'a> Variant<'a> {
    fn content(self) -> Result<Reader<'a>, Refused> {
        let name = self.name;
        self.content.ok_or_else(|| {
            because(
                format!("`{name}` needs a value"),
                format!("write `{name}: …`"),
            )
        })
    }
}

impl<'a> VariantAccess<'a> for Variant<'a> {
    type Error = Refused;

    fn unit_variant(self) -> Result<(), Refused> {
        match self.content {
            None => Ok(()),
            Some(_) => Err(because(format!("`{}` has no value", self.name), "")),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'a>>(self, seed: T) -> Result<T::Value, Refused> {
        let reader = self.content()?;
        seed.deserialize(reader.clone())
            .map_err(|e| reader.context.record(e, reader.node, &reader.path))
    }

    fn tuple_variant<V: Visitor<'a>>(self, _len: usize, visitor: V) -> Result<V::Value, Refused> {
        self.content()?.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'a>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let name = self.name;
        self.content()?.deserialize_struct(name, fields, visitor)
    }
}
