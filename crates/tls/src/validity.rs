//! Times of certificates as the system counts them.

use std::time::{Duration, SystemTime};
use x509_parser::time::ASN1Time;

/// Times before 1970 count as 1970: no such certificate is valid today either way.
pub(crate) fn system_time(time: ASN1Time) -> SystemTime {
    let seconds = u64::try_from(time.timestamp()).unwrap_or(0);
    SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_secs(seconds))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::provider;
    use crate::leaf::{Leaf, Usage};
    use crate::testing::{Leaf as Described, TestCa};
    use rustls::client::verify_server_cert_signed_by_trust_anchor;
    use rustls::pki_types::UnixTime;
    use rustls::server::ParsedCertificate;

    /// The begin of 2040 and of 2110, beyond the seconds of 31 bits and of 32.
    const ENDS: [(u64, &str); 2] = [(2_208_988_800, "2040-01-01"), (4_417_977_600, "2110-01-01")];

    #[test]
    fn a_certificate_ends_when_it_says_also_after_2038() {
        let ca = TestCa::new("mesh");
        let second = Duration::from_secs(1);
        for (seconds, day) in ENDS {
            let end = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let issued = ca.issue_leaf(&Described {
                not_after: end,
                ..Described::new("spiffe://tulle.local/svc/a")
            });
            assert_eq!(issued.identity().not_after(), end);
            let leaf = Leaf::parse(&issued.chain[0], &[Usage::Client]).unwrap();
            for now in [SystemTime::now(), end - second, end] {
                assert!(leaf.check_validity(now).is_ok(), "{day}: {now:?}");
            }
            let expired = leaf.check_validity(end + second).unwrap_err().to_string();
            assert!(
                expired.contains(&format!("at {day}T00:00:00Z")),
                "{expired}"
            );

            // The check of its chain is rustls'.
            let parsed = ParsedCertificate::try_from(&issued.chain[0]).unwrap();
            let check = |seconds: u64| {
                let store = ca.bundle().store();
                let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
                let all = provider().signature_verification_algorithms.all;
                verify_server_cert_signed_by_trust_anchor(&parsed, &store, &[], now, all)
            };
            assert!(check(seconds - 1).is_ok(), "{day}");
            assert!(check(seconds + 1).is_err(), "{day}");
        }
    }
}
