//! Listeners of a gateway whose sockets the supervisor opens and passes over a Unix socket: they come and go while the
//! other listeners and all open connections stay.

use crate::listener::accept;
use crate::serve::spread::{self, SlotSeed};
use crate::worker::{Command, Worker};
use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedSender;
use tulle_model::bootstrap::{Listener, ListenerKind};
use tulle_net::passing::{self, Answer, PassedAddress};
use tulle_net::thread;

/// Starts a thread that waits for changes and hands each to all workers.
///
/// # Errors
/// The thread could not be created.
pub fn start(
    from: UnixStream,
    gateway: String,
    workers: Vec<UnboundedSender<Command>>,
) -> io::Result<()> {
    let follow = move || {
        loop {
            match passing::receive(&from) {
                Ok(Some(passed)) => change(&gateway, &workers, passed),
                // The supervisor has ended, and this process ends with it; or another process takes over.
                Ok(None) => return,
                Err(error) => {
                    return tracing::error!(%error, "listeners cannot change until a restart");
                }
            }
        }
    };
    thread::start("listeners".into(), Box::new(follow))
}

fn change(gateway: &str, workers: &[UnboundedSender<Command>], passed: PassedAddress) {
    let PassedAddress {
        address,
        sockets,
        answer,
    } = passed;
    let mut sockets = sockets.into_iter();
    let seeds = spread::slot_seeds(workers.len(), false);
    for (worker, seed) in workers.iter().zip(seeds) {
        let kind = ListenerKind::Gateway {
            gateway: gateway.to_owned(),
            port: address.port(),
        };
        let (listener, socket) = (Listener { address, kind }, sockets.next());
        let answer = answer.clone();
        let make = move |worker: &Rc<Worker>| make(worker, listener, socket, seed, answer);
        // A worker that has ended listens nowhere.
        let _ = worker.send(Command::Do(Box::new(make)));
    }
}

/// Makes a change in a worker. `answer` is given when all of them have dropped it.
fn make(
    worker: &Rc<Worker>,
    listener: Listener,
    socket: Option<StdTcpListener>,
    seed: SlotSeed,
    answer: Arc<Answer>,
) {
    let address = listener.address;
    let mut listeners = worker.listeners.borrow_mut();
    match socket.map(TcpListener::from_std) {
        Some(Ok(socket)) => {
            listeners.push((
                address,
                accept::start(worker, Rc::new(socket), listener, seed),
            ));
        }
        // Its clients are then those of the other workers.
        Some(Err(_)) => worker.metrics.internal(|i| i.overloads += 1),
        None => {
            listeners.retain(|(at, closing)| {
                // Set once, because a listener that closes is forgotten here.
                *at != address || closing.set(answer.clone()).is_err()
            });
            worker.notify();
        }
    }
}
