//! A new process of a sidecar takes over from the one before: it gets the same listening sockets, with the clients that wait in
//! them, so nobody is refused and nobody lost.
//!
//! Both are processes of one user and meet at a Unix socket that no other user can reach. The new one connects when it starts, and asks
//! when it has certificate and configuration. The one before hands out copies of its sockets and goes on with its own until it is
//! told to end; then the connection ends, and the new one waits for the next. Where there is no process before, or it ends too early,
//! the new one opens what it has not got. Who is started and ended when is the supervisor's business.

use crate::control::publish::Current;
use crate::dns::Dns;
use crate::listener::sockets::{self, Sockets};
use crate::worker::Command;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::UnboundedSender;
use tulle_model::bootstrap::Listener;
use tulle_net::passing;

/// The new process is ready to listen.
const ASK: u8 = 1;
/// Wait after a failed accept, which usually means that file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Connects to the process before, if there is one.
pub async fn predecessor(at: &Path) -> Option<UnixStream> {
    let before = UnixStream::connect(at).await.ok()?;
    // Somebody else's socket would keep this process from listening.
    let user = before.peer_cred().ok()?.uid();
    (user == rustix::process::geteuid().as_raw()).then_some(before)
}

/// The listeners of this process: those of its workers, and that of DNS with its addresses.
pub struct Listeners {
    /// All workers.
    pub workers: Vec<UnboundedSender<Command>>,
    /// Where they listen.
    pub listeners: Vec<Listener>,
    /// The application's resolver, and where it answers.
    pub dns: Option<(Arc<Dns>, Vec<SocketAddr>)>,
    /// The configuration in force.
    pub current: Current,
    /// Whether a controller is configured; its first answer is waited for.
    pub controlled: bool,
}

impl Listeners {
    /// Listens everywhere, with the sockets that are there and new ones. Those that are in no use are closed.
    ///
    /// # Errors
    /// An address cannot be bound; returns it and why.
    pub async fn listen(&self, mut given: Sockets) -> Result<(), (SocketAddr, io::Error)> {
        if let Some((dns, addresses)) = &self.dns {
            dns.listen(addresses, &mut given).await?;
        }
        // Last: clients are accepted from here on, and a process that fails takes them with it.
        sockets::listen(&self.workers, &self.listeners, &mut given).await
    }

    /// Listens with the sockets of the process before as soon as this one is ready, and waits until that one ends.
    ///
    /// # Errors
    /// As [`Self::listen`].
    pub async fn take_over(&self, mut before: UnixStream) -> Result<(), (SocketAddr, io::Error)> {
        let mut byte = [0];
        let has_ended = tokio::select! {
            () = self.ready() => false,
            // It says nothing unasked.
            _ = before.read(&mut byte) => true,
        };
        let mut given = Sockets::new();
        if !has_ended && let Err(error) = take(&mut before, &mut given).await {
            tracing::warn!(%error, "the process before has not handed over all of its listeners");
        }
        self.listen(given).await?;
        self.current.set_taking_over(false);
        tracing::info!("took over from the process before");
        // Nothing comes but the end.
        let _ = before.read(&mut byte).await;
        Ok(())
    }

    /// Waits until there are certificate and configuration.
    async fn ready(&self) {
        let found = self.current.find(|snapshot| {
            let now = SystemTime::now();
            let valid = |tls: &tulle_tls::Context| tls.identity().not_after() > now;
            let certified = snapshot.tls.as_ref().is_some_and(valid);
            (certified && (snapshot.complete || !self.controlled)).then_some(())
        });
        found.await;
    }

    /// Hands over to each process that asks, one after another, for as long as this one is not told to end.
    pub async fn serve(&self, heirs: UnixListener) {
        // The connection with the last one, which learns by its end that this process takes no more clients.
        let mut last = None;
        loop {
            match heirs.accept().await {
                Ok((heir, _)) => last = self.hand_over(heir).await.or(last),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    async fn hand_over(&self, mut heir: UnixStream) -> Option<UnixStream> {
        // One that ends before it is ready asks nothing.
        heir.read_u8().await.ok()?;
        let mut copies = sockets::copies(&self.workers).await;
        if let Some((dns, _)) = &self.dns {
            copies.append(&mut dns.copies());
        }
        match pass(&heir, &copies).await {
            Ok(()) => {
                tracing::info!("another process takes over");
                Some(heir)
            }
            Err(error) => {
                tracing::warn!(%error, "the process that was to take over is gone");
                None
            }
        }
    }

    /// Lets go of what no worker drains.
    pub async fn leave(&self) {
        if let Some((dns, _)) = &self.dns {
            dns.leave().await;
        }
    }
}

/// Asks for the sockets, and takes them.
async fn take(before: &mut UnixStream, into: &mut Sockets) -> io::Result<()> {
    before.write_all(&[ASK]).await?;
    while let Some((address, files)) = passing::receive_files(before).await? {
        if files.is_empty() {
            return Ok(());
        }
        into.entry(address).or_default().extend(files);
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// Passes all of them on, and says that these are all: a message without sockets.
async fn pass(to: &UnixStream, all: &Sockets) -> io::Result<()> {
    for (address, sockets) in all {
        for part in sockets.chunks(passing::MOST) {
            let files: Vec<BorrowedFd<'_>> = part.iter().map(AsFd::as_fd).collect();
            passing::pass_files(to, *address, &files).await?;
            passing::answered(to).await?;
        }
    }
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    passing::pass_files(to, nowhere, &[]).await?;
    passing::answered(to).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    #[tokio::test]
    async fn who_waits_in_a_socket_goes_with_it() {
        let (mut heir, mut before) = UnixStream::pair().unwrap();
        let socket = tulle_net::socket::open((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        let another = tulle_net::socket::open(address).unwrap();
        let clients: Vec<_> = (0..8)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let hand_over = async move {
            let asked = before.read_u8().await.unwrap();
            let own = vec![OwnedFd::from(socket), OwnedFd::from(another)];
            let all = Sockets::from([(address, own)]);
            pass(&before, &all).await.unwrap();
            asked
        };
        let mut taken = Sockets::new();
        let (asked, done) = tokio::join!(hand_over, take(&mut heir, &mut taken));
        done.unwrap();
        assert_eq!((asked, taken.len()), (ASK, 1));
        let sockets = taken.remove(&address).unwrap();
        let sockets = sockets.into_iter().map(TcpListener::from);
        let accepted: usize = sockets
            .map(|socket| std::iter::from_fn(|| socket.accept().ok()).count())
            .sum();
        assert_eq!(accepted, clients.len());
    }

    #[tokio::test]
    async fn a_process_that_ends_while_it_hands_over_is_noticed() {
        let (mut heir, before) = UnixStream::pair().unwrap();
        drop(before);
        assert!(take(&mut heir, &mut Sockets::new()).await.is_err());
        assert!(predecessor(Path::new("/nowhere/heir.sock")).await.is_none());
    }
}
