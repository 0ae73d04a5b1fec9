//! The body of a resource on the wire: JSON of `tulle_model::resource`, the form it has in files.
//!
//! Not protobuf, which passes over fields it does not know: a proxy that does not know a condition
//! of a policy would let in what the policy refuses. Here an unknown field makes the body invalid,
//! the update is refused and the last good one kept.

use bytes::Bytes;
use std::fmt;
use tulle_model::resource::{Resource, ResourceLabels};

/// A body that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidBody(String);

impl fmt::Display for InvalidBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this version does not understand it: {}", self.0)
    }
}

impl std::error::Error for InvalidBody {}

/// A resource on the wire: its body and, beside it, the names of workloads that metrics show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// `Resource.body`
    pub body: Bytes,
    /// `Resource.labels`
    pub labels: Bytes,
}

/// Encodes a resource whose names of workloads travel beside its body.
pub fn encode(mut resource: Resource) -> Encoded {
    let labels = resource.take_labels();
    let labels = match labels == ResourceLabels::default() {
        true => Bytes::new(),
        false => serde_json::to_vec(&labels).unwrap_or_default().into(),
    };
    Encoded {
        body: encode_body(&resource),
        labels,
    }
}

/// Decodes a resource together with the names of workloads. Names that cannot be read are left out, since
/// no decision depends on them.
///
/// # Errors
/// As [`decode_body`].
pub fn decode(body: &[u8], labels: &[u8]) -> Result<Resource, InvalidBody> {
    let mut resource = decode_body(body)?;
    if !labels.is_empty() {
        let labels: Result<ResourceLabels, _> = serde_json::from_slice(labels);
        resource.put_labels(labels.unwrap_or_default());
    }
    Ok(resource)
}

/// The body of a resource, as carried in `Resource.body`.
pub fn encode_body(resource: &Resource) -> Bytes {
    // Plain data without maps whose keys are not texts: there is nothing that can fail.
    serde_json::to_vec(resource).unwrap_or_default().into()
}

/// The resource in a body.
///
/// # Errors
/// The bytes are no resource, or one with a kind, field or value that is unknown here.
pub fn decode_body(body: &[u8]) -> Result<Resource, InvalidBody> {
    serde_json::from_slice(body).map_err(|e| InvalidBody(e.to_string()))
}
