//! The Certificates service: proof of an identity in, certificate out.

use super::peer::{self, Peer};
use super::run;
use super::tokens::{Budgets, CERTIFICATES, Tokens};
use crate::ca;
use crate::ca::issuer::{CertificateRequest, External, IssueError};
use crate::state::rotation::given;
use crate::state::{MeshState, Refused};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tonic::{Code, Request, Response, Status};
use tulle_api::v1;
use tulle_model::identity::SpiffeId;
use tulle_net::places::{Class, HeldPlace, PlaceLimits, Places};

/// Requests worked on at a time; more are turned away rather than queued. Members have as many
/// places of their own as those who have no certificate yet: nobody who is not trusted keeps a sidecar
/// from renewing its certificate.
const AT_ONCE: PlaceLimits = PlaceLimits {
    all: 64,
    source: 16,
    reserved: 0,
};

/// Why there may be no certificate, as metrics call it.
const CODES: [(Code, &str); 6] = [
    (Code::InvalidArgument, "invalid_argument"),
    (Code::Unauthenticated, "unauthenticated"),
    (Code::PermissionDenied, "permission_denied"),
    (Code::FailedPrecondition, "failed_precondition"),
    (Code::ResourceExhausted, "resource_exhausted"),
    (Code::Unavailable, "unavailable"),
];
/// Anything else.
const OTHER: &str = "internal";

#[derive(Clone)]
pub(crate) struct CertificateService {
    pub(crate) state: Arc<MeshState>,
    members: Places,
    strangers: Places,
    tokens: Arc<Tokens>,
    budgets: Arc<Budgets<SpiffeId>>,
}

impl CertificateService {
    pub(crate) fn new(state: Arc<MeshState>) -> Self {
        // The metric exists from the start, so that an increase can be seen.
        for code in CODES.iter().map(|(_, code)| *code).chain([OTHER]) {
            state.metrics.certificates_refused.add([code], 0);
        }
        Self {
            state,
            members: Places::new(AT_ONCE),
            strangers: Places::new(AT_ONCE),
            tokens: Arc::default(),
            budgets: Arc::new(Budgets::new(CERTIFICATES)),
        }
    }

    /// Returns the identity of the service account that a token of the cluster belongs to.
    async fn account(&self, token: String, from: IpAddr) -> Result<SpiffeId, Status> {
        let Some(accounts) = self.state.accounts() else {
            return Err(Status::failed_precondition(
                "this controller is in no cluster: use a join token",
            ));
        };
        let review = |token| accounts.review(token);
        let account = self.tokens.review(token, from, review).await?;
        let trust_domain = self.state.trust_domain();
        let id = trust_domain.service_account(&account.namespace, &account.name);
        id.map_err(|e| Status::internal(e.to_string()))
    }

    /// A certificate of another issuer.
    async fn issued_by(
        &self,
        issuer: &External,
        csr_der: Vec<u8>,
        csr: &ca::VerifiedCsr,
        identity: SpiffeId,
    ) -> Result<Response<v1::SignResponse>, Status> {
        let authority = self.state.authority();
        let asked = CertificateRequest {
            csr_der,
            identity: identity.clone(),
            lifetime: self.state.lifetime(),
        };
        let issued = issuer.issue(csr, asked, authority.peers()).await;
        // An issuer may grant later what it refuses now, once its operator changes it. So a refusal
        // and a failure both get a status that clients retry.
        let issued = issued.map_err(|e| match e {
            IssueError::NotAsked(why) => Status::invalid_argument(why),
            e => Status::unavailable(format!("{}: {e}", issuer.name())),
        })?;
        self.state.metrics.certificates.add(1);
        self.state.hub.renewed(&identity, issued.not_after);
        let bundle = authority.peers().iter();
        Ok(Response::new(v1::SignResponse {
            chain_der: issued.chain_der,
            trust_bundle_der: bundle.map(|t| t.certificate.to_vec()).collect(),
            not_after_unix_seconds: issued.not_after,
            renew_after_seconds: self.state.certificate_terms().borrow().renew_after_seconds,
            host_authority: None,
        }))
    }

    async fn signed(
        &self,
        request: Request<v1::SignRequest>,
    ) -> Result<Response<v1::SignResponse>, Status> {
        let too_many =
            || Status::resource_exhausted("too many certificates are asked for at once; try again");
        let peer = peer::from_request(&request)?;
        let (places, from) = match &peer {
            Peer::Anonymous(place) => (&self.strangers, place.source()),
            Peer::Mesh(member) => (&self.members, member.from),
            Peer::Operator => (&self.members, Ipv4Addr::LOCALHOST.into()),
        };
        let place = places.take(from, Class::Anyone).ok_or_else(too_many)?;
        let asked = request.into_inner();
        // The request is checked first: a broken one does not cost its sender the token.
        let csr = ca::VerifiedCsr::parse(&asked.csr_der)
            .map_err(|e| Status::invalid_argument(e.to_string()))?;
        if asked.service_account_token.is_empty() {
            return self.pinned(&place, peer, asked, csr, None).await;
        }
        // In a cluster the token is reviewed each time: it ends with its pod. A request that waits for
        // the review makes room for a source with fewer requests.
        let token = asked.service_account_token.clone();
        let reviewed = place.during(self.account(token, from)).await;
        let id = reviewed.ok_or_else(too_many)??;
        self.pinned(&place, peer, asked, csr, Some(id)).await
    }

    /// Signs, and is not interrupted: a join token is good for one request.
    async fn pinned(
        &self,
        place: &HeldPlace,
        peer: Peer,
        asked: v1::SignRequest,
        csr: ca::VerifiedCsr,
        account: Option<SpiffeId>,
    ) -> Result<Response<v1::SignResponse>, Status> {
        let connection = match &peer {
            Peer::Anonymous(place) => Some(place.clone()),
            _ => None,
        };
        let signing = place.pinned(self.sign_for(peer, asked, csr, account));
        match connection {
            Some(connection) => connection.pinned(signing).await,
            None => signing.await,
        }
    }

    async fn sign_for(
        &self,
        peer: Peer,
        asked: v1::SignRequest,
        csr: ca::VerifiedCsr,
        account: Option<SpiffeId>,
    ) -> Result<Response<v1::SignResponse>, Status> {
        let now = SystemTime::now();
        let state = self.state.clone();
        let renewal = asked.join_token.is_empty();
        let (id, membership) = match (account, peer) {
            (Some(account), _) => (account, None),
            (None, Peer::Mesh(member)) if renewal => {
                member.check_validity()?;
                let membership = member.membership()?;
                let id = member.id.clone();
                let known = run(move || state.may_renew(&id)).await?;
                if !known {
                    return Err(Status::permission_denied(format!(
                        "no Workload or Gateway has the identity {} any longer",
                        member.id
                    )));
                }
                // Revocations of the Mesh may have become known meanwhile.
                member.check_validity()?;
                (member.id, membership)
            }
            (None, _) if renewal => {
                return Err(Status::unauthenticated(
                    "a certificate needs a join token, or mutual TLS with the present certificate",
                ));
            }
            (None, _) => run(move || state.spend(&asked.join_token, now)).await?,
        };
        if self.state.revoked().borrow().identities.contains(&id) {
            return Err(Status::permission_denied(format!(
                "{id} is revoked: it gets no certificate, see `tulle identity list`"
            )));
        }
        if !self.budgets.take(&id, Instant::now()) {
            return Err(Status::resource_exhausted(format!(
                "{id} asks for certificates too often"
            )));
        }
        if let Some(issuer) = self.state.issuer() {
            return self.issued_by(issuer, asked.csr_der, &csr, id).await;
        }
        let host_key = match (id.node(), &asked.host_authority_csr_der[..]) {
            (Some(_), csr @ [_, ..]) => Some(
                ca::VerifiedCsr::parse(csr).map_err(|e| Status::invalid_argument(e.to_string()))?,
            ),
            // An authority is for hosts alone.
            _ => None,
        };
        let state = self.state.clone();
        let issued = run(move || {
            let authority = state.authority();
            let bundle = authority.trusted().iter();
            let bundle = bundle.map(|t| t.certificate.to_vec()).collect();
            let issued = state.issue(&authority, &csr, &id, membership, now)?;
            let not_after = issued.not_after.duration_since(UNIX_EPOCH);
            let not_after = not_after.map_err(|e| Refused::Failed(e.to_string()))?;
            let not_after = i64::try_from(not_after.as_secs()).unwrap_or(i64::MAX);
            state.metrics.certificates.add(1);
            state.hub.renewed(&id, not_after);
            let mut terms = *state.certificate_terms().borrow();
            let mut host_authority = None;
            if let Some(node) = id.node() {
                if let Some(key) = host_key {
                    let given = state.issue_authority(&authority, &key, &id, membership, now)?;
                    host_authority = given.map(|given| v1::HostAuthority {
                        certificate_der: given.certificate.to_vec(),
                        lifetime_seconds: terms.lifetime_seconds,
                        renew_after_seconds: terms.renew_after_seconds,
                    });
                }
                terms = state.terms_of_host(node);
                // A host uses what it is given at once; it says so only when it asks for the status.
                state.host_trusts(node, given(&authority));
            }
            tracing::debug!(identity = %id, not_after, renewal, "certificate issued");
            Ok(v1::SignResponse {
                chain_der: vec![issued.certificate.to_vec()],
                trust_bundle_der: bundle,
                not_after_unix_seconds: not_after,
                renew_after_seconds: terms.renew_after_seconds,
                host_authority,
            })
        });
        Ok(Response::new(issued.await?))
    }
}

#[tonic::async_trait]
impl v1::certificates_server::Certificates for CertificateService {
    async fn sign(
        &self,
        request: Request<v1::SignRequest>,
    ) -> Result<Response<v1::SignResponse>, Status> {
        let signed = self.signed(request).await;
        if let Err(status) = &signed {
            let code = code(status.code());
            self.state.metrics.certificates_refused.add([code], 1);
        }
        signed
    }
}

/// A label of few values, as gRPC calls them.
fn code(code: Code) -> &'static str {
    let known = CODES.iter().find(|(known, _)| *known == code);
    known.map_or(OTHER, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::super::peer::{Known, Member};
    use super::*;
    use crate::state::Actor;
    use rcgen::{CertificateParams, KeyPair};
    use serde_json::json;
    use std::pin::pin;
    use std::task::{Context, Waker};
    use tokio::sync::watch;
    use tulle_model::resource::{Revoked, Serial};

    /// A mesh with the workload `b`.
    fn mesh() -> Arc<MeshState> {
        let state = MeshState::in_memory().unwrap();
        let workload = json!({
            "apiVersion": "tulle.dev/v1alpha1", "kind": "Workload", "metadata": { "name": "b" },
            "spec": { "command": ["/bin/true"], "ports": [{ "port": 80 }] },
        });
        let workload = v1::Object {
            kind: "Workload".into(),
            name: "b".into(),
            json: workload.to_string(),
        };
        let asked = v1::ApplyRequest {
            objects: vec![workload],
            ..Default::default()
        };
        state.apply(&Actor::Operator, &asked).unwrap();
        Arc::new(state)
    }

    fn csr() -> ca::VerifiedCsr {
        let key = KeyPair::generate().unwrap();
        let csr = CertificateParams::default().serialize_request(&key);
        ca::VerifiedCsr::parse(csr.unwrap().der()).unwrap()
    }

    #[tokio::test]
    async fn a_certificate_that_is_revoked_while_its_renewal_waits_is_not_renewed() {
        let state = mesh();
        let service = CertificateService::new(state.clone());
        let authority = state.authority();
        let id = SpiffeId::parse("spiffe://tulle.local/svc/b").unwrap();
        let issued = state.issue(&authority, &csr(), &id, None, SystemTime::now());
        let certificate = issued.unwrap().certificate;
        let serial = {
            let (_, read) = x509_parser::parse_x509_certificate(&certificate).unwrap();
            Serial::from_bytes(read.raw_serial())
        };
        for is_revoked in [false, true] {
            let revoked = watch::Sender::new(Arc::new(Revoked::default()));
            let known = Known {
                authorities: state.authorities(),
                revoked: revoked.subscribe(),
                nodes: state.watch_nodes(),
            };
            let root = authority.trusted()[0].fingerprint.clone();
            let member = Member::from_certificate(
                std::slice::from_ref(&certificate),
                Ipv4Addr::LOCALHOST.into(),
                root,
                "tulle.local",
                known,
            );
            let peer = Peer::Mesh(member.unwrap());
            let renewing = service.sign_for(peer, v1::SignRequest::default(), csr(), None);
            let mut renewing = pin!(renewing);
            // It has begun, and waits for whoever changes the mesh.
            state.with_index(|_| {
                let mut context = Context::from_waker(Waker::noop());
                assert!(renewing.as_mut().poll(&mut context).is_pending());
                if is_revoked {
                    let mut now = Revoked::default();
                    now.serials.insert(serial.clone());
                    revoked.send_replace(Arc::new(now));
                }
            });
            let renewed = renewing.await.map(drop);
            let refused = renewed.map_err(|status| status.code());
            let expected = match is_revoked {
                true => Err(Code::PermissionDenied),
                false => Ok(()),
            };
            assert_eq!(refused, expected, "revoked: {is_revoked}");
        }
    }
}
