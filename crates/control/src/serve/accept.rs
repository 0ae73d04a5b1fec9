//! Connections in: TLS handshakes on the port, the caller's user id on the Unix socket.
//!
//! Whoever reaches the port may begin a handshake, and may come without a certificate to get one. A
//! source that opens many connections keeps nobody else out, and neither does an identity: see
//! [`tulle_net::places`].

use super::peer::{Known, Member, Peer};
use super::tls::Acceptor;
use crate::memory_limit;
use crate::state::MeshState;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tulle_net::places::{Class, HeldPlace, PlaceLimits, Places, Stage, source_named};
use tulle_net::socket::KeepAlive;

/// Connections with a certificate, by identity. The replicas of a workload share one, and as many streams
/// as the hub allows them fit.
const MEMBERS: PlaceLimits = PlaceLimits {
    all: 20_000,
    source: 1_200,
    reserved: 0,
};
/// Connections whose handshake is not finished. The sidecars of a host start together, so a source has
/// some hundred.
const ARRIVALS: PlaceLimits = PlaceLimits {
    all: 1024,
    source: 256,
    reserved: 0,
};
/// Connections without a certificate. One with a request under way keeps its place.
const STRANGERS: PlaceLimits = PlaceLimits {
    all: 512,
    source: 128,
    reserved: 0,
};
/// Longest time from an accepted connection to its finished handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest stay of a peer without a certificate: it comes to get one and goes.
pub(crate) const STRANGER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, which usually means that file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Where connections go whose peer is known.
pub(crate) type Ready = mpsc::Sender<io::Result<Connection>>;

/// A connection to a known peer.
pub(crate) struct Connection {
    io: Box<dyn Io>,
    peer: Arc<Peer>,
    /// Ends it when it is ready.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
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
        if let Some(end) = &mut self.end
            && end.as_mut().poll(cx).is_ready()
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
    state: Arc<MeshState>,
}

impl TlsListener {
    pub(crate) fn new(listener: TcpListener, state: &Arc<MeshState>) -> Result<Self, String> {
        Ok(Self {
            listener,
            acceptor: Acceptor::new(state)?,
            state: state.clone(),
        })
    }

    /// Hands over connections until the controller is `down`: those with a certificate to `members`, those
    /// without one to `strangers`. From then on nobody would serve a connection, and its client shall find that out
    /// at once.
    pub(crate) async fn run(
        mut self,
        members: Ready,
        strangers: Ready,
        mut down: watch::Receiver<bool>,
    ) {
        let arrivals = Places::new(ARRIVALS);
        let staying = Staying {
            members: Places::new(MEMBERS),
            strangers: Places::new(STRANGERS),
        };
        let mut short = false;
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = members.closed() => return,
                () = strangers.closed() => return,
                _ = down.wait_for(|down| *down) => return,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // A handshake takes memory beyond all that is in use already.
            let why = memory_limit::refusal();
            if let Some(why) = &why {
                if !short {
                    tracing::warn!(%address, "new connections are closed: {why}");
                }
                short = true;
                continue;
            }
            short = false;
            let Some(arrival) = arrivals.take(address.ip(), Class::Anyone) else {
                tracing::debug!(%address, "closed: too many handshakes");
                continue;
            };
            self.acceptor.renew(&self.state);
            let acceptor = self.acceptor.clone();
            let state = self.state.clone();
            let (members, strangers) = (members.clone(), strangers.clone());
            let staying = staying.clone();
            let mut down = down.clone();
            tokio::spawn(async move {
                let shaking = arrival.during(handshake_of(&acceptor, stream));
                let shaken = tokio::select! {
                    shaken = timeout(HANDSHAKE_TIMEOUT, shaking) => shaken,
                    _ = down.wait_for(|down| *down) => return,
                };
                let shaken = shaken.unwrap_or_else(|_| Some(Err(io::ErrorKind::TimedOut.into())));
                let evicted = || Err(io::Error::other("its place was needed for another"));
                let from = arrival.source();
                drop(arrival);
                let connection = shaken.unwrap_or_else(evicted).and_then(|io| {
                    let (peer, place) = identified(&io, from, &acceptor, &state, &staying)?;
                    Ok(Connection::new(io, peer, place))
                });
                match connection {
                    Ok(connection) => {
                        let ready = match *connection.peer {
                            Peer::Anonymous(_) => strangers,
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

/// The places of connections whose handshake is over.
#[derive(Clone)]
struct Staying {
    members: Places,
    strangers: Places,
}

fn identified(
    io: &TlsStream<TcpStream>,
    from: IpAddr,
    acceptor: &Acceptor,
    state: &MeshState,
    staying: &Staying,
) -> io::Result<(Peer, Arc<HeldPlace>)> {
    let certificates = io.get_ref().1.peer_certificates();
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let Some(chain) = certificates.filter(|chain| !chain.is_empty()) else {
        let place = staying.strangers.take(from, Class::Anyone);
        let full = || io::Error::other("too many connections without a certificate");
        let place = Arc::new(place.ok_or_else(full)?);
        return Ok((Peer::Anonymous(place.clone()), place));
    };
    let root = acceptor.root_of(chain);
    let root = root.ok_or_else(|| wrong("its chain ends in no root".into()))?;
    let domain = state.trust_domain();
    let known = Known {
        authorities: state.authorities(),
        revoked: state.revoked(),
        nodes: state.watch_nodes(),
    };
    let member = Member::from_certificate(chain, from, root, domain.as_str(), known);
    let member = member.map_err(wrong)?;
    if state.accounts().is_none() {
        let keep = match member.node() {
            Some(_) => KeepAlive::HOST,
            None => KeepAlive::PROXY_OF_HOST,
        };
        keep.apply(io.get_ref().0)?;
    }
    let source = source_named(member.id.as_str());
    let place = staying.members.take(source, Class::Anyone);
    let full =
        || io::Error::other("too many connections of members, and this identity has its share");
    let place = place.ok_or_else(full)?;
    // Two identities with equal shares must not take each other's places in turn.
    place.reach(Stage::Served);
    Ok((Peer::Mesh(member), Arc::new(place)))
}

impl Connection {
    fn new(io: TlsStream<TcpStream>, peer: Peer, place: Arc<HeldPlace>) -> Self {
        let limit = match &peer {
            Peer::Anonymous(_) => Some(STRANGER_TIMEOUT),
            _ => None,
        };
        Self {
            io: Box::new(io),
            peer: Arc::new(peer),
            end: Some(Box::pin(stay(place, limit))),
        }
    }
}

/// Waits until a connection has lost its place, or used up its time.
async fn stay(place: Arc<HeldPlace>, limit: Option<Duration>) {
    // The connection is over however this ends.
    let _ = match limit {
        Some(limit) => place.during(sleep(limit)).await,
        None => place.during(std::future::pending()).await,
    };
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
                        end: None,
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
        // The socket may be gone already; a new controller replaces one that is left.
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
