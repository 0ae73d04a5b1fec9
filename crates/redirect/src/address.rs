//! Assigns addresses: pure arithmetic over one /16 and one /64 for each mesh.
//!
//! ```text
//! IPv4  10.77.0.1                    the host
//!       10.77.1.0   … 10.77.127.254  workloads, by index
//!       10.77.128.1 … 10.77.255.254  services, by index
//! IPv6  prefix::1   prefix::1:index   prefix::2:index
//! ```
//!
//! A service's address is on no interface. A connection to it only has to pass the routing decision
//! (it is on-link); then it is redirected to the sidecar, which knows the service.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const FIRST_WORKLOAD: u16 = 0x0100;
const WORKLOADS: u16 = 0x7eff;
const FIRST_SERVICE: u16 = 0x8001;
const SERVICES: u16 = 0x7ffe;
/// `fd` (locally assigned) and the letters t, u, l, l, e.
const PREFIX6: [u16; 3] = [0xfd74, 0x756c, 0x6c65];

/// An IPv4 network of 65,536 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet4(u16);

impl Subnet4 {
    /// `a.b.0.0/16`.
    pub fn new(a: u8, b: u8) -> Self {
        Self(u16::from_be_bytes([a, b]))
    }
    /// Returns the network that contains an address.
    pub fn from_address(address: Ipv4Addr) -> Self {
        let [a, b, ..] = address.octets();
        Self::new(a, b)
    }
    /// Length of the prefix in bits.
    pub const PREFIX: u8 = 16;

    fn at(self, low: u16) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::from(self.0) << 16 | u32::from(low))
    }
    /// Whether this network and `address/prefix` share an address.
    pub fn overlaps(self, address: Ipv4Addr, prefix: u8) -> bool {
        // A shift by 32 is not defined for u32, hence the wider type: a /0 overlaps everything.
        let ignored = 32 - u64::from(prefix.min(Self::PREFIX));
        u64::from(self.at(0).to_bits()) >> ignored == u64::from(address.to_bits()) >> ignored
    }
}

impl fmt::Display for Subnet4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.at(0), Self::PREFIX)
    }
}

/// An IPv6 network of 2⁶⁴ addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet6([u16; 4]);

impl Subnet6 {
    /// Returns the network that contains an address.
    pub fn from_address(address: Ipv6Addr) -> Self {
        let [a, b, c, d, ..] = address.segments();
        Self([a, b, c, d])
    }
    /// Length of the prefix in bits.
    pub const PREFIX: u8 = 64;

    fn at(self, kind: u16, low: u16) -> Ipv6Addr {
        let [a, b, c, d] = self.0;
        Ipv6Addr::new(a, b, c, d, 0, 0, kind, low)
    }
    /// Whether this network and `address/prefix` share an address.
    pub fn overlaps(self, address: Ipv6Addr, prefix: u8) -> bool {
        let kept = prefix.min(Self::PREFIX);
        if kept == 0 {
            return true;
        }
        let ignored = 128 - u32::from(kept);
        self.at(0, 0).to_bits() >> ignored == address.to_bits() >> ignored
    }
}

impl fmt::Display for Subnet6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.at(0, 0), Self::PREFIX)
    }
}

/// The addresses of one mesh. IPv6 is absent where the kernel has disabled it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressPlan {
    /// IPv4 network.
    pub subnet4: Subnet4,
    /// IPv6 network.
    pub subnet6: Option<Subnet6>,
}

impl AddressPlan {
    /// The networks as addresses with the lengths of their prefixes.
    pub fn networks(&self) -> Vec<(IpAddr, u8)> {
        let v4 = (self.subnet4.at(0).into(), Subnet4::PREFIX);
        let v6 = self.subnet6.map(|s| (s.at(0, 0).into(), Subnet6::PREFIX));
        std::iter::once(v4).chain(v6).collect()
    }

    /// The plans a mesh may choose from, in order: `10.77.0.0/16`, `10.78.0.0/16`, … Then, for
    /// hosts with a route to all of `10.0.0.0/8` (many VPNs), the networks of RFC 6598 and the rest
    /// of RFC 1918. The IPv6 network has the same two bytes.
    pub fn candidates() -> impl Iterator<Item = Self> {
        let tens = (77..=254).map(|b| Subnet4::new(10, b));
        let shared = (64..=127).map(|b| Subnet4::new(100, b));
        let rest = (17..=31).map(|b| Subnet4::new(172, b));
        tens.chain(shared).chain(rest).map(|subnet4| {
            let subnet6 = Some(Subnet6([PREFIX6[0], PREFIX6[1], PREFIX6[2], subnet4.0]));
            Self { subnet4, subnet6 }
        })
    }
    /// The host's own address, where workloads find the controller.
    pub fn host(&self) -> (Ipv4Addr, Option<Ipv6Addr>) {
        (self.subnet4.at(1), self.subnet6.map(|s| s.at(0, 1)))
    }
    /// Addresses of the workload with this index, if the network has that many.
    pub fn workload(&self, index: u16) -> Option<(Ipv4Addr, Option<Ipv6Addr>)> {
        (index < WORKLOADS).then(|| {
            (
                self.subnet4.at(FIRST_WORKLOAD + index),
                self.subnet6.map(|s| s.at(1, index)),
            )
        })
    }
    /// Addresses of the service with this index, if the network has that many.
    pub fn service(&self, index: u16) -> Option<(Ipv4Addr, Option<Ipv6Addr>)> {
        (index < SERVICES).then(|| {
            (
                self.subnet4.at(FIRST_SERVICE + index),
                self.subnet6.map(|s| s.at(2, index)),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> AddressPlan {
        AddressPlan::candidates().next().unwrap()
    }

    #[test]
    fn the_first_plan() {
        let plan = plan();
        assert_eq!(plan.subnet4.to_string(), "10.77.0.0/16");
        assert_eq!(plan.subnet6.unwrap().to_string(), "fd74:756c:6c65:a4d::/64");
        let text = |(v4, v6): (Ipv4Addr, Option<Ipv6Addr>)| format!("{v4} {}", v6.unwrap());
        assert_eq!(text(plan.host()), "10.77.0.1 fd74:756c:6c65:a4d::1");
        assert_eq!(
            text(plan.workload(0).unwrap()),
            "10.77.1.0 fd74:756c:6c65:a4d::1:0"
        );
        assert_eq!(
            text(plan.workload(257).unwrap()),
            "10.77.2.1 fd74:756c:6c65:a4d::1:101"
        );
        assert_eq!(
            text(plan.service(0).unwrap()),
            "10.77.128.1 fd74:756c:6c65:a4d::2:0"
        );
    }

    #[test]
    fn no_address_is_given_twice_and_none_is_the_broadcast() {
        let plan = plan();
        let mut all: Vec<Ipv4Addr> = vec![plan.host().0, Ipv4Addr::new(10, 77, 255, 255)];
        all.extend((0..=u16::MAX).filter_map(|i| plan.workload(i)).map(|a| a.0));
        all.extend((0..=u16::MAX).filter_map(|i| plan.service(i)).map(|a| a.0));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(
            all.iter()
                .all(|a| Subnet4::from_address(*a) == plan.subnet4)
        );
        assert_eq!(count, 2 + usize::from(WORKLOADS) + usize::from(SERVICES));
    }

    #[test]
    fn overlap() {
        let net = Subnet4::new(10, 77);
        assert!(net.overlaps(Ipv4Addr::new(10, 0, 0, 0), 8));
        assert!(net.overlaps(Ipv4Addr::new(10, 77, 3, 0), 24));
        assert!(net.overlaps(Ipv4Addr::new(0, 0, 0, 0), 0));
        assert!(!net.overlaps(Ipv4Addr::new(10, 78, 0, 0), 16));
        assert!(!net.overlaps(Ipv4Addr::new(192, 168, 0, 0), 16));
        let net = plan().subnet6.unwrap();
        assert!(net.overlaps("fd00::".parse().unwrap(), 8));
        assert!(net.overlaps("fd74:756c:6c65:a4d:1::".parse().unwrap(), 80));
        assert!(net.overlaps("::".parse().unwrap(), 0));
        assert!(!net.overlaps("fd00::".parse().unwrap(), 64));
    }
}
