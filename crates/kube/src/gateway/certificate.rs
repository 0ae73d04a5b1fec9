//! Checks, as the proxies do, whether the content of a Secret can be shown to clients. No message
//! repeats that content.

use super::view::Text;
use std::time::SystemTime;
use tulle_control::index;

/// Checks a chain under `tls.crt` and its key under `tls.key`; returns when the certificate expires.
pub(super) fn check(text: &Text) -> Result<Option<SystemTime>, String> {
    let part = |key: &str| text.get(key).ok_or_else(|| format!("it has no {key}"));
    index::check_pair(part("tls.crt")?, part("tls.key")?).map(Some)
}

/// Checks certificates of authorities under `ca.crt`, and their revocation lists under `ca.crl`.
pub(super) fn check_roots(text: &Text) -> Result<Option<SystemTime>, String> {
    let roots = text.get("ca.crt").ok_or("it has no ca.crt")?;
    index::check_roots(roots, text.get("ca.crl").map(String::as_str)).map(|()| None)
}
