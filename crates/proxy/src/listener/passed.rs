//! Listeners of a gateway whose sockets the supervisor opens and passes over a Unix socket: they come and go while the
//! other listeners and all open connections stay.

use crate::listener::accept;
use crate::serve::spread::{self, SlotSeed};
use crate::worker::Worker;
use std::cell::Cell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_local};
use tulle_model::bootstrap::{Listener, ListenerKind};
use tulle_net::passing::{self, PassedAddress};

/// One worker's part of a change.
pub struct ListenerChange {
    listener: Listener,
    /// None: the listener is to be closed.
    socket: Option<std::net::TcpListener>,
    seed: SlotSeed,
    done: oneshot::Sender<()>,
}

/// Receives changes until the supervisor ends, and answers each when it is in force.
pub async fn receive(
    from: UnixStream,
    gateway: String,
    workers: Vec<UnboundedSender<ListenerChange>>,
) {
    loop {
        let (done, goes_on) = match passing::receive(&from).await {
            Ok(None) => return,
            Ok(Some(passed)) => (change(&gateway, &workers, passed).await, true),
            Err(error) => (Err(error.to_string()), false),
        };
        if let Err(why) = &done {
            tracing::error!("cannot take a listener: {why}");
        }
        if passing::answer(&from, &done).await.is_err() || !goes_on {
            return;
        }
    }
}

async fn change(
    gateway: &str,
    workers: &[UnboundedSender<ListenerChange>],
    passed: PassedAddress,
) -> Result<(), String> {
    let PassedAddress { address, sockets } = passed;
    if !sockets.is_empty() && sockets.len() != workers.len() {
        let (found, expected) = (sockets.len(), workers.len());
        return Err(format!("expected {expected} sockets, found {found}"));
    }
    let mut sockets = sockets.into_iter();
    let seeds = spread::slot_seeds(workers.len(), false);
    let mut answers = Vec::new();
    for (worker, seed) in workers.iter().zip(seeds) {
        let (done, answer) = oneshot::channel();
        let kind = ListenerKind::Gateway {
            gateway: gateway.to_owned(),
            port: address.port(),
        };
        let change = ListenerChange {
            listener: Listener { address, kind },
            socket: sockets.next(),
            seed,
            done,
        };
        if worker.send(change).is_ok() {
            answers.push(answer);
        }
    }
    for answer in answers {
        // A worker that has ended listens nowhere.
        let _ = answer.await;
    }
    tracing::info!(%address, "listeners have changed");
    Ok(())
}

/// Carries changes out in a worker.
pub async fn follow(worker: Rc<Worker>, mut changes: UnboundedReceiver<ListenerChange>) {
    let mut open: HashMap<SocketAddr, (Rc<Cell<bool>>, JoinHandle<()>)> = HashMap::new();
    while let Some(change) = changes.recv().await {
        let address = change.listener.address;
        if let Some((closed, accepting)) = open.remove(&address) {
            closed.set(true);
            worker.notify();
            // It serves whom the kernel has accepted, then closes its socket.
            let _ = accepting.await;
        }
        if let Some(socket) = change.socket {
            match TcpListener::from_std(socket) {
                Ok(socket) => {
                    let closed = Rc::<Cell<bool>>::default();
                    let accepting = accept::accept(
                        worker.clone(),
                        socket,
                        change.listener,
                        change.seed,
                        closed.clone(),
                    );
                    open.insert(address, (closed, spawn_local(accepting)));
                }
                // Its clients are then the other workers'.
                Err(error) => tracing::error!(%address, %error, "a worker cannot listen"),
            }
        }
        // The main thread may have ended.
        let _ = change.done.send(());
    }
}
