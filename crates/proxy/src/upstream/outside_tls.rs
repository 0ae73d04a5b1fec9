//! TLS with peers outside the mesh, seen as a link: rustls's own streams over another link.
//!
//! The path inside the mesh seals records by itself (`tls_stream`). Here TLS 1.2 is supported, too,
//! and one more copy does not matter.

use crate::upstream::link::Link;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, HandshakeKind, ServerConfig, ServerConnection};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tulle_net::Buf;

/// A connection after its handshake.
pub struct OutsideTls(TlsStream<Carrier>);

/// The link that carries TLS, with bytes that were read from it before.
struct Carrier {
    link: Link,
    received: Buf,
}

impl OutsideTls {
    /// Runs a handshake as server.
    ///
    /// # Errors
    /// It failed; the client has been sent an alert if possible.
    pub async fn accept(link: Link, received: Buf, config: Arc<ServerConfig>) -> io::Result<Self> {
        let carrier = Carrier { link, received };
        let stream = TlsAcceptor::from(config).accept(carrier).await?;
        Ok(Self(stream.into()))
    }

    /// Runs a handshake as client, with a server that must prove its name.
    ///
    /// # Errors
    /// It failed.
    pub async fn connect(
        link: Link,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        let carrier = Carrier {
            link,
            received: Buf::new(),
        };
        let stream = TlsConnector::from(config).connect(name, carrier).await?;
        Ok(Self(stream.into()))
    }

    /// Returns the server's side of the session, if it is ours.
    pub fn server(&self) -> Option<&ServerConnection> {
        match &self.0 {
            TlsStream::Server(stream) => Some(stream.get_ref().1),
            TlsStream::Client(_) => None,
        }
    }

    /// Whether a session was resumed.
    pub fn is_resumed(&self) -> bool {
        self.0.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Whether HTTP/2 was agreed on.
    pub fn speaks_http2(&self) -> bool {
        self.0.get_ref().1.alpn_protocol() == Some(b"h2")
    }

    /// Returns the link underneath.
    pub fn link(&mut self) -> &mut Link {
        &mut self.0.get_mut().0.link
    }

    /// See [`Link::poll_read`].
    ///
    /// # Errors
    /// The connection broke, or a record is forged.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Buf) -> Poll<io::Result<usize>> {
        buf.poll_fill(cx, &mut self.0)
    }

    /// See [`Link::poll_write`].
    ///
    /// # Errors
    /// The connection broke.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, data)
    }

    /// See [`Link::poll_flush`].
    ///
    /// # Errors
    /// The connection broke.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    /// See [`Link::poll_shutdown`].
    ///
    /// # Errors
    /// The connection broke.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    /// See [`Link::is_quiet`]. Session tickets may have arrived, which only a read consumes.
    pub fn is_quiet(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.poll_read(&mut cx, &mut Buf::new()).is_pending()
    }
}

impl AsyncRead for Carrier {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.received.is_empty() {
            if let Link::Tcp(tcp) = &mut this.link {
                return Pin::new(tcp).poll_read(cx, out);
            }
            if ready!(this.link.poll_read(cx, &mut this.received))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        let bytes = this.received.as_slice();
        let count = bytes.len().min(out.remaining());
        out.put_slice(bytes.get(..count).unwrap_or_default());
        this.received.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().link.poll_write(cx, data, false)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().link.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().link.poll_shutdown(cx)
    }
}
