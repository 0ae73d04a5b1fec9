//! Transparent redirection: which TCP connections of a namespace go to the sidecar.
//!
//! The rules live in one table of their own, `inet tulle` (IPv4 and IPv6 alike), which is replaced
//! whole in one transaction: applying twice is the same as applying once, no packet ever meets
//! half the rules, and taking the table away takes away everything. UDP is never touched, but for DNS
//! where the sidecar answers it, and where a workload is kept in its networks.
//!
//! A connection's first destination stays with the kernel: the sidecar asks for it with
//! `SO_ORIGINAL_DST` (IPv4) or `IP6T_SO_ORIGINAL_DST` (IPv6).
//!
//! The sidecar must reach the application from a loopback address (connect to `127.0.0.1` or
//! `::1`, or bind to them first): its connections from there are left alone. Those it makes to
//! an address of its own namespace in any other way are taken for what they are when a workload
//! calls its own service, a call to be received like any other, and go to the inbound port.

use crate::command::{self, CommandError};
use crate::network::Namespace;
use std::fmt::Write;
use std::net::IpAddr;

/// What to redirect. The default is that of a workload in a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirection {
    /// Where the sidecar takes the application's own connections.
    pub outbound_port: u16,
    /// Where the sidecar takes connections to the application.
    pub inbound_port: u16,
    /// Where the sidecar answers the application's DNS; none: DNS passes by, as all UDP.
    pub dns_port: Option<u16>,
    /// The user the sidecar runs as, and nothing else may.
    pub sidecar_uid: u32,
    /// Ports that keep their own listener: metrics and health of the sidecar, SSH.
    pub exclude_inbound_ports: Vec<u16>,
    /// Ports that others may not reach, although they would be redirected to the sidecar, which
    /// can reach the loopback listener behind them. Its own two ports need not be named.
    pub refuse_inbound_ports: Vec<u16>,
    /// Destination ports the application reaches directly.
    pub exclude_outbound_ports: Vec<u16>,
    /// Destination networks (address and prefix length) the application reaches directly.
    pub exclude_outbound_ranges: Vec<(IpAddr, u8)>,
    /// The only destination networks that are not reached directly; empty: all.
    pub include_outbound_ranges: Vec<(IpAddr, u8)>,
    /// Networks that hold everything but the sidecar: what is not redirected and would leave them is
    /// refused. Empty: it is let be.
    pub keep_within: Vec<(IpAddr, u8)>,
}

impl Default for Redirection {
    fn default() -> Self {
        Self {
            outbound_port: 15001,
            inbound_port: 15006,
            dns_port: None,
            sidecar_uid: 1500,
            exclude_inbound_ports: vec![22, 15020, 15021],
            refuse_inbound_ports: vec![15000],
            exclude_outbound_ports: vec![22],
            exclude_outbound_ranges: Vec::new(),
            include_outbound_ranges: Vec::new(),
            keep_within: Vec::new(),
        }
    }
}

/// The rules as a script for `nft -f`. Pure; the order of lists does not matter.
pub fn redirection_rules(redirection: &Redirection) -> String {
    let Redirection {
        outbound_port,
        inbound_port,
        sidecar_uid,
        ..
    } = redirection;
    let inbound_excluded = return_for_ports(&redirection.exclude_inbound_ports);
    let outbound_excluded = return_for_ports(&redirection.exclude_outbound_ports)
        + &for_ranges(&redirection.exclude_outbound_ranges, "return");
    let redirect = format!("meta l4proto tcp redirect to :{outbound_port}");
    let outbound_included = match redirection.include_outbound_ranges.as_slice() {
        [] => format!("\t\t{redirect}\n"),
        ranges => for_ranges(ranges, &redirect),
    };
    // Before loopback is let be: a resolver there is what many hosts have.
    let dns = redirection.dns_port.map_or_else(String::new, |port| {
        format!("\t\tudp dport 53 redirect to :{port}\n\t\ttcp dport 53 redirect to :{port}\n")
    });
    let mut refused = redirection.refuse_inbound_ports.clone();
    refused.extend([*outbound_port, *inbound_port]);
    refused.retain(|port| !redirection.exclude_inbound_ports.contains(port));
    let refused = set(refused);
    let keep = keep(redirection);
    // "add" before "delete", so that deleting what is not there is no error.
    format!(
        "\
add table inet tulle
delete table inet tulle
table inet tulle {{
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
		ip6 saddr ::1 return
{inbound_excluded}		meta l4proto tcp redirect to :{inbound_port}
	}}
{keep}}}
"
    )
}

/// The chain for [`Redirection::keep_within`].
fn keep(redirection: &Redirection) -> String {
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
    let inside = for_ranges(&inside, "return");
    let excluded = return_for_ports(exclude_outbound_ports);
    // By address: a redirected connection still carries the link it would have left by. Link-local
    // and multicast addresses of IPv6 are how neighbours find each other.
    format!(
        "\
	# Past these networks goes only what the sidecar lets go.
	chain keep {{
		type filter hook output priority 0; policy accept;
		meta skuid {sidecar_uid} return
		ip daddr 127.0.0.0/8 return
		ip6 daddr {{ ::1, fe80::/10, ff00::/8 }} return
{inside}{excluded}		reject with icmpx type no-route
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
    // An empty set is a syntax error to nft.
    if ports.is_empty() {
        return String::new();
    }
    format!("\t\ttcp dport {} return\n", set(ports.to_vec()))
}

fn for_ranges(ranges: &[(IpAddr, u8)], verdict: &str) -> String {
    // One rule each: ranges may overlap, which a set would refuse.
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable();
    ranges.dedup();
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

/// Applies the rules in a workload's namespace, replacing those of an earlier call.
pub fn apply_redirection(
    namespace: &Namespace,
    redirection: &Redirection,
) -> Result<(), CommandError> {
    let nft = command::find("nft")?;
    let nft = nft.to_string_lossy();
    let args = ["netns", "exec", &namespace.name, nft.as_ref(), "-f", "-"];
    command::run("ip", &args, &redirection_rules(redirection)).map(drop)
}

/// Applies the rules in the namespace of the calling process, which already is a pod's.
pub fn apply_redirection_here(redirection: &Redirection) -> Result<(), CommandError> {
    command::run("nft", &["-f", "-"], &redirection_rules(redirection)).map(drop)
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
        assert_eq!(
            redirection_rules(&redirection),
            include_str!("rules.expected.nft")
        );
    }

    #[test]
    fn dns_goes_to_the_sidecar_also_on_loopback() {
        let redirection = Redirection {
            dns_port: Some(15053),
            ..Redirection::default()
        };
        let rules = redirection_rules(&redirection);
        let at = |text: &str| rules.find(text).unwrap();
        let (udp, tcp) = (
            at("\t\tudp dport 53 redirect to :15053\n"),
            at("\t\ttcp dport 53 redirect to :15053\n"),
        );
        assert!(at("skuid") < udp && udp < tcp && tcp < at("oifname \"lo\" return"));
        assert!(!redirection_rules(&Redirection::default()).contains("udp"));
    }

    #[test]
    fn only_what_is_included_is_redirected() {
        let redirection = Redirection {
            include_outbound_ranges: vec![("10.0.0.0".parse().unwrap(), 8)],
            ..Redirection::default()
        };
        let rules = redirection_rules(&redirection);
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
        let rules = redirection_rules(&redirection);
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
        let rules = redirection_rules(&redirection);
        let at = |text: &str| rules.find(text).unwrap();
        let chain = at("chain keep");
        let (sidecar, inside) = (
            at("meta skuid 1500 return"),
            at("ip daddr 10.77.0.0/16 return"),
        );
        let reject = at("reject with icmpx type no-route");
        assert!(chain < sidecar && sidecar < inside && inside < reject);
    }

    #[test]
    fn an_excluded_port_is_not_refused() {
        let redirection = Redirection {
            exclude_inbound_ports: vec![15000],
            ..Redirection::default()
        };
        assert!(redirection_rules(&redirection).contains("proto-dst { 15001, 15006 } reject"));
    }
}
