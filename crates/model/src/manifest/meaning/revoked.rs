//! Reads revocations from what users write.

use crate::hex;
use crate::identity::{SpiffeId, TrustDomain};
use crate::manifest::RevocationSpec;
use crate::resource::{Revoked, Serial};
use std::collections::BTreeSet;
use x509_parser::pem::Pem;
use x509_parser::prelude::{CertificateRevocationList, FromDer};

/// Most certificates one list may name.
const MAX_LISTED: usize = 10_000;
/// The label that begins a revocation list in PEM.
const LABEL: &str = "X509 CRL";

impl RevocationSpec {
    /// Reads an operator's revocation. An identity may be its path in the trust domain alone, such as
    /// `svc/reviews`. Returns the revocation with the whole identity, and what it revokes.
    ///
    /// # Errors
    /// The same as of [`Self::read`], or it is the controller's identity.
    pub fn in_trust_domain(
        mut self,
        trust_domain: &TrustDomain,
    ) -> Result<(Self, Revoked), (&'static str, String)> {
        if !self.identity.is_empty() && !self.identity.contains("://") {
            if !self.identity.contains('/') {
                let problem = format!(
                    "{:?} is no identity: use svc/NAME, or the whole SPIFFE id",
                    self.identity
                );
                return Err(("identity", problem));
            }
            self.identity = format!("spiffe://{trust_domain}/{}", self.identity);
        }
        if self.identity == format!("spiffe://{trust_domain}/controller") {
            let problem = "the controller's certificates are not revoked: replace the root with \
                           `tulle ca rotate`";
            return Err(("identity", problem.to_owned()));
        }
        let revoked = self.read()?;
        Ok((self, revoked))
    }

    /// Returns the identity or certificates that it revokes.
    ///
    /// # Errors
    /// Not exactly one thing is named, or it cannot be read: the field and what is wrong with it.
    pub fn read(&self) -> Result<Revoked, (&'static str, String)> {
        let given = [
            ("identity", &self.identity),
            ("serial", &self.serial),
            ("crl", &self.crl),
        ];
        let mut named = given.iter().filter(|(_, text)| !text.is_empty());
        let (Some((field, text)), None) = (named.next(), named.next()) else {
            let problem = "expected exactly one of `identity`, `serial` and `crl`";
            return Err(("identity", problem.to_owned()));
        };
        let mut revoked = Revoked::default();
        let read = match *field {
            "identity" => SpiffeId::parse(text)
                .map(|id| revoked.identities = [id].into())
                .map_err(|e| e.to_string()),
            "serial" => Serial::parse(text)
                .map(|serial| revoked.serials = [serial].into())
                .map_err(|e| e.to_string()),
            _ => list(text).map(|(issuer, serials)| revoked.issued = [(issuer, serials)].into()),
        };
        read.map(|()| revoked).map_err(|problem| (*field, problem))
    }
}

/// Reads a certificate revocation list (RFC 5280, 5) in PEM: the issuer's name and the revoked
/// serials. Its signature and its dates are not checked: its author may revoke anything, and an old
/// list is still right about its entries.
fn list(pem: &str) -> Result<(String, BTreeSet<Serial>), String> {
    let mut blocks = Pem::iter_from_buffer(pem.as_bytes());
    let first = blocks.next();
    let first = first.ok_or_else(|| format!("expected PEM with `-----BEGIN {LABEL}-----`"))?;
    let first = first.map_err(|e| format!("it is no PEM: {e}"))?;
    if first.label != LABEL {
        return Err(format!(
            "expected `-----BEGIN {LABEL}-----`, found {:?}",
            first.label
        ));
    }
    if blocks.next().is_some() {
        return Err("expected one list, found more: name each by itself".to_owned());
    }
    let (rest, list) = CertificateRevocationList::from_der(&first.contents)
        .map_err(|e| format!("it is no certificate revocation list: {e}"))?;
    if !rest.is_empty() {
        return Err("bytes follow the certificate revocation list".to_owned());
    }
    // RFC 5280, 5.2 and 5.3: an extension that is critical and not known may change what the list or
    // an entry means, such as whose certificates it is about.
    let of_list = list.extensions().iter();
    let of_entries = list
        .iter_revoked_certificates()
        .flat_map(|entry| entry.extensions());
    if let Some(extension) = of_list.chain(of_entries).find(|e| e.critical) {
        return Err(format!(
            "it has the critical extension {}, which is not understood",
            extension.oid
        ));
    }
    let mut serials = BTreeSet::new();
    for entry in list.iter_revoked_certificates() {
        serials.insert(Serial::from_bytes(entry.raw_serial()));
        if serials.len() > MAX_LISTED {
            return Err(format!("it lists more than {MAX_LISTED} certificates"));
        }
    }
    Ok((hex(list.issuer().as_raw()), serials))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// OpenSSL's, of the issuer `CN=workloads`.
    const LIST: &str = "\
-----BEGIN X509 CRL-----
MIHRMHkCAQEwCgYIKoZIzj0EAwIwFDESMBAGA1UEAwwJd29ya2xvYWRzFw0yNjEx
MjQwMDQwMDFaFw0yNjEyMjQwMDQwMDFaMCQwIgIDP5oBFw0yNjAxMDEwMDAwMDBa
MAwwCgYDVR0VBAMKAQGgDjAMMAoGA1UdFAQDAgEBMAoGCCqGSM49BAMCA0gAMEUC
IQCO7WDaAcRavlDv9bNtjmxUbgOnQdte5g5bQAdMKmevMAIgd4yPMdfyLoHDkPnE
2UhRtbn3z6kZ3wScX9lBEhbR/rw=
-----END X509 CRL-----
";

    fn of_list(crl: &str) -> Result<Revoked, (&'static str, String)> {
        let spec = RevocationSpec {
            crl: crl.to_owned(),
            ..RevocationSpec::default()
        };
        spec.read()
    }

    #[test]
    fn a_list_revokes_what_it_names_of_its_issuer() {
        let revoked = of_list(LIST).unwrap();
        let (issuer, serials) = revoked.issued.first_key_value().unwrap();
        assert!(issuer.ends_with(&hex(b"workloads")));
        assert_eq!(*serials, [Serial::parse("3f:9a:01").unwrap()].into());
        assert!(revoked.identities.is_empty() && revoked.serials.is_empty());
    }

    #[test]
    fn what_is_no_list_is_refused_with_the_reason() {
        let body = LIST.lines().nth(1).unwrap();
        for (text, says) in [
            ("nothing", "-----BEGIN X509 CRL-----"),
            (&LIST.replace("X509 CRL", "CERTIFICATE"), "CERTIFICATE"),
            (&LIST.replace(body, ""), "no certificate revocation list"),
            (&LIST.repeat(2), "expected one list"),
        ] {
            let (field, problem) = of_list(text).unwrap_err();
            assert_eq!(field, "crl");
            assert!(problem.contains(says), "{problem}");
        }
    }

    #[test]
    fn exactly_one_thing_is_named() {
        let spec = |identity: &str, serial: &str| RevocationSpec {
            identity: identity.to_owned(),
            serial: serial.to_owned(),
            ..RevocationSpec::default()
        };
        let id = "spiffe://t/svc/a";
        assert!(spec(id, "").read().is_ok());
        assert!(spec("", "3f").read().is_ok());
        for (wrong, field) in [
            (spec("", ""), "identity"),
            (spec(id, "3f"), "identity"),
            (spec("svc/a", ""), "identity"),
            (spec("", "zz"), "serial"),
        ] {
            assert_eq!(wrong.read().unwrap_err().0, field);
        }
    }

    proptest! {
        /// A list comes from outside: any bytes are read or refused.
        #[test]
        fn no_bytes_are_too_strange(
            cut in 0usize..400, flip in any::<(usize, u8)>(), noise in any::<Vec<u8>>()
        ) {
            let whole = Pem::iter_from_buffer(LIST.as_bytes()).next().unwrap().unwrap().contents;
            let mut der = whole.clone();
            let at = flip.0 % der.len();
            der[at] ^= flip.1;
            der.truncate(cut);
            for der in [der, noise] {
                let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, der);
                let pem = format!("-----BEGIN {LABEL}-----\n{encoded}\n-----END {LABEL}-----\n");
                let _ = of_list(&pem);
            }
        }
    }
}
