//! Writing YAML.

use serde::Serialize;

/// Writes a value as a YAML document.
///
/// It becomes JSON first, so that there is one writer of YAML for all types. One for each of them is a quarter of a
/// megabyte of the command's program.
///
/// # Errors
/// The value has no JSON form; the text says why, for people.
pub fn to_yaml<T: Serialize>(value: &T) -> Result<String, String> {
    fn write(value: &serde_json::Value) -> Result<String, String> {
        serde_saphyr::to_string(value).map_err(|e| e.to_string())
    }
    write(&serde_json::to_value(value).map_err(|e| e.to_string())?)
}
