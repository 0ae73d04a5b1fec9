//! Who is at the other end of a connection.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tonic::{Request, Status};
use tulle_model::identity::SpiffeId;
use x509_parser::extensions::GeneralName;

/// The other end, as the transport proved it.
#[derive(Debug, Clone)]
pub(crate) enum Peer {
    /// TLS without a client certificate: may only ask for one, with a join token.
    Anonymous,
    /// TLS with a certificate of this mesh.
    Mesh(Member),
    /// The controller's own user, over the Unix socket.
    Operator,
}

/// A verified certificate.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) id: SpiffeId,
    /// Unix seconds.
    pub(crate) not_after: i64,
    trust_domain_ok: bool,
}

impl Member {
    /// Reads a certificate that was verified against the root.
    ///
    /// # Errors
    /// It does not have exactly one URI name, or that is not a SPIFFE id.
    pub(crate) fn from_certificate(der: &[u8], trust_domain: &str) -> Result<Self, String> {
        let (_, certificate) =
            x509_parser::parse_x509_certificate(der).map_err(|e| e.to_string())?;
        let names = certificate.subject_alternative_name();
        let names = names.map_err(|e| e.to_string())?;
        let names = names.map(|n| n.value.general_names.as_slice());
        let mut uris = names.unwrap_or_default().iter().filter_map(|n| match n {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        let (Some(uri), None) = (uris.next(), uris.next()) else {
            return Err("the certificate does not have exactly one URI name".into());
        };
        let id = SpiffeId::parse(uri).map_err(|e| e.to_string())?;
        Ok(Self {
            trust_domain_ok: id.trust_domain() == trust_domain,
            id,
            not_after: certificate.validity().not_after.timestamp(),
        })
    }

    /// A connection outlives the certificate it was made with; what needs a valid one asks again.
    pub(crate) fn check_validity(&self) -> Result<(), Status> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(i64::MAX, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX));
        if !self.trust_domain_ok {
            return Err(Status::permission_denied(format!(
                "{} is of another trust domain",
                self.id
            )));
        }
        if now >= self.not_after {
            return Err(Status::unauthenticated(format!(
                "the certificate of {} has expired since this connection was made: connect again \
                 with the present one",
                self.id
            )));
        }
        Ok(())
    }

    fn path(&self) -> &str {
        let prefix = "spiffe://".len() + self.id.trust_domain().len() + 1;
        self.id.as_str().get(prefix..).unwrap_or_default()
    }

    /// `svc/<name>`: a workload or gateway.
    pub(crate) fn is_service(&self) -> bool {
        let name = self.path().strip_prefix("svc/");
        name.is_some_and(|name| !name.contains('/'))
    }

    /// The host's name, for `node/<name>`.
    pub(crate) fn node(&self) -> Option<&str> {
        let name = self.path().strip_prefix("node/")?;
        (!name.contains('/')).then_some(name)
    }
}

/// The peer of a request.
pub(crate) fn of<T>(request: &Request<T>) -> Result<Peer, Status> {
    let peer = request.extensions().get::<Arc<Peer>>();
    let peer = peer.ok_or_else(|| Status::internal("the connection has no peer"))?;
    Ok((**peer).clone())
}
