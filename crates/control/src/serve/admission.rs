//! How much of the port those may use who have not shown a certificate.
//!
//! Whoever reaches the port may begin a handshake, and may come without a certificate to get one. A
//! source that opens many connections and says nothing must keep nobody else out: each has a few
//! places, what comes beyond waits for one of these, and what comes beyond that is closed at once.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Handshakes at a time, of all sources.
const MAX_HANDSHAKES: usize = 1024;
/// Handshakes and connections without a certificate at a time, of one source.
const MAX_OF_SOURCE: usize = 32;
/// Connections of one source that wait for one of these places, or have it. The sidecars of a host
/// start together, so it is some hundred.
const MAX_PRESENT: usize = 256;
/// Connections without a certificate at a time, of all sources.
const MAX_STRANGERS: usize = 256;

/// Counts those who have proved nothing yet.
#[derive(Clone)]
pub(super) struct Admission {
    sources: Arc<Mutex<HashMap<IpAddr, Source>>>,
    handshakes: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
}

struct Source {
    places: Arc<Semaphore>,
    present: usize,
}

/// A connection that is counted. Dropped as soon as its peer has shown a certificate.
pub(super) struct Visit {
    of: Admission,
    source: IpAddr,
    places: Arc<Semaphore>,
}

/// A connection that may shake hands.
pub(super) struct Turn {
    visit: Visit,
    place: OwnedSemaphorePermit,
    _handshake: OwnedSemaphorePermit,
}

/// A connection without a certificate.
pub(super) struct Stranger {
    _visit: Visit,
    _place: OwnedSemaphorePermit,
    _slot: OwnedSemaphorePermit,
}

impl Admission {
    pub(super) fn new() -> Self {
        Self {
            sources: Arc::default(),
            handshakes: Arc::new(Semaphore::new(MAX_HANDSHAKES)),
            strangers: Arc::new(Semaphore::new(MAX_STRANGERS)),
        }
    }

    fn sources(&self) -> MutexGuard<'_, HashMap<IpAddr, Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a new connection; `None`: its source has too many, and it is to be closed.
    pub(super) fn enter(&self, address: IpAddr) -> Option<Visit> {
        let source = source_of(address);
        let mut sources = self.sources();
        let counted = sources.entry(source).or_insert_with(|| Source {
            places: Arc::new(Semaphore::new(MAX_OF_SOURCE)),
            present: 0,
        });
        if counted.present >= MAX_PRESENT {
            return None;
        }
        counted.present += 1;
        Some(Visit {
            of: self.clone(),
            source,
            places: counted.places.clone(),
        })
    }
}

impl Visit {
    /// Waits for a place; `None` never happens while the listener lives.
    pub(super) async fn turn(self) -> Option<Turn> {
        // The source's own place first: waiting for it keeps no other source from a handshake.
        let place = self.places.clone().acquire_owned().await.ok()?;
        let handshake = self.of.handshakes.clone().acquire_owned().await.ok()?;
        Some(Turn {
            visit: self,
            place,
            _handshake: handshake,
        })
    }
}

impl Turn {
    /// The handshake is over and showed no certificate; `None`: there are too many of these.
    pub(super) fn stranger(self) -> Option<Stranger> {
        let slot = self.visit.of.strangers.clone().try_acquire_owned().ok()?;
        Some(Stranger {
            _visit: self.visit,
            _place: self.place,
            _slot: slot,
        })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut sources = self.of.sources();
        if let Some(source) = sources.get_mut(&self.source) {
            source.present -= 1;
            if source.present == 0 {
                sources.remove(&self.source);
            }
        }
    }
}

/// One address, or for IPv6 the /64 of a network: a host has all addresses of it.
fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let bits = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(bits).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn a_source_has_its_places_and_no_more_wait_than_allowed() {
        let admission = Admission::new();
        let mut turns = Vec::new();
        for _ in 0..MAX_OF_SOURCE {
            let visit = admission.enter(ip("192.0.2.1")).unwrap();
            turns.push(visit.turn().await.unwrap());
        }
        let enter = || admission.enter(ip("192.0.2.1"));
        let waiting: Vec<_> = (MAX_OF_SOURCE..MAX_PRESENT).map(|_| enter()).collect();
        assert!(waiting.iter().all(Option::is_some));
        assert!(enter().is_none());
        assert!(admission.enter(ip("192.0.2.2")).is_some());
        drop((turns, waiting));
        assert!(enter().is_some());
        assert!(admission.sources().is_empty(), "nothing is remembered");
    }

    #[test]
    fn a_network_is_one_source() {
        assert_eq!(source_of(ip("2001:db8::1")), source_of(ip("2001:db8::2:1")));
        assert_ne!(
            source_of(ip("2001:db8::1")),
            source_of(ip("2001:db8:0:1::1"))
        );
        assert_eq!(source_of(ip("::ffff:192.0.2.1")), ip("192.0.2.1"));
        assert_ne!(source_of(ip("192.0.2.1")), source_of(ip("192.0.2.2")));
    }
}
