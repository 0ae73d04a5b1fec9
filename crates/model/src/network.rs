//! A range of addresses: `10.0.0.0/8`, `fd00::/8`, or one address.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// All addresses that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(with = "String")
)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// A text that is no range of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidNetwork(String);

impl fmt::Display for InvalidNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no range of addresses; write one such as 10.0.0.0/8, fd00::/8 or 192.0.2.7",
            self.0
        )
    }
}

impl std::error::Error for InvalidNetwork {}

impl Network {
    /// Whether the address is in the range. An IPv4 address written as IPv6 (`::ffff:10.0.0.1`)
    /// is the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let shift = |width: u8| u32::from(width - self.bits);
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = u32::from(own) ^ u32::from(other);
                differ.checked_shr(shift(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = u128::from(own) ^ u128::from(other);
                differ.checked_shr(shift(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl Network {
    /// Returns the lowest address of the range.
    pub fn first(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(own) => Ipv4Addr::from(u32::from(own) & !self.host_v4()).into(),
            IpAddr::V6(own) => Ipv6Addr::from(u128::from(own) & !self.host_v6()).into(),
        }
    }

    /// Returns the address that follows the highest of the range, if there is one.
    pub fn next_after(&self) -> Option<IpAddr> {
        match self.address {
            IpAddr::V4(own) => {
                let next = (u32::from(own) | self.host_v4()).checked_add(1)?;
                Some(Ipv4Addr::from(next).into())
            }
            IpAddr::V6(own) => {
                let next = (u128::from(own) | self.host_v6()).checked_add(1)?;
                Some(Ipv6Addr::from(next).into())
            }
        }
    }

    /// The bits in which addresses of the range differ.
    fn host_v4(&self) -> u32 {
        u32::MAX.checked_shr(self.bits.into()).unwrap_or(0)
    }

    /// As [`Self::host_v4`].
    fn host_v6(&self) -> u128 {
        u128::MAX.checked_shr(self.bits.into()).unwrap_or(0)
    }
}

impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let invalid = || InvalidNetwork(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) if !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit()) => {
                bits.parse().map_err(|_| invalid())?
            }
            Some(_) => return Err(invalid()),
        };
        if bits > most {
            return Err(invalid());
        }
        Ok(Self { address, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl TryFrom<String> for Network {
    type Error = InvalidNetwork;
    fn try_from(text: String) -> Result<Self, InvalidNetwork> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        let network: Network = network.parse().unwrap();
        network.contains(address.parse().unwrap())
    }

    #[test]
    fn borders() {
        for (network, first, next) in [
            ("10.1.2.3/8", "10.0.0.0", Some("11.0.0.0")),
            ("192.0.2.7", "192.0.2.7", Some("192.0.2.8")),
            ("0.0.0.0/0", "0.0.0.0", None),
            ("fd00::1/64", "fd00::", Some("fd00:0:0:1::")),
            ("::/0", "::", None),
            ("ffff::/16", "ffff::", None),
        ] {
            let network: Network = network.parse().unwrap();
            assert_eq!(network.first(), first.parse::<IpAddr>().unwrap());
            assert_eq!(network.next_after(), next.map(|n| n.parse().unwrap()));
        }
    }

    #[test]
    fn ranges() {
        assert!(contains("10.0.0.0/8", "10.255.0.1"));
        assert!(!contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("10.1.2.3/8", "10.0.0.1"), "host bits do not count");
        assert!(contains("0.0.0.0/0", "203.0.113.9"));
        assert!(!contains("0.0.0.0/0", "2001:db8::1"), "families differ");
        assert!(contains("192.0.2.7", "192.0.2.7"));
        assert!(!contains("192.0.2.7", "192.0.2.8"));
        assert!(contains("fd00::/8", "fdff::1"));
        assert!(contains("::/0", "2001:db8::1"));
        assert!(
            contains("10.0.0.0/8", "::ffff:10.0.0.1"),
            "IPv4 all the same"
        );
    }

    #[test]
    fn what_is_no_range() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "::/129",
            "a/8",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
