//! A compiled expression and its evaluation.

use crate::check;
use crate::error::{Error, NoValue};
use crate::functions::{Function, bounded};
use crate::scope::{Scope, Variable};
use crate::syntax::{self, Binary};
use crate::types::Type;
use crate::value::{List, Value};
use regex::bytes::Regex;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::net::IpAddr;

/// Values of variables.
pub trait Input {
    /// The value of a variable.
    ///
    /// # Errors
    /// It has none.
    fn read(&self, variable: Variable) -> Result<Value<'_>, NoValue>;

    /// An entry of a variable of type [`Type::Table`] by its name in lower case; `None`: it has none.
    ///
    /// # Errors
    /// The entry has no value that all readers agree on.
    fn entry(&self, table: Variable, key: &str) -> Result<Option<Value<'_>>, NoValue> {
        let _ = (table, key);
        Ok(None)
    }
}

/// A compiled expression.
#[derive(Debug)]
pub struct Expression {
    code: Code,
    kind: Type,
    reads: Vec<Variable>,
}

/// One step of a program. Boxes are what a step is made of.
#[derive(Debug)]
pub(crate) enum Code {
    Constant(Value<'static>),
    Variable(Variable),
    Entry(Variable, Key),
    HasEntry(Variable, Key),
    Not(Box<Self>),
    Negate(Box<Self>),
    Binary(Binary, Box<[Self; 2]>),
    Conditional(Box<[Self; 3]>),
    Index(Box<[Self; 2]>),
    Select(Box<Self>, Box<str>),
    Has(Box<Self>, Box<str>),
    Call(Function, Box<[Self]>),
    Test(Test, Box<[Self; 2]>),
    Matches(Box<Self>, Box<Regex>),
    InNetwork(Box<Self>, IpAddr, u8),
    List(Box<[Self]>),
    Map(Box<[(Self, Self)]>),
}

/// A question about two texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    Contains,
    StartsWith,
    EndsWith,
}

/// The key of an entry in a table.
#[derive(Debug)]
pub(crate) enum Key {
    Fixed(Box<str>),
    Computed(Box<Code>),
}

impl Expression {
    /// Compiles a source whose value is to have the type `wanted`.
    ///
    /// # Errors
    /// Says where it is wrong, and what.
    pub fn compile(source: &str, scope: &Scope<'_>, wanted: &Type) -> Result<Self, Error> {
        let tree = syntax::parse(source)?;
        let (code, kind, reads) = check::check(source, &tree, scope)?;
        if !kind.fits(wanted) {
            return Err(Error::at(
                source,
                tree.at,
                format!("the value is {kind}, and {wanted} is needed here"),
            ));
        }
        Ok(Self { code, kind, reads })
    }

    /// The type of its value.
    #[must_use]
    pub fn kind(&self) -> &Type {
        &self.kind
    }

    /// Whether it reads a variable.
    #[must_use]
    pub fn reads(&self, variable: Variable) -> bool {
        self.reads.contains(&variable)
    }

    /// Evaluates it.
    ///
    /// # Errors
    /// It has no value for this input.
    pub fn value<'v>(&'v self, input: &'v dyn Input) -> Result<Value<'v>, NoValue> {
        self.code.value(input)
    }

    /// Evaluates a text.
    ///
    /// # Errors
    /// It has no value for this input, or another than a text.
    pub fn text(&self, input: &dyn Input) -> Result<String, NoValue> {
        self.code.text(input).map(Cow::into_owned)
    }

    /// Evaluates a condition.
    ///
    /// # Errors
    /// It has no value for this input, or another than true and false.
    pub fn condition(&self, input: &dyn Input) -> Result<bool, NoValue> {
        self.code.condition(input)
    }
}

impl Code {
    /// The value of a step that is true or false. These make most of an expression, so they do without a
    /// [`Value`] where they can.
    fn condition(&self, input: &dyn Input) -> Result<bool, NoValue> {
        match self {
            Self::Not(operand) => Ok(!operand.condition(input)?),
            Self::Binary(operator @ (Binary::And | Binary::Or), sides) => {
                let [left, right] = &**sides;
                // One side that decides is enough, also where the other has no value.
                let deciding = *operator == Binary::Or;
                match left.condition(input) {
                    Ok(value) if value == deciding => Ok(value),
                    Ok(_) => right.condition(input),
                    Err(none) => match right.condition(input) {
                        Ok(value) if value == deciding => Ok(value),
                        _ => Err(none),
                    },
                }
            }
            Self::Binary(operator, sides) if operator.is_comparison() => {
                let [left, right] = &**sides;
                let left = left.value(input)?;
                match right {
                    Self::Constant(right) => compare(*operator, &left, right),
                    right => compare(*operator, &left, &right.value(input)?),
                }
            }
            Self::HasEntry(table, key) => match key.look_up(*table, input) {
                Ok(found) => Ok(found.is_some()),
                // It is there, whatever its value is.
                Err(NoValue::Ambiguous | NoValue::NotText) => Ok(true),
                Err(none) => Err(none),
            },
            Self::Has(operand, name) => match operand.value(input)? {
                operand @ Value::Map(_) => Ok(operand.entry(&Value::string(name)).is_some()),
                _ => Err(NoValue::NoSuchOverload),
            },
            Self::Test(test, sides) => {
                let [text, part] = &**sides;
                let (text, part) = (text.text(input)?, part.text(input)?);
                Ok(match test {
                    Test::Contains => text.contains(&*part),
                    Test::StartsWith => text.starts_with(&*part),
                    Test::EndsWith => text.ends_with(&*part),
                })
            }
            Self::Matches(operand, pattern) => {
                Ok(pattern.is_match(operand.text(input)?.as_bytes()))
            }
            Self::InNetwork(operand, network, prefix) => {
                let address = operand
                    .text(input)?
                    .parse()
                    .map_err(|_| NoValue::NotConvertible)?;
                Ok(contains(*network, *prefix, address))
            }
            other => match other.value(input)? {
                Value::Bool(value) => Ok(value),
                _ => Err(NoValue::NoSuchOverload),
            },
        }
    }

    fn text<'v>(&'v self, input: &'v dyn Input) -> Result<Cow<'v, str>, NoValue> {
        match self {
            Self::Constant(Value::String(text)) => Ok(Cow::Borrowed(text)),
            other => text(other.value(input)?),
        }
    }

    fn value<'v>(&'v self, input: &'v dyn Input) -> Result<Value<'v>, NoValue> {
        match self {
            Self::Constant(value) => Ok(value.borrowed()),
            Self::Variable(variable) => input.read(*variable),
            Self::Entry(table, key) => key.look_up(*table, input)?.ok_or(NoValue::NoSuchKey),
            Self::Negate(operand) => match operand.value(input)? {
                Value::Int(value) => value.checked_neg().map(Value::Int).ok_or(NoValue::Overflow),
                Value::Double(value) => Ok(Value::Double(-value)),
                _ => Err(NoValue::NoSuchOverload),
            },
            Self::Binary(operator, sides) if operator.is_calculation() => {
                let [left, right] = &**sides;
                let (left, right) = (left.value(input)?, right.value(input)?);
                match operator {
                    Binary::Add => add(left, right),
                    _ => calculate(*operator, &left, &right),
                }
            }
            Self::Conditional(parts) => {
                let [condition, then, otherwise] = &**parts;
                match condition.condition(input)? {
                    true => then.value(input),
                    false => otherwise.value(input),
                }
            }
            Self::Index(sides) => {
                let [operand, index] = &**sides;
                operand.value(input)?.take(&index.value(input)?)
            }
            Self::Select(operand, name) => match operand.value(input)? {
                operand @ Value::Map(_) => operand.take(&Value::string(name)),
                _ => Err(NoValue::NoSuchOverload),
            },
            Self::Call(function, arguments) => {
                let mut arguments = arguments.iter().map(|a| a.value(input));
                let operand = arguments.next().ok_or(NoValue::NoSuchOverload)??;
                let others = [
                    arguments.next().transpose()?,
                    arguments.next().transpose()?,
                    arguments.next().transpose()?,
                ];
                function.call(operand, others)
            }
            Self::List(items) => {
                let items: Result<Vec<_>, _> = items.iter().map(|i| i.value(input)).collect();
                Ok(Value::List(List::Owned(items?)))
            }
            Self::Map(entries) => {
                let mut made: Vec<(Value<'v>, Value<'v>)> = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    let key = key.value(input)?;
                    match key {
                        Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::String(_) => {}
                        _ => return Err(NoValue::NoSuchOverload),
                    }
                    if made.iter().any(|(k, _)| k.equals(&key)) {
                        return Err(NoValue::NotConvertible);
                    }
                    made.push((key, value.value(input)?));
                }
                Ok(Value::Map(List::Owned(made)))
            }
            Self::Not(_)
            | Self::Binary(..)
            | Self::HasEntry(..)
            | Self::Has(..)
            | Self::Test(..)
            | Self::Matches(..)
            | Self::InNetwork(..) => self.condition(input).map(Value::Bool),
        }
    }
}

impl Key {
    fn look_up<'v>(
        &'v self,
        table: Variable,
        input: &'v dyn Input,
    ) -> Result<Option<Value<'v>>, NoValue> {
        match self {
            Self::Fixed(key) => input.entry(table, key),
            Self::Computed(key) => {
                input.entry(table, &text(key.value(input)?)?.to_ascii_lowercase())
            }
        }
    }
}

fn text(value: Value<'_>) -> Result<Cow<'_, str>, NoValue> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(NoValue::NoSuchOverload),
    }
}

fn compare(operator: Binary, left: &Value<'_>, right: &Value<'_>) -> Result<bool, NoValue> {
    let ordered = |holds: fn(Ordering) -> bool| Ok(left.compare(right)?.is_some_and(holds));
    match operator {
        Binary::Equal => Ok(left.equals(right)),
        Binary::NotEqual => Ok(!left.equals(right)),
        Binary::Less => ordered(Ordering::is_lt),
        Binary::LessOrEqual => ordered(Ordering::is_le),
        Binary::Greater => ordered(Ordering::is_gt),
        Binary::GreaterOrEqual => ordered(Ordering::is_ge),
        Binary::In => right.holds(left),
        _ => Err(NoValue::NoSuchOverload),
    }
}

fn add<'v>(left: Value<'v>, right: Value<'v>) -> Result<Value<'v>, NoValue> {
    match (left, right) {
        (Value::Int(a), Value::Int(b)) => a.checked_add(b).map(Value::Int).ok_or(NoValue::Overflow),
        (Value::Uint(a), Value::Uint(b)) => {
            a.checked_add(b).map(Value::Uint).ok_or(NoValue::Overflow)
        }
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a + b)),
        (Value::String(a), Value::String(b)) => {
            bounded(a.len() + b.len())?;
            Ok(Value::String(a + b))
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            bounded(a.len() + b.len())?;
            let mut joined = a.into_owned();
            joined.extend_from_slice(&b);
            Ok(Value::Bytes(Cow::Owned(joined)))
        }
        (Value::List(a), Value::List(b)) => {
            let (mut items, more) = (items(a), items(b));
            bounded((items.len() + more.len()) * size_of::<Value<'_>>())?;
            items.extend(more);
            Ok(Value::List(List::Owned(items)))
        }
        _ => Err(NoValue::NoSuchOverload),
    }
}

fn items<'v>(list: List<'v, Value<'v>>) -> Vec<Value<'v>> {
    match list {
        List::Owned(items) => items,
        List::Borrowed(items) => items.iter().map(Value::borrowed).collect(),
    }
}

fn calculate<'v>(
    operator: Binary,
    left: &Value<'v>,
    right: &Value<'v>,
) -> Result<Value<'v>, NoValue> {
    let division = matches!(operator, Binary::Divide | Binary::Remainder);
    match (left, right) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) if division => {
            Err(NoValue::DivisionByZero)
        }
        (Value::Int(a), Value::Int(b)) => {
            let made = match operator {
                Binary::Subtract => a.checked_sub(*b),
                Binary::Multiply => a.checked_mul(*b),
                Binary::Divide => a.checked_div(*b),
                _ => a.checked_rem(*b),
            };
            made.map(Value::Int).ok_or(NoValue::Overflow)
        }
        (Value::Uint(a), Value::Uint(b)) => {
            let made = match operator {
                Binary::Subtract => a.checked_sub(*b),
                Binary::Multiply => a.checked_mul(*b),
                Binary::Divide => a.checked_div(*b),
                _ => a.checked_rem(*b),
            };
            made.map(Value::Uint).ok_or(NoValue::Overflow)
        }
        (Value::Double(a), Value::Double(b)) => match operator {
            Binary::Subtract => Ok(Value::Double(a - b)),
            Binary::Multiply => Ok(Value::Double(a * b)),
            Binary::Divide => Ok(Value::Double(a / b)),
            _ => Err(NoValue::NoSuchOverload),
        },
        _ => Err(NoValue::NoSuchOverload),
    }
}

fn contains(network: IpAddr, prefix: u8, address: IpAddr) -> bool {
    let address = address.to_canonical();
    let same = |a: u128, b: u128, width: u32| {
        let host = width - u32::from(prefix).min(width);
        a.checked_shr(host).unwrap_or(0) == b.checked_shr(host).unwrap_or(0)
    };
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            same(network.to_bits().into(), address.to_bits().into(), 32)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            same(network.to_bits(), address.to_bits(), 128)
        }
        _ => false,
    }
}
