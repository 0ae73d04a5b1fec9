//! Filters in CEL: conditions of other filters, and request fields whose values are made of the request.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::plain_path::{self, Reading};
use crate::codec::request_values::{Parties, RequestValues};
use crate::filter::header_edit::{self, Draft};
use tulle_expression::{Expression, request};
use tulle_http1::is_field_value;
use tulle_model::condition;
use tulle_model::resource::FieldValue;

/// Compiles a condition.
///
/// # Errors
/// It is not valid.
pub(crate) fn condition(source: &str) -> Result<Expression, String> {
    condition::condition(source).map_err(|e| format!("the condition of a filter: {e}"))
}

/// Whether filters with this condition are applied. They may be what protects the application, so one that
/// has no value, or whose path servers read differently, counts as met.
pub(crate) fn is_met(condition: &Expression, draft: &Draft<'_>, parties: &dyn Parties) -> bool {
    let values = values(draft, parties);
    let is_met = |path: &[u8]| condition.condition(&RequestValues { path, ..values }) != Ok(false);
    if !condition.reads(request::PATH) {
        return is_met(values.path);
    }
    match plain_path::reading(values.path) {
        Reading::Plain => is_met(values.path),
        Reading::Encoded => is_met(values.path) || is_met(&plain_path::decoded(values.path)),
        Reading::Ambiguous => true,
    }
}

/// The value of an expression that is a text; `None`: it has none.
pub(crate) fn text(
    expression: &Expression,
    draft: &Draft<'_>,
    parties: &dyn Parties,
) -> Option<String> {
    expression.text(&values(draft, parties)).ok()
}

fn values<'a>(draft: &'a Draft<'_>, parties: &'a dyn Parties) -> RequestValues<'a> {
    RequestValues {
        method: draft.method(),
        path: draft.path_and_query().0,
        authority: draft.field("host").unwrap_or_default(),
        head: draft.head(),
        parties: Some(parties),
        claims: None,
    }
}

/// Fields with values that are made of the request.
pub(crate) struct FieldValues(Vec<(String, Expression)>);

impl FieldValues {
    /// Compiles fields.
    ///
    /// # Errors
    /// A field may not be edited, or an expression is not valid.
    pub(crate) fn compile(fields: &[FieldValue]) -> Result<Self, String> {
        let field = |field: &FieldValue| {
            let name = header_edit::name_of(&field.name)?;
            let value =
                condition::text(&field.expression).map_err(|e| format!("header {name}: {e}"))?;
            Ok((name, value))
        };
        fields
            .iter()
            .map(field)
            .collect::<Result<_, String>>()
            .map(Self)
    }

    /// Sets the fields. All values are of the request as it came here. A field without a value is removed, also a
    /// value that no field may have: what the client sent under the name does not pass.
    pub(crate) fn apply(&self, draft: &mut Draft<'_>, parties: &dyn Parties) {
        let made = |(name, value): &(String, Expression)| {
            let value = text(value, draft, parties).filter(|v| is_field_value(v.as_bytes()))?;
            Some((name.clone(), value))
        };
        let made: Vec<(String, String)> = self.0.iter().filter_map(made).collect();
        let add: Vec<(&str, &[u8])> = made
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_bytes()))
            .collect();
        let keep = |name: &[u8]| {
            !self
                .0
                .iter()
                .any(|(own, _)| tulle_http1::is_same_name(name, own))
        };
        draft.edit(None, keep, &add);
    }
}
