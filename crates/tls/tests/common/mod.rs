//! Two ends in memory: our handshake and session at one end, ours or plain rustls at the other.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{ClientConnection, Connection, Error as TlsError, ServerConfig, ServerConnection};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tulle_model::identity::SpiffeId;
use tulle_tls::testing::{AcceptAnyone, Issued, TestCa, client_config};
use tulle_tls::{Alpn, Context, Handshake, HandshakeError, OpenError, Opened, Progress, Session};

const ANYONE: AcceptAnyone = AcceptAnyone {
    certificate_required: false,
};

pub const REVIEWS: &str = "spiffe://tulle.local/svc/reviews";
pub const RATINGS: &str = "spiffe://tulle.local/svc/ratings";

pub fn ids(texts: &[&str]) -> Arc<[SpiffeId]> {
    texts.iter().map(|t| SpiffeId::parse(t).unwrap()).collect()
}

pub fn context(ca: &TestCa, id: &str) -> Context {
    Context::new(&ca.identity(id), &ca.bundle()).unwrap()
}

/// One of our ends, with its buffers.
pub struct End {
    pub handshake: Option<Handshake>,
    pub session: Option<Box<Session>>,
    pub failure: Option<HandshakeError>,
    pub incoming: Vec<u8>,
    pub outgoing: Vec<u8>,
}

impl End {
    pub fn new(handshake: Handshake) -> Self {
        Self {
            handshake: Some(handshake),
            session: None,
            failure: None,
            incoming: Vec::new(),
            outgoing: Vec::new(),
        }
    }

    pub fn client(context: &Context, expected: &[&str], offer: &[Alpn]) -> Self {
        Self::new(Handshake::client(context, ids(expected), offer).unwrap())
    }

    pub fn server(context: &Context) -> Self {
        Self::new(Handshake::server(context).unwrap())
    }

    pub fn advance(&mut self) {
        let Some(handshake) = &mut self.handshake else {
            return;
        };
        match handshake.advance(&mut self.incoming, &mut self.outgoing) {
            Ok(Progress::NeedsRead) => {}
            Ok(Progress::Done(session)) => {
                self.session = Some(session);
                self.handshake = None;
            }
            Err(error) => {
                self.failure = Some(error);
                self.handshake = None;
            }
        }
    }

    pub fn session(&mut self) -> &mut Session {
        if let Some(failure) = &self.failure {
            panic!("{}: {failure}", failure.code());
        }
        self.session.as_mut().expect("the handshake is not done")
    }

    /// Opens all records received and returns their data, and whether the peer has closed.
    pub fn read(&mut self) -> Result<(Vec<u8>, bool), OpenError> {
        let mut data = Vec::new();
        loop {
            let session = self.session.as_mut().expect("the handshake is not done");
            let used = match session.open(&mut self.incoming)? {
                Opened::NeedsMore => return Ok((data, false)),
                Opened::Closed { consumed } => {
                    self.incoming.drain(..consumed);
                    return Ok((data, true));
                }
                Opened::Nothing { consumed } => consumed,
                Opened::Data {
                    consumed,
                    plaintext,
                } => {
                    data.extend_from_slice(&self.incoming[plaintext]);
                    consumed
                }
            };
            self.incoming.drain(..used);
        }
    }

    pub fn seal(&mut self, data: &[u8]) {
        let mut out = std::mem::take(&mut self.outgoing);
        self.session().seal(data, &mut out).unwrap();
        self.outgoing = out;
    }
}

/// Moves bytes between two of our ends, at most `chunk` at a time, until the handshakes are over
/// and no byte is left to move.
pub fn connect(a: &mut End, b: &mut End, chunk: usize) {
    loop {
        a.advance();
        b.advance();
        if a.outgoing.is_empty() && b.outgoing.is_empty() {
            return;
        }
        carry(a, b, chunk);
        carry(b, a, chunk);
    }
}

fn carry(from: &mut End, to: &mut End, chunk: usize) {
    let n = chunk.min(from.outgoing.len());
    to.incoming.extend(from.outgoing.drain(..n));
}

/// A connected pair: client at reviews, server at ratings.
pub fn pair(ca: &TestCa) -> (End, End) {
    let mut client = End::client(&context(ca, REVIEWS), &[RATINGS], &[Alpn::Tulle1]);
    let mut server = End::server(&context(ca, RATINGS));
    connect(&mut client, &mut server, usize::MAX);
    client.session();
    server.session();
    (client, server)
}

/// Moves the whole output of `from` to `to`.
pub fn deliver(from: &mut End, to: &mut End) {
    carry(from, to, usize::MAX);
}

/// A plain rustls end, with the data it has received.
pub struct Plain {
    pub connection: Connection,
    received: Vec<u8>,
}

impl Plain {
    fn new(connection: impl Into<Connection>) -> Self {
        let mut connection = connection.into();
        connection.set_buffer_limit(None);
        Self {
            connection,
            received: Vec::new(),
        }
    }

    pub fn client(config: rustls::ClientConfig) -> Self {
        let name = ServerName::try_from("ratings.test").unwrap();
        Self::new(ClientConnection::new(Arc::new(config), name).unwrap())
    }

    pub fn write(&mut self, data: &[u8]) {
        self.connection.writer().write_all(data).unwrap();
    }

    /// The data received since the last call.
    pub fn read(&mut self) -> Vec<u8> {
        self.take_data();
        std::mem::take(&mut self.received)
    }

    /// Whether the peer has closed cleanly.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.connection.reader().read(&mut [0]), Ok(0))
    }

    fn take_data(&mut self) {
        // It ends with an error when nothing is left, and keeps the bytes it has read.
        let _ = self.connection.reader().read_to_end(&mut self.received);
    }
}

/// A plain rustls client; it presents `certificate`, if any.
pub fn plain_client(certificate: Option<&Issued>, alpn: &[&[u8]]) -> Plain {
    Plain::client(client_config(certificate, &TLS13, alpn))
}

/// A plain rustls server that asks for a client certificate and accepts any.
pub fn plain_server(certificate: &Issued) -> Plain {
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_client_cert_verifier(Arc::new(ANYONE))
        .with_single_cert(certificate.chain.clone(), certificate.key())
        .unwrap();
    config.ticketer = aws_lc_rs::Ticketer::new().unwrap();
    Plain::new(ServerConnection::new(Arc::new(config)).unwrap())
}

/// Moves bytes between our end and a plain one until nothing is left. Returns rustls's first error,
/// if it failed.
pub fn connect_plain(own: &mut End, plain: &mut Plain) -> Option<TlsError> {
    let mut failure = None;
    loop {
        own.advance();
        let mut moved = !own.outgoing.is_empty();
        to_plain(own, plain, &mut failure);
        let mut bytes = Vec::new();
        while plain.connection.wants_write() {
            moved |= plain.connection.write_tls(&mut bytes).unwrap() > 0;
        }
        own.incoming.extend(bytes);
        if !moved {
            return failure;
        }
    }
}

fn to_plain(own: &mut End, plain: &mut Plain, failure: &mut Option<TlsError>) {
    let bytes = std::mem::take(&mut own.outgoing);
    let mut rest = bytes.as_slice();
    while !rest.is_empty() && failure.is_none() {
        plain.connection.read_tls(&mut rest).unwrap();
        if let Err(error) = plain.connection.process_new_packets() {
            *failure = Some(error);
        }
        plain.take_data();
    }
}

/// A clock that a test sets.
#[derive(Debug)]
pub struct TestClock(AtomicU64);

impl TestClock {
    pub fn at(time: SystemTime) -> Arc<Self> {
        let clock = Arc::new(Self(AtomicU64::new(0)));
        clock.set(time);
        clock
    }

    pub fn set(&self, time: SystemTime) {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        self.0.store(since.as_secs(), Ordering::SeqCst);
    }
}

impl TimeProvider for TestClock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.load(Ordering::SeqCst);
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}
