//! The request to an issuer: it asks for its sender's identity, and for nothing else.

use super::CertificateRequest;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use tulle_model::identity::SpiffeId;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

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

/// Checks that a request asks for its sender's identity alone. An issuer signs what it is asked. The check
/// of its answer would find other names or uses, but by then such a certificate would exist.
pub(super) fn asks_for_no_more(asked: &CertificateRequest) -> Result<(), String> {
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
pub(super) fn is_own(names: &[GeneralName<'_>], identity: &SpiffeId) -> Result<(), String> {
    if *names == [GeneralName::URI(identity.as_str())] {
        return Ok(());
    }
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    Err(format!("it is for [{names}], not for {identity} alone"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ca::VerifiedCsr;
    use crate::ca::issuer::{External, IssueError, Issuer, Signed};
    use crate::ca::roots::ResponseFuture;
    use std::pin::Pin;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

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
}
