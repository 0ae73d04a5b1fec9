//! Two `tulle-proxy`, each with a file for what it knows.

use super::topology::spiffe;
use super::{CLIENT, Peer, SERVER, Sidecar, Topology, http};
use crate::failure::{OrFail, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use tulle_model::bootstrap::Bootstrap;

/// The subject.
pub struct Tulle {
    /// `tulle-proxy`.
    pub program: PathBuf,
}

impl Peer for Tulle {
    fn name(&self) -> &'static str {
        crate::stats::SUBJECT
    }

    fn version(&self) -> Result<String> {
        super::first_line(Command::new(&self.program).arg("--version"))
    }

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn sidecars(&self, topology: &Topology) -> Result<Vec<Sidecar>> {
        let mut sidecars = Vec::new();
        if topology.mode.has_server() {
            sidecars.push(self.sidecar(topology, "server", &topology.server())?);
        }
        if topology.mode.has_client() {
            sidecars.push(self.sidecar(topology, "client", &topology.client())?);
        }
        Ok(sidecars)
    }

    fn prove(
        &self,
        topology: &Topology,
        answered: u64,
    ) -> std::result::Result<Vec<String>, String> {
        let metrics = http::get(topology.ports.server_metrics, "/metrics")?;
        let [client, server] = [spiffe(CLIENT), spiffe(SERVER)];
        let right = [
            "connection_security_policy=\"mutual_tls\"".to_owned(),
            format!("source_principal=\"{client}\""),
            format!("destination_principal=\"{server}\""),
        ];
        let (mut good, mut other) = (0, 0);
        for line in metrics.lines() {
            let Some((labels, value)) = line
                .strip_prefix("istio_requests_total{")
                .and_then(|rest| rest.rsplit_once("} "))
            else {
                continue;
            };
            let count = value.parse::<u64>().unwrap_or(0);
            if right.iter().all(|label| labels.contains(label)) {
                good += count;
            } else {
                other += count;
            }
        }
        if good < answered || other > 0 {
            return Err(format!(
                "{answered} requests were answered; the server's sidecar knows {good} of them as mutual TLS from {client}, and {other} others"
            ));
        }
        Ok(vec![format!(
            "istio_requests_total {good}: mutual_tls, {client} -> {server}"
        )])
    }
}

impl Tulle {
    fn sidecar(
        &self,
        topology: &Topology,
        role: &'static str,
        bootstrap: &Bootstrap,
    ) -> Result<Sidecar> {
        let name = format!("tulle-{role}.yaml");
        let text = serde_saphyr::to_string(bootstrap)
            .or_fail(|| format!("cannot write the configuration of Tulle's {role}"))?;
        let path = super::write(topology, &name, &text)?;
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(path);
        Ok(Sidecar {
            role,
            command,
            files: BTreeMap::from([(name, text)]),
        })
    }
}
