//! The common part of admission reviews (admission.k8s.io/v1).

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Bytes that a value of JSON takes at most when it is read into a tree: its place in a list that
/// may be twice as long as needed, and the name of a member.
const NODE: usize = 160;
/// The number of copies of an object in memory at a time: the original, the one without Kubernetes'
/// fields or with a sidecar, the text, and the parsed object.
const COPIES: usize = 4;

/// The parts of a review that are read. Everything else is passed over, and objects stay text until
/// they are needed: a short text can be a large tree.
#[derive(Debug, Deserialize)]
pub struct Review<'a> {
    #[serde(borrow)]
    request: Request<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request<'a> {
    pub(crate) uid: String,
    #[serde(default)]
    pub(crate) kind: Kind,
    #[serde(default)]
    pub(crate) namespace: Option<String>,
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
    #[serde(borrow, default)]
    old_object: Option<&'a RawValue>,
}

/// The kind of a review's object.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Kind {
    pub(crate) group: String,
    pub(crate) kind: String,
}

impl<'a> Review<'a> {
    /// Reads a review.
    ///
    /// # Errors
    /// It is no review: there is nobody to answer.
    pub fn read(text: &'a [u8]) -> Result<Self, String> {
        let read = serde_json::from_slice(text);
        read.map_err(|e| format!("this is no AdmissionReview with a request and its uid: {e}"))
    }

    pub(crate) fn request(&self) -> &Request<'a> {
        &self.request
    }

    /// Returns how many bytes its objects take at most when they are read.
    #[must_use]
    pub fn memory(&self) -> usize {
        let objects = [self.request.object, self.request.old_object];
        let memory = |raw: &RawValue| tree_bytes(raw.get()).saturating_mul(COPIES);
        objects.into_iter().flatten().map(memory).sum()
    }
}

impl Request<'_> {
    /// The object, if there is one.
    pub(crate) fn object(&self) -> Option<Value> {
        tree(self.object)
    }

    /// The object as it was before.
    pub(crate) fn old_object(&self) -> Option<Value> {
        tree(self.old_object)
    }
}

fn tree(raw: Option<&RawValue>) -> Option<Value> {
    let read = serde_json::from_str::<Value>(raw?.get()).ok();
    read.filter(Value::is_object)
}

/// Returns how many bytes the tree of a JSON text takes at most: each value but the first one follows
/// one of these characters. Those inside strings count, too.
fn tree_bytes(text: &str) -> usize {
    let begins = |b: &&u8| matches!(b, b',' | b'[' | b'{');
    let nodes = 1 + text.as_bytes().iter().filter(begins).count();
    text.len().saturating_add(nodes.saturating_mul(NODE))
}

/// Agreement, to which more may be added.
pub(crate) fn allowed(uid: &str) -> Value {
    json!({ "uid": uid, "allowed": true })
}

/// A refusal with its reason, which `kubectl` shows.
pub(crate) fn refused(uid: &str, why: &str) -> Value {
    json!({
        "uid": uid, "allowed": false,
        "status": { "code": 422, "reason": "Invalid", "message": why },
    })
}

/// The review that is sent back.
pub(crate) fn response(response: Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": response,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_stay_text_until_they_are_needed() {
        let text = br#"{"request":{"uid":"7","object":{"a":[1,2]},"oldObject":null,"options":{}}}"#;
        let review = Review::read(text).unwrap();
        assert_eq!(review.request().object(), Some(json!({ "a": [1, 2] })));
        assert_eq!(review.request().old_object(), None);
        assert_eq!(
            review.memory(),
            COPIES * (r#"{"a":[1,2]}"#.len() + 4 * NODE)
        );
        for bad in ["", "null", "{}", r#"{"request":{}}"#, r#"{"request":[]}"#] {
            assert!(Review::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_value_takes_no_more_than_is_counted() {
        // A member of a list that has just grown, and of an object with its name.
        assert!(2 * size_of::<Value>() <= NODE);
        assert!(size_of::<(usize, String, Value)>() + 2 * size_of::<usize>() <= NODE);
    }
}
