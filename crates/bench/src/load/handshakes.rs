//! Mutual TLS handshakes: what the sidecar of a server does when a client's sidecar is new to it, or
//! comes again.
//!
//! Each connection has a thread, for the time goes into cryptography and not into switching between
//! them. The server's certificate is not checked: what is measured is its side. The client offers every
//! peer what sidecars offer each other; what was agreed on is in the report.

use super::client::{Errors, Load, Pattern, Report, encode, histogram};
use super::engine::{cpu_time, micros};
use super::response::{Response, Wrong};
use crate::failure::{Failure, Result};
use crate::peer::{CLIENT, SERVER, refusal};
use hdrhistogram::Histogram;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider, kx_group};
use rustls::pki_types::ServerName;
use rustls::{CipherSuite, ClientConfig, ClientConnection, HandshakeKind, NamedGroup, StreamOwned};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a loss.
const PAUSE: Duration = Duration::from_millis(10);

/// Tickets kept by each thread: some servers send two with each handshake.
const TICKETS: usize = 4;

/// The measurements of one thread.
struct Tally {
    latencies: Histogram<u64>,
    full: u64,
    agreed: Option<String>,
    answered: u64,
    answered_ever: u64,
    errors: Errors,
    first_error: Option<String>,
}

/// The kind of handshake that a request used.
struct Handshake {
    resumed: bool,
    group: Option<NamedGroup>,
    suite: Option<CipherSuite>,
}

/// A connection with mutual TLS.
pub(super) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Why a request was not answered.
pub(super) enum Loss {
    Connect(String),
    Read(io::Error),
    Wrong(Wrong),
}

pub(super) fn run(load: &Load, expected: &[u8], say: &dyn Fn(&str)) -> Result<Report> {
    let Some(directory) = &load.certificates else {
        return Err(Failure::failed("handshakes need certificates"));
    };
    let config =
        refusal::client_config(offer(), directory, Some(CLIENT), true).map_err(Failure::failed)?;
    let begin = Instant::now() + load.warmup;
    let end = begin + load.measure;
    let wait = |until: Instant| {
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.connections)
            .map(|_| scope.spawn(|| work(load, &config, expected, begin, end)))
            .collect();
        wait(begin);
        let cpu = cpu_time();
        say("begin");
        wait(end);
        let cpu = cpu_time().saturating_sub(cpu);
        say("end");
        let mut report = Report {
            seconds: load.measure.as_secs_f64(),
            cpu_seconds: cpu.as_secs_f64(),
            ..Report::default()
        };
        let mut latencies = histogram();
        for thread in threads {
            let tally = thread
                .join()
                .map_err(|_| Failure::failed("a thread of the load generator panicked"))?;
            report.answered += tally.answered;
            report.answered_ever += tally.answered_ever;
            report.full_handshakes += tally.full;
            report.agreed = report.agreed.or(tally.agreed);
            report.errors = report.errors + tally.errors;
            report.first_error = report.first_error.or(tally.first_error);
            // Both have the same bounds.
            let _ = latencies.add(&tally.latencies);
        }
        report.histogram = encode(&latencies);
        Ok(report)
    })
}

/// Offers the same as sidecars do, Tulle's and Envoy's: AES-128 first, X25519MLKEM768 with a share of
/// X25519 beside it. Envoy asks a client whose first groups are others for a second hello.
pub(super) fn offer() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![
            kx_group::X25519MLKEM768,
            kx_group::X25519,
            kx_group::SECP256R1,
        ],
        ..default_provider()
    }
}

fn work(
    load: &Load,
    config: &ClientConfig,
    expected: &[u8],
    begin: Instant,
    end: Instant,
) -> Tally {
    let resumes = load.pattern == Pattern::Resumed;
    let mut config = config.clone();
    config.resumption = if resumes {
        // Each thread has its own tickets, so that those of other threads do not interfere.
        Resumption::in_memory_sessions(TICKETS)
    } else {
        Resumption::disabled()
    };
    let config = Arc::new(config);
    let mut tally = Tally {
        latencies: histogram(),
        full: 0,
        agreed: None,
        answered: 0,
        answered_ever: 0,
        errors: Errors::default(),
        first_error: None,
    };
    let mut buffer = vec![0; 64 << 10];
    loop {
        let from = Instant::now();
        if from >= end {
            return tally;
        }
        let done = once(load, &config, expected, &mut buffer);
        let now = Instant::now();
        match done {
            Ok(handshake) => {
                // The first brings the ticket.
                let first = tally.answered_ever == 0;
                tally.answered_ever += 1;
                if let (true, Some(group), Some(suite)) = (first, handshake.group, handshake.suite)
                {
                    tally.agreed = Some(format!("{group:?} and {suite:?}"));
                }
                let kind_is_right = handshake.resumed == resumes;
                if !kind_is_right && !resumes {
                    tally.lost(Loss::Wrong(Wrong::Body("no handshake of its own")));
                } else if !kind_is_right {
                    tally.full += u64::from(!first && (begin..end).contains(&now));
                } else if now >= begin {
                    let latency = micros(now.saturating_duration_since(from));
                    tally.latencies.saturating_record(latency);
                    tally.answered += u64::from(now < end);
                }
            }
            Err(loss) => {
                tally.lost(loss);
                std::thread::sleep(PAUSE);
            }
        }
    }
}

fn once(
    load: &Load,
    config: &Arc<ClientConfig>,
    expected: &[u8],
    buffer: &mut [u8],
) -> std::result::Result<Handshake, Loss> {
    let tcp =
        TcpStream::connect_timeout(&load.to, PATIENCE).map_err(|e| Loss::Connect(e.to_string()))?;
    let mut stream = secure(tcp, config)?;
    ask(&mut stream, load.bytes, "close", expected, buffer)?;
    let handshake = Handshake {
        resumed: stream.conn.handshake_kind() == Some(HandshakeKind::Resumed),
        group: stream
            .conn
            .negotiated_key_exchange_group()
            .map(|g| g.name()),
        suite: stream.conn.negotiated_cipher_suite().map(|s| s.suite()),
    };
    stream.conn.send_close_notify();
    let _ = stream.flush();
    Ok(handshake)
}

/// A client's end of a connection. The handshake comes with the first request.
pub(super) fn secure(
    tcp: TcpStream,
    config: &Arc<ClientConfig>,
) -> std::result::Result<TlsStream, Loss> {
    let connect = |e: &dyn std::fmt::Display| Loss::Connect(e.to_string());
    let name = ServerName::try_from(SERVER).map_err(|e| connect(&e))?;
    tcp.set_nodelay(true).map_err(|e| connect(&e))?;
    tcp.set_read_timeout(Some(PATIENCE))
        .map_err(|e| connect(&e))?;
    let connection = ClientConnection::new(Arc::clone(config), name).map_err(|e| connect(&e))?;
    Ok(StreamOwned::new(connection, tcp))
}

/// One request, answered rightly; `then` is what becomes of the connection, `close` or `keep-alive`.
pub(super) fn ask(
    stream: &mut TlsStream,
    bytes: usize,
    then: &str,
    expected: &[u8],
    buffer: &mut [u8],
) -> std::result::Result<(), Loss> {
    let request =
        format!("GET /bytes/{bytes} HTTP/1.1\r\nHost: {SERVER}\r\nConnection: {then}\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .map_err(|e| Loss::Connect(e.to_string()))?;
    let mut response = Response::default();
    loop {
        match stream.read(buffer).map_err(Loss::Read)? {
            0 => return Err(Loss::Read(io::ErrorKind::UnexpectedEof.into())),
            count => {
                let done = response.take(&buffer[..count], expected);
                if done.map_err(Loss::Wrong)? {
                    return Ok(());
                }
            }
        }
    }
}

impl Tally {
    fn lost(&mut self, loss: Loss) {
        let why = loss.count(&mut self.errors);
        self.first_error.get_or_insert(why);
    }
}

impl Loss {
    /// Counts it with its kind and returns it in words.
    pub(super) fn count(self, errors: &mut Errors) -> String {
        let (count, why) = match self {
            Self::Connect(why) => (&mut errors.connect, why),
            Self::Read(e) if e.kind() == io::ErrorKind::WouldBlock => {
                (&mut errors.timeout, "no answer within ten seconds".into())
            }
            Self::Read(e) => (&mut errors.reset, e.to_string()),
            Self::Wrong(Wrong::Status(status)) => (&mut errors.status, format!("status {status}")),
            Self::Wrong(Wrong::Body(why)) => (&mut errors.body, why.to_owned()),
        };
        *count += 1;
        why
    }
}
