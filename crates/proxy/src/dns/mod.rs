//! DNS for the application: answers names of services itself, and asks the host's resolvers for all
//! others.
//!
//! The application's UDP and TCP to port 53 are redirected to `Listener`s on loopback. They are
//! served on the main thread: look-ups are rare, and the workers' requests do not wait for them. A
//! name that could be an unknown service's is asked of the controller, as addresses are.

pub(crate) mod cache;
pub(crate) mod resolvers;

use crate::codec::dns_message::{self, Code, Query, QuestionType, Unreadable};
use crate::config::snapshot::{Service, Snapshot};
use crate::context::lookups::Lookups;
use crate::control::publish::Current;
use crate::listener::sockets::Sockets;
use cache::Cache;
use resolvers::{Resolvers, read_message, write_message};
use std::fmt::Write;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdTcpListener, UdpSocket as StdUdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tulle_model::bootstrap;
use tulle_net::places::{Class, PlaceLimits, Places};
use tulle_net::task;

/// Seconds for which an answer about the mesh may be kept: short, so that changes are soon seen.
const TTL: u32 = 5;
/// Most addresses in one answer; each of them reaches the whole service. They fit in any datagram.
const MOST_ADDRESSES: usize = 8;
/// Longest wait for the controller. A client without an answer asks again after 5 s.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most questions under way at the resolvers at a time.
const UNDER_WAY: usize = 256;
/// Connections at a time. An application asks from a few addresses: its own, and loopback's.
const CONNECTIONS: PlaceLimits = PlaceLimits {
    all: 64,
    source: 32,
    reserved: 0,
};
/// How long a connection may be silent.
const IDLE: Duration = Duration::from_secs(10);
/// Between looks at whether the last questions are answered.
const LOOK: Duration = Duration::from_millis(10);

/// The two sockets of one address.
struct Listener {
    udp: UdpSocket,
    tcp: TcpListener,
}

/// An address that is served.
struct Served {
    address: SocketAddr,
    udp: Arc<UdpSocket>,
    /// A copy of the listening socket.
    tcp: OwnedFd,
    tasks: [JoinHandle<()>; 2],
}

/// Answers questions.
pub struct Dns {
    current: Current,
    lookups: Option<Lookups>,
    cache: Mutex<Cache>,
    resolvers: Resolvers,
    under_way: Semaphore,
    counts: Counts,
    served: Mutex<Vec<Served>>,
    /// Another process has copies of the sockets.
    handed_over: AtomicBool,
}

/// Counters of questions, by result.
#[derive(Default)]
struct Counts {
    mesh: AtomicU64,
    cached: AtomicU64,
    forwarded: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

impl Counts {
    fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether an address cannot be had because this network namespace has none of its family.
fn is_no_family(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    code == Some(libc::EAFNOSUPPORT) || error.kind() == io::ErrorKind::AddrNotAvailable
}

async fn bind(address: SocketAddr) -> io::Result<Listener> {
    Ok(Listener {
        udp: UdpSocket::bind(address).await?,
        tcp: TcpListener::bind(address).await?,
    })
}

/// The sockets of the process before, as [`Dns::copies`] made them.
fn adopt(sockets: Vec<OwnedFd>) -> io::Result<Listener> {
    let Ok([udp, tcp]) = <[OwnedFd; 2]>::try_from(sockets) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    Ok(Listener {
        udp: UdpSocket::from_std(StdUdpSocket::from(udp))?,
        tcp: TcpListener::from_std(StdTcpListener::from(tcp))?,
    })
}

async fn serve_udp(dns: Arc<Dns>, udp: Arc<UdpSocket>) {
    // A query has a name of at most 255 bytes and few options.
    let mut bytes = [0; 1500];
    loop {
        let Ok((length, client)) = udp.recv_from(&mut bytes).await else {
            // An answer to a client that has gone comes back as an error.
            continue;
        };
        let query = bytes.get(..length).unwrap_or_default();
        match dns.at_once(query) {
            Answer::Is(answer) => {
                // A client that has gone needs no answer.
                let _ = udp.try_send_to(&answer, client);
            }
            Answer::None => {}
            Answer::Later(asked) => {
                let (dns, udp, query) = (dns.clone(), udp.clone(), query.to_vec());
                task::start(async move {
                    let answer = dns.answer(&asked, &query, false).await;
                    let _ = udp.send_to(&answer, client).await;
                });
            }
        }
    }
}

async fn serve_tcp(dns: Arc<Dns>, listener: TcpListener) {
    let serve = |tcp, _| {
        let dns = dns.clone();
        async move {
            // The client has gone, or was silent for too long.
            let _ = dns.converse(tcp).await;
        }
    };
    let places = Places::new(CONNECTIONS);
    places.accept(listener, |_| Class::Anyone, serve).await;
}

/// Answer to a message, as far as it is known without asking anybody.
enum Answer {
    /// This message.
    Is(Vec<u8>),
    /// No answer.
    None,
    /// The controller or a resolver has to be asked.
    Later(Query),
}

impl Dns {
    /// One that answers nobody yet.
    pub fn new(settings: &bootstrap::Dns, current: Current, lookups: Option<Lookups>) -> Arc<Self> {
        Arc::new(Self {
            current,
            lookups,
            cache: Mutex::default(),
            resolvers: Resolvers::new(settings.resolvers.clone(), settings.addresses.clone()),
            under_way: Semaphore::new(UNDER_WAY),
            counts: Counts::default(),
            served: Mutex::default(),
            handed_over: AtomicBool::default(),
        })
    }

    /// Starts to answer on the addresses, with the sockets that are there or with new ones. Takes the sockets that it uses.
    ///
    /// # Errors
    /// An address cannot be bound; returns it and why.
    pub async fn listen(
        self: &Arc<Self>,
        addresses: &[SocketAddr],
        sockets: &mut Sockets,
    ) -> Result<(), (SocketAddr, io::Error)> {
        let mut listeners = Vec::new();
        for address in addresses {
            let bound = match sockets.remove(address) {
                Some(given) => adopt(given),
                None => bind(*address).await,
            };
            match bound {
                Ok(bound) => listeners.push((*address, bound)),
                // A pod may lack IPv6, and the author of its settings cannot know.
                Err(error)
                    if address.is_ipv6() && !listeners.is_empty() && is_no_family(&error) => {}
                Err(error) => return Err((*address, error)),
            }
        }
        for (address, Listener { udp, tcp }) in listeners {
            let copied = tcp.as_fd().try_clone_to_owned();
            let copied = copied.map_err(|error| (address, error))?;
            let udp = Arc::new(udp);
            let tasks = [
                task::start(serve_udp(self.clone(), udp.clone())),
                task::start(serve_tcp(self.clone(), tcp)),
            ];
            self.served().push(Served {
                address,
                udp,
                tcp: copied,
                tasks,
            });
        }
        Ok(())
    }

    fn served(&self) -> MutexGuard<'_, Vec<Served>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns copies of its sockets, for the process that takes over: that of UDP, then that of TCP.
    pub fn copies(&self) -> Sockets {
        self.handed_over.store(true, Ordering::Relaxed);
        let mut copies = Sockets::new();
        for served in self.served().iter() {
            let udp = served.udp.as_fd().try_clone_to_owned();
            if let (Ok(udp), Ok(tcp)) = (udp, served.tcp.try_clone()) {
                copies.insert(served.address, vec![udp, tcp]);
            }
        }
        copies
    }

    /// Leaves further questions to the process that has taken over, and answers those that it has read. Without such a process it
    /// goes on: nobody else would answer.
    pub async fn leave(&self) {
        if !self.handed_over.load(Ordering::Relaxed) {
            return;
        }
        for served in self.served().drain(..) {
            served.tasks.iter().for_each(JoinHandle::abort);
        }
        loop {
            // First, because the last question that was read may not have begun.
            tokio::time::sleep(LOOK).await;
            if self.under_way.available_permits() >= UNDER_WAY {
                return;
            }
        }
    }

    async fn converse(&self, mut tcp: TcpStream) -> io::Result<()> {
        loop {
            let query = tokio::time::timeout(IDLE, read_message(&mut tcp)).await??;
            let answer = match self.at_once(&query) {
                Answer::Is(answer) => answer,
                Answer::None => return Ok(()),
                Answer::Later(asked) => self.answer(&asked, &query, true).await,
            };
            tokio::time::timeout(IDLE, write_message(&mut tcp, &answer)).await??;
        }
    }

    fn at_once(&self, bytes: &[u8]) -> Answer {
        match Query::read(bytes) {
            Ok(query) => Answer::Later(query),
            Err(Unreadable::Ignored) => {
                Counts::add(&self.counts.refused);
                Answer::None
            }
            Err(Unreadable::Answered(code)) => {
                Counts::add(&self.counts.refused);
                Answer::Is(dns_message::refusal(bytes, code))
            }
        }
    }

    async fn answer(&self, query: &Query, bytes: &[u8], tcp: bool) -> Vec<u8> {
        let answer = self.find(query, bytes, tcp).await;
        let limit = if tcp { u16::MAX } else { query.udp_limit };
        if answer.len() > limit.into() {
            return query.truncated(bytes);
        }
        answer
    }

    async fn find(&self, query: &Query, bytes: &[u8], tcp: bool) -> Vec<u8> {
        let Ok(_permit) = self.under_way.try_acquire() else {
            Counts::add(&self.counts.refused);
            return query.refusal(bytes, Code::Failed);
        };
        if let Some(answer) = self.mesh(query, bytes).await {
            Counts::add(&self.counts.mesh);
            return answer;
        }
        let key = query.key(bytes);
        let kept = self.cache().get(&key, Instant::now());
        if let Some(mut answer) = kept {
            Counts::add(&self.counts.cached);
            query.adopt(bytes, &mut answer);
            return answer;
        }
        match resolvers::ask(&self.resolvers, query, bytes, tcp).await {
            Ok(mut answer) => {
                Counts::add(&self.counts.forwarded);
                self.cache().put(key, &answer, Instant::now());
                query.adopt(bytes, &mut answer);
                answer
            }
            Err(why) => {
                Counts::add(&self.counts.failed);
                let name = query.name.as_deref().unwrap_or("?");
                tracing::debug!(name, why, "a name could not be looked up");
                query.refusal(bytes, Code::Failed)
            }
        }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a question about the mesh; `None`: it is not about the mesh.
    async fn mesh(&self, query: &Query, bytes: &[u8]) -> Option<Vec<u8>> {
        let name = query.name.as_deref()?;
        if query.kind == QuestionType::Pointer {
            let snapshot = self.current.get();
            let address = dns_message::pointed(name)?;
            let owner = snapshot.addresses.get(&address)?.as_ref()?;
            if is_of_cluster(owner) {
                return None;
            }
            let named = snapshot.mesh.dns && owner.split('.').all(|l| (1..64).contains(&l.len()));
            return named.then(|| query.pointer(bytes, owner, TTL));
        }
        let service = self.service(name).await?;
        // The cluster's resolver knows the pods of a headless Service.
        if service.addresses.is_empty() && is_of_cluster(&service.name) {
            return None;
        }
        let wanted = |ip: &&IpAddr| match query.kind {
            QuestionType::V4 => ip.is_ipv4(),
            QuestionType::V6 => ip.is_ipv6(),
            _ => false,
        };
        let addresses = service.addresses.iter().filter(wanted).take(MOST_ADDRESSES);
        let addresses: Vec<IpAddr> = addresses.copied().collect();
        Some(query.addresses(bytes, &addresses, TTL))
    }

    /// Returns the service that has a name. Asks the controller the first time.
    async fn service(&self, name: &str) -> Option<Arc<Service>> {
        let wanted = format!("host/{name}");
        let answer = self.current.find(|snapshot| {
            match known(snapshot, name) {
                Known::Is(service) => {
                    if let Some(lookups) = &self.lookups
                        && snapshot.unused.contains(wanted.as_str())
                    {
                        lookups.ask(&wanted);
                    }
                    return Some(Some(service));
                }
                Known::Nobody => return Some(None),
                Known::Unknown => {}
            }
            let Some(lookups) = self.lookups.as_ref().filter(|_| may_be_service(name)) else {
                return Some(None);
            };
            lookups.ask(&wanted);
            snapshot.away.is_some().then_some(None)
        });
        // Without an answer of the controller, the name counts as no service's.
        tokio::time::timeout(PATIENCE, answer).await.ok().flatten()
    }

    /// The counters, as Prometheus text.
    pub fn encode(&self, out: &mut String) {
        out.push_str(
            "# HELP tulle_dns_queries_total Questions of the application, by what became of them.\n\
             # TYPE tulle_dns_queries_total counter\n",
        );
        for (answer, count) in [
            ("mesh", &self.counts.mesh),
            ("cached", &self.counts.cached),
            ("forwarded", &self.counts.forwarded),
            ("failed", &self.counts.failed),
            ("refused", &self.counts.refused),
        ] {
            let count = count.load(Ordering::Relaxed);
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "tulle_dns_queries_total{{answer=\"{answer}\"}} {count}"
            );
        }
        out.push_str("# TYPE tulle_dns_cache_entries gauge\n");
        let _ = writeln!(out, "tulle_dns_cache_entries {}", self.cache().count());
    }
}

/// Whether this is the name of a cluster's service or pod, which has a namespace. The cluster's own
/// resolver knows names that the mesh does not, such as names of addresses.
fn is_of_cluster(name: &str) -> bool {
    name.contains('.')
}

enum Known {
    Is(Arc<Service>),
    Nobody,
    Unknown,
}

fn known(snapshot: &Snapshot, name: &str) -> Known {
    if !snapshot.mesh.dns {
        return Known::Nobody;
    }
    match snapshot.hosts.get(name) {
        Some(None) => Known::Nobody,
        Some(Some(owner)) => match snapshot.services.get(owner) {
            Some(service) => Known::Is(service.clone()),
            // The service is subscribed to, but not known yet.
            None => Known::Unknown,
        },
        None => Known::Unknown,
    }
}

/// Whether a name has the form of a service's name: the controller need not learn of the
/// application's other look-ups.
fn may_be_service(name: &str) -> bool {
    let name = name.strip_suffix(".cluster.local").unwrap_or(name);
    let name = name.strip_suffix(".svc").unwrap_or(name);
    !name.is_empty() && name.split('.').count() <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_may_be_services() {
        for name in [
            "a",
            "a.default",
            "a.default.svc",
            "a.default.svc.cluster.local",
        ] {
            assert!(may_be_service(name), "{name}");
        }
        for name in ["", "www.example.com", "a.b.c", ".svc"] {
            assert!(!may_be_service(name), "{name}");
        }
    }
}
