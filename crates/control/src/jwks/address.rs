//! Addresses that the controller may ask for keys.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tulle_model::network::Network;

/// Whether an address may be asked. `networks`: what the Mesh lists for the host; without any, addresses
/// of the internet.
pub(super) fn may_be_asked(address: IpAddr, networks: &[Network]) -> bool {
    match networks {
        [] => is_global(address.to_canonical()),
        networks => networks.iter().any(|network| network.contains(address)),
    }
}

/// Whether an address is one of the internet, by IANA's registries of special-purpose addresses (RFC
/// 6890). Addresses that embed an IPv4 address (6to4, NAT64, Teredo) are not: where they lead depends on
/// the network.
fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_global_v4(address),
        IpAddr::V6(address) => is_global_v6(address),
    }
}

fn is_global_v4(address: Ipv4Addr) -> bool {
    let special = match address.octets() {
        // These are this network, private use, loopback, multicast and reserved ranges.
        [0 | 10 | 127 | 224..=255, ..] => true,
        // Carriers' own; many clusters use it, too.
        [100, 64..=127, ..] => true,
        // Link-local: metadata services of clouds.
        [169, 254, ..] => true,
        [172, 16..=31, ..] => true,
        [192, 168, ..] => true,
        // Protocol assignments, documentation, 6to4 relays.
        [192, 0, 0 | 2, _] | [192, 88, 99, _] => true,
        // Benchmarks and documentation.
        [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => true,
        _ => false,
    };
    !special
}

fn is_global_v6(address: Ipv6Addr) -> bool {
    match address.segments() {
        // Protocol assignments (Teredo among them), documentation, 6to4.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x2002, ..] => false,
        [0x3fff, 0..=0xfff, ..] => false,
        // IANA has assigned no other range.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_internet_unless_networks_are_listed() {
        for (text, global) in [
            ("8.8.8.8", true),
            ("100.63.255.255", true),
            ("172.15.0.1", true),
            ("2606:4700::1111", true),
            ("127.0.0.1", false),
            ("127.255.0.9", false),
            ("0.0.0.0", false),
            ("10.96.0.1", false),
            ("172.31.0.1", false),
            ("192.168.0.1", false),
            ("100.64.0.1", false),
            ("169.254.169.254", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:10.0.0.1", false),
            ("::127.0.0.1", false),
            ("64:ff9b::7f00:1", false),
            ("2002:7f00:1::", false),
            ("2001::1", false),
            ("fe80::1", false),
            ("fd00::1", false),
            ("ff02::1", false),
            ("fec0::1", false),
        ] {
            assert_eq!(may_be_asked(text.parse().unwrap(), &[]), global, "{text}");
        }
        assert!(may_be_asked("::ffff:8.8.8.8".parse().unwrap(), &[]));
        let listed = ["10.1.0.0/16".parse().unwrap()];
        assert!(may_be_asked("10.1.2.3".parse().unwrap(), &listed));
        assert!(!may_be_asked("10.2.0.1".parse().unwrap(), &listed));
        assert!(!may_be_asked("8.8.8.8".parse().unwrap(), &listed));
    }
}
