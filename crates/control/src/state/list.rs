//! Lists the objects that a caller may see.

use super::{Actor, MeshState, NODE, Refused};
use crate::store::StoredObject;
use tulle_api::v1;

/// Shown in place of a Secret's content.
pub(super) const HIDDEN: &str = "(not shown)";

impl MeshState {
    /// Objects of a kind and name (empty: all) as this caller may see them.
    pub(crate) fn list(
        &self,
        actor: &Actor,
        kind: &str,
        name: &str,
    ) -> Result<Vec<v1::Object>, Refused> {
        if kind == NODE && *actor == Actor::Operator {
            let nodes = self.nodes().into_iter();
            let nodes = nodes.filter(|n| name.is_empty() || n == name);
            let shown = nodes.map(|name| node(self.authority_shown(&name), name));
            return Ok(shown.collect());
        }
        let wanted = |o: &StoredObject| {
            (kind.is_empty() || o.kind == kind) && (name.is_empty() || o.name == name)
        };
        let objects = self.store.objects()?.into_iter().filter(wanted);
        Ok(objects.map(|o| self.visible(actor, o)).collect())
    }

    /// An object as a caller may see it. The content of Secrets goes to the gateways that use them
    /// and to nobody else. Environment variables often hold passwords, so a node sees those of its
    /// own workloads only.
    pub(crate) fn visible(&self, actor: &Actor, stored: StoredObject) -> v1::Object {
        let mut json = stored.json;
        if stored.kind == "Secret" {
            json = without_secrets(&json);
        }
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

fn node(authority: Option<serde_json::Value>, name: String) -> v1::Object {
    let mut json = serde_json::json!({ "kind": NODE, "metadata": { "name": name } });
    if let Some(authority) = authority {
        json["status"] = serde_json::json!({ "hostAuthority": authority });
    }
    v1::Object {
        kind: NODE.to_owned(),
        name,
        json: json.to_string(),
    }
}

/// The keys of a Secret, with [`HIDDEN`] in place of their values.
fn without_secrets(json: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<serde_json::Value>(json) else {
        return String::new();
    };
    let mut shown = serde_json::Map::new();
    for field in ["data", "stringData"] {
        let held = value.get_mut(field).map(serde_json::Value::take);
        let keys = held.as_ref().and_then(|h| h.as_object()).into_iter();
        shown.extend(keys.flatten().map(|(key, _)| (key.clone(), HIDDEN.into())));
    }
    if let Some(object) = value.as_object_mut() {
        object.remove("data");
        object.insert("stringData".into(), shown.into());
    }
    value.to_string()
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
