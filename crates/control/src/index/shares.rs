//! Counts the pods of each namespace that share its room. What they have room for is in `room`.

use super::room::{self, Room};
use super::{ClusterPod, Unit};
use std::collections::{BTreeMap, BTreeSet};
use tulle_model::namespaced::Namespaced;

/// The pods of each namespace that have a share of its room.
#[derive(Debug, Clone, Default)]
pub(super) struct Shares(BTreeMap<String, BTreeSet<Namespaced>>);

impl Shares {
    /// The bytes for the ports of each pod of a namespace.
    pub(super) fn each(&self, namespace: &str) -> usize {
        room::shares(self.pods(namespace)).0
    }

    /// The room of the ports of a pod.
    pub(super) fn room(&self, pod: &ClusterPod) -> Room {
        match (pod.sidecar, pod.has_share()) {
            (true, true) => Room::new(self.each(pod.name.namespace())),
            (true, false) => Room::of_waiting_pod(),
            (false, _) => Room::of_ports(),
        }
    }

    /// Where so many bytes of a pod are more than its share will be when that becomes smaller next: that share, and the
    /// number of pods from which they have it.
    pub(super) fn too_small_next(&self, namespace: &str, bytes: usize) -> Option<(usize, usize)> {
        let pods = self.pods(namespace);
        let (_, next) = room::shares(pods);
        (bytes > next).then(|| (next, pods.next_power_of_two() + 1))
    }

    fn pods(&self, namespace: &str) -> usize {
        self.0.get(namespace).map_or(0, BTreeSet::len)
    }

    /// Notes whether a pod has a share. Marks all pods of its namespace if they have other shares then, or will have them
    /// next.
    pub(super) fn put(&mut self, pod: &Namespaced, has_share: bool, dirty: &mut BTreeSet<Unit>) {
        let namespace = pod.namespace();
        let before = room::shares(self.pods(namespace));
        let pods = self.0.entry(namespace.to_owned()).or_default();
        match has_share {
            true => pods.insert(pod.clone()),
            false => pods.remove(pod),
        };
        if room::shares(pods.len()) != before {
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
        let mut marked = |i: usize, has_share: bool| {
            let pod = Namespaced::new(&format!("p{i}"), "shop").unwrap();
            let mut dirty = BTreeSet::new();
            shares.put(&pod, has_share, &mut dirty);
            (dirty.len(), shares.each("shop") >> 10)
        };
        assert_eq!([marked(0, true), marked(1, true)], [(0, 24 << 10); 2]);
        // Four pods will be the last ones with so large a share.
        assert_eq!(marked(2, true), (3, 24 << 10));
        assert_eq!(marked(3, true), (0, 24 << 10));
        assert_eq!(marked(4, true), (5, 16 << 10));
        for i in 5..8 {
            assert_eq!(marked(i, true), (0, 16 << 10), "{i}");
        }
        assert_eq!(marked(8, true), (9, 8 << 10));
        assert_eq!(marked(8, true), (0, 8 << 10));
        assert_eq!(marked(9, false), (0, 8 << 10));
        assert_eq!(marked(8, false), (8, 16 << 10));
        for i in 8..1024 {
            marked(i, true);
        }
        assert_eq!(marked(1024, true), (0, 512));
        for i in 0..=1024 {
            marked(i, false);
        }
        assert!(shares.0.is_empty());
        assert_eq!(shares.each("bank"), 24 << 20);
    }

    #[test]
    fn the_next_share_is_told_to_whom_it_is_too_small() {
        let mut shares = Shares::default();
        let mut next = |pods: std::ops::Range<usize>, mib: usize| {
            for i in pods {
                let pod = Namespaced::new(&format!("p{i}"), "shop").unwrap();
                shares.put(&pod, true, &mut BTreeSet::new());
            }
            let next = shares.too_small_next("shop", (mib << 20) + 1);
            assert_eq!(shares.too_small_next("shop", mib << 20), None);
            next
        };
        // The share of three pods is still that of two.
        assert_eq!(next(0..2, 24), Some((24 << 20, 3)));
        assert_eq!(next(2..3, 16), Some((16 << 20, 5)));
        assert_eq!(next(3..8, 8), Some((8 << 20, 9)));
    }
}
