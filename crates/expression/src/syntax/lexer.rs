//! Text to tokens.

use super::Literal;
use super::text;
use crate::error::Error;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Literal(Literal),
    /// The digits of an integer, whose sign may stand before them.
    Integer {
        magnitude: u64,
        unsigned: bool,
    },
    Name(String),
    /// A field's name in backquotes, which may have signs in it.
    QuotedName(String),
    /// An operator, a bracket or another sign.
    Sign(&'static str),
    End,
}

/// The longest first.
const SIGNS: [&str; 24] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",",
    "(", ")", "[", "]", "{", "}",
];

/// Splits the source into tokens, each with the byte where it begins.
pub(super) fn tokens(source: &str) -> Result<Vec<(usize, Token)>, Error> {
    let mut tokens = Vec::new();
    let mut at = 0;
    loop {
        at += skipped(rest(source, at));
        let left = rest(source, at);
        let Some(first) = left.chars().next() else {
            tokens.push((at, Token::End));
            return Ok(tokens);
        };
        let error = |(inside, what): (usize, String)| Error::at(source, at + inside, what);
        let (token, length) = if let Some(found) = text::quoted(left).map_err(error)? {
            (Token::Literal(found.0), found.1)
        } else if first.is_ascii_digit() || (first == '.' && begins_with_digit(rest(left, 1))) {
            number(left).map_err(error)?
        } else if first == '`' {
            let name = rest(left, 1).split('`').next().unwrap_or_default();
            let fits = |c: char| c.is_ascii_alphanumeric() || "_.-/ ".contains(c);
            if name.is_empty()
                || !name.chars().all(fits)
                || !rest(left, 1 + name.len()).starts_with('`')
            {
                return Err(error((
                    0,
                    "a name in backquotes has letters, digits, `_`, `.`, `-`, `/` and blanks"
                        .into(),
                )));
            }
            (Token::QuotedName(name.to_owned()), name.len() + 2)
        } else if first.is_ascii_alphabetic() || first == '_' {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let name = left.split(|c| !is_part(c)).next().unwrap_or(left);
            (word(name), name.len())
        } else {
            let sign = SIGNS.iter().find(|s| left.starts_with(**s));
            let sign = sign.ok_or_else(|| error((0, unknown(first))))?;
            (Token::Sign(sign), sign.len())
        };
        tokens.push((at, token));
        at += length;
    }
}

fn unknown(sign: char) -> String {
    match sign {
        '=' => "`=` is no operator; equality is `==`".into(),
        '&' => "`&` is no operator; and is `&&`".into(),
        '|' => "`|` is no operator; or is `||`".into(),
        other => format!("{other:?} is not expected here"),
    }
}

fn rest(text: &str, at: usize) -> &str {
    text.get(at..).unwrap_or_default()
}

fn begins_with_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// Length of blanks and comments.
fn skipped(text: &str) -> usize {
    let mut at = 0;
    loop {
        let left = rest(text, at);
        let blank = left.len()
            - left
                .trim_start_matches([' ', '\t', '\n', '\r', '\x0c'])
                .len();
        let comment = match rest(left, blank).starts_with("//") {
            true => rest(left, blank).find('\n').unwrap_or(left.len() - blank),
            false => 0,
        };
        if blank + comment == 0 {
            return at;
        }
        at += blank + comment;
    }
}

fn word(name: &str) -> Token {
    match name {
        "true" => Token::Literal(Literal::Bool(true)),
        "false" => Token::Literal(Literal::Bool(false)),
        "null" => Token::Literal(Literal::Null),
        "in" => Token::Sign("in"),
        _ => Token::Name(name.to_owned()),
    }
}

/// Reads a number, without a sign before it.
fn number(text: &str) -> Result<(Token, usize), (usize, String)> {
    let digits =
        |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let suffix = |length: usize| usize::from(rest(text, length).starts_with(['u', 'U']));
    let integer = |digits: &str, base, length| {
        let magnitude = u64::from_str_radix(digits, base);
        let magnitude = magnitude.map_err(|_| (0, "the integer is out of its range".to_owned()))?;
        let unsigned = suffix(length) == 1;
        Ok((
            Token::Integer {
                magnitude,
                unsigned,
            },
            length + suffix(length),
        ))
    };
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let length = hex.len()
            - hex
                .trim_start_matches(|c: char| c.is_ascii_hexdigit())
                .len();
        return integer(hex.get(..length).unwrap_or_default(), 16, length + 2);
    }
    let mut length = digits(text);
    let mut is_double = false;
    if rest(text, length).starts_with('.') && begins_with_digit(rest(text, length + 1)) {
        length += 1 + digits(rest(text, length + 1));
        is_double = true;
    }
    let exponent = rest(text, length);
    if exponent.starts_with(['e', 'E']) {
        let sign = usize::from(rest(exponent, 1).starts_with(['+', '-']));
        let count = digits(rest(exponent, 1 + sign));
        if count > 0 {
            length += 1 + sign + count;
            is_double = true;
        }
    }
    let digits = text.get(..length).unwrap_or_default();
    match is_double {
        true => {
            let value = digits
                .parse()
                .map_err(|_| (0, "this is no number".to_owned()))?;
            Ok((Token::Literal(Literal::Double(value)), length))
        }
        false => integer(digits, 10, length),
    }
}
