//! One sidecar of a pair for programs that know listeners and upstreams but no meshes: what its
//! model says, in their terms. Common names stand in for the SPIFFE ids they cannot match.

use super::Topology;
use crate::failure::{Failure, Result};
use std::net::SocketAddr;
use tulle_model::bootstrap::{Bootstrap, CertificateFiles, ListenerKind};

/// One sidecar.
pub(super) struct Hop {
    /// `client` or `server`.
    pub(super) role: &'static str,
    /// Where it takes connections.
    pub(super) listen: SocketAddr,
    /// Where they go.
    pub(super) next: SocketAddr,
    /// Where its statistics are.
    pub(super) admin: SocketAddr,
    /// Threads.
    pub(super) workers: u16,
    /// Its own certificate and the roots.
    pub(super) files: CertificateFiles,
    /// Mutual TLS is required, and this common name: a pair has one caller. None: plaintext.
    pub(super) caller: Option<String>,
    /// `next` is reached with mutual TLS and must have this common name. None: plaintext.
    pub(super) server: Option<String>,
}

/// Those of a topology, the server's first.
///
/// # Errors
/// Its model is not that of a pair.
pub(super) fn hops(topology: &Topology) -> Result<Vec<Hop>> {
    let models = topology.models();
    models
        .iter()
        .map(|(role, model)| hop(role, model))
        .collect()
}

fn hop(role: &'static str, model: &Bootstrap) -> Result<Hop> {
    read(role, model).ok_or_else(|| {
        Failure::failed(format!(
            "the model of the {role}'s sidecar is not that of a pair"
        ))
    })
}

fn read(role: &'static str, model: &Bootstrap) -> Option<Hop> {
    let [listener] = model.listeners.as_slice() else {
        return None;
    };
    let mut hop = Hop {
        role,
        listen: listener.address,
        next: listener.address,
        admin: model.admin,
        workers: model.workers,
        files: model.certificates.clone()?,
        caller: None,
        server: None,
    };
    match &listener.kind {
        ListenerKind::Upstream { service, port } => {
            let service = model.services.iter().find(|s| s.name == *service)?;
            let port = service.ports.iter().find(|p| p.port == *port)?;
            let endpoint = port.endpoints.first()?;
            hop.next = endpoint.address;
            if endpoint.mutual_tls {
                hop.server = Some(service.identities.first()?.name().to_owned());
            }
        }
        ListenerKind::InboundPort { port } => {
            let inbound = model.inbound.as_ref()?;
            hop.next = inbound.ports.iter().find(|p| p.port == *port)?.target;
            if model.mesh.strict_mtls {
                let mut sources = inbound.policy.rules.iter().flat_map(|rule| &rule.sources);
                let (Some(one), None) = (sources.next(), sources.next()) else {
                    return None;
                };
                hop.caller = Some(one.name().to_owned());
            }
        }
        _ => return None,
    }
    Some(hop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{CLIENT, Mode, Ports, SERVER};
    use tulle_model::resource::Protocol;

    #[test]
    fn mutual_tls_is_between_two_sidecars_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let of = |mode| {
            let topology = Topology::new(dir.path(), mode, Protocol::Http, Ports::from(20000));
            hops(&topology.unwrap()).unwrap()
        };
        assert!(of(Mode::Baseline).is_empty());
        let both = of(Mode::Both);
        let [server, client] = both.as_slice() else {
            panic!("{}", both.len());
        };
        assert_eq!((server.role, client.role), ("server", "client"));
        assert_eq!(server.caller.as_deref(), Some(CLIENT));
        assert_eq!(server.server, None);
        assert_eq!(client.server.as_deref(), Some(SERVER));
        assert_eq!(client.caller, None);
        assert_eq!(client.next, server.listen);
        assert_eq!(server.next.port(), 20000);
        assert_eq!(server.admin.port(), 20004);
        for mode in [Mode::ClientSidecar, Mode::ServerSidecar] {
            let [hop] = &of(mode)[..] else {
                panic!("{mode:?}");
            };
            assert_eq!((&hop.caller, &hop.server), (&None, &None), "{mode:?}");
            assert_eq!(hop.next.port(), 20000, "{mode:?}");
        }
    }
}
