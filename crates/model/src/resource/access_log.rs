//! Which requests the access log has, and how a line is written.

use super::{FieldValue, is_default};
use crate::condition;
use crate::log_format::LogFormat;
use serde::{Deserialize, Serialize};

/// All of them.
pub const EVERY_REQUEST_PPM: u32 = 1_000_000;

/// Which requests the access log has, and how a line is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LogLines {
    /// Share of the requests that are logged, in millionths.
    #[serde(skip_serializing_if = "is_every")]
    pub sampling_ppm: u32,
    /// Only what failed is logged.
    #[serde(skip_serializing_if = "is_default")]
    pub only_errors: bool,
    /// A line of text with command operators; empty: JSON.
    #[serde(skip_serializing_if = "is_default")]
    pub format: String,
    /// A condition in CEL about the request and its response; empty: none.
    #[serde(skip_serializing_if = "is_default")]
    pub when: String,
    /// Further fields of a JSON line.
    #[serde(skip_serializing_if = "is_default")]
    pub fields: Vec<FieldValue>,
}

// serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_every(value: &u32) -> bool {
    *value == EVERY_REQUEST_PPM
}

impl Default for LogLines {
    fn default() -> Self {
        Self {
            sampling_ppm: EVERY_REQUEST_PPM,
            only_errors: false,
            format: String::new(),
            when: String::new(),
            fields: Vec::new(),
        }
    }
}

impl LogLines {
    /// Returns each problem, with the field it is in.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if self.sampling_ppm > EVERY_REQUEST_PPM {
            let text = format!(
                "expected at most {EVERY_REQUEST_PPM}, which is every request, found {}",
                self.sampling_ppm
            );
            found.push(("samplingPpm", text));
        }
        if !self.format.is_empty()
            && let Err(why) = LogFormat::parse(&self.format)
        {
            found.push(("format", why.to_string()));
        }
        if !self.when.is_empty()
            && let Err(why) = condition::log(&self.when)
        {
            found.push(("when", why.to_string()));
        }
        for field in &self.fields {
            if let Err(why) = condition::text(&field.expression) {
                found.push(("fields", format!("{}: {why}", field.name)));
            }
        }
        if !self.fields.is_empty() && !self.format.is_empty() {
            found.push((
                "fields",
                "they are for lines in JSON, and there is a format".to_owned(),
            ));
        }
        found
    }
}
