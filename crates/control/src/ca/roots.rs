//! The roots of the mesh as they are kept, and the steps in which one replaces another.
//!
//! 1. *Steady*: one root signs, and only it is trusted.
//! 2. *Spreading*: the next root is trusted, too, and nothing is signed with it yet.
//! 3. *Renewing*: the next root signs; the previous one is still trusted, and every holder of
//!    a certificate of it renews it. Its key is gone.
//! 4. Steady again, with the next root alone.
//!
//! Each step is one write, so a crash leaves the step before or after it.

use super::{AuthorityError, BACKDATE, StoredRoot, make_root};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Names under which roots are kept: of the one that signs, the next and the previous one.
pub const VALUES: [&str; 6] = [
    "root.key",
    "root.crt",
    "next.key",
    "next.crt",
    "previous.crt",
    "rotation",
];

/// All roots of the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// Signs certificates.
    pub signing: StoredRoot,
    /// Whether it is about to be replaced.
    pub step: Step,
}

/// An answer that takes a while.
pub type ResponseFuture<T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send>>;

/// Where the roots are kept, for all replicas of the controller.
pub trait Keeper: Send + Sync {
    /// Replaces the stored roots if they are still `old`; returns the roots that are stored now.
    fn replace(&self, old: Roots, new: Roots) -> ResponseFuture<Roots>;
    /// This replica's name.
    fn name(&self) -> String;
    /// How long each step lasts at least when the root is replaced by itself.
    fn hold(&self) -> Duration {
        Duration::ZERO
    }
    /// Names all replicas, this one too.
    fn replicas(&self) -> ResponseFuture<Vec<String>>;
    /// Keeps the roots (DER) of another issuer for the next start of a controller: the issuer may not answer
    /// then.
    fn keep_issuer_roots(&self, issuer: String, roots: Vec<Vec<u8>>) -> ResponseFuture<()> {
        let _ = (issuer, roots);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// How far the replacement of the root is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing is replaced.
    Steady,
    /// The next root is distributed to everybody.
    Spreading {
        /// Signs from the next step on.
        next: StoredRoot,
        /// How this step goes.
        progress: StepProgress,
    },
    /// Everybody renews the certificates of the previous root.
    Renewing {
        /// Its certificate, DER.
        previous: Vec<u8>,
        /// How this step goes.
        progress: StepProgress,
    },
}

/// How one step goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepProgress {
    /// When it began, in Unix seconds.
    pub since: u64,
    /// How many seconds it lasts at least.
    pub hold: u64,
    /// Replicas of the controller whose proxies have all done what it asks.
    #[serde(default)]
    pub settled: BTreeSet<String>,
}

impl StepProgress {
    fn new(now: SystemTime, hold: u64) -> Self {
        Self {
            since: unix(now),
            hold,
            settled: BTreeSet::new(),
        }
    }

    /// Returns how long the step has been going on.
    pub fn age(&self, now: SystemTime) -> Duration {
        Duration::from_secs(unix(now).saturating_sub(self.since))
    }
}

impl Roots {
    /// Makes the first root.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn generate() -> Result<Self, AuthorityError> {
        Ok(Self {
            signing: StoredRoot::generate()?,
            step: Step::Steady,
        })
    }

    /// Begins to replace the root.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn rotate(&self, hold: Duration, now: SystemTime) -> Result<Self, AuthorityError> {
        let (key, certificate) = make_root(now)?;
        Ok(Self {
            signing: self.signing.clone(),
            step: Step::Spreading {
                next: StoredRoot { key, certificate },
                progress: StepProgress::new(now, hold.as_secs()),
            },
        })
    }

    /// The step after this one.
    #[must_use]
    pub fn advanced(&self, now: SystemTime) -> Self {
        match &self.step {
            Step::Steady => self.clone(),
            Step::Spreading { next, progress } => Self {
                signing: next.clone(),
                step: Step::Renewing {
                    previous: self.signing.certificate.clone(),
                    progress: StepProgress::new(now, progress.hold),
                },
            },
            Step::Renewing { .. } => Self {
                signing: self.signing.clone(),
                step: Step::Steady,
            },
        }
    }

    /// Begins the present step anew if it began in the future: the clock was ahead then, and the step would not end before
    /// that time. A next root that is not valid yet is replaced; nothing is signed with it.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn restarted(&self, now: SystemTime) -> Result<Option<Self>, AuthorityError> {
        let Some(progress) = self.progress() else {
            return Ok(None);
        };
        // Roots are backdated as much, and clocks of replicas differ by less.
        if progress.since <= unix(now + BACKDATE) {
            return Ok(None);
        }
        let hold = progress.hold;
        let mut roots = match self.step {
            Step::Spreading { .. } => self.rotate(Duration::from_secs(hold), now)?,
            _ => self.clone(),
        };
        if let Step::Renewing { progress, .. } = &mut roots.step {
            *progress = StepProgress::new(now, hold);
        }
        Ok(Some(roots))
    }

    /// How the present step goes, if anything is replaced.
    pub fn progress(&self) -> Option<&StepProgress> {
        match &self.step {
            Step::Steady => None,
            Step::Spreading { progress, .. } | Step::Renewing { progress, .. } => Some(progress),
        }
    }

    /// Returns the roots with a replica marked as settled or not.
    #[must_use]
    pub fn with_settled(&self, replica: &str, is: bool) -> Self {
        let mut roots = self.clone();
        if let Step::Spreading { progress, .. } | Step::Renewing { progress, .. } = &mut roots.step
        {
            if is {
                progress.settled.insert(replica.to_owned());
            } else {
                progress.settled.remove(replica);
            }
        }
        roots
    }

    /// Returns the bytes to store under each of [`VALUES`].
    pub fn to_values(&self) -> [Option<Vec<u8>>; 6] {
        let mut values = [
            Some(self.signing.key.clone()),
            Some(self.signing.certificate.clone()),
            None,
            None,
            None,
            // This type always becomes JSON.
            self.progress().and_then(|p| serde_json::to_vec(p).ok()),
        ];
        match &self.step {
            Step::Steady => {}
            Step::Spreading { next, .. } => {
                values[2] = Some(next.key.clone());
                values[3] = Some(next.certificate.clone());
            }
            Step::Renewing { previous, .. } => values[4] = Some(previous.clone()),
        }
        values
    }

    /// Reads what [`Roots::to_values`] gave; `None` if there is nothing at all.
    ///
    /// # Errors
    /// A part is missing.
    pub fn from_values(values: [Option<Vec<u8>>; 6]) -> Result<Option<Self>, AuthorityError> {
        let damaged = |what: &str| AuthorityError::Damaged(what.to_owned());
        let signing = match values {
            [None, None, None, None, None, None] => return Ok(None),
            [Some(ref key), Some(ref certificate), ..] => StoredRoot {
                key: key.clone(),
                certificate: certificate.clone(),
            },
            _ => return Err(damaged("it has only one of root and key")),
        };
        let [_, _, next_key, next, previous, progress] = values;
        let rotates = progress.is_some();
        let progress = || {
            let text = progress.as_deref().unwrap_or_default();
            serde_json::from_slice::<StepProgress>(text)
                .map_err(|_| damaged("how far the rotation of its root is cannot be read"))
        };
        let step = match (next_key, next, previous) {
            (None, None, None) if !rotates => Step::Steady,
            (Some(key), Some(certificate), None) => Step::Spreading {
                next: StoredRoot { key, certificate },
                progress: progress()?,
            },
            (None, None, Some(previous)) => Step::Renewing {
                previous,
                progress: progress()?,
            },
            _ => return Err(damaged("the parts of its rotation do not belong together")),
        };
        Ok(Some(Self { signing, step }))
    }
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ca::Trusted;

    #[test]
    fn every_step_is_kept_whole() {
        let now = SystemTime::now();
        let first = Roots::generate().unwrap();
        let spreading = first.rotate(Duration::from_secs(7), now).unwrap();
        let spreading = spreading.with_settled("a", true);
        let renewing = spreading.advanced(now);
        let done = renewing.advanced(now);
        for roots in [&first, &spreading, &renewing, &done] {
            let read = Roots::from_values(roots.to_values()).unwrap().unwrap();
            assert_eq!(&read, roots);
            // A part that is lost is not taken for an earlier step.
            for (lost, value) in roots.to_values().iter().enumerate() {
                let mut values = roots.to_values();
                values[lost] = None;
                let read = Roots::from_values(values);
                assert!(value.is_none() || read.is_err(), "{roots:?} without {lost}");
            }
        }
        assert_eq!(Roots::from_values([const { None }; 6]).unwrap(), None);
        // The old root's key is gone once it no longer signs; replicas are asked again.
        assert_eq!(renewing.progress().unwrap().settled.len(), 0);
        assert_ne!(done.signing, first.signing);
        assert!(
            matches!(&renewing.step, Step::Renewing { previous, .. } if *previous == first.signing.certificate)
        );
        assert_eq!(done.step, Step::Steady);
    }

    #[test]
    fn a_step_that_began_while_the_clock_was_ahead_begins_anew() {
        let now = SystemTime::now();
        let ahead = now + Duration::from_secs(3600);
        let first = Roots::generate().unwrap();
        assert_eq!(first.restarted(now).unwrap(), None);
        let spreading = first.rotate(Duration::from_secs(7), ahead).unwrap();
        for soon in [ahead, ahead - BACKDATE] {
            assert_eq!(spreading.restarted(soon).unwrap(), None);
        }
        let renewing = spreading.advanced(ahead).with_settled("a", true);
        for step in [&spreading, &renewing] {
            let anew = step.restarted(now).unwrap().unwrap();
            assert_eq!(anew.progress(), Some(&StepProgress::new(now, 7)));
            assert_eq!(anew.signing, step.signing);
            match (&step.step, &anew.step) {
                (Step::Spreading { next: old, .. }, Step::Spreading { next, .. }) => {
                    assert_ne!(next, old);
                    let next = Trusted::read(next.certificate.clone(), false).unwrap();
                    assert!(SystemTime::from(next.not_before) <= now, "it is valid");
                }
                (Step::Renewing { previous: old, .. }, Step::Renewing { previous, .. }) => {
                    assert_eq!(previous, old);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
