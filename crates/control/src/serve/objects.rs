//! The Objects service: what operators, and within limits joined hosts, may do.
//!
//! A host's certificate (`node/<name>`) lets it apply and delete Workloads that it applied itself,
//! report where those run and make join tokens for their identities; it may look at everything but
//! the environment of other hosts' workloads. The Mesh, gateways, routes and policies are the
//! operator's. A host is trusted to say which identities it runs: that is what joining it means.

use super::peer::{self, Peer};
use super::run;
use super::watches::{Watches, watch_objects};
use crate::state::rotation::trust;
use crate::state::{Actor, MeshState, Refused};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tulle_api::v1;

#[derive(Clone)]
pub(crate) struct ObjectsService {
    pub(crate) state: Arc<MeshState>,
    shutdown: watch::Receiver<bool>,
    watches: Watches,
}

impl ObjectsService {
    pub(crate) fn new(state: Arc<MeshState>, shutdown: watch::Receiver<bool>) -> Self {
        Self {
            state,
            shutdown,
            watches: Watches::new(),
        }
    }

    fn actor<T>(&self, request: &Request<T>) -> Result<Actor, Status> {
        actor(&peer::from_request(request)?, &self.state)
    }

    /// In a cluster nothing is kept here that the API server does not have.
    fn may_revoke<T>(&self, request: &Request<T>) -> Result<(), Status> {
        if self.actor(request)? != Actor::Operator {
            return Err(Status::permission_denied(
                "only the operator revokes and allows",
            ));
        }
        if self.state.accounts().is_some() {
            return Err(Status::failed_precondition(
                "in a cluster the Mesh object lists revocations: edit its `spec.revoked`",
            ));
        }
        Ok(())
    }

    /// Runs something that may wait for the disk.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&MeshState) -> Result<T, Refused> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let state = self.state.clone();
        run(move || work(&state)).await.map(Response::new)
    }
}

/// Returns the actor on whose behalf a request is made.
pub(crate) fn actor(peer: &Peer, state: &MeshState) -> Result<Actor, Status> {
    match peer {
        Peer::Operator => Ok(Actor::Operator),
        Peer::Anonymous(_) => Err(Status::unauthenticated(
            "objects need mutual TLS with a host's certificate, or the controller's Unix socket",
        )),
        Peer::Mesh(member) => {
            member.check_validity()?;
            let node = member.node().ok_or_else(|| {
                Status::permission_denied(format!(
                    "{} is not a host of this mesh: only hosts and the operator use objects",
                    member.id
                ))
            })?;
            if !state.is_node(node) {
                return Err(removed(node));
            }
            Ok(Actor::Node(node.to_owned()))
        }
    }
}

/// Asks again whether a peer's certificate is in force.
fn still_valid(peer: &Peer) -> Result<(), Refused> {
    let Peer::Mesh(member) = peer else {
        return Ok(());
    };
    let valid = member.check_validity();
    valid.map_err(|status| Refused::NotAllowed(status.message().to_owned()))
}

pub(super) fn removed(node: &str) -> Status {
    Status::permission_denied(format!(
        "node {node} has been removed from the mesh: it may join again with a new token"
    ))
}

#[tonic::async_trait]
impl v1::objects_server::Objects for ObjectsService {
    async fn apply(
        &self,
        request: Request<v1::ApplyRequest>,
    ) -> Result<Response<v1::ApplyResponse>, Status> {
        let actor = self.actor(&request)?;
        let asked = request.into_inner();
        self.run(move |state| state.apply(&actor, &asked)).await
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        let actor = self.actor(&request)?;
        let asked = request.into_inner();
        self.run(move |state| {
            let objects = state.list(&actor, &asked.kind, &asked.name)?;
            Ok(v1::ListResponse { objects })
        })
        .await
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        let actor = self.actor(&request)?;
        let asked = request.into_inner();
        self.run(move |state| {
            let existed = state.delete(&actor, &asked.kind, &asked.name)?;
            Ok(v1::DeleteResponse { existed })
        })
        .await
    }

    type WatchStream = ReceiverStream<Result<v1::WatchEvent, Status>>;

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let peer = peer::from_request(&request)?;
        let actor = actor(&peer, &self.state)?;
        let place = self.watches.place(&actor)?;
        let (sender, receiver) = mpsc::channel(64);
        let state = self.state.clone();
        let mut shutdown = self.shutdown.clone();
        tokio::spawn(async move {
            let _place = place;
            let _session = match &actor {
                Actor::Node(node) => Some(state.host_session(node)),
                Actor::Operator => None,
            };
            tokio::select! {
                end = watch_objects(state.clone(), actor, &sender) => {
                    if let Err(status) = end {
                        let _ = sender.try_send(Err(status));
                    }
                }
                () = sender.closed() => {}
                status = disowned(&peer, &state) => {
                    let _ = sender.try_send(Err(status));
                }
                _ = shutdown.wait_for(|down| *down) => {
                    let status = Status::unavailable("the controller is shutting down");
                    let _ = sender.try_send(Err(status));
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn report_placement(
        &self,
        request: Request<v1::Placement>,
    ) -> Result<Response<v1::PlacementAck>, Status> {
        let actor = self.actor(&request)?;
        let placement = request.into_inner();
        self.run(move |state| {
            state.place(&actor, placement)?;
            Ok(v1::PlacementAck {})
        })
        .await
    }

    async fn create_join_token(
        &self,
        request: Request<v1::JoinTokenRequest>,
    ) -> Result<Response<v1::JoinToken>, Status> {
        let peer = peer::from_request(&request)?;
        let actor = actor(&peer, &self.state)?;
        let asked = request.into_inner();
        self.run(move |state| {
            let check_actor = || still_valid(&peer);
            state.join_token(&actor, &asked, SystemTime::now(), check_actor)
        })
        .await
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainRequest>,
    ) -> Result<Response<v1::Explanation>, Status> {
        self.actor(&request)?;
        let asked = request.into_inner();
        self.run(move |state| state.explain(&asked)).await
    }

    async fn resources(
        &self,
        request: Request<v1::ResourcesRequest>,
    ) -> Result<Response<v1::ResourcesResponse>, Status> {
        if self.actor(&request)? != Actor::Operator {
            return Err(Status::permission_denied(
                "only the operator sees what all proxies are told",
            ));
        }
        let after = request.into_inner().after;
        self.run(move |state| Ok(state.told_of_callers(&after)))
            .await
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::ControllerStatus>, Status> {
        let actor = self.actor(&request)?;
        let asked = request.into_inner();
        self.run(move |state| {
            let trust = match (&actor, asked.trusts) {
                (Actor::Node(node), Some(report)) => {
                    let authority = state.authority();
                    let trust = trust(&authority);
                    state.host_trusts(node, report);
                    Some(trust)
                }
                _ => None,
            };
            let (hosted, certificates, host_authority_due) = match &actor {
                Actor::Operator => (state.hosted()?, None, false),
                Actor::Node(node) => {
                    let due = state.authority_is_due(node, asked.host_authority)?;
                    state.note_issued(node, &asked.issued);
                    (Vec::new(), Some(state.terms_of_host(node)), due)
                }
            };
            // A host asks again and again, perhaps over a slow line: it is told of what concerns it.
            let answer = v1::ControllerStatus {
                version: env!("CARGO_PKG_VERSION").into(),
                trust_domain: state.trust_domain().to_string(),
                ca_fingerprint: state.authority().fingerprint().to_owned(),
                trust,
                certificates,
                host_authority_due,
                ..Default::default()
            };
            if answer.certificates.is_some() {
                return Ok(answer);
            }
            let proxies = state.hub.streams().into_iter().map(|stream| {
                let status = stream.status();
                v1::ConnectedProxy {
                    spiffe_id: stream.identity.to_string(),
                    subscriptions: u32::try_from(status.subscriptions).unwrap_or(u32::MAX),
                    last_nonce_sent: status.sent,
                    last_nonce_acked: status.acked,
                    last_error: status.last_error,
                    faults: status.faults,
                    certificate_not_after: status.certificate_not_after,
                }
            });
            Ok(v1::ControllerStatus {
                objects: u32::try_from(state.object_count()).unwrap_or(u32::MAX),
                proxies: proxies.collect(),
                hosted,
                away: state.away_periods()?,
                problems: state.problems(),
                findings: state.findings(),
                warnings: state.warnings(),
                ..answer
            })
        })
        .await
    }

    async fn show_authority(
        &self,
        request: Request<v1::ShowAuthorityRequest>,
    ) -> Result<Response<v1::AuthorityStatus>, Status> {
        self.actor(&request)?;
        self.run(|state| Ok(state.authority_status())).await
    }

    async fn rotate_root(
        &self,
        request: Request<v1::RotateRootRequest>,
    ) -> Result<Response<v1::AuthorityStatus>, Status> {
        if self.actor(&request)? != Actor::Operator {
            return Err(Status::permission_denied(
                "only the operator may replace the root",
            ));
        }
        let hold = Duration::from_secs(request.into_inner().hold_seconds.into());
        self.state.rotate(hold).await.map_err(super::refused)?;
        Ok(Response::new(self.state.authority_status()))
    }

    async fn revoke(
        &self,
        request: Request<v1::Revocation>,
    ) -> Result<Response<v1::Revocation>, Status> {
        self.may_revoke(&request)?;
        let asked = request.into_inner();
        self.run(move |state| state.revoke(asked, SystemTime::now()))
            .await
    }

    async fn allow(
        &self,
        request: Request<v1::Revocation>,
    ) -> Result<Response<v1::Revocation>, Status> {
        self.may_revoke(&request)?;
        let asked = request.into_inner();
        self.run(move |state| state.allow(asked)).await
    }

    async fn report_away(
        &self,
        request: Request<v1::AwayPiece>,
    ) -> Result<Response<v1::AwayKept>, Status> {
        let actor = self.actor(&request)?;
        let piece = request.into_inner();
        self.run(move |state| {
            state.keep_away(&actor, piece)?;
            Ok(v1::AwayKept {})
        })
        .await
    }

    async fn observed(
        &self,
        request: Request<v1::ObservedRequest>,
    ) -> Result<Response<v1::ObservedResponse>, Status> {
        if self.actor(&request)? != Actor::Operator {
            return Err(Status::permission_denied(
                "only the operator sees who calls whom",
            ));
        }
        let seconds = request.into_inner().seconds.clamp(10, 900);
        self.run(move |state| {
            let edges = state.observed(seconds);
            Ok(v1::ObservedResponse { edges })
        })
        .await
    }

    async fn list_revoked(
        &self,
        request: Request<v1::ListRevokedRequest>,
    ) -> Result<Response<v1::ListRevokedResponse>, Status> {
        self.actor(&request)?;
        self.run(|state| {
            let revoked = state.list_revoked()?;
            Ok(v1::ListRevokedResponse { revoked })
        })
        .await
    }

    async fn create_console_session(
        &self,
        request: Request<v1::CreateConsoleSessionRequest>,
    ) -> Result<Response<v1::ConsoleSession>, Status> {
        if self.actor(&request)? != Actor::Operator {
            return Err(Status::permission_denied(
                "only the operator opens sessions of the console",
            ));
        }
        let door = self.state.console.get().ok_or_else(|| {
            Status::failed_precondition("this controller was started without a console")
        })?;
        let session = door(&request.into_inner().user);
        session.map(Response::new).map_err(Status::unavailable)
    }
}

/// Waits until a host has lost its authority.
async fn disowned(peer: &Peer, state: &MeshState) -> Status {
    let Peer::Mesh(member) = peer else {
        return std::future::pending().await;
    };
    let node = member.node().unwrap_or_default();
    tokio::select! {
        status = member.expired() => status,
        () = state.until_removed(node) => removed(node),
    }
}

#[cfg(test)]
mod tests;
