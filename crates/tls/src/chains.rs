//! Chains of peers that a context has already verified: a returning peer costs one signature check,
//! that of its own, instead of one more for each certificate it shows.
//!
//! Only facts that cannot change are remembered: these very bytes lead to one of the context's
//! roots by valid signatures and are a workload's certificate for this usage. They belong to the
//! context, so a change of identity or roots forgets them. Other facts are checked each time: that
//! the peer has the key (it signs each handshake), the time (a chain outside the validity of any of
//! its certificates is verified anew), the expected ids, and authorization.

use rustls::pki_types::CertificateDer;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::leaf::Leaf;
use crate::validity::system_time;

/// Most chains remembered; past it all are forgotten, which costs a signature check each.
const MAX_CHAINS: usize = 256;
/// Longer chains are not remembered: with the number above that is at most 1 MiB. A workload's
/// certificate with one intermediate has about 1.2 KB.
const MAX_BYTES: usize = 4096;

/// Chains verified for one usage under one context.
#[derive(Default)]
pub(crate) struct Chains {
    /// Chains by the workload's certificate. Only chains that one of our authorities has signed get
    /// in.
    known: Mutex<HashMap<Box<[u8]>, Known>>,
}

struct Known {
    others: Box<[CertificateDer<'static>]>,
    leaf: Arc<Leaf>,
    /// The time in which all its certificates are valid.
    not_before: SystemTime,
    not_after: SystemTime,
}

impl Chains {
    /// Returns the leaf of a chain, if exactly this chain was verified and all of it is valid now.
    pub(crate) fn find(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Option<Arc<Leaf>> {
        let chains = self.lock();
        let known = chains.get(leaf.as_ref())?;
        let same = known.others.iter().eq(others);
        let valid = known.not_before <= now && now <= known.not_after;
        (same && valid).then(|| Arc::clone(&known.leaf))
    }

    /// Returns the leaf of exactly this chain, if it was verified; it may have expired.
    pub(crate) fn leaf(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
    ) -> Option<Arc<Leaf>> {
        let chains = self.lock();
        let known = chains.get(leaf.as_ref())?;
        let same = known.others.iter().eq(others);
        same.then(|| Arc::clone(&known.leaf))
    }

    /// Remembers a chain that has just passed every check.
    pub(crate) fn keep(
        &self,
        der: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        leaf: Arc<Leaf>,
    ) {
        let bytes = others
            .iter()
            .fold(der.len(), |sum, c| sum.saturating_add(c.len()));
        let validity = (leaf.not_before, leaf.not_after);
        let validity = others.iter().try_fold(validity, |(from, until), other| {
            let (_, other) = X509Certificate::from_der(other).ok()?;
            let other = other.validity();
            Some((
                from.max(system_time(other.not_before)),
                until.min(system_time(other.not_after)),
            ))
        });
        let Some((not_before, not_after)) = validity.filter(|_| bytes <= MAX_BYTES) else {
            return;
        };
        let known = Known {
            others: others.iter().map(|c| c.clone().into_owned()).collect(),
            leaf,
            not_before,
            not_after,
        };
        let mut chains = self.lock();
        if chains.len() >= MAX_CHAINS {
            chains.clear();
        }
        chains.insert(der.as_ref().into(), known);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Known>> {
        // The map is whole even if a holder panicked: entries are only added or removed.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Chains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chains").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaf::Usage;
    use crate::testing::TestCa;
    use std::time::Duration;

    fn leaf(der: &CertificateDer<'_>) -> Arc<Leaf> {
        Arc::new(Leaf::parse(der, &[Usage::Client]).unwrap())
    }

    #[test]
    fn a_chain_is_known_by_all_its_bytes_and_while_all_of_it_is_valid() {
        let now = SystemTime::now();
        let hour = Duration::from_secs(3600);
        let root = TestCa::new("root");
        let middle = root.intermediate_until("middle", Some(now + hour));
        let chain = middle.issue("spiffe://tulle.local/svc/a").chain;
        let (first, others) = (&chain[0], std::slice::from_ref(middle.der()));
        let chains = Chains::default();
        assert!(chains.find(first, others, now).is_none());
        chains.keep(first, others, leaf(first));
        assert_eq!(chains.find(first, others, now).unwrap().id, leaf(first).id);
        // With other certificates beside it, or none, it is another chain.
        assert!(chains.find(first, &[], now).is_none());
        let other = std::slice::from_ref(root.der());
        assert!(chains.find(first, other, now).is_none());
        let two = [middle.der().clone(), root.der().clone()];
        assert!(chains.find(first, &two, now).is_none());
        // One changed byte makes another certificate.
        let mut bytes = first.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        assert!(chains.find(&bytes.into(), others, now).is_none());
        // The leaf is valid for a day, the intermediate for an hour.
        assert!(chains.find(first, others, now + 2 * hour).is_none());
        assert!(chains.find(first, others, now - 2 * hour).is_none());
        assert!(chains.find(first, others, now).is_some());
        assert!(chains.leaf(first, others).is_some());
        assert!(chains.leaf(first, &[]).is_none());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let root = TestCa::new("root");
        let certificate = root.issue("spiffe://tulle.local/svc/a").chain[0].clone();
        let read = leaf(&certificate);
        let chains = Chains::default();
        for n in 0..3 * MAX_CHAINS {
            let mut bytes = certificate.to_vec();
            bytes.extend_from_slice(&n.to_be_bytes());
            chains.keep(&bytes.into(), &[], Arc::clone(&read));
            assert!(chains.lock().len() <= MAX_CHAINS);
        }
        assert!(!chains.lock().is_empty());
        let chains = Chains::default();
        let long = CertificateDer::from(vec![0; MAX_BYTES + 1]);
        chains.keep(&long, &[], Arc::clone(&read));
        // A certificate of the issuer that cannot be read has no validity to compare.
        chains.keep(&certificate, &[vec![0; 10].into()], read);
        assert!(chains.lock().is_empty());
    }
}
