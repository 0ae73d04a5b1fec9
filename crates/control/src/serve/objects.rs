//! The Objects service: what operators, and within limits joined hosts, may do.
//!
//! A host's certificate (`node/<name>`) lets it apply and delete Workloads that it applied itself,
//! report where those run and make join tokens for their identities; it may look at everything but
//! the environment of other hosts' workloads. The Mesh, gateways, routes and policies are the
//! operator's. A host is trusted to say which identities it runs: that is what joining it means.

use super::peer::{self, Peer};
use super::run;
use crate::state::rotation::trust;
use crate::state::{Actor, MeshState, Refused};
use crate::store::{Change, StoredObject};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tulle_api::v1;
use tulle_model::manifest::{Metadata, NODE_LABEL};

/// Watches of the operator, the mesh's own supervisor among them, and of all hosts together.
const MAX_WATCHES: usize = 256;
/// Watches of one host: its supervisor has one, and some more may not be known to be dead yet.
const MAX_WATCHES_OF_NODE: usize = 8;

#[derive(Clone)]
pub(crate) struct ObjectsService {
    pub(crate) state: Arc<MeshState>,
    shutdown: watch::Receiver<bool>,
    watches: Watches,
}

/// Places for watches. Hosts cannot take those of the operator or of each other.
#[derive(Clone)]
struct Watches {
    operator: Arc<Semaphore>,
    nodes: Arc<Semaphore>,
    of_node: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

/// The place of one watch.
type Place = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

impl Watches {
    fn new() -> Self {
        Self {
            operator: Arc::new(Semaphore::new(MAX_WATCHES)),
            nodes: Arc::new(Semaphore::new(MAX_WATCHES)),
            of_node: Arc::default(),
        }
    }

    fn place(&self, actor: &Actor) -> Result<Place, Status> {
        let take = |from: &Arc<Semaphore>, most| {
            from.clone()
                .try_acquire_owned()
                .map_err(|_| Status::resource_exhausted(format!("{most} watches are open already")))
        };
        let Actor::Node(node) = actor else {
            return Ok((take(&self.operator, MAX_WATCHES)?, None));
        };
        let mut of_node = self.of_node.lock().unwrap_or_else(PoisonError::into_inner);
        // Hosts without a watch are forgotten.
        of_node.retain(|_, s| s.available_permits() < MAX_WATCHES_OF_NODE);
        let own = of_node.entry(node.clone());
        let own = own.or_insert_with(|| Arc::new(Semaphore::new(MAX_WATCHES_OF_NODE)));
        let own = take(own, MAX_WATCHES_OF_NODE)?;
        Ok((take(&self.nodes, MAX_WATCHES)?, Some(own)))
    }
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

fn removed(node: &str) -> Status {
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
        let actor = self.actor(&request)?;
        let asked = request.into_inner();
        self.run(move |state| state.join_token(&actor, &asked, SystemTime::now()))
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
                warnings: state.key_warnings(),
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

type Events = mpsc::Sender<Result<v1::WatchEvent, Status>>;

/// Sends the present objects, then every commit. A watcher that falls behind has to start anew.
async fn watch_objects(state: Arc<MeshState>, actor: Actor, sender: &Events) -> Result<(), Status> {
    let start = state.clone();
    let mut watch = run(move || Ok(start.store().watch()?)).await?;
    let mut told = Told::default();
    let (mut authorities, mut terms) = (state.authorities(), state.certificate_terms());
    for object in watch.objects {
        let change = Change::Applied(object);
        if !send_change(&state, &actor, change, &mut told, sender).await {
            return Ok(());
        }
    }
    let synced = v1::watch_event::Event::Synced(true);
    if !send(sender, synced).await {
        return Ok(());
    }
    let is_host = matches!(actor, Actor::Node(_));
    let mut ask = true;
    loop {
        if is_host && ask && !send(sender, v1::watch_event::Event::Ask(true)).await {
            return Ok(());
        }
        ask = false;
        let commit = tokio::select! {
            commit = watch.commits.recv() => commit,
            // They fail only when the state ends, and everything else with it.
            Ok(()) = authorities.changed() => {
                ask = true;
                continue;
            }
            Ok(()) = terms.changed() => {
                ask = true;
                continue;
            }
        };
        let commit = match commit {
            Ok(commit) => commit,
            Err(broadcast::error::RecvError::Lagged(_)) => {
                return Err(Status::aborted(
                    "the watch fell behind and missed changes: watch again",
                ));
            }
            Err(broadcast::error::RecvError::Closed) => return Ok(()),
        };
        for change in &commit.changes {
            if !send_change(&state, &actor, change.clone(), &mut told, sender).await {
                return Ok(());
            }
        }
    }
}

/// Objects that a host was told of: those that it runs, and the Mesh.
#[derive(Default)]
struct Told(HashSet<(String, String)>);

impl Told {
    /// Returns what to tell a host of a change; `None`: nothing.
    fn change(&mut self, node: &str, change: Change) -> Option<Change> {
        let (kind, name) = match &change {
            Change::Applied(object) => (object.kind.clone(), object.name.clone()),
            Change::Deleted { kind, name } => (kind.clone(), name.clone()),
        };
        match &change {
            Change::Applied(object) if concerns(node, object) => {
                self.0.insert((kind, name));
                Some(change)
            }
            // It may run elsewhere from now on.
            _ => self
                .0
                .remove(&(kind.clone(), name.clone()))
                .then_some(Change::Deleted { kind, name }),
        }
    }
}

/// Whether a host runs it, or goes by it.
fn concerns(node: &str, object: &StoredObject) -> bool {
    #[derive(serde::Deserialize)]
    struct Labelled {
        metadata: Metadata,
    }
    if object.kind == "Mesh" {
        return true;
    }
    // One that cannot be read is told as well, as it was before: the host says so.
    let read: Result<Labelled, _> = serde_json::from_str(&object.json);
    read.map_or(true, |read| {
        let label = read.metadata.labels.get(NODE_LABEL);
        label.is_some_and(|label| label == node)
    })
}

async fn send_change(
    state: &MeshState,
    actor: &Actor,
    change: Change,
    told: &mut Told,
    sender: &Events,
) -> bool {
    let change = match actor {
        Actor::Operator => Some(change),
        Actor::Node(node) => told.change(node, change),
    };
    let event = match change {
        None => return true,
        Some(Change::Applied(object)) => {
            v1::watch_event::Event::Applied(state.visible(actor, object))
        }
        Some(Change::Deleted { kind, name }) => v1::watch_event::Event::Deleted(v1::Object {
            kind,
            name,
            json: String::new(),
        }),
    };
    send(sender, event).await
}

async fn send(sender: &Events, event: v1::watch_event::Event) -> bool {
    let event = v1::WatchEvent { event: Some(event) };
    sender.send(Ok(event)).await.is_ok()
}
