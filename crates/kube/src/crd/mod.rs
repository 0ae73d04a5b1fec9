//! CustomResourceDefinitions of Tulle's kinds and of the Service Mesh Interface's. They are made of the types that
//! manifests are read as (`made`), by a test that writes `deploy/charts/tulle-crds`; the program reads those. Gateway
//! API's are not ours: users install theirs.
//!
//! What a schema cannot say (one of two fields, a regular expression that compiles) the webhook
//! refuses, see `validate`.

mod kinds;
#[cfg(test)]
pub(crate) mod made;
#[cfg(test)]
mod tests;

pub use kinds::{Column, Definition, definitions};

use crate::packed;
use serde_json::Value;
use tulle_model::{Booleans, YamlDocument};

/// All definitions as objects, in the order of the documentation.
///
/// # Panics
/// Never: a test reads all of them.
#[allow(clippy::expect_used, reason = "a test reads them")]
pub fn objects() -> Vec<Value> {
    let read = YamlDocument::read_json(&packed::kinds(), Booleans::Strict);
    let mut objects = read.expect("definitions are YAML");
    let place = |object: &Value| {
        let kind = &object["spec"]["names"]["plural"];
        definitions()
            .iter()
            .position(|d| d.plural == kind && d.group == object["spec"]["group"])
    };
    objects.sort_by_key(place);
    objects
}
