//! Admission: how many connections a listener serves at a time, and whose.
//!
//! A connection takes a place before anything is read from it. Places are limited in all and per
//! source, and some are reserved for peers that must never be kept out. When no place is free, a
//! source that holds more gives one up to a source that holds fewer: first the connection that has been
//! silent longest. So nobody can keep others out, however many connections they open and whatever
//! they do with them.
//!
//! A place may weigh more than one: the same rules divide the bytes of a memory budget.

use crate::task;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// Wait after a failed accept, which usually means that file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The number of places. With weights: their total weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceLimits {
    /// Limit for all sources together.
    pub all: usize,
    /// Limit for one source, part of `all`.
    pub source: usize,
    /// Further places, for [`Class::Reserved`] alone.
    pub reserved: usize,
}

/// The places that a connection may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The places for everybody.
    Anyone,
    /// The reserved ones, and then those for everybody.
    Reserved,
}

/// The stage that a connection has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The connection has asked for nothing, or waits with nothing under way: evicted first.
    Silent,
    /// A request of it is served: evicted only where no silent one is left, and for other sources
    /// only where that makes shares more even.
    Served,
    /// The connection must not be cut now: never evicted.
    Pinned,
}

/// Returns what counts as one source: an address, or for IPv6 the /64 of a network, because a host
/// has all addresses of it.
#[must_use]
pub fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let bits = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(bits).into()
        }
        address => address,
    }
}

/// Returns what counts as one source where peers are known by name, such as an identity.
#[must_use]
pub fn source_named(name: &str) -> IpAddr {
    static KEYS: OnceLock<RandomState> = OnceLock::new();
    // The name takes the place of a network, whose every address is one source.
    let network = KEYS.get_or_init(RandomState::new).hash_one(name);
    Ipv6Addr::from(u128::from(network) << 64).into()
}

#[derive(Debug)]
struct Held {
    id: u64,
    source: IpAddr,
    weight: usize,
    reserved: bool,
    stage: Stage,
    end: Arc<Notify>,
}

/// The rules, without I/O.
#[derive(Debug)]
struct Ledger {
    limits: PlaceLimits,
    /// Ordered by the time in their present stage, the longest first.
    held: Vec<Held>,
    next: u64,
}

impl Ledger {
    fn new(limits: PlaceLimits) -> Self {
        Self {
            limits,
            held: Vec::new(),
            next: 0,
        }
    }

    fn reserved(&self) -> usize {
        let reserved = self.held.iter().filter(|h| h.reserved);
        reserved.map(|h| h.weight).sum()
    }

    fn all(&self) -> usize {
        self.common().map(|h| h.weight).sum()
    }

    fn held_by(&self, source: IpAddr) -> usize {
        let own = self.common().filter(|h| h.source == source);
        own.map(|h| h.weight).sum()
    }

    fn common(&self) -> impl Iterator<Item = &Held> {
        self.held.iter().filter(|h| !h.reserved)
    }

    fn take(&mut self, source: IpAddr, class: Class, weight: usize) -> Option<(u64, Arc<Notify>)> {
        let reserved = class == Class::Reserved && self.reserved() + weight <= self.limits.reserved;
        let (id, end) = (self.next, Arc::<Notify>::default());
        if !reserved && !self.make_room(source, weight, id) {
            return None;
        }
        self.next += 1;
        self.held.push(Held {
            id,
            source,
            weight,
            reserved,
            stage: Stage::Silent,
            end: end.clone(),
        });
        Some((id, end))
    }

    /// Evicts until `weight` more fits for a source; `own` is spared.
    fn make_room(&mut self, source: IpAddr, weight: usize, own: u64) -> bool {
        if weight > self.limits.source.min(self.limits.all) {
            return false;
        }
        while self.held_by(source) + weight > self.limits.source {
            // The source is over its own limit, so another's place would not help.
            let mut of_stage =
                |stage| self.evict(|h| h.id != own && h.source == source && h.stage == stage);
            if !of_stage(Stage::Silent) && !of_stage(Stage::Served) {
                return false;
            }
        }
        while self.all() + weight > self.limits.all {
            let Some(victim) = self.victim(source, weight, own) else {
                return false;
            };
            self.evict(|h| h.id == victim);
        }
        true
    }

    /// The connection that is to go for one of `source`: of those who hold the most, the one that has
    /// been silent longest.
    fn victim(&self, source: IpAddr, weight: usize, own: u64) -> Option<u64> {
        let mine = self.held_by(source);
        let mut shares: Vec<(IpAddr, usize)> = Vec::new();
        for held in self.common() {
            match shares.binary_search_by_key(&held.source, |s| s.0) {
                Ok(at) => {
                    if let Some(share) = shares.get_mut(at) {
                        share.1 += held.weight;
                    }
                }
                Err(at) => shares.insert(at, (held.source, held.weight)),
            }
        }
        let share = |source: IpAddr| {
            let at = shares.binary_search_by_key(&source, |s| s.0).ok();
            at.and_then(|at| shares.get(at)).map_or(0, |s| s.1)
        };
        let may_go = |h: &&Held| {
            let theirs = share(h.source);
            h.id != own
                && match h.stage {
                    Stage::Silent => theirs > mine || h.source == source,
                    // Else the two would take each other's place in turn.
                    Stage::Served => h.source != source && theirs >= mine + weight + h.weight,
                    Stage::Pinned => false,
                }
        };
        let candidates = self.common().filter(may_go);
        // The last one of several equals is chosen: the oldest.
        let candidates = candidates.map(|h| (share(h.source), h.stage == Stage::Silent, h.id));
        let oldest_first = candidates.collect::<Vec<_>>().into_iter().rev();
        oldest_first.max_by_key(|c| (c.0, c.1)).map(|c| c.2)
    }

    fn evict(&mut self, which: impl FnMut(&Held) -> bool) -> bool {
        let Some(at) = self.held.iter().position(which) else {
            return false;
        };
        self.held.remove(at).end.notify_one();
        true
    }

    /// Adds to what a connection holds; false: there is no room, or it holds nothing any more.
    fn grow(&mut self, id: u64, weight: usize) -> bool {
        let Some(held) = self.held.iter().find(|h| h.id == id) else {
            return false;
        };
        let room = match held.reserved {
            true => self.reserved() + weight <= self.limits.reserved,
            false => self.make_room(held.source, weight, id),
        };
        if room && let Some(held) = self.held.iter_mut().find(|h| h.id == id) {
            held.weight += weight;
        }
        room
    }

    fn reach(&mut self, id: u64, stage: Stage) {
        if let Some(at) = self.held.iter().position(|h| h.id == id) {
            let mut held = self.held.remove(at);
            held.stage = stage;
            self.held.push(held);
        }
    }

    fn leave(&mut self, id: u64) {
        self.held.retain(|h| h.id != id);
    }
}

/// The places of one listener.
#[derive(Debug, Clone)]
pub struct Places(Arc<Mutex<Ledger>>);

/// A place that is held; dropping it gives it back.
#[derive(Debug)]
pub struct HeldPlace {
    places: Places,
    source: IpAddr,
    id: u64,
    end: Arc<Notify>,
}

impl Places {
    /// Creates this many places, all free.
    #[must_use]
    pub fn new(limits: PlaceLimits) -> Self {
        Self(Arc::new(Mutex::new(Ledger::new(limits))))
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place, from another source if need be; `None`: that would be unfair to all others.
    #[must_use]
    pub fn take(&self, source: IpAddr, class: Class) -> Option<HeldPlace> {
        self.take_weight(source, class, 1)
    }

    /// Takes as many places at once.
    #[must_use]
    pub fn take_weight(&self, source: IpAddr, class: Class, weight: usize) -> Option<HeldPlace> {
        let taken = self.ledger().take(source_of(source), class, weight);
        taken.map(|(id, end)| HeldPlace {
            places: self.clone(),
            source,
            id,
            end,
        })
    }

    /// Accepts connections and serves each as [`Self::serve`] does.
    pub async fn accept<F>(
        self,
        listener: TcpListener,
        class: impl Fn(IpAddr) -> Class,
        serve: impl Fn(TcpStream, Arc<HeldPlace>) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let from = from.ip().to_canonical();
            self.serve(from, class(from), |place| serve(stream, place));
        }
    }

    /// Serves one connection in a task of its own that ends with its place. Without a place it is
    /// closed at once.
    pub fn serve<F>(&self, source: IpAddr, class: Class, serve: impl FnOnce(Arc<HeldPlace>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(place) = self.take(source, class) {
            let place = Arc::new(place);
            let served = serve(place.clone());
            task::start(async move { place.during(served).await });
        }
    }
}

impl HeldPlace {
    /// Does something for as long as the place is held; `None`: it was lost.
    pub async fn during<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.end.notified() => None,
        }
    }

    /// Does something that must not be cut.
    pub async fn pinned<T>(&self, work: impl Future<Output = T>) -> T {
        self.reach(Stage::Pinned);
        let done = work.await;
        self.reach(Stage::Silent);
        done
    }

    /// Returns whose it is.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// Holds more; `false`: there is no room for it.
    #[must_use]
    pub fn grow(&self, weight: usize) -> bool {
        self.places.ledger().grow(self.id, weight)
    }

    /// Says how far the connection has come.
    pub fn reach(&self, stage: Stage) {
        self.places.ledger().reach(self.id, stage);
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        self.places.ledger().leave(self.id);
    }
}

/// Says which sources are the node of this pod, as far as that can be known: its network's gateways,
/// from which a kubelet connects in most clusters. Pods have addresses of their own. Sources come without
/// the scope of a link-local address: a pod has one network.
pub fn node_class() -> impl Fn(IpAddr) -> Class + Send + 'static {
    let read = |table: &str| std::fs::read_to_string(table).unwrap_or_default();
    class_by(&read("/proc/net/route"), &read("/proc/net/ipv6_route"))
}

/// Says which sources are gateways of these routing tables.
fn class_by(v4: &str, v6: &str) -> impl Fn(IpAddr) -> Class + Send + use<> {
    let gateways: Vec<IpAddr> = default_gateway(v4)
        .into_iter()
        .chain(default_gateways_v6(v6))
        .collect();
    move |source| match gateways.contains(&source.to_canonical()) {
        true => Class::Reserved,
        false => Class::Anyone,
    }
}

/// The default gateway of a routing table as the kernel writes it: in its own byte order.
fn default_gateway(table: &str) -> Option<IpAddr> {
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        if fields.next()? != "00000000" {
            return None;
        }
        let gateway = u32::from_str_radix(fields.next()?, 16).ok()?;
        (gateway != 0).then(|| Ipv4Addr::from(gateway.to_ne_bytes()).into())
    })
}

/// The default gateways of IPv6's routing table, as the kernel writes it. A router that advertises itself
/// is one by its link-local address, beside those that somebody has configured.
fn default_gateways_v6(table: &str) -> impl Iterator<Item = IpAddr> {
    table.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (destination, length) = (fields.next()?, fields.next()?);
        let gateway = u128::from_str_radix(fields.nth(2)?, 16).ok()?;
        let default = length == "00" && destination.bytes().all(|b| b == b'0');
        let gateway = Ipv6Addr::from(gateway);
        (default && !gateway.is_unspecified()).then(|| gateway.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: PlaceLimits = PlaceLimits {
        all: 8,
        source: 5,
        reserved: 2,
    };

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    fn silent(ledger: &mut Ledger, source: u8, count: usize) -> Vec<u64> {
        let take = |_| ledger.take(ip(source), Class::Anyone, 1).unwrap().0;
        (0..count).map(take).collect()
    }

    fn holds(ledger: &Ledger, id: u64) -> bool {
        ledger.held.iter().any(|h| h.id == id)
    }

    #[test]
    fn a_source_replaces_its_own_oldest_silent_connection() {
        let mut ledger = Ledger::new(LIMITS);
        let first = silent(&mut ledger, 1, 5);
        ledger.reach(first[0], Stage::Served);
        silent(&mut ledger, 1, 1);
        assert!(holds(&ledger, first[0]) && !holds(&ledger, first[1]));
        for id in ledger.held.iter().map(|h| h.id).collect::<Vec<_>>() {
            ledger.reach(id, Stage::Served);
        }
        silent(&mut ledger, 1, 1);
        assert!(
            !holds(&ledger, first[2]),
            "where none is silent, one that is served"
        );
        for id in ledger.held.iter().map(|h| h.id).collect::<Vec<_>>() {
            ledger.reach(id, Stage::Pinned);
        }
        assert!(ledger.take(ip(1), Class::Anyone, 1).is_none());
    }

    #[test]
    fn who_holds_most_makes_room_for_others() {
        let mut ledger = Ledger::new(LIMITS);
        let many = silent(&mut ledger, 1, 5);
        let few = silent(&mut ledger, 2, 3);
        many.iter().for_each(|id| ledger.reach(*id, Stage::Served));
        silent(&mut ledger, 3, 1);
        assert!(!holds(&ledger, many[0]), "it holds most, silent or not");
        assert!(few.iter().all(|id| holds(&ledger, *id)));
        // 4, 3, 1: the second evicts nobody who holds no more than it would.
        assert!(ledger.take(ip(2), Class::Anyone, 1).is_some());
        assert!(!holds(&ledger, few[0]), "its own oldest");
    }

    #[test]
    fn pinned_connections_stay() {
        let mut ledger = Ledger::new(LIMITS);
        for source in [1, 2] {
            for id in silent(&mut ledger, source, 4) {
                ledger.reach(id, Stage::Pinned);
            }
        }
        assert!(ledger.take(ip(3), Class::Anyone, 1).is_none());
        assert!(ledger.take(ip(3), Class::Reserved, 1).is_some());
    }

    #[test]
    fn a_network_is_one_source() {
        let source_of = |text: &str| super::source_of(text.parse().unwrap());
        assert_eq!(source_of("2001:db8::1"), source_of("2001:db8::2:1"));
        assert_ne!(source_of("2001:db8::1"), source_of("2001:db8:0:1::1"));
        assert_eq!(source_of("::ffff:192.0.2.1"), ip(1));
        assert_ne!(source_of("192.0.2.1"), source_of("192.0.2.2"));
    }

    #[test]
    fn a_name_is_one_source() {
        let [web, again, other] = ["web", "web", "other"].map(source_named);
        assert_eq!((web, source_of(web)), (again, web));
        assert_ne!(web, other);
    }

    #[test]
    fn the_gateway_of_a_routing_table() {
        let line = |destination: &str, gateway: [u8; 4]| {
            let gateway = u32::from_ne_bytes(gateway);
            format!("eth0\t{destination}\t{gateway:08X}\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
        };
        let header = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n";
        let others = header.to_owned() + &line("0000F40A", [0, 0, 0, 0]);
        assert_eq!(default_gateway(&others), None);
        let table = others + &line("00000000", [192, 0, 2, 1]);
        assert_eq!(default_gateway(&table), Some(ip(1)));
    }

    #[test]
    fn the_gateways_of_ipv6_have_reserved_places() {
        let line = |destination: &str, length: u8, gateway: &str| {
            let number =
                |text: &str| format!("{:032x}", u128::from(text.parse::<Ipv6Addr>().unwrap()));
            let zero = number("::");
            let (destination, gateway) = (number(destination), number(gateway));
            format!(
                "{destination} {length:02x} {zero} 00 {gateway} 00000400 00000002 00000000 00000003     eth0\n"
            )
        };
        let others = line("fd00::", 64, "::") + &line("::", 0, "::");
        let class = |table: &str, source: &str| class_by("", table)(source.parse().unwrap());
        assert_eq!(default_gateways_v6(&others).count(), 0);
        assert_eq!(class(&others, "::"), Class::Anyone);
        let local = others + &line("::", 0, "fe80::1") + &line("fd01::", 64, "fd00::7");
        assert_eq!(class(&local, "fe80::1"), Class::Reserved);
        for other in ["fe80::2", "fd00::7", "fd00::1"] {
            assert_eq!(class(&local, other), Class::Anyone, "{other}");
        }
        // The node may connect from either.
        let table = local + &line("::", 0, "fd00::1");
        for gateway in ["fe80::1", "fd00::1"] {
            assert_eq!(class(&table, gateway), Class::Reserved, "{gateway}");
        }
        assert_eq!(default_gateways_v6("nonsense\n00 00\n").count(), 0);
    }

    #[tokio::test]
    async fn who_loses_a_place_is_told() {
        let places = Places::new(PlaceLimits {
            source: 1,
            ..LIMITS
        });
        let first = places.take(ip(1), Class::Anyone).unwrap();
        assert_eq!(first.during(async { 7 }).await, Some(7));
        let second = places.take(ip(1), Class::Anyone).unwrap();
        let never = std::future::pending::<()>();
        assert_eq!(first.during(never).await, None);
        assert!(!first.grow(1));
        drop((first, second));
        assert!(places.ledger().held.is_empty(), "nothing is remembered");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Take(u8, bool, usize),
        Grow(usize, usize),
        Reach(usize, Stage),
        Leave(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let stage = prop_oneof![Just(Stage::Silent), Just(Stage::Served)];
        prop_oneof![
            4 => (0..6u8, any::<bool>(), 1..3usize).prop_map(|(s, r, w)| Step::Take(s, r, w)),
            1 => (0..12usize, 1..3usize).prop_map(|(n, w)| Step::Grow(n, w)),
            2 => (0..12usize, stage).prop_map(|(n, s)| Step::Reach(n, s)),
            1 => (0..12usize).prop_map(Step::Leave),
        ]
    }

    proptest! {
        #[test]
        fn limits_hold_and_nobody_is_kept_out(steps in proptest::collection::vec(step(), 0..80)) {
            let mut ledger = Ledger::new(LIMITS);
            for step in steps {
                let nth = |ledger: &Ledger, n: usize| ledger.held.get(n).map(|h| h.id);
                match step {
                    Step::Take(source, reserved, weight) => {
                        let class = if reserved { Class::Reserved } else { Class::Anyone };
                        ledger.take(ip(source), class, weight);
                    }
                    Step::Grow(n, weight) => {
                        nth(&ledger, n).map(|id| ledger.grow(id, weight));
                    }
                    Step::Reach(n, stage) => {
                        nth(&ledger, n).into_iter().for_each(|id| ledger.reach(id, stage));
                    }
                    Step::Leave(n) => {
                        nth(&ledger, n).into_iter().for_each(|id| ledger.leave(id));
                    }
                }
                prop_assert!(ledger.all() <= LIMITS.all);
                prop_assert!(ledger.reserved() <= LIMITS.reserved);
                prop_assert!((0..6).all(|s| ledger.held_by(ip(s)) <= LIMITS.source));
                // A reserved place is nobody else's, so it is free for its class whatever others do.
                let room = ledger.reserved() < LIMITS.reserved;
                let reserved = ledger.take(ip(9), Class::Reserved, 1);
                prop_assert!(!room || reserved.is_some());
                reserved.into_iter().for_each(|(id, _)| ledger.leave(id));
            }
            // A source that has nothing gets in while another source has more than one connection, or a
            // silent one.
            let over = |s: &u8| {
                let common = ledger.common().filter(|h| h.source == ip(*s));
                let of: Vec<_> = common.map(|h| (h.stage, h.weight)).collect();
                let even = of.iter().any(|(_, w)| ledger.held_by(ip(*s)) > *w);
                even || of.iter().any(|(stage, _)| *stage == Stage::Silent)
            };
            if (0..6).any(|s| over(&s)) || ledger.all() < LIMITS.all {
                prop_assert!(ledger.take(ip(9), Class::Anyone, 1).is_some());
            }
        }
    }
}
