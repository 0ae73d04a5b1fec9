//! Resolves the references of an object to others than Services, and says what came of all its references.
//!
//! Secrets and ConfigMaps are read one by one, by [`crate::gateway`]. Before the API server has answered, nothing is
//! said of them.

use super::refs::{Unresolved, files, list, no_grant, text_or};
use crate::gateway::no_rights;
use crate::gateway::view::{Presence, Texts};
use crate::gateway_fields::{Key, TextKey};
use crate::grants::{From, Grants};
use crate::kinds::Kind;
use crate::object::text;
use crate::status::Condition;
use serde_json::Value;

/// Whether [`References::filters`] or [`References::groups`] look for objects of this kind.
pub(super) fn is_named(kind: &Kind) -> bool {
    matches!(kind.kind, "HTTPFilter" | "Plugin" | "HTTPRouteGroup")
}

/// The references of an object, as far as they were looked at.
#[derive(Default)]
pub(super) struct References {
    pub(super) unresolved: Vec<Unresolved>,
    /// The API server has not said yet whether all are there.
    awaited: bool,
}

impl References {
    /// Looks at the filters that a route names; `exists` says whether there is one of this kind and name.
    pub(super) fn filters(
        &mut self,
        spec: &Value,
        namespace: &str,
        exists: impl Fn(&str, &str) -> bool,
    ) {
        extensions(spec, &mut |reference| {
            let (kind, name) = (text(reference, "kind"), text(reference, "name"));
            let is_known =
                text(reference, "group") == "tulle.dev" && ["HTTPFilter", "Plugin"].contains(&kind);
            if !is_known {
                let message = format!("{kind} {name}: a filter must be an HTTPFilter or a Plugin");
                self.add("InvalidKind", message);
            } else if !exists(kind, name) {
                self.add("ReferenceNotFound", absent(kind, name, namespace));
            }
        });
    }

    /// Looks at the HTTPRouteGroups that an Egress names, and at their matches; `group` returns one by its name.
    pub(super) fn groups<'a>(
        &mut self,
        spec: &Value,
        namespace: &str,
        group: impl Fn(&str) -> Option<&'a Value>,
    ) {
        for reference in list(&spec["matches"]) {
            let name = text(reference, "name");
            let Some(group) = group(name) else {
                let message = absent("HTTPRouteGroup", name, namespace);
                self.add("ReferenceNotFound", message);
                continue;
            };
            let has = list(&group["spec"]["matches"]);
            for wanted in list(&reference["matches"]) {
                if !has.iter().any(|one| one["name"] == *wanted) {
                    let wanted = wanted.as_str().unwrap_or_default();
                    let message = format!(
                        "HTTPRouteGroup {name} of the namespace {namespace} has no match {wanted}"
                    );
                    self.add("ReferenceNotFound", message);
                }
            }
        }
    }

    /// Looks at the Secrets and ConfigMaps that an object names. It does not tell whether one is there whose owner
    /// lets nobody refer to it.
    pub(super) fn texts(&mut self, spec: &Value, from: From<'_>, grants: &Grants, texts: &Texts) {
        files(spec, &mut |reference, default| {
            let kind = text_or(reference, "kind", default);
            let (there, name) = (
                text_or(reference, "namespace", from.2),
                text(reference, "name"),
            );
            if !grants.permits(from, kind, there, name) {
                self.add("RefNotPermitted", no_grant(kind, name, there, from));
                return;
            }
            let key = TextKey {
                secret: kind == "Secret",
                key: Key::new(there, name),
            };
            match texts.0.get(&key) {
                None => self.awaited = true,
                Some(Presence::Held) => {}
                Some(Presence::Absent) => {
                    self.add("ReferenceNotFound", absent(kind, name, there));
                }
                Some(Presence::Forbidden) => {
                    let message = format!("{kind} {name} is not read: {}", no_rights(there));
                    self.add("ReferenceNotRead", message);
                }
            }
        });
    }

    fn add(&mut self, reason: &'static str, message: String) {
        self.unresolved.push(Unresolved { reason, message });
    }

    /// Returns `Accepted` with `ResolvedRefs`, which is left out, and so stays as it was, as long as nobody knows.
    pub(super) fn conditions(&self, accepted: Condition) -> Vec<Condition> {
        let resolved = match self.unresolved.first() {
            None if self.awaited => None,
            None => Some((true, "ResolvedRefs", "every reference resolves".to_owned())),
            Some(first) => {
                let all = self.unresolved.iter().map(|u| u.message.as_str());
                Some((false, first.reason, all.collect::<Vec<_>>().join("; ")))
            }
        };
        let resolved = resolved.map(|(holds, reason, message)| {
            Condition::new("ResolvedRefs", holds, reason, &message)
        });
        std::iter::once(accepted).chain(resolved).collect()
    }
}

fn absent(kind: &str, name: &str, namespace: &str) -> String {
    format!("there is no {kind} {name} in the namespace {namespace}")
}

/// Passes each `extensionRef` of a route on.
fn extensions<'a>(spec: &'a Value, f: &mut impl FnMut(&'a Value)) {
    match spec {
        Value::Object(fields) => {
            for (name, field) in fields {
                match name.as_str() {
                    "extensionRef" => f(field),
                    _ => extensions(field, f),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|item| extensions(item, f)),
        _ => {}
    }
}
