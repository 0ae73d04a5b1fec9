//! Drives a rustls handshake over the caller's buffers, up to a [`Session`].
//!
//! rustls sees one record at a time. So it never reads past the end of the handshake, and the
//! peer's next bytes stay in the caller's buffer for [`Session::open`].

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{AlertDescription, CommonState, Error as TlsError, HandshakeKind, InvalidMessage};
use std::sync::Arc;
use tulle_model::identity::SpiffeId;

use crate::context::{Alpn, ClientKey, Context};
use crate::error::HandshakeError;
use crate::leaf::Usage;
use crate::record::{HEADER_BYTES, MAX_RECORD_BYTES, content};
use crate::session::{Kernel, Session, SessionFacts};
use crate::verify::check_again;

/// Most bytes we read of one handshake. A chain of the largest size fits well.
const MAX_HANDSHAKE_BYTES: usize = 64 * 1024;

/// A handshake under way, as client or as server.
pub struct Handshake {
    context: Context,
    /// A client's expected peers, which are also the key of its stored sessions.
    expected: Option<ClientKey>,
    /// Gone once the handshake is done or has failed.
    connection: Option<Connection>,
    /// Bytes at the start of `incoming` that rustls has seen and still needs.
    shown: usize,
    /// Bytes shown so far.
    total: usize,
}

// One at a time per connection, and moved once: the difference in size does not matter.
#[allow(clippy::large_enum_variant)]
enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// Progress of a handshake.
#[derive(Debug)]
pub enum Progress {
    /// More bytes of the peer are needed.
    NeedsRead,
    /// It is complete. Bytes left in `incoming` are records for [`Session::open`].
    Done(Box<Session>),
}

/// Request of rustls after one step.
enum Step {
    Again,
    Read,
    MayWrite,
}

impl Handshake {
    /// Starts a handshake as client, with a server that must be one of `expected`.
    ///
    /// # Errors
    /// `expected` is empty, or rustls refuses to start.
    pub fn client(
        context: &Context,
        expected: Arc<[SpiffeId]>,
        offer: &[Alpn],
    ) -> Result<Self, HandshakeError> {
        if expected.is_empty() {
            return Err(HandshakeError::NothingExpected);
        }
        let key = ClientKey {
            expected,
            offer: offer.into(),
        };
        let config = context.client(&key).map_err(HandshakeError::Protocol)?;
        let connection = UnbufferedClientConnection::new(config, server_name()?)
            .map_err(HandshakeError::Protocol)?;
        Ok(Self::new(
            context,
            Some(key),
            Connection::Client(connection),
        ))
    }

    /// Starts a handshake as server. It accepts `tulle/1`, `http/1.1` and no protocol name.
    ///
    /// # Errors
    /// rustls refuses to start.
    pub fn server(context: &Context) -> Result<Self, HandshakeError> {
        let connection =
            UnbufferedServerConnection::new(context.server()).map_err(HandshakeError::Protocol)?;
        Ok(Self::new(context, None, Connection::Server(connection)))
    }

    fn new(context: &Context, expected: Option<ClientKey>, connection: Connection) -> Self {
        Self {
            context: context.clone(),
            expected,
            connection: Some(connection),
            shown: 0,
            total: 0,
        }
    }

    /// Whether this is the server's end.
    pub fn is_server(&self) -> bool {
        self.expected.is_none()
    }

    /// Advances as far as the received bytes allow.
    ///
    /// `incoming` holds received bytes that are still unused; used ones are removed. Bytes to send
    /// are appended to `outgoing`: flush them whatever the result, since even an error leaves an
    /// alert there. A client calls this first with no bytes received.
    ///
    /// # Errors
    /// The handshake failed.
    pub fn advance(
        &mut self,
        incoming: &mut Vec<u8>,
        outgoing: &mut Vec<u8>,
    ) -> Result<Progress, HandshakeError> {
        let advanced = self.run(incoming, outgoing);
        if advanced.is_err() {
            self.connection = None;
            if let Some(key) = &self.expected {
                self.context.forget(key);
            }
        }
        advanced
    }

    fn run(
        &mut self,
        incoming: &mut Vec<u8>,
        outgoing: &mut Vec<u8>,
    ) -> Result<Progress, HandshakeError> {
        loop {
            match self.step(incoming, outgoing) {
                Ok(Step::Again) => {}
                // A server may write before the client's part is complete; we wait for it.
                Ok(Step::MayWrite) if !self.is_handshaking() => {
                    return self.finish(outgoing).map(Progress::Done);
                }
                Ok(Step::Read | Step::MayWrite) => {
                    let unseen = incoming.get(self.shown..).unwrap_or_default();
                    match record_length(unseen).map_err(HandshakeError::Protocol)? {
                        Some(length) => self.show(length)?,
                        None => return Ok(Progress::NeedsRead),
                    }
                }
                Err(error) => {
                    // rustls still has to send its alert. It must not see the bytes again.
                    while self.wants_write() && self.step(incoming, outgoing).is_ok() {}
                    return Err(HandshakeError::from_tls(error));
                }
            }
        }
    }

    /// Runs one step of rustls over the bytes shown to it.
    ///
    /// rustls keeps offsets into these bytes, so exactly the unused ones must be shown again in the
    /// next step, also after an error.
    fn step(&mut self, incoming: &mut Vec<u8>, outgoing: &mut Vec<u8>) -> Result<Step, TlsError> {
        let connection = self
            .connection
            .as_mut()
            .ok_or(TlsError::HandshakeNotComplete)?;
        let shown = incoming
            .get_mut(..self.shown)
            .ok_or_else(|| TlsError::General("the buffer of received bytes shrank".into()))?;
        let (used, step) = connection.step(shown, outgoing);
        incoming.drain(..used.min(self.shown));
        self.shown = self.shown.saturating_sub(used);
        step
    }

    fn is_handshaking(&self) -> bool {
        self.connection
            .as_ref()
            .is_none_or(|connection| connection.state().is_handshaking())
    }

    fn wants_write(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| connection.state().wants_write())
    }

    fn show(&mut self, length: usize) -> Result<(), HandshakeError> {
        self.shown = self.shown.saturating_add(length);
        self.total = self.total.saturating_add(length);
        if self.total > MAX_HANDSHAKE_BYTES {
            return Err(HandshakeError::TooManyBytes);
        }
        Ok(())
    }

    fn finish(&mut self, outgoing: &mut Vec<u8>) -> Result<Box<Session>, HandshakeError> {
        let connection = self
            .connection
            .take()
            .ok_or(HandshakeError::Protocol(TlsError::HandshakeNotComplete))?;
        if self.shown > 0 {
            return Err(protocol(
                "a message continues past the end of the handshake",
            ));
        }
        let state = connection.state();
        let alpn = Alpn::from_name(state.alpn_protocol());
        let resumed = state.handshake_kind() == Some(HandshakeKind::Resumed);
        let usage = match connection {
            Connection::Client(_) => Usage::Server,
            Connection::Server(_) => Usage::Client,
        };
        // This holds after a full handshake, too: one rule, and the peer's id is needed anyway.
        let checked = check_again(
            state.peer_certificates(),
            usage,
            self.context.chains(usage),
            self.context.trust_domain(),
            self.expected.as_ref().map(|key| &key.expected),
            &self.context.revoked(),
            self.context.now(),
        );
        let (secrets, kernel) = connection.into_kernel().map_err(HandshakeError::Protocol)?;
        match checked {
            Ok(peer) => {
                let facts = SessionFacts {
                    peer,
                    alpn,
                    resumed,
                    epoch: self.context.epoch(),
                };
                let session = Session::new(secrets, kernel, facts)
                    .map_err(|_| protocol("the session keys cannot be used"))?;
                Ok(Box::new(session))
            }
            Err(error) => {
                // The refusal is ours, not rustls's, so we send the alert.
                Session::refuse(secrets, error.alert(), outgoing);
                Err(error)
            }
        }
    }
}

impl std::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handshake")
            .field("context", &self.context)
            .field("expected", &self.expected)
            .finish_non_exhaustive()
    }
}

impl Connection {
    fn state(&self) -> &CommonState {
        match self {
            Self::Client(client) => client,
            Self::Server(server) => server,
        }
    }

    fn step(
        &mut self,
        shown: &mut [u8],
        outgoing: &mut Vec<u8>,
    ) -> (usize, Result<Step, TlsError>) {
        match self {
            Self::Client(client) => step(client.process_tls_records(shown), outgoing),
            Self::Server(server) => step(server.process_tls_records(shown), outgoing),
        }
    }

    fn into_kernel(self) -> Result<(rustls::ExtractedSecrets, Kernel), TlsError> {
        match self {
            Self::Client(client) => client
                .dangerous_into_kernel_connection()
                .map(|(secrets, kernel)| (secrets, Kernel::Client(kernel))),
            Self::Server(server) => server
                .dangerous_into_kernel_connection()
                .map(|(secrets, kernel)| (secrets, Kernel::Server(kernel))),
        }
    }
}

fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outgoing: &mut Vec<u8>,
) -> (usize, Result<Step, TlsError>) {
    let step = status.state.and_then(|state| match state {
        ConnectionState::EncodeTlsData(chunk) => encode(chunk, outgoing),
        ConnectionState::TransmitTlsData(transmit) => {
            transmit.done();
            Ok(Step::Again)
        }
        ConnectionState::BlockedHandshake => Ok(Step::Read),
        ConnectionState::WriteTraffic(_) => Ok(Step::MayWrite),
        ConnectionState::PeerClosed | ConnectionState::Closed => {
            Err(TlsError::AlertReceived(AlertDescription::CloseNotify))
        }
        // Early data is never offered; data behind the handshake is never shown to rustls.
        _ => Err(TlsError::General("data came before its time".into())),
    });
    (status.discard, step)
}

fn encode<Data>(
    mut chunk: EncodeTlsData<'_, Data>,
    outgoing: &mut Vec<u8>,
) -> Result<Step, TlsError> {
    let start = outgoing.len();
    // Encoding into no room returns how much is needed.
    let needed = match chunk.encode(&mut []) {
        Ok(_) => return Ok(Step::Again),
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
            required_size
        }
        Err(error) => return Err(TlsError::General(error.to_string())),
    };
    outgoing.resize(start.saturating_add(needed), 0);
    let room = outgoing.get_mut(start..).unwrap_or_default();
    chunk
        .encode(room)
        .map_err(|error| TlsError::General(error.to_string()))?;
    Ok(Step::Again)
}

/// Returns the length of the first record of `incoming` with its header, once all of it is there.
fn record_length(incoming: &[u8]) -> Result<Option<usize>, TlsError> {
    let Some(first) = incoming.first() else {
        return Ok(None);
    };
    if !(content::CHANGE_CIPHER_SPEC..=content::APPLICATION_DATA).contains(first) {
        return Err(InvalidMessage::InvalidContentType.into());
    }
    let Some(header) = incoming.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let length = HEADER_BYTES + usize::from(u16::from_be_bytes([header[3], header[4]]));
    if length > MAX_RECORD_BYTES {
        return Err(InvalidMessage::MessageTooLarge.into());
    }
    Ok((incoming.len() >= length).then_some(length))
}

/// Returns a name for rustls. It is always the same, never sent and never verified.
fn server_name() -> Result<ServerName<'static>, HandshakeError> {
    ServerName::try_from("peer.invalid").map_err(|_| protocol("the server name is refused"))
}

fn protocol(what: &str) -> HandshakeError {
    HandshakeError::Protocol(TlsError::General(what.into()))
}
