//! Permissions that owners of namespaces have given: which objects of other namespaces may refer to
//! which of theirs (ReferenceGrant, Gateway API). They count for routes, policies and Gateways alike.

use crate::object::text;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tulle_model::namespaced::ObjectName;

/// Group, kind and namespace of an object that refers to another.
pub(crate) type From<'a> = (&'a str, &'a str, &'a str);

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Grants(BTreeMap<ObjectName, Arc<Grant>>);

#[derive(Debug, PartialEq)]
struct Grant {
    /// Group, kind, namespace.
    from: Vec<[String; 3]>,
    /// Group, kind, name (empty: any).
    to: Vec<[String; 3]>,
}

impl Grants {
    pub(crate) fn put(&mut self, key: ObjectName, spec: &Value) {
        let fields = |list: &str, names: [&str; 3]| {
            let each = spec[list].as_array().into_iter().flatten();
            each.map(|item| names.map(|name| text(item, name).to_owned()))
                .collect()
        };
        let grant = Grant {
            from: fields("from", ["group", "kind", "namespace"]),
            to: fields("to", ["group", "kind", "name"]),
        };
        self.0.insert(key, Arc::new(grant));
    }

    pub(crate) fn remove(&mut self, key: &ObjectName) {
        self.0.remove(key);
    }

    pub(crate) fn keep(&mut self, listed: &BTreeSet<ObjectName>) {
        self.0.retain(|key, _| listed.contains(key));
    }

    /// Whether an object may refer to this object of the core group, whose name in a grant is the
    /// empty string alone. A reference may write `core` for it, a grant may not: no group has that
    /// name, and a doubtful grant grants nothing.
    pub(crate) fn permits(&self, from: From<'_>, kind: &str, namespace: &str, name: &str) -> bool {
        if from.2 == namespace {
            return true;
        }
        self.0.iter().any(|(own, grant)| {
            let mut of = grant.from.iter();
            let to = |[group, k, n]: &[String; 3]| {
                group.is_empty() && k == kind && (n.is_empty() || n == name)
            };
            own.namespace() == namespace
                && of.any(|[group, kind, namespace]| (&**group, &**kind, &**namespace) == from)
                && grant.to.iter().any(to)
        })
    }
}
