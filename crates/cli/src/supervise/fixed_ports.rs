//! Ports that a gateway keeps. They are noted in the state directory, so that a scraper or a
//! firewall finds them again after a restart of the gateway or of the whole mesh.

use super::ports::Reserved;
use crate::new_file::write_durably;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Ports of gateways' metrics.
pub(crate) const METRICS: RangeInclusive<u16> = 15020..=15099;
/// Ports of gateways' administration.
pub(crate) const ADMIN: RangeInclusive<u16> = 15100..=15179;

/// Notes which port belongs to whom; at most one name for each port of the ranges.
#[derive(Debug)]
pub(crate) struct FixedPorts {
    file: PathBuf,
    owners: RefCell<BTreeMap<u16, String>>,
}

impl FixedPorts {
    /// Reads what was noted before. A file that cannot be read notes nothing.
    pub(crate) fn read(file: PathBuf) -> Self {
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(e) => {
                if e.kind() != ErrorKind::NotFound {
                    tracing::warn!(file = %file.display(), error = %e, "ports are chosen anew");
                }
                String::new()
            }
        };
        let owners: BTreeMap<u16, String> = serde_json::from_str(&text).unwrap_or_default();
        let noted = |port: &u16| METRICS.contains(port) || ADMIN.contains(port);
        Self {
            file,
            owners: RefCell::new(owners.into_iter().filter(|(p, _)| noted(p)).collect()),
        }
    }

    /// Takes the port that `name` had before; else one that nobody has had, else one whose owner is
    /// gone. None: all are taken.
    pub(crate) fn take(
        &self,
        name: &str,
        ip: IpAddr,
        range: RangeInclusive<u16>,
    ) -> Option<Reserved> {
        let found = self
            .preferred(name, &range)
            .into_iter()
            .find_map(|port| Reserved::bind(SocketAddr::new(ip, port)).ok())?;
        let port = found.address().port();
        let changed = {
            let mut owners = self.owners.borrow_mut();
            let before = owners.clone();
            owners.retain(|port, owner| !(range.contains(port) && owner == name));
            owners.insert(port, name.to_owned());
            *owners != before
        };
        if changed && let Err(e) = self.write() {
            tracing::warn!(file = %self.file.display(), error = %e, "a port is not noted");
        }
        Some(found)
    }

    /// The ports of the range, in the order in which `name` asks for them.
    fn preferred(&self, name: &str, range: &RangeInclusive<u16>) -> Vec<u16> {
        let owners = self.owners.borrow();
        let rank = |port: &u16| match owners.get(port).map(String::as_str) {
            Some(owner) if owner == name => 0,
            None => 1,
            Some(_) => 2,
        };
        let mut ports: Vec<u16> = range.clone().collect();
        ports.sort_by_key(rank);
        ports
    }

    fn write(&self) -> std::io::Result<()> {
        let text = serde_json::to_vec_pretty(&*self.owners.borrow())?;
        write_durably(&self.file, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// Where no gateway listens: meshes of other tests run at the same time.
    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 80, 1));

    #[test]
    fn a_port_is_kept_over_restarts_and_given_on_when_all_are_noted() {
        let dir = tempfile::tempdir().unwrap();
        let ports = || FixedPorts::read(dir.path().join("ports.json"));
        let first = ports();
        let one = first.take("a", LOCALHOST, METRICS).unwrap();
        let two = first.take("b", LOCALHOST, METRICS).unwrap();
        let (a, b) = (one.address().port(), two.address().port());
        assert!(a != b && METRICS.contains(&a) && METRICS.contains(&b));
        // Started again, by another process. Whether the ports are free by now is not this test's: a child
        // of another test has copies of their sockets until it has become another program.
        let again = ports();
        let asks_first = |name: &str| again.preferred(name, &METRICS).first().copied();
        assert_eq!((asks_first("a"), asks_first("b")), (Some(a), Some(b)));
        // Another name gets neither, also when no other port is left.
        let others = again.preferred("c", &METRICS);
        assert_eq!(
            others.get(others.len() - 2..),
            Some(&[a.min(b), a.max(b)][..])
        );
        assert!(again.take("d", LOCALHOST, a..=a).is_none());
        drop((one, two));
        let mut gone = None;
        // A refusal notes nothing.
        while gone.is_none() {
            std::thread::yield_now();
            gone = again.take("d", LOCALHOST, a..=a);
        }
        assert_eq!(gone.unwrap().address().port(), a, "its owner is gone");
        assert_eq!(ports().preferred("d", &METRICS).first(), Some(&a));
    }

    #[test]
    fn a_damaged_file_notes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ports.json");
        for text in ["{", r#"{"22": "a"}"#, r#"{"99999": "a"}"#] {
            fs::write(&file, text).unwrap();
            assert!(FixedPorts::read(file.clone()).owners.borrow().is_empty());
        }
    }
}
