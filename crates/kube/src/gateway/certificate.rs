//! Whether what a Secret holds can be shown to clients, as the proxies judge it. What it holds is in no
//! message.

use super::view::Text;
use tulle_control::index;

/// A chain under `tls.crt` and its key under `tls.key`.
pub(super) fn check(text: &Text) -> Result<(), String> {
    let part = |key: &str| text.get(key).ok_or_else(|| format!("it has no {key}"));
    index::check_pair(part("tls.crt")?, part("tls.key")?).map(drop)
}

/// Certificates of authorities under `ca.crt`, and their revocation lists under `ca.crl`.
pub(super) fn check_roots(text: &Text) -> Result<(), String> {
    let roots = text.get("ca.crt").ok_or("it has no ca.crt")?;
    index::check_roots(roots, text.get("ca.crl"))
}
