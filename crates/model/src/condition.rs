//! Conditions and values in CEL are compiled in one way everywhere. So the proxy decides by exactly the
//! expression that was accepted when it was applied.

use crate::document::{Path, Report};
use crate::identity::SpiffeId;
use tulle_expression::{Error, Expression, Type, Value, Variable, request};

/// Variables of a request that nothing keeps until it is logged.
const NOT_KEPT: [(Variable, &str); 6] = [
    (request::HEADERS, "request.headers"),
    (request::SOURCE_NAMESPACE, "source.namespace"),
    (request::SOURCE_SERVICE, "source.service"),
    (request::SOURCE_ADDRESS, "source.address"),
    (request::DESTINATION_PORT, "destination.port"),
    (request::CLAIMS, "jwt.claims"),
];

/// Compiles a condition about a request.
///
/// # Errors
/// Says where it is wrong, and what.
pub fn condition(source: &str) -> Result<Expression, Error> {
    Expression::compile(source, &request::scope(), &Type::Bool)
}

/// Compiles a condition of a policy, which may read the claims of tokens, too.
///
/// # Errors
/// Says where it is wrong, and what.
pub fn policy(source: &str) -> Result<Expression, Error> {
    Expression::compile(source, &request::policy_scope(), &Type::Bool)
}

/// Compiles a text that is made of a request.
///
/// # Errors
/// Says where it is wrong, and what.
pub fn text(source: &str) -> Result<Expression, Error> {
    Expression::compile(source, &request::scope(), &Type::String)
}

/// Compiles a condition about a request that has ended, and its response.
///
/// # Errors
/// Says where it is wrong, and what.
pub fn log(source: &str) -> Result<Expression, Error> {
    let compiled = Expression::compile(source, &request::log_scope(), &Type::Bool)?;
    for (variable, name) in NOT_KEPT {
        if compiled.reads(variable) {
            return Err(Error {
                line: 1,
                column: 1,
                what: format!("`{name}` is not kept until the response has ended"),
            });
        }
    }
    Ok(compiled)
}

/// The value of a variable about the caller; `None`: it is about something else. `source`: the identity, if there is one.
pub fn of_source(variable: Variable, source: Option<&SpiffeId>) -> Option<Value<'_>> {
    let text = match variable {
        request::SOURCE_IDENTITY => source.map(SpiffeId::as_str),
        request::SOURCE_NAMESPACE => source
            .and_then(SpiffeId::service_account)
            .map(|(namespace, _)| namespace),
        request::SOURCE_SERVICE => source.map(SpiffeId::name),
        _ => return None,
    };
    Some(Value::string(text.unwrap_or_default()))
}

/// Reports what is wrong with an expression.
pub(crate) fn check(at: &Path, compiled: Result<Expression, Error>, report: &mut Report) {
    if let Err(error) = compiled {
        let hint = "docs/features/expressions.md lists its names and functions";
        report.add(at, error.to_string(), hint);
    }
}
