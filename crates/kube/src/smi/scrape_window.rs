//! Computes traffic between two scrapes of the proxies. Each question scrapes them once, and is
//! compared with an earlier scrape.
//!
//! Proxies are scraped only when a client asks. A first question scrapes twice, a moment apart.

use super::pods::{self, Measured};
use futures_util::{StreamExt, stream};
use kube::Client;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::time::{Instant as Deadline, timeout_at};
use tulle_model::samples::CountedTraffic;

/// A window is this long at least, if there was a question that long ago.
const WINDOW: Duration = Duration::from_secs(30);
/// The time between the two looks of a first question.
const FIRST: Duration = Duration::from_secs(2);
/// Looks that are kept are this far apart at least.
const APART: Duration = Duration::from_secs(10);
/// A look is forgotten after this long.
const KEPT: Duration = Duration::from_secs(300);
/// Most [`pairs`] of pod and peer that all looks keep together: some 50 MB, and 80 at most.
const MAX_KEPT: usize = 60_000;
/// Bytes of a pair. Names of Kubernetes and the 20 buckets that a proxy has take less; a pair with more counts as several.
pub(super) const PAIR_BYTES: usize = 1024;
/// Bytes of a bucket, with its part of the map.
const BUCKET_BYTES: usize = 32;
/// Pods that are asked at a time, and for how long one is, and all are.
const AT_A_TIME: usize = 16;
const EACH: Duration = Duration::from_secs(3);
const ALL: Duration = Duration::from_secs(20);

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Account {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Account {
    /// Reads an identity `spiffe://<trust domain>/ns/<namespace>/sa/<name>`.
    pub(super) fn from_identity(identity: &str) -> Option<Self> {
        let (_, path) = identity.strip_prefix("spiffe://")?.split_once('/')?;
        match path.split('/').collect::<Vec<_>>().as_slice() {
            ["ns", namespace, "sa", name] => Some(Self {
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
            }),
            _ => None,
        }
    }
}

/// Which way traffic goes, seen from the pod that counted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    From,
    To,
}

/// The labels by which a pod counts traffic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Way {
    pub(super) direction: Direction,
    /// `None`: outside the mesh, or nobody was reached.
    pub(super) peer: Option<Account>,
    pub(super) service: String,
}

/// The counts of a proxy since it was started.
pub(super) type Counts = BTreeMap<Way, CountedTraffic>;

/// Returns as how many pairs one counts, by its bytes: a proxy may say anything.
pub(super) fn pairs(way: &Way, counted: &CountedTraffic) -> usize {
    let account = |account: &Account| account.namespace.len() + account.name.len();
    let names = way.service.len() + way.peer.as_ref().map_or(0, account);
    let bytes = names + counted.buckets() * BUCKET_BYTES;
    bytes.div_ceil(PAIR_BYTES).max(1)
}

fn too_much() -> String {
    format!(
        "the proxies tell of more than {MAX_KEPT} pairs of pod and peer, of {PAIR_BYTES} bytes each: ask for one \
         namespace, or Prometheus"
    )
}

/// The scope of a question: a namespace, or all.
type Scope = Option<String>;

/// One look at the pods of a scope. `None`: a pod did not answer.
struct Round {
    at: Instant,
    time: SystemTime,
    heard: HashMap<String, Option<Counts>>,
    /// Its size in [`pairs`].
    size: usize,
}

impl Round {
    fn new(at: Instant) -> Self {
        Self {
            at,
            time: SystemTime::now(),
            heard: HashMap::new(),
            size: 0,
        }
    }

    /// Takes the answer of a pod.
    ///
    /// # Errors
    /// All pods together say more than is ever kept.
    fn hear(&mut self, uid: String, counts: Option<Counts>) -> Result<(), String> {
        if let Some(counts) = &counts {
            let size: usize = counts.iter().map(|(way, c)| pairs(way, c)).sum();
            self.size += size.max(1);
        }
        if self.size > MAX_KEPT {
            return Err(too_much());
        }
        self.heard.insert(uid, counts);
        Ok(())
    }
}

/// The traffic between two scrapes.
#[derive(Debug)]
pub(super) struct Window {
    /// Its end.
    pub(super) time: SystemTime,
    pub(super) length: Duration,
    pub(super) pods: Vec<Measured>,
    /// Counts by the uid of a pod.
    counts: HashMap<String, Counts>,
}

impl Window {
    /// Returns the counts of a pod; `None`: they are not known.
    pub(super) fn counts(&self, pod: &Measured) -> Option<&Counts> {
        self.counts.get(&pod.uid)
    }

    fn between(before: &Round, now: &Round, pods: Vec<Measured>) -> Self {
        let each = now.heard.iter().filter_map(|(uid, counts)| {
            let counts = counts.as_ref()?;
            let since = match before.heard.get(uid) {
                // The pod was started since.
                None => counts.clone(),
                // Without the earlier counts, the difference is not known either.
                Some(None) => return None,
                Some(Some(old)) => since(counts, old),
            };
            Some((uid.clone(), since))
        });
        Self {
            time: now.time,
            length: now.at.duration_since(before.at),
            counts: each.collect(),
            pods,
        }
    }
}

fn since(counts: &Counts, old: &Counts) -> Counts {
    let none = CountedTraffic::default();
    // A proxy that was started again counts all anew, and forgets some.
    let again = old.iter().any(|(way, old)| {
        let now = counts.get(way).unwrap_or(&none);
        now.requests < old.requests || now.connections < old.connections
    });
    let each = counts.iter().map(|(way, now)| {
        let old = old.get(way).filter(|_| !again).unwrap_or(&none);
        (way.clone(), now.since(old))
    });
    each.collect()
}

/// Looks at proxies, and the last looks.
pub(super) struct ScrapeWindows {
    client: Client,
    kept: Mutex<KnownScrapes>,
}

/// One question at a time looks at a scope; questions that come meanwhile share the next look.
#[derive(Default)]
struct KnownScrapes {
    rounds: HashMap<Scope, VecDeque<Arc<Round>>>,
    looking: HashMap<Scope, Arc<tokio::sync::Mutex<()>>>,
}

impl ScrapeWindows {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            kept: Mutex::default(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, KnownScrapes> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the traffic from an earlier scrape until now.
    pub(super) async fn window(&self, scope: Scope) -> Result<Window, String> {
        let looking = self
            .kept()
            .looking
            .entry(scope.clone())
            .or_default()
            .clone();
        let _one = looking.lock().await;
        let pods = pods::list(&self.client, scope.as_deref()).await;
        let mut pods = pods.map_err(|e| format!("pods cannot be listed: {e}"))?;
        let mut now = Arc::new(look(&pods).await?);
        let mut before = self.kept().base(&scope, now.at);
        if before.is_none() {
            self.kept().push(&scope, now.clone())?;
            before = Some(now);
            tokio::time::sleep(FIRST).await;
            let again = pods::list(&self.client, scope.as_deref()).await;
            pods = again.map_err(|e| format!("pods cannot be listed: {e}"))?;
            now = Arc::new(look(&pods).await?);
        }
        self.kept().push(&scope, now.clone())?;
        let before = before.unwrap_or_else(|| now.clone());
        Ok(Window::between(&before, &now, pods))
    }
}

impl KnownScrapes {
    /// Where a window that ends now begins: the last look that is long enough ago, or the first.
    fn base(&self, scope: &Scope, now: Instant) -> Option<Arc<Round>> {
        let age = |round: &&Arc<Round>| now.duration_since(round.at);
        let rounds = self.rounds.get(scope)?.iter();
        let mut fresh = rounds.filter(|round| age(round) <= KEPT).rev();
        let first = fresh.clone().next_back();
        fresh.find(|round| age(round) >= WINDOW).or(first).cloned()
    }

    /// Keeps a look, and forgets those with which no window will begin.
    ///
    /// # Errors
    /// There is too much of it. Nothing of its scope is kept then.
    fn push(&mut self, scope: &Scope, round: Arc<Round>) -> Result<(), String> {
        let now = round.at;
        let age = |round: &Round| now.duration_since(round.at);
        self.rounds
            .retain(|_, rounds| rounds.back().is_some_and(|last| age(last) <= KEPT));
        let rounds = self.rounds.entry(scope.clone()).or_default();
        if let [.., last_but_one, last] = rounds.make_contiguous()
            && last.at.duration_since(last_but_one.at) < APART
        {
            rounds.pop_back();
        }
        rounds.push_back(round);
        while rounds.get(1).is_some_and(|second| age(second) >= WINDOW) {
            rounds.pop_front();
        }
        while self.size() > MAX_KEPT {
            let last = |rounds: &VecDeque<Arc<Round>>| rounds.back().map(|round| round.at);
            let others = self.rounds.iter().filter(|(other, _)| *other != scope);
            let stalest = others.min_by_key(|(_, rounds)| last(rounds));
            let Some(stalest) = stalest.map(|(scope, _)| scope.clone()) else {
                self.rounds.remove(scope);
                return Err(too_much());
            };
            self.rounds.remove(&stalest);
        }
        let rounds = &self.rounds;
        self.looking
            .retain(|scope, looking| rounds.contains_key(scope) || Arc::strong_count(looking) > 1);
        Ok(())
    }

    fn size(&self) -> usize {
        let rounds = self.rounds.values().flatten();
        // A namespace without pods takes its name.
        rounds.map(|round| round.size.max(1)).sum()
    }
}

/// Asks each pod, several at a time.
///
/// # Errors
/// They say too much.
async fn look(pods: &[Measured]) -> Result<Round, String> {
    let mut round = Round::new(Instant::now());
    let end = Deadline::now() + ALL;
    let asked = pods.iter().cloned().map(|pod| async move {
        let until = end.min(Deadline::now() + EACH);
        let told = timeout_at(until, pods::ask(&pod)).await;
        let told = told.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        if let Err(why) = &told {
            tracing::debug!(pod = pod.uid, why, "a proxy did not answer");
        }
        (pod.uid.clone(), told.ok())
    });
    let mut answers = pin!(stream::iter(asked).buffer_unordered(AT_A_TIME));
    while let Some((uid, counts)) = answers.next().await {
        round.hear(uid, counts)?;
    }
    Ok(round)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A pod of a Deployment that has its account's name.
    pub(in super::super) fn pod(name: &str, account: &str, namespace: &str) -> Measured {
        let pod = serde_json::json!({
            "metadata": {
                "name": name, "namespace": namespace, "uid": name,
                "labels": { "pod-template-hash": "5d9" },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "r",
                    "name": format!("{account}-5d9"), "controller": true,
                }],
            },
            "spec": {
                "nodeName": "n1", "serviceAccountName": account,
                "containers": [{ "name": crate::names::SIDECAR }],
            },
            "status": { "phase": "Running", "podIP": "10.244.0.5" },
        });
        Measured::from_pod(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    /// Pod, direction, peer, service, requests, failed.
    type Row<'a> = (&'a str, Direction, Option<&'a str>, &'a str, u32, u32);

    /// A window of half a minute in which only the pods that a row names have answered.
    pub(in super::super) fn heard(pods: Vec<Measured>, rows: &[Row<'_>]) -> Window {
        let mut counts: HashMap<String, Counts> = HashMap::new();
        for (pod, direction, peer, service, requests, failed) in rows {
            let peer = peer.map(|peer| {
                let (namespace, name) = peer.split_once('/').unwrap();
                Account {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                }
            });
            let way = Way {
                direction: *direction,
                peer,
                service: (*service).to_owned(),
            };
            let mut counted = CountedTraffic::default();
            counted.requests = f64::from(*requests);
            counted.failed = f64::from(*failed);
            let of_pod = counts.entry((*pod).to_owned()).or_default();
            of_pod.insert(way, counted);
        }
        Window {
            time: SystemTime::now(),
            length: Duration::from_secs(30),
            pods,
            counts,
        }
    }

    fn counts(peer: &str, requests: f64, failed: f64) -> Counts {
        let way = Way {
            direction: Direction::From,
            peer: Account::from_identity(&format!("spiffe://t/ns/shop/sa/{peer}")),
            service: "web.shop".into(),
        };
        let mut counted = CountedTraffic::default();
        counted.requests = requests;
        counted.failed = failed;
        Counts::from([(way, counted)])
    }

    fn round(at: Instant, heard: &[(&str, Option<Counts>)]) -> Arc<Round> {
        let mut round = Round::new(at);
        for (uid, counts) in heard.iter().cloned() {
            round.hear(uid.to_owned(), counts).unwrap();
        }
        Arc::new(round)
    }

    fn seconds(from: Instant, count: u64) -> Instant {
        from + Duration::from_secs(count)
    }

    #[test]
    fn only_identities_of_service_accounts_are_accounts() {
        let web = Account::from_identity("spiffe://cluster.local/ns/shop/sa/web").unwrap();
        assert_eq!((web.namespace.as_str(), web.name.as_str()), ("shop", "web"));
        for other in [
            "unknown",
            "",
            "spiffe://t/svc/web",
            "spiffe://t/ns/a/sa/b/c",
            "ns/a/sa/b",
        ] {
            assert_eq!(Account::from_identity(other), None, "{other}");
        }
    }

    #[test]
    fn a_window_has_what_came_since() {
        let start = Instant::now();
        let before = round(
            start,
            &[
                ("same", Some(counts("a", 10.0, 1.0))),
                ("again", Some(counts("a", 10.0, 1.0))),
                ("forgot", Some(counts("b", 10.0, 1.0))),
                ("unheard", None),
                ("lost", Some(counts("a", 10.0, 1.0))),
            ],
        );
        let now = round(
            seconds(start, 30),
            &[
                ("same", Some(counts("a", 15.0, 3.0))),
                ("again", Some(counts("a", 4.0, 2.0))),
                ("forgot", Some(counts("a", 4.0, 2.0))),
                ("unheard", Some(counts("a", 50.0, 0.0))),
                ("lost", None),
                ("new", Some(counts("a", 7.0, 0.0))),
            ],
        );
        let window = Window::between(&before, &now, Vec::new());
        assert_eq!(window.length, Duration::from_secs(30));
        let of = |uid| {
            let counted = window.counts.get(uid)?.values().next()?;
            Some((counted.requests, counted.failed))
        };
        assert_eq!(of("same"), Some((5.0, 2.0)));
        assert_eq!(of("again"), Some((4.0, 2.0)));
        assert_eq!(of("forgot"), Some((4.0, 2.0)));
        assert_eq!(of("new"), Some((7.0, 0.0)));
        assert_eq!((of("unheard"), of("lost")), (None, None));
    }

    #[test]
    fn a_window_is_as_long_as_it_shall_be_if_it_can() {
        let (start, shop) = (Instant::now(), Some("shop".to_owned()));
        let mut kept = KnownScrapes::default();
        assert!(kept.base(&shop, start).is_none());
        // A question each second.
        for second in 0..100 {
            let now = seconds(start, second);
            if let Some(base) = kept.base(&shop, now) {
                let length = now.duration_since(base.at).as_secs();
                assert!(length <= 30 + 10 + 1, "{length} at {second}");
                assert!(length >= second.min(30), "{length} at {second}");
            }
            kept.push(&shop, round(now, &[])).unwrap();
            assert!(kept.rounds[&shop].len() <= 6);
        }
        // The last scrape is too old to say anything about the present.
        assert!(kept.base(&shop, seconds(start, 500)).is_none());
        kept.push(&None, round(seconds(start, 500), &[])).unwrap();
        assert!(!kept.rounds.contains_key(&shop));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let start = Instant::now();
        let mut kept = KnownScrapes::default();
        let many = |at: Instant, pods: usize| {
            let mut round = Round::new(at);
            let mut pods = 0..pods;
            let of_one = counts("a", 1.0, 0.0);
            let heard = pods.try_for_each(|i| round.hear(i.to_string(), Some(of_one.clone())));
            heard.map(|()| round)
        };
        let half = |at: Instant| Arc::new(many(at, MAX_KEPT / 2).unwrap());
        let scope = |name: &str| Some(name.to_owned());
        kept.push(&scope("a"), half(start)).unwrap();
        kept.push(&scope("b"), half(start)).unwrap();
        // There is no room for three.
        kept.push(&scope("c"), half(start)).unwrap();
        assert_eq!(kept.rounds.len(), 2);
        assert!(kept.rounds.contains_key(&scope("c")));
        // Nor in one scope, in two looks or in one.
        let more = |at: Instant| Arc::new(many(at, MAX_KEPT / 2 + 1).unwrap());
        kept.push(&scope("d"), more(start)).unwrap();
        let refused = kept.push(&scope("d"), more(seconds(start, 15)));
        let refused = refused.unwrap_err();
        assert!(refused.contains("60000"), "{refused}");
        assert!(kept.rounds.is_empty());
        assert!(kept.looking.is_empty());
        assert!(many(start, MAX_KEPT + 1).is_err());
        // Long names take more room.
        let mut round = many(start, MAX_KEPT - 50).unwrap();
        let long = "a".repeat(100 * PAIR_BYTES);
        let long = round.hear("long".to_owned(), Some(counts(&long, 1.0, 0.0)));
        assert!(long.unwrap_err().contains("60000"));
    }
}
