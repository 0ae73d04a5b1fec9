//! The rules for `iptables`, for kernels without nf_tables. A table of our own in [`crate::nft`]
//! becomes chains of our own, which the kernel's chains jump to. The chains of one kernel table are
//! replaced in one transaction, and the jumps are added only once.
//!
//! There are several programs of the name, for either packet filter. The first whose tables the
//! kernel has is used.

use crate::command::CommandError;
use crate::redirection::{Place, Redirection};
use std::fmt::Write;
use std::net::IpAddr;

/// A program that shows rules, and its twin that loads them from a script.
struct Tool {
    show: &'static str,
    restore: &'static str,
}

const IPV4: [Tool; 2] = [
    Tool {
        show: "iptables",
        restore: "iptables-restore",
    },
    Tool {
        show: "iptables-legacy",
        restore: "iptables-legacy-restore",
    },
];
const IPV6: [Tool; 2] = [
    Tool {
        show: "ip6tables",
        restore: "ip6tables-restore",
    },
    Tool {
        show: "ip6tables-legacy",
        restore: "ip6tables-legacy-restore",
    },
];

/// kube-proxy and others may hold the lock that these programs share.
const WAIT: [&str; 2] = ["--wait", "60"];

/// Jumps to our chains: table, the kernel's chain, ours.
const JUMPS: [(&str, &str, &str); 4] = [
    ("filter", "INPUT", "TULLE_REFUSE"),
    ("filter", "OUTPUT", "TULLE_KEEP"),
    ("nat", "PREROUTING", "TULLE_INBOUND"),
    ("nat", "OUTPUT", "TULLE_OUTBOUND"),
];

/// Present rules of one family.
struct Known<'a> {
    tool: &'a Tool,
    /// Rules, each with the table it is in.
    rules: [(&'static str, String); 2],
}

impl Known<'_> {
    fn has(&self, table: &str, chain: &str, target: &str) -> bool {
        let jump = format!("-A {chain} -j {target}");
        let rules = self.rules.iter().filter(|(of, _)| *of == table);
        rules
            .into_iter()
            .any(|(_, rules)| rules.lines().any(|line| line == jump))
    }
}

/// Reads the rules with the first program whose tables the kernel has.
fn look<'a>(place: Place<'_>, tools: &'a [Tool; 2]) -> Result<Known<'a>, CommandError> {
    let [first, second] = tools;
    let ask = |tool: &'a Tool| {
        let list = |table| {
            let args = [&WAIT[..], &["--table", table, "--list-rules"]].concat();
            place.run(tool.show, &args, "").map(|rules| (table, rules))
        };
        Ok(Known {
            tool,
            rules: [list("filter")?, list("nat")?],
        })
    };
    // The first program's error is more useful than the absence of the second.
    ask(first).or_else(|error| ask(second).map_err(|_| error))
}

pub(crate) fn apply(
    place: Place<'_>,
    redirection: &Redirection,
    ipv6: bool,
) -> Result<(), CommandError> {
    // Both are read before either is changed.
    let known = look(place, &IPV4)?;
    let known6 = if ipv6 {
        Some(look(place, &IPV6)?)
    } else {
        None
    };
    for (known, v6) in std::iter::once((known, false)).chain(known6.map(|known| (known, true))) {
        let script = rules(redirection, v6, |jump| !known.has(jump.0, jump.1, jump.2));
        let args = [&WAIT[..], &["--noflush"]].concat();
        place.run(known.tool.restore, &args, &script)?;
    }
    Ok(())
}

/// Asks the kernel for the tables of the namespace of the calling process, of both families where it has both.
pub(crate) fn look_here(ipv6: bool) -> Result<(), CommandError> {
    let families = [Some(&IPV4), ipv6.then_some(&IPV6)];
    let mut families = families.into_iter().flatten();
    families.try_for_each(|tools| look(Place::Here, tools).map(drop))
}

/// Whether the rules are in place.
pub(crate) fn find(place: Place<'_>, ipv6: bool) -> Result<(), CommandError> {
    let families = [Some(&IPV4), ipv6.then_some(&IPV6)];
    for tools in families.into_iter().flatten() {
        let known = look(place, tools)?;
        for (table, chain, target) in JUMPS {
            if !known.has(table, chain, target) {
                return Err(CommandError::Failed {
                    command: format!("{} --table {table} --list-rules", known.tool.show),
                    said: format!("{chain} does not lead to {target}"),
                });
            }
        }
    }
    Ok(())
}

/// The rules as a script for `iptables-restore --noflush`, or for `ip6tables-restore`. Pure.
fn rules(
    redirection: &Redirection,
    v6: bool,
    mut is_missing: impl FnMut((&str, &str, &str)) -> bool,
) -> String {
    let mut script = String::new();
    // The refusals come first: others are kept from the sidecar's ports before any redirection.
    for (table, chains) in [
        ("filter", &["TULLE_REFUSE", "TULLE_KEEP"][..]),
        (
            "nat",
            &["TULLE_INBOUND", "TULLE_OUTBOUND", "TULLE_SIDECAR"][..],
        ),
    ] {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(script, "*{table}");
        for chain in chains {
            let _ = writeln!(script, ":{chain} - [0:0]");
        }
        for rule in match table {
            "filter" => filter(redirection, v6),
            _ => nat(redirection, v6),
        } {
            let _ = writeln!(script, "-A {rule}");
        }
        for jump in JUMPS {
            let (of, chain, target) = jump;
            if of == table && is_missing(jump) {
                let _ = writeln!(script, "-I {chain} 1 -j {target}");
            }
        }
        script.push_str("COMMIT\n");
    }
    script
}

fn filter(redirection: &Redirection, v6: bool) -> Vec<String> {
    let mut rules = Vec::new();
    let own = [redirection.outbound_port, redirection.inbound_port];
    let mut refused = [&redirection.refuse_inbound_ports[..], &own].concat();
    refused.retain(|port| !redirection.exclude_inbound_ports.contains(port));
    for port in once(refused) {
        rules.push(format!(
            "TULLE_REFUSE ! -i lo -p tcp -m conntrack --ctstate NEW --ctorigdstport {port} \
             -j REJECT --reject-with tcp-reset"
        ));
    }
    if redirection.keep_within.is_empty() {
        return rules;
    }
    let uid = redirection.sidecar_uid;
    rules.push(format!("TULLE_KEEP -m owner --uid-owner {uid} -j RETURN"));
    // The last packets of a connection that the sidecar has closed have no user any more; nobody else can have established one.
    rules.push("TULLE_KEEP -p tcp -m conntrack --ctstate ESTABLISHED -j RETURN".into());
    let (near, no_route): (&[&str], _) = match v6 {
        true => (&["::1", "fe80::/10", "ff00::/8"], "icmp6-no-route"),
        false => (&["127.0.0.0/8"], "icmp-net-unreachable"),
    };
    for near in near {
        rules.push(format!("TULLE_KEEP -d {near} -j RETURN"));
    }
    for range in
        ranges(&redirection.keep_within, v6).chain(ranges(&redirection.exclude_outbound_ranges, v6))
    {
        rules.push(format!("TULLE_KEEP -d {range} -j RETURN"));
    }
    for port in once(redirection.exclude_outbound_ports.clone()) {
        rules.push(format!("TULLE_KEEP -p tcp --dport {port} -j RETURN"));
    }
    rules.push(format!("TULLE_KEEP -j REJECT --reject-with {no_route}"));
    rules
}

fn nat(redirection: &Redirection, v6: bool) -> Vec<String> {
    let Redirection {
        outbound_port,
        inbound_port,
        sidecar_uid,
        ..
    } = redirection;
    let to_port = |port: u16| format!("-p tcp -j REDIRECT --to-ports {port}");
    let inbound = |chain: &str| {
        let excluded = once(redirection.exclude_inbound_ports.clone());
        let excluded = excluded.map(|port| format!("{chain} -p tcp --dport {port} -j RETURN"));
        let all = format!("{chain} {}", to_port(*inbound_port));
        excluded.chain([all]).collect::<Vec<_>>()
    };
    let mut rules = vec!["TULLE_INBOUND -i lo -j RETURN".to_owned()];
    rules.extend(inbound("TULLE_INBOUND"));

    rules.push(format!(
        "TULLE_OUTBOUND -m owner --uid-owner {sidecar_uid} -g TULLE_SIDECAR"
    ));
    // The DNS rules come before the exception for loopback: many hosts have a resolver there.
    for protocol in ["udp", "tcp"] {
        if let Some(port) = redirection.dns_port {
            rules.push(format!(
                "TULLE_OUTBOUND -p {protocol} --dport 53 -j REDIRECT --to-ports {port}"
            ));
        }
    }
    rules.push("TULLE_OUTBOUND -o lo -j RETURN".to_owned());
    for port in once(redirection.exclude_outbound_ports.clone()) {
        rules.push(format!("TULLE_OUTBOUND -p tcp --dport {port} -j RETURN"));
    }
    for range in ranges(&redirection.exclude_outbound_ranges, v6) {
        rules.push(format!("TULLE_OUTBOUND -d {range} -j RETURN"));
    }
    let outbound = to_port(*outbound_port);
    if redirection.include_outbound_ranges.is_empty() {
        rules.push(format!("TULLE_OUTBOUND {outbound}"));
    }
    for range in ranges(&redirection.include_outbound_ranges, v6) {
        rules.push(format!("TULLE_OUTBOUND -d {range} {outbound}"));
    }

    rules.push("TULLE_SIDECAR ! -o lo -j RETURN".to_owned());
    let loopback = if v6 { "::1" } else { "127.0.0.0/8" };
    rules.push(format!("TULLE_SIDECAR -s {loopback} -j RETURN"));
    rules.extend(inbound("TULLE_SIDECAR"));
    rules
}

/// Returns each port once.
fn once(mut ports: Vec<u16>) -> impl Iterator<Item = u16> {
    ports.sort_unstable();
    ports.dedup();
    ports.into_iter()
}

/// Returns the ranges of the family.
fn ranges(ranges: &[(IpAddr, u8)], v6: bool) -> impl Iterator<Item = String> {
    let ranges = ranges
        .iter()
        .filter(move |(address, _)| address.is_ipv6() == v6);
    ranges.map(|(address, prefix)| {
        let longest = if address.is_ipv6() { 128 } else { 32 };
        format!("{address}/{}", (*prefix).min(longest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ranges_of_the_family_are_named() {
        let redirection = Redirection {
            exclude_outbound_ranges: vec![
                ("fd00::".parse().unwrap(), 8),
                ("10.0.0.0".parse().unwrap(), 8),
            ],
            ..Redirection::default()
        };
        for (v6, own, other) in [
            (false, "10.0.0.0/8", "fd00::"),
            (true, "fd00::/8", "10.0.0.0"),
        ] {
            let rules = rules(&redirection, v6, |_| true);
            assert!(rules.contains(&format!("-d {own} -j RETURN")), "{rules}");
            assert!(!rules.contains(other), "{rules}");
        }
    }

    #[test]
    fn jumps_are_made_but_once() {
        let redirection = Redirection::default();
        let first = rules(&redirection, false, |_| true);
        assert_eq!(first.matches("-I ").count(), JUMPS.len(), "{first}");
        let again = rules(&redirection, false, |_| false);
        assert_eq!(again.matches("-I ").count(), 0, "{again}");
    }
}
