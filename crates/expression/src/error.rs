//! Errors of an expression: when it is compiled, and when it is evaluated.

use std::fmt;

/// An expression that is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The fault, for people.
    pub what: String,
}

impl Error {
    /// An error at a byte of the source.
    pub(crate) fn at(source: &str, byte: usize, what: impl Into<String>) -> Self {
        let before = source.get(..byte).unwrap_or(source);
        let line = before.rsplit('\n').next().unwrap_or(before);
        Self {
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
            what: what.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}, column {}: {}",
            self.line, self.column, self.what
        )
    }
}

impl std::error::Error for Error {}

/// The reason why an expression has no value. Whoever asks fails closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoValue {
    /// A map has no such key, or a request no such header.
    NoSuchKey,
    /// No function takes values of these types.
    NoSuchOverload,
    /// An integer was divided by zero.
    DivisionByZero,
    /// An integer is out of its range.
    Overflow,
    /// A list has no item at that place.
    NoSuchItem,
    /// A conversion that its text or number does not allow.
    NotConvertible,
    /// Bytes that are not UTF-8.
    NotText,
    /// A text or list that is longer than [`crate::MAX_RESULT`].
    TooLong,
    /// A field that came more than once, where its readers may take any of them.
    Ambiguous,
    /// Several tokens came, and nothing says whose claims count.
    SeveralTokens,
    /// A variable that has no value here, such as a response that never came.
    Absent,
}

impl fmt::Display for NoValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchKey => "there is no such key or header",
            Self::NoSuchOverload => "no function takes values of these types",
            Self::DivisionByZero => "division by zero",
            Self::Overflow => "an integer is out of its range",
            Self::NoSuchItem => "the list has no item at that place",
            Self::NotConvertible => "the value cannot be converted",
            Self::NotText => "the bytes are not UTF-8",
            Self::TooLong => "the result is too long",
            Self::Ambiguous => "a header came more than once",
            Self::SeveralTokens => "more than one token came",
            Self::Absent => "a variable has no value here",
        })
    }
}

impl std::error::Error for NoValue {}
