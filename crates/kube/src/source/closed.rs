//! Replaces an object that cannot be read and would have restricted who may call by one that denies
//! everybody.

use super::refs::{list, text_or};
use crate::kinds::Kind;
use crate::object::{qualified, text};
use serde_json::{Value, json};
use tulle_control::{name_in_place, restricts_callers, target_in_place};
use tulle_model::manifest::{Object, TargetRef};

/// `None`: the object would not have restricted calls, or names nothing that can be closed. It cannot
/// close anything in another namespace, and a target that nobody knows opens none of the others.
pub(super) fn closed(kind: &Kind, object: &Value) -> Option<Object> {
    if !restricts_callers(kind.kind, &object["spec"]) {
        return None;
    }
    let namespace = text(&object["metadata"], "namespace");
    let targets = list(&object["spec"]["targetRefs"]).into_iter();
    let own = targets.filter(|target| text_or(target, "namespace", namespace) == namespace);
    let targets: Vec<TargetRef> = own.filter_map(target_in_place).collect();
    if targets.is_empty() {
        return None;
    }
    let policy = json!({
        "apiVersion": object["apiVersion"], "kind": "AuthorizationPolicy",
        "metadata": object["metadata"],
        "spec": {
            "targetRefs": targets, "action": "Deny", "rules": [{}],
        },
    });
    let mut closed = qualified(&policy).ok()?;
    if let Object::AuthorizationPolicy(policy) = &mut closed {
        policy.metadata.name = name_in_place(kind.kind, &policy.metadata.name);
    }
    Some(closed)
}
