//! Parts of schemas that types do not tell.

pub(super) use crate::bootstrap::MAX_WORKERS;
pub(super) use crate::manifest::allowed;

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// The durations that `parse_duration` reads.
pub(super) const DURATION: &str = "^([0-9]+(h|m|s|ms))+$";

/// The pauses that `parse_pause` reads.
pub(super) const PAUSE: &str = "^[0-9]+(us|ms)$";

/// The shares that `parse_percent` reads.
pub(super) const SHARE: &str = r"^[0-9]+(\.[0-9]{1,4})?%$";

/// Text of which each item of a list is one.
pub(super) fn one_of(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

/// Methods as the Service Mesh Interface has them.
pub(super) fn methods_or_all() -> Value {
    let methods: Vec<&str> = ["*"].into_iter().chain(allowed::METHODS).collect();
    one_of(&methods)
}

/// Text or a number. The check decides its meaning.
pub(super) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true })
}

/// True, false or a mapping, which no structural schema can say.
pub(super) fn switch(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// A mapping or a list of mappings, which no structural schema can say.
pub(super) fn headers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}
