//! Listening sockets and what the kernel knows about a connection.

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections the kernel holds for us while a worker is busy.
const BACKLOG: i32 = 4096;

/// Allows this process as many descriptors as it may allow itself.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // The default limit still works, with fewer connections.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Returns the address on which to listen. An IPv6 wildcard, which takes IPv4 too, becomes the IPv4
/// one on a node whose kernel has no IPv6 (`ipv6.disable=1`). With `disable_ipv6` of a namespace the
/// family is still there, and the wildcard of use.
pub fn available(address: SocketAddr) -> SocketAddr {
    let any = address.is_ipv6() && address.ip().is_unspecified();
    if any
        && let Err(error) = Socket::new(Domain::IPV6, Type::STREAM, None)
        && error.raw_os_error() == Some(libc::EAFNOSUPPORT)
    {
        return (Ipv4Addr::UNSPECIFIED, address.port()).into();
    }
    address
}

/// Binds one worker's listener. `SO_REUSEPORT` lets every worker have its own, so accepting needs
/// no lock. An IPv6 wildcard also takes IPv4, see [`available`].
///
/// # Errors
/// The address is in use, not ours, or not allowed.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::from_std(open(address)?)
}

/// Opens one worker's listener as [`listen`] does, for whichever event loop accepts on it.
///
/// # Errors
/// As `listen`.
pub fn open(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let address = available(address);
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// When the kernel asks a silent peer whether it is still there. A question and its answer are 104 bytes of IP, where a
/// ping of HTTP/2 through TLS and its answer are 234.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    /// Silence before the first question.
    pub idle: Duration,
    /// Time between questions that nobody answers.
    pub interval: Duration,
    /// Questions until the connection is given up.
    pub count: u32,
}

impl KeepAlive {
    /// Between a controller and the supervisor of a host that joined: a dead line is noticed after 40 seconds.
    pub const HOST: Self = Self {
        idle: Duration::from_secs(20),
        interval: Duration::from_secs(5),
        count: 4,
    };
    /// Between a controller and the proxies of such a host, whose supervisor tells them when the line was dead.
    pub const PROXY_OF_HOST: Self = Self {
        idle: Duration::from_secs(240),
        interval: Duration::from_secs(10),
        count: 3,
    };

    /// Asks the peer of a connection. The connection is also given up when something was sent and nobody has
    /// acknowledged it for as long.
    ///
    /// # Errors
    /// The system refuses.
    pub fn apply(&self, stream: &TcpStream) -> io::Result<()> {
        let socket = SockRef::from(stream);
        let times = TcpKeepalive::new()
            .with_time(self.idle)
            .with_interval(self.interval)
            .with_retries(self.count);
        socket.set_tcp_keepalive(&times)?;
        socket.set_tcp_user_timeout(Some(self.idle + self.interval * self.count))
    }
}

/// Whether another process already listens on the address. `SO_REUSEPORT` would let two proxies
/// of the same user share a port silently, so the first bind is tried without it.
///
/// # Errors
/// As `listen`.
pub fn check_free(address: SocketAddr) -> io::Result<()> {
    let address = available(address);
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(1)
}

/// Where a redirected connection was going before the `nft` rule sent it here.
///
/// # Errors
/// The connection was not redirected, or connection tracking has forgotten it.
pub fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let socket = SockRef::from(stream);
    // An IPv4 connection on a dual-stack listener has an IPv6-mapped local address, but its
    // original destination is kept under the IPv4 option.
    let local = stream.local_addr()?;
    let mapped = matches!(local, SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some());
    let address = if local.is_ipv4() || mapped {
        socket.original_dst_v4()?
    } else {
        socket.original_dst_v6()?
    };
    address
        .as_socket()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an IP address"))
}

/// `::ffff:a.b.c.d` as `a.b.c.d`.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Leaves the choice of a port to `connect` (ip(7), IP_BIND_ADDRESS_NO_PORT): it needs to be free only
/// for that destination. A kernel that does not know this (before Linux 4.2, and qemu's user mode) chooses at once: there are
/// fewer ports then.
fn choose_port_late(socket: &TcpSocket) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option reads one int, which outlives the call, and the descriptor is open.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            std::ptr::from_ref(&on).cast(),
            libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(4),
        )
    };
    let error = io::Error::last_os_error();
    match result {
        0 => Ok(()),
        _ if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        _ => Err(error),
    }
}

/// Connects from a loopback address to an address of this network namespace.
///
/// # Errors
/// As `connect`.
pub async fn connect_from_loopback(address: SocketAddr) -> io::Result<TcpStream> {
    let (socket, from) = match address {
        SocketAddr::V4(_) => (TcpSocket::new_v4()?, IpAddr::V4(Ipv4Addr::LOCALHOST)),
        SocketAddr::V6(_) => (TcpSocket::new_v6()?, IpAddr::V6(Ipv6Addr::LOCALHOST)),
    };
    // Else one port would be taken for each connection, whatever its destination.
    choose_port_late(&socket)?;
    socket.bind(SocketAddr::new(from, 0))?;
    socket.connect(address).await
}

/// A second handle on a connection, to end it: the owner then reads the end and can write nothing
/// more. It must be dropped before the connection is closed, or it would end a connection opened
/// later.
#[derive(Debug)]
pub struct Cut(RawFd);

impl Cut {
    /// Makes a handle to end this connection.
    #[must_use]
    pub fn for_stream(stream: &TcpStream) -> Self {
        Self(stream.as_raw_fd())
    }

    /// Ends it, in both directions.
    pub fn now(&self) {
        // SAFETY: the call takes nothing but numbers, and the descriptor is still that of the
        // connection: see above. The call fails only if the connection is over.
        #[allow(unsafe_code)]
        let _ = unsafe { libc::shutdown(self.0, libc::SHUT_RDWR) };
    }
}

/// The activity of a connection from a client, as the kernel remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activity {
    /// Whether nothing was ever received.
    pub silent: bool,
    /// Time since bytes went either way.
    pub idle: Duration,
}

/// Offsets of the fields in the kernel's `struct tcp_info`, which only ever grows at its end.
const LAST_DATA_SENT: usize = 44;
const LAST_DATA_RECEIVED: usize = 52;
const BYTES_RECEIVED: usize = 128;
const TCP_INFO: usize = 136;

/// Remembers a client's connection by descriptor and port, to look at it or end it later. It may
/// outlive the connection: then it finds none.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionWatch {
    descriptor: RawFd,
    port: u16,
}

impl ConnectionWatch {
    /// Remembers a connection with this peer.
    #[must_use]
    pub fn new(stream: &TcpStream, peer: SocketAddr) -> Self {
        Self {
            descriptor: stream.as_raw_fd(),
            port: peer.port(),
        }
    }

    /// Returns what the connection did. `None`: the descriptor is no longer that of a connection from
    /// this address (an IPv6 network counts as one, see [`source_of`](crate::places::source_of)).
    #[must_use]
    pub fn activity(&self, source: IpAddr) -> Option<Activity> {
        // SAFETY: connections belong to the thread that accepted them and asks here, so nobody closes
        // the descriptor meanwhile. The kernel refuses one that is closed already.
        #[allow(unsafe_code)]
        let descriptor = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
        let peer = SockRef::from(&descriptor).peer_addr().ok()?.as_socket()?;
        if peer.port() != self.port || crate::places::source_of(peer.ip()) != source {
            return None;
        }
        let mut info = [0_u8; TCP_INFO];
        let mut length = libc::socklen_t::try_from(TCP_INFO).unwrap_or(0);
        // SAFETY: the kernel writes no more than `length` bytes, which there are.
        #[allow(unsafe_code)]
        let result = unsafe {
            libc::getsockopt(
                self.descriptor,
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        (result == 0).then_some(())?;
        let number = |at: usize| {
            let bytes = info.get(at..at + 4).and_then(|b| b.try_into().ok());
            u32::from_ne_bytes(bytes.unwrap_or_default())
        };
        let received = info.get(BYTES_RECEIVED..).unwrap_or_default();
        let idle = number(LAST_DATA_SENT).min(number(LAST_DATA_RECEIVED));
        Some(Activity {
            // A kernel that does not say how many leaves zeros: nobody was silent there.
            silent: length as usize >= TCP_INFO && received.iter().all(|byte| *byte == 0),
            idle: Duration::from_millis(idle.into()),
        })
    }

    /// Ends the connection in both directions; its owner sees that. Unsent bytes are discarded. Call
    /// it right after [`Self::activity`] has found the connection.
    pub fn end(&self) {
        // SAFETY: as in `activity`.
        #[allow(unsafe_code)]
        let descriptor = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
        let socket = SockRef::from(&descriptor);
        // These calls fail only if the connection is over.
        let _ = socket.set_linger(Some(Duration::ZERO));
        let _ = socket.shutdown(std::net::Shutdown::Both);
    }
}

/// Prepares an accepted or dialled stream: small messages leave at once.
///
/// # Errors
/// The connection is already gone.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)
}
