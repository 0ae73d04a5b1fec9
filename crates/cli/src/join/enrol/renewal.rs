//! The renewal of a joined host's certificate, and of its authority over its own workloads, for as long as it stays.

use super::Node;
use super::certificate::lock;
use super::refusal::{Over, Refused, over};
use super::signing::{Signed, sign};
use crate::failure::OrFail;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tonic::Code;
use tulle_api::v1::StatusRequest;
use tulle_control::ca::host::HostKey;

/// Between tries to renew while the controller is away.
pub(super) const RETRY: Duration = Duration::from_secs(10);
/// The longest pause before another authority is asked for, where the one before could not be kept.
const LONGEST_RETRY: Duration = Duration::from_mins(10);
/// How often a host looks at the clock, and asks a controller of an earlier version whether it is still one of the mesh.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// How often it asks one that says itself when to ask.
const ASK_ANYWAY: Duration = Duration::from_mins(30);

/// When this host asks for another authority after one that it could not keep, as on a full disk. The controller signs and
/// stores each, so the pauses get longer.
#[derive(Default)]
struct AuthorityRetry {
    pause: Option<Duration>,
    at: Option<Instant>,
}

impl AuthorityRetry {
    /// Begins a pause, twice as long as the one before.
    fn failed(&mut self, now: Instant) {
        let pause = self.pause.map_or(RETRY, |last| last * 2).min(LONGEST_RETRY);
        (self.pause, self.at) = (Some(pause), Some(now + pause));
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| now < at)
    }

    /// Whether a pause has ended. It says so once.
    fn is_over(&mut self, now: Instant) -> bool {
        self.at.take_if(|at| now >= *at).is_some()
    }
}

impl Node {
    /// Renews when the certificate is due, or when other roots or terms demand it, until that can
    /// succeed no more; then says why.
    pub(crate) async fn renew(self: Rc<Self>) -> Over {
        let mut objects = self.objects();
        let mut terms = None;
        let line = Arc::clone(&self.controller.line);
        let mut last = Instant::now();
        let mut retry = AuthorityRetry::default();
        loop {
            let due = lock(&self.present).due();
            let asked = tokio::select! {
                () = sleep(due.min(LOOK_AGAIN)) => false,
                () = line.asked() => true,
            };
            let asked = retry.is_over(Instant::now()) || asked;
            if due > LOOK_AGAIN || asked {
                if line.is_told() && !asked && last.elapsed() < ASK_ANYWAY {
                    continue;
                }
                last = Instant::now();
                let issued = self.own.certifier.untold();
                let request = StatusRequest {
                    trusts: Some(lock(&self.present).report()),
                    host_authority: self.own.certifier.generation(),
                    issued: issued.clone(),
                };
                match objects.status(request).await {
                    Err(status) if status.code() == Code::PermissionDenied => {
                        self.own.certifier.give_up();
                        return over(&self.identity, Refused::Rpc(status), true);
                    }
                    Ok(status) => {
                        let status = status.into_inner();
                        self.own.certifier.forget(&issued);
                        if !self.own.certifier.untold().is_empty() {
                            self.controller.line.ask();
                        }
                        let mut present = lock(&self.present);
                        let news = match status.certificates {
                            Some(new) if terms.replace(new) != Some(new) => present.adopt(new),
                            _ => false,
                        };
                        if news {
                            tracing::info!("the lifetime of certificates was shortened");
                        } else if present.is_outdated(status.trust.unwrap_or_default()) {
                            tracing::info!("the mesh's root is being replaced");
                        } else if status.host_authority_due && !retry.is_paused(Instant::now()) {
                            tracing::info!("this host's authority over its workloads is due");
                        } else {
                            continue;
                        }
                    }
                    // The controller may be away.
                    Err(_) => continue,
                }
            }
            let channel = self.controller.clone();
            let channel = channel.channel(Some(Arc::clone(&self.present)));
            let key = HostKey::generate().or_fail(|| "cannot make a key".to_owned());
            let key = key.map_err(|failure| tracing::warn!("{failure}")).ok();
            let refused = match sign(channel, &self.identity, "", key.as_ref()).await {
                Ok(Signed { present, authority }) => {
                    // Without the file the host still goes on; it could not come back later.
                    if let Err(failure) = self.own.identity.write(&present.enrolled) {
                        tracing::warn!("{failure}");
                    }
                    let adopted = match (key, authority) {
                        (Some(key), Some(given)) => {
                            self.own.certifier.adopt(key, given, &present.enrolled)
                        }
                        (Some(_), None) => {
                            self.own.certifier.give_up();
                            Ok(())
                        }
                        (None, _) => Ok(()),
                    };
                    *lock(&self.present) = present;
                    // The controller learns what certificate is in force here, and what was done while it was away.
                    line.ask();
                    tracing::info!("renewed the host's certificate");
                    match adopted {
                        Ok(()) => retry = AuthorityRetry::default(),
                        Err(failure) => {
                            tracing::warn!("{failure}");
                            // The controller says at once that the authority is due, still.
                            retry.failed(Instant::now());
                        }
                    }
                    continue;
                }
                Err(refused) => refused,
            };
            let left = lock(&self.present).left();
            let out = refused.is_denied();
            if out {
                self.own.certifier.give_up();
            }
            if out || left.is_zero() {
                return over(&self.identity, refused, out);
            }
            tracing::warn!("{}", refused.failure());
            sleep(RETRY.min(left)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_that_cannot_be_kept_is_asked_for_less_and_less() {
        let begun = Instant::now();
        let mut retry = AuthorityRetry::default();
        assert!(!retry.is_paused(begun) && !retry.is_over(begun));
        let mut pauses = Vec::new();
        let mut now = begun;
        while now < begun + Duration::from_hours(1) {
            retry.failed(now);
            let until = retry.at.unwrap();
            assert!(retry.is_paused(now) && !retry.is_over(now));
            assert!(!retry.is_paused(until) && retry.is_over(until));
            // It is asked for once.
            assert!(!retry.is_over(until));
            pauses.push((until - now).as_secs());
            now = until;
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600, 600, 600, 600]);
    }
}
