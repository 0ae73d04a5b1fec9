//! An established session: sealing and opening records in place, with the few messages TLS 1.3
//! still has after the handshake (tickets, key updates, alerts).

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error as TlsError, ExtractedSecrets};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;
use tulle_model::identity::SpiffeId;

use crate::context::Alpn;
use crate::leaf::Leaf;
use crate::record::{
    DirectionKeys, Fault, HEADER_BYTES, MAX_PLAINTEXT_BYTES, content, record_length, sealed_bytes,
};
use crate::revocations::PeerCertificate;
use crate::session_error::{OpenError, SealError};

/// Records sealed with one key before it changes: half of the limit of AES-GCM (RFC 8446, 5.5).
const RECORDS_PER_KEY: u64 = 1 << 23;
/// Records in a row without data that a peer may send.
const MAX_WITHOUT_DATA: u32 = 64;
/// Tickets kept per session; more are dropped.
const MAX_TICKETS: u32 = 16;
/// Largest handshake message accepted: a ticket holds the client's chain.
const MAX_MESSAGE_BYTES: usize = 32 * 1024;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
const FATAL: u8 = 2;
const WARNING: u8 = 1;

/// The part of rustls that stays: it derives new keys and keeps tickets.
pub(crate) enum Kernel {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Kernel {
    fn next_sending(&mut self) -> Result<(u64, ConnectionTrafficSecrets), TlsError> {
        match self {
            Self::Client(kernel) => kernel.update_tx_secret(),
            Self::Server(kernel) => kernel.update_tx_secret(),
        }
    }

    fn next_receiving(&mut self) -> Result<(u64, ConnectionTrafficSecrets), TlsError> {
        match self {
            Self::Client(kernel) => kernel.update_rx_secret(),
            Self::Server(kernel) => kernel.update_rx_secret(),
        }
    }
}

/// Results of the handshake.
pub(crate) struct SessionFacts {
    pub(crate) peer: Arc<Leaf>,
    pub(crate) alpn: Alpn,
    pub(crate) resumed: bool,
    pub(crate) epoch: u64,
}

/// An established session with an authenticated peer.
pub struct Session {
    sending: DirectionKeys,
    receiving: DirectionKeys,
    kernel: Kernel,
    facts: SessionFacts,
    /// We sent close_notify or an alert, or sealing failed half-way.
    sending_over: bool,
    received: Received,
    /// The peer asked for new keys of ours. They come with our next record, so that any number of
    /// requests costs one answer and the answer needs no buffer.
    answer_owed: bool,
    /// The start of a handshake message whose rest is still to come.
    partial: Vec<u8>,
    without_data: u32,
    tickets: u32,
    records_per_key: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Received {
    Open,
    Closed,
    Failed,
}

/// Result of reading the first record of the received bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// The record is incomplete.
    NeedsMore,
    /// Data.
    Data {
        /// Length of the record.
        consumed: usize,
        /// Where the data is now, in the bytes given.
        plaintext: Range<usize>,
    },
    /// A record without data, which has been handled.
    Nothing {
        /// Length of the record.
        consumed: usize,
    },
    /// The peer will send no more.
    Closed {
        /// Length of the record; 0 if it had closed before.
        consumed: usize,
    },
}

impl Session {
    pub(crate) fn new(
        secrets: ExtractedSecrets,
        kernel: Kernel,
        facts: SessionFacts,
    ) -> Result<Self, Fault> {
        Ok(Self {
            sending: DirectionKeys::new(secrets.tx)?,
            receiving: DirectionKeys::new(secrets.rx)?,
            kernel,
            facts,
            sending_over: false,
            received: Received::Open,
            answer_owed: false,
            partial: Vec::new(),
            without_data: 0,
            tickets: 0,
            records_per_key: RECORDS_PER_KEY,
        })
    }

    /// Refuses the peer of a complete handshake.
    pub(crate) fn refuse(secrets: ExtractedSecrets, alert: AlertDescription, out: &mut Vec<u8>) {
        if let Ok(mut keys) = DirectionKeys::new(secrets.tx) {
            // If even this fails the peer sees the connection close, which says enough.
            let _ = seal_alert(&mut keys, alert, out);
        }
    }

    /// Returns the peer's identity.
    pub fn peer(&self) -> &SpiffeId {
        &self.facts.peer.id
    }

    /// The peer's certificate.
    pub fn peer_certificate(&self) -> PeerCertificate {
        PeerCertificate::new(&self.facts.peer)
    }

    /// Returns when the peer's certificate expires.
    pub fn peer_not_after(&self) -> SystemTime {
        self.facts.peer.not_after
    }

    /// The protocol agreed on.
    pub fn alpn(&self) -> Alpn {
        self.facts.alpn
    }

    /// Whether it resumed an earlier session.
    pub fn resumed(&self) -> bool {
        self.facts.resumed
    }

    /// The epoch of the context it was made with.
    pub fn epoch(&self) -> u64 {
        self.facts.epoch
    }

    /// Seals `plaintext` into as many records as it needs, appended to `out`.
    ///
    /// All records of a session must be sent in the order sealed. It allocates only if `out` grows.
    ///
    /// # Errors
    /// The session is closed for sending. `out` holds whole records only, in any case.
    pub fn seal(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> Result<(), SealError> {
        self.seal_vectored(&[plaintext], out)
    }

    /// Seals several parts as if they were one: a head and the start of its body fit in one record.
    ///
    /// # Errors
    /// As [`Self::seal`].
    pub fn seal_vectored(&mut self, parts: &[&[u8]], out: &mut Vec<u8>) -> Result<(), SealError> {
        let total = parts
            .iter()
            .fold(0_usize, |sum, part| sum.saturating_add(part.len()));
        if self.sending_over {
            return Err(SealError::Closed);
        }
        let records = total.div_ceil(MAX_PLAINTEXT_BYTES);
        out.reserve(sealed_bytes(total));
        let mut rest = Parts {
            current: &[],
            later: parts,
        };
        for _ in 0..records {
            if self.answer_owed || self.sending.sequence() >= self.records_per_key {
                self.update_keys(false, out)?;
            }
            let sealed = self.sending.seal(content::APPLICATION_DATA, out, |out| {
                rest.append_record(out)
            });
            self.check_sealed(sealed)?;
        }
        Ok(())
    }

    /// Changes the keys we send with, and asks the peer to change its own.
    ///
    /// Safety does not need it: keys change by themselves after enough records.
    ///
    /// # Errors
    /// As [`Self::seal`].
    pub fn refresh_keys(&mut self, out: &mut Vec<u8>) -> Result<(), SealError> {
        if self.sending_over {
            return Err(SealError::Closed);
        }
        self.update_keys(true, out)
    }

    /// Announces that we will send no more. The peer may still send.
    pub fn close_notify(&mut self, out: &mut Vec<u8>) {
        self.end(AlertDescription::CloseNotify, out);
    }

    /// Tells the peer why its records are refused; the connection should be closed next.
    pub fn abort(&mut self, error: &OpenError, out: &mut Vec<u8>) {
        match error.alert() {
            Some(alert) => self.end(alert, out),
            None => self.sending_over = true,
        }
    }

    fn end(&mut self, alert: AlertDescription, out: &mut Vec<u8>) {
        if !self.sending_over {
            self.sending_over = true;
            // If it cannot be sealed the peer sees the connection end without it.
            let _ = seal_alert(&mut self.sending, alert, out);
        }
    }

    fn update_keys(&mut self, request: bool, out: &mut Vec<u8>) -> Result<(), SealError> {
        self.answer_owed = false;
        let message = [KEY_UPDATE, 0, 0, 1, u8::from(request)];
        let sealed = self.sending.seal(content::HANDSHAKE, out, |out| {
            out.extend_from_slice(&message);
        });
        self.check_sealed(sealed)?;
        let next = self.kernel.next_sending().map_err(SealError::Keys);
        match next.and_then(|secrets| DirectionKeys::new(secrets).map_err(SealError::from)) {
            Ok(keys) => self.sending = keys,
            Err(error) => {
                // The peer already expects the new keys, so no more records can be sent.
                self.sending_over = true;
                return Err(error);
            }
        }
        Ok(())
    }

    fn check_sealed(&mut self, sealed: Result<(), Fault>) -> Result<(), SealError> {
        sealed.map_err(|fault| {
            self.sending_over = true;
            fault.into()
        })
    }

    /// Opens the first record of `incoming`, in place.
    ///
    /// # Errors
    /// The session is over; [`Self::abort`] tells the peer why.
    pub fn open(&mut self, incoming: &mut [u8]) -> Result<Opened, OpenError> {
        match self.received {
            Received::Open => {}
            Received::Closed => return Ok(Opened::Closed { consumed: 0 }),
            Received::Failed => return Err(OpenError::AlreadyFailed),
        }
        let opened = self.open_record(incoming);
        match &opened {
            Ok(Opened::Closed { .. }) => self.received = Received::Closed,
            Ok(_) => {}
            Err(_) => self.received = Received::Failed,
        }
        opened
    }

    fn open_record(&mut self, incoming: &mut [u8]) -> Result<Opened, OpenError> {
        let Some(consumed) = record_length(incoming)? else {
            return Ok(Opened::NeedsMore);
        };
        let Some(record) = incoming.get_mut(..consumed) else {
            return Ok(Opened::NeedsMore);
        };
        let inner = self.receiving.open(record)?;
        let plaintext = HEADER_BYTES..HEADER_BYTES.saturating_add(inner.length);
        if inner.content_type != content::HANDSHAKE && !self.partial.is_empty() {
            return Err(OpenError::Malformed(
                "another record inside a handshake message",
            ));
        }
        if inner.content_type == content::APPLICATION_DATA && inner.length > 0 {
            self.without_data = 0;
            return Ok(Opened::Data {
                consumed,
                plaintext,
            });
        }
        self.without_data = self.without_data.saturating_add(1);
        if self.without_data > MAX_WITHOUT_DATA {
            return Err(OpenError::TooManyWithoutData);
        }
        let text = record.get(plaintext).unwrap_or_default();
        match inner.content_type {
            // An empty record of data is allowed, against traffic analysis.
            content::APPLICATION_DATA => Ok(Opened::Nothing { consumed }),
            content::HANDSHAKE => {
                self.take_handshake_record(text)?;
                Ok(Opened::Nothing { consumed })
            }
            content::ALERT => take_alert(text, consumed),
            other => Err(OpenError::UnexpectedRecord(other)),
        }
    }

    fn take_handshake_record(&mut self, text: &[u8]) -> Result<(), OpenError> {
        if text.is_empty() {
            return Err(OpenError::Malformed("an empty handshake record"));
        }
        if self.partial.is_empty() {
            let rest = self.take_messages(text)?;
            self.partial.extend_from_slice(rest);
        } else {
            let mut joined = std::mem::take(&mut self.partial);
            joined.extend_from_slice(text);
            let rest = self.take_messages(&joined)?.len();
            joined.drain(..joined.len().saturating_sub(rest));
            // An idle session keeps no buffer.
            self.partial = if rest == 0 { Vec::new() } else { joined };
        }
        Ok(())
    }

    /// Handles every complete message and returns the incomplete rest.
    fn take_messages<'a>(&mut self, mut text: &'a [u8]) -> Result<&'a [u8], OpenError> {
        while let Some((&[kind, high, middle, low], rest)) = text.split_first_chunk() {
            let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            if length > MAX_MESSAGE_BYTES {
                return Err(OpenError::MessageTooLarge(length));
            }
            let Some((message, rest)) = rest.split_at_checked(length) else {
                return Ok(text);
            };
            self.take_message(kind, message, rest.is_empty())?;
            text = rest;
        }
        Ok(text)
    }

    fn take_message(&mut self, kind: u8, message: &[u8], last: bool) -> Result<(), OpenError> {
        match (kind, &mut self.kernel) {
            (NEW_SESSION_TICKET, Kernel::Client(kernel)) => {
                self.tickets = self.tickets.saturating_add(1);
                if self.tickets > MAX_TICKETS {
                    return Ok(());
                }
                kernel
                    .handle_new_session_ticket(message)
                    .map_err(OpenError::Ticket)
            }
            (KEY_UPDATE, kernel) => {
                if !last {
                    return Err(OpenError::Malformed("a message behind a key update"));
                }
                self.answer_owed |= match message {
                    [0] => false,
                    [1] => true,
                    _ => return Err(OpenError::Malformed("a key update of unknown form")),
                };
                let secrets = kernel.next_receiving().map_err(OpenError::Keys)?;
                self.receiving = DirectionKeys::new(secrets)?;
                Ok(())
            }
            (other, _) => Err(OpenError::UnexpectedMessage(other)),
        }
    }

    /// Changes keys after this many records, so that a test need not seal millions.
    #[cfg(any(test, feature = "testing"))]
    pub fn set_records_per_key(&mut self, records: u64) {
        self.records_per_key = records;
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("peer", self.peer())
            .field("alpn", &self.alpn())
            .field("resumed", &self.resumed())
            .field("epoch", &self.epoch())
            .finish_non_exhaustive()
    }
}

fn seal_alert(
    keys: &mut DirectionKeys,
    alert: AlertDescription,
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    let level = if alert == AlertDescription::CloseNotify {
        WARNING
    } else {
        FATAL
    };
    keys.seal(content::ALERT, out, |out| {
        out.extend_from_slice(&[level, u8::from(alert)]);
    })
}

fn take_alert(text: &[u8], consumed: usize) -> Result<Opened, OpenError> {
    // The level has no meaning in TLS 1.3.
    let &[_, alert] = text else {
        return Err(OpenError::Malformed("an alert of the wrong length"));
    };
    match AlertDescription::from(alert) {
        AlertDescription::CloseNotify => Ok(Opened::Closed { consumed }),
        // A close_notify follows it.
        AlertDescription::UserCanceled => Ok(Opened::Nothing { consumed }),
        other => Err(OpenError::PeerAlert(other)),
    }
}

/// Several slices read as one.
struct Parts<'a> {
    current: &'a [u8],
    later: &'a [&'a [u8]],
}

impl Parts<'_> {
    /// Appends the plaintext of the next record.
    fn append_record(&mut self, out: &mut Vec<u8>) {
        let mut room = MAX_PLAINTEXT_BYTES;
        while room > 0 {
            if self.current.is_empty() {
                let Some((next, later)) = self.later.split_first() else {
                    return;
                };
                self.current = next;
                self.later = later;
            }
            let (now, rest) = self.current.split_at(room.min(self.current.len()));
            out.extend_from_slice(now);
            room -= now.len();
            self.current = rest;
        }
    }
}

#[cfg(test)]
mod tests;
