//! Hosts of requests. Istio compares the authority of a request as it was sent, with its port and in any letter case;
//! `request.host` has no port, no dot at its end, and is in lower case.

use crate::import::imported::Imported;

/// Reads the hosts of a rule of a policy.
pub(super) fn hosts(id: &str, at: &str, given: &[String], imported: &mut Imported) -> Vec<String> {
    let given: Vec<String> = given.iter().map(|host| host.to_ascii_lowercase()).collect();
    let mut hosts = Vec::new();
    for host in &given {
        // A host without a port is compared with any, so one with any says nothing beside it.
        let plain = host.strip_suffix(":*");
        if plain.is_some_and(|plain| given.iter().any(|other| other == plain)) {
            continue;
        }
        match is_compared(host) {
            true => hosts.push(host.clone()),
            false => {
                let why = format!(
                    "`{host}` is no request's: the port of a Host is not compared, nor is a dot at its end"
                );
                imported.lose(id, at, &why, "say `ports` instead");
            }
        }
    }
    hosts
}

/// Whether a host can be that of a request here: it has no port, and no dot at its end.
pub(super) fn is_compared(host: &str) -> bool {
    !host.contains(':') && !host.ends_with('.')
}
