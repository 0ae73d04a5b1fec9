//! Serves a workload without a sidecar: redirects calls to its ports to its application's.
//!
//! Applications in a mesh often listen on loopback, and on another port than the service's. A
//! sidecar bridges that; without one a rule in the namespace does. Only IPv4 works: the kernel
//! redirects no connection from elsewhere to `::1`.

use crate::command::CommandError;
use crate::network::Namespace;
use crate::redirection::Place;
use std::fmt::Write;

/// Lets connections from elsewhere reach 127.0.0.1, within this namespace only.
const ALLOW_LOOPBACK: &str = "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet";

/// The rules as a script for `nft -f`, for pairs of a service's port and the application's. Pure.
fn rules(ports: &[(u16, u16)]) -> String {
    let lead = |condition: &str| {
        ports.iter().fold(String::new(), |mut rules, (port, own)| {
            // Writing to a String cannot fail.
            let _ = writeln!(
                rules,
                "\t\t{condition}tcp dport {port} dnat ip to 127.0.0.1:{own}"
            );
            rules
        })
    };
    let (others, itself) = (
        lead("iifname != \"lo\" "),
        lead("ip daddr != 127.0.0.0/8 oifname \"lo\" "),
    );
    // "add" before "delete" keeps deleting a missing table from being an error.
    format!(
        "\
add table ip tulle
delete table ip tulle
table ip tulle {{
	# Calls of others.
	chain inbound {{
		type nat hook prerouting priority -100; policy accept;
{others}	}}
	# Calls of the workload to itself, by its own address.
	chain itself {{
		type nat hook output priority -100; policy accept;
{itself}	}}
}}
"
    )
}

/// Applies the rules in a workload's namespace.
///
/// # Errors
/// `ip` or `nft` is missing or refused.
pub fn apply_direct(namespace: &Namespace, ports: &[(u16, u16)]) -> Result<(), CommandError> {
    let place = Place::In(namespace);
    place.run("sh", &["-c", ALLOW_LOOPBACK], "")?;
    place.run("nft", &["-f", "-"], &rules(ports)).map(drop)
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_port_is_led_to_the_applications_own() {
        let rules = super::rules(&[(80, 8080), (9080, 9080)]);
        for line in [
            "\t\tiifname != \"lo\" tcp dport 80 dnat ip to 127.0.0.1:8080\n",
            "\t\tiifname != \"lo\" tcp dport 9080 dnat ip to 127.0.0.1:9080\n",
            "\t\tip daddr != 127.0.0.0/8 oifname \"lo\" tcp dport 80 dnat ip to 127.0.0.1:8080\n",
        ] {
            assert!(rules.contains(line), "{rules}");
        }
    }
}
