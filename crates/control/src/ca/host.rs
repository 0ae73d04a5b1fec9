//! The authority of a joined host, as the host uses it while no controller answers: it certifies the host's
//! own workloads, for as long as the root's signature lets it.
//!
//! `tulle_tls::host_authority` says how its certificates are verified, and why.

use super::{
    AuthorityError, BACKDATE, IssuedCertificate, VerifiedCsr, crypto, serial, workload_params,
};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};
use std::fmt;
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::Serial;
use tulle_tls::host_authority::{self, HostConstraint, OID};

/// `id-ce-nameConstraints`.
const NAME_CONSTRAINTS: [u64; 4] = [2, 5, 29, 30];

/// Builds the certificate of a host's authority, but for its number and validity.
pub(super) fn authority_params(
    constraint: &HostConstraint,
) -> Result<CertificateParams, AuthorityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let name = format!("Tulle host {}", constraint.host.name());
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.use_authority_key_identifier_extension = true;
    let critical = |oid: &[u64], content| {
        let mut extension = CustomExtension::from_oid_content(oid, content);
        extension.set_criticality(true);
        extension
    };
    let list = constraint.to_der().map_err(crypto)?;
    params.custom_extensions = vec![
        critical(&NAME_CONSTRAINTS, constraint.name_constraints_der()),
        critical(&OID, list),
    ];
    Ok(params)
}

/// A new key of a host, for which the controller is to sign an authority.
pub struct HostKey {
    key: KeyPair,
    /// PKCS#10, DER.
    pub csr_der: Vec<u8>,
}

impl HostKey {
    /// Makes one.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn generate() -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(crypto)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(crypto)?;
        let csr_der = request.der().to_vec();
        Ok(Self { key, csr_der })
    }

    /// Joins the controller's answer to the key.
    ///
    /// # Errors
    /// The certificate is no host's authority, belongs to another key, or comes from no such root.
    pub fn complete(
        self,
        certificate: Vec<u8>,
        roots: &[CertificateDer<'_>],
    ) -> Result<HostAuthority, AuthorityError> {
        HostAuthority::new(self.key, certificate.into(), roots)
    }
}

/// A host's authority with its key.
pub struct HostAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    constraint: HostConstraint,
    not_before: SystemTime,
    not_after: SystemTime,
}

impl HostAuthority {
    fn new(
        key: KeyPair,
        certificate: CertificateDer<'static>,
        roots: &[CertificateDer<'_>],
    ) -> Result<Self, AuthorityError> {
        let damaged = |why: String| AuthorityError::Damaged(why);
        let mut store = RootCertStore::empty();
        for root in roots {
            let added = store.add(root.clone().into_owned());
            added.map_err(|e| damaged(e.to_string()))?;
        }
        let others = std::slice::from_ref(&certificate);
        let verified = host_authority::verify(others, &store, UnixTime::now());
        let verified = verified.map_err(|e| damaged(e.to_string()))?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).map_err(crypto)?;
        if parsed.public_key().subject_public_key.data != key.public_key_raw() {
            return Err(damaged("its key belongs to another certificate".into()));
        }
        Ok(Self {
            issuer: Issuer::from_ca_cert_der(&certificate, key).map_err(crypto)?,
            constraint: verified.constraint,
            not_before: verified.not_before,
            not_after: verified.not_after,
            certificate,
        })
    }

    /// Returns its limits.
    pub fn constraint(&self) -> &HostConstraint {
        &self.constraint
    }

    /// When it ends.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Its certificate, which goes with each that it signs.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Certifies a workload of this host, for no longer than the authority itself.
    ///
    /// # Errors
    /// It may not certify this identity, or has ended.
    pub fn issue(
        &self,
        request: &VerifiedCsr,
        identity: &SpiffeId,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<(IssuedCertificate, Serial), AuthorityError> {
        let refused = |why: String| Err(AuthorityError::Refused(why));
        let host = &self.constraint.host;
        if !self.constraint.identities.contains(identity) {
            return refused(format!(
                "the authority of {host} may not certify {identity}: the controller knew no workload \
                 of this host with that identity when it signed"
            ));
        }
        if now >= self.not_after {
            return refused(format!(
                "the authority of {host} has ended, and no controller has renewed it: the host has to \
                 reach its controller again"
            ));
        }
        let not_after = OffsetDateTime::from((now + lifetime).min(self.not_after));
        let not_after = not_after.replace_nanosecond(0).map_err(crypto)?;
        let mut params = workload_params(identity)?;
        params.serial_number = Some(serial(None)?);
        params.not_before = OffsetDateTime::from((now - BACKDATE).max(self.not_before));
        params.not_after = not_after;
        let certificate = params
            .signed_by(&request.key, &self.issuer)
            .map_err(crypto)?;
        let certificate = certificate.der().clone();
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).map_err(crypto)?;
        let number = Serial::from_bytes(parsed.raw_serial());
        let issued = IssuedCertificate {
            certificate,
            not_after: not_after.into(),
        };
        Ok((issued, number))
    }

    /// Key and certificate as PEM, for the host's own file and nothing else.
    pub fn to_pem(&self) -> String {
        let certificate = pem::Pem::new("CERTIFICATE", self.certificate.to_vec());
        self.issuer.key().serialize_pem() + &pem::encode(&certificate)
    }

    /// Reads the text of [`Self::to_pem`].
    ///
    /// # Errors
    /// It is another, or no root of these has signed it.
    pub fn from_pem(text: &str, roots: &[CertificateDer<'_>]) -> Result<Self, AuthorityError> {
        let damaged = |why: &str| AuthorityError::Damaged(why.to_owned());
        let parts = pem::parse_many(text).map_err(crypto)?;
        let part = |tag: &str| parts.iter().find(|p| p.tag() == tag);
        let key = part("PRIVATE KEY").ok_or_else(|| damaged("there is no key"))?;
        let certificate = part("CERTIFICATE").ok_or_else(|| damaged("there is no certificate"))?;
        let key = PrivatePkcs8KeyDer::from(key.contents());
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256);
        let key = key.map_err(|_| damaged("its key cannot be read"))?;
        Self::new(key, certificate.contents().to_vec().into(), roots)
    }
}

impl fmt::Debug for HostAuthority {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostAuthority")
            .field("constraint", &self.constraint)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ca::Authority;
    use crate::store::Memory;

    fn id(path: &str) -> SpiffeId {
        SpiffeId::parse(&format!("spiffe://tulle.local/{path}")).unwrap()
    }

    fn constraint(identities: &[&str]) -> HostConstraint {
        HostConstraint {
            host: id("node/edge"),
            generation: 3,
            identities: identities.iter().map(|i| id(i)).collect(),
        }
    }

    fn request() -> VerifiedCsr {
        VerifiedCsr::parse(&HostKey::generate().unwrap().csr_der).unwrap()
    }

    fn given(root: &Authority, lifetime: Duration) -> HostAuthority {
        let key = HostKey::generate().unwrap();
        let csr = VerifiedCsr::parse(&key.csr_der).unwrap();
        let now = SystemTime::now();
        let issued = root.issue_host(&csr, &constraint(&["svc/a", "svc/b"]), lifetime, now);
        let der = issued.unwrap().certificate.to_vec();
        key.complete(der, &[root.root().clone()]).unwrap()
    }

    #[test]
    fn it_certifies_its_own_for_no_longer_than_itself() {
        let root = Authority::open(&Memory::new()).unwrap();
        let day = Duration::from_hours(24);
        let own = given(&root, Duration::from_secs(60));
        let roots = [root.root().clone()];
        let again = HostAuthority::from_pem(&own.to_pem(), &roots).unwrap();
        assert_eq!(again.constraint(), own.constraint());
        assert!(!format!("{own:?}").contains("KEY"));
        let now = SystemTime::now();
        let (issued, serial) = again.issue(&request(), &id("svc/a"), day, now).unwrap();
        assert!(issued.not_after <= own.not_after());
        let (_, cert) = x509_parser::parse_x509_certificate(&issued.certificate).unwrap();
        assert_eq!(Serial::from_bytes(cert.raw_serial()), serial);
        assert!(!cert.is_ca());
        for other in ["svc/c", "node/edge", "controller"] {
            let refused = again.issue(&request(), &id(other), day, now).unwrap_err();
            assert!(refused.to_string().contains("may not certify"), "{refused}");
        }
        let late = now + Duration::from_secs(61);
        let refused = again.issue(&request(), &id("svc/a"), day, late);
        assert!(refused.unwrap_err().to_string().contains("has ended"));
    }

    #[test]
    fn it_never_outlives_the_root_and_comes_from_no_other() {
        let root = Authority::open(&Memory::new()).unwrap();
        let own = given(&root, Duration::from_hours(24 * 365 * 20));
        let (_, cert) = x509_parser::parse_x509_certificate(root.root()).unwrap();
        let end: OffsetDateTime = own.not_after().into();
        assert_eq!(end, cert.validity().not_after.to_datetime());
        let other = Authority::open(&Memory::new()).unwrap();
        let refused = HostAuthority::from_pem(&own.to_pem(), &[other.root().clone()]);
        assert!(matches!(refused, Err(AuthorityError::Damaged(_))));
    }

    #[test]
    fn no_list_of_other_names_is_signed() {
        let root = Authority::open(&Memory::new()).unwrap();
        let now = SystemTime::now();
        for bad in [
            &["node/edge"][..],
            &["controller"],
            &["svc/a/b"],
            &["svc/a", "node/other"],
            &[],
        ] {
            let day = Duration::from_hours(24);
            let issued = root.issue_host(&request(), &constraint(bad), day, now);
            assert!(issued.is_err(), "{bad:?}");
        }
        let mut elsewhere = constraint(&["svc/a"]);
        elsewhere.host = SpiffeId::parse("spiffe://other/node/edge").unwrap();
        let day = Duration::from_hours(24);
        assert!(root.issue_host(&request(), &elsewhere, day, now).is_err());
    }
}
