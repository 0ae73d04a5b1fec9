//! Admission of connections from clients: which one gives way when the proxy has no room for
//! another.
//!
//! The proxy serves every client while there is room. When there is none, the source with the most
//! connections gives one up to a source with fewer: first a connection that has never sent
//! anything, then the one idle longest. So no client can keep others out, however many connections
//! it opens. A source does not displace its own connections, except those that stay silent.
//!
//! These are the rules of [`tulle_net::places`] without its lock: each worker has a ledger of its own,
//! and the kernel remembers what each connection did, so requests pay nothing for it. Workers have
//! equal parts of a source's connections (see `spread`), so equal shares of each worker are equal
//! shares of the proxy.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tulle_net::places::source_of;
use tulle_net::socket::{Activity, ConnectionWatch};

/// Most connections of a source that are compared to choose the one that gives way.
const LOOKS: usize = 16;

/// How long a source's own connection may be silent when there is no room for its next one.
const SILENCE: Duration = Duration::from_secs(1);

/// No connection.
const NONE: u32 = u32::MAX;

/// The clients' connections of one worker.
#[derive(Default)]
pub struct Admission(Rc<RefCell<Ledger<Occupant>>>);

/// A connection, or a stream that counts as one.
#[derive(Clone)]
enum Occupant {
    Connection(ConnectionWatch),
    /// A connection that another sidecar carries in a stream, and since when.
    Stream(Rc<dyn Carried>, Instant),
}

/// A connection in a stream of another sidecar's connection.
pub trait Carried {
    /// Whether the stream is still open.
    fn is_there(&self) -> bool;
    /// Resets the stream; the task that serves it ends.
    fn cut(&self);
}

impl Occupant {
    fn activity(&self, source: IpAddr) -> Option<Activity> {
        match self {
            Self::Connection(watch) => watch.activity(source),
            // The oldest gives way: when bytes came last is not known.
            Self::Stream(stream, since) => stream.is_there().then(|| Activity {
                silent: false,
                idle: since.elapsed(),
            }),
        }
    }

    fn end(&self) {
        match self {
            Self::Connection(watch) => watch.end(),
            Self::Stream(stream, _) => stream.cut(),
        }
    }
}

/// A connection in the ledger; dropping it takes the connection out.
pub struct AdmittedConnection {
    ledger: Rc<RefCell<Ledger<Occupant>>>,
    slot: u32,
}

impl Drop for AdmittedConnection {
    fn drop(&mut self) {
        self.ledger.borrow_mut().leave(self.slot);
    }
}

/// The source whose connection was ended to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Displaced {
    /// The address, or the /64 of IPv6.
    pub source: IpAddr,
    /// How many connections it had in this worker.
    pub connections: u32,
}

impl Admission {
    /// Enters a connection that is going to be served.
    #[must_use]
    pub fn enter(&self, tcp: &TcpStream, peer: SocketAddr) -> AdmittedConnection {
        self.hold(
            peer.ip(),
            Occupant::Connection(ConnectionWatch::new(tcp, peer)),
        )
    }

    /// Enters a connection that a sidecar at this address carries in a stream. It takes as much room as
    /// one of its own.
    #[must_use]
    pub fn enter_stream(&self, address: IpAddr, stream: Rc<dyn Carried>) -> AdmittedConnection {
        self.hold(address, Occupant::Stream(stream, Instant::now()))
    }

    fn hold(&self, address: IpAddr, occupant: Occupant) -> AdmittedConnection {
        let slot = self.0.borrow_mut().enter(source_of(address), occupant);
        AdmittedConnection {
            ledger: self.0.clone(),
            slot,
        }
    }

    /// Ends a connection to make room for one of this address. `None`: that would be unfair.
    #[cold]
    pub fn make_room(&self, address: IpAddr) -> Option<Displaced> {
        let mut ledger = self.0.borrow_mut();
        let look = |source, occupant: &Occupant| occupant.activity(source);
        let (displaced, occupant) = ledger.displace(source_of(address), look)?;
        drop(ledger);
        occupant.end();
        Some(displaced)
    }
}

struct Entry<W> {
    source: IpAddr,
    watch: W,
    /// Neighbours in the list of its source.
    previous: u32,
    next: u32,
    /// Whether it is in no list: it was ended, or the slot is free.
    out: bool,
}

struct Source {
    connections: u32,
    /// Ends of its list; connections looked at most recently are last.
    first: u32,
    last: u32,
}

/// The rules, without I/O. Every operation is a look-up in a map, except a walk over [`LOOKS`]
/// connections and one look at each connection that has closed.
struct Ledger<W> {
    entries: Vec<Entry<W>>,
    free: Vec<u32>,
    sources: HashMap<IpAddr, Source>,
    /// Sources by number of connections, the most last.
    shares: BTreeSet<(u32, IpAddr)>,
}

impl<W> Default for Ledger<W> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            sources: HashMap::new(),
            shares: BTreeSet::new(),
        }
    }
}

impl<W: Clone> Ledger<W> {
    /// A slot is in range by construction: only `enter` makes them.
    #[expect(clippy::indexing_slicing, reason = "see above")]
    fn at(&mut self, slot: u32) -> &mut Entry<W> {
        &mut self.entries[slot as usize]
    }

    fn enter(&mut self, source: IpAddr, watch: W) -> u32 {
        let entry = Entry {
            source,
            watch,
            previous: NONE,
            next: NONE,
            out: true,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                *self.at(slot) = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                // A process has far fewer descriptors.
                u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
            }
        };
        self.link(slot);
        slot
    }

    fn leave(&mut self, slot: u32) {
        self.unlink(slot);
        self.free.push(slot);
        if self.free.len() == self.entries.len() {
            // Frees the memory of a flood that is over.
            *self = Self::default();
        }
    }

    /// Puts a connection last in its source's list.
    fn link(&mut self, slot: u32) {
        let address = self.at(slot).source;
        let source = self.sources.entry(address).or_insert(Source {
            connections: 0,
            first: NONE,
            last: NONE,
        });
        let (count, last) = (source.connections, source.last);
        source.connections += 1;
        source.last = slot;
        if last == NONE {
            source.first = slot;
        } else {
            self.at(last).next = slot;
        }
        let entry = self.at(slot);
        (entry.previous, entry.next, entry.out) = (last, NONE, false);
        self.shares.remove(&(count, address));
        self.shares.insert((count + 1, address));
    }

    /// Takes a connection out of its source's list, if it is in it.
    fn unlink(&mut self, slot: u32) {
        let entry = self.at(slot);
        if std::mem::replace(&mut entry.out, true) {
            return;
        }
        let (address, previous, next) = (entry.source, entry.previous, entry.next);
        if previous != NONE {
            self.at(previous).next = next;
        }
        if next != NONE {
            self.at(next).previous = previous;
        }
        let Some(source) = self.sources.get_mut(&address) else {
            return;
        };
        if previous == NONE {
            source.first = next;
        }
        if next == NONE {
            source.last = previous;
        }
        let count = source.connections;
        source.connections -= 1;
        self.shares.remove(&(count, address));
        if count > 1 {
            self.shares.insert((count - 1, address));
        } else {
            self.sources.remove(&address);
        }
    }

    fn connections(&self, source: IpAddr) -> u32 {
        self.sources.get(&source).map_or(0, |s| s.connections)
    }

    /// Takes out the connection that gives way to one of `source`. `look` says what a connection did;
    /// `None`: there is no such connection any more.
    fn displace(
        &mut self,
        source: IpAddr,
        look: impl Fn(IpAddr, &W) -> Option<Activity>,
    ) -> Option<(Displaced, W)> {
        let mine = self.connections(source);
        let &(most, largest) = self.shares.last()?;
        let own = most <= mine;
        let from = if own { source } else { largest };
        let connections = self.connections(from);
        let may_go = |activity: &Activity| match (activity.silent, own) {
            (true, true) => activity.idle >= SILENCE,
            (true, false) => true,
            // Otherwise the two sources would take each other's place in turn.
            (false, _) => !own && most >= mine + 2,
        };
        let mut best: Option<((bool, Duration), u32)> = None;
        let mut looks = 0;
        while looks < LOOKS {
            let first = self.sources.get(&from).map_or(NONE, |s| s.first);
            if first == NONE {
                break;
            }
            let watch = self.at(first).watch.clone();
            // Moves it to the end of the list, so that the next look is at others.
            self.unlink(first);
            let Some(activity) = look(from, &watch) else {
                // It has closed, and is not looked at again.
                continue;
            };
            looks += 1;
            self.link(first);
            let rank = (activity.silent, activity.idle);
            if may_go(&activity) && best.is_none_or(|(found, _)| rank > found) {
                best = Some((rank, first));
            }
        }
        let (_, slot) = best?;
        self.unlink(slot);
        let displaced = Displaced {
            source: from,
            connections,
        };
        Some((displaced, self.at(slot).watch.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    /// A connection with this activity.
    #[derive(Debug, Clone, Copy)]
    struct Did(Option<Activity>);

    fn did(silent: bool, seconds: u64) -> Did {
        let idle = Duration::from_secs(seconds);
        Did(Some(Activity { silent, idle }))
    }

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    fn displace(ledger: &mut Ledger<Did>, source: u8) -> Option<(IpAddr, Did)> {
        let displaced = ledger.displace(ip(source), |_, did| did.0);
        displaced.map(|(displaced, did)| (displaced.source, did))
    }

    fn enter(ledger: &mut Ledger<Did>, source: u8, did: Did) -> u32 {
        ledger.enter(ip(source), did)
    }

    #[test]
    fn who_has_most_gives_way_to_who_has_fewer() {
        let mut ledger = Ledger::default();
        for seconds in 0..5 {
            enter(&mut ledger, 1, did(false, seconds));
            enter(&mut ledger, 2, did(false, 100));
        }
        enter(&mut ledger, 1, did(false, 0));
        let (source, gone) = displace(&mut ledger, 3).unwrap();
        assert_eq!(source, ip(1), "it has more than another");
        assert_eq!(gone.0.unwrap().idle.as_secs(), 4, "the one idle longest");
        enter(&mut ledger, 1, did(true, 0));
        let (_, gone) = displace(&mut ledger, 3).unwrap();
        assert!(gone.0.unwrap().silent, "one that never said anything first");
    }

    #[test]
    fn nobody_takes_the_place_of_who_has_no_more() {
        let mut ledger = Ledger::default();
        for source in [1, 1, 2, 2] {
            enter(&mut ledger, source, did(false, 100));
        }
        assert!(displace(&mut ledger, 1).is_none());
        enter(&mut ledger, 1, did(false, 100));
        // 3 and 2: the two would only swap places.
        assert!(displace(&mut ledger, 2).is_none());
        enter(&mut ledger, 1, did(true, 0));
        assert!(displace(&mut ledger, 2).is_some(), "a silent one goes");
    }

    #[test]
    fn of_its_own_a_source_replaces_those_that_stay_silent() {
        let mut ledger = Ledger::default();
        enter(&mut ledger, 1, did(false, 100));
        enter(&mut ledger, 1, did(true, 0));
        assert!(displace(&mut ledger, 1).is_none(), "it may speak yet");
        enter(&mut ledger, 1, did(true, 2));
        let (source, gone) = displace(&mut ledger, 1).unwrap();
        assert_eq!((source, gone.0.unwrap().idle.as_secs()), (ip(1), 2));
    }

    #[test]
    fn looks_are_few_and_reach_all_in_time() {
        let mut ledger = Ledger::default();
        for _ in 0..100 {
            enter(&mut ledger, 1, did(false, 0));
        }
        enter(&mut ledger, 1, did(true, 9));
        let looks = std::cell::Cell::new(0);
        let mut tries = 0;
        loop {
            tries += 1;
            let look = |_, did: &Did| {
                looks.set(looks.get() + 1);
                did.0
            };
            if ledger.displace(ip(1), look).is_some() {
                break;
            }
        }
        assert_eq!(tries, 101_usize.div_ceil(LOOKS));
        assert!(looks.get() <= tries * LOOKS);
    }

    #[test]
    fn a_connection_that_is_gone_is_not_ended_again() {
        let mut ledger = Ledger::default();
        let slots: Vec<_> = (0..3).map(|_| enter(&mut ledger, 1, Did(None))).collect();
        enter(&mut ledger, 1, did(false, 1));
        enter(&mut ledger, 1, did(false, 2));
        assert_eq!(
            displace(&mut ledger, 2)
                .unwrap()
                .1
                .0
                .unwrap()
                .idle
                .as_secs(),
            2
        );
        assert_eq!(
            ledger.connections(ip(1)),
            1,
            "those that are gone do not count"
        );
        slots.into_iter().for_each(|slot| ledger.leave(slot));
        assert_eq!(ledger.connections(ip(1)), 1);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Enter(u8, bool, u64),
        Displace(u8),
        Leave(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..6u8, any::<bool>(), 0..9u64).prop_map(|(s, q, t)| Step::Enter(s, q, t)),
            2 => (0..6u8).prop_map(Step::Displace),
            2 => (0..64usize).prop_map(Step::Leave),
        ]
    }

    proptest! {
        #[test]
        fn nobody_is_kept_out_and_nothing_is_remembered(
            steps in proptest::collection::vec(step(), 0..120)
        ) {
            let mut ledger = Ledger::default();
            // Connections entered, with their sources.
            let mut held: Vec<(u32, u8)> = Vec::new();
            let mut counts = [0_u32; 6];
            for step in steps {
                match step {
                    Step::Enter(source, silent, idle) => {
                        held.push((enter(&mut ledger, source, did(silent, idle)), source));
                        counts[source as usize] += 1;
                    }
                    Step::Displace(source) => {
                        let most = counts.into_iter().max().unwrap();
                        let mine = counts[source as usize];
                        let gone = displace(&mut ledger, source);
                        prop_assert!(gone.is_some() || most < mine + 2);
                        if let Some((from, did)) = gone {
                            let from = (0..6).find(|s| ip(*s) == from).unwrap();
                            let theirs = counts[from as usize];
                            prop_assert_eq!(theirs, most);
                            prop_assert!(theirs > mine || from == source);
                            prop_assert!(did.0.unwrap().silent || theirs >= mine + 2);
                            counts[from as usize] -= 1;
                        }
                    }
                    Step::Leave(nth) if !held.is_empty() => {
                        let (slot, source) = held.swap_remove(nth % held.len());
                        counts[source as usize] -= u32::from(!ledger.at(slot).out);
                        ledger.leave(slot);
                    }
                    Step::Leave(_) => {}
                }
                for source in 0..6 {
                    prop_assert_eq!(ledger.connections(ip(source)), counts[source as usize]);
                }
            }
            held.into_iter().for_each(|(slot, _)| ledger.leave(slot));
            prop_assert!(ledger.sources.is_empty() && ledger.shares.is_empty());
            prop_assert!(ledger.entries.is_empty() && ledger.free.is_empty());
        }
    }
}
