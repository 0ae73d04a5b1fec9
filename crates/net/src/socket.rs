//! Listening sockets and what the kernel knows about a connection.

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections the kernel holds for us while a worker is busy.
const BACKLOG: i32 = 4096;

/// Where to listen for this address: an IPv6 wildcard, which takes IPv4 too, is IPv4's alone on a node
/// whose kernel has no IPv6 (`ipv6.disable=1`). With `disable_ipv6` of a namespace the family is
/// still there, and the wildcard of use.
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
    TcpListener::from_std(socket.into())
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
/// for that destination.
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
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
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

/// Another hand on a connection, to end it: who owns it then reads its end and can write nothing more.
/// It has to be dropped before the connection is closed, or it would end whatever is opened next.
#[derive(Debug)]
pub struct Cut(RawFd);

impl Cut {
    /// For this connection.
    #[must_use]
    pub fn of(stream: &TcpStream) -> Self {
        Self(stream.as_raw_fd())
    }

    /// Ends it, in both directions.
    pub fn now(&self) {
        // SAFETY: the call takes nothing but numbers, and the descriptor is still that of the
        // connection: see above. What can fail is only that the connection is over.
        #[allow(unsafe_code)]
        let _ = unsafe { libc::shutdown(self.0, libc::SHUT_RDWR) };
    }
}

/// Prepares an accepted or dialled stream: small messages leave at once.
///
/// # Errors
/// The connection is already gone.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)
}
