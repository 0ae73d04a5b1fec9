//! Values while an expression is evaluated: borrowed from the request and the program wherever that is possible.

use crate::error::NoValue;
use std::borrow::Cow;
use std::cmp::Ordering;

/// A value.
#[derive(Debug, Clone)]
pub enum Value<'v> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer without a sign.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// A text.
    String(Cow<'v, str>),
    /// Bytes.
    Bytes(Cow<'v, [u8]>),
    /// A list.
    List(List<'v, Value<'v>>),
    /// A map. A key is there once.
    Map(List<'v, (Value<'v>, Value<'v>)>),
    /// A type, by its name.
    Type(&'static str),
}

/// Items in a row.
#[derive(Debug, Clone)]
pub enum List<'v, T> {
    /// Items of the program.
    Borrowed(&'v [T]),
    /// Made while it was evaluated.
    Owned(Vec<T>),
}

impl<T> List<'_, T> {
    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::Borrowed(items) => items,
            Self::Owned(items) => items,
        }
    }
}

impl<'v> Value<'v> {
    /// A text.
    #[must_use]
    pub fn string(text: &'v str) -> Self {
        Self::String(Cow::Borrowed(text))
    }

    /// A text of bytes that came from elsewhere.
    ///
    /// # Errors
    /// They are not UTF-8.
    pub fn text(bytes: &'v [u8]) -> Result<Self, NoValue> {
        std::str::from_utf8(bytes)
            .map(Self::string)
            .map_err(|_| NoValue::NotText)
    }

    /// The same value without a copy of what it holds.
    #[must_use]
    pub fn borrowed(&'v self) -> Self {
        match self {
            Self::Null => Self::Null,
            Self::Bool(value) => Self::Bool(*value),
            Self::Int(value) => Self::Int(*value),
            Self::Uint(value) => Self::Uint(*value),
            Self::Double(value) => Self::Double(*value),
            Self::String(text) => Self::String(Cow::Borrowed(text)),
            Self::Bytes(bytes) => Self::Bytes(Cow::Borrowed(bytes)),
            Self::List(items) => Self::List(List::Borrowed(items.as_slice())),
            Self::Map(entries) => Self::Map(List::Borrowed(entries.as_slice())),
            Self::Type(name) => Self::Type(name),
        }
    }

    /// Name of its type.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Type(_) => "type",
        }
    }

    /// Number of items of a list or map, characters of a text, bytes.
    pub(crate) fn size(&self) -> Result<usize, NoValue> {
        Ok(match self {
            Self::String(text) => text.chars().count(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(items) => items.as_slice().len(),
            Self::Map(entries) => entries.as_slice().len(),
            _ => return Err(NoValue::NoSuchOverload),
        })
    }

    /// Whether a list has an item, or a map a key, equal to this.
    pub(crate) fn holds(&self, wanted: &Value<'_>) -> Result<bool, NoValue> {
        match self {
            Self::List(items) => Ok(items.as_slice().iter().any(|item| item.equals(wanted))),
            Self::Map(_) => Ok(self.entry(wanted).is_some()),
            _ => Err(NoValue::NoSuchOverload),
        }
    }

    /// The value of a key in a map.
    pub(crate) fn entry(&self, key: &Value<'_>) -> Option<&Value<'v>> {
        let Self::Map(entries) = self else {
            return None;
        };
        let mut entries = entries.as_slice().iter();
        entries.find(|(k, _)| k.equals(key)).map(|(_, v)| v)
    }

    /// The item of a list, or the value of a key.
    pub(crate) fn take(self, index: &Value<'_>) -> Result<Value<'v>, NoValue> {
        let at = || match number(index) {
            // A double that is whole counts as its integer.
            Some(number) => number
                .whole()
                .and_then(|at| usize::try_from(at).ok())
                .ok_or(NoValue::NoSuchItem),
            None => Err(NoValue::NoSuchOverload),
        };
        let is_key = || match index {
            Value::Bool(_)
            | Value::Int(_)
            | Value::Uint(_)
            | Value::Double(_)
            | Value::String(_) => Ok(()),
            _ => Err(NoValue::NoSuchOverload),
        };
        match self {
            Self::List(List::Borrowed(items)) => items
                .get(at()?)
                .map(Value::borrowed)
                .ok_or(NoValue::NoSuchItem),
            Self::List(List::Owned(items)) => {
                items.into_iter().nth(at()?).ok_or(NoValue::NoSuchItem)
            }
            Self::Map(List::Borrowed(entries)) => {
                is_key()?;
                let found = entries.iter().find(|(k, _)| k.equals(index));
                found.map(|(_, v)| v.borrowed()).ok_or(NoValue::NoSuchKey)
            }
            Self::Map(List::Owned(entries)) => {
                is_key()?;
                let found = entries.into_iter().find(|(k, _)| k.equals(index));
                found.map(|(_, v)| v).ok_or(NoValue::NoSuchKey)
            }
            _ => Err(NoValue::NoSuchOverload),
        }
    }

    /// CEL's `==`: numbers by their value, values of different types are not equal.
    pub(crate) fn equals(&self, other: &Value<'_>) -> bool {
        match (self, other) {
            (Self::Null, Value::Null) => true,
            (Self::Bool(a), Value::Bool(b)) => a == b,
            (Self::String(a), Value::String(b)) => a == b,
            (Self::Bytes(a), Value::Bytes(b)) => a == b,
            (Self::Type(a), Value::Type(b)) => a == b,
            (Self::List(a), Value::List(b)) => {
                let (a, b) = (a.as_slice(), b.as_slice());
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b))
            }
            (Self::Map(a), Value::Map(b)) => {
                let (a, b) = (a.as_slice(), b.as_slice());
                let has = |(key, value): &(Value<'_>, Value<'_>)| {
                    other.entry(key).is_some_and(|o| value.equals(o))
                };
                a.len() == b.len() && a.iter().all(has)
            }
            _ => match (number(self), number(other)) {
                (Some(a), Some(b)) => a.compare(b) == Some(Ordering::Equal),
                _ => false,
            },
        }
    }

    /// The order of two values; `None`: one is no number (NaN), and nothing holds.
    pub(crate) fn compare(&self, other: &Value<'_>) -> Result<Option<Ordering>, NoValue> {
        match (self, other) {
            (Self::Bool(a), Value::Bool(b)) => Ok(Some(a.cmp(b))),
            (Self::String(a), Value::String(b)) => Ok(Some(a.cmp(b))),
            (Self::Bytes(a), Value::Bytes(b)) => Ok(Some(a.cmp(b))),
            _ => match (number(self), number(other)) {
                (Some(a), Some(b)) => Ok(a.compare(b)),
                _ => Err(NoValue::NoSuchOverload),
            },
        }
    }
}

#[derive(Clone, Copy)]
enum Number {
    Int(i64),
    Uint(u64),
    Double(f64),
}

fn number(value: &Value<'_>) -> Option<Number> {
    match value {
        Value::Int(value) => Some(Number::Int(*value)),
        Value::Uint(value) => Some(Number::Uint(*value)),
        Value::Double(value) => Some(Number::Double(*value)),
        _ => None,
    }
}

impl Number {
    /// The integer it is.
    fn whole(self) -> Option<i128> {
        match self {
            Self::Int(value) => Some(value.into()),
            Self::Uint(value) => Some(value.into()),
            Self::Double(value) => match value.fract() == 0.0 && value.abs() < 1e19 {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "it is whole and less than 1e19"
                )]
                true => Some(value as i128),
                false => None,
            },
        }
    }

    /// Compares by the numbers' values; an integer with a double as the nearest double, as the
    /// specification's tests have it.
    fn compare(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Double(a), b) => a.partial_cmp(&b.nearest()),
            (a, Self::Double(b)) => a.nearest().partial_cmp(&b),
            (a, b) => Some(a.whole()?.cmp(&b.whole()?)),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "the nearest double is meant")]
    fn nearest(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Uint(value) => value as f64,
            Self::Double(value) => value,
        }
    }
}
