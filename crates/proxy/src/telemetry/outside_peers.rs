//! Peers outside the mesh: clients that called in plaintext, and addresses without a rule that the
//! application reached. A strict mesh refuses them, and a stricter one would.
//!
//! Metrics have no addresses, because each would be a series. Here their number is bounded, and the
//! peer not seen for longest makes room.

use serde::Serialize;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;
use tulle_net::socket;

/// Most peers a worker remembers: about 100 bytes each.
const MOST: usize = 128;

/// A peer outside the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct OutsidePeer {
    direction: Direction,
    /// Its address.
    address: IpAddr,
    /// The application's port if the peer called it, otherwise the peer's.
    port: u16,
}

/// Direction of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Inbound,
    Outbound,
}

impl OutsidePeer {
    /// A peer that called a port of the application without a certificate.
    pub fn caller(address: IpAddr, port: u16) -> Self {
        Self {
            direction: Direction::Inbound,
            address,
            port,
        }
    }

    /// A peer that the application called.
    pub fn server(address: SocketAddr) -> Self {
        let address = socket::canonical(address);
        Self {
            direction: Direction::Outbound,
            address: address.ip(),
            port: address.port(),
        }
    }
}

/// Connections (or requests that were judged one by one), and the time of the last one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct Counts {
    /// Allowed because the mesh is not strict.
    allowed: u64,
    refused: u64,
    /// Seconds since 1970.
    last: u64,
}

/// A peer as it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Row {
    #[serde(flatten)]
    peer: OutsidePeer,
    #[serde(flatten)]
    counts: Counts,
}

/// The peers a worker has seen.
#[derive(Debug, Default)]
pub struct OutsidePeers(RefCell<HashMap<OutsidePeer, Counts>>);

impl OutsidePeers {
    /// Counts a peer that strict mode would refuse.
    pub fn let_through(&self, peer: OutsidePeer) {
        self.count(peer, |counts| counts.allowed += 1);
    }

    /// Counts a refused peer.
    pub fn refused(&self, peer: OutsidePeer) {
        self.count(peer, |counts| counts.refused += 1);
    }

    /// Uncounts a peer that has begun with TLS after all.
    pub fn take_back(&self, peer: OutsidePeer) {
        if let Some(counts) = self.0.borrow_mut().get_mut(&peer) {
            counts.allowed = counts.allowed.saturating_sub(1);
        }
    }

    fn count(&self, peer: OutsidePeer, add: impl FnOnce(&mut Counts)) {
        let mut all = self.0.borrow_mut();
        if all.len() >= MOST && !all.contains_key(&peer) {
            let oldest = all.iter().min_by_key(|(_, counts)| counts.last);
            if let Some(oldest) = oldest.map(|(peer, _)| *peer) {
                all.remove(&oldest);
            }
        }
        let counts = all.entry(peer).or_default();
        add(counts);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        counts.last = now.unwrap_or_default().as_secs();
    }

    /// Returns all peers.
    pub fn rows(&self) -> Vec<Row> {
        let all = self.0.borrow();
        let seen = all.iter().filter(|(_, c)| c.allowed + c.refused > 0);
        seen.map(|(peer, counts)| Row {
            peer: *peer,
            counts: *counts,
        })
        .collect()
    }
}

/// Merges the peers of several workers.
pub fn together(rows: Vec<Row>) -> Vec<Row> {
    let mut all: BTreeMap<OutsidePeer, Counts> = BTreeMap::new();
    for row in rows {
        let counts = all.entry(row.peer).or_default();
        counts.allowed += row.counts.allowed;
        counts.refused += row.counts.refused;
        counts.last = counts.last.max(row.counts.last);
    }
    let rows = all.into_iter();
    rows.map(|(peer, counts)| Row { peer, counts }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(n: u16) -> OutsidePeer {
        let [high, low] = n.to_be_bytes();
        OutsidePeer::caller([10, 0, high, low].into(), 80)
    }

    #[test]
    fn peers_are_counted_and_their_number_is_bounded() {
        let seen = OutsidePeers::default();
        for n in 0..1000 {
            seen.let_through(caller(n));
        }
        assert_eq!(seen.rows().len(), MOST);
        let seen = OutsidePeers::default();
        seen.let_through(caller(1));
        seen.refused(caller(1));
        seen.let_through(caller(2));
        seen.take_back(caller(2));
        let rows = together([seen.rows(), seen.rows()].concat());
        let [row] = rows.as_slice() else {
            panic!("{rows:?}")
        };
        assert_eq!((row.counts.allowed, row.counts.refused), (2, 2));
        let shown = serde_json::json!(row);
        assert_eq!(shown["direction"], "inbound");
        assert_eq!(shown["address"], "10.0.0.1");
    }
}
