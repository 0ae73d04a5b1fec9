//! Replaces the root: who has done what the present step asks, and when the next step begins.
//!
//! A step ends when everybody who is connected has done what it asks, and it has lasted as long as was asked
//! for. It also ends when no certificate that was made before it can still be valid: a peer that is cut off
//! from the controller for that long has none.

use super::{MeshState, Refused};
use crate::ca::roots::{Keeper, ResponseFuture, Roots, Step};
use crate::ca::{Authority, Trusted, keep};
use crate::store::Store;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tulle_api::v1;
use tulle_net::task;

/// Time between looks.
const LOOK: Duration = Duration::from_millis(500);
/// Time between tries to keep the roots of another issuer.
const KEEP_AGAIN: Duration = Duration::from_secs(5);
/// How long somebody who was lost in the middle of a step is waited for: a proxy that can come back has
/// done so. The same after a start, when nobody is connected yet.
const COMING_BACK: Duration = Duration::from_secs(15);
/// A root is replaced by itself when less than this part of its life is left.
const REPLACED_AT: i32 = 10;
/// Certificates may be this old, whatever the Mesh says now.
const LONGEST_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// The most names that are shown of proxies and hosts that a step waits for.
const SHOWN: usize = 20;
/// Roots in a report; a rotation has two.
const MAX_REPORTED: usize = 64;
/// Bytes of a fingerprint: SHA-256 in hex.
const FINGERPRINT: usize = 64;

/// In the store of a controller that is alone.
pub(super) struct InStore {
    store: Arc<dyn Store>,
    one_at_a_time: Arc<Mutex<()>>,
}

impl InStore {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            one_at_a_time: Arc::default(),
        }
    }
}

impl Keeper for InStore {
    fn replace(&self, old: Roots, new: Roots) -> ResponseFuture<Roots> {
        let (store, one) = (self.store.clone(), self.one_at_a_time.clone());
        Box::pin(async move {
            let work = move || {
                let _one = one.lock().unwrap_or_else(PoisonError::into_inner);
                let kept = Authority::open(&*store).map_err(|e| e.to_string())?;
                if *kept.roots() != old {
                    return Ok(kept.roots().clone());
                }
                keep(&*store, &new).map_err(|e| e.to_string())?;
                Ok(new)
            };
            let done = tokio::task::spawn_blocking(work).await;
            done.map_err(|e| e.to_string())?
        })
    }

    fn name(&self) -> String {
        "controller".to_owned()
    }

    fn replicas(&self) -> ResponseFuture<Vec<String>> {
        Box::pin(std::future::ready(Ok(vec![self.name()])))
    }
}

/// The state of a rotation in this process.
pub(super) struct Rotation {
    authority: watch::Sender<Arc<Authority>>,
    keeper: Arc<dyn Keeper>,
    /// When a peer was last lost that had not done what the step asks.
    lost: Mutex<Instant>,
}

impl Rotation {
    pub(super) fn new(authority: Authority, keeper: Arc<dyn Keeper>) -> Self {
        Self {
            authority: watch::Sender::new(Arc::new(authority)),
            keeper,
            lost: Mutex::new(Instant::now()),
        }
    }

    /// Replaces the mesh's own roots, and returns the authority before. Roots of another issuer stay, also
    /// those that came while `own` was made.
    fn replace_own(&self, own: Authority) -> Arc<Authority> {
        let mut before = self.authority.borrow().clone();
        self.authority.send_modify(|authority| {
            let own = own.with_external(authority.external().cloned());
            before = std::mem::replace(authority, Arc::new(own));
        });
        before
    }

    /// Replaces the roots of another issuer; the mesh's own stay.
    fn replace_external(&self, roots: &[Trusted]) {
        self.authority.send_modify(|authority| {
            let own = Authority::from_roots(authority.roots().clone());
            // It was read before.
            if let Ok(own) = own {
                *authority = Arc::new(own.with_external(Some(roots.to_vec())));
            }
        });
    }
}

/// Returns what is kept of a peer's report. In the place of one that is longer than any true one it is an empty one,
/// which is never settled: a message has room for two million empty names, and all of them would be kept.
pub(crate) fn bounded_report(report: v1::TrustReport) -> v1::TrustReport {
    let too_long = |print: &String| print.len() > FINGERPRINT;
    let is_long = report.root_sha256.len() > MAX_REPORTED
        || report.root_sha256.iter().any(too_long)
        || too_long(&report.own_root_sha256);
    match is_long {
        true => v1::TrustReport::default(),
        false => report,
    }
}

/// Whether a peer trusts exactly these roots, and has a certificate of a root that stays. The report is bounded.
pub(crate) fn is_settled(authority: &Authority, report: Option<&v1::TrustReport>) -> bool {
    let Some(report) = report else {
        return false;
    };
    let trusted = authority.peers();
    let has = |print: &str| report.root_sha256.iter().any(|r| r == print);
    trusted.iter().all(|t| has(&t.fingerprint))
        && report.root_sha256.len() == trusted.len()
        && trusted
            .iter()
            .any(|t| !t.retiring && *t.fingerprint == *report.own_root_sha256)
}

/// Returns the report of a peer that has just been given a certificate and the roots.
pub(crate) fn given(authority: &Authority) -> v1::TrustReport {
    let roots = authority.trusted().iter();
    v1::TrustReport {
        root_sha256: roots.map(|t| t.fingerprint.to_string()).collect(),
        own_root_sha256: authority.fingerprint().to_owned(),
    }
}

/// Returns the roots that peers are to trust.
pub(crate) fn trust(authority: &Authority) -> v1::Trust {
    let roots = authority.peers().iter().map(|t| v1::trust::Root {
        certificate_der: t.certificate.to_vec(),
        retiring: t.retiring,
    });
    v1::Trust {
        roots: roots.collect(),
    }
}

impl MeshState {
    /// The certificate authority of this moment.
    pub(crate) fn authority(&self) -> Arc<Authority> {
        self.rotation.authority.borrow().clone()
    }

    /// Watches the authority of this moment and all later ones.
    pub(crate) fn authorities(&self) -> watch::Receiver<Arc<Authority>> {
        self.rotation.authority.subscribe()
    }

    /// Replaces the roots by these.
    pub(crate) fn adopt(&self, roots: Roots) -> Result<(), String> {
        if *self.authority().roots() == roots {
            return Ok(());
        }
        let authority = Authority::from_roots(roots).map_err(|e| e.to_string())?;
        let told = match authority.roots().step {
            Step::Steady => "certificates of one root are trusted",
            Step::Spreading { .. } => "the next root is distributed",
            Step::Renewing { .. } => "certificates of the previous root are renewed",
        };
        let before = self.rotation.replace_own(authority);
        let now = self.authority();
        if before.trusted() != now.trusted() {
            tracing::info!(signing = now.fingerprint(), "root: {told}");
        }
        Ok(())
    }

    /// Learns the roots of another issuer for as long as the controller runs, if one signs.
    pub(crate) async fn follow_issuer(&self) {
        let Some(issuer) = &self.issuer else {
            return;
        };
        issuer
            .follow(|roots| {
                let names: Vec<&str> = roots.iter().map(|r| &*r.fingerprint).collect();
                tracing::info!(issuer = issuer.name(), roots = ?names, "roots of workloads");
                self.rotation.replace_external(&roots);
            })
            .await;
    }

    /// Keeps the issuer's roots whenever they have changed, for as long as the controller runs.
    pub(crate) async fn keep_issuer_roots(&self) {
        let Some(issuer) = &self.issuer else {
            return;
        };
        let mut authorities = self.authorities();
        let mut kept = Vec::new();
        let mut trouble = String::new();
        loop {
            let authority = authorities.borrow_and_update().clone();
            let roots = authority.external().into_iter().flatten();
            // A retiring root is not stored: after a start it would be trusted for longer.
            let roots = roots.filter(|root| !root.retiring);
            let roots: Vec<Vec<u8>> = roots.map(|root| root.certificate.to_vec()).collect();
            let mut again = None;
            if !roots.is_empty() && roots != kept {
                let keeper = &self.rotation.keeper;
                match keeper.keep_issuer_roots(issuer.name(), roots.clone()).await {
                    Ok(()) => {
                        kept = roots;
                        trouble.clear();
                    }
                    Err(why) => {
                        if why != trouble {
                            tracing::warn!(
                                "the issuer's roots are not kept for the next start of a controller: {why}"
                            );
                            trouble = why;
                        }
                        again = Some(KEEP_AGAIN);
                    }
                }
            }
            let again = again.map(|pause| tokio::time::Instant::now() + pause);
            tokio::select! {
                () = task::wait_until(again) => {}
                changed = authorities.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Begins to replace the root. A caller that leaves stops nothing: roots that are stored come into effect.
    pub(crate) async fn rotate(self: &Arc<Self>, hold: Duration) -> Result<(), Refused> {
        let state = self.clone();
        let begun = tokio::spawn(async move { state.begin_rotation(hold).await }).await;
        begun.map_err(|e| Refused::Failed(e.to_string()))?
    }

    async fn begin_rotation(&self, hold: Duration) -> Result<(), Refused> {
        let old = self.authority().roots().clone();
        let under_way = || {
            Refused::Conflict(
                "a rotation of the root is under way: `tulle ca show` says what it waits for"
                    .to_owned(),
            )
        };
        if old.step != Step::Steady {
            return Err(under_way());
        }
        let new = old.rotate(hold, SystemTime::now());
        let new = new.map_err(|e| Refused::Failed(e.to_string()))?;
        let kept = self.rotation.keeper.replace(old, new.clone()).await;
        let kept = kept.map_err(Refused::Failed)?;
        let ours = kept == new;
        self.adopt(kept).map_err(Refused::Failed)?;
        if ours { Ok(()) } else { Err(under_way()) }
    }

    /// Notes that a peer has gone that has not done what is asked; it may come back.
    pub(crate) fn lost(&self) {
        let lost = self.rotation.lost.lock();
        *lost.unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Names the proxies and hosts that have not done what the present step asks.
    pub(crate) fn waiting(&self) -> Vec<String> {
        let authority = self.authority();
        let streams = self.hub.streams();
        let streams = streams.iter().filter(|stream| {
            let report = stream.status().trusts;
            !is_settled(&authority, report.as_ref())
        });
        let mut waiting: Vec<String> = streams.map(|s| s.identity.to_string()).collect();
        waiting.extend(self.hosts_where(|report| !is_settled(&authority, report)));
        waiting
    }

    /// Returns the authority's status for `tulle ca show`.
    pub(crate) fn authority_status(&self) -> v1::AuthorityStatus {
        let authority = self.authority();
        let roots = authority.roots();
        let (step, other) = match roots.step {
            Step::Steady => ("steady", ""),
            Step::Spreading { .. } => ("spreading", "next"),
            Step::Renewing { .. } => ("renewing", "previous"),
        };
        let waiting = match roots.step {
            Step::Steady => Vec::new(),
            _ => self.waiting(),
        };
        let roles = std::iter::once("signing").chain(std::iter::repeat(other));
        let own = authority.trusted().iter().zip(roles);
        let external = authority.external().into_iter().flatten();
        let shown = own.chain(external.map(|root| (root, "issuer")));
        let shown = shown.map(|(root, role)| v1::RootStatus {
            sha256: root.fingerprint.to_string(),
            role: role.to_owned(),
            not_after_unix_seconds: root.not_after.unix_timestamp(),
        });
        let progress = roots.progress();
        v1::AuthorityStatus {
            step: step.to_owned(),
            since_unix_seconds: progress.map_or(0, |p| i64::try_from(p.since).unwrap_or(i64::MAX)),
            hold_seconds: progress.map_or(0, |p| u32::try_from(p.hold).unwrap_or(u32::MAX)),
            roots: shown.collect(),
            waiting: u32::try_from(waiting.len()).unwrap_or(u32::MAX),
            waiting_for: waiting.into_iter().take(SHOWN).collect(),
            issuer: self.issuer.as_ref().map(|i| i.name()).unwrap_or_default(),
            issuer_trouble: self
                .issuer
                .as_ref()
                .map(|i| i.trouble())
                .unwrap_or_default(),
        }
    }

    /// Goes from step to step for as long as the controller runs.
    pub(crate) async fn keep_rotating(&self) {
        let mut trouble = String::new();
        loop {
            tokio::time::sleep(LOOK).await;
            match self.look().await {
                Ok(()) => trouble.clear(),
                Err(why) if why == trouble => {}
                Err(why) => {
                    tracing::warn!("the rotation of the root does not go on: {why}");
                    trouble = why;
                }
            }
        }
    }

    async fn look(&self) -> Result<(), String> {
        let authority = self.authority();
        let now = SystemTime::now();
        let roots = authority.roots();
        let keeper = &self.rotation.keeper;
        let Some(progress) = roots.progress() else {
            if !ends_soon(&authority, now) {
                return Ok(());
            }
            tracing::info!("the root ends before long and is replaced");
            let next = roots.rotate(keeper.hold(), now);
            let next = next.map_err(|e| e.to_string())?;
            return self.adopt(keeper.replace(roots.clone(), next).await?);
        };
        if let Some(anew) = roots.restarted(now).map_err(|e| e.to_string())? {
            tracing::warn!(
                "the clock was ahead when this step of the root's rotation began: it begins anew"
            );
            return self.adopt(keeper.replace(roots.clone(), anew).await?);
        }
        let longest = self.lifetime().max(LONGEST_LIFETIME);
        let over = progress.age(now) > longest.max(Duration::from_secs(progress.hold));
        // Whole seconds are kept, so a second more is at least as long as was asked for.
        let held = progress.age(now) > Duration::from_secs(progress.hold);
        let settled = held && self.all_settled();
        let name = keeper.name();
        let next = if over {
            roots.advanced(now)
        } else if !settled && !progress.settled.contains(&name) {
            return Ok(());
        } else {
            let replicas = keeper.replicas().await?;
            let others = replicas.iter().filter(|r| **r != name);
            let all = settled && others.clone().all(|r| progress.settled.contains(r));
            if all {
                roots.advanced(now)
            } else if progress.settled.contains(&name) != settled && others.count() > 0 {
                roots.with_settled(&name, settled)
            } else {
                return Ok(());
            }
        };
        self.adopt(keeper.replace(roots.clone(), next).await?)
    }

    fn all_settled(&self) -> bool {
        let lost = self.rotation.lost.lock();
        let lost = *lost.unwrap_or_else(PoisonError::into_inner);
        lost.elapsed() >= COMING_BACK && self.waiting().is_empty()
    }
}

fn ends_soon(authority: &Authority, now: SystemTime) -> bool {
    let Some(root) = authority.trusted().first() else {
        return false;
    };
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let left = root.not_after.unix_timestamp().saturating_sub(now);
    let whole = root.not_after - root.not_before;
    left < (whole / REPLACED_AT).whole_seconds()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;

    #[test]
    fn roots_of_an_issuer_that_come_while_others_are_adopted_stay() {
        let made = || Authority::from_roots(Roots::generate().unwrap()).unwrap();
        let keeper = Arc::new(InStore::new(Arc::new(Memory::new())));
        let rotation = Rotation::new(made().with_external(Some(Vec::new())), keeper);
        let (own, issuers) = (made(), made().trusted().to_vec());
        let roots = own.roots().clone();
        rotation.replace_external(&issuers);
        let before = rotation.replace_own(own);
        assert_ne!(*before.roots(), roots);
        let now = rotation.authority.borrow();
        assert_eq!(*now.roots(), roots);
        assert_eq!(now.external(), Some(&issuers));
    }

    #[test]
    fn nothing_is_kept_of_a_report_that_is_longer_than_any_true_one() {
        let state = MeshState::in_memory().unwrap();
        state.presence.know("n");
        let authority = state.authority();
        let report = given(&authority);
        assert_eq!(bounded_report(report.clone()), report);
        assert!(is_settled(&authority, Some(&report)));
        let long = || "0".repeat(FINGERPRINT + 1);
        let (many, names, own) = (vec![String::new(); MAX_REPORTED + 1], vec![long()], long());
        let empty = v1::TrustReport::default();
        for (root_sha256, own_root_sha256) in [
            (many, report.own_root_sha256.clone()),
            (names, report.own_root_sha256.clone()),
            (report.root_sha256.clone(), own),
        ] {
            let told = v1::TrustReport {
                root_sha256,
                own_root_sha256,
            };
            assert_eq!(bounded_report(told.clone()), empty);
            state.host_trusts("n", told);
            let kept = state.hosts_where(|kept| kept == Some(&empty));
            assert_eq!(kept.len(), 1);
        }
        assert!(!is_settled(&authority, Some(&empty)));
    }

    #[tokio::test]
    async fn a_rotation_is_begun_whole_though_its_caller_has_left() {
        let store = Arc::new(Memory::new());
        let authority = Authority::open(&*store).unwrap();
        let state = Arc::new(MeshState::load(store.clone(), authority).unwrap());
        let mut authorities = state.authorities();
        tokio::select! {
            biased;
            _ = state.rotate(Duration::ZERO) => panic!("it takes a while"),
            () = std::future::ready(()) => {}
        }
        let begun = authorities.wait_for(|a| a.roots().step != Step::Steady);
        let begun = tokio::time::timeout(Duration::from_secs(60), begun).await;
        let begun = begun.unwrap().unwrap().roots().clone();
        assert_eq!(*Authority::open(&*store).unwrap().roots(), begun);
    }

    #[tokio::test]
    async fn a_rotation_goes_on_when_a_clock_that_was_ahead_is_set_back() {
        let store = Arc::new(Memory::new());
        let ahead = SystemTime::now() + Duration::from_secs(3600);
        let roots = Roots::generate().unwrap();
        let roots = roots.rotate(Duration::from_secs(7), ahead).unwrap();
        keep(&*store, &roots).unwrap();
        let authority = Authority::open(&*store).unwrap();
        let state = MeshState::load(store.clone(), authority).unwrap();
        state.look().await.unwrap();
        let since = |authority: &Authority| authority.roots().progress().unwrap().since;
        let began = since(&state.authority());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(began <= now.as_secs());
        // The next start finds the same.
        assert_eq!(since(&Authority::open(&*store).unwrap()), began);
    }
}
