//! Other issuers of workload certificates, in place of the mesh's own root.
//!
//! An [`Issuer`] is not trusted blindly: its certificates are checked before a workload gets them. So a role
//! that is set up wrongly is found here, with a reason, and not by every peer.

use super::roots::ResponseFuture;
use super::{Trusted, VerifiedCsr};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tulle_model::identity::SpiffeId;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

/// How long an issuer may take for one certificate: the client waits for ten seconds.
pub const PATIENCE: Duration = Duration::from_secs(8);
/// Time between looks at an issuer's roots.
const LOOK: Duration = Duration::from_secs(30);
/// First and longest time between looks while the roots are not known: without them nobody is let in.
const LOOK_EARLY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// How long a root is still trusted after the issuer has ceased to name it. Everybody who is connected renews
/// certificates of such a root at once.
const RETIRE: Duration = Duration::from_secs(60);
/// Clocks differ; a certificate may last this much longer than asked.
const SLACK: i64 = 60;
/// How a trouble with an issuer's roots begins.
const OF_ROOTS: &str = "its roots: ";
/// Certificates in a chain, and roots.
const MAX_CERTIFICATES: usize = 8;

/// Signs certificates of workloads.
pub trait Issuer: Send + Sync {
    /// The issuer's name, as operators read it.
    fn name(&self) -> String;
    /// Signs a request for an identity that was proved.
    fn sign(
        &self,
        asked: CertificateRequest,
    ) -> Pin<Box<dyn Future<Output = Result<Signed, IssueError>> + Send>>;
    /// The roots of its certificates, DER, as they are now.
    fn roots(&self) -> ResponseFuture<Vec<Vec<u8>>>;
}

/// A request to an issuer.
#[derive(Debug, Clone)]
pub struct CertificateRequest {
    /// PKCS#10, DER. It names the identity.
    pub csr_der: Vec<u8>,
    /// The identity that the certificate is for.
    pub identity: SpiffeId,
    /// How long the certificate is to be valid.
    pub lifetime: Duration,
}

/// An issuer's answer: certificates in DER, leaf first, without the root.
#[derive(Debug, Clone)]
pub struct Signed {
    /// The chain.
    pub chain_der: Vec<Vec<u8>>,
}

/// Why an issuer gives no certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IssueError {
    /// The issuer does not answer now; asking again helps.
    Unavailable(String),
    /// The issuer refuses, or its answer cannot be used. Somebody has to change something.
    Refused(String),
    /// The issuer was not asked: the request wants more than the identity that its sender has proved.
    NotAsked(String),
}

impl fmt::Display for IssueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => write!(f, "it cannot be asked: {why}"),
            Self::Refused(why) => write!(f, "it refuses: {why}"),
            Self::NotAsked(why) => write!(f, "it is not asked: {why}"),
        }
    }
}

impl std::error::Error for IssueError {}

/// A certificate that was checked.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) chain_der: Vec<Vec<u8>>,
    /// Unix seconds.
    pub(crate) not_after: i64,
}

/// An issuer in use.
pub(crate) struct External {
    issuer: Arc<dyn Issuer>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Trusted roots, each with the time at which the issuer ceased to name it.
    roots: Vec<(Trusted, Option<Instant>)>,
    trouble: String,
    failures: u64,
}

impl External {
    /// Starts with the roots that the issuer had when it was last asked. The issuer may not answer for a while;
    /// until then these roots let sidecars with its certificates in.
    pub(crate) fn new(issuer: Arc<dyn Issuer>, known: Vec<Vec<u8>>) -> Self {
        let mut state = State::default();
        if !known.is_empty() {
            match read(known) {
                Ok(roots) => state.roots = roots.into_iter().map(|root| (root, None)).collect(),
                Err(why) => tracing::warn!(
                    issuer = issuer.name(),
                    "the stored roots of this issuer are ignored: {why}"
                ),
            }
        }
        Self {
            issuer,
            state: Mutex::new(state),
        }
    }

    /// The trusted roots.
    pub(crate) fn roots(&self) -> Vec<Trusted> {
        self.state().roots.iter().map(|(r, _)| r.clone()).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn name(&self) -> String {
        self.issuer.name()
    }

    /// Why the issuer refused its last request; empty if it did not.
    pub(crate) fn trouble(&self) -> String {
        self.state().trouble.clone()
    }

    /// How often it gave nothing.
    pub(crate) fn failures(&self) -> u64 {
        self.state().failures
    }

    fn note<T, E: fmt::Display>(&self, result: &Result<T, E>) {
        let trouble = result.as_ref().err().map(ToString::to_string);
        let mut state = self.state();
        state.failures += u64::from(trouble.is_some());
        let trouble = trouble.unwrap_or_default();
        if trouble == state.trouble {
            return;
        }
        let issuer = self.issuer.name();
        match trouble.is_empty() {
            true => tracing::info!(issuer, "the issuer signs certificates again"),
            false => tracing::warn!(
                issuer,
                "no certificate: {trouble}. Sidecars ask again; their present certificates are valid until they expire"
            ),
        }
        state.trouble = trouble;
    }

    /// Checks the request, has the issuer sign it, and checks the certificate.
    pub(crate) async fn issue(
        &self,
        request: &VerifiedCsr,
        asked: CertificateRequest,
        trusted: &[Trusted],
    ) -> Result<Checked, IssueError> {
        // The sender is at fault here, not the issuer: this is not counted as its failure.
        asks_for_no_more(&asked).map_err(IssueError::NotAsked)?;
        let signed = tokio::time::timeout(PATIENCE, self.issuer.sign(asked.clone())).await;
        let signed = signed.unwrap_or_else(|_| {
            Err(IssueError::Unavailable(format!(
                "no answer within {} s",
                PATIENCE.as_secs()
            )))
        });
        let checked = signed.and_then(|signed| {
            check(&signed, request, &asked, trusted, SystemTime::now())
                .map_err(|why| IssueError::Refused(format!("its certificate is not usable: {why}")))
                .map(|not_after| Checked {
                    chain_der: signed.chain_der,
                    not_after,
                })
        });
        self.note(&checked);
        checked
    }

    /// Learns its roots, and tells of each change, for as long as the controller runs.
    pub(crate) async fn follow(&self, mut changed: impl FnMut(Vec<Trusted>)) {
        let mut early = LOOK_EARLY.0;
        loop {
            let roots = tokio::time::timeout(PATIENCE, self.issuer.roots()).await;
            let roots = roots.unwrap_or_else(|_| Err("no answer in time".to_owned()));
            let roots = roots.and_then(read);
            // A certificate that was given says more than that the roots could be read.
            let unknown = {
                let state = self.state();
                state.roots.is_empty() || state.trouble.starts_with(OF_ROOTS)
            };
            if roots.is_err() || unknown {
                let told = roots.as_ref().map_err(|why| format!("{OF_ROOTS}{why}"));
                self.note(&told);
            }
            let next = roots.ok().and_then(|roots| {
                let mut state = self.state();
                let next = merged(&state.roots, roots, Instant::now());
                let before: Vec<Trusted> = state.roots.iter().map(|(r, _)| r.clone()).collect();
                let now: Vec<Trusted> = next.iter().map(|(r, _)| r.clone()).collect();
                state.roots = next;
                (before != now).then_some(now)
            });
            if let Some(roots) = next {
                changed(roots);
            }
            let wait = match self.state().roots.is_empty() {
                true => early,
                false => LOOK,
            };
            early = (early * 2).min(LOOK_EARLY.1);
            tokio::time::sleep(wait).await;
        }
    }
}

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

/// A request for an identity with a key that is thrown away: to learn what an issuer's certificates
/// look like.
///
/// # Errors
/// There are no random numbers.
pub fn throwaway_request(identity: &SpiffeId) -> Result<Vec<u8>, String> {
    let made = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).and_then(|key| {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let name = identity.as_str().try_into()?;
        params.subject_alt_names.push(SanType::URI(name));
        params.serialize_request(&key)
    });
    made.map(|csr| csr.der().to_vec())
        .map_err(|e| e.to_string())
}

fn read(roots: Vec<Vec<u8>>) -> Result<Vec<Trusted>, String> {
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
fn merged(
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

/// Checks that a request asks for its sender's identity alone. An issuer signs what it is asked. The check
/// of its answer would find other names or uses, but by then such a certificate would exist.
fn asks_for_no_more(asked: &CertificateRequest) -> Result<(), String> {
    let (_, csr) = X509CertificationRequest::from_der(&asked.csr_der)
        .map_err(|e| format!("the request cannot be read: {e}"))?;
    let info = &csr.certification_request_info;
    if info.subject.iter().next().is_some() {
        return Err(format!("the request has a subject: {}", info.subject));
    }
    let mut named = 0;
    for attribute in info.iter_attributes() {
        let ParsedCriAttribute::ExtensionRequest(wanted) = attribute.parsed_attribute() else {
            return Err(format!("the request has the attribute {}", attribute.oid));
        };
        for extension in &wanted.extensions {
            let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension()
            else {
                return Err(format!("the request wants the extension {}", extension.oid));
            };
            is_own(&names.general_names, &asked.identity)?;
            named += 1;
        }
    }
    if named != 1 {
        return Err(format!("the request must name {} once", asked.identity));
    }
    // An issuer may read what our reader passes over, such as a second value of an attribute.
    let written =
        [false, true].map(|critical| info_of(&asked.identity, info.subject_pki.raw, critical));
    match written.iter().any(|written| written == info.raw) {
        true => Ok(()),
        false => Err("the request has bytes that no reader needs".to_owned()),
    }
}

/// Writes what a request for this identity alone says, before it is signed (RFC 2986, section 4.1). The
/// extension with the name may be marked critical.
fn info_of(identity: &SpiffeId, key: &[u8], critical: bool) -> Vec<u8> {
    const VERSION_AND_SUBJECT: &[u8] = b"\x02\x01\0\x30\0";
    const EXTENSION_REQUEST: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x09\x0e";
    const ALTERNATIVE_NAME: &[u8] = b"\x06\x03\x55\x1d\x11";
    const CRITICAL: &[u8] = b"\x01\x01\xff";
    const SEQUENCE: u8 = 0x30;
    const SET: u8 = 0x31;
    const OCTETS: u8 = 0x04;
    const URI: u8 = 0x86;
    const ATTRIBUTES: u8 = 0xa0;
    let name = der(SEQUENCE, &[&der(URI, &[identity.as_str().as_bytes()])]);
    let marked = if critical { CRITICAL } else { b"" };
    let extension = der(
        SEQUENCE,
        &[ALTERNATIVE_NAME, marked, &der(OCTETS, &[&name])],
    );
    let values = der(SET, &[&der(SEQUENCE, &[&extension])]);
    let attributes = der(ATTRIBUTES, &[&der(SEQUENCE, &[EXTENSION_REQUEST, &values])]);
    der(SEQUENCE, &[VERSION_AND_SUBJECT, key, &attributes])
}

/// A value in DER.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len().to_be_bytes();
    let zeros = length.iter().take_while(|byte| **byte == 0).count();
    let digits = length.get(zeros..).unwrap_or_default();
    let mut out = vec![tag];
    if content.len() >= 0x80 {
        out.push(0x80 | digits.len() as u8);
    }
    match content.is_empty() {
        true => out.push(0),
        false => out.extend_from_slice(digits),
    }
    [out, content].concat()
}

/// Checks that the only name is the identity itself.
fn is_own(names: &[GeneralName<'_>], identity: &SpiffeId) -> Result<(), String> {
    if *names == [GeneralName::URI(identity.as_str())] {
        return Ok(());
    }
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    Err(format!("it is for [{names}], not for {identity} alone"))
}

/// Whether a chain is what was asked for; when it ends.
fn check(
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

    /// An issuer that signs every request.
    struct Willing(Mutex<usize>);

    impl Issuer for Willing {
        fn name(&self) -> String {
            "willing".into()
        }

        fn sign(
            &self,
            _: CertificateRequest,
        ) -> Pin<Box<dyn Future<Output = Result<Signed, IssueError>> + Send>> {
            *self.0.lock().unwrap() += 1;
            Box::pin(async { Err(IssueError::Refused("not here".into())) })
        }

        fn roots(&self) -> ResponseFuture<Vec<Vec<u8>>> {
            Box::pin(async { Ok(Vec::new()) })
        }
    }

    #[tokio::test]
    async fn an_issuer_is_asked_for_the_senders_own_name_alone() {
        let own = "spiffe://t/ns/shop/sa/web";
        let uri = |id: &str| SanType::URI(id.try_into().unwrap());
        let dns = || SanType::DnsName("web.shop.svc".try_into().unwrap());
        let ip = || SanType::IpAddress([10, 96, 0, 1].into());
        let mail = || SanType::Rfc822Name("root@example.com".try_into().unwrap());
        let with = |names: Vec<SanType>, change: &dyn Fn(&mut CertificateParams)| {
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            params.subject_alt_names = names;
            change(&mut params);
            params.serialize_request(&key).unwrap().der().to_vec()
        };
        let subject = |params: &mut CertificateParams| {
            let mut name = DistinguishedName::new();
            name.push(rcgen::DnType::CommonName, "kubernetes.default.svc");
            params.distinguished_name = name;
        };
        let usage = |params: &mut CertificateParams| {
            params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::CodeSigning];
        };
        let policy = |params: &mut CertificateParams| {
            let oid = &[2, 5, 29, 32];
            let custom = rcgen::CustomExtension::from_oid_content(oid, vec![0x30, 0]);
            params.custom_extensions = vec![custom];
        };
        let plain = |_: &mut CertificateParams| {};
        // A value of the attribute as it should be, and another one behind it; and one that follows the values.
        let hidden = |inside: bool| {
            let name = |tag, name: &str| {
                let names = der(0x30, &[&der(tag, &[name.as_bytes()])]);
                let octets = der(0x04, &[&names]);
                der(0x30, &[&der(0x30, &[b"\x06\x03\x55\x1d\x11", &octets])])
            };
            let (own, other) = (name(0x86, own), name(0x82, "kubernetes.default.svc"));
            let values = match inside {
                true => der(0x31, &[&own, &other]),
                false => [der(0x31, &[&own]), der(0x31, &[&other])].concat(),
            };
            let oid = &[1, 2, 840, 113_549, 1, 9, 14];
            let attribute = rcgen::Attribute { oid, values };
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            let request = params.serialize_request_with_attributes(&key, vec![attribute]);
            request.unwrap().der().to_vec()
        };
        let cases = [
            (hidden(true), false),
            (hidden(false), false),
            (with(vec![uri(own)], &plain), true),
            (with(vec![], &plain), false),
            (
                with(vec![uri("spiffe://t/ns/shop/sa/other")], &plain),
                false,
            ),
            (with(vec![uri(own), uri(own)], &plain), false),
            (with(vec![uri(own), dns()], &plain), false),
            (with(vec![uri(own), ip()], &plain), false),
            (with(vec![mail(), uri(own)], &plain), false),
            (with(vec![uri(own)], &subject), false),
            (with(vec![uri(own)], &usage), false),
            (with(vec![uri(own)], &policy), false),
        ];
        for (i, (csr_der, is_asked)) in cases.into_iter().enumerate() {
            let issuer = Arc::new(Willing(Mutex::default()));
            let asked = CertificateRequest {
                csr_der,
                identity: SpiffeId::parse(own).unwrap(),
                lifetime: Duration::from_secs(3600),
            };
            let request = VerifiedCsr::parse(&asked.csr_der).unwrap();
            let external = External::new(issuer.clone(), Vec::new());
            let refused = external.issue(&request, asked, &[]).await.unwrap_err();
            assert_eq!(*issuer.0.lock().unwrap(), usize::from(is_asked), "{i}");
            let not_asked = matches!(refused, IssueError::NotAsked(_));
            assert_eq!(not_asked, !is_asked, "{i}: {refused}");
            // A wrong request does not count as a failure of the issuer.
            assert_eq!(external.failures(), u64::from(is_asked), "{i}");
        }
        // The requests of sidecars pass, and so do those with which the controller learns the roots.
        let identity = SpiffeId::parse(own).unwrap();
        let requests = [
            throwaway_request(&identity).unwrap(),
            tulle_tls::enrol::SigningRequest::new(&identity)
                .unwrap()
                .csr_der,
        ];
        for csr_der in requests {
            let asked = CertificateRequest {
                csr_der,
                identity: identity.clone(),
                lifetime: Duration::from_secs(60),
            };
            assert_eq!(asks_for_no_more(&asked), Ok(()));
        }
    }

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
