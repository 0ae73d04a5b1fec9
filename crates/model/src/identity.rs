//! SPIFFE identities: `spiffe://<trust-domain>/<path>`, compared byte for byte.
//!
//! Source: SPIFFE-ID standard, sections 2.1 (trust domain) and 2.2 (path). Anything the standard
//! does not allow is refused when parsed, so equality of the text is equality of the identity.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest SPIFFE id in bytes (SPIFFE-ID 2.3).
pub const MAX_ID_BYTES: usize = 2048;

/// The name of a trust domain: lower-case letters, digits, `.`, `-`, `_`; 1 to 255 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(with = "String")
)]
#[serde(try_from = "String", into = "String")]
pub struct TrustDomain(String);

/// A valid SPIFFE id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SpiffeId(String);

/// Why a text is not a SPIFFE id or trust domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidIdentity {
    text: String,
    reason: &'static str,
}

impl fmt::Display for InvalidIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a valid identity: {}",
            self.text, self.reason
        )
    }
}

impl std::error::Error for InvalidIdentity {}

fn invalid(text: &str, reason: &'static str) -> InvalidIdentity {
    let text = text.chars().take(256).collect();
    InvalidIdentity { text, reason }
}

impl TrustDomain {
    /// Parses a trust domain name.
    ///
    /// # Errors
    /// The text is empty, longer than 255 bytes or has a character outside `a-z0-9._-`.
    pub fn parse(text: &str) -> Result<Self, InvalidIdentity> {
        if text.is_empty() || text.len() > 255 {
            return Err(invalid(text, "a trust domain has 1 to 255 characters"));
        }
        let allowed =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'_');
        if !text.bytes().all(allowed) {
            return Err(invalid(
                text,
                "a trust domain has only a-z, 0-9, '.', '-' and '_'",
            ));
        }
        Ok(Self(text.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The identity of a standalone service: `spiffe://<trust-domain>/svc/<name>`.
    ///
    /// # Errors
    /// The name is not a valid path segment.
    pub fn service(&self, name: &str) -> Result<SpiffeId, InvalidIdentity> {
        SpiffeId::parse(&format!("spiffe://{}/svc/{name}", self.0))
    }

    /// The identity of a service account of a cluster:
    /// `spiffe://<trust-domain>/ns/<namespace>/sa/<name>`.
    ///
    /// # Errors
    /// One of the names is not a valid path segment.
    pub fn service_account(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<SpiffeId, InvalidIdentity> {
        SpiffeId::parse(&format!("spiffe://{}/ns/{namespace}/sa/{name}", self.0))
    }

    /// The identity of a standalone gateway. It has the form of a service's, so that a
    /// TrafficTarget names a gateway like any other caller.
    ///
    /// # Errors
    /// The name is not a valid path segment.
    pub fn gateway(&self, name: &str) -> Result<SpiffeId, InvalidIdentity> {
        self.service(name)
    }
}

impl Default for TrustDomain {
    fn default() -> Self {
        Self("tulle.local".into())
    }
}

impl SpiffeId {
    /// The host's name, for the identity of a host that joined: `node/<name>`.
    pub fn node(&self) -> Option<&str> {
        let path = self.0.strip_prefix("spiffe://")?.split_once('/')?.1;
        let name = path.strip_prefix("node/")?;
        (!name.contains('/')).then_some(name)
    }

    /// Namespace and name, for the identity of a cluster's service account.
    pub fn service_account(&self) -> Option<(&str, &str)> {
        let path = self.0.strip_prefix("spiffe://")?.split_once('/')?.1;
        let (namespace, name) = path.strip_prefix("ns/")?.split_once("/sa/")?;
        let is_segment = |text: &str| !text.is_empty() && !text.contains('/');
        (is_segment(namespace) && is_segment(name)).then_some((namespace, name))
    }

    /// Parses a SPIFFE id.
    ///
    /// # Errors
    /// The scheme, trust domain or a path segment is not as SPIFFE-ID 2 says.
    pub fn parse(text: &str) -> Result<Self, InvalidIdentity> {
        if text.len() > MAX_ID_BYTES {
            return Err(invalid(text, "longer than 2048 bytes"));
        }
        let rest = text
            .strip_prefix("spiffe://")
            .ok_or_else(|| invalid(text, "it must start with spiffe://"))?;
        let (domain, path) = rest
            .split_once('/')
            .ok_or_else(|| invalid(text, "a workload's identity needs a path"))?;
        TrustDomain::parse(domain).map_err(|e| invalid(text, e.reason))?;
        for segment in path.split('/') {
            if segment.is_empty() || segment == "." || segment == ".." {
                return Err(invalid(
                    text,
                    "path segments must not be empty, '.' or '..'",
                ));
            }
            let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
            if !segment.bytes().all(allowed) {
                return Err(invalid(
                    text,
                    "path segments have only letters, digits, '.', '-' and '_'",
                ));
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// The whole id.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part between `spiffe://` and the path.
    pub fn trust_domain(&self) -> &str {
        let rest = self.0.get("spiffe://".len()..).unwrap_or_default();
        rest.split('/').next().unwrap_or_default()
    }

    /// The last path segment: the workload's short name in metrics and logs.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }
}

macro_rules! text_conversions {
    ($t:ident) => {
        impl TryFrom<String> for $t {
            type Error = InvalidIdentity;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::parse(&text)
            }
        }
        impl From<$t> for String {
            fn from(id: $t) -> Self {
                id.0
            }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
text_conversions!(TrustDomain);
text_conversions!(SpiffeId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_the_standard_allows() {
        let id = SpiffeId::parse("spiffe://tulle.local/svc/ratings").unwrap();
        assert_eq!(id.trust_domain(), "tulle.local");
        assert_eq!(id.name(), "ratings");
    }

    #[test]
    fn refuses_tricks() {
        for text in [
            "",
            "spiffe://",
            "spiffe://a",
            "spiffe://a/",
            "SPIFFE://a/b",
            "spiffe://A/b",
            "spiffe://a//b",
            "spiffe://a/../b",
            "spiffe://a/./b",
            "spiffe://a/b/",
            "spiffe://a/b?c",
            "spiffe://a/b%2f",
            "spiffe://a:80/b",
            "spiffe://u@a/b",
            "spiffe://a/b\0",
            "https://a/b",
        ] {
            assert!(SpiffeId::parse(text).is_err(), "{text:?}");
        }
    }
}
