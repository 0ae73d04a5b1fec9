//! Certificates that are refused although they are valid.

use super::is_default;
use crate::hex;
use crate::identity::SpiffeId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Identities and certificates that are refused.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Revoked {
    /// All certificates with one of these names.
    #[serde(skip_serializing_if = "is_default")]
    pub identities: BTreeSet<SpiffeId>,
    /// Certificates with one of these serial numbers, whoever signed them. That of a [membership](Serial::membership)
    /// stands for all that came by it.
    #[serde(skip_serializing_if = "is_default")]
    pub serials: BTreeSet<Serial>,
    /// Serial numbers of one issuer each, by the issuer's name (DER in lower-case hex): what revocation
    /// lists say.
    #[serde(skip_serializing_if = "is_default")]
    pub issued: BTreeMap<String, BTreeSet<Serial>>,
    /// For hosts, the lowest generation of their authorities that still counts: certificates that earlier
    /// ones signed are refused.
    #[serde(skip_serializing_if = "is_default")]
    pub hosts: BTreeMap<SpiffeId, u64>,
}

impl Revoked {
    /// Whether nothing is revoked.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a certificate is revoked: one of this identity, with this serial number, by an issuer of
    /// this name (DER).
    pub fn has(&self, identity: &SpiffeId, serial: &Serial, issuer: &[u8]) -> bool {
        let listed = || self.issued.get(&hex(issuer))?.get(serial);
        self.identities.contains(identity)
            || self.has_serial(serial)
            || (!self.issued.is_empty() && listed().is_some())
    }

    fn has_serial(&self, serial: &Serial) -> bool {
        let has = |serial| self.serials.contains(serial);
        !self.serials.is_empty() && (has(serial) || serial.membership().as_ref().is_some_and(has))
    }

    /// Whether an authority of a host is revoked, with all that it signed: by the host's identity, by its
    /// serial number, or because its generation is over.
    pub fn has_host(&self, host: &SpiffeId, generation: u64, serial: &Serial) -> bool {
        self.identities.contains(host)
            || self.serials.contains(serial)
            || self
                .hosts
                .get(host)
                .is_some_and(|least| generation < *least)
    }

    /// Adds what another says.
    pub fn extend(&mut self, other: Self) {
        self.identities.extend(other.identities);
        self.serials.extend(other.serials);
        for (issuer, serials) in other.issued {
            self.issued.entry(issuer).or_default().extend(serials);
        }
        for (host, least) in other.hosts {
            let known = self.hosts.entry(host).or_default();
            *known = least.max(*known);
        }
    }
}

/// The serial number of a certificate (RFC 5280, 4.1.2.2), in lower-case hex without leading zeros.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Serial(String);

/// A text is no serial number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidSerial(String);

impl fmt::Display for InvalidSerial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        write!(
            f,
            "expected a serial number of 1 to 20 bytes in hex, such as `3f:9a:01`, found `{text}`"
        )
    }
}

impl std::error::Error for InvalidSerial {}

/// Longest serial number (RFC 5280).
const MAX_SERIAL_BYTES: usize = 20;
/// Bytes in the serial number of a certificate that came by a host.
pub const WITH_MEMBERSHIP: usize = 16;
/// Bytes at its beginning that are the number of the host's membership.
pub const MEMBERSHIP: usize = 8;
/// The first of them. All other serial numbers that a controller gives begin with 0x40 to 0x7f.
pub const MEMBERSHIP_MARK: u8 = 0x20;

impl Serial {
    /// Reads hex, with or without colons between bytes, as tools print it.
    ///
    /// # Errors
    /// It is no number of up to 20 bytes, or 0.
    pub fn parse(text: &str) -> Result<Self, InvalidSerial> {
        let invalid = || InvalidSerial(text.chars().take(64).collect());
        let digits: String = text.chars().filter(|c| *c != ':').collect();
        let digits = digits.trim_start_matches('0').to_ascii_lowercase();
        let good = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if !good || digits.len() > 2 * MAX_SERIAL_BYTES {
            return Err(invalid());
        }
        Ok(Self(digits))
    }

    /// The number in a certificate, however long it is.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(hex(bytes).trim_start_matches('0').to_owned())
    }

    /// The number of the membership of a host by which a controller's certificate came, if it came by one.
    #[must_use]
    pub fn membership(&self) -> Option<Self> {
        let mark = format!("{MEMBERSHIP_MARK:x}");
        let is_one = self.0.len() == 2 * WITH_MEMBERSHIP && self.0.starts_with(&mark);
        is_one.then(|| Self(self.0.chars().take(2 * MEMBERSHIP).collect()))
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Serial {
    type Error = InvalidSerial;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<Serial> for String {
    fn from(serial: Serial) -> Self {
        serial.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_number_is_read_as_tools_print_it() {
        for text in ["3f9a01", "3F:9A:01", "00:3f:9a:01"] {
            assert_eq!(
                Serial::parse(text),
                Ok(Serial::from_bytes(&[0, 0x3f, 0x9a, 1]))
            );
        }
        assert_eq!(Serial::from_bytes(&[0, 10]).as_str(), "a");
        for text in ["", "0", "00:00", "x", "3f 9a", "0x3f", &"f".repeat(41)] {
            assert!(Serial::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_number_of_a_membership_stands_for_all_that_came_by_it() {
        let id = SpiffeId::parse("spiffe://t/svc/a").unwrap();
        let revoked = Revoked {
            serials: [Serial::parse("2001020304050607").unwrap()].into(),
            ..Revoked::default()
        };
        for (number, refused) in [
            ("20010203040506070000000000000001", true),
            ("2001020304050607ffffffffffffffff", true),
            ("2001020304050607", true),
            ("20010203040506080000000000000001", false),
            ("40010203040506070000000000000001", false),
            // Other issuers have longer or shorter ones.
            ("200102030405060700000000000000", false),
            ("2001020304050607000000000000000000", false),
        ] {
            let found = revoked.has(&id, &Serial::parse(number).unwrap(), b"x");
            assert_eq!(found, refused, "{number}");
        }
    }

    #[test]
    fn each_of_the_three_refuses_by_itself() {
        let id = |name: &str| SpiffeId::parse(&format!("spiffe://t/svc/{name}")).unwrap();
        let serial = |text| Serial::parse(text).unwrap();
        let mut revoked = Revoked::default();
        assert!(revoked.is_empty());
        revoked.extend(Revoked {
            identities: [id("a")].into(),
            ..Revoked::default()
        });
        revoked.extend(Revoked {
            serials: [serial("1")].into(),
            ..Revoked::default()
        });
        for text in ["2", "3"] {
            revoked.extend(Revoked {
                issued: [(hex(b"x"), [serial(text)].into())].into(),
                ..Revoked::default()
            });
        }
        for (name, number, issuer, refused) in [
            ("a", "9", "y", true),
            ("b", "1", "y", true),
            ("b", "2", "x", true),
            ("b", "3", "x", true),
            ("b", "2", "y", false),
            ("b", "9", "x", false),
            ("aa", "9", "x", false),
        ] {
            let found = revoked.has(&id(name), &serial(number), issuer.as_bytes());
            assert_eq!(found, refused, "{name} {number} {issuer}");
        }
    }
}
