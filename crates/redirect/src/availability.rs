//! Checks whether interception can work here, without changing anything.

use crate::command::{self, CommandError};
use crate::iptables;
use crate::redirection::{Redirection, has_ipv6, nft_rules};

/// The requirements of interception, and whether each is met here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Availability {
    /// The process is root and has the capabilities to create namespaces and rules.
    pub root: bool,
    /// `nft` is installed and the kernel accepts the rules.
    pub nft: bool,
    /// `iptables` is installed and the kernel has its tables. Only looked at where `nft` does not work.
    pub iptables: bool,
    /// `ip` is installed.
    pub ip: bool,
    /// Each missing requirement, and how to meet it. Empty: interception works.
    pub why_not: Vec<String>,
}

impl Availability {
    /// Whether every requirement is met.
    pub fn is_complete(&self) -> bool {
        self.why_not.is_empty()
    }
}

/// Checks the requirements, and has the kernel check (not apply) a set of rules.
pub fn available() -> Availability {
    let mut why_not = Vec::new();
    let root = match missing_privilege() {
        None => true,
        Some(why) => {
            why_not.push(why);
            false
        }
    };
    let ip = keep(command::find("ip").map(drop), &mut why_not);
    let by_nft = command::find("nft").and_then(|_| if root { check_rules() } else { Ok(()) });
    let nft = by_nft.is_ok();
    let by_iptables = by_nft.or_else(|nft| {
        // Without root there is nothing to ask the kernel.
        let iptables = if root {
            iptables::look_here(has_ipv6())
        } else {
            command::find("iptables").map(drop)
        };
        iptables.map_err(|iptables| CommandError::Neither {
            nft: Box::new(nft),
            iptables: Box::new(iptables),
        })
    });
    let iptables = !nft && keep(by_iptables, &mut why_not);
    Availability {
        root,
        nft,
        iptables,
        ip,
        why_not,
    }
}

fn keep(result: Result<(), CommandError>, why_not: &mut Vec<String>) -> bool {
    if let Err(error) = &result {
        why_not.push(error.to_string());
    }
    result.is_ok()
}

fn check_rules() -> Result<(), CommandError> {
    let rules = nft_rules(&Redirection::default());
    command::run("nft", &["--check", "-f", "-"], &rules)
        .map(drop)
        .map_err(|error| match error {
            CommandError::Failed { command, said } => CommandError::Failed {
                command,
                said: format!(
                    "{said} (the kernel needs nf_tables with NAT for inet, Linux 5.2 or later)"
                ),
            },
            other => other,
        })
}

fn missing_privilege() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root; run as root (sudo)".to_owned());
    }
    // Root in a container may lack these.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    let missing: Vec<&str> = [(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN")]
        .iter()
        .filter(|(bit, _)| mask >> bit & 1 == 0)
        .map(|(_, name)| *name)
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "root lacks {} here (a container?); grant it or use loopback mode",
            missing.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_why_not_exactly_if_something_is_missing() {
        let found = available();
        assert_eq!(
            found.is_complete(),
            found.root && (found.nft || found.iptables) && found.ip,
            "{found:?}"
        );
    }
}
