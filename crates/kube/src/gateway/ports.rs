//! Where a gateway's pods listen. Pure.

use crate::names::{HEALTH_PORT, METRICS_PORT};
use std::collections::{BTreeMap, BTreeSet};

/// Administration, metrics, health.
const OWN: [u16; 3] = [15000, METRICS_PORT, HEALTH_PORT];

/// A port of the pods for each port of the listeners. Those below 1024 would take a privilege, and
/// some are the proxy's own: these have others, which clients never see because the Service maps them.
pub(super) fn targets(ports: &BTreeSet<u16>) -> BTreeMap<u16, u16> {
    let is_free = |port: u16| port >= 1024 && !OWN.contains(&port);
    let (same, moved): (Vec<u16>, Vec<u16>) = ports.iter().partition(|port| is_free(**port));
    let mut targets: BTreeMap<u16, u16> = same.iter().map(|port| (*port, *port)).collect();
    let mut used: BTreeSet<u16> = same.into_iter().collect();
    for port in moved {
        let first = 10_000 + port % 10_000;
        let mut places = first..=u16::MAX;
        let Some(target) = places.find(|place| is_free(*place) && !used.contains(place)) else {
            continue; // a gateway has at most 64 listeners
        };
        used.insert(target);
        targets.insert(port, target);
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileged_and_own_ports_are_moved() {
        let map = |ports: &[u16]| {
            let targets = targets(&ports.iter().copied().collect());
            let all: Vec<String> = targets.iter().map(|(p, t)| format!("{p}={t}")).collect();
            all.join(" ")
        };
        assert_eq!(map(&[80, 443, 8080]), "80=10080 443=10443 8080=8080");
        assert_eq!(map(&[80, 10080, 10081]), "80=10082 10080=10080 10081=10081");
        assert_eq!(map(&[15020, 15021]), "15020=15022 15021=15023");
        assert_eq!(map(&[1, 1023]), "1=10001 1023=11023");
    }
}
