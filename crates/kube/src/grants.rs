//! Permissions that owners of namespaces have given: which objects of other namespaces may refer to
//! which of theirs (ReferenceGrant, Gateway API). They count for routes, policies and Gateways alike.

use crate::object::text;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tulle_model::namespaced::ObjectName;

/// Group, kind and namespace of an object that refers to another.
pub(crate) type From<'a> = (&'a str, &'a str, &'a str);

/// Group, kind and namespace, as a grant has them.
type Referrer = [String; 3];
/// Kind and name (empty: any) of an object of the core group.
type Referred = [String; 2];
/// The number of a namespace's grants that permit each pair. One grant makes few: Gateway API lets it list 16 of each.
type Pairs = BTreeMap<Arc<Referrer>, BTreeMap<Arc<Referred>, usize>>;

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Grants {
    given: BTreeMap<ObjectName, Arc<Grant>>,
    /// The pairs by the namespace that is referred to: at each change every reference is looked up, and a namespace may
    /// have thousands of grants, which must not be walked each time. A copy shares what has not changed since.
    permitted: BTreeMap<String, Arc<Pairs>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Grant {
    from: Vec<Arc<Referrer>>,
    to: Vec<Arc<Referred>>,
}

impl Grants {
    pub(crate) fn put(&mut self, key: ObjectName, spec: &Value) {
        self.remove(&key);
        let from = list(spec, "from").map(|item| {
            let fields = ["group", "kind", "namespace"];
            Arc::new(fields.map(|field| text(item, field).to_owned()))
        });
        let to = list(spec, "to").filter(|item| text(item, "group").is_empty());
        let to =
            to.map(|item| Arc::new(["kind", "name"].map(|field| text(item, field).to_owned())));
        let grant = Grant {
            from: from.collect(),
            to: to.collect(),
        };
        let namespace = key.namespace().to_owned();
        let pairs = Arc::make_mut(self.permitted.entry(namespace).or_default());
        for from in &grant.from {
            let permitted = pairs.entry(from.clone()).or_default();
            for to in &grant.to {
                *permitted.entry(to.clone()).or_default() += 1;
            }
        }
        self.given.insert(key, Arc::new(grant));
    }

    pub(crate) fn remove(&mut self, key: &ObjectName) {
        let Some(grant) = self.given.remove(key) else {
            return;
        };
        let Some(pairs) = self.permitted.get_mut(key.namespace()) else {
            return;
        };
        let pairs = Arc::make_mut(pairs);
        for from in &grant.from {
            let Some(permitted) = pairs.get_mut(from) else {
                continue;
            };
            for to in &grant.to {
                if let Some(count) = permitted.get_mut(to) {
                    *count -= 1;
                    if *count == 0 {
                        permitted.remove(to);
                    }
                }
            }
            if permitted.is_empty() {
                pairs.remove(from);
            }
        }
        if pairs.is_empty() {
            self.permitted.remove(key.namespace());
        }
    }

    pub(crate) fn keep(&mut self, listed: &BTreeSet<ObjectName>) {
        let gone = self.given.keys().filter(|key| !listed.contains(*key));
        let gone: Vec<ObjectName> = gone.cloned().collect();
        gone.iter().for_each(|key| self.remove(key));
    }

    /// Whether an object may refer to this object of the core group, whose name in a grant is the
    /// empty string alone. A reference may write `core` for it, a grant may not: no group has that
    /// name, and a doubtful grant grants nothing.
    pub(crate) fn permits(&self, from: From<'_>, kind: &str, namespace: &str, name: &str) -> bool {
        if from.2 == namespace {
            return true;
        }
        let Some(pairs) = self.permitted.get(namespace) else {
            return false;
        };
        let referrer: Referrer = [from.0, from.1, from.2].map(str::to_owned);
        let Some(permitted) = pairs.get(&referrer) else {
            return false;
        };
        let permits = |name: &str| {
            let referred: Referred = [kind, name].map(str::to_owned);
            permitted.contains_key(&referred)
        };
        permits(name) || permits("")
    }
}

fn list<'a>(spec: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    spec[field].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    type Specs = BTreeMap<ObjectName, Value>;

    /// Looks for a grant among all of them.
    fn walk(specs: &Specs, from: From<'_>, kind: &str, namespace: &str, name: &str) -> bool {
        let is = |item: &Value, field: &str, wanted: &str| text(item, field) == wanted;
        from.2 == namespace
            || specs.iter().any(|(key, spec)| {
                key.namespace() == namespace
                    && list(spec, "from").any(|item| {
                        is(item, "group", from.0)
                            && is(item, "kind", from.1)
                            && is(item, "namespace", from.2)
                    })
                    && list(spec, "to").any(|item| {
                        is(item, "group", "")
                            && is(item, "kind", kind)
                            && (is(item, "name", "") || is(item, "name", name))
                    })
            })
    }

    /// Asks for everything that generated grants can permit.
    fn compare(grants: &Grants, specs: &Specs) {
        for group in GROUPS {
            for from in NAMESPACES {
                for there in NAMESPACES {
                    for (kind, name) in KINDS.iter().flat_map(|k| NAMES.map(|n| (*k, n))) {
                        let referrer = (group, "HTTPRoute", from);
                        let permitted = grants.permits(referrer, kind, there, name);
                        let expected = walk(specs, referrer, kind, there, name);
                        assert_eq!(
                            permitted, expected,
                            "{referrer:?} to {kind} {name} of {there}: {specs:?}"
                        );
                    }
                }
            }
        }
    }

    const GROUPS: [&str; 2] = ["", "gateway.networking.k8s.io"];
    const NAMESPACES: [&str; 3] = ["a", "b", "c"];
    const KINDS: [&str; 2] = ["Service", "Secret"];
    const NAMES: [&str; 3] = ["", "x", "y"];

    #[test]
    fn a_look_up_answers_as_a_walk_of_all_grants_does() {
        let mut state = 1_u64;
        let mut below = |end: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % end
        };
        let (mut grants, mut specs) = (Grants::default(), Specs::new());
        for _ in 0..300 {
            let copy = (grants.clone(), specs.clone());
            let (name, namespace) = (["g", "h", "i"][below(3)], NAMESPACES[below(3)]);
            let key = ObjectName::in_namespace(name, namespace);
            match below(8) {
                0 | 1 => {
                    grants.remove(&key);
                    specs.remove(&key);
                }
                2 => {
                    let listed: BTreeSet<ObjectName> =
                        specs.keys().filter(|_| below(4) > 0).cloned().collect();
                    grants.keep(&listed);
                    specs.retain(|key, _| listed.contains(key));
                }
                _ => {
                    let mut from = Vec::new();
                    let mut to = Vec::new();
                    for _ in 0..below(4) {
                        let (group, namespace) = (GROUPS[below(2)], NAMESPACES[below(3)]);
                        from.push(
                            json!({ "group": group, "kind": "HTTPRoute", "namespace": namespace }),
                        );
                    }
                    for _ in 0..below(4) {
                        let group = ["", "", "core"][below(3)];
                        let mut item = json!({ "group": group, "kind": KINDS[below(2)] });
                        if below(2) == 0 {
                            item["name"] = NAMES[below(3)].into();
                        }
                        to.push(item);
                    }
                    let spec = json!({ "from": from, "to": to });
                    grants.put(key.clone(), &spec);
                    specs.insert(key, spec);
                }
            }
            compare(&grants, &specs);
            compare(&copy.0, &copy.1);
        }
        grants.keep(&BTreeSet::new());
        assert_eq!(grants, Grants::default());
    }
}
