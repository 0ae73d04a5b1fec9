//! Counts the pods of each namespace that share its room. What they have room for is in `room`.

use super::{Unit, room};
use std::collections::{BTreeMap, BTreeSet};
use tulle_model::namespaced::Namespaced;

/// The pods of each namespace that have sidecars: no rule is repeated for any other.
#[derive(Debug, Clone, Default)]
pub(super) struct Shares(BTreeMap<String, BTreeSet<Namespaced>>);

impl Shares {
    /// The bytes for the ports of each pod of a namespace.
    pub(super) fn each(&self, namespace: &str) -> usize {
        room::share(self.0.get(namespace).map_or(0, BTreeSet::len))
    }

    /// Notes whether a pod has a sidecar. Marks all pods of its namespace if they have other shares then.
    pub(super) fn put(&mut self, pod: &Namespaced, sidecar: bool, dirty: &mut BTreeSet<Unit>) {
        let namespace = pod.namespace();
        let before = self.each(namespace);
        let pods = self.0.entry(namespace.to_owned()).or_default();
        match sidecar {
            true => pods.insert(pod.clone()),
            false => pods.remove(pod),
        };
        if room::share(pods.len()) != before {
            dirty.extend(pods.iter().cloned().map(Unit::Pod));
        }
        if pods.is_empty() {
            self.0.remove(namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_changes_the_others_only_where_it_changes_their_share() {
        let mut shares = Shares::default();
        let mut marked = |i: usize, sidecar: bool| {
            let pod = Namespaced::new(&format!("p{i}"), "shop").unwrap();
            let mut dirty = BTreeSet::new();
            shares.put(&pod, sidecar, &mut dirty);
            (dirty.len(), shares.each("shop") >> 10)
        };
        for i in 0..16 {
            assert_eq!(marked(i, true), (0, 24 << 10), "{i}");
        }
        assert_eq!(marked(16, true), (17, 16 << 10));
        for i in 17..32 {
            assert_eq!(marked(i, true), (0, 16 << 10), "{i}");
        }
        assert_eq!(marked(32, true), (33, 8 << 10));
        assert_eq!(marked(32, true), (0, 8 << 10));
        assert_eq!(marked(33, false), (0, 8 << 10));
        assert_eq!(marked(32, false), (32, 16 << 10));
        for i in 32..4096 {
            marked(i, true);
        }
        assert_eq!(marked(4096, true), (0, 512));
        for i in 0..=4096 {
            marked(i, false);
        }
        assert!(shares.0.is_empty());
        assert_eq!(shares.each("bank"), 24 << 20);
    }
}
