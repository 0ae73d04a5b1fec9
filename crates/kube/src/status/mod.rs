//! The `status` of objects, as Gateway API has it: conditions with a reason, for the generation that
//! they are about.

mod writer;

pub use writer::{StatusUpdate, StatusUpdates, write};

use crate::names::CONTROLLER_NAME;
use serde_json::{Value, json};

/// Longest message of a condition (meta/v1, Condition).
const MAX_MESSAGE: usize = 32 * 1024;

/// Something that holds of an object or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    kind: &'static str,
    holds: bool,
    reason: String,
    message: String,
}

impl Condition {
    /// A condition.
    pub fn new(kind: &'static str, holds: bool, reason: &str, message: &str) -> Self {
        let mut message = message.to_owned();
        if message.len() > MAX_MESSAGE {
            let end = (0..=MAX_MESSAGE)
                .rev()
                .find(|i| message.is_char_boundary(*i));
            message.truncate(end.unwrap_or(0));
        }
        Self {
            kind,
            holds,
            reason: reason.to_owned(),
            message,
        }
    }
}

/// `{"conditions": […]}` after `before`, which is the same thing as it is now: the time of a
/// condition that is as it was stays, and conditions of others stay. Each keeps its place, so that what is as it was
/// is not written again.
pub fn conditions(before: &Value, now: &[Condition], generation: Option<i64>) -> Value {
    let before = || before["conditions"].as_array().into_iter().flatten();
    let make = |condition: &Condition| {
        let status = if condition.holds { "True" } else { "False" };
        let same = before().find(|c| c["type"] == condition.kind && c["status"] == status);
        let mut made = json!({
            "type": condition.kind, "status": status,
            "reason": condition.reason, "message": condition.message,
            // Filled in by `ChangedStatus::if_changed` where it is new.
            "lastTransitionTime": same.map_or(Value::Null, |c| c["lastTransitionTime"].clone()),
        });
        if let Some(generation) = generation {
            made["observedGeneration"] = generation.into();
        }
        made
    };
    let in_place = before().map(|old| {
        let ours = now.iter().find(|n| old["type"] == n.kind);
        ours.map_or_else(|| old.clone(), make)
    });
    let new = now.iter().filter(|n| before().all(|c| c["type"] != n.kind));
    let all: Vec<Value> = in_place.chain(new.map(make)).collect();
    json!({ "conditions": all })
}

/// A route's `status` after `before`: what other controllers say of their parents stays.
pub fn parents(before: &Value, ours: &[Value]) -> Value {
    let before = before["parents"].as_array().into_iter().flatten();
    let others = before.filter(|entry| entry["controllerName"] != CONTROLLER_NAME);
    let all: Vec<Value> = others.chain(ours).cloned().collect();
    json!({ "parents": all })
}

/// A status ready to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangedStatus(Value);

impl ChangedStatus {
    /// `None`: it is so already.
    pub fn if_changed(before: &Value, mut wanted: Value) -> Option<Self> {
        let fields = wanted.as_object()?;
        if fields
            .iter()
            .all(|(field, value)| same(&before[field], value))
        {
            return None;
        }
        let now = k8s_openapi::jiff::Timestamp::now();
        date(&mut wanted, &now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        Some(Self(wanted))
    }

    pub(crate) fn value(&self) -> &Value {
        &self.0
    }
}

/// Whether two values are the same; an absent list equals an empty one.
fn same(before: &Value, wanted: &Value) -> bool {
    before == wanted || (before.is_null() && wanted.as_array().is_some_and(Vec::is_empty))
}

fn date(value: &mut Value, now: &str) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if name == "lastTransitionTime" && field.is_null() {
                    *field = now.into();
                }
                date(field, now);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|item| date(item, now)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(holds: bool) -> Condition {
        Condition::new("Accepted", holds, "Because", "text")
    }

    #[test]
    fn a_condition_keeps_its_time_until_it_changes() {
        let first = ChangedStatus::if_changed(
            &Value::Null,
            conditions(&Value::Null, &[accepted(true)], Some(1)),
        );
        let mut first = first.unwrap().value().clone();
        assert!(first["conditions"][0]["lastTransitionTime"].is_string());
        first["conditions"][0]["lastTransitionTime"] = "2000-01-01T00:00:00Z".into();
        let again = |holds, generation| {
            ChangedStatus::if_changed(
                &first,
                conditions(&first, &[accepted(holds)], Some(generation)),
            )
        };
        assert_eq!(again(true, 1), None);
        let time = |ended: Option<ChangedStatus>| {
            ended.unwrap().value()["conditions"][0]["lastTransitionTime"].clone()
        };
        assert_eq!(time(again(true, 2)), "2000-01-01T00:00:00Z");
        assert_ne!(time(again(false, 2)), "2000-01-01T00:00:00Z");
    }

    #[test]
    fn conditions_keep_their_places_also_when_one_is_left_out() {
        let resolved = Condition::new("ResolvedRefs", true, "Because", "text");
        let both = conditions(&Value::Null, &[accepted(true), resolved], Some(1));
        let mut stored = ChangedStatus::if_changed(&Value::Null, both)
            .unwrap()
            .value()
            .clone();
        let theirs = json!({ "type": "Theirs", "status": "True" });
        let all = stored["conditions"].as_array_mut().unwrap();
        all.insert(1, theirs);
        let again = conditions(&stored, &[accepted(true)], Some(1));
        assert_eq!(again, stored);
        assert_eq!(ChangedStatus::if_changed(&stored, again), None);
        let changed = conditions(&stored, &[accepted(false)], Some(1));
        assert_eq!(changed["conditions"][0]["status"], "False");
        assert_eq!(changed["conditions"][1], stored["conditions"][1]);
    }

    #[test]
    fn what_others_say_stays() {
        let theirs = json!({ "controllerName": "example.org/x", "parentRef": { "name": "a" } });
        let ours = json!({ "controllerName": CONTROLLER_NAME, "parentRef": { "name": "b" } });
        let before = json!({ "parents": [theirs, ours] });
        assert_eq!(parents(&before, &[]), json!({ "parents": [theirs] }));
        assert_eq!(
            ChangedStatus::if_changed(&Value::Null, parents(&Value::Null, &[])),
            None
        );
        let before = json!({ "conditions": [{ "type": "Theirs", "status": "True" }] });
        let now = conditions(&before, &[accepted(true)], None);
        assert_eq!(now["conditions"].as_array().unwrap().len(), 2);
    }
}
