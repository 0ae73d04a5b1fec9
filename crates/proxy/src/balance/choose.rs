//! The ways to choose among a port's endpoints, for this worker alone: no lock, no allocation.

use super::locality;
use crate::config::traffic::ring;
use crate::config::traffic::shared::{EndpointState, Shared, WHOLE, now};
use crate::upstream::Upstream;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tulle_model::resource::{Balancer, HashKey, Locality};

/// Random draws of a healthy endpoint before all are searched.
const DRAWS: usize = 8;

/// Preferences of a request for an endpoint; 0: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointHint {
    /// The hash of its key.
    pub key: u64,
    /// The name of the endpoint that has served this client before.
    pub name: u64,
}

/// Chooses one of several endpoints where simple rotation is not enough.
pub struct Chooser {
    method: Method,
    /// The endpoints, in the order of the port's.
    members: Vec<Member>,
    /// Running sums of the weights; empty: all are equal.
    sums: Vec<u64>,
    /// Index at which each distance ends.
    ends: Vec<usize>,
    /// The share of near endpoints that has to be healthy.
    near_percent: u32,
    slow_start_ms: u32,
    shared: Option<Arc<Shared>>,
    /// Places by the index in the resource, for the ring.
    places: Vec<Option<usize>>,
    /// Credit of each endpoint in smooth round robin.
    credit: RefCell<Vec<i64>>,
}

struct Member {
    weight: u32,
    /// Index in the resource.
    index: usize,
    state: Option<Arc<EndpointState>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Method {
    InTurn,
    LeastRequest,
    Ewma,
    Random,
    Ring,
}

/// A choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// A healthy endpoint.
    Well(usize),
    /// No endpoint is healthy, and this one is asked all the same.
    Panic(usize),
    /// The caller takes the next in turn.
    InTurn,
}

/// Orders the endpoints a proxy may use: indices in the resource, nearest first, and the index at
/// which each distance ends. Endpoints without a share are left out.
pub fn arrange(
    endpoints: &[tulle_model::resource::Endpoint],
    near: Option<&Locality>,
    own: &str,
) -> (Vec<usize>, Vec<usize>) {
    let sharing: Vec<_> = (0..endpoints.len())
        .filter(|i| endpoints[*i].weight > 0)
        .collect();
    let Some(near) = near else {
        let end = sharing.len();
        return (sharing, vec![end]);
    };
    let localities: Vec<_> = sharing.iter().map(|i| &*endpoints[*i].locality).collect();
    let (order, ends) = locality::by_distance(near, own, &localities);
    (order.into_iter().map(|i| sharing[i]).collect(), ends)
}

impl Chooser {
    /// `None`: plain rotation is enough. `order` and `ends` are from [`arrange`].
    pub fn new(
        endpoints: &[tulle_model::resource::Endpoint],
        order: &[usize],
        ends: Vec<usize>,
        shared: Option<&Arc<Shared>>,
    ) -> Option<Box<Self>> {
        let traffic = shared.map(|s| &s.traffic);
        let method = match traffic.map(|t| &t.balancer) {
            None | Some(Balancer::RoundRobin) => Method::InTurn,
            Some(Balancer::LeastRequest) => Method::LeastRequest,
            Some(Balancer::Ewma) => Method::Ewma,
            Some(Balancer::Random) => Method::Random,
            Some(Balancer::RingHash(_)) => Method::Ring,
        };
        let weight = |index: &usize| endpoints[*index].weight;
        let alike = order.iter().all(|i| weight(i) == weight(&order[0]));
        let minded = |t: &Arc<tulle_model::resource::Traffic>| {
            t.slow_start_ms > 0
                || t.outlier.is_some()
                || t.health_check.is_some()
                || t.locality.is_some()
        };
        if method == Method::InTurn && alike && !traffic.is_some_and(minded) {
            return None;
        }
        let member = |index: &usize| Member {
            weight: weight(index),
            index: *index,
            state: shared.and_then(|s| s.endpoints.get(*index).cloned()),
        };
        let sums = order.iter().scan(0, |sum, index| {
            *sum += u64::from(weight(index));
            Some(*sum)
        });
        let mut places = Vec::new();
        if method == Method::Ring {
            places.resize(endpoints.len(), None);
            order
                .iter()
                .enumerate()
                .for_each(|(place, index)| places[*index] = Some(place));
        }
        let near_percent = traffic
            .and_then(|t| t.locality.as_ref())
            .map_or(0, |l| l.healthy_percent);
        Some(Box::new(Self {
            method,
            sums: if alike { Vec::new() } else { sums.collect() },
            members: order.iter().map(member).collect(),
            ends,
            near_percent: if near_percent == 0 {
                70
            } else {
                near_percent.min(100)
            },
            slow_start_ms: traffic.map_or(0, |t| t.slow_start_ms),
            shared: shared.cloned(),
            places,
            credit: RefCell::new(vec![0; order.len()]),
        }))
    }

    /// Notes that an endpoint is asked; from now on new endpoints begin slowly, where configured.
    pub fn note_asked(&self) {
        if let Some(shared) = self.shared.as_ref().filter(|_| self.slow_start_ms > 0) {
            shared.note_asked();
        }
    }

    /// The index in the resource of the endpoint at a place.
    pub fn index(&self, place: usize) -> usize {
        self.members.get(place).map_or(place, |m| m.index)
    }

    /// Chooses an endpoint at random, by `random`. `key` is the hash of the request's key, `stuck`
    /// the place of the endpoint that has served the client before. The endpoint at `avoid` is a
    /// last resort.
    pub fn choose(
        &self,
        endpoints: &[Rc<Upstream>],
        key: u64,
        stuck: Option<usize>,
        avoid: Option<SocketAddr>,
        mut random: impl FnMut() -> u64,
    ) -> Chosen {
        let round = Round {
            chooser: self,
            endpoints,
            avoid,
            now: if self.shared.is_some() { now() } else { 0 },
        };
        if let Some(place) = stuck.filter(|place| round.is_well(*place)) {
            return Chosen::Well(place);
        }
        let scope = match self.ends.as_slice() {
            [] | [_] => endpoints.len(),
            ends => locality::scope(self.near_percent, ends, |place| round.is_well(place)),
        };
        let chosen = match self.method {
            Method::InTurn
                if self.sums.is_empty()
                    && self.slow_start_ms == 0
                    && self.ends.len() < 2
                    && !(0..scope).any(|place| !round.is_well(place)) =>
            {
                return Chosen::InTurn;
            }
            Method::InTurn => self.smooth(&round, scope),
            Method::Random => round.draw(scope, &mut random),
            Method::LeastRequest => round.better(scope, &mut random, |upstream, weight| {
                (f64::from(upstream.active()) + 1.0) / weight
            }),
            Method::Ewma => round.better(scope, &mut random, |upstream, weight| {
                upstream.latency().cost(upstream.active(), round.now) / weight
            }),
            Method::Ring if key != 0 => {
                let ring = self.shared.as_ref().and_then(|s| s.ring.as_ref());
                ring.and_then(|ring| {
                    let places = ring.walk(key).filter_map(|index| *self.places.get(index)?);
                    let mut near = places.filter(|place| *place < scope);
                    near.find(|place| round.is_wanted(*place))
                })
            }
            Method::Ring => round.draw(scope, &mut random),
        };
        // An endpoint to be avoided is still better than one that is not healthy.
        let chosen = chosen.or_else(|| round.any_from(scope, random()));
        chosen.map_or_else(
            || Chosen::Panic((random() % endpoints.len().max(1) as u64) as usize),
            Chosen::Well,
        )
    }

    /// Smooth round robin: a heavier endpoint is not asked several times in a row. Each earns
    /// credit by its share; the one with the most is asked and pays for all.
    fn smooth(&self, round: &Round<'_>, scope: usize) -> Option<usize> {
        let mut credit = self.credit.borrow_mut();
        let (mut best, mut all) = (None, 0);
        for place in (0..scope).filter(|place| round.is_wanted(*place)) {
            let earned = i64::try_from(round.share(place)).unwrap_or(i64::MAX / 4);
            credit[place] = credit[place].saturating_add(earned);
            all += earned;
            if best.is_none_or(|best: usize| credit[best] < credit[place]) {
                best = Some(place);
            }
        }
        credit[best?] -= all;
        best
    }
}

/// One choice.
struct Round<'a> {
    chooser: &'a Chooser,
    endpoints: &'a [Rc<Upstream>],
    avoid: Option<SocketAddr>,
    now: u64,
}

impl Round<'_> {
    fn member(&self, place: usize) -> &Member {
        &self.chooser.members[place]
    }

    fn is_well(&self, place: usize) -> bool {
        !self.endpoints[place].is_down()
            && self
                .member(place)
                .state
                .as_ref()
                .is_none_or(|state| state.is_well(self.now))
    }

    fn is_wanted(&self, place: usize) -> bool {
        self.avoid != Some(self.endpoints[place].key.address) && self.is_well(place)
    }

    /// Part of its full share, in thousandths.
    fn warmth(&self, place: usize) -> u64 {
        match (&self.member(place).state, self.chooser.slow_start_ms) {
            (Some(state), slow) if slow > 0 => state.share(self.now, slow),
            _ => WHOLE,
        }
    }

    fn share(&self, place: usize) -> u64 {
        u64::from(self.member(place).weight) * self.warmth(place)
    }

    /// Draws a random place by weight, healthy or not.
    fn any(&self, scope: usize, random: u64) -> usize {
        let sums = &self.chooser.sums;
        match scope.checked_sub(1).and_then(|last| sums.get(last)) {
            Some(all) => {
                let at = random % all.max(&1);
                sums.partition_point(|sum| *sum <= at).min(scope - 1)
            }
            None => (random % scope.max(1) as u64) as usize,
        }
    }

    /// Draws a random wanted endpoint, by weight and warmth.
    fn draw(&self, scope: usize, random: &mut impl FnMut() -> u64) -> Option<usize> {
        if scope == 0 {
            return None;
        }
        for _ in 0..DRAWS {
            let place = self.any(scope, random());
            if self.is_wanted(place) && random() % WHOLE < self.warmth(place) {
                return Some(place);
            }
        }
        let start = self.any(scope, random());
        let mut places = (0..scope).map(|i| (start + i) % scope);
        places.find(|place| self.is_wanted(*place))
    }

    /// Returns the better of two drawn endpoints: close to the best choice at the price of two
    /// looks.
    fn better(
        &self,
        scope: usize,
        random: &mut impl FnMut() -> u64,
        cost: impl Fn(&Upstream, f64) -> f64,
    ) -> Option<usize> {
        let first = self.draw(scope, random)?;
        let second = self.draw(scope, random)?;
        let second = if second == first {
            // Takes a different second endpoint: comparing one with itself is useless.
            let mut others = (1..scope).map(|i| (first + i) % scope);
            others.find(|place| self.is_wanted(*place) && self.warmth(*place) == WHOLE)
        } else {
            Some(second)
        };
        let Some(second) = second else {
            return Some(first);
        };
        let cost = |place: usize| cost(&self.endpoints[place], self.share(place) as f64);
        Some(if cost(second) < cost(first) {
            second
        } else {
            first
        })
    }

    /// Returns the first healthy endpoint, whether it is to be avoided or not.
    fn any_from(&self, scope: usize, random: u64) -> Option<usize> {
        let mut places = (0..scope).map(|i| (random as usize % scope + i) % scope);
        places.find(|place| self.is_well(*place))
    }
}

/// Hashes the part of a request that the balancer's key names; 0: there is none.
pub fn key(balancer: &Balancer, head: &[u8], source: u64) -> u64 {
    let Balancer::RingHash(key) = balancer else {
        return 0;
    };
    let value = match key {
        HashKey::Header(name) => super::affinity::header(head, name.as_bytes()),
        HashKey::Cookie(name) => super::affinity::cookie(head, name.as_bytes()),
        HashKey::Source => return source,
    };
    value.map_or(0, |value| ring::of_bytes(value).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::UpstreamKey;
    use tulle_model::resource::{Endpoint, ServicePort, Traffic};

    struct Bench {
        port: ServicePort,
        endpoints: Vec<Rc<Upstream>>,
        shared: Arc<Shared>,
        chooser: Box<Chooser>,
        random: std::cell::Cell<u64>,
    }

    fn bench(weights: &[u32], change: impl FnOnce(&mut Traffic)) -> Bench {
        let mut traffic = Traffic::default();
        change(&mut traffic);
        let endpoint = |(port, weight): (u16, &u32)| Endpoint {
            weight: *weight,
            locality: format!("here/{}", port % 2),
            ..Endpoint::new(([10, 0, 0, 1], port).into(), true)
        };
        let port = ServicePort {
            endpoints: (1..).zip(weights).map(endpoint).collect(),
            traffic: Some(Box::new(traffic)),
            ..Default::default()
        };
        let shared = Shared::new(&port, None).unwrap().unwrap();
        let near = shared.traffic.locality.as_deref();
        let (order, ends) = arrange(&port.endpoints, near, "here/1");
        let upstream = |index: &usize| {
            Rc::new(Upstream::new(UpstreamKey {
                address: port.endpoints[*index].address,
                identities: None,
                http_version: crate::upstream::HttpVersion::AsCame,
                external: None,
                own: false,
            }))
        };
        Bench {
            endpoints: order.iter().map(upstream).collect(),
            chooser: Chooser::new(&port.endpoints, &order, ends, Some(&shared)).unwrap(),
            shared,
            port,
            random: 1.into(),
        }
    }

    impl Bench {
        fn choose(&self, key: u64, stuck: Option<usize>) -> Chosen {
            self.choose_but(key, stuck, None)
        }

        fn choose_but(&self, key: u64, stuck: Option<usize>, avoid: Option<SocketAddr>) -> Chosen {
            self.chooser.choose(&self.endpoints, key, stuck, avoid, || {
                let next = self.random.get().wrapping_mul(6364136223846793005);
                self.random.set(next.wrapping_add(1442695040888963407));
                self.random.get() >> 24
            })
        }

        /// Counts how often each is chosen, by its index in the resource.
        fn counts(&self, times: usize, avoid: Option<SocketAddr>) -> Vec<usize> {
            let mut counts = vec![0; self.port.endpoints.len()];
            for _ in 0..times {
                match self.choose_but(77, None, avoid) {
                    Chosen::Well(place) => counts[self.chooser.index(place)] += 1,
                    other => panic!("{other:?}"),
                }
            }
            counts
        }
    }

    #[test]
    fn round_robin_is_exact_and_smooth() {
        let bench = bench(&[5, 1, 1, 0], |_| {});
        let order: Vec<_> = (0..7).map(|_| bench.choose(77, None)).collect();
        let expected = [0, 0, 1, 0, 2, 0, 0].map(Chosen::Well);
        assert_eq!(order, expected);
        assert_eq!(bench.counts(700, None), [500, 100, 100, 0]);
    }

    #[test]
    fn random_and_least_request_follow_weights() {
        let random = bench(&[3, 1], |t| t.balancer = Balancer::Random);
        let counts = random.counts(4000, None);
        assert!((2850..3150).contains(&counts[0]), "{counts:?}");
        // No endpoint is busy: the heavier one is always the better of two.
        let least = bench(&[3, 1], |t| t.balancer = Balancer::LeastRequest);
        assert_eq!(least.counts(100, None), [100, 0]);
        let alike = bench(&[1, 1, 1], |t| t.balancer = Balancer::LeastRequest);
        let counts = alike.counts(3000, None);
        assert!(counts.iter().all(|n| *n > 600), "{counts:?}");
    }

    #[test]
    fn ewma_prefers_who_answers_faster() {
        let bench = bench(&[1, 1], |t| t.balancer = Balancer::Ewma);
        for (upstream, ms) in bench.endpoints.iter().zip([20.0, 2.0]) {
            upstream.latency().observe(ms, now());
        }
        assert_eq!(bench.counts(100, None), [0, 100]);
    }

    #[test]
    fn who_is_not_well_is_passed_over_until_nobody_is() {
        for balancer in [
            Balancer::RoundRobin,
            Balancer::LeastRequest,
            Balancer::Ewma,
            Balancer::Random,
            Balancer::RingHash(HashKey::Source),
        ] {
            let bench = bench(&[1, 1, 1], |t| {
                t.balancer = balancer;
                t.outlier = Some(Box::default());
                t.health_check = Some(Box::default());
            });
            bench.shared.endpoints[0].eject(now() + 60_000);
            bench.shared.endpoints[2].set_healthy(false);
            assert_eq!(bench.counts(20, None), [0, 20, 0]);
            bench.shared.endpoints[1].eject(now() + 60_000);
            assert!(matches!(bench.choose(77, None), Chosen::Panic(_)));
            // A client served there before goes there all the same, if it is healthy.
            bench.shared.endpoints[2].set_healthy(true);
            assert_eq!(bench.choose(77, Some(2)), Chosen::Well(2));
            assert_eq!(bench.choose(77, Some(1)), Chosen::Well(2));
        }
    }

    #[test]
    fn who_is_avoided_is_asked_only_when_there_is_no_other() {
        let bench = bench(&[1, 1], |t| t.balancer = Balancer::Random);
        let avoid = Some(([10, 0, 0, 1], 1).into());
        assert_eq!(bench.counts(20, avoid), [0, 20]);
        bench.shared.endpoints[1].eject(now() + 60_000);
        assert_eq!(bench.counts(20, avoid), [20, 0]);
    }

    #[test]
    fn a_newcomer_gets_little_at_first() {
        for balancer in [Balancer::RoundRobin, Balancer::Random] {
            let bench = bench(&[1, 1], |t| {
                t.balancer = balancer;
                t.slow_start_ms = 3_600_000;
            });
            bench.shared.endpoints[1].eject(now());
            let counts = bench.counts(2100, None);
            assert!((50..250).contains(&counts[1]), "{counts:?}");
        }
    }

    #[test]
    fn near_ones_are_preferred() {
        let bench = bench(&[1; 4], |t| t.locality = Some(Box::default()));
        // 1 and 3 are in our zone.
        assert_eq!(bench.counts(20, None), [10, 0, 10, 0]);
        bench.shared.endpoints[0].eject(now() + 60_000);
        let counts = bench.counts(30, None);
        assert_eq!(counts, [0, 10, 10, 10]);
    }
}
