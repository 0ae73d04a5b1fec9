//! Two `tulle-proxy`, each with a file for what it knows.

use super::topology::spiffe;
use super::{CLIENT, Mode, Peer, SERVER, Sidecar, Topology, http};
use crate::failure::{OrFail, Result};
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
        crate::results::stats::SUBJECT
    }

    fn version(&self) -> Result<String> {
        crate::tools::version(Command::new(&self.program).arg("--version"))
    }

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn told_caller(&self) -> Option<String> {
        Some(format!("URI={}", spiffe(CLIENT)))
    }

    fn relays_tcp(&self) -> bool {
        true
    }

    fn sidecars(&self, topology: &Topology) -> Result<Vec<Sidecar>> {
        let sidecar = |(role, model)| self.sidecar(topology, role, &model);
        topology.models().into_iter().map(sidecar).collect()
    }

    fn prove(
        &self,
        topology: &Topology,
        answered: u64,
    ) -> std::result::Result<Vec<String>, String> {
        if topology.mode == Mode::Baseline {
            return Ok(super::baseline());
        }
        let ports = topology.ports;
        let opaque = topology.protocol.is_opaque();
        let counter = if opaque {
            "istio_tcp_connections_opened_total"
        } else {
            "istio_requests_total"
        };
        // Connections are not requests: how many of these they carried, nobody counts.
        let expected = if opaque { 1 } else { answered };
        let metrics = match topology.mode {
            Mode::ClientSidecar => ports.client_metrics,
            _ => ports.server_metrics,
        };
        let metrics = http::get(metrics, "/metrics")?;
        if topology.mode != Mode::Both {
            let (all, _) = count(&metrics, counter, &[]);
            return super::one_sidecar(topology, counter, all, expected);
        }
        let [client, server] = [spiffe(CLIENT), spiffe(SERVER)];
        let right = [
            "connection_security_policy=\"mutual_tls\"".to_owned(),
            format!("source_principal=\"{client}\""),
            format!("destination_principal=\"{server}\""),
        ];
        let (good, other) = count(&metrics, counter, &right);
        if good < expected || other > 0 {
            return Err(format!(
                "{answered} requests were answered; the server's sidecar knows {good} ({counter}) as mutual TLS from {client}, and {other} others"
            ));
        }
        Ok(vec![format!(
            "{counter} {good}: mutual_tls, {client} -> {server}"
        )])
    }
}

/// How many a counter of Prometheus has counted with all of these labels, and how many without.
pub(crate) fn count(metrics: &str, counter: &str, labels: &[String]) -> (u64, u64) {
    let (mut good, mut other) = (0, 0);
    for line in metrics.lines() {
        let Some((found, value)) = line
            .strip_prefix(counter)
            .and_then(|rest| rest.strip_prefix('{')?.rsplit_once("} "))
        else {
            continue;
        };
        let value = value.parse::<u64>().unwrap_or(0);
        if labels.iter().all(|label| found.contains(label.as_str())) {
            good += value;
        } else {
            other += value;
        }
    }
    (good, other)
}

impl Tulle {
    pub(super) fn sidecar(
        &self,
        topology: &Topology,
        role: &'static str,
        bootstrap: &Bootstrap,
    ) -> Result<Sidecar> {
        let name = format!("tulle-{role}.yaml");
        let text = serde_saphyr::to_string(bootstrap)
            .or_fail(|| format!("cannot write the configuration of Tulle's {role}"))?;
        Sidecar::new(topology, role, name, text, |path| {
            let mut command = Command::new(&self.program);
            command.arg("--config").arg(path);
            command
        })
    }
}
