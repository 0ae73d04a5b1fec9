//! A throw-away authority and SPIFFE certificates (ECDSA P-256), valid for a day.

use super::topology::spiffe;
use crate::failure::{OrFail, Result};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use time::{Duration, OffsetDateTime};

/// Writes `ca.crt` and for each name NAME`.crt` and NAME`.key` into the directory.
pub(super) fn write(directory: &Path, names: &[&str]) -> Result<()> {
    let what = || "cannot make the certificates".to_owned();
    let key = KeyPair::generate().or_fail(what)?;
    let mut root = parameters("bench CA");
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    root.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let issuer = CertifiedIssuer::self_signed(root, key).or_fail(what)?;
    put(directory, "ca.crt", &issuer.pem())?;
    for name in names {
        let key = KeyPair::generate().or_fail(what)?;
        let mut leaf = parameters(name);
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let id = Ia5String::try_from(spiffe(name).as_str()).or_fail(what)?;
        leaf.subject_alt_names = vec![SanType::URI(id)];
        let certificate = leaf.signed_by(&key, &issuer).or_fail(what)?;
        put(directory, &format!("{name}.crt"), &certificate.pem())?;
        put(directory, &format!("{name}.key"), &key.serialize_pem())?;
    }
    Ok(())
}

fn parameters(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters
        .distinguished_name
        .push(DnType::CommonName, name.to_owned());
    let now = OffsetDateTime::now_utc();
    // Not quite now: clocks of a machine's processors may differ by a little.
    parameters.not_before = now - Duration::minutes(1);
    parameters.not_after = now + Duration::days(1);
    parameters
}

fn put(directory: &Path, name: &str, text: &str) -> Result<()> {
    let path = directory.join(name);
    let mut options = OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).mode(0o600);
    opened
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .or_fail(|| format!("cannot write {}", path.display()))
}
