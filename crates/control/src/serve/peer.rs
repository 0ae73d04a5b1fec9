//! Identifies the peer at the other end of a connection.

use crate::ca::Authority;
use crate::ca::membership::Membership;
use crate::memory_limit;
use crate::state::nodes::JoinedHosts;
use rustls::pki_types::CertificateDer;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tonic::{Request, Status};
use tulle_model::identity::SpiffeId;
use tulle_model::resource::{Revoked, Serial};
use tulle_net::places::HeldPlace;
use tulle_tls::host_authority::{HostSigner, signer_of};
use x509_parser::extensions::GeneralName;

/// Longest sleep until a certificate expires.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The other end, as the transport proved it.
#[derive(Debug, Clone)]
pub(crate) enum Peer {
    /// TLS without a client certificate: may only ask for one, with a join token. It holds a place
    /// of those.
    Anonymous(Arc<HeldPlace>),
    /// TLS with a certificate of this mesh.
    Mesh(Member),
    /// The controller's own user, over the Unix socket.
    Operator,
}

/// A verified certificate.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) id: SpiffeId,
    /// Where it connects from.
    pub(crate) from: IpAddr,
    /// Unix seconds.
    pub(crate) not_after: i64,
    trust_domain_ok: bool,
    serial: Serial,
    /// The host by which it came, if its serial number names one.
    membership: Option<Membership>,
    /// The issuer's name (DER).
    issuer: Arc<[u8]>,
    /// The host whose authority signed it; none: a root did.
    host: Option<Arc<HostSigner>>,
    /// SHA-256 of the root that its certificate comes from.
    root: Arc<str>,
    known: Known,
}

/// The changing state that can end a peer's proved authority.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) authorities: watch::Receiver<Arc<Authority>>,
    pub(crate) revoked: watch::Receiver<Arc<Revoked>>,
    pub(crate) nodes: watch::Receiver<JoinedHosts>,
}

impl Member {
    /// Reads a certificate that was verified against the root.
    ///
    /// # Errors
    /// It does not have exactly one URI name, or that is not a SPIFFE id.
    pub(crate) fn from_certificate(
        chain: &[CertificateDer<'_>],
        from: IpAddr,
        root: Arc<str>,
        trust_domain: &str,
        known: Known,
    ) -> Result<Self, String> {
        let (der, others) = chain.split_first().ok_or("there is no certificate")?;
        let host = signer_of(others).map_err(|e| e.to_string())?;
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
        // The list of an authority has only workloads, and this is asked for again where it counts.
        if host.is_some() && id.node().is_some() {
            return Err("a host's authority certifies no host".into());
        }
        // Other issuers, and hosts, number as they like.
        let authority = known.authorities.borrow().clone();
        let own = host.is_none() && authority.trusted().iter().any(|t| t.fingerprint == root);
        let membership = own.then(|| Membership::of_serial(certificate.raw_serial()));
        Ok(Self {
            membership: membership.flatten(),
            trust_domain_ok: id.trust_domain() == trust_domain,
            id,
            from,
            not_after: certificate.validity().not_after.timestamp(),
            serial: Serial::from_bytes(certificate.raw_serial()),
            issuer: certificate.issuer().as_raw().into(),
            host: host.map(Arc::new),
            root,
            known,
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
        if self.host_is_removed() {
            return Err(self.host_removed());
        }
        let revoked = self.known.revoked.borrow();
        if let Some(host) = self.host.as_ref().filter(|h| h.is_revoked(&revoked)) {
            return Err(Status::permission_denied(format!(
                "the authority of {} that signed the certificate of {} no longer counts: its host was \
                 removed or revoked, or may no longer have one of the identities it lists",
                host.host, self.id
            )));
        }
        if revoked.has(&self.id, &self.serial, &self.issuer) {
            return Err(Status::permission_denied(format!(
                "the certificate of {} is revoked: see `tulle identity list`",
                self.id
            )));
        }
        let authority = self.known.authorities.borrow();
        if !authority.peers().iter().any(|t| t.fingerprint == self.root) {
            return Err(Status::unauthenticated(format!(
                "the certificate of {} comes from a root that has been replaced since this connection \
                 was made: connect again with the present one",
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

    fn host_is_removed(&self) -> bool {
        let nodes = self.known.nodes.borrow();
        match (self.membership, self.id.node()) {
            (Some(membership), _) => !nodes.has(membership),
            // Its own certificate says by which membership it came, unless there were none at that time.
            (None, Some(host)) => !nodes.is_from_before(host),
            (None, None) => false,
        }
    }

    fn host_removed(&self) -> Status {
        Status::permission_denied(format!(
            "the host by which the certificate of {} came has been removed from the mesh: it may join again \
             with a new token",
            self.id
        ))
    }

    /// The membership by which the certificate came, if a host asked for it.
    pub(crate) fn membership(&self) -> Result<Option<Membership>, Status> {
        let host = match &self.host {
            Some(signer) => signer.host.node(),
            None if self.membership.is_some() => return Ok(self.membership),
            None => self.id.node(),
        };
        let Some(host) = host else {
            return Ok(None);
        };
        let membership = self.known.nodes.borrow().membership(host);
        membership.map(Some).ok_or_else(|| self.host_removed())
    }

    /// Waits until the certificate has expired, is revoked, or its root or host is removed; why what was allowed
    /// with it ends then. A stream that is open must not outlive the authority it was opened with.
    pub(crate) async fn expired(&self) -> Status {
        let Known {
            mut authorities,
            mut revoked,
            mut nodes,
        } = self.known.clone();
        loop {
            if let Err(status) = self.check_validity() {
                return status;
            }
            let not_after = u64::try_from(self.not_after).unwrap_or_default();
            let not_after = UNIX_EPOCH + Duration::from_secs(not_after);
            let left = not_after.duration_since(SystemTime::now());
            // The clock may be set meanwhile: then this looks again.
            let left = left.unwrap_or_default().min(LOOK_AGAIN);
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                // It fails only when the state ends, and everything else with it.
                Ok(()) = authorities.changed() => {}
                Ok(()) = revoked.changed() => {}
                Ok(()) = nodes.changed() => {}
            }
        }
    }

    fn path(&self) -> &str {
        let prefix = "spiffe://".len() + self.id.trust_domain().len() + 1;
        self.id.as_str().get(prefix..).unwrap_or_default()
    }

    /// `svc/<name>`, in a cluster `ns/<namespace>/sa/<name>`: a workload or gateway.
    pub(crate) fn is_service(&self) -> bool {
        if self.id.service_account().is_some() {
            return true;
        }
        let name = self.path().strip_prefix("svc/");
        name.is_some_and(|name| !name.contains('/'))
    }

    /// The host's name, for `node/<name>`.
    pub(crate) fn node(&self) -> Option<&str> {
        self.id.node()
    }
}

/// The peer of a request.
pub(crate) fn from_request<T>(request: &Request<T>) -> Result<Peer, Status> {
    let peer = request.extensions().get::<Arc<Peer>>();
    let peer = peer.ok_or_else(|| Status::internal("the connection has no peer"))?;
    Ok((**peer).clone())
}

/// The proxy that asks for `what`: a workload or gateway with a certificate that is in force. While memory is short it is
/// refused.
pub(crate) fn proxy_of<T>(request: &Request<T>, what: &str) -> Result<Member, Status> {
    let member = proxy_or_host_of(request, what)?;
    if member.is_service() {
        return Ok(member);
    }
    Err(Status::permission_denied(format!(
        "{} is not the identity of a workload or gateway",
        member.id
    )))
}

/// As [`proxy_of`], or a host that asks for its proxies.
pub(crate) fn proxy_or_host_of<T>(request: &Request<T>, what: &str) -> Result<Member, Status> {
    let Peer::Mesh(member) = from_request(request)? else {
        return Err(Status::unauthenticated(format!(
            "{what} needs mutual TLS with the workload's certificate"
        )));
    };
    member.check_validity()?;
    if !member.is_service() && member.node().is_none() {
        return Err(Status::permission_denied(format!(
            "{} is not the identity of a workload, gateway or host",
            member.id
        )));
    }
    match memory_limit::refusal() {
        Some(why) => Err(Status::resource_exhausted(why)),
        None => Ok(member),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ca::roots::Roots;
    use rcgen::{CertificateParams, KeyPair, SanType};

    /// A certificate as the verifier would pass it on; who signed it does not matter here.
    fn certificate(names: Vec<SanType>, not_after: SystemTime) -> Vec<u8> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.not_after = not_after.into();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().unwrap())
    }

    fn later() -> SystemTime {
        SystemTime::now() + std::time::Duration::from_secs(60)
    }

    fn read(certificate: &[u8]) -> Result<Member, String> {
        read_with(certificate, JoinedHosts::default())
    }

    fn read_with(certificate: &[u8], nodes: JoinedHosts) -> Result<Member, String> {
        let authority = Arc::new(Authority::from_roots(Roots::generate().unwrap()).unwrap());
        let root = authority.trusted()[0].fingerprint.clone();
        let known = Known {
            authorities: watch::Sender::new(authority).subscribe(),
            revoked: watch::Sender::new(Arc::default()).subscribe(),
            nodes: watch::Sender::new(nodes).subscribe(),
        };
        let from = std::net::Ipv4Addr::LOCALHOST.into();
        Member::from_certificate(&[certificate.into()], from, root, "tulle.local", known)
    }

    fn member(names: Vec<SanType>) -> Result<Member, String> {
        read(&certificate(names, later()))
    }

    #[test]
    fn only_one_spiffe_id_is_an_identity() {
        let dns = || SanType::DnsName("spiffe".try_into().unwrap());
        let good = "spiffe://tulle.local/svc/a";
        let found = member(vec![dns(), uri(good)]).unwrap();
        assert_eq!(found.id.as_str(), good);
        assert!(found.check_validity().is_ok());
        for bad in [
            vec![],
            vec![dns()],
            vec![uri(good), uri(good)],
            vec![uri(good), uri("https://x")],
            vec![uri("spiffe://tulle.local/svc/../a")],
            vec![uri("https://tulle.local/svc/a")],
        ] {
            assert!(member(bad).is_err());
        }
    }

    #[test]
    fn strangers_and_expired_certificates_have_no_authority() {
        let other = member(vec![uri("spiffe://tulle.localx/svc/a")]).unwrap();
        let refused = other.check_validity().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        let names = vec![uri("spiffe://tulle.local/svc/a")];
        let expired = certificate(names, SystemTime::now());
        let expired = read(&expired).unwrap();
        let refused = expired.check_validity().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    }

    #[test]
    fn a_host_without_a_membership_is_one_from_before_there_were_any() {
        let own = certificate(vec![uri("spiffe://tulle.local/node/n1")], later());
        let joined = |membership| {
            let mut nodes = JoinedHosts::default();
            nodes.add("n1".to_owned(), membership);
            read_with(&own, nodes).unwrap()
        };
        let before = Membership::before_memberships("n1");
        let member = joined(before);
        member.check_validity().unwrap();
        // It names one as soon as it is renewed.
        assert_eq!(member.membership().unwrap(), Some(before));
        let another = joined(Membership::new().unwrap());
        for other in [another, read(&own).unwrap()] {
            let refused = other.check_validity().unwrap_err();
            assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        }
    }

    #[test]
    fn the_path_says_what_a_member_is() {
        for (path, service, node) in [
            ("svc/a", true, None),
            ("node/n", false, Some("n")),
            ("svc/a/b", false, None),
            ("node/n/b", false, None),
            ("controller", false, None),
            ("x/svc/a", false, None),
        ] {
            let id = format!("spiffe://tulle.local/{path}");
            let member = member(vec![uri(&id)]).unwrap();
            assert_eq!(
                (member.is_service(), member.node()),
                (service, node),
                "{path}"
            );
        }
    }
}
