//! The authority of a joined host: signs certificates for the host's own workloads, and nobody else's.
//!
//! The mesh's root signs it with a critical extension that lists the SPIFFE ids it may certify, since the
//! standard name constraints of X.509 know the host of a URI and not its path. Whoever does not know the
//! extension refuses the chain, because it is critical; webpki does so, too. So the one chain that is
//! accepted here, workload ← host's authority ← root, is verified link by link: the first by webpki with
//! the host's authority as its only anchor, the second by this module.
//!
//! See `docs/design/0014-host-authority.md`.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use std::fmt;
use std::time::{Duration, SystemTime};
use tulle_model::identity::SpiffeId;
use tulle_model::resource::{Revoked, Serial};
use x509_parser::asn1_rs::{Any, Tag};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::error::HandshakeError;
use crate::validity::system_time;

/// The extension, below the arc of UUIDs, which nobody assigns.
pub const OID: [u64; 3] = [2, 25, 6_478_306_519_572_319_847];
const OID_TEXT: &str = "2.25.6478306519572319847";
/// Most identities that one authority lists: all of them are in each handshake.
pub const MAX_IDENTITIES: usize = 64;
/// Longest value of the extension that is read.
const MAX_BYTES: usize = 8 * 1024;
/// `id-ecPublicKey`, `prime256v1` and `ecdsa-with-SHA256`: what roots and hosts have.
const EC_PUBLIC_KEY: &str = "1.2.840.10045.2.1";
const P256: &str = "1.2.840.10045.3.1.7";
const ECDSA_SHA256: &str = "1.2.840.10045.4.3.2";

/// The limits of an authority: the value of the extension.
///
/// ```text
/// HostAuthority ::= SEQUENCE {
///   host        UTF8String,             -- SPIFFE id of the host, spiffe://<trust domain>/node/<name>
///   generation  INTEGER (0..2^64-1),    -- a later one of the same host has a greater number
///   identities  SEQUENCE OF UTF8String  -- spiffe://<trust domain>/svc/<name>, 1 to 64
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostConstraint {
    /// The host.
    pub host: SpiffeId,
    /// Its number among the host's authorities.
    pub generation: u64,
    /// The ids it may certify, byte for byte.
    pub identities: Vec<SpiffeId>,
}

/// Why a value of the extension is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidConstraint(&'static str);

impl fmt::Display for InvalidConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidConstraint {}

impl HostConstraint {
    /// Writes the value of the extension (DER).
    ///
    /// # Errors
    /// It breaks a rule that [`Self::parse`] checks.
    pub fn to_der(&self) -> Result<Vec<u8>, InvalidConstraint> {
        let text = |id: &SpiffeId| tlv(0x0c, id.as_str().as_bytes());
        let list: Vec<u8> = self.identities.iter().flat_map(text).collect();
        // A byte in front: DER's integers have a sign.
        let number = [&[0], &self.generation.to_be_bytes()[..]].concat();
        let zeros = number.iter().take_while(|b| **b == 0).count();
        // One zero stays before a byte that would be read as negative, and for zero itself.
        let signed = number.get(zeros).is_none_or(|b| *b >= 0x80);
        let number = number
            .get(zeros - usize::from(signed)..)
            .unwrap_or_default();
        let parts = [text(&self.host), tlv(0x02, number), tlv(0x30, &list)];
        let der = tlv(0x30, &parts.concat());
        Self::parse(&der)?;
        Ok(der)
    }

    /// Writes the standard constraint that goes with it (RFC 5280, 4.2.1.10): URIs of the host's trust
    /// domain, which is all that it can say.
    #[must_use]
    pub fn name_constraints_der(&self) -> Vec<u8> {
        let uri = tlv(0x86, self.host.trust_domain().as_bytes());
        tlv(0x30, &tlv(0xa0, &tlv(0x30, &uri)))
    }

    /// Reads the value of the extension (DER).
    ///
    /// # Errors
    /// It is not of this form, too long, or lists what no host may certify.
    pub fn parse(der: &[u8]) -> Result<Self, InvalidConstraint> {
        let form = InvalidConstraint("its list of identities cannot be read");
        if der.len() > MAX_BYTES {
            return Err(InvalidConstraint("its list of identities is too long"));
        }
        let Some((host, generation, list)) = read(der) else {
            return Err(form);
        };
        let host = SpiffeId::parse(host).map_err(|_| form)?;
        if host.node().is_none() {
            return Err(InvalidConstraint("it does not belong to a host"));
        }
        if list.is_empty() || list.len() > MAX_IDENTITIES {
            return Err(InvalidConstraint("it lists no identity, or too many"));
        }
        let mut identities = Vec::with_capacity(list.len());
        for text in list {
            let id = SpiffeId::parse(text)
                .ok()
                .filter(|id| is_workload(id, &host));
            identities.push(id.ok_or(InvalidConstraint(
                "it lists an identity that is no workload's of its trust domain",
            ))?);
        }
        Ok(Self {
            host,
            generation,
            identities,
        })
    }
}

/// Writes one value of DER with its tag and length.
fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let bytes = length.to_be_bytes();
    let zeros = bytes.iter().take_while(|b| **b == 0).count();
    let significant = bytes.get(zeros..).unwrap_or_default();
    let mut der = vec![tag];
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => der.push(short),
        _ => {
            der.push(0x80 | u8::try_from(significant.len()).unwrap_or(0));
            der.extend_from_slice(significant);
        }
    }
    der.extend_from_slice(content);
    der
}

/// Reads the three parts; none where the form is another.
fn read(der: &[u8]) -> Option<(&str, u64, Vec<&str>)> {
    let (rest, all) = Any::from_der(der).ok()?;
    let content = rest.is_empty().then(|| sequence(all))??;
    let (content, host) = utf8(content)?;
    let (content, generation) = u64::from_der(content).ok()?;
    let (rest, list) = Any::from_der(content).ok()?;
    let mut content = rest.is_empty().then(|| sequence(list))??;
    let mut identities = Vec::new();
    while !content.is_empty() {
        let (rest, identity) = utf8(content)?;
        identities.push(identity);
        content = rest;
    }
    Some((host, generation, identities))
}

fn sequence(any: Any<'_>) -> Option<&[u8]> {
    let is = any.header.tag() == Tag::Sequence;
    is.then_some(any.data)
}

fn utf8(der: &[u8]) -> Option<(&[u8], &str)> {
    let (rest, any) = Any::from_der(der).ok()?;
    let is = any.header.tag() == Tag::Utf8String;
    let text = std::str::from_utf8(any.data).ok()?;
    is.then_some((rest, text))
}

/// Whether a host may certify an identity at all: `svc/<name>` of its own trust domain.
fn is_workload(id: &SpiffeId, host: &SpiffeId) -> bool {
    let prefix = format!("spiffe://{}/svc/", host.trust_domain());
    let name = id.as_str().strip_prefix(&prefix);
    name.is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

/// The authority that signed a certificate, for comparison with what is revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSigner {
    /// The host.
    pub host: SpiffeId,
    /// Its number among the host's authorities.
    pub generation: u64,
    serial: Serial,
}

impl HostSigner {
    /// Whether everything that it signed is refused.
    #[must_use]
    pub fn is_revoked(&self, revoked: &Revoked) -> bool {
        revoked.has_host(&self.host, self.generation, &self.serial)
    }
}

/// A host's authority that a root has signed.
#[derive(Debug)]
pub struct HostIssuer {
    /// Its limits.
    pub constraint: HostConstraint,
    /// Start of validity.
    pub not_before: SystemTime,
    /// End of validity.
    pub not_after: SystemTime,
    /// Its name and key.
    anchor: TrustAnchor<'static>,
}

/// Whether a host's authority is among the certificates beside the first of a chain.
#[must_use]
pub fn is_in(others: &[CertificateDer<'_>]) -> bool {
    others.iter().any(|der| {
        X509Certificate::from_der(der)
            .is_ok_and(|(_, c)| c.extensions().iter().any(|e| is_ours(&e.oid)))
    })
}

fn is_ours(oid: &x509_parser::asn1_rs::Oid<'_>) -> bool {
    oid.to_id_string() == OID_TEXT
}

/// Reads which host's authority signed the first of a chain that was verified; none: a root, or another
/// intermediate authority.
///
/// # Errors
/// There is one that cannot be read.
pub fn signer_of(others: &[CertificateDer<'_>]) -> Result<Option<HostSigner>, HandshakeError> {
    if !is_in(others) {
        return Ok(None);
    }
    let [authority] = others else {
        return Err(refuse(OTHERS));
    };
    let (_, certificate) = X509Certificate::from_der(authority).map_err(|_| refuse(UNREADABLE))?;
    let constraint = constraint_of(&certificate)?;
    Ok(Some(HostSigner {
        host: constraint.host,
        generation: constraint.generation,
        serial: Serial::from_bytes(certificate.raw_serial()),
    }))
}

const UNREADABLE: &str = "the authority's certificate cannot be read";
const OTHERS: &str = "its chain has other certificates beside the authority's";

pub(crate) fn refuse(why: impl Into<String>) -> HandshakeError {
    HandshakeError::HostAuthority { why: why.into() }
}

fn constraint_of(certificate: &X509Certificate<'_>) -> Result<HostConstraint, HandshakeError> {
    let mut ours = certificate.extensions().iter().filter(|e| is_ours(&e.oid));
    let (Some(extension), None) = (ours.next(), ours.next()) else {
        return Err(refuse("the authority's certificate has two lists"));
    };
    HostConstraint::parse(extension.value).map_err(|e| refuse(format!("the authority: {e}")))
}

/// Verifies the only other certificate of a chain: a host's authority that one of the roots has signed and
/// that is valid now.
///
/// # Errors
/// It is not, or it may do more than a host's authority does.
pub fn verify(
    others: &[CertificateDer<'_>],
    roots: &RootCertStore,
    now: UnixTime,
) -> Result<HostIssuer, HandshakeError> {
    let [authority] = others else {
        return Err(refuse(OTHERS));
    };
    let (rest, certificate) =
        X509Certificate::from_der(authority).map_err(|_| refuse(UNREADABLE))?;
    if !rest.is_empty() || certificate.version() != X509Version::V3 {
        return Err(refuse(UNREADABLE));
    }
    let constraint = constraint_of(&certificate)?;
    check_extensions(&certificate, &constraint)?;
    check_signature(&certificate, roots)?;
    let not_before = system_time(certificate.validity().not_before);
    let not_after = system_time(certificate.validity().not_after);
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
    if now < not_before {
        let not_before = Some(not_before);
        return Err(HandshakeError::NotYetValid { not_before, now });
    }
    if now > not_after {
        return Err(refuse(format!(
            "the authority of {} ended at {}, and no controller has renewed it",
            constraint.host,
            crate::error::time_text(not_after)
        )));
    }
    let content = |der: &[u8]| -> Result<Vec<u8>, HandshakeError> {
        let (_, any) = Any::from_der(der).map_err(|_| refuse(UNREADABLE))?;
        Ok(any.data.to_vec())
    };
    let anchor = TrustAnchor {
        subject: content(certificate.subject().as_raw())?.into(),
        subject_public_key_info: content(certificate.public_key().raw)?.into(),
        // The list of identities says more, and webpki knows no constraints of URIs.
        name_constraints: None,
    };
    Ok(HostIssuer {
        constraint,
        not_before,
        not_after,
        anchor,
    })
}

/// Checks that the extensions are those of a host's authority, each once, and no other critical one.
fn check_extensions(
    certificate: &X509Certificate<'_>,
    constraint: &HostConstraint,
) -> Result<(), HandshakeError> {
    // A second one of a kind is refused here.
    let extensions = certificate
        .extensions_map()
        .map_err(|_| refuse("the authority's certificate has an extension twice"))?;
    let [mut is_ca, mut signs, mut domain, mut list] = [false; 4];
    for (oid, extension) in extensions {
        match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(c) => {
                is_ca = extension.critical && c.ca && c.path_len_constraint == Some(0);
            }
            // keyCertSign alone.
            ParsedExtension::KeyUsage(usage) => signs = extension.critical && usage.flags == 1 << 5,
            ParsedExtension::NameConstraints(names) => {
                let permitted = names.permitted_subtrees.as_deref().unwrap_or_default();
                let one = match permitted {
                    [tree] => match tree.base {
                        GeneralName::URI(host) => host == constraint.host.trust_domain(),
                        _ => false,
                    },
                    _ => false,
                };
                domain = extension.critical && one && names.excluded_subtrees.is_none();
            }
            ParsedExtension::AuthorityKeyIdentifier(_)
            | ParsedExtension::SubjectKeyIdentifier(_) => {}
            _ if is_ours(&oid) => list = extension.critical,
            _ if extension.critical => {
                return Err(refuse(format!(
                    "the authority's certificate has the critical extension {}",
                    oid.to_id_string()
                )));
            }
            _ => {}
        }
    }
    match is_ca && signs && domain && list {
        true => Ok(()),
        false => Err(refuse(
            "the authority's certificate is not limited as a host's has to be",
        )),
    }
}

/// Checks that one of the roots signed it, with ECDSA on P-256, as the mesh's own roots do.
fn check_signature(
    certificate: &X509Certificate<'_>,
    roots: &RootCertStore,
) -> Result<(), HandshakeError> {
    let (_, issuer) =
        Any::from_der(certificate.issuer().as_raw()).map_err(|_| refuse(UNREADABLE))?;
    let algorithm = &certificate.signature_algorithm;
    if algorithm != &certificate.tbs_certificate.signature
        || algorithm.algorithm.to_id_string() != ECDSA_SHA256
    {
        return Err(HandshakeError::UnknownIssuer);
    }
    let mut named = roots.roots.iter().filter(|r| *r.subject == *issuer.data);
    let signed =
        named.any(|root| is_signed(certificate, &tlv(0x30, &root.subject_public_key_info)));
    match signed {
        true => Ok(()),
        false => Err(HandshakeError::UnknownIssuer),
    }
}

fn is_signed(certificate: &X509Certificate<'_>, spki: &[u8]) -> bool {
    let Ok((_, spki)) = SubjectPublicKeyInfo::from_der(spki) else {
        return false;
    };
    let curve = spki.algorithm.parameters.as_ref();
    let curve = curve.and_then(|p| p.as_oid().ok());
    spki.algorithm.algorithm.to_id_string() == EC_PUBLIC_KEY
        && curve.is_some_and(|c| c.to_id_string() == P256)
        && UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &spki.subject_public_key.data)
            .verify(
                certificate.tbs_certificate.as_ref(),
                &certificate.signature_value.data,
            )
            .is_ok()
}

impl HostIssuer {
    /// Returns the roots for a chain of its own: itself alone.
    pub(crate) fn as_root(&self) -> RootCertStore {
        let mut store = RootCertStore::empty();
        store.roots.push(self.anchor.clone());
        store
    }
}
