//! The Objects service: what operators, and within limits joined hosts, may do.
//!
//! A host's certificate (`node/<name>`) lets it apply and delete Workloads that it applied itself,
//! report where those run and make join tokens for their identities; it may look at everything but
//! the environment of other hosts' workloads. The Mesh, gateways, routes and policies are the
//! operator's. A host is trusted to say which identities it runs: that is what joining it means.

use super::peer::{self, Peer};
use super::run;
use crate::store::{Change, StoredObject};
use crate::world::{Actor, Refused, World};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::{Semaphore, broadcast, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tulle_api::v1;

/// Watches at a time.
const MAX_WATCHES: usize = 256;

#[derive(Clone)]
pub(crate) struct ObjectsService {
    pub(crate) world: Arc<World>,
    shutdown: watch::Receiver<bool>,
    watches: Arc<Semaphore>,
}

impl ObjectsService {
    pub(crate) fn new(world: Arc<World>, shutdown: watch::Receiver<bool>) -> Self {
        Self {
            world,
            shutdown,
            watches: Arc::new(Semaphore::new(MAX_WATCHES)),
        }
    }

    /// Runs something that may wait for the disk.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&World) -> Result<T, Refused> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let world = self.world.clone();
        run(move || work(&world)).await.map(Response::new)
    }
}

/// On whose behalf a request is made.
pub(crate) fn actor(peer: &Peer) -> Result<Actor, Status> {
    match peer {
        Peer::Operator => Ok(Actor::Operator),
        Peer::Anonymous => Err(Status::unauthenticated(
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
            Ok(Actor::Node(node.to_owned()))
        }
    }
}

fn actor_of<T>(request: &Request<T>) -> Result<Actor, Status> {
    actor(&peer::of(request)?)
}

#[tonic::async_trait]
impl v1::objects_server::Objects for ObjectsService {
    async fn apply(
        &self,
        request: Request<v1::ApplyRequest>,
    ) -> Result<Response<v1::ApplyResponse>, Status> {
        let actor = actor_of(&request)?;
        let objects = request.into_inner().objects;
        self.run(move |world| {
            let results = world.apply(&actor, &objects)?;
            Ok(v1::ApplyResponse { results })
        })
        .await
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        let actor = actor_of(&request)?;
        let asked = request.into_inner();
        self.run(move |world| {
            let objects = world.list(&actor, &asked.kind, &asked.name)?;
            Ok(v1::ListResponse { objects })
        })
        .await
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        let actor = actor_of(&request)?;
        let asked = request.into_inner();
        self.run(move |world| {
            let existed = world.delete(&actor, &asked.kind, &asked.name)?;
            Ok(v1::DeleteResponse { existed })
        })
        .await
    }

    type WatchStream = ReceiverStream<Result<v1::WatchEvent, Status>>;

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let peer = peer::of(&request)?;
        let actor = actor(&peer)?;
        let slot = self.watches.clone().try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!("{MAX_WATCHES} watches are open already"))
        })?;
        let (sender, receiver) = mpsc::channel(64);
        let world = self.world.clone();
        let mut shutdown = self.shutdown.clone();
        tokio::spawn(async move {
            let _slot = slot;
            tokio::select! {
                end = watch_objects(world, actor, &sender) => {
                    if let Err(status) = end {
                        let _ = sender.try_send(Err(status));
                    }
                }
                () = sender.closed() => {}
                status = expired(&peer) => {
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
        let actor = actor_of(&request)?;
        let placement = request.into_inner();
        self.run(move |world| {
            world.place(&actor, placement)?;
            Ok(v1::PlacementAck {})
        })
        .await
    }

    async fn create_join_token(
        &self,
        request: Request<v1::JoinTokenRequest>,
    ) -> Result<Response<v1::JoinToken>, Status> {
        let actor = actor_of(&request)?;
        let asked = request.into_inner();
        self.run(move |world| world.join_token(&actor, &asked, SystemTime::now()))
            .await
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainRequest>,
    ) -> Result<Response<v1::Explanation>, Status> {
        actor_of(&request)?;
        let asked = request.into_inner();
        self.run(move |world| world.explain(&asked)).await
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::ControllerStatus>, Status> {
        actor_of(&request)?;
        self.run(|world| {
            let proxies = world.hub.streams().into_iter().map(|stream| {
                let status = stream.status();
                v1::ConnectedProxy {
                    spiffe_id: stream.identity.to_string(),
                    subscriptions: u32::try_from(status.subscriptions).unwrap_or(u32::MAX),
                    last_nonce_sent: status.sent,
                    last_nonce_acked: status.acked,
                    last_error: status.last_error,
                    certificate_not_after: status.certificate_not_after,
                }
            });
            Ok(v1::ControllerStatus {
                version: env!("CARGO_PKG_VERSION").into(),
                trust_domain: world.trust_domain().to_string(),
                ca_fingerprint: world.authority().fingerprint().to_owned(),
                objects: u32::try_from(world.object_count()).unwrap_or(u32::MAX),
                proxies: proxies.collect(),
            })
        })
        .await
    }
}

/// Waits until the peer's certificate has expired.
async fn expired(peer: &Peer) -> Status {
    match peer {
        Peer::Mesh(member) => member.expired().await,
        Peer::Operator | Peer::Anonymous => std::future::pending().await,
    }
}

type Events = mpsc::Sender<Result<v1::WatchEvent, Status>>;

/// Sends the present objects, then every commit. A watcher that falls behind is told to start anew.
async fn watch_objects(world: Arc<World>, actor: Actor, sender: &Events) -> Result<(), Status> {
    let start = world.clone();
    let mut watch = run(move || Ok(start.store().watch()?)).await?;
    for object in watch.objects {
        if !send_applied(&world, &actor, object, sender).await {
            return Ok(());
        }
    }
    let synced = v1::watch_event::Event::Synced(true);
    if !send(sender, synced).await {
        return Ok(());
    }
    loop {
        let commit = match watch.commits.recv().await {
            Ok(commit) => commit,
            Err(broadcast::error::RecvError::Lagged(_)) => {
                return Err(Status::aborted(
                    "the watch fell behind and missed changes: watch again",
                ));
            }
            Err(broadcast::error::RecvError::Closed) => return Ok(()),
        };
        for change in &commit.changes {
            let sent = match change {
                Change::Applied(object) => {
                    send_applied(&world, &actor, object.clone(), sender).await
                }
                Change::Deleted { kind, name } => {
                    let deleted = v1::watch_event::Event::Deleted(v1::Object {
                        kind: kind.clone(),
                        name: name.clone(),
                        json: String::new(),
                    });
                    send(sender, deleted).await
                }
            };
            if !sent {
                return Ok(());
            }
        }
    }
}

async fn send_applied(world: &World, actor: &Actor, object: StoredObject, sender: &Events) -> bool {
    let visible = world.visible(actor, object);
    send(sender, v1::watch_event::Event::Applied(visible)).await
}

async fn send(sender: &Events, event: v1::watch_event::Event) -> bool {
    let event = v1::WatchEvent { event: Some(event) };
    sender.send(Ok(event)).await.is_ok()
}
