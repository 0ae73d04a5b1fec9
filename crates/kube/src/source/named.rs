//! Resolves the references of an object to others than Services, and says what came of all its references.
//!
//! Secrets and ConfigMaps are read one by one, by [`crate::gateway`]. Before the API server has answered, nothing is
//! said of them.

use super::refs::{Unresolved, files, list, no_grant, text_or};
use crate::gateway::no_rights;
use crate::gateway::view::{MOST_TEXTS, Presence, Texts};
use crate::gateway_fields::{Key, TextKey};
use crate::grants::{From, Grants};
use crate::object::text;
use crate::status::Condition;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use tulle_model::manifest::is_object_name;

/// References that a condition names. An object may have thousands, and its author needs to see some.
const MOST: usize = 16;

/// The references of an object, as far as they were looked at.
#[derive(Default)]
pub(super) struct References {
    /// The first [`MOST`] that lead nowhere.
    unresolved: Vec<Unresolved>,
    /// The number of the others that lead nowhere.
    more: usize,
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
        // The names of a group are collected once: both lists are as long as their authors like.
        let mut known: BTreeMap<&str, HashSet<&str>> = BTreeMap::new();
        for reference in list(&spec["matches"]) {
            let name = text(reference, "name");
            let Some(group) = group(name) else {
                let message = absent("HTTPRouteGroup", name, namespace);
                self.add("ReferenceNotFound", message);
                continue;
            };
            let all_wanted = list(&reference["matches"]);
            if all_wanted.is_empty() {
                continue;
            }
            let has = known.entry(name).or_insert_with(|| {
                let matches = list(&group["spec"]["matches"]).into_iter();
                matches.filter_map(|one| one["name"].as_str()).collect()
            });
            for wanted in all_wanted {
                let wanted = wanted.as_str().unwrap_or_default();
                if !has.contains(wanted) {
                    let message = format!(
                        "HTTPRouteGroup {name} of the namespace {namespace} has no match {wanted}"
                    );
                    self.add("ReferenceNotFound", message);
                }
            }
        }
    }

    /// Looks at the Secrets and ConfigMaps that an object names. It does not tell whether one is there whose owner
    /// lets nobody refer to it. `unread`: those that are too many.
    pub(super) fn texts(
        &mut self,
        spec: &Value,
        from: From<'_>,
        grants: &Grants,
        texts: &Texts,
        unread: &BTreeSet<TextKey>,
    ) {
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
            let key = match text_key(reference, default, from.2) {
                Ok(key) => key,
                Err(unresolved) => return self.extend([unresolved]),
            };
            if unread.contains(&key) {
                let message = format!(
                    "{kind} {name} is not read: the objects of the namespace {} refer to more than {MOST_TEXTS} \
                     Secrets and ConfigMaps",
                    from.2
                );
                return self.add("ReferenceNotRead", message);
            }
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
        self.extend([Unresolved { reason, message }]);
    }

    /// Takes in references that lead nowhere.
    pub(super) fn extend(&mut self, found: impl IntoIterator<Item = Unresolved>) {
        for unresolved in found {
            if self.unresolved.len() < MOST {
                self.unresolved.push(unresolved);
            } else {
                self.more += 1;
            }
        }
    }

    /// Returns `Accepted` with `ResolvedRefs`, which is left out, and so stays as it was, as long as nobody knows.
    pub(super) fn conditions(&self, accepted: Condition) -> Vec<Condition> {
        let resolved = match self.unresolved.first() {
            None if self.awaited => None,
            None => Some((true, "ResolvedRefs", "every reference resolves".to_owned())),
            Some(first) => {
                let all = self.unresolved.iter().map(|u| u.message.as_str());
                let mut message = all.collect::<Vec<_>>().join("; ");
                if self.more > 0 {
                    message = format!("{message}; and {} more", self.more);
                }
                Some((false, first.reason, message))
            }
        };
        let resolved = resolved.map(|(holds, reason, message)| {
            Condition::new("ResolvedRefs", holds, reason, &message)
        });
        std::iter::once(accepted).chain(resolved).collect()
    }
}

/// Reads which Secret or ConfigMap a reference of [`files`] means.
///
/// # Errors
/// There can be none, and the object is refused for it. The API server must not be asked: it refuses to look for a
/// name that nothing can have, each time anew, so an answer would be waited for in vain.
fn text_key(reference: &Value, default: &str, namespace: &str) -> Result<TextKey, Unresolved> {
    let (group, kind) = (
        text(reference, "group"),
        text_or(reference, "kind", default),
    );
    let (there, name) = (
        text_or(reference, "namespace", namespace),
        text(reference, "name"),
    );
    let unresolved = |reason, message| Err(Unresolved { reason, message });
    if !matches!(group, "" | "core") || !["ConfigMap", "Secret"].contains(&kind) {
        let message = format!("{kind} {name}: it must be a ConfigMap or a Secret");
        return unresolved("InvalidKind", message);
    }
    if !is_object_name(name) {
        return unresolved("ReferenceNotFound", absent(kind, name, there));
    }
    Ok(TextKey {
        secret: kind == "Secret",
        key: Key::new(there, name),
    })
}

/// Returns the Secrets and ConfigMaps that an object refers to, without those that there cannot be.
pub(super) fn text_keys(spec: &Value, namespace: &str) -> BTreeSet<TextKey> {
    let mut all = BTreeSet::new();
    files(spec, &mut |reference, default| {
        all.extend(text_key(reference, default, namespace).ok());
    });
    all
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
