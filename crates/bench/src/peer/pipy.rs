//! Two Pipy, running a script of ours: `bench/peers/pipy/sidecar.js`.
//!
//! No registry of packages has Pipy, so no test of ours runs it: the script is written after its
//! sources and manual. Its proof is the same as everybody's, so a script that does not work makes
//! invalid samples, not wrong ones.

use super::hop::{Hop, hops};
use super::{CLIENT, Mode, Peer, SERVER, Sidecar, Topology, http};
use crate::failure::{OrFail, Result};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Command;

const SCRIPT: &str = include_str!("../../../../bench/peers/pipy/sidecar.js");

/// Pipy as a sidecar: certificates verified both ways, compared by their common names.
pub struct Pipy {
    /// The program.
    pub program: PathBuf,
}

impl Peer for Pipy {
    fn name(&self) -> &'static str {
        "pipy"
    }

    fn version(&self) -> Result<String> {
        crate::tools::version(Command::new(&self.program).arg("--version"))
    }

    fn notes(&self) -> Vec<String> {
        [
            "pipy: a minimal script of ours for Pipy 1.x (bench/peers/pipy), not that of osm-edge, which does and costs more. It is not run by our tests: no registry has the program.",
            "pipy: the script cannot match a SPIFFE id. Certificates are verified against the CA both ways and compared by their common names. It counts requests, no statuses, no latency.",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn told_caller(&self) -> Option<String> {
        Some(format!("Subject=\"CN={CLIENT}\""))
    }

    fn sidecars(&self, topology: &Topology) -> Result<Vec<Sidecar>> {
        super::only_http("pipy", topology)?;
        let script = super::write(topology, "sidecar.js", SCRIPT)?;
        let sidecar = |hop: &Hop| {
            let name = format!("pipy-{}.json", hop.role);
            let text = configuration(hop)?;
            let mut sidecar = Sidecar::new(topology, hop.role, name, text, |path| {
                let mut command = Command::new(&self.program);
                command.arg(format!("--threads={}", hop.workers));
                command.arg("--log-level=error");
                command.arg(&script).env("TULLE_BENCH_SIDECAR", path);
                command
            })?;
            let name = "pipy-sidecar.js".to_owned();
            sidecar.files.insert(name, SCRIPT.to_owned());
            Ok(sidecar)
        };
        hops(topology)?.iter().map(sidecar).collect()
    }

    fn prove(
        &self,
        topology: &Topology,
        answered: u64,
    ) -> std::result::Result<Vec<String>, String> {
        let admin = match topology.mode {
            Mode::Baseline => return Ok(super::baseline()),
            Mode::ClientSidecar => topology.ports.client_admin,
            Mode::ServerSidecar | Mode::Both => topology.ports.server_admin,
        };
        let counters = Counters::from_admin(admin)?;
        if topology.mode != Mode::Both {
            return super::one_sidecar(topology, "requests", counters.requests, answered);
        }
        let client = Counters::from_admin(topology.ports.client_admin)?;
        let facts = format!(
            "{} requests; certificates of CN={CLIENT} verified {}, others refused {}; certificates of CN={SERVER} verified {}",
            counters.requests, counters.verified, counters.refused, client.verified
        );
        let proven = counters.requests >= answered && counters.verified > 0;
        if !proven || counters.refused > 0 || client.verified == 0 {
            return Err(format!("{answered} requests were answered; {facts}"));
        }
        Ok(vec![facts])
    }
}

/// The counters of the script.
#[derive(Debug, PartialEq, Deserialize)]
struct Counters {
    requests: u64,
    verified: u64,
    refused: u64,
}

impl Counters {
    fn from_admin(admin: u16) -> std::result::Result<Self, String> {
        let text = http::get(admin, "/")?;
        serde_json::from_str(&text).map_err(|e| format!("Pipy's counters cannot be read: {e}"))
    }
}

fn configuration(hop: &Hop) -> Result<String> {
    let config = serde_json::json!({
        "listen": hop.listen,
        "next": hop.next,
        "admin": hop.admin,
        "certificate": hop.files.certificate,
        "key": hop.files.key,
        "roots": hop.files.trust_bundle,
        "caller": hop.caller,
        "server": hop.server,
    });
    serde_json::to_string_pretty(&config)
        .or_fail(|| format!("cannot write the configuration of Pipy's {}", hop.role))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Ports;
    use serde_json::Value;
    use std::fs;
    use tulle_model::resource::Protocol;

    #[test]
    fn its_files_are_written_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let topology =
            |protocol| Topology::new(dir.path(), Mode::Both, protocol, Ports::from(20000)).unwrap();
        let pipy = Pipy {
            program: "/opt/pipy".into(),
        };
        let sidecars = pipy.sidecars(&topology(Protocol::Http)).unwrap();
        let roles: Vec<_> = sidecars.iter().map(|s| s.role).collect();
        assert_eq!(roles, ["server", "client"]);
        for sidecar in &sidecars {
            assert_eq!(sidecar.command.get_program(), "/opt/pipy");
            let words: Vec<_> = sidecar.command.get_args().collect();
            let [threads, level, script] = words[..] else {
                panic!("{words:?}");
            };
            assert_eq!(
                (threads, level),
                ("--threads=1".as_ref(), "--log-level=error".as_ref())
            );
            assert_eq!(fs::read_to_string(script).unwrap(), SCRIPT);
            let (name, path) = sidecar.command.get_envs().next().unwrap();
            assert_eq!(name, "TULLE_BENCH_SIDECAR");
            let text = fs::read_to_string(path.unwrap()).unwrap();
            let config: Value = serde_json::from_str(&text).unwrap();
            let certificate = config["certificate"].as_str().unwrap();
            assert!(
                fs::read_to_string(certificate)
                    .unwrap()
                    .contains("CERTIFICATE")
            );
            let expected = match sidecar.role {
                "server" => ["127.0.0.1:20002", "127.0.0.1:20000"],
                _ => ["127.0.0.1:20001", "127.0.0.1:20002"],
            };
            assert_eq!([&config["listen"], &config["next"]], expected);
            let (caller, server) = match sidecar.role {
                "server" => (Value::from(CLIENT), Value::Null),
                _ => (Value::Null, Value::from(SERVER)),
            };
            assert_eq!((&config["caller"], &config["server"]), (&caller, &server));
            // Everything the script reads is there.
            for word in SCRIPT.split("config.").skip(1) {
                let key: String = word.chars().take_while(char::is_ascii_alphabetic).collect();
                assert!(config.get(&key).is_some(), "{key}");
            }
        }
        let failure = pipy.sidecars(&topology(Protocol::Tcp)).map(drop);
        assert!(failure.unwrap_err().to_string().contains("haproxy-tcp"));
    }
}
