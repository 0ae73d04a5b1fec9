//! Whether what a Secret holds can be shown to clients. What it holds is in no message.

use super::view::Text;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// A chain under `tls.crt` and its key under `tls.key`.
pub(super) fn check(text: &Text) -> Result<(), String> {
    let part = |key: &str| text.get(key).ok_or_else(|| format!("it has no {key}"));
    let chain = certificates(part("tls.crt")?).map_err(|why| format!("tls.crt {why}"))?;
    let key = PrivateKeyDer::from_pem_slice(part("tls.key")?.as_bytes());
    let key = key.map_err(|_| "tls.key is no private key in PEM")?;
    let key = any_supported_type(&key).map_err(|_| "tls.key is of no kind that TLS knows")?;
    match CertifiedKey::new(chain, key).keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err("tls.key is not the key of the certificate in tls.crt".into())
        }
        Err(_) => Err("tls.crt is no certificate that TLS knows".into()),
    }
}

/// Certificates of authorities under `ca.crt`.
pub(super) fn check_roots(text: &Text) -> Result<(), String> {
    let roots = text.get("ca.crt").ok_or("it has no ca.crt")?;
    certificates(roots).map_err(|why| format!("ca.crt {why}"))?;
    Ok(())
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let all = all.map_err(|_| "is no PEM")?;
    if all.is_empty() {
        return Err("has no certificate in PEM");
    }
    Ok(all)
}
