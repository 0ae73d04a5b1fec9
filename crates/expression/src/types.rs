//! Types of values as the checker knows them.

use std::fmt;

/// The type of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// Known only when it is evaluated.
    Dyn,
    /// `null`.
    Null,
    /// `true` and `false`.
    Bool,
    /// 64 bits with a sign.
    Int,
    /// 64 bits without one.
    Uint,
    /// A floating-point number.
    Double,
    /// Unicode text.
    String,
    /// Bytes.
    Bytes,
    /// A list of items of one type.
    List(Box<Type>),
    /// A map from one type to another.
    Map(Box<Type>, Box<Type>),
    /// Texts by name, such as headers: only asked for one at a time, never made into a map.
    Table,
    /// A type itself.
    Type,
}

impl Type {
    /// Whether a value of this type may stand where `wanted` is expected.
    pub(crate) fn fits(&self, wanted: &Self) -> bool {
        match (self, wanted) {
            (Self::Dyn, other) | (other, Self::Dyn) => *other != Self::Table,
            (Self::List(own), Self::List(wanted)) => own.fits(wanted),
            (Self::Map(key, value), Self::Map(wanted_key, wanted_value)) => {
                key.fits(wanted_key) && value.fits(wanted_value)
            }
            (own, wanted) => own == wanted,
        }
    }

    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    /// The type of both, or what can be either.
    pub(crate) fn join(self, other: Self) -> Self {
        match self == other {
            true => self,
            false => Self::Dyn,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => f.write_str("dyn"),
            Self::Null => f.write_str("null_type"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::String => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::List(item) => write!(f, "list({item})"),
            Self::Map(key, value) => write!(f, "map({key}, {value})"),
            Self::Table => f.write_str("table of strings"),
            Self::Type => f.write_str("type"),
        }
    }
}
