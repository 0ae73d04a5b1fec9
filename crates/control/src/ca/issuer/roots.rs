//! The roots of an issuer's certificates: those that it names, and for a while those that it named before.

use super::MAX_CERTIFICATES;
use crate::ca::Trusted;
use std::time::{Duration, Instant};

/// How long a root is still trusted after the issuer has ceased to name it. Everybody who is connected renews
/// certificates of such a root at once.
const RETIRE: Duration = Duration::from_secs(60);

/// Reads the roots that an issuer names.
pub(super) fn read(roots: Vec<Vec<u8>>) -> Result<Vec<Trusted>, String> {
    if roots.is_empty() || roots.len() > MAX_CERTIFICATES {
        return Err(format!(
            "it names {}; there must be 1 to {MAX_CERTIFICATES}",
            roots.len()
        ));
    }
    let read = roots.into_iter().map(|der| {
        let (_, parsed) =
            x509_parser::parse_x509_certificate(&der).map_err(|e| format!("unreadable: {e}"))?;
        if !parsed.is_ca() {
            return Err("one is no authority's certificate".to_owned());
        }
        Trusted::read(der, false).map_err(|e| e.to_string())
    });
    read.collect()
}

/// Returns the roots to trust once an issuer has named `named`: these, and for a while those it named before.
pub(super) fn merged(
    known: &[(Trusted, Option<Instant>)],
    named: Vec<Trusted>,
    now: Instant,
) -> Vec<(Trusted, Option<Instant>)> {
    let gone = known
        .iter()
        .filter(|(k, _)| named.iter().all(|n| n.fingerprint != k.fingerprint));
    let retiring = gone.filter_map(|(root, since)| {
        let since = since.unwrap_or(now);
        let root = Trusted {
            retiring: true,
            ..root.clone()
        };
        (now.duration_since(since) < RETIRE).then_some((root, Some(since)))
    });
    let retiring: Vec<_> = retiring.collect();
    let named = named.into_iter().map(|root| (root, None));
    named.chain(retiring).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ca::Authority;
    use crate::ca::roots::Roots;

    #[test]
    fn a_root_that_is_named_no_more_goes_after_a_while() {
        let root = || {
            Authority::from_roots(Roots::generate().unwrap())
                .unwrap()
                .trusted()[0]
                .clone()
        };
        let (old, new, now) = (root(), root(), Instant::now());
        let known = merged(&[], vec![old.clone()], now);
        let known = merged(&known, vec![new.clone()], now);
        let retiring: Vec<bool> = known.iter().map(|(r, _)| r.retiring).collect();
        assert_eq!(retiring, [false, true]);
        // Named again, it stays.
        let again = merged(&known, vec![new.clone(), old], now + RETIRE);
        assert_eq!(again.len(), 2);
        assert!(again.iter().all(|(r, _)| !r.retiring));
        let known = merged(&known, vec![new], now + RETIRE);
        assert_eq!(known.len(), 1);
    }
}
