//! The return of a fleet after the sidecar of a server that it calls has restarted: every client loses its
//! connection at the same moment, comes back with a new handshake and repeats its request.
//!
//! Each client has a thread and a source address of its own, as sidecars of different pods have. Nobody
//! resumes a session: the sidecar that could is gone. How long a client waits before it tries again is
//! the same for every peer.

use super::client::{Errors, Load, Report, encode, histogram};
use super::engine::micros;
use super::handshakes::{Loss, TlsStream, ask, offer, secure};
use crate::failure::{Failure, OrFail, Result};
use crate::peer::{CLIENT, refusal};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustls::ClientConfig;
use rustls::client::Resumption;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{Duration, Instant};

/// Between two attempts of a client: nobody listens while the sidecar starts.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the first requests may take, before anything is measured.
const OPEN: Duration = Duration::from_secs(60);
/// A thread holds a TLS connection and a buffer, which is on the heap.
const STACK: usize = 256 << 10;
/// Longer than an answer.
const BUFFER: usize = 16 << 10;
/// Source addresses with the same third octet.
const ADDRESSES_EACH: usize = 250;

/// The outcome of one client.
struct Client {
    /// When its connection was lost, and when it had its next answer.
    back: Option<(Instant, Instant)>,
    /// Attempts in between that brought no answer.
    vain: Errors,
    first_error: Option<String>,
    agreed: Option<String>,
}

pub(super) fn run(load: &Load, expected: &[u8], say: &dyn Fn(&str)) -> Result<Report> {
    let Some(directory) = &load.certificates else {
        return Err(Failure::failed("a storm needs certificates"));
    };
    let mut config =
        refusal::client_config(offer(), directory, Some(CLIENT), true).map_err(Failure::failed)?;
    config.resumption = Resumption::disabled();
    let config = Arc::new(config);
    // Whoever has had the first answer waits for all others: they are lost together.
    let all_there = Barrier::new(load.connections + 1);
    let failed = OnceLock::new();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 0..load.connections {
            let (config, all_there, failed) = (&config, &all_there, &failed);
            let client = move || {
                let stream = open(load, number, config, expected, failed);
                all_there.wait();
                let stream = stream.filter(|_| failed.get().is_none());
                stream.map(|stream| come_back(load, number, config, expected, stream))
            };
            let thread = std::thread::Builder::new().stack_size(STACK);
            let thread = thread.spawn_scoped(scope, client);
            threads.push(thread.or_fail(|| format!("cannot start client {number}"))?);
        }
        all_there.wait();
        if failed.get().is_none() {
            say("holding");
        }
        let clients = threads.into_iter().filter_map(|thread| thread.join().ok()?);
        let clients: Vec<Client> = clients.collect();
        match failed.get() {
            Some(why) => Err(Failure::failed(format!("a client had no answer: {why}"))),
            None => Ok(report(load, clients)),
        }
    })
}

/// Connects until the first answer.
fn open(
    load: &Load,
    number: usize,
    config: &Arc<ClientConfig>,
    expected: &[u8],
    failed: &OnceLock<String>,
) -> Option<TlsStream> {
    let until = Instant::now() + OPEN;
    let mut errors = Errors::default();
    loop {
        match once(load, number, config, expected) {
            Ok(stream) => return Some(stream),
            Err(loss) => {
                let why = loss.count(&mut errors);
                if Instant::now() >= until {
                    let _ = failed.set(why);
                    return None;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Waits until the connection is lost, and then for the next answer.
fn come_back(
    load: &Load,
    number: usize,
    config: &Arc<ClientConfig>,
    expected: &[u8],
    mut stream: TlsStream,
) -> Client {
    let mut client = Client {
        back: None,
        vain: Errors::default(),
        first_error: None,
        agreed: None,
    };
    // Without a bound: the study ends this process if nothing happens.
    let _ = stream.sock.set_read_timeout(None);
    while matches!(stream.read(&mut [0]), Ok(1..)) {}
    drop(stream);
    let lost = Instant::now();
    while lost.elapsed() < load.measure {
        match once(load, number, config, expected) {
            Ok(stream) => {
                client.back = Some((lost, Instant::now()));
                let group = stream.conn.negotiated_key_exchange_group();
                let suite = stream.conn.negotiated_cipher_suite();
                let agreed = group.zip(suite);
                client.agreed = agreed.map(|(g, s)| format!("{:?} and {:?}", g.name(), s.suite()));
                break;
            }
            Err(loss) => {
                let why = loss.count(&mut client.vain);
                client.first_error.get_or_insert(why);
                std::thread::sleep(PAUSE);
            }
        }
    }
    client
}

/// One answer over a connection of its own, which stays open.
fn once(
    load: &Load,
    number: usize,
    config: &Arc<ClientConfig>,
    expected: &[u8],
) -> std::result::Result<TlsStream, Loss> {
    let tcp = connect_from(source(number), load.to).map_err(|e| Loss::Connect(e.to_string()))?;
    let mut stream = secure(tcp, config)?;
    let mut buffer = vec![0; BUFFER];
    ask(&mut stream, load.bytes, "keep-alive", expected, &mut buffer)?;
    Ok(stream)
}

/// Latencies count from the first loss of all: that is when the sidecar ended.
fn report(load: &Load, clients: Vec<Client>) -> Report {
    let mut report = Report::default();
    let losses = clients.iter().filter_map(|client| client.back);
    let Some(ended) = losses.map(|(lost, _)| lost).min() else {
        report.errors.unanswered = load.connections as u64;
        report.first_error = Some("nobody came back".to_owned());
        return report;
    };
    let mut latencies = histogram();
    let mut last = ended;
    for client in clients {
        report.vain += client.vain.total();
        report.agreed = report.agreed.or(client.agreed);
        match client.back {
            Some((_, back)) => {
                latencies.saturating_record(micros(back.saturating_duration_since(ended)));
                last = last.max(back);
                report.answered += 1;
            }
            None => {
                report.errors.unanswered += 1;
                report.first_error = report.first_error.or(client.first_error);
            }
        }
    }
    // The first answers as well.
    report.answered_ever = report.answered + load.connections as u64;
    report.seconds = last.saturating_duration_since(ended).as_secs_f64();
    report.histogram = encode(&latencies);
    report
}

/// A loopback address for each client.
fn source(number: usize) -> SocketAddr {
    let octet = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    let (third, fourth) = (number / ADDRESSES_EACH, number % ADDRESSES_EACH);
    let address = Ipv4Addr::new(127, 1, octet(third), octet(fourth + 1));
    SocketAddr::new(IpAddr::V4(address), 0)
}

fn connect_from(from: SocketAddr, to: SocketAddr) -> rustix::io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &from)?;
    connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_an_address_of_its_own() {
        let mut sources: Vec<_> = (0..10_000).map(source).collect();
        sources.sort();
        sources.dedup();
        assert_eq!(sources.len(), 10_000);
    }

    #[test]
    fn time_counts_from_the_first_loss_and_who_stays_away_is_an_error() {
        let load = Load {
            to: source(0),
            connections: 3,
            pattern: super::super::Pattern::Storm,
            bytes: 0,
            upload: 0,
            beside: None,
            warmup: Duration::ZERO,
            measure: Duration::ZERO,
            certificates: None,
        };
        let ended = Instant::now();
        let after = |ms| ended + Duration::from_millis(ms);
        let client = |back| Client {
            back,
            vain: Errors {
                connect: 2,
                ..Errors::default()
            },
            first_error: Some("refused".to_owned()),
            agreed: None,
        };
        let clients = vec![
            client(Some((after(1), after(40)))),
            client(Some((ended, after(90)))),
            client(None),
        ];
        let report = report(&load, clients);
        assert_eq!((report.answered, report.answered_ever), (2, 5));
        assert_eq!(report.errors.unanswered, 1);
        assert_eq!(report.vain, 6);
        assert!((report.seconds - 0.09).abs() < 1e-9, "{}", report.seconds);
    }
}
