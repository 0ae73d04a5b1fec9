//! Judges the last valid form of a refused object anew whenever the present one is looked at: its author cannot keep by a
//! mistake what others take back.

use super::{Id, Objects, Seen};
use crate::grants::{From, Grants};
use crate::object::{NO_TEXT, text};
use crate::source::closed::closed;
use crate::source::refs::{files, text_or};
use crate::source::state::State;
use serde_json::Value;
use std::collections::HashSet;
use tulle_model::manifest::Object;

impl Objects {
    /// Returns the last valid form of an object that is refused, as far as others permit what it refers to; `None`: none of
    /// its parents takes it.
    pub(super) fn last_valid(
        &self,
        id: &Id,
        valid: &Value,
        seen: &Seen,
        state: &State,
    ) -> Option<Object> {
        let (kind, name) = id;
        let mut form = valid.clone();
        let from = (kind.group, kind.kind, name.namespace());
        withhold(&mut form["spec"], from, &self.view.grants);
        let object = match self.judge(kind, &form, seen, state).object? {
            Ok(object) => object,
            Err(_) => return closed(kind, valid),
        };
        if self.fed.get(id).is_some_and(|fed| *fed != object) {
            let object = format!("{}/{name}", kind.kind);
            tracing::warn!(
                object,
                "its last valid version, which is in force, refers to something else than before: a ReferenceGrant, a \
                 Service or a parent has changed"
            );
        }
        Some(object)
    }
}

/// Leads references to Secrets and ConfigMaps nowhere that their owners do not permit (any more): the object is in force as
/// if these did not exist, whoever else reads them.
fn withhold(spec: &mut Value, from: From<'_>, grants: &Grants) {
    // Known by their addresses, so that `files` alone says what a reference is.
    let mut denied = HashSet::new();
    files(spec, &mut |reference, default| {
        let (there, name) = (
            text_or(reference, "namespace", from.2),
            text(reference, "name"),
        );
        if !grants.permits(from, text_or(reference, "kind", default), there, name) {
            denied.insert(std::ptr::from_ref(reference));
        }
    });
    if !denied.is_empty() {
        replace(spec, &denied);
    }
}

fn replace(value: &mut Value, denied: &HashSet<*const Value>) {
    let is_denied = denied.contains(&std::ptr::from_ref(value));
    match value {
        Value::Object(reference) if is_denied => {
            reference.remove("namespace");
            reference.insert("name".into(), NO_TEXT.into());
        }
        Value::Object(fields) => fields.values_mut().for_each(|field| replace(field, denied)),
        Value::Array(all) => all.iter_mut().for_each(|item| replace(item, denied)),
        _ => {}
    }
}
