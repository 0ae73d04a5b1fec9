//! Schemas as an API server takes them: "structural" (docs of CustomResourceDefinitions), which is
//! narrower than JSON Schema. Types go in, no reference and no alternative comes out.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The schema of a type.
pub(super) fn spec<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::openapi3();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut schema = schema.to_value();
    structural(&mut schema);
    schema
}

/// Keywords that an API server does not accept, or gives more effect than we want: it would write a
/// default into each object, but the controller decides what an absent field means.
const NOT_TAKEN: [&str; 4] = ["title", "default", "nullable", "examples"];

fn structural(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else {
        return;
    };
    for name in NOT_TAKEN {
        fields.remove(name);
    }
    merge_alternatives(fields);
    if let Some(Value::String(text)) = fields.get_mut("description") {
        // Only lines of the source end there.
        *text = text
            .replace("\n\n", "\r")
            .replace('\n', " ")
            .replace('\r', "\n\n");
    }
    integer(fields);
    if fields
        .get("additionalProperties")
        .is_some_and(Value::is_boolean)
    {
        // The API server refuses or drops unknown fields, as the client chooses, but where all are kept.
        fields.remove("additionalProperties");
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(structural);
    }
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(name) {
            structural(inner);
        }
    }
}

/// An optional type is one of itself and null; an enumeration is one of its words, each by itself.
fn merge_alternatives(fields: &mut Map<String, Value>) {
    let mut alternatives = Vec::new();
    for name in ["anyOf", "oneOf", "allOf"] {
        if let Some(Value::Array(some)) = fields.remove(name) {
            alternatives.extend(some);
        }
    }
    let mut words = Vec::new();
    for alternative in alternatives {
        let Value::Object(mut alternative) = alternative else {
            continue;
        };
        if let Some(Value::Array(some)) = alternative.remove("enum") {
            words.extend(some.into_iter().filter(Value::is_string));
        } else if alternative.get("type").is_some_and(|t| t == "null") {
            continue;
        }
        for (name, value) in alternative {
            // The field's own text takes precedence over that of its type or of one of its words.
            fields.entry(name).or_insert(value);
        }
    }
    if !words.is_empty() {
        fields.insert("enum".into(), words.into());
    }
    // So nobody gets the description of the first word for that of the whole.
    if let Some(Value::Array(words)) = fields.get_mut("enum") {
        words.retain(Value::is_string);
    }
}

/// API servers know `int32` and `int64`.
fn integer(fields: &mut Map<String, Value>) {
    if fields.get("type").is_none_or(|t| t != "integer") {
        return;
    }
    if fields.get("format").is_some_and(|f| f == "uint32") {
        let most = fields.entry("maximum").or_insert(json!(u32::MAX));
        debug_assert!(most.is_number());
    }
    let most = fields.get("maximum").and_then(Value::as_i64);
    let small = most.is_some_and(|most| most <= i64::from(i32::MAX));
    fields.insert(
        "format".into(),
        if small { "int32" } else { "int64" }.into(),
    );
}
