//! The functions: CEL's standard ones, those of its strings extension that need no loop over what a
//! request says, and Kubernetes' `cidr(…).containsIP(…)`, which the checker knows by itself.

use crate::MAX_RESULT;
use crate::error::NoValue;
use crate::program::Test;
use crate::types::Type;
use crate::value::{List, Value};
use std::borrow::Cow;

/// A function, whatever types it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Size,
    Type,
    Dyn,
    ToBool,
    ToInt,
    ToUint,
    ToDouble,
    ToString,
    ToBytes,
    Test(Test),
    LowerAscii,
    UpperAscii,
    Trim,
    CharAt,
    Substring,
    IndexOf,
    LastIndexOf,
    Replace,
    Split,
}

/// The arguments after the first: an array, because a list would be an allocation for each call.
pub(crate) type Others<'v> = [Option<Value<'v>>; 3];

/// A type in a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Any,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    List,
    Map,
    Type,
    Strings,
}

use Takes::{Any, Bool, Bytes, Double, Int, Map, String as Text, Strings, Uint};

impl Takes {
    fn matches(self, kind: &Type) -> bool {
        match (self, kind) {
            (_, Type::Table) => false,
            (Any, _)
            | (_, Type::Dyn)
            | (Bool, Type::Bool)
            | (Int, Type::Int)
            | (Uint, Type::Uint)
            | (Double, Type::Double)
            | (Text, Type::String)
            | (Bytes, Type::Bytes)
            | (Self::List, Type::List(_))
            | (Map, Type::Map(..))
            | (Self::Type, Type::Type) => true,
            _ => false,
        }
    }

    fn kind(self) -> Type {
        match self {
            Any | Self::List | Map => Type::Dyn,
            Bool => Type::Bool,
            Int => Type::Int,
            Uint => Type::Uint,
            Double => Type::Double,
            Text => Type::String,
            Bytes => Type::Bytes,
            Self::Type => Type::Type,
            Strings => Type::List(Box::new(Type::String)),
        }
    }
}

/// How a function is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `size(a)`
    Call,
    /// `a.contains(b)`
    Method,
    /// Both.
    Either,
}

type Signature = (&'static str, Form, &'static [Takes], Takes, Function);

/// All signatures.
const SIGNATURES: &[Signature] = &[
    ("size", Form::Either, &[Text], Int, Function::Size),
    ("size", Form::Either, &[Bytes], Int, Function::Size),
    ("size", Form::Either, &[Takes::List], Int, Function::Size),
    ("size", Form::Either, &[Map], Int, Function::Size),
    ("type", Form::Call, &[Any], Takes::Type, Function::Type),
    ("dyn", Form::Call, &[Any], Any, Function::Dyn),
    ("bool", Form::Call, &[Bool], Bool, Function::ToBool),
    ("bool", Form::Call, &[Text], Bool, Function::ToBool),
    ("int", Form::Call, &[Int], Int, Function::ToInt),
    ("int", Form::Call, &[Uint], Int, Function::ToInt),
    ("int", Form::Call, &[Double], Int, Function::ToInt),
    ("int", Form::Call, &[Text], Int, Function::ToInt),
    ("uint", Form::Call, &[Int], Uint, Function::ToUint),
    ("uint", Form::Call, &[Uint], Uint, Function::ToUint),
    ("uint", Form::Call, &[Double], Uint, Function::ToUint),
    ("uint", Form::Call, &[Text], Uint, Function::ToUint),
    ("double", Form::Call, &[Int], Double, Function::ToDouble),
    ("double", Form::Call, &[Uint], Double, Function::ToDouble),
    ("double", Form::Call, &[Double], Double, Function::ToDouble),
    ("double", Form::Call, &[Text], Double, Function::ToDouble),
    ("string", Form::Call, &[Bool], Text, Function::ToString),
    ("string", Form::Call, &[Int], Text, Function::ToString),
    ("string", Form::Call, &[Uint], Text, Function::ToString),
    ("string", Form::Call, &[Double], Text, Function::ToString),
    ("string", Form::Call, &[Text], Text, Function::ToString),
    ("string", Form::Call, &[Bytes], Text, Function::ToString),
    ("bytes", Form::Call, &[Text], Bytes, Function::ToBytes),
    ("bytes", Form::Call, &[Bytes], Bytes, Function::ToBytes),
    (
        "contains",
        Form::Method,
        &[Text, Text],
        Bool,
        Function::Test(Test::Contains),
    ),
    (
        "startsWith",
        Form::Method,
        &[Text, Text],
        Bool,
        Function::Test(Test::StartsWith),
    ),
    (
        "endsWith",
        Form::Method,
        &[Text, Text],
        Bool,
        Function::Test(Test::EndsWith),
    ),
    (
        "lowerAscii",
        Form::Method,
        &[Text],
        Text,
        Function::LowerAscii,
    ),
    (
        "upperAscii",
        Form::Method,
        &[Text],
        Text,
        Function::UpperAscii,
    ),
    ("trim", Form::Method, &[Text], Text, Function::Trim),
    ("charAt", Form::Method, &[Text, Int], Text, Function::CharAt),
    (
        "substring",
        Form::Method,
        &[Text, Int],
        Text,
        Function::Substring,
    ),
    (
        "substring",
        Form::Method,
        &[Text, Int, Int],
        Text,
        Function::Substring,
    ),
    (
        "indexOf",
        Form::Method,
        &[Text, Text],
        Int,
        Function::IndexOf,
    ),
    (
        "indexOf",
        Form::Method,
        &[Text, Text, Int],
        Int,
        Function::IndexOf,
    ),
    (
        "lastIndexOf",
        Form::Method,
        &[Text, Text],
        Int,
        Function::LastIndexOf,
    ),
    (
        "lastIndexOf",
        Form::Method,
        &[Text, Text, Int],
        Int,
        Function::LastIndexOf,
    ),
    (
        "replace",
        Form::Method,
        &[Text, Text, Text],
        Text,
        Function::Replace,
    ),
    (
        "replace",
        Form::Method,
        &[Text, Text, Text, Int],
        Text,
        Function::Replace,
    ),
    (
        "split",
        Form::Method,
        &[Text, Text],
        Strings,
        Function::Split,
    ),
    (
        "split",
        Form::Method,
        &[Text, Text, Int],
        Strings,
        Function::Split,
    ),
];

/// Finds the function of that name for arguments of these types, the operand of a method first, and the type of its value.
///
/// # Errors
/// There is none; says why.
pub(crate) fn find(
    name: &str,
    is_method: bool,
    arguments: &[Type],
) -> Result<(Function, Type), String> {
    let named: Vec<&Signature> = SIGNATURES.iter().filter(|s| s.0 == name).collect();
    let Some((_, form, ..)) = named.first() else {
        return Err(format!("there is no function `{name}`"));
    };
    match (form, is_method) {
        (Form::Call, true) => return Err(format!("`{name}` is written `{name}(…)`")),
        (Form::Method, false) => return Err(format!("`{name}` is written `text.{name}(…)`")),
        _ => {}
    }
    let takes = |s: &&&Signature| {
        s.2.len() == arguments.len() && s.2.iter().zip(arguments).all(|(t, a)| t.matches(a))
    };
    match named.iter().find(takes) {
        Some((_, _, _, Any, Function::Dyn)) => Ok((Function::Dyn, Type::Dyn)),
        Some((_, _, _, gives, function)) => Ok((*function, gives.kind())),
        None => {
            let shown: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            Err(format!("`{name}` does not take {}", listed(&shown)))
        }
    }
}

fn listed(types: &[String]) -> String {
    match types {
        [] => "no arguments".to_owned(),
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        all => all.join(", "),
    }
}

impl Function {
    /// Calls it.
    ///
    /// # Errors
    /// It takes no values of these types, or the value does not exist.
    pub(crate) fn call<'v>(
        self,
        operand: Value<'v>,
        others: Others<'v>,
    ) -> Result<Value<'v>, NoValue> {
        match (self, operand, others) {
            (Self::Size, operand, _) => Ok(Value::Int(
                i64::try_from(operand.size()?).map_err(|_| NoValue::Overflow)?,
            )),
            (Self::Type, operand, _) => Ok(Value::Type(operand.kind())),
            (Self::Dyn, operand, _) => Ok(operand),
            (Self::ToBool, operand, _) => to_bool(&operand),
            (Self::ToInt, operand, _) => to_int(&operand),
            (Self::ToUint, operand, _) => to_uint(&operand),
            (Self::ToDouble, operand, _) => to_double(&operand),
            (Self::ToString, operand, _) => to_string(operand),
            (Self::ToBytes, operand, _) => to_bytes(operand),
            (_, Value::String(text), others) => self.of_text(text, others),
            _ => Err(NoValue::NoSuchOverload),
        }
    }

    fn of_text<'v>(self, text: Cow<'v, str>, others: Others<'v>) -> Result<Value<'v>, NoValue> {
        let made = |value: String| Ok(Value::String(Cow::Owned(value)));
        match (self, &others) {
            (Self::LowerAscii, _) => match text.bytes().any(|b| b.is_ascii_uppercase()) {
                true => made(text.to_ascii_lowercase()),
                false => Ok(Value::String(text)),
            },
            (Self::UpperAscii, _) => made(text.to_ascii_uppercase()),
            (Self::Trim, _) => match text {
                Cow::Borrowed(text) => Ok(Value::string(text.trim())),
                Cow::Owned(text) => made(text.trim().to_owned()),
            },
            (Self::CharAt, [Some(Value::Int(at)), ..]) => {
                let at = byte_of(&text, *at)?;
                let next = text.get(at..).and_then(|rest| rest.chars().next());
                made(next.map(String::from).unwrap_or_default())
            }
            (Self::Substring, [Some(Value::Int(from)), until, _]) => {
                let from = byte_of(&text, *from)?;
                let until = match until {
                    Some(Value::Int(until)) => byte_of(&text, *until)?,
                    None => text.len(),
                    Some(_) => return Err(NoValue::NoSuchOverload),
                };
                match text {
                    Cow::Borrowed(text) => text
                        .get(from..until)
                        .map(Value::string)
                        .ok_or(NoValue::NoSuchItem),
                    Cow::Owned(text) => {
                        made(text.get(from..until).ok_or(NoValue::NoSuchItem)?.to_owned())
                    }
                }
            }
            (Self::IndexOf, [Some(Value::String(part)), from, _]) => {
                let from = match from {
                    Some(Value::Int(from)) => byte_of(&text, *from)?,
                    None => 0,
                    Some(_) => return Err(NoValue::NoSuchOverload),
                };
                let found = text
                    .get(from..)
                    .and_then(|rest| rest.find(&**part))
                    .map(|at| from + at);
                place(&text, found)
            }
            (Self::LastIndexOf, [Some(Value::String(part)), until, _]) => {
                // The last one that begins there or before.
                let until = match until {
                    Some(Value::Int(until)) => byte_of(&text, *until)?.saturating_add(part.len()),
                    None => text.len(),
                    Some(_) => return Err(NoValue::NoSuchOverload),
                };
                let end = (0..=until.min(text.len()))
                    .rev()
                    .find(|at| text.is_char_boundary(*at));
                let before = end.and_then(|end| text.get(..end)).unwrap_or_default();
                place(&text, before.rfind(&**part))
            }
            (Self::Replace, [Some(Value::String(from)), Some(Value::String(to)), limit]) => {
                let limit = match limit {
                    Some(Value::Int(limit)) => usize::try_from(*limit).unwrap_or(usize::MAX),
                    None => usize::MAX,
                    Some(_) => return Err(NoValue::NoSuchOverload),
                };
                let times = text.matches(&**from).take(limit).count();
                let grown = text.len().saturating_add(times.saturating_mul(to.len()));
                bounded(grown)?;
                made(text.replacen(&**from, to, limit))
            }
            (Self::Split, [Some(Value::String(by)), limit, _]) => split(&text, by, limit.as_ref()),
            _ => Err(NoValue::NoSuchOverload),
        }
    }
}

/// Refuses a text or list that would be too long.
pub(crate) fn bounded(length: usize) -> Result<(), NoValue> {
    match length <= MAX_RESULT {
        true => Ok(()),
        false => Err(NoValue::TooLong),
    }
}

fn split<'v>(text: &str, by: &str, limit: Option<&Value<'_>>) -> Result<Value<'v>, NoValue> {
    let limit = match limit {
        Some(Value::Int(limit)) => usize::try_from(*limit).unwrap_or(usize::MAX),
        None => usize::MAX,
        Some(_) => return Err(NoValue::NoSuchOverload),
    };
    bounded(
        text.matches(by)
            .take(limit)
            .count()
            .saturating_mul(size_of::<Value<'_>>()),
    )?;
    let part = |part: &str| Value::String(Cow::Owned(part.to_owned()));
    let parts = match (limit, by) {
        (0, _) => Vec::new(),
        // Each character by itself, nothing before the first nor after the last.
        (_, "") => {
            let mut parts: Vec<String> = text.chars().map(String::from).collect();
            if limit < parts.len() {
                let rest = parts.split_off(limit - 1).concat();
                parts.push(rest);
            }
            parts.iter().map(|p| part(p)).collect()
        }
        _ => text.splitn(limit, by).map(part).collect(),
    };
    Ok(Value::List(List::Owned(parts)))
}

/// The byte where a character begins. The end counts as one.
fn byte_of(text: &str, character: i64) -> Result<usize, NoValue> {
    let character = usize::try_from(character).map_err(|_| NoValue::NoSuchItem)?;
    let mut starts = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    starts.nth(character).ok_or(NoValue::NoSuchItem)
}

/// The number of characters before a byte; -1: none.
fn place<'v>(text: &str, byte: Option<usize>) -> Result<Value<'v>, NoValue> {
    let before = byte.and_then(|at| text.get(..at));
    let count =
        before.map(|before| i64::try_from(before.chars().count()).map_err(|_| NoValue::Overflow));
    Ok(Value::Int(count.transpose()?.unwrap_or(-1)))
}

fn to_bool<'v>(value: &Value<'v>) -> Result<Value<'v>, NoValue> {
    match value {
        Value::Bool(value) => Ok(Value::Bool(*value)),
        Value::String(text) => match &**text {
            "1" | "t" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            _ => Err(NoValue::NotConvertible),
        },
        _ => Err(NoValue::NoSuchOverload),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the range is checked before"
)]
fn to_int<'v>(value: &Value<'v>) -> Result<Value<'v>, NoValue> {
    Ok(Value::Int(match value {
        Value::Int(value) => *value,
        Value::Uint(value) => i64::try_from(*value).map_err(|_| NoValue::Overflow)?,
        // Both bounds are excluded, because they are no exact doubles (cel-spec, `int`).
        Value::Double(value)
            if *value > -9_223_372_036_854_775_808.0 && *value < 9_223_372_036_854_775_807.0 =>
        {
            *value as i64
        }
        Value::Double(_) => return Err(NoValue::Overflow),
        Value::String(text) => text.parse().map_err(|_| NoValue::NotConvertible)?,
        _ => return Err(NoValue::NoSuchOverload),
    }))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked before"
)]
fn to_uint<'v>(value: &Value<'v>) -> Result<Value<'v>, NoValue> {
    Ok(Value::Uint(match value {
        Value::Uint(value) => *value,
        Value::Int(value) => u64::try_from(*value).map_err(|_| NoValue::Overflow)?,
        Value::Double(value) if *value >= 0.0 && *value < 18_446_744_073_709_551_615.0 => {
            *value as u64
        }
        Value::Double(_) => return Err(NoValue::Overflow),
        Value::String(text) => text.parse().map_err(|_| NoValue::NotConvertible)?,
        _ => return Err(NoValue::NoSuchOverload),
    }))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the nearest double, as the language says"
)]
fn to_double<'v>(value: &Value<'v>) -> Result<Value<'v>, NoValue> {
    Ok(Value::Double(match value {
        Value::Double(value) => *value,
        Value::Int(value) => *value as f64,
        Value::Uint(value) => *value as f64,
        Value::String(text) => text.parse().map_err(|_| NoValue::NotConvertible)?,
        _ => return Err(NoValue::NoSuchOverload),
    }))
}

fn to_string(value: Value<'_>) -> Result<Value<'_>, NoValue> {
    let made = |text: String| Ok(Value::String(Cow::Owned(text)));
    match value {
        Value::String(text) => Ok(Value::String(text)),
        Value::Bool(value) => made(value.to_string()),
        Value::Int(value) => made(value.to_string()),
        Value::Uint(value) => made(value.to_string()),
        Value::Double(value) => made(value.to_string()),
        Value::Bytes(Cow::Borrowed(bytes)) => Value::text(bytes),
        Value::Bytes(Cow::Owned(bytes)) => {
            made(String::from_utf8(bytes).map_err(|_| NoValue::NotText)?)
        }
        _ => Err(NoValue::NoSuchOverload),
    }
}

fn to_bytes(value: Value<'_>) -> Result<Value<'_>, NoValue> {
    match value {
        Value::Bytes(bytes) => Ok(Value::Bytes(bytes)),
        Value::String(Cow::Borrowed(text)) => Ok(Value::Bytes(Cow::Borrowed(text.as_bytes()))),
        Value::String(Cow::Owned(text)) => Ok(Value::Bytes(Cow::Owned(text.into_bytes()))),
        _ => Err(NoValue::NoSuchOverload),
    }
}
