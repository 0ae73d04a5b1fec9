//! Is an address free that the manifests name? Asked before anything is started: proxies share
//! their ports among workers (`SO_REUSEPORT`), so those of two meshes of one user would silently
//! share the clients, and a probe would be answered by a stranger.

use super::state::Mode;
use crate::failure::{Failure, Result};
use crate::port_range::PortRange;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use tulle_model::manifest::{GatewaySpec, Object};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Whether somebody could listen there now.
pub(crate) fn free(address: SocketAddr) -> Result<()> {
    TcpListener::bind(address)
        .map(drop)
        .map_err(|error| failure(address, error))
}

/// Opens listening sockets that share an address, unless somebody listens there already.
pub(crate) fn open(address: SocketAddr, count: u16) -> Result<Vec<TcpListener>> {
    free(address)?;
    (0..count).map(|_| open_another(address)).collect()
}

/// Opens one more socket of those that [`open`] opened.
pub(crate) fn open_another(address: SocketAddr) -> Result<TcpListener> {
    tulle_net::socket::open(address).map_err(|error| failure(address, error))
}

fn failure(address: SocketAddr, error: std::io::Error) -> Failure {
    let failure = Failure::new(format!("cannot listen on {address}"));
    match error.kind() {
        ErrorKind::AddrInUse => failure.because("another process does already").fix(format!(
            "`ss -ltnp 'sport = :{}'` shows which; end it, or choose another port",
            address.port()
        )),
        ErrorKind::PermissionDenied => failure
            .because(error)
            .fix("choose a port of 1024 or more, or run this as root"),
        ErrorKind::AddrNotAvailable => failure
            .because("this host has no such address")
            .fix("choose one that `ip address` shows"),
        _ => failure.because(error),
    }
}

/// Ports for listeners whose number is nobody's business. They lie outside the range from which the
/// kernel takes those of outgoing connections, because those are the ones that are short.
pub(crate) struct Pool {
    first: u16,
    count: u16,
    next: Cell<u16>,
    /// The operator named the ports: the lowest free one is taken.
    named: bool,
}

/// A port that nobody but our own child gets. Between the choice of a port and the child's bind, and
/// whenever the child is restarted, another mesh or an outgoing connection could take it otherwise.
#[derive(Debug)]
pub(crate) struct Reserved {
    address: SocketAddr,
    /// Bound, and never listening: who binds with `SO_REUSEADDR`, as Tulle's programs and Envoy do,
    /// may listen there all the same. The kernel gives the port to nobody by itself.
    _socket: OwnedFd,
    /// Says so to other meshes of this network namespace: a bound port that is to be shared with a child looks free to them.
    _claim: UnixDatagram,
}

impl Reserved {
    /// Reserves an address that nobody has bound.
    pub(super) fn bind(address: SocketAddr) -> std::io::Result<Self> {
        Self::reserve(address, false)
    }

    /// Reserves an address even where connections have just ended, which the kernel remembers for a minute. Nobody may listen
    /// there or have reserved it.
    pub(super) fn bind_again(address: SocketAddr) -> std::io::Result<Self> {
        Self::reserve(address, true)
    }

    fn reserve(address: SocketAddr, again: bool) -> std::io::Result<Self> {
        let claim = Self::claim(address)?;
        let socket = Self::socket(address)?;
        sockopt::set_socket_reuseaddr(&socket, again)?;
        bind(&socket, &address)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        Ok(Self {
            address,
            _socket: socket,
            _claim: claim,
        })
    }

    /// A name in the abstract namespace, which belongs to the network namespace as ports do and goes with its process.
    fn claim(address: SocketAddr) -> std::io::Result<UnixDatagram> {
        let name = format!("tulle reserves {address}");
        UnixDatagram::bind_addr(&UnixAddress::from_abstract_name(name)?)
    }

    fn socket(address: SocketAddr) -> std::io::Result<OwnedFd> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC;
        Ok(socket_with(family, SocketType::STREAM, flags, None)?)
    }

    /// Where to listen.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Pool {
    /// Begins anywhere, so that meshes that start together seldom meet.
    pub(crate) fn new() -> Self {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let (first, count) = outside(&range.unwrap_or_default());
        let random = RandomState::new().hash_one(std::process::id()) % u64::from(count);
        Self {
            first,
            count,
            next: Cell::new(u16::try_from(random).unwrap_or(0)),
            named: false,
        }
    }

    /// Only these ports; without them, any.
    pub(crate) fn within(range: Option<PortRange>) -> Self {
        let Some(PortRange { first, last }) = range else {
            return Self::new();
        };
        Self {
            first,
            count: last - first + 1,
            next: Cell::new(0),
            named: true,
        }
    }

    /// The port that somebody had before, if it is one of these and nobody has it now. `needed`: also where connections have
    /// just ended.
    pub(crate) fn take_again(&self, ip: IpAddr, port: u16, needed: bool) -> Option<Reserved> {
        let offset = port.checked_sub(self.first)?;
        let address = SocketAddr::new(ip, port);
        let taken = (offset < self.count).then(|| match needed {
            true => Reserved::bind_again(address),
            false => Reserved::bind(address),
        });
        taken?.ok()
    }

    /// A port that nobody has now, and nobody gets while the value lives.
    pub(crate) fn take(&self, ip: IpAddr) -> Result<Reserved> {
        self.search(ip, |_| false)
    }

    /// The same, and none that is kept for somebody, unless no other is free.
    pub(crate) fn take_beside(
        &self,
        ip: IpAddr,
        is_kept: impl Fn(u16) -> bool,
    ) -> Result<Reserved> {
        self.search(ip, is_kept).or_else(|_| self.take(ip))
    }

    fn search(&self, ip: IpAddr, is_kept: impl Fn(u16) -> bool) -> Result<Reserved> {
        let mut last = None;
        if self.named {
            self.next.set(0);
        }
        for _ in 0..self.count {
            let offset = self.next.get() % self.count;
            self.next.set(offset + 1);
            if is_kept(self.first + offset) {
                continue;
            }
            match Reserved::bind(SocketAddr::new(ip, self.first + offset)) {
                Ok(reserved) => return Ok(reserved),
                Err(e) if e.kind() == ErrorKind::AddrInUse => last = Some(e),
                Err(e) => {
                    last = Some(e);
                    break;
                }
            }
        }
        let failure = Failure::new(format!("cannot find a free port on {ip}"));
        if self.named
            && last
                .as_ref()
                .is_some_and(|e| e.kind() == ErrorKind::AddrInUse)
        {
            let (first, last) = (self.first, self.first + (self.count - 1));
            return Err(failure
                .because(format!("all of --inbound-ports {first}-{last} are in use"))
                .fix("give the host a port for each port of its Workloads"));
        }
        Err(last.map_or_else(
            || failure,
            |e| Failure::new(format!("cannot listen on {ip}")).because(e),
        ))
    }
}

/// First and count of the ports beside the kernel's range.
fn outside(range: &str) -> (u16, u16) {
    const ENOUGH: u16 = 1000;
    let mut ends = range
        .split_whitespace()
        .map_while(|n| n.parse::<u16>().ok());
    let (low, high) = (ends.next().unwrap_or(32768), ends.next().unwrap_or(60999));
    if u16::MAX - high >= ENOUGH {
        (high + 1, u16::MAX - high)
    } else if low > 1024 + ENOUGH {
        (
            low.saturating_sub(8192).max(1024),
            low - low.saturating_sub(8192).max(1024),
        )
    } else {
        // Everything is the kernel's.
        (1024, u16::MAX - 1024)
    }
}

/// Looks at every address of an object that is this host's. Addresses of the mesh's own objects are
/// taken by itself.
pub(crate) fn check(object: &Object, mode: Mode, own: &[Object]) -> Result<()> {
    let taken: Vec<SocketAddr> = own.iter().flat_map(|o| wanted(o, mode)).collect();
    let mut addresses = wanted(object, mode).into_iter();
    addresses.try_for_each(|address| match taken.contains(&address) {
        true => Ok(()),
        false => free(address),
    })
}

fn wanted(object: &Object, mode: Mode) -> Vec<SocketAddr> {
    match object {
        Object::Gateway(gateway) => addresses(&gateway.spec),
        Object::Workload(workload) if mode == Mode::Loopback => {
            let spec = &workload.spec;
            let own = spec.ports.iter().filter(|_| !spec.command.is_empty());
            let own = own.map(|p| p.target_port.unwrap_or(p.port));
            let upstreams = spec.upstreams.iter().filter_map(|u| u.local_port);
            own.chain(upstreams)
                .map(|port| SocketAddr::new(LOCALHOST, port))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Every address with every port; two listeners of one port share a socket.
pub(crate) fn addresses(spec: &GatewaySpec) -> Vec<SocketAddr> {
    let mut hosts: Vec<IpAddr> = spec.addresses.iter().map(|a| a.value).collect();
    if hosts.is_empty() {
        hosts.push(LOCALHOST);
    }
    let mut ports: Vec<u16> = spec.listeners.iter().map(|l| l.port).collect();
    ports.sort_unstable();
    ports.dedup();
    hosts
        .iter()
        .flat_map(|ip| ports.iter().map(|port| SocketAddr::new(*ip, *port)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::Ipv6Addr;
    use tulle_model::manifest::{GatewayAddress, ListenerSpec};

    #[test]
    fn ports_are_not_those_of_outgoing_connections_and_not_given_twice() {
        assert_eq!(outside("32768\t60999\n"), (61000, 4535 + 1));
        assert_eq!(outside("10000 65535"), (1808, 8192));
        assert_eq!(outside("1024 65535"), (1024, u16::MAX - 1024));
        assert_eq!(outside(""), (61000, 4536));
        let pool = Pool::new();
        let given = || pool.take(LOCALHOST).unwrap().address().port();
        let different: BTreeSet<u16> = (0..50).map(|_| given()).collect();
        assert_eq!(different.len(), 50);
    }

    #[test]
    fn named_ports_are_taken_from_the_first_on_and_no_others() {
        // A free stretch: somebody else may have ports of any.
        let base = Pool::new().take(LOCALHOST).unwrap().address().port();
        let range: PortRange = format!("{base}-{base}").parse().unwrap();
        let pool = Pool::within(Some(range));
        let one = pool.take(LOCALHOST).unwrap();
        assert_eq!(one.address().port(), base);
        let said = pool.take(LOCALHOST).unwrap_err().to_string();
        assert!(
            said.contains(&format!("--inbound-ports {base}-{base}")),
            "{said}"
        );
        drop(one);
        assert_eq!(pool.take(LOCALHOST).unwrap().address().port(), base);
    }

    #[test]
    fn ranges_of_ports_are_read_or_refused() {
        let read = |text: &str| text.parse::<PortRange>();
        assert_eq!(read("16000-16099").unwrap().to_string(), "16000-16099");
        assert_eq!(read("1024").unwrap().to_string(), "1024-1024");
        assert!(read("65535-65535").is_ok());
        for text in [
            "",
            "-",
            "a",
            "80-90",
            "2000-1999",
            "2000-70000",
            "1-2-3",
            "0",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_reserved_port_is_our_childs_again_and_again_and_nobody_elses() {
        for ip in [LOCALHOST, Ipv6Addr::LOCALHOST.into()] {
            // Two meshes whose choice began at the same number.
            let pools = [Pool::new(), Pool::new()];
            pools[1].next.set(pools[0].next.get());
            let [ours, theirs] = pools.map(|pool| pool.take(ip).unwrap());
            assert_ne!(ours.address(), theirs.address());
            // Sets SO_REUSEADDR, as our programs do.
            drop(TcpListener::bind(ours.address()).unwrap());
            let child = TcpListener::bind(ours.address()).unwrap();
            assert!(TcpListener::bind(ours.address()).is_err());
            drop((child, ours));
        }
    }

    #[test]
    fn what_another_process_has_reserved_is_not_taken_again_before_it_is_listened_on() {
        const VARIABLE: &str = "TULLE_TEST_RESERVED";
        const TEST: &str =
            "what_another_process_has_reserved_is_not_taken_again_before_it_is_listened_on";
        let take_again = |address| Reserved::bind_again(address).is_ok();
        if let Ok(address) = std::env::var(VARIABLE) {
            // The same test, as another mesh.
            assert!(
                !take_again(address.parse().unwrap()),
                "{address} is reserved"
            );
            return;
        }
        let reserved = Pool::new().take(LOCALHOST).unwrap();
        let other = std::process::Command::new(std::env::current_exe().unwrap())
            .arg(TEST)
            .env(VARIABLE, reserved.address().to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&other.stdout);
        assert!(
            other.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }

    #[tokio::test]
    async fn workers_of_a_proxy_share_a_reserved_port() {
        let reserved = Pool::new().take(LOCALHOST).unwrap();
        let worker = || tulle_net::socket::listen(reserved.address()).unwrap();
        let workers = [worker(), worker()];
        assert!(std::net::TcpStream::connect(reserved.address()).is_ok());
        drop(workers);
    }

    #[test]
    fn a_port_of_before_is_taken_again_unless_somebody_listens_there() {
        let pool = Pool::new();
        let before = pool.take(LOCALHOST).unwrap();
        let address = before.address();
        // A connection that this end closes is remembered by the kernel.
        let listener = tulle_net::socket::open(address).unwrap();
        let client = std::net::TcpStream::connect(address).unwrap();
        drop(listener.accept().unwrap());
        drop(client);
        drop(listener);
        assert!(
            pool.take_again(LOCALHOST, address.port(), true).is_none(),
            "it is reserved here"
        );
        let listener = tulle_net::socket::open(address).unwrap();
        drop(before);
        let again = |needed| pool.take_again(LOCALHOST, address.port(), needed);
        assert!(again(true).is_none(), "somebody listens");
        drop(listener);
        // A child of another test has copies of sockets until it has become another program.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while again(true).is_none() {
            assert!(std::time::Instant::now() < end);
            std::thread::yield_now();
        }
        assert!(
            pool.take_again(LOCALHOST, 1, true).is_none(),
            "not of these"
        );

        // A port that is kept for somebody is given to others last.
        let range: PortRange = format!("{0}-{0}", address.port()).parse().unwrap();
        let named = Pool::within(Some(range));
        let last = named.search(LOCALHOST, |port| port == address.port());
        assert!(last.is_err());
    }

    #[test]
    fn a_taken_port_is_named() {
        let taken = TcpListener::bind((LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let text = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: in}}\nspec:\n  \
             gatewayClassName: tulle\n  listeners: [{{name: a, port: {port}, protocol: HTTP}}]\n"
        );
        let objects = tulle_model::manifest::parse("x.yaml", &text).unwrap();
        let objects: Vec<Object> = objects.into_iter().map(|l| l.object).collect();
        let check = || check(&objects[0], Mode::Loopback, &[]);
        let said = check().unwrap_err().to_string();
        for part in [&format!("127.0.0.1:{port}"), "another process"] {
            assert!(said.contains(part), "{part} in {said}");
        }
        let own = super::check(&objects[0], Mode::Loopback, &objects);
        assert!(own.is_ok(), "its own mesh has it");
        drop(taken);
        // Another test may be given it, for a moment.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while let Err(why) = check() {
            assert!(std::time::Instant::now() < end, "{why}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    #[test]
    fn a_port_is_bound_once_on_each_address() {
        let listener = |name: &str, port| ListenerSpec {
            name: name.into(),
            port,
            protocol: "HTTP".into(),
            hostname: None,
            ..ListenerSpec::default()
        };
        let mut spec = GatewaySpec {
            gateway_class_name: "tulle".into(),
            infrastructure: None,
            listeners: vec![listener("a", 80), listener("b", 80), listener("c", 81)],
            ..GatewaySpec::default()
        };
        let text = |spec: &GatewaySpec| {
            let all: Vec<String> = addresses(spec).iter().map(ToString::to_string).collect();
            all.join(" ")
        };
        assert_eq!(text(&spec), "127.0.0.1:80 127.0.0.1:81");
        spec.addresses.push(GatewayAddress {
            kind: None,
            value: "::1".parse().unwrap(),
        });
        assert_eq!(text(&spec), "[::1]:80 [::1]:81");
    }
}
