//! A throw-away certificate authority for tests. It issues good identities and every kind of bad
//! one. It is never part of a product build: it panics instead of returning errors.
#![allow(clippy::missing_panics_doc, clippy::unwrap_used)]

mod anyone;

pub use anyone::{AcceptAnyone, client_config};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams,
    CrlIssuingDistributionPoint, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevocationReason,
    RevokedCertParams, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::path::Path;
use std::time::{Duration, SystemTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::host_authority::{HostConstraint, OID};
use crate::{Identity, TrustBundle};

/// Content of a workload's certificate.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// URI names, in order.
    pub uris: Vec<String>,
    /// DNS names.
    pub dns: Vec<String>,
    /// Start of validity.
    pub not_before: SystemTime,
    /// End of validity.
    pub not_after: SystemTime,
    /// Extended key usage clientAuth.
    pub client_auth: bool,
    /// Extended key usage serverAuth.
    pub server_auth: bool,
    /// Mark it as an authority's certificate.
    pub is_ca: bool,
}

impl Leaf {
    /// A good certificate for this id, valid from an hour ago for a day.
    pub fn new(id: &str) -> Self {
        let now = SystemTime::now();
        Self {
            uris: vec![id.to_owned()],
            dns: Vec::new(),
            not_before: now - Duration::from_secs(3600),
            not_after: now + Duration::from_secs(24 * 3600),
            client_auth: true,
            server_auth: true,
            is_ca: false,
        }
    }
}

/// An authority.
pub struct TestCa {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
    pem: String,
}

/// A certificate chain with its key.
pub struct Issued {
    /// The chain, the workload's certificate first.
    pub chain: Vec<CertificateDer<'static>>,
    /// The chain as PEM.
    pub chain_pem: String,
    /// The key as PEM.
    pub key_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl TestCa {
    /// A new self-signed root.
    pub fn new(common_name: &str) -> Self {
        Self::with(ca_params(common_name))
    }

    /// A new self-signed root, valid from then on.
    pub fn since(common_name: &str, not_before: SystemTime) -> Self {
        let mut params = ca_params(common_name);
        params.not_before = not_before.into();
        Self::with(params)
    }

    fn with(params: CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self {
            der: certificate.der().clone(),
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Creates an authority signed by this one; hand out its certificate with
    /// [`Issued::with_issuer`].
    pub fn intermediate(&self, common_name: &str) -> Self {
        self.intermediate_until(common_name, None)
    }

    /// Creates an authority as [`Self::intermediate`] does, valid only until then.
    pub fn intermediate_until(&self, common_name: &str, not_after: Option<SystemTime>) -> Self {
        let mut params = ca_params(common_name);
        if let Some(not_after) = not_after {
            params.not_after = not_after.into();
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Self {
            der: certificate.der().clone(),
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Signs the authority of a host, as a controller does.
    pub fn host(&self, constraint: &HostConstraint) -> HostCa {
        self.host_with(constraint, |_| {})
    }

    /// Signs the authority of a host, with a change to what a controller would sign. The first of the
    /// extensions are the constraint of names and the list.
    pub fn host_with(
        &self,
        constraint: &HostConstraint,
        change: impl FnOnce(&mut CertificateParams),
    ) -> HostCa {
        host(&self.issuer, constraint, change)
    }

    /// The root certificate as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The root certificate.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// A bundle of this root alone.
    pub fn bundle(&self) -> TrustBundle {
        TrustBundle::from_der(vec![self.der.clone()]).unwrap()
    }

    /// A good certificate for this id.
    pub fn issue(&self, id: &str) -> Issued {
        self.issue_leaf(&Leaf::new(id))
    }

    /// A certificate as described.
    pub fn issue_leaf(&self, leaf: &Leaf) -> Issued {
        issue(&self.issuer, leaf, Vec::new())
    }

    /// Returns a revocation list (PEM) that names these certificates.
    pub fn revocation_list(&self, revoked: &[&Identity]) -> String {
        let serials = revoked.iter().map(|identity| identity.public().serial);
        self.revocation_list_by_serial(&serials.collect::<Vec<_>>())
    }

    /// A revocation list (PEM) that names certificates by serial number, in hex with colons.
    pub fn revocation_list_by_serial(&self, serials: &[impl AsRef<str>]) -> String {
        let serials = serials.iter().map(|serial| serial_number(serial.as_ref()));
        self.list(
            serials.collect(),
            None,
            SystemTime::now() + Duration::from_secs(3600),
        )
    }

    /// Returns a list for any certificates, and with the time when the next is due.
    pub fn revocation_list_until(
        &self,
        revoked: &[&CertificateDer<'_>],
        next_update: SystemTime,
    ) -> String {
        let serials = revoked.iter().map(|certificate| {
            let (_, parsed) = X509Certificate::from_der(certificate).unwrap();
            SerialNumber::from(parsed.raw_serial().to_vec())
        });
        self.list(serials.collect(), None, next_update)
    }

    /// Returns a list without certificates that says which part of all it is.
    pub fn part_of_a_revocation_list(
        &self,
        part: CrlIssuingDistributionPoint,
        next_update: SystemTime,
    ) -> String {
        self.list(Vec::new(), Some(part), next_update)
    }

    fn list(
        &self,
        revoked: Vec<SerialNumber>,
        part: Option<CrlIssuingDistributionPoint>,
        next_update: SystemTime,
    ) -> String {
        let now = SystemTime::now() - Duration::from_secs(3600);
        let entries = revoked.into_iter().map(|serial_number| RevokedCertParams {
            serial_number,
            revocation_time: now.into(),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: now.into(),
            next_update: next_update.into(),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: part,
            revoked_certs: entries.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    /// A good identity for this id.
    pub fn identity(&self, id: &str) -> Identity {
        self.issue(id).identity()
    }
}

fn serial_number(hex: &str) -> SerialNumber {
    let bytes = hex.split(':').map(|b| u8::from_str_radix(b, 16).unwrap());
    SerialNumber::from(bytes.collect::<Vec<u8>>())
}

impl Issued {
    /// Takes a certificate that another authority issued; the key is PKCS #8.
    pub fn from_der(certificate: CertificateDer<'static>, key: &[u8]) -> Self {
        let key = KeyPair::try_from(key).unwrap();
        Self {
            chain_pem: crate::identity::pem(&certificate),
            chain: vec![certificate],
            key_pem: key.serialize_pem(),
            issuer: Issuer::new(CertificateParams::default(), key),
        }
    }

    /// The identity; the certificate must be a good one.
    pub fn identity(&self) -> Identity {
        Identity::from_pem(self.chain_pem.as_bytes(), self.key_pem.as_bytes()).unwrap()
    }

    /// The key.
    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.issuer.key().serialize_der()).into()
    }

    /// Misuses this workload's key to sign another certificate.
    pub fn issue_leaf(&self, leaf: &Leaf) -> Self {
        issue(&self.issuer, leaf, self.chain.clone())
    }

    /// Adds the certificate of its issuer, an intermediate authority, to the chain.
    #[must_use]
    pub fn with_issuer(mut self, ca: &TestCa) -> Self {
        self.chain.push(ca.der.clone());
        self.chain_pem.push_str(&ca.pem);
        self
    }

    /// Writes `cert.pem`, `key.pem` and `ca.pem` into a directory.
    pub fn write(&self, ca: &TestCa, dir: &Path) {
        std::fs::write(dir.join("cert.pem"), &self.chain_pem).unwrap();
        std::fs::write(dir.join("key.pem"), &self.key_pem).unwrap();
        std::fs::write(dir.join("ca.pem"), &ca.pem).unwrap();
    }
}

/// The authority of a host, which signs anything all the same.
pub struct HostCa {
    ca: TestCa,
    not_before: SystemTime,
    not_after: SystemTime,
}

impl HostCa {
    /// Its certificate.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.ca.der
    }

    /// A good certificate for this id, as long as the authority's own.
    pub fn leaf(&self, id: &str) -> Leaf {
        Leaf {
            not_before: self.not_before,
            not_after: self.not_after,
            ..Leaf::new(id)
        }
    }

    /// A certificate as described, with the authority's own.
    pub fn issue_leaf(&self, leaf: &Leaf) -> Issued {
        self.ca.issue_leaf(leaf).with_issuer(&self.ca)
    }

    /// Misuses its key to sign the authority of another host.
    pub fn host(&self, constraint: &HostConstraint) -> Self {
        host(&self.ca.issuer, constraint, |_| {})
    }

    /// Takes an authority that a controller has signed: its key and its certificate, as they are kept.
    pub fn from_pem(text: &str) -> Self {
        let parts = text.find("-----BEGIN CERTIFICATE").unwrap();
        let (key, pem) = text.split_at(parts);
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let (_, parsed) = X509Certificate::from_der(&der).unwrap();
        let validity = parsed.validity();
        let times = (validity.not_before, validity.not_after);
        let key = KeyPair::from_pem(key).unwrap();
        Self {
            not_before: crate::validity::system_time(times.0),
            not_after: crate::validity::system_time(times.1),
            ca: TestCa {
                issuer: Issuer::from_ca_cert_der(&der, key).unwrap(),
                der,
                pem: pem.to_owned(),
            },
        }
    }
}

fn host(
    issuer: &Issuer<'static, KeyPair>,
    constraint: &HostConstraint,
    change: impl FnOnce(&mut CertificateParams),
) -> HostCa {
    let mut params = ca_params("host");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.custom_extensions = vec![
        CustomExtension::from_oid_content(&[2, 5, 29, 30], constraint.name_constraints_der()),
        CustomExtension::from_oid_content(&OID, constraint.to_der().unwrap()),
    ];
    for extension in &mut params.custom_extensions {
        extension.set_criticality(true);
    }
    // Whole seconds, as a certificate has.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.unwrap().as_secs());
    params.not_before = (now - Duration::from_secs(3600)).into();
    params.not_after = (now + Duration::from_secs(3600)).into();
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    HostCa {
        not_before: params.not_before.into(),
        not_after: params.not_after.into(),
        ca: TestCa {
            der: certificate.der().clone(),
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        },
    }
}

fn ca_params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = name(common_name);
    params
}

fn name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn issue(
    issuer: &Issuer<'static, KeyPair>,
    leaf: &Leaf,
    rest: Vec<CertificateDer<'static>>,
) -> Issued {
    let mut params = CertificateParams::default();
    params.distinguished_name = name("workload");
    params.not_before = leaf.not_before.into();
    params.not_after = leaf.not_after.into();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.is_ca = IsCa::ExplicitNoCa;
    if leaf.is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages.push(KeyUsagePurpose::KeyCertSign);
    }
    if leaf.client_auth {
        params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ClientAuth);
    }
    if leaf.server_auth {
        params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ServerAuth);
    }
    for uri in &leaf.uris {
        let name = SanType::URI(uri.as_str().try_into().unwrap());
        params.subject_alt_names.push(name);
    }
    for dns in &leaf.dns {
        let name = SanType::DnsName(dns.as_str().try_into().unwrap());
        params.subject_alt_names.push(name);
    }
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    let mut chain = vec![certificate.der().clone()];
    let mut chain_pem = certificate.pem();
    for der in rest {
        chain_pem.push_str(&crate::identity::pem(&der));
        chain.push(der);
    }
    Issued {
        chain,
        chain_pem,
        key_pem: key.serialize_pem(),
        issuer: Issuer::new(params, key),
    }
}

impl TestCa {
    /// Signs a request as the controller does: with its key and this id, and nothing else of it.
    pub fn sign(&self, csr_der: &[u8], id: &tulle_model::identity::SpiffeId) -> Vec<u8> {
        let csr = rustls::pki_types::CertificateSigningRequestDer::from(csr_der);
        let mut request = rcgen::CertificateSigningRequestParams::from_der(&csr).unwrap();
        let uri = id.as_str().to_owned().try_into().unwrap();
        request.params = CertificateParams::default();
        request.params.subject_alt_names = vec![rcgen::SanType::URI(uri)];
        request.params.extended_key_usages = vec![
            rcgen::ExtendedKeyUsagePurpose::ClientAuth,
            rcgen::ExtendedKeyUsagePurpose::ServerAuth,
        ];
        request.signed_by(&self.issuer).unwrap().der().to_vec()
    }
}
