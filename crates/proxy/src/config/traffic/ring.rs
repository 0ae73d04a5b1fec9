//! Hashing onto a ring: a key stays with its endpoint as others come and go.
//!
//! Each endpoint has points on the ring that depend on its address alone, so every proxy of the
//! mesh makes the same ring. An endpoint that comes or goes moves only the keys next to its points.

use std::net::SocketAddr;
use tulle_model::resource::Endpoint;

/// Points of an endpoint of the lowest weight: shares differ from the ideal by about a tenth.
const POINTS: u64 = 160;
/// Most points of a ring, 16 bytes each. With more endpoints each has fewer.
const MAX_POINTS: u64 = 32 * 1024;

/// A ring, identical in all workers.
#[derive(Debug)]
pub struct Ring(Box<[(u64, u32)]>);

impl Ring {
    /// A ring of endpoints by weight.
    pub fn new(endpoints: &[Endpoint]) -> Self {
        let weights = || endpoints.iter().map(|e| u64::from(e.weight));
        let least = weights().filter(|w| *w > 0).min().unwrap_or(1);
        // The lightest endpoint has `POINTS`, unless there would be too many in all.
        let wanted = weights().sum::<u64>().saturating_mul(POINTS) / least;
        let allowed = wanted.min(MAX_POINTS.max(endpoints.len() as u64));
        let mut points = Vec::new();
        for (index, endpoint) in (0..).zip(endpoints) {
            let weight = u128::from(endpoint.weight) * u128::from(POINTS * allowed);
            let count = weight / u128::from(least * wanted.max(1));
            // Below 2^32, see `allowed`.
            let count = (count as u64).max(u64::from(endpoint.weight > 0));
            let base = of_address(endpoint.address);
            points.extend((0..count).map(|i| (mix(base ^ mix(i)), index)));
        }
        points.sort_unstable();
        Self(points.into_boxed_slice())
    }

    /// Endpoints in the order in which they are tried for this key. One may come several times.
    pub fn walk(&self, key: u64) -> impl Iterator<Item = usize> + '_ {
        let (before, after) = self.0.split_at(self.0.partition_point(|(at, _)| *at < key));
        after.iter().chain(before).map(|(_, index)| *index as usize)
    }
}

/// Hashes an address in the same way.
pub fn of_address(address: SocketAddr) -> u64 {
    let ip = match address.ip() {
        std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        std::net::IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; 18];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
    of_bytes(&bytes)
}

/// A hash that is the same in every proxy: FNV-1a, then mixed so that all bits count.
pub fn of_bytes(bytes: &[u8]) -> u64 {
    let fnv = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(fnv)
}

/// The last steps of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(count: u16) -> Vec<Endpoint> {
        let endpoint = |port| Endpoint::new(([10, 0, 0, 1], port).into(), true);
        (1..=count).map(endpoint).collect()
    }

    fn owner(ring: &Ring, key: u64) -> usize {
        ring.walk(mix(key)).next().unwrap()
    }

    const KEYS: u64 = 20_000;

    #[test]
    fn an_endpoint_that_comes_or_goes_moves_only_its_own_share() {
        let (ten, eleven) = (Ring::new(&endpoints(10)), Ring::new(&endpoints(11)));
        let moved: Vec<_> = (0..KEYS)
            .map(|key| (owner(&ten, key), owner(&eleven, key)))
            .filter(|(before, after)| before != after)
            .collect();
        assert!(moved.iter().all(|(_, after)| *after == 10), "{moved:?}");
        let share = moved.len() as f64 / KEYS as f64;
        assert!((0.06..0.13).contains(&share), "{share} of the keys moved");
    }

    #[test]
    fn shares_follow_weights() {
        let mut endpoints = endpoints(4);
        endpoints[1].weight = 3;
        endpoints[3].weight = 0;
        let ring = Ring::new(&endpoints);
        let mut seen = [0_u64; 4];
        (0..KEYS).for_each(|key| seen[owner(&ring, key)] += 1);
        let share = |i: usize| seen[i] as f64 / KEYS as f64;
        assert_eq!(seen[3], 0);
        assert!((share(0) - 0.2).abs() < 0.05, "{seen:?}");
        assert!((share(1) - 0.6).abs() < 0.08, "{seen:?}");
    }

    #[test]
    fn a_ring_is_bounded_and_has_everybody() {
        let mut many = endpoints(5000);
        many[7].weight = u32::MAX;
        many[8].weight = 1_000_000;
        let ring = Ring::new(&many);
        assert!(ring.0.len() as u64 <= MAX_POINTS + 5000, "{}", ring.0.len());
        let present: std::collections::HashSet<_> = ring.0.iter().map(|p| p.1).collect();
        assert_eq!(present.len(), 5000);
        assert_eq!(Ring::new(&[]).walk(1).next(), None);
    }
}
