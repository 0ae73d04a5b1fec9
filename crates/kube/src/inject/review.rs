//! Admission reviews of pods: the API server asks, and gets a patch (RFC 6902).

use super::{InjectionOutcome, InjectionRefusal, InjectionSetting, Settings, inject};
use crate::review::{self, Request, Review};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Answers a review of a pod that is created. `namespace` says what a namespace wants.
///
/// What cannot be injected is refused with the reason, so that `kubectl` shows it.
pub fn response(
    review: &Review<'_>,
    namespace: impl FnOnce(&str) -> InjectionSetting,
    settings: &Settings,
) -> Value {
    let request = review.request();
    let uid = &request.uid;
    review::response(match patch(request, namespace, settings) {
        Ok(None) => review::allowed(uid),
        Ok(Some(patch)) => {
            let mut response = review::allowed(uid);
            response["patchType"] = "JSONPatch".into();
            response["patch"] = STANDARD.encode(patch).into();
            response
        }
        Err(why) => review::refused(uid, &format!("Tulle: {why}")),
    })
}

fn patch(
    request: &Request<'_>,
    namespace: impl FnOnce(&str) -> InjectionSetting,
    settings: &Settings,
) -> Result<Option<String>, InjectionRefusal> {
    let pod = match &*request.kind.kind {
        "Pod" => request.object(),
        _ => None,
    };
    let Some(pod) = pod else {
        return Ok(None);
    };
    let name = request.namespace.as_deref();
    match inject(&pod, namespace(name.unwrap_or_default()), settings)? {
        InjectionOutcome::Left(_) => Ok(None),
        InjectionOutcome::Injected(injected) => {
            let patch = serde_json::to_string(&json_patch::diff(&pod, &injected));
            patch.map(Some).map_err(|e| InjectionRefusal(e.to_string()))
        }
    }
}
