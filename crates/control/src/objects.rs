//! Manifests as the store and the API carry them: JSON of one object.

use serde_json::Value;
use tulle_model::manifest::{Object, RevocationSpec, TargetRef};

/// Longest manifest kept, as it is given and as it is kept.
const MAX_JSON_BYTES: usize = 256 * 1024;

/// An object and the text that is kept of it.
pub(crate) struct Parsed {
    pub(crate) object: Object,
    pub(crate) stored: String,
}

/// Reads and checks a manifest that somebody wants kept.
pub(crate) fn parse(json: &str) -> Result<Parsed, String> {
    check_length(json, "the manifest has")?;
    let object = read(json)?;
    // Canonical, so it may be longer than what was given.
    let stored = object.to_json();
    check_length(&stored, "written out, the manifest has")?;
    Ok(Parsed { object, stored })
}

/// Reads a manifest that is kept already, however long it is.
///
/// # Errors
/// Everything found wrong, in one line for people.
pub fn read(json: &str) -> Result<Object, String> {
    Object::from_json(json).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        errors.join("; ")
    })
}

/// Whether an object of this kind and spec that cannot be read would have restricted who may call.
pub fn restricts_callers(kind: &str, spec: &Value) -> bool {
    match kind {
        // One that only counts and logs restricts nobody.
        "AuthorizationPolicy" => spec["mode"] != "Audit",
        "Authentication" => true,
        "Plugin" => spec["failurePolicy"] != "Open",
        _ => false,
    }
}

/// Reads a target of an object that cannot be read, so that something denies there in its place. Without what limits it to a
/// part, where that is what cannot be read: then it is the whole object that it names. `None`: nobody knows what it is.
pub fn target_in_place(given: &Value) -> Option<TargetRef> {
    TargetRef::read(given).or_else(|| {
        let mut whole = given.as_object()?.clone();
        whole.retain(|field, _| matches!(field.as_str(), "group" | "kind" | "name"));
        TargetRef::read(&Value::Object(whole))
    })
}

/// Reads what a Mesh that cannot be read revokes, and whether that is all of it. `is_known`: its apiVersion is; one of another
/// may revoke in another field.
pub(crate) fn revocations_in_place(spec: &Value, is_known: bool) -> (Vec<RevocationSpec>, bool) {
    let given = &spec["revoked"];
    let Some(entries) = given.as_array() else {
        return (Vec::new(), is_known && spec.is_object() && given.is_null());
    };
    let read: Vec<_> = entries.iter().filter_map(revocation_in_place).collect();
    let is_all = read.len() == entries.len() && (is_known || !entries.is_empty());
    (read, is_all)
}

/// Reads a revocation without the fields that nobody knows. Each revokes one thing, of which these can only make an
/// exception.
fn revocation_in_place(given: &Value) -> Option<RevocationSpec> {
    let mut known = given.as_object()?.clone();
    known.retain(|field, value| match field.as_str() {
        "identity" | "serial" | "crl" => true,
        "reason" => value.is_string(),
        _ => false,
    });
    let revocation: RevocationSpec = serde_json::from_value(Value::Object(known)).ok()?;
    revocation.read().is_ok().then_some(revocation)
}

/// The name of the AuthorizationPolicy that denies everybody in the place of an object. No other policy can have the name
/// that stands for another kind.
pub fn name_in_place(kind: &str, name: &str) -> String {
    match kind {
        "AuthorizationPolicy" => name.to_owned(),
        _ => format!("{}/{name}", kind.to_lowercase()),
    }
}

fn check_length(json: &str, what: &str) -> Result<(), String> {
    match json.len() {
        0..=MAX_JSON_BYTES => Ok(()),
        bytes => Err(format!(
            "{what} {bytes} bytes; at most {MAX_JSON_BYTES} are kept"
        )),
    }
}
