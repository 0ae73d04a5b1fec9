//! Admission reviews (admission.k8s.io/v1): what they have in common, whatever is asked.

use serde_json::{Value, json};

/// The request of a review and its uid.
///
/// # Errors
/// It is no review: there is nobody to answer.
pub(crate) fn request(review: &Value) -> Result<(&Value, &str), &'static str> {
    let request = review.get("request").filter(|r| r.is_object());
    let request = request.ok_or("an AdmissionReview has a request")?;
    let uid = request.get("uid").and_then(Value::as_str);
    let uid = uid.ok_or("the request of an AdmissionReview has a uid")?;
    Ok((request, uid))
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
pub(crate) fn answer(response: Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": response,
    })
}
