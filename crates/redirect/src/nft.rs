//! The rules for `nft`: one table of their own, `inet tulle` (for IPv4 and IPv6), which is replaced
//! as a whole in one transaction. So applying twice is the same as applying once, no packet ever
//! meets half the rules, and removing the table removes everything. A kernel without IPv6 has no
//! `inet`, so there the table is `ip tulle`.

use crate::redirection::Redirection;
use std::fmt::Write;
use std::net::IpAddr;

/// The rules as a script for `nft -f`. Pure; the order of lists does not matter.
pub(crate) fn rules(redirection: &Redirection, ipv6: bool) -> String {
    let Redirection {
        outbound_port,
        inbound_port,
        sidecar_uid,
        ..
    } = redirection;
    let inbound_excluded = return_for_ports(&redirection.exclude_inbound_ports);
    let outbound_excluded = return_for_ports(&redirection.exclude_outbound_ports)
        + &for_ranges(&redirection.exclude_outbound_ranges, ipv6, "return");
    let redirect = format!("meta l4proto tcp redirect to :{outbound_port}");
    let outbound_included = match redirection.include_outbound_ranges.as_slice() {
        [] => format!("\t\t{redirect}\n"),
        ranges => for_ranges(ranges, ipv6, &redirect),
    };
    // The DNS rules come before the exception for loopback: many hosts have a resolver there.
    let dns = redirection.dns_port.map_or_else(String::new, |port| {
        format!("\t\tudp dport 53 redirect to :{port}\n\t\ttcp dport 53 redirect to :{port}\n")
    });
    let mut refused = redirection.refuse_inbound_ports.clone();
    refused.extend([*outbound_port, *inbound_port]);
    refused.retain(|port| !redirection.exclude_inbound_ports.contains(port));
    let refused = set(refused);
    let keep = keep(redirection, ipv6);
    let (family, sidecar_at_home) = match ipv6 {
        true => ("inet", "\t\tip6 saddr ::1 return\n"),
        false => ("ip", ""),
    };
    // "add" before "delete" keeps deleting a missing table from being an error.
    format!(
        "\
add table {family} tulle
delete table {family} tulle
table {family} tulle {{
	# Connections to the application.
	chain inbound {{
		type nat hook prerouting priority -100; policy accept;
		iifname \"lo\" return
{inbound_excluded}		meta l4proto tcp redirect to :{inbound_port}
	}}
	# The sidecar's own ports: a caller has no business there, and could reach loopback by them.
	chain refuse {{
		type filter hook input priority 0; policy accept;
		iifname != \"lo\" meta l4proto tcp ct state new ct original proto-dst {refused} reject with tcp reset
	}}
	# Connections of the application.
	chain outbound {{
		type nat hook output priority -100; policy accept;
		meta skuid {sidecar_uid} goto sidecar
{dns}		oifname \"lo\" return
{outbound_excluded}{outbound_included}	}}
	# Connections of the sidecar: out, or to the application, or a call to its own workload.
	chain sidecar {{
		oifname != \"lo\" return
		ip saddr 127.0.0.0/8 return
{sidecar_at_home}{inbound_excluded}		meta l4proto tcp redirect to :{inbound_port}
	}}
{keep}}}
"
    )
}

/// Returns the chain for [`Redirection::keep_within`].
fn keep(redirection: &Redirection, ipv6: bool) -> String {
    if redirection.keep_within.is_empty() {
        return String::new();
    }
    let Redirection {
        sidecar_uid,
        exclude_outbound_ports,
        exclude_outbound_ranges,
        keep_within,
        ..
    } = redirection;
    let mut inside = keep_within.clone();
    inside.extend(exclude_outbound_ranges);
    let inside = for_ranges(&inside, ipv6, "return");
    let excluded = return_for_ports(exclude_outbound_ports);
    let (neighbours, no_route) = match ipv6 {
        true => (
            "\t\tip6 daddr { ::1, fe80::/10, ff00::/8 } return\n",
            "icmpx type no-route",
        ),
        false => ("", "icmp type net-unreachable"),
    };
    // It matches addresses, because a redirected connection still has the link it would have left
    // by. Neighbours of IPv6 find each other by link-local and multicast addresses.
    format!(
        "\
	# Past these networks goes only what the sidecar lets go. The last packets of a connection that it has closed have no
	# user any more; nobody else can have established one.
	chain keep {{
		type filter hook output priority 0; policy accept;
		meta skuid {sidecar_uid} return
		meta l4proto tcp ct state established return
		ip daddr 127.0.0.0/8 return
{neighbours}{inside}{excluded}		reject with {no_route}
	}}
"
    )
}

fn set<T: Ord + ToString>(mut items: Vec<T>) -> String {
    items.sort_unstable();
    items.dedup();
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    format!("{{ {} }}", items.join(", "))
}

fn return_for_ports(ports: &[u16]) -> String {
    // An empty set is a syntax error in nft.
    if ports.is_empty() {
        return String::new();
    }
    format!("\t\ttcp dport {} return\n", set(ports.to_vec()))
}

fn for_ranges(ranges: &[(IpAddr, u8)], ipv6: bool, verdict: &str) -> String {
    // Each range has a rule: ranges may overlap, which a set would refuse.
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable();
    ranges.dedup();
    ranges.retain(|(address, _)| ipv6 || address.is_ipv4());
    ranges
        .iter()
        .fold(String::new(), |mut rules, (address, prefix)| {
            let (family, prefix) = match address {
                IpAddr::V4(_) => ("ip", (*prefix).min(32)),
                IpAddr::V6(_) => ("ip6", (*prefix).min(128)),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(rules, "\t\t{family} daddr {address}/{prefix} {verdict}");
            rules
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_script() {
        let redirection = Redirection {
            exclude_outbound_ports: vec![3306, 22, 22],
            exclude_outbound_ranges: vec![
                ("fd00::".parse().unwrap(), 8),
                ("10.0.0.0".parse().unwrap(), 8),
            ],
            ..Redirection::default()
        };
        assert_eq!(rules(&redirection, true), include_str!("nft.expected"));
    }

    #[test]
    fn dns_goes_to_the_sidecar_also_on_loopback() {
        let redirection = Redirection {
            dns_port: Some(15053),
            ..Redirection::default()
        };
        let rules = rules(&redirection, true);
        let at = |text: &str| rules.find(text).unwrap();
        let (udp, tcp) = (
            at("\t\tudp dport 53 redirect to :15053\n"),
            at("\t\ttcp dport 53 redirect to :15053\n"),
        );
        assert!(at("skuid") < udp && udp < tcp && tcp < at("oifname \"lo\" return"));
        assert!(!super::rules(&Redirection::default(), true).contains("udp"));
    }

    #[test]
    fn only_what_is_included_is_redirected() {
        let redirection = Redirection {
            include_outbound_ranges: vec![("10.0.0.0".parse().unwrap(), 8)],
            ..Redirection::default()
        };
        let rules = rules(&redirection, true);
        let included = "\t\tip daddr 10.0.0.0/8 meta l4proto tcp redirect to :15001\n";
        assert!(rules.contains(included), "{rules}");
        assert_eq!(rules.matches("redirect to :15001").count(), 1, "{rules}");
    }

    #[test]
    fn empty_lists_leave_no_empty_set() {
        let redirection = Redirection {
            exclude_inbound_ports: vec![],
            exclude_outbound_ports: vec![],
            refuse_inbound_ports: vec![],
            ..Redirection::default()
        };
        let rules = rules(&redirection, true);
        assert!(
            !rules.contains("{  }") && !rules.contains("dport"),
            "{rules}"
        );
        assert!(
            rules.contains("proto-dst { 15001, 15006 } reject"),
            "{rules}"
        );
    }

    #[test]
    fn what_is_kept_within_networks_may_not_leave_them() {
        let redirection = Redirection {
            exclude_outbound_ports: vec![],
            keep_within: vec![("10.77.0.0".parse().unwrap(), 16)],
            ..Redirection::default()
        };
        let rules = rules(&redirection, true);
        let at = |text: &str| rules.find(text).unwrap();
        let chain = at("chain keep");
        let (sidecar, inside) = (
            at("meta skuid 1500 return"),
            at("ip daddr 10.77.0.0/16 return"),
        );
        let closed = at("meta l4proto tcp ct state established return");
        let reject = at("reject with icmpx type no-route");
        assert!(chain < sidecar && sidecar < closed && closed < inside && inside < reject);
    }

    #[test]
    fn an_excluded_port_is_not_refused() {
        let redirection = Redirection {
            exclude_inbound_ports: vec![15000],
            ..Redirection::default()
        };
        assert!(rules(&redirection, true).contains("proto-dst { 15001, 15006 } reject"));
    }

    #[test]
    fn without_ipv6_nothing_names_it() {
        let redirection = Redirection {
            exclude_outbound_ranges: vec![("fd00::".parse().unwrap(), 8)],
            keep_within: vec![("10.77.0.0".parse().unwrap(), 16)],
            ..Redirection::default()
        };
        let rules = rules(&redirection, false);
        assert!(rules.starts_with("add table ip tulle\n"), "{rules}");
        for word in ["inet", "ip6", "icmpx", "::"] {
            assert!(!rules.contains(word), "{word}: {rules}");
        }
    }
}
