//! Admission reviews of pods: the API server asks, and gets a patch (RFC 6902).

use super::{Outcome, Refusal, Settings, Wish, inject};
use crate::review;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Answers a review of a pod that is created. `namespace` says what a namespace wants.
///
/// What cannot be injected is refused with the reason, so that `kubectl` shows it.
///
/// # Errors
/// It is no review: there is nobody to answer.
pub fn answer(
    review: &Value,
    namespace: impl FnOnce(&str) -> Wish,
    settings: &Settings,
) -> Result<Value, Refusal> {
    let (request, uid) = review::request(review).map_err(|why| Refusal(why.into()))?;
    Ok(review::answer(match patch(request, namespace, settings) {
        Ok(None) => review::allowed(uid),
        Ok(Some(patch)) => {
            let mut response = review::allowed(uid);
            response["patchType"] = "JSONPatch".into();
            response["patch"] = STANDARD.encode(patch).into();
            response
        }
        Err(why) => review::refused(uid, &format!("Tulle: {why}")),
    }))
}

fn patch(
    request: &Value,
    namespace: impl FnOnce(&str) -> Wish,
    settings: &Settings,
) -> Result<Option<String>, Refusal> {
    let kind = request.pointer("/kind/kind").and_then(Value::as_str);
    let pod = request.get("object").filter(|o| o.is_object());
    let (Some("Pod"), Some(pod)) = (kind, pod) else {
        return Ok(None);
    };
    let name = request.get("namespace").and_then(Value::as_str);
    match inject(pod, namespace(name.unwrap_or_default()), settings)? {
        Outcome::Left(_) => Ok(None),
        Outcome::Injected(injected) => {
            let patch = serde_json::to_string(&json_patch::diff(pod, &injected));
            patch.map(Some).map_err(|e| Refusal(e.to_string()))
        }
    }
}
