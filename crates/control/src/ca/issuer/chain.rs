//! The chain that an issuer gives: parted from its roots, and checked before a workload gets it.

use super::request::is_own;
use super::{CertificateRequest, MAX_CERTIFICATES, Signed};
use crate::ca::{Trusted, VerifiedCsr};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use std::time::{SystemTime, UNIX_EPOCH};

/// Clocks differ; a certificate may last this much longer than asked.
const SLACK: i64 = 60;

/// Separates a chain from its roots: leaf and intermediates, each once and in the order given, and the
/// certificates that sign themselves. Without a root, the last authority takes its place.
pub fn parted(certificates: Vec<Vec<u8>>) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut chain, mut roots) = (Vec::new(), Vec::new());
    let mut last_is_authority = false;
    for der in certificates {
        let parsed = x509_parser::parse_x509_certificate(&der);
        let (is_ca, is_root) = parsed.map_or((false, false), |(_, c)| {
            (c.is_ca(), c.is_ca() && c.subject() == c.issuer())
        });
        let list: &mut Vec<Vec<u8>> = if is_root { &mut roots } else { &mut chain };
        if !list.contains(&der) {
            last_is_authority = is_ca;
            list.push(der);
        }
    }
    if roots.is_empty() && last_is_authority {
        roots.extend(chain.pop());
    }
    (chain, roots)
}

/// Whether a chain is what was asked for; when it ends.
pub(super) fn check(
    signed: &Signed,
    request: &VerifiedCsr,
    asked: &CertificateRequest,
    trusted: &[Trusted],
    now: SystemTime,
) -> Result<i64, String> {
    let Some((leaf_der, intermediates)) = signed.chain_der.split_first() else {
        return Err("it is empty".to_owned());
    };
    if signed.chain_der.len() > MAX_CERTIFICATES {
        return Err(format!("it has more than {MAX_CERTIFICATES} certificates"));
    }
    let (_, leaf) =
        x509_parser::parse_x509_certificate(leaf_der).map_err(|e| format!("unreadable: {e}"))?;
    let names = leaf.subject_alternative_name();
    let names = names.map_err(|e| e.to_string())?;
    let names = names.map(|n| n.value.general_names.as_slice());
    is_own(names.unwrap_or_default(), &asked.identity)?;
    if leaf.is_ca() {
        return Err("it is an authority's".to_owned());
    }
    if leaf.public_key().raw != request.public_key() {
        return Err("it has another key".to_owned());
    }
    let unix = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_now = i64::try_from(unix.as_secs()).unwrap_or(i64::MAX);
    let not_after = leaf.validity().not_after.timestamp();
    let lifetime = i64::try_from(asked.lifetime.as_secs()).unwrap_or(i64::MAX);
    let left = not_after.saturating_sub(unix_now);
    if left <= 0 || left > lifetime.saturating_add(SLACK) {
        return Err(format!(
            "it is valid for {left} s, and {lifetime} s were asked for: set the issuer's longest or \
             shortest validity, or the Mesh's `certificates.lifetime`"
        ));
    }
    let leaf = CertificateDer::from(leaf_der.as_slice());
    let leaf = ParsedCertificate::try_from(&leaf).map_err(|e| e.to_string())?;
    let mut roots = RootCertStore::empty();
    for root in trusted {
        roots
            .add(root.certificate.clone())
            .map_err(|e| e.to_string())?;
    }
    let intermediates: Vec<CertificateDer<'_>> = intermediates
        .iter()
        .map(|der| CertificateDer::from(der.as_slice()))
        .collect();
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
    let at = UnixTime::since_unix_epoch(unix);
    verify_server_cert_signed_by_trust_anchor(&leaf, &roots, &intermediates, at, algorithms.all)
        .map_err(|e| format!("no known root of the issuer signs it: {e}"))?;
    Ok(not_after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ca::Authority;
    use crate::ca::roots::Roots;
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
    use std::time::Duration;
    use tulle_model::identity::SpiffeId;

    struct Fixture {
        authority: Authority,
        request: VerifiedCsr,
        asked: CertificateRequest,
    }

    fn fixture() -> Fixture {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let csr = CertificateParams::default().serialize_request(&key);
        let csr_der = csr.unwrap().der().to_vec();
        Fixture {
            authority: Authority::from_roots(Roots::generate().unwrap()).unwrap(),
            request: VerifiedCsr::parse(&csr_der).unwrap(),
            asked: CertificateRequest {
                csr_der,
                identity: SpiffeId::parse("spiffe://t/ns/shop/sa/web").unwrap(),
                lifetime: Duration::from_secs(3600),
            },
        }
    }

    impl Fixture {
        fn verdict(&self, by: &Authority, id: &str, lifetime: u64) -> Result<i64, String> {
            let id = SpiffeId::parse(id).unwrap();
            let (lifetime, now) = (Duration::from_secs(lifetime), SystemTime::now());
            let issued = by.issue(&self.request, &id, None, lifetime, now).unwrap();
            let signed = Signed {
                chain_der: vec![issued.certificate.to_vec()],
            };
            check(
                &signed,
                &self.request,
                &self.asked,
                self.authority.trusted(),
                now,
            )
        }
    }

    #[test]
    fn only_what_was_asked_for_is_passed_on() {
        let fixture = fixture();
        let id = fixture.asked.identity.to_string();
        let own = &fixture.authority;
        assert!(fixture.verdict(own, &id, 3600).is_ok());
        assert!(fixture.verdict(own, &id, 60).is_ok());
        let other_id = fixture.verdict(own, "spiffe://t/ns/shop/sa/other", 3600);
        assert!(
            other_id
                .unwrap_err()
                .contains("not for spiffe://t/ns/shop/sa/web alone")
        );
        assert!(
            fixture
                .verdict(own, &id, 7200)
                .unwrap_err()
                .contains("7200 s")
        );
        let stranger = Authority::from_roots(Roots::generate().unwrap()).unwrap();
        let by_stranger = fixture.verdict(&stranger, &id, 3600);
        assert!(by_stranger.unwrap_err().contains("no known root"));
        // This certificate is for a key that the workload does not have.
        let (issued, _) = own
            .issue_with_key(
                &fixture.asked.identity,
                Duration::from_secs(60),
                SystemTime::now(),
            )
            .unwrap();
        let signed = Signed {
            chain_der: vec![issued.certificate.to_vec()],
        };
        let verdict = check(
            &signed,
            &fixture.request,
            &fixture.asked,
            own.trusted(),
            SystemTime::now(),
        );
        assert_eq!(verdict.unwrap_err(), "it has another key");
        let empty = Signed { chain_der: vec![] };
        let now = SystemTime::now();
        assert!(check(&empty, &fixture.request, &fixture.asked, own.trusted(), now).is_err());
    }
}
