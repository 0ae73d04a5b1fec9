//! Connections in: TLS handshakes on the port, the caller's user id on the Unix socket.

use super::admission::{Admission, Stranger, Turn};
use super::peer::{Member, Peer};
use super::tls::Acceptor;
use crate::world::World;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 20_000;
/// From the accepted connection to its finished handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer without a certificate comes to get one and goes.
pub(crate) const STRANGER_TIMEOUT: Duration = Duration::from_secs(10);
/// After a failed accept, usually for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Where connections go whose peer is known.
pub(crate) type Ready = mpsc::Sender<io::Result<Connection>>;

/// A connection whose peer is known.
pub(crate) struct Connection {
    io: Box<dyn Io>,
    peer: Arc<Peer>,
    /// Ends it when it passes.
    deadline: Option<Pin<Box<Sleep>>>,
    _slot: Option<OwnedSemaphorePermit>,
    _stranger: Option<Stranger>,
}

impl Connected for Connection {
    type ConnectInfo = Arc<Peer>;

    fn connect_info(&self) -> Arc<Peer> {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// The port for proxies and hosts.
pub(crate) struct TlsListener {
    listener: TcpListener,
    acceptor: Acceptor,
    world: Arc<World>,
}

impl TlsListener {
    pub(crate) fn new(listener: TcpListener, world: &Arc<World>) -> Result<Self, String> {
        Ok(Self {
            listener,
            acceptor: Acceptor::new(world)?,
            world: world.clone(),
        })
    }

    /// Hands over connections until a receiver is gone: those with a certificate to `members`,
    /// those without one to `strangers`.
    pub(crate) async fn run(mut self, members: Ready, strangers: Ready) {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let admission = Admission::new();
        loop {
            let Ok(slot) = connections.clone().acquire_owned().await else {
                return;
            };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = members.closed() => return,
                () = strangers.closed() => return,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(visit) = admission.enter(address.ip()) else {
                tracing::debug!(%address, "closed: too many connections without a certificate");
                continue;
            };
            self.acceptor.renew(&self.world);
            let acceptor = self.acceptor.clone();
            let world = self.world.clone();
            let (members, strangers) = (members.clone(), strangers.clone());
            tokio::spawn(async move {
                let shaking = async {
                    let turn = visit.turn().await;
                    let turn = turn.ok_or_else(|| io::Error::from(io::ErrorKind::Interrupted))?;
                    Ok((handshake_of(&acceptor, stream).await?, turn))
                };
                let shaken = timeout(HANDSHAKE_TIMEOUT, shaking).await;
                let shaken = shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                let connection =
                    shaken.and_then(|(io, turn)| identified(io, &acceptor, &world, slot, turn));
                match connection {
                    Ok(connection) => {
                        let ready = match *connection.peer {
                            Peer::Anonymous => strangers,
                            _ => members,
                        };
                        // The server may be shutting down.
                        let _ = ready.send(Ok(connection)).await;
                    }
                    Err(error) => tracing::debug!(%address, %error, "handshake failed"),
                }
            });
        }
    }
}

async fn handshake_of(acceptor: &Acceptor, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    acceptor.tls.accept(stream).await
}

fn identified(
    io: TlsStream<TcpStream>,
    acceptor: &Acceptor,
    world: &World,
    slot: OwnedSemaphorePermit,
    turn: Turn,
) -> io::Result<Connection> {
    let certificates = io.get_ref().1.peer_certificates();
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let peer = match certificates.filter(|c| !c.is_empty()) {
        None => Peer::Anonymous,
        Some(chain) => {
            let root = acceptor.root_of(chain);
            let root = root.ok_or_else(|| wrong("its chain ends in no root".into()))?;
            let domain = world.trust_domain();
            let known = world.authorities();
            let member = Member::from_certificate(&chain[0], root, domain.as_str(), known);
            Peer::Mesh(member.map_err(wrong)?)
        }
    };
    let stranger = match peer {
        Peer::Anonymous => {
            let full = || io::Error::other("too many connections without a certificate");
            Some(turn.stranger().ok_or_else(full)?)
        }
        _ => None,
    };
    Ok(Connection {
        io: Box::new(io),
        peer: Arc::new(peer),
        deadline: stranger
            .is_some()
            .then(|| Box::pin(sleep(STRANGER_TIMEOUT))),
        _slot: Some(slot),
        _stranger: stranger,
    })
}

/// The operator's Unix socket.
pub(crate) struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
    owner: u32,
}

impl LocalListener {
    /// Makes the socket in a directory that only its owner can enter.
    ///
    /// # Errors
    /// Others can enter the directory, a controller answers there already, or the system refuses.
    pub(crate) async fn bind(path: &Path) -> io::Result<Self> {
        private_directory(path)?;
        match UnixStream::connect(path).await {
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another controller answers there: stop it first",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Left by a controller that was killed.
            Err(_) => fs::remove_file(path)?,
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            // A new file belongs to this process's user.
            owner: fs::metadata(path)?.uid(),
        })
    }

    /// Hands over connections until the receiver is gone, then removes the socket.
    pub(crate) async fn run(self, ready: Ready) {
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = ready.closed() => return,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "local connection not accepted");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == self.owner || peer.uid() == 0 => {
                    let connection = Connection {
                        io: Box::new(stream),
                        peer: Arc::new(Peer::Operator),
                        deadline: None,
                        _slot: None,
                        _stranger: None,
                    };
                    if ready.send(Ok(connection)).await.is_err() {
                        return;
                    }
                }
                Ok(peer) => tracing::warn!(uid = peer.uid(), "local connection of another user"),
                Err(error) => tracing::warn!(%error, "local connection of an unknown user"),
            }
        }
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        // It may be gone already; a new controller replaces one that is left.
        let _ = fs::remove_file(&self.path);
    }
}

fn private_directory(socket: &Path) -> io::Result<()> {
    let directory = socket.parent().filter(|d| !d.as_os_str().is_empty());
    let directory = directory.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "the socket needs a directory of its own",
        )
    })?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let mode = fs::metadata(directory)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "others can enter the directory {} (mode {mode:o}): run `chmod 700` on it or choose \
                 another one",
                directory.display()
            ),
        ));
    }
    Ok(())
}
