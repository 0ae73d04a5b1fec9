//! The hosts file with the services' names inside the namespaces.
//!
//! A file replaces a DNS server: names change only when the mesh does, every resolver reads the
//! file first, and no process has to run or be trusted on port 53.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Names by address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosts {
    entries: BTreeMap<IpAddr, Vec<String>>,
}

/// Why the hosts file could not be written.
#[derive(Debug)]
pub enum HostsError {
    /// A name that would corrupt the file.
    Name {
        /// The name.
        name: String,
    },
    /// The file could not be written.
    Write {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Display for HostsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { name } => write!(
                f,
                "{name:?} cannot be a host name; use letters, digits, `-`, `_` and `.`, at most 253"
            ),
            Self::Write { path, source } => {
                write!(
                    f,
                    "cannot write the hosts file {}: {source}",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for HostsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Write { source, .. } => Some(source),
            Self::Name { .. } => None,
        }
    }
}

impl Hosts {
    /// Creates a file with only `localhost`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives an address names; the first is its canonical one. Repeats are ignored.
    pub fn insert<N: AsRef<str>>(
        &mut self,
        address: impl Into<IpAddr>,
        names: impl IntoIterator<Item = N>,
    ) -> Result<(), HostsError> {
        let address = address.into();
        for name in names {
            let name = name.as_ref();
            if !is_host_name(name) {
                return Err(HostsError::Name {
                    name: name.to_owned(),
                });
            }
            let known = self.entries.entry(address).or_default();
            if !known.iter().any(|n| n == name) {
                known.push(name.to_owned());
            }
        }
        Ok(())
    }

    /// The text of the file.
    pub fn render(&self) -> String {
        let mut text = format!(
            "# Written by Tulle; changes are lost.\n{} localhost\n{} localhost ip6-localhost\n",
            Ipv4Addr::LOCALHOST,
            Ipv6Addr::LOCALHOST
        );
        for (address, names) in &self.entries {
            text.push_str(&format!("{address} {}\n", names.join(" ")));
        }
        text
    }

    /// Writes the file in place. The namespaces see it through a bind mount, which holds on to the
    /// inode, so the usual write-and-rename would not reach them. A concurrent reader may see a
    /// mixture of both; the next read sees the new file.
    pub fn write(&self, path: &Path) -> Result<(), HostsError> {
        let failed = |source| HostsError::Write {
            path: path.to_owned(),
            source,
        };
        let text = self.render();
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(path)
            .map_err(failed)?;
        file.write_all_at(text.as_bytes(), 0).map_err(failed)?;
        file.set_len(text.len() as u64).map_err(failed)
    }
}

fn is_host_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=253).contains(&name.len()) && name.bytes().all(plain)
}

/// The `resolv.conf` inside the namespaces. No server is reachable there, so an unknown name fails
/// at once (refused on loopback) instead of after the host's timeout.
pub const RESOLV_CONF: &str =
    "# Written by Tulle: names come from /etc/hosts.\noptions timeout:1 attempts:1\n";

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn rendering() {
        let mut hosts = Hosts::new();
        hosts
            .insert(
                Ipv4Addr::new(10, 77, 128, 2),
                ["ratings", "ratings.mesh", "ratings"],
            )
            .unwrap();
        hosts
            .insert(Ipv4Addr::new(10, 77, 128, 1), ["details"])
            .unwrap();
        hosts
            .insert("fd00::2:1".parse::<Ipv6Addr>().unwrap(), ["ratings"])
            .unwrap();
        assert_eq!(
            hosts.render(),
            "# Written by Tulle; changes are lost.\n127.0.0.1 localhost\n::1 localhost ip6-localhost\n\
             10.77.128.1 details\n10.77.128.2 ratings ratings.mesh\nfd00::2:1 ratings\n"
        );
    }

    #[test]
    fn a_name_cannot_add_lines() {
        for name in ["a\n1.2.3.4 b", "a b", "", "a#b"] {
            assert!(
                Hosts::new().insert(Ipv4Addr::LOCALHOST, [name]).is_err(),
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_shorter_file_keeps_the_inode_and_leaves_no_tail() {
        let path = std::env::temp_dir().join(format!("tulle-hosts-{}", std::process::id()));
        let mut hosts = Hosts::new();
        hosts
            .insert(Ipv4Addr::new(10, 1, 1, 1), ["a-rather-long-name"])
            .unwrap();
        hosts.write(&path).unwrap();
        let inode = std::fs::metadata(&path).unwrap().ino();
        Hosts::new().write(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode);
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            Hosts::new().render()
        );
        std::fs::remove_file(&path).unwrap();
    }
}
