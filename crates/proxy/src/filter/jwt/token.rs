//! A JSON Web Token (RFC 7519) in compact form (RFC 7515), read strictly.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use super::keys::Keys;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;
use tulle_expression::{self as expression, List};

/// Longest token.
pub const MAX_BYTES: usize = 16 * 1024;
/// Clocks may differ by this many seconds.
const LEEWAY: f64 = 60.0;

/// Errors of a token. The texts are fixed: no part of a token is shown to anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BadToken {
    TooLong,
    Malformed,
    Critical,
    Issuer,
    Signature,
    Expired,
    NoExpiry,
    NotYet,
    Times,
    Audience,
}

impl fmt::Display for BadToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "the token is longer than 16 KiB",
            Self::Malformed => "the token is no signed JWT in compact form",
            Self::Critical => "the token has critical extensions (`crit`), none is known here",
            Self::Issuer => "no provider for the token's issuer (`iss`)",
            Self::Signature => "no key of the issuer has made the token's signature",
            Self::Expired => "the token has expired",
            Self::NoExpiry => {
                "the token has no expiry (`exp`), which its provider requires (`requireExpiry`)"
            }
            Self::NotYet => "the token is not valid yet, or issued in the future",
            Self::Times => "exp, nbf or iat of the token is no time",
            Self::Audience => "the token is for another audience",
        })
    }
}

/// A token whose signature has not been checked.
pub struct Token<'a> {
    signed: &'a [u8],
    signature: Vec<u8>,
    header: Header,
    claims: Claims,
    claims_bytes: usize,
}

// A repeated name is an error here; unknown names are ignored.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// The claims of a token. Only [`Token::verify`] tells whether they are true.
pub struct Claims(serde_json::Map<String, Value>);

/// base64url without padding, and with no bits left over (RFC 7515, appendix C).
pub fn base64url(text: &[u8]) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

impl<'a> Token<'a> {
    /// Reads a token.
    ///
    /// # Errors
    /// It is not a token.
    pub fn parse(text: &'a [u8]) -> Result<Self, BadToken> {
        if text.len() > MAX_BYTES {
            return Err(BadToken::TooLong);
        }
        let mut parts = text.split(|&b| b == b'.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(BadToken::Malformed);
        };
        let signed = text
            .get(..header.len() + 1 + claims.len())
            .ok_or(BadToken::Malformed)?;
        let decoded = |part| base64url(part).ok_or(BadToken::Malformed);
        let header: Header =
            serde_json::from_slice(&decoded(header)?).map_err(|_| BadToken::Malformed)?;
        if header.crit.is_some() {
            return Err(BadToken::Critical);
        }
        let claims = decoded(claims)?;
        let claims_bytes = claims.len();
        let claims = serde_json::from_slice(&claims).map_err(|_| BadToken::Malformed)?;
        Ok(Self {
            claims_bytes,
            signed,
            signature: decoded(signature)?,
            header,
            claims: Claims(claims),
        })
    }

    /// Length of the claims as JSON.
    pub fn claims_bytes(&self) -> usize {
        self.claims_bytes
    }

    /// `iss`, as the token says.
    pub fn issuer(&self) -> Option<&str> {
        self.claims.0.get("iss")?.as_str()
    }

    /// Checks signature, times (seconds since 1970) and audience; returns the claims.
    ///
    /// # Errors
    /// A check fails, or the token has no `exp` and that is not optional.
    pub fn verify(
        &self,
        keys: &Keys,
        audiences: &[String],
        expiry_optional: bool,
        now: f64,
    ) -> Result<&Claims, BadToken> {
        let header = &self.header;
        if !keys.verify(
            &header.alg,
            header.kid.as_deref(),
            self.signed,
            &self.signature,
        ) {
            return Err(BadToken::Signature);
        }
        self.claims.check_times(expiry_optional, now)?;
        if !self.claims.is_for(audiences) {
            return Err(BadToken::Audience);
        }
        Ok(&self.claims)
    }
}

impl Claims {
    fn time(&self, name: &str) -> Result<Option<f64>, BadToken> {
        match self.0.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(BadToken::Times),
        }
    }

    fn check_times(&self, expiry_optional: bool, now: f64) -> Result<(), BadToken> {
        match self.time("exp")? {
            Some(exp) if now >= exp + LEEWAY => return Err(BadToken::Expired),
            None if !expiry_optional => return Err(BadToken::NoExpiry),
            _ => {}
        }
        let early = |time: Option<f64>| time.is_some_and(|time| now < time - LEEWAY);
        if early(self.time("nbf")?) || early(self.time("iat")?) {
            return Err(BadToken::NotYet);
        }
        Ok(())
    }

    /// Returns the end of its validity, in seconds since 1970.
    pub fn expires(&self) -> f64 {
        let exp = self.time("exp").ok().flatten();
        exp.map_or(f64::INFINITY, |exp| exp + LEEWAY)
    }

    fn is_for(&self, audiences: &[String]) -> bool {
        let wanted = |value: &Value| {
            value
                .as_str()
                .is_some_and(|text| audiences.iter().any(|a| a == text))
        };
        audiences.is_empty()
            || match self.0.get("aud") {
                Some(Value::Array(list)) => list.iter().any(wanted),
                Some(one) => wanted(one),
                None => false,
            }
    }

    /// The claims as a map for expressions.
    pub fn value(&self) -> expression::Value<'static> {
        object(&self.0)
    }

    /// Returns a claim as text for a header: `name`, or `outer.inner` for nested claims. Lists and
    /// objects are JSON.
    pub fn text(&self, name: &str) -> Option<String> {
        let value = self.0.get(name).or_else(|| {
            let mut names = name.split('.');
            let first = self.0.get(names.next()?)?;
            names.try_fold(first, |value, name| value.get(name))
        })?;
        match value {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }
}

fn object(entries: &serde_json::Map<String, Value>) -> expression::Value<'static> {
    let text = |text: &String| expression::Value::String(Cow::Owned(text.clone()));
    let entry = |(name, value): (&String, &Value)| (text(name), expressible(value));
    expression::Value::Map(List::Owned(entries.iter().map(entry).collect()))
}

fn expressible(value: &Value) -> expression::Value<'static> {
    match value {
        Value::Null => expression::Value::Null,
        Value::Bool(value) => expression::Value::Bool(*value),
        // Expressions compare numbers by their value, whatever they are kept as.
        Value::Number(number) => number
            .as_i64()
            .map(expression::Value::Int)
            .or_else(|| number.as_u64().map(expression::Value::Uint))
            .or_else(|| number.as_f64().map(expression::Value::Double))
            .unwrap_or(expression::Value::Null),
        Value::String(text) => expression::Value::String(Cow::Owned(text.clone())),
        Value::Array(items) => {
            expression::Value::List(List::Owned(items.iter().map(expressible).collect()))
        }
        Value::Object(entries) => object(entries),
    }
}
