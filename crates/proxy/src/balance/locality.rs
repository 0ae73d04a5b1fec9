//! Locality: how far endpoints are, and how many of the near ones have to be healthy for the others
//! to be left alone.

use tulle_model::resource;

/// Sorts endpoints by distance from `own` (`region/zone/node`). Returns their indices, nearest first,
/// and the index at which each distance ends. Endpoints that must not be asked are left out.
pub fn by_distance(
    rule: &resource::Locality,
    own: &str,
    localities: &[&str],
) -> (Vec<usize>, Vec<usize>) {
    let distances: Vec<_> = localities
        .iter()
        .map(|there| distance(rule, own, there))
        .collect();
    let mut order: Vec<_> = (0..localities.len())
        .filter(|i| distances[*i].is_some())
        .collect();
    order.sort_by_key(|i| distances[*i]);
    let is_last = |place: &usize| {
        let next = order.get(place + 1).map(|i| distances[*i]);
        next != Some(distances[order[*place]])
    };
    let ends = (0..order.len()).filter(is_last).map(|place| place + 1);
    let ends = ends.collect();
    (order, ends)
}

/// Region, zone and node.
fn parts(locality: &str) -> [&str; 3] {
    let mut parts = locality.splitn(3, '/');
    [(); 3].map(|()| parts.next().unwrap_or_default())
}

/// Same node, same zone, same region, then the other regions, in the configured order or all equal.
fn distance(rule: &resource::Locality, own: &str, there: &str) -> Option<usize> {
    let ([region, zone, node], [its_region, its_zone, its_node]) = (parts(own), parts(there));
    if !node.is_empty() && node == its_node {
        return Some(0);
    }
    if rule.is_same_node() {
        return None;
    }
    if region.is_empty() {
        return Some(1);
    }
    if region == its_region {
        return Some(if zone == its_zone { 1 } else { 2 });
    }
    if rule.failover.is_empty() {
        return Some(3);
    }
    let place = rule.failover.iter().position(|r| r == its_region);
    place.map(|place| place + 3)
}

/// Returns how many of the endpoints, nearest first, may be chosen. Distances are added until their
/// shares of healthy endpoints, each divided by the share that is enough, add up to one.
pub fn scope(percent: u32, ends: &[usize], well: impl Fn(usize) -> bool) -> usize {
    let (mut start, mut enough) = (0, 0);
    for &end in ends {
        let count = (start..end).filter(|i| well(*i)).count();
        enough += count * 10_000 / ((end - start) * percent.max(1) as usize);
        if enough >= 100 {
            return end;
        }
        start = end;
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: [&str; 6] = ["us/1", "eu/1", "eu/2", "asia/1", "", "eu/1"];

    #[test]
    fn the_same_zone_then_the_same_region_then_the_others() {
        let any = resource::Locality::default();
        let (order, ends) = by_distance(&any, "eu/1", &THERE);
        assert_eq!((order, ends), (vec![1, 5, 2, 0, 3, 4], vec![2, 3, 6]));
        let (order, ends) = by_distance(&any, "", &THERE);
        assert_eq!((order, ends), (vec![0, 1, 2, 3, 4, 5], vec![6]));
        let given = resource::Locality {
            failover: vec!["asia".into(), "us".into()],
            ..Default::default()
        };
        let (order, ends) = by_distance(&given, "eu/1", &THERE);
        assert_eq!((order, ends), (vec![1, 5, 2, 3, 0], vec![2, 3, 4, 5]));
        assert_eq!(by_distance(&any, "eu/1", &[]), (vec![], vec![]));
    }

    #[test]
    fn the_same_node_is_nearest_and_may_be_the_only_one() {
        let there = ["eu/1/b", "eu/1/a", "eu/1", "eu/2/a2", "//a"];
        let any = resource::Locality::default();
        let (order, ends) = by_distance(&any, "eu/1/a", &there);
        assert_eq!((order, ends), (vec![1, 4, 0, 2, 3], vec![2, 4, 5]));
        let (order, ends) = by_distance(&any, "//b", &there);
        assert_eq!((order, ends), (vec![0, 1, 2, 3, 4], vec![1, 5]));
        let only = resource::Locality::same_node();
        assert_eq!(by_distance(&only, "eu/1/a", &there).0, [1, 4]);
        for elsewhere in ["eu/1", "eu/1/c", "", "//"] {
            assert_eq!(by_distance(&only, elsewhere, &there).0, [0; 0]);
        }
    }

    #[test]
    fn farther_ones_join_in_when_too_few_near_ones_are_well() {
        let ends = [4, 6, 8];
        let without = |sick: &'static [usize]| move |i: usize| !sick.contains(&i);
        assert_eq!(scope(70, &ends, without(&[])), 4);
        assert_eq!(scope(70, &ends, without(&[0])), 4, "three of four are 75 %");
        assert_eq!(scope(70, &ends, without(&[0, 1])), 6);
        assert_eq!(scope(70, &ends, without(&[0, 1, 2, 3])), 6);
        assert_eq!(scope(70, &ends, without(&[0, 1, 2, 3, 4])), 8);
        assert_eq!(scope(70, &ends, |_| false), 8);
    }
}
