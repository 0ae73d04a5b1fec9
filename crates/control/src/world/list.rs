//! What callers may see of the objects.

use super::{Actor, Refused, World};
use crate::store::StoredObject;
use tulle_api::v1;

impl World {
    /// Objects of a kind and name (empty: all) as this caller may see them.
    pub(crate) fn list(
        &self,
        actor: &Actor,
        kind: &str,
        name: &str,
    ) -> Result<Vec<v1::Object>, Refused> {
        let wanted = |o: &StoredObject| {
            (kind.is_empty() || o.kind == kind) && (name.is_empty() || o.name == name)
        };
        let objects = self.store.objects()?.into_iter().filter(wanted);
        Ok(objects.map(|o| self.visible(actor, o)).collect())
    }

    /// An object as a caller may see it. Environment variables often hold passwords, so a node
    /// sees those of its own workloads only.
    pub(crate) fn visible(&self, actor: &Actor, stored: StoredObject) -> v1::Object {
        let mut json = stored.json;
        if let Actor::Node(node) = actor
            && stored.kind == "Workload"
            && self.check_owner(node, &stored.name).is_err()
        {
            json = without_environment(&json);
        }
        v1::Object {
            kind: stored.kind,
            name: stored.name,
            json,
        }
    }
}

fn without_environment(json: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<serde_json::Value>(json) else {
        return String::new();
    };
    if let Some(spec) = value.get_mut("spec").and_then(|s| s.as_object_mut()) {
        spec.remove("env");
    }
    value.to_string()
}
