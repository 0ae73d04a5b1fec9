//! Listening sockets of all workers: opened here or taken from the process before, and copied for the one after.

use crate::listener::accept;
use crate::serve::spread::{self, SlotSeed};
use crate::worker::{Command, Worker};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tulle_model::bootstrap::Listener;

/// Sockets by address: for a listener one for each worker, for DNS that of UDP and that of TCP.
pub type Sockets = BTreeMap<SocketAddr, Vec<OwnedFd>>;

/// Has all workers listen, with the sockets that are there and new ones where there are too few. Takes the sockets that it uses.
///
/// # Errors
/// An address cannot be bound; returns it and why.
pub async fn listen(
    workers: &[UnboundedSender<Command>],
    listeners: &[Listener],
    sockets: &mut Sockets,
) -> Result<(), (SocketAddr, io::Error)> {
    let (tell, mut told) = unbounded_channel();
    let start = |worker: &UnboundedSender<Command>,
                 listener: &Listener,
                 socket: Option<OwnedFd>,
                 seed: SlotSeed| {
        let (listener, tell) = (listener.clone(), tell.clone());
        let start = move |worker: &Rc<Worker>| {
            let address = listener.address;
            let started = open(worker, listener, socket, seed);
            // Whoever no longer waits has failed at another one.
            let _ = tell.send(started.map_err(|error| (address, error)));
        };
        // A worker that has ended has panicked, and with it the process.
        let _ = worker.send(Command::Do(Box::new(start)));
    };
    for listener in listeners {
        let given = sockets.remove(&listener.address).unwrap_or_default();
        // The process before may have had more workers, and clients may wait in the socket of each.
        let count = workers.len().max(given.len());
        let mut given = given.into_iter();
        let seeds = spread::slot_seeds(count, accept::is_exact(listener));
        for (seed, worker) in seeds.into_iter().zip(workers.iter().cycle()) {
            start(worker, listener, given.next(), seed);
        }
    }
    drop(tell);
    while let Some(started) = told.recv().await {
        started?;
    }
    Ok(())
}

fn open(
    worker: &Rc<Worker>,
    listener: Listener,
    socket: Option<OwnedFd>,
    seed: SlotSeed,
) -> io::Result<()> {
    let socket = match socket {
        Some(socket) => TcpListener::from_std(StdTcpListener::from(socket))?,
        None => accept::bind(&listener)?,
    };
    let socket = Rc::new(socket);
    let known = (listener.address, Rc::downgrade(&socket));
    worker.sockets.borrow_mut().push(known);
    accept::start(worker, socket, listener, seed);
    Ok(())
}

/// Returns copies of all sockets that workers accept on.
pub async fn copies(workers: &[UnboundedSender<Command>]) -> Sockets {
    let (tell, mut told) = unbounded_channel();
    for worker in workers {
        let tell = tell.clone();
        let copy = move |worker: &Rc<Worker>| {
            for (address, socket) in worker.sockets.borrow().iter() {
                // One that is closed already is nobody's loss, and one that cannot be copied is opened anew.
                let Some(socket) = socket.upgrade() else {
                    continue;
                };
                if let Ok(copied) = socket.as_fd().try_clone_to_owned() {
                    let _ = tell.send((*address, copied));
                }
            }
        };
        let _ = worker.send(Command::Do(Box::new(copy)));
    }
    drop(tell);
    let mut sockets = Sockets::new();
    while let Some((address, socket)) = told.recv().await {
        sockets.entry(address).or_default().push(socket);
    }
    sockets
}
