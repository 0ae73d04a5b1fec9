//! Texts of `deploy/charts` that the program carries packed; see `build.rs`.

use flate2::read::GzDecoder;
use std::io::Read as _;

/// Definitions of all kinds: YAML, a document for each.
pub(crate) fn kinds() -> String {
    text(include_bytes!(concat!(env!("OUT_DIR"), "/kinds.yaml.gz")))
}

/// The schema of the chart's values: JSON.
pub(crate) fn values_schema() -> String {
    text(include_bytes!(concat!(
        env!("OUT_DIR"),
        "/values.schema.json.gz"
    )))
}

fn text(packed: &[u8]) -> String {
    let mut text = String::new();
    // They were packed by the build of this program, and a test reads both.
    let _ = GzDecoder::new(packed).read_to_string(&mut text);
    text
}
