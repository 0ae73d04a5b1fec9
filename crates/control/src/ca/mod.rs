//! The built-in certificate authority: one ECDSA P-256 root, short-lived certificates for workloads.
//!
//! A workload makes its own key and sends a signing request. Of the request only the public key is
//! used, after its signature proved that the sender holds the private key: names, extensions and
//! flags in it are ignored, the identity comes from how the sender was authenticated. The root's key
//! never leaves this module except into the store.

pub mod host;
pub mod issuer;
pub mod membership;
pub mod roots;

use crate::store::{Space, Store, StoreError, Write};
use aws_lc_rs::{digest, signature};
use membership::{Membership, serial};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SubjectPublicKeyInfo,
};
use roots::{Roots, Step};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;
use tulle_model::hex;
use tulle_model::identity::SpiffeId;
use tulle_tls::host_authority::HostConstraint;
use x509_parser::prelude::{FromDer, X509CertificationRequest};

/// How long the root is valid.
const ROOT_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Certificates are valid from a little earlier, for peers whose clock is behind.
const BACKDATE: Duration = Duration::from_secs(5 * 60);
/// Longest signing request read. One with a P-256 key and a name has about 300 bytes.
pub const MAX_CSR_BYTES: usize = 16 * 1024;

/// `id-ecPublicKey`, `prime256v1` and `ecdsa-with-SHA256`.
const EC_PUBLIC_KEY: &str = "1.2.840.10045.2.1";
const P256: &str = "1.2.840.10045.3.1.7";
const ECDSA_SHA256: &str = "1.2.840.10045.4.3.2";

/// The certificate authority at one step of the root's life. It never changes: the next step has
/// another value.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The first of them signs.
    trusted: Vec<Trusted>,
    roots: Roots,
    /// Roots of workloads' certificates, if another issuer signs them.
    external: Option<Vec<Trusted>>,
}

/// A trusted root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trusted {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// SHA-256 of its DER in lower-case hex.
    pub fingerprint: Arc<str>,
    /// When it begins.
    pub not_before: OffsetDateTime,
    /// When it ends.
    pub not_after: OffsetDateTime,
    /// Every holder of a certificate of this root renews it now.
    pub retiring: bool,
}

impl Trusted {
    fn read(certificate: Vec<u8>, retiring: bool) -> Result<Self, AuthorityError> {
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate)
            .map_err(|_| AuthorityError::Damaged("a root certificate cannot be read".into()))?;
        let not_before = parsed.validity().not_before.to_datetime();
        let not_after = parsed.validity().not_after.to_datetime();
        let fingerprint = hex(digest::digest(&digest::SHA256, &certificate).as_ref());
        Ok(Self {
            not_before,
            fingerprint: fingerprint.into(),
            certificate: CertificateDer::from(certificate),
            not_after,
            retiring,
        })
    }
}

/// The root as it is stored. Its key can make any identity.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredRoot {
    /// PKCS#8, DER.
    pub key: Vec<u8>,
    /// DER.
    pub certificate: Vec<u8>,
}

impl StoredRoot {
    /// Makes a root.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn generate() -> Result<Self, AuthorityError> {
        let (key, certificate) = make_root(SystemTime::now())?;
        Ok(Self { key, certificate })
    }
}

impl fmt::Debug for StoredRoot {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Root").finish_non_exhaustive()
    }
}

/// A certificate made for someone.
#[derive(Debug, Clone)]
pub struct IssuedCertificate {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// When it ends.
    pub not_after: SystemTime,
}

/// A signing request whose signature is right.
#[derive(Debug)]
pub struct VerifiedCsr {
    key: SubjectPublicKeyInfo,
    public_key: Vec<u8>,
}

/// Why the authority cannot work.
#[derive(Debug)]
pub enum AuthorityError {
    /// The store does not answer.
    Store(StoreError),
    /// The store holds something else than a root and its key.
    Damaged(String),
    /// A key or certificate could not be made.
    Crypto(String),
    /// A host's authority may not do this.
    Refused(String),
}

impl fmt::Display for AuthorityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(e) => e.fmt(f),
            Self::Damaged(why) => write!(
                f,
                "the certificate authority in the store is damaged: {why}. It is not replaced, \
                 because no proxy would trust a new one: restore the store from a copy"
            ),
            Self::Crypto(why) => write!(f, "the certificate authority failed: {why}"),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for AuthorityError {}

impl From<StoreError> for AuthorityError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Why a signing request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsrError(&'static str);

impl fmt::Display for CsrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the signing request is refused: {}", self.0)
    }
}

impl std::error::Error for CsrError {}

impl VerifiedCsr {
    /// Reads a PKCS#10 request and proves that its sender holds the key.
    ///
    /// # Errors
    /// It is not a request, its key is not P-256, or the signature is wrong.
    pub fn parse(der: &[u8]) -> Result<Self, CsrError> {
        if der.len() > MAX_CSR_BYTES {
            return Err(CsrError("it is longer than 16 KiB"));
        }
        let (rest, csr) = X509CertificationRequest::from_der(der)
            .map_err(|_| CsrError("it is not a PKCS#10 request in DER"))?;
        if !rest.is_empty() {
            return Err(CsrError("bytes follow the request"));
        }
        let spki = &csr.certification_request_info.subject_pki;
        let curve = spki.algorithm.parameters.as_ref();
        let curve = curve.and_then(|p| p.as_oid().ok());
        let is_p256 = spki.algorithm.algorithm.to_id_string() == EC_PUBLIC_KEY
            && curve.is_some_and(|c| c.to_id_string() == P256);
        if !is_p256 || csr.signature_algorithm.algorithm.to_id_string() != ECDSA_SHA256 {
            return Err(CsrError(
                "only ECDSA keys on P-256 with SHA-256 are accepted",
            ));
        }
        signature::UnparsedPublicKey::new(
            &signature::ECDSA_P256_SHA256_ASN1,
            &spki.subject_public_key.data,
        )
        .verify(
            csr.certification_request_info.raw,
            &csr.signature_value.data,
        )
        .map_err(|_| CsrError("its signature is wrong"))?;
        let key = SubjectPublicKeyInfo::from_der(spki.raw)
            .map_err(|_| CsrError("its public key cannot be read"))?;
        let public_key = spki.raw.to_vec();
        Ok(Self { key, public_key })
    }

    /// The public key with its algorithm, DER.
    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }
}

impl Authority {
    /// Reads the authority from the store, or makes it when the store has none.
    ///
    /// # Errors
    /// The store fails, or what it holds is damaged.
    pub fn open(store: &dyn Store) -> Result<Self, AuthorityError> {
        let mut values = [const { None }; 6];
        for (value, name) in values.iter_mut().zip(roots::VALUES) {
            *value = store.value(Space::Authority, name)?;
        }
        let roots = match Roots::from_values(values)? {
            Some(roots) => roots,
            None => {
                let roots = Roots::generate()?;
                keep(store, &roots)?;
                roots
            }
        };
        Self::from_roots(roots)
    }

    /// The authority with these roots.
    ///
    /// # Errors
    /// They are damaged.
    pub fn from_roots(roots: Roots) -> Result<Self, AuthorityError> {
        let issuer = issuer_of(&roots.signing)?;
        let mut trusted = vec![Trusted::read(roots.signing.certificate.clone(), false)?];
        match &roots.step {
            Step::Steady => {}
            Step::Spreading { next, .. } => {
                // The next root will sign, so a fault in it is better found now.
                issuer_of(next)?;
                trusted.push(Trusted::read(next.certificate.clone(), false)?);
            }
            Step::Renewing { previous, .. } => trusted.push(Trusted::read(previous.clone(), true)?),
        }
        Ok(Self {
            issuer,
            trusted,
            roots,
            external: None,
        })
    }

    /// Adds the roots of another issuer, which signs workloads' certificates.
    #[must_use]
    pub fn with_external(mut self, roots: Option<Vec<Trusted>>) -> Self {
        self.external = roots;
        self
    }

    /// Roots of workloads' certificates; empty while they are not known yet.
    pub fn peers(&self) -> &[Trusted] {
        self.external.as_deref().unwrap_or(&self.trusted)
    }

    /// Roots of another issuer, if one signs.
    pub(crate) fn external(&self) -> Option<&Vec<Trusted>> {
        self.external.as_ref()
    }

    /// The roots as they are kept.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The mesh's own trusted roots; the first one signs. It issues the controller's certificates, and
    /// those of workloads if no other issuer does.
    pub fn trusted(&self) -> &[Trusted] {
        &self.trusted
    }

    fn signing(&self) -> &Trusted {
        // There is always one.
        &self.trusted[0]
    }

    /// The certificate of the root that signs.
    pub fn root(&self) -> &CertificateDer<'static> {
        &self.signing().certificate
    }

    /// All trusted roots of the mesh, as PEM.
    pub fn bundle_pem(&self) -> String {
        let pem = |t: &Trusted| pem::encode(&pem::Pem::new("CERTIFICATE", t.certificate.to_vec()));
        self.trusted.iter().map(pem).collect()
    }

    /// SHA-256 of the certificate of the root that signs, in lower-case hex. A joining host gets this
    /// fingerprint.
    pub fn fingerprint(&self) -> &str {
        &self.signing().fingerprint
    }

    /// Makes a certificate for an identity that the sender of the request was proved to have, and that came
    /// by this membership of a host, or by none.
    ///
    /// # Errors
    /// The certificate cannot be made.
    pub fn issue(
        &self,
        request: &VerifiedCsr,
        identity: &SpiffeId,
        membership: Option<Membership>,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<IssuedCertificate, AuthorityError> {
        let params = workload_params(identity)?;
        self.sign_params(&request.key, params, membership, lifetime, now)
    }

    /// Makes a key and a certificate for the controller itself.
    ///
    /// # Errors
    /// The key or the certificate cannot be made.
    pub fn issue_with_key(
        &self,
        identity: &SpiffeId,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<(IssuedCertificate, PrivatePkcs8KeyDer<'static>), AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(crypto)?;
        let issued = self.sign_params(&key, workload_params(identity)?, None, lifetime, now)?;
        Ok((issued, PrivatePkcs8KeyDer::from(key.serialize_der())))
    }

    /// Makes a key and a certificate for a server that is known by DNS names. It is nobody in the
    /// mesh: it has no SPIFFE id.
    ///
    /// # Errors
    /// The key or the certificate cannot be made.
    pub fn issue_server(
        &self,
        names: &[String],
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<(IssuedCertificate, PrivatePkcs8KeyDer<'static>), AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(crypto)?;
        let names = names.iter().map(|name| {
            let name = name.as_str().try_into().map_err(crypto)?;
            Ok(SanType::DnsName(name))
        });
        let names = names.collect::<Result<Vec<_>, AuthorityError>>()?;
        let uses = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let issued = self.sign_params(&key, leaf_params(names, uses), None, lifetime, now)?;
        Ok((issued, PrivatePkcs8KeyDer::from(key.serialize_der())))
    }

    /// Makes an authority for a host over exactly these identities.
    ///
    /// # Errors
    /// The certificate cannot be made, or the list is not one of a host's.
    pub fn issue_host(
        &self,
        request: &VerifiedCsr,
        constraint: &HostConstraint,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<IssuedCertificate, AuthorityError> {
        let params = host::authority_params(constraint)?;
        self.sign_params(&request.key, params, None, lifetime, now)
    }

    fn sign_params(
        &self,
        key: &impl rcgen::PublicKeyData,
        mut params: CertificateParams,
        membership: Option<Membership>,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<IssuedCertificate, AuthorityError> {
        let now = OffsetDateTime::from(now);
        // X.509 has whole seconds; a certificate must not outlive its root.
        let not_after = (now + lifetime).min(self.signing().not_after);
        let not_after = not_after.replace_nanosecond(0).map_err(crypto)?;
        params.serial_number = Some(serial(membership)?);
        params.not_before = now - BACKDATE;
        params.not_after = not_after;
        let certificate = params.signed_by(key, &self.issuer).map_err(crypto)?;
        Ok(IssuedCertificate {
            certificate: certificate.der().clone(),
            not_after: not_after.into(),
        })
    }
}

/// Builds a certificate that signs handshakes, but for its number and validity.
fn leaf_params(names: Vec<SanType>, uses: Vec<ExtendedKeyUsagePurpose>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = names;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = uses;
    params.use_authority_key_identifier_extension = true;
    params
}

/// Builds the certificate of a workload, but for its number and validity.
fn workload_params(identity: &SpiffeId) -> Result<CertificateParams, AuthorityError> {
    let name = SanType::URI(identity.as_str().try_into().map_err(crypto)?);
    let uses = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    Ok(leaf_params(vec![name], uses))
}

/// Puts roots into the store, all or nothing.
///
/// # Errors
/// The store fails.
pub(crate) fn keep(store: &dyn Store, roots: &Roots) -> Result<(), StoreError> {
    let values = roots::VALUES.into_iter().zip(roots.to_values());
    let writes: Vec<Write> = values
        .map(|(name, value)| match value {
            Some(value) => Write::PutValue {
                space: Space::Authority,
                key: name.into(),
                value,
            },
            None => Write::DeleteValue {
                space: Space::Authority,
                key: name.into(),
            },
        })
        .collect();
    store.commit(&writes).map(|_| ())
}

fn issuer_of(root: &StoredRoot) -> Result<Issuer<'static, KeyPair>, AuthorityError> {
    let damaged = |what: &str| AuthorityError::Damaged(what.to_owned());
    let key = KeyPair::from_pkcs8_der_and_sign_algo(
        &PrivatePkcs8KeyDer::from(root.key.as_slice()),
        &PKCS_ECDSA_P256_SHA256,
    )
    .map_err(|_| damaged("its key cannot be read"))?;
    let certificate = CertificateDer::from(root.certificate.as_slice());
    let (_, parsed) = x509_parser::parse_x509_certificate(&certificate)
        .map_err(|_| damaged("its root certificate cannot be read"))?;
    if parsed.public_key().subject_public_key.data != key.public_key_raw() {
        return Err(damaged("its key does not belong to its root certificate"));
    }
    Issuer::from_ca_cert_der(&certificate, key)
        .map_err(|_| damaged("its root certificate is not one of an authority"))
}

fn make_root(now: SystemTime) -> Result<(Vec<u8>, Vec<u8>), AuthorityError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(crypto)?;
    let now = OffsetDateTime::from(now);
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, "Tulle mesh root");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.serial_number = Some(serial(None)?);
    params.not_before = now - BACKDATE;
    params.not_after = now + ROOT_LIFETIME;
    let root = params.self_signed(&key).map_err(crypto)?;
    Ok((key.serialize_der(), root.der().to_vec()))
}

fn crypto(error: impl fmt::Display) -> AuthorityError {
    AuthorityError::Crypto(error.to_string())
}

impl fmt::Debug for Authority {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("fingerprint", &self.fingerprint())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;
    use x509_parser::extensions::GeneralName;

    fn identity() -> SpiffeId {
        SpiffeId::parse("spiffe://tulle.local/svc/reviews").unwrap()
    }

    fn csr(params: CertificateParams, key: &KeyPair) -> Vec<u8> {
        params.serialize_request(key).unwrap().der().to_vec()
    }

    fn p256() -> KeyPair {
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()
    }

    #[test]
    fn the_request_decides_nothing_but_the_key() {
        let authority = Authority::open(&Memory::new()).unwrap();
        let key = p256();
        let mut forged = CertificateParams::new(vec!["ratings.local".to_owned()]).unwrap();
        let other = "spiffe://tulle.local/svc/ratings".try_into().unwrap();
        forged.subject_alt_names.push(SanType::URI(other));
        forged.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        forged.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let request = VerifiedCsr::parse(&csr(forged, &key)).unwrap();
        let now = SystemTime::now();
        let issued = authority.issue(&request, &identity(), None, Duration::from_secs(20), now);
        let issued = issued.unwrap();
        let (_, cert) = x509_parser::parse_x509_certificate(&issued.certificate).unwrap();
        let names = cert.subject_alternative_name().unwrap().unwrap();
        assert_eq!(
            names.value.general_names,
            [GeneralName::URI("spiffe://tulle.local/svc/reviews")]
        );
        assert!(!cert.is_ca());
        assert!(!cert.key_usage().unwrap().unwrap().value.key_cert_sign());
        let usage = cert.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && usage.server_auth && !usage.any);
        assert_eq!(
            cert.public_key().subject_public_key.data,
            key.public_key_raw()
        );
        let unix = |t: SystemTime| t.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let validity = cert.validity();
        assert_eq!(validity.not_after.timestamp() as u64, unix(now) + 20);
        assert_eq!(
            validity.not_after.timestamp() as u64,
            unix(issued.not_after)
        );
        assert_eq!(validity.not_before.timestamp() as u64, unix(now) - 300);
    }

    #[test]
    fn requests_that_prove_nothing_are_refused() {
        let good = csr(CertificateParams::default(), &p256());
        let mut wrong_signature = good.clone();
        *wrong_signature.last_mut().unwrap() ^= 1;
        let mut trailing = good.clone();
        trailing.push(0);
        let p384 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let ed25519 = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        for bad in [
            &b""[..],
            &good[..good.len() - 1],
            &wrong_signature,
            &trailing,
            &vec![0x30; MAX_CSR_BYTES + 1],
            &csr(CertificateParams::default(), &p384),
            &csr(CertificateParams::default(), &ed25519),
        ] {
            assert!(VerifiedCsr::parse(bad).is_err());
        }
        assert!(VerifiedCsr::parse(&good).is_ok());
    }

    #[test]
    fn a_certificate_names_the_membership_by_which_it_came() {
        let authority = Authority::open(&Memory::new()).unwrap();
        let request = VerifiedCsr::parse(&csr(CertificateParams::default(), &p256())).unwrap();
        let serial = |membership| {
            let (day, now) = (Duration::from_secs(86400), SystemTime::now());
            let issued = authority.issue(&request, &identity(), membership, day, now);
            let der = issued.unwrap().certificate;
            let (_, cert) = x509_parser::parse_x509_certificate(&der).unwrap();
            cert.raw_serial().to_vec()
        };
        let of_host = Some(Membership::new().unwrap());
        for membership in [None, of_host] {
            assert_ne!(serial(membership), serial(membership));
            assert_eq!(Membership::of_serial(&serial(membership)), membership);
        }
    }

    #[test]
    fn no_certificate_outlives_the_root() {
        let authority = Authority::open(&Memory::new()).unwrap();
        let request = VerifiedCsr::parse(&csr(CertificateParams::default(), &p256())).unwrap();
        let century = Duration::from_secs(100 * 365 * 86400);
        let issued = authority.issue(&request, &identity(), None, century, SystemTime::now());
        let (_, root) = x509_parser::parse_x509_certificate(authority.root()).unwrap();
        let end: OffsetDateTime = issued.unwrap().not_after.into();
        assert_eq!(end, root.validity().not_after.to_datetime());
    }

    #[test]
    fn the_root_is_made_once_and_its_key_is_not_printed() {
        let store = Memory::new();
        let first = Authority::open(&store).unwrap();
        let second = Authority::open(&store).unwrap();
        assert_eq!(first.fingerprint(), second.fingerprint());
        let key = store.value(Space::Authority, "root.key").unwrap().unwrap();
        let printed = format!("{first:?} {store:?}");
        assert!(!printed.contains(&hex(&key)) && !printed.contains("PRIVATE"));
    }

    #[test]
    fn a_damaged_authority_is_not_replaced() {
        let store = Memory::new();
        Authority::open(&store).unwrap();
        let other_key = StoredRoot::generate().unwrap().key;
        for value in [b"x".to_vec(), other_key] {
            let write = Write::PutValue {
                space: Space::Authority,
                key: "root.key".into(),
                value,
            };
            store.commit(&[write]).unwrap();
            let error = Authority::open(&store).unwrap_err();
            assert!(matches!(error, AuthorityError::Damaged(_)), "{error}");
        }
        store.take(Space::Authority, "root.key").unwrap();
        let error = Authority::open(&store).unwrap_err();
        assert!(matches!(error, AuthorityError::Damaged(_)), "{error}");
    }
}
