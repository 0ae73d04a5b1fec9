//! Asks the host's resolvers.

use crate::codec::dns_message::{self, Query, UDP_LIMIT};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

const FILE: &str = "/etc/resolv.conf";
/// The resolvers that systemd-resolved asks.
const BEHIND_RESOLVED: &str = "/run/systemd/resolve/resolv.conf";
/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Most resolvers that are asked, as in the C library.
const MOST_RESOLVERS: usize = 3;
/// Rounds over all resolvers.
const ROUNDS: usize = 2;
/// Longest wait for one answer: a client gives up after 5 s, so there is time for a second try.
const TRY: Duration = Duration::from_secs(2);

/// The resolvers in force.
pub struct Resolvers {
    given: Vec<SocketAddr>,
    /// Our own addresses, which are never asked.
    own: Vec<SocketAddr>,
    files: [PathBuf; 2],
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    looked: Option<Instant>,
    changed: [Option<SystemTime>; 2],
    found: Vec<SocketAddr>,
}

impl Resolvers {
    /// Uses the given resolvers, or else those of `/etc/resolv.conf`, which may change. Where that names loopback alone, they are
    /// those behind systemd-resolved, if it runs on the host: on the loopback of an application's own network it does not listen.
    pub fn new(given: Vec<SocketAddr>, own: Vec<SocketAddr>) -> Self {
        Self {
            given,
            own,
            files: [FILE, BEHIND_RESOLVED].map(PathBuf::from),
            known: Mutex::default(),
        }
    }

    fn list(&self) -> Vec<SocketAddr> {
        if !self.given.is_empty() {
            return self.given.clone();
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.looked.is_none_or(|t| t.elapsed() > LOOK) {
            known.looked = Some(Instant::now());
            let modified = |file: &PathBuf| std::fs::metadata(file).and_then(|m| m.modified()).ok();
            let changed = self.files.each_ref().map(modified);
            if changed[0].is_none() || changed != known.changed {
                known.changed = changed;
                // Without a file there is no resolver.
                let text = |file: &PathBuf| std::fs::read_to_string(file).unwrap_or_default();
                let [named, behind] = self.files.each_ref().map(|file| nameservers(&text(file)));
                let is_near =
                    |resolvers: &[SocketAddr]| resolvers.iter().all(|r| r.ip().is_loopback());
                known.found = match is_near(&named) && !is_near(&behind) {
                    true => behind,
                    false => named,
                };
                known.found.retain(|r| !self.own.contains(r));
            }
        }
        known.found.clone()
    }

    /// Asks one resolver after the other until one answers.
    ///
    /// # Errors
    /// None answered; describes the last failure.
    pub async fn ask(&self, query: &Query, bytes: &[u8], tcp: bool) -> Result<Vec<u8>, String> {
        let resolvers = self.list();
        let mut why = format!("there is no nameserver in {FILE}");
        for _ in 0..ROUNDS {
            for resolver in &resolvers {
                let asked = tokio::time::timeout(TRY, exchange(*resolver, query, bytes, tcp)).await;
                match asked {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(error)) => why = format!("{resolver}: {error}"),
                    Err(_) => why = format!("{resolver} did not answer within {TRY:?}"),
                }
            }
        }
        Err(why)
    }
}

fn nameservers(text: &str) -> Vec<SocketAddr> {
    let lines = text.lines().map(str::split_whitespace);
    let servers = lines.filter_map(|mut words| match (words.next(), words.next()) {
        // We cannot use the zone of a link-local address.
        (Some("nameserver"), Some(address)) => address.parse::<IpAddr>().ok(),
        _ => None,
    });
    servers
        .take(MOST_RESOLVERS)
        .map(|ip| SocketAddr::new(ip, 53))
        .collect()
}

async fn exchange(
    resolver: SocketAddr,
    query: &Query,
    bytes: &[u8],
    tcp: bool,
) -> io::Result<Vec<u8>> {
    // An attacker who does not see the query would have to guess its id and its port, which the
    // kernel chooses.
    let id = random();
    let sent = query.forwarded(bytes, id);
    if !tcp {
        let answer = over_udp(resolver, query, &sent, id).await?;
        return Ok(answer);
    }
    let answer = over_tcp(resolver, &sent).await?;
    if !query.is_answered_by(&sent, id, &answer) {
        return Err(io::Error::other("the answer is to another question"));
    }
    Ok(answer)
}

async fn over_udp(
    resolver: SocketAddr,
    query: &Query,
    sent: &[u8],
    id: u16,
) -> io::Result<Vec<u8>> {
    let any: IpAddr = match resolver {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // A connected socket receives only from this resolver.
    socket.connect(resolver).await?;
    socket.send(sent).await?;
    let mut answer = vec![0; usize::from(UDP_LIMIT)];
    loop {
        let length = socket.recv(&mut answer).await?;
        let received = answer.get(..length).unwrap_or_default();
        if query.is_answered_by(sent, id, received) {
            return Ok(received.to_vec());
        }
    }
}

async fn over_tcp(resolver: SocketAddr, sent: &[u8]) -> io::Result<Vec<u8>> {
    let mut tcp = TcpStream::connect(resolver).await?;
    write_message(&mut tcp, sent).await?;
    read_message(&mut tcp).await
}

/// Reads a message with its length before it.
///
/// # Errors
/// The connection ended.
pub async fn read_message(tcp: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = tcp.read_u16().await?;
    let mut message = vec![0; length.into()];
    tcp.read_exact(&mut message).await?;
    Ok(message)
}

/// Writes a message with its length before it, in one piece.
///
/// # Errors
/// The connection ended, or the message is too long for its length.
pub async fn write_message(tcp: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    tcp.write_all(&[&length.to_be_bytes(), message].concat())
        .await
}

/// Asks the resolvers; over TCP if the client can take a long answer and UDP does not suffice.
///
/// # Errors
/// No resolver answered.
pub async fn ask(
    resolvers: &Resolvers,
    query: &Query,
    bytes: &[u8],
    tcp: bool,
) -> Result<Vec<u8>, String> {
    let answer = resolvers.ask(query, bytes, false).await?;
    if tcp && dns_message::is_truncated(&answer) {
        return resolvers.ask(query, bytes, true).await;
    }
    Ok(answer)
}

fn random() -> u16 {
    let mut bytes = [0; 2];
    // This does not fail once the system has started.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u16::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file() {
        let text = "# comment\nsearch a.test\nnameserver 192.0.2.1\nnameserver\t2001:db8::1 # x\n\
                    nameserver nonsense\nnameserver fe80::1%eth0\noptions edns0\n\
                    nameserver 192.0.2.2\nnameserver 192.0.2.3\n";
        let wanted = ["192.0.2.1:53", "[2001:db8::1]:53", "192.0.2.2:53"];
        assert_eq!(nameservers(text), wanted.map(|a| a.parse().unwrap()));
        assert!(nameservers("").is_empty());
    }

    #[test]
    fn those_behind_systemd_resolved_are_asked_where_it_is_the_only_one() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["named", "behind"].map(|name| dir.path().join(name));
        let list = |named: &str, behind: Option<&str>| {
            std::fs::write(&files[0], format!("nameserver {named}\n")).unwrap();
            let _ = std::fs::remove_file(&files[1]);
            if let Some(behind) = behind {
                std::fs::write(&files[1], format!("nameserver {behind}\n")).unwrap();
            }
            let resolvers = Resolvers {
                files: files.clone(),
                ..Resolvers::new(Vec::new(), Vec::new())
            };
            resolvers.list()
        };
        let at = |address: &str| vec![SocketAddr::new(address.parse().unwrap(), 53)];
        assert_eq!(list("127.0.0.53", Some("192.0.2.1")), at("192.0.2.1"));
        assert_eq!(list("192.0.2.2", Some("192.0.2.1")), at("192.0.2.2"));
        // In a pod it may be a container beside the application.
        assert_eq!(list("127.0.0.1", None), at("127.0.0.1"));
        assert_eq!(list("127.0.0.1", Some("127.0.0.53")), at("127.0.0.1"));
    }
}
