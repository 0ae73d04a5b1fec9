//! Manifests as the store and the API carry them: JSON of one object.

use tulle_model::manifest::Object;

/// Longest manifest kept.
pub(crate) const MAX_JSON_BYTES: usize = 256 * 1024;

/// Reads and checks one manifest.
pub(crate) fn parse(json: &str) -> Result<Object, String> {
    if json.len() > MAX_JSON_BYTES {
        return Err(format!(
            "the manifest has {} bytes; at most {MAX_JSON_BYTES} are kept",
            json.len()
        ));
    }
    Object::from_json(json).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        errors.join("; ")
    })
}
