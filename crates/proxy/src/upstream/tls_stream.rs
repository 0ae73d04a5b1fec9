//! A TLS connection with one exchange at a time, and the handshake for both kinds of connection.

use crate::context::peers::{Connected, Peers};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tulle_net::Buf;
use tulle_tls::{Alpn, Handshake, HandshakeError, Opened, Progress, Session};

/// Ciphertext a slow peer may leave unsent before writes wait.
const UNSENT_LIMIT: usize = 64 * 1024;
/// Plaintext gathered per read before it is passed on.
const READ_LIMIT: usize = 32 * 1024;
/// Longest plaintext sealed per write, so that one write is one record.
const RECORD_BYTES: usize = 16 * 1024;

/// A connection after its handshake.
pub struct TlsStream {
    /// Dropped before the socket.
    connected: Connected,
    tcp: TcpStream,
    session: Box<Session>,
    incoming: Buf,
    unsent: Buf,
    ended: bool,
    ending: bool,
    notified: bool,
}

/// Why a handshake did not complete.
#[derive(Debug)]
pub enum Failed {
    /// The connection broke.
    Io(io::Error),
    /// TLS failed, or the peer's identity is wrong.
    Tls(HandshakeError),
}

/// Runs a handshake to its end. `incoming` holds bytes already read from the connection.
///
/// # Errors
/// The connection broke, or the peer was refused; then an alert has been sent if possible.
pub async fn handshake(
    peers: &Rc<Peers>,
    mut tcp: TcpStream,
    mut handshake: Handshake,
    mut incoming: Buf,
) -> Result<TlsStream, Failed> {
    let mut received = incoming.take_storage();
    let mut unsent = Buf::new();
    loop {
        let progress = handshake.advance(&mut received, unsent.storage());
        let ticket_only = handshake.is_server()
            && matches!(&progress, Ok(Progress::Done(session)) if session.alpn() != Alpn::Tulle1);
        // A ticket leaves with the first answer: alone it costs a packet and wakes the client for
        // nothing.
        let flushed = if ticket_only {
            Ok(())
        } else {
            poll_fn(|cx| poll_send(&mut tcp, cx, &mut unsent)).await
        };
        match progress {
            Err(error) => return Err(Failed::Tls(error)),
            Ok(progress) => {
                flushed.map_err(Failed::Io)?;
                if let Progress::Done(session) = progress {
                    let mut incoming = Buf::new();
                    if !received.is_empty() {
                        incoming.extend_from_slice(&received);
                    }
                    return Ok(TlsStream {
                        connected: peers.enter(&tcp, &session),
                        tcp,
                        session,
                        incoming,
                        unsent,
                        ended: false,
                        ending: false,
                        notified: false,
                    });
                }
            }
        }
        let count = tokio::io::AsyncReadExt::read_buf(&mut tcp, &mut received).await;
        if count.map_err(Failed::Io)? == 0 {
            return Err(Failed::Io(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

fn poll_send(tcp: &mut TcpStream, cx: &mut Context<'_>, unsent: &mut Buf) -> Poll<io::Result<()>> {
    while !unsent.is_empty() {
        let sent = ready!(Pin::new(&mut *tcp).poll_write(cx, unsent.as_slice()))?;
        if sent == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        unsent.consume(sent);
    }
    unsent.release();
    Poll::Ready(Ok(()))
}

fn tls_error(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl TlsStream {
    /// Returns the session agreed with the peer.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The connection underneath.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Takes the parts apart for the multiplexed transport's driver.
    pub fn into_parts(self) -> (Connected, TcpStream, Box<Session>, Buf) {
        (self.connected, self.tcp, self.session, self.incoming)
    }

    /// Whether bytes have arrived that nobody has asked for.
    pub fn has_unread(&self) -> bool {
        !self.incoming.is_empty() || self.ended
    }

    /// Receives and opens records.
    ///
    /// # Errors
    /// The connection broke, or a record is forged.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Buf) -> Poll<io::Result<usize>> {
        let before = buf.len();
        loop {
            self.open_records(buf, before + READ_LIMIT)?;
            let received = buf.len() - before;
            if received > 0 {
                return Poll::Ready(Ok(received));
            }
            if self.ended {
                return Poll::Ready(Ok(0));
            }
            let count = ready!(self.incoming.poll_fill(cx, &mut self.tcp))?;
            if count == 0 {
                // RFC 8446 6.1: an end without close_notify may be an attacker's cut.
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn open_records(&mut self, buf: &mut Buf, limit: usize) -> io::Result<()> {
        while !self.ended && !self.incoming.is_empty() && buf.len() < limit {
            let opened = self
                .session
                .open(self.incoming.as_mut_slice())
                .map_err(|error| {
                    self.session.abort(&error, self.unsent.storage());
                    tls_error(error)
                });
            match opened? {
                Opened::NeedsMore => break,
                Opened::Nothing { consumed } => self.incoming.consume(consumed),
                Opened::Data {
                    consumed,
                    plaintext,
                } => {
                    let bytes = self.incoming.as_slice().get(plaintext).unwrap_or_default();
                    buf.extend_from_slice(bytes);
                    self.incoming.consume(consumed);
                }
                Opened::Closed { .. } => {
                    self.ended = true;
                    self.incoming.release();
                }
            }
        }
        Ok(())
    }

    /// Lets the connection end with the next write that is the last of its exchange.
    pub fn end_with_last(&mut self) {
        self.ending = true;
    }

    /// Seals at most one record and sends it if the connection takes it. `last`: it ends the
    /// exchange.
    ///
    /// # Errors
    /// The connection broke.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
        last: bool,
    ) -> Poll<io::Result<usize>> {
        if self.unsent.len() >= UNSENT_LIMIT {
            ready!(self.poll_flush(cx))?;
        }
        let taken = data.len().min(RECORD_BYTES);
        self.unsent.make_room(tulle_tls::MAX_RECORD_BYTES);
        self.session
            .seal(&data[..taken], self.unsent.storage())
            .map_err(tls_error)?;
        if self.ending && last && taken == data.len() {
            self.notify();
        }
        // A full socket is no reason to refuse bytes already sealed: they wait in `unsent`.
        if let Poll::Ready(Err(error)) = self.poll_flush(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(taken))
    }

    /// Sends the sealed records.
    ///
    /// # Errors
    /// The connection broke.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_send(&mut self.tcp, cx, &mut self.unsent)
    }

    /// Sends `close_notify` and half-closes.
    ///
    /// # Errors
    /// The connection broke.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.notify();
        ready!(self.poll_flush(cx))?;
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }

    fn notify(&mut self) {
        if !std::mem::replace(&mut self.notified, true) {
            self.session.close_notify(self.unsent.storage());
        }
    }
}
