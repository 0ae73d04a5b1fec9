//! One side of an exchange: a plain TCP connection, a TLS connection, or a stream of the
//! multiplexed transport. The forwarding engines see only this.

use crate::upstream::http2::Http2Stream;
use crate::upstream::mux::MuxStream;
use crate::upstream::outside_tls::OutsideTls;
use crate::upstream::tls_stream::TlsStream;
use std::any::Any;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::SystemTime;
use tokio::io::{AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tulle_net::Buf;
use tulle_net::buffer::SHORT_READ;

/// A bidirectional stream of bytes.
pub enum Link {
    /// Plaintext: the application, or a client outside the mesh.
    Tcp(TcpStream),
    /// Mutual TLS with one exchange at a time, for peers that do not speak `tulle/1`.
    Tls(Box<TlsStream>),
    /// TLS with a peer outside the mesh.
    Outside(Box<OutsideTls>),
    /// A tunnel through an egress gateway.
    Tunnel(Box<Tunnel>),
    /// A stream of a shared mutual TLS connection.
    Mux(MuxStream),
    /// A stream of an HTTP/2 connection, which reads and writes as HTTP/1.1.
    Http2(Http2Stream),
    /// The connection was taken out.
    Closed,
}

fn closed<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
}

impl Link {
    /// Whether it carries only one exchange: a stream of a shared connection.
    pub fn is_stream(&self) -> bool {
        matches!(self, Self::Mux(_) | Self::Http2(_))
    }

    /// Whether it carries only one exchange, and not a whole connection.
    pub fn is_one_exchange(&self) -> bool {
        self.is_stream() && !matches!(self, Self::Mux(stream) if stream.is_tcp())
    }

    /// Ends the HTTP/2 connection that this stream belongs to, after the streams under way. Other
    /// connections of one exchange lead from a sidecar, which asks another endpoint by itself.
    pub fn take_no_more_streams(&self) {
        if let Self::Http2(stream) = self {
            stream.retire_connection();
        }
    }

    /// Whether the message came as HTTP/2, here or where it entered the mesh.
    pub fn came_as_http2(&self) -> bool {
        match self {
            Self::Http2(_) => true,
            Self::Mux(stream) => stream.came_as_http2(),
            Self::Tcp(_) | Self::Tls(_) | Self::Outside(_) | Self::Tunnel(_) | Self::Closed => {
                false
            }
        }
    }

    /// Returns when the certificate of the mesh peer at the other end expires.
    pub fn peer_not_after(&self) -> Option<SystemTime> {
        match self {
            Self::Tls(stream) => Some(stream.session().peer_not_after()),
            Self::Mux(stream) => Some(stream.peer_not_after()),
            Self::Tunnel(tunnel) => tunnel.peer_not_after(),
            Self::Tcp(_) | Self::Outside(_) | Self::Http2(_) | Self::Closed => None,
        }
    }

    /// Receives more bytes into `buf`; 0 means the peer has finished sending.
    ///
    /// # Errors
    /// The connection broke or the stream was reset.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Buf) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => buf.poll_fill(cx, stream),
            Self::Tls(stream) => stream.poll_read(cx, buf),
            Self::Outside(stream) => stream.poll_read(cx, buf),
            Self::Tunnel(tunnel) => tunnel.poll_read(cx, buf),
            Self::Mux(stream) => stream.poll_read(cx, buf),
            Self::Http2(stream) => stream.poll_read(cx, buf),
            Self::Closed => closed(),
        }
    }

    /// Receives as `poll_read`, but at most `limit` bytes, because their reader accepts no more
    /// now. Streams of shared connections have buffered theirs already.
    ///
    /// # Errors
    /// As `poll_read`.
    pub fn poll_read_up_to(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut Buf,
        limit: usize,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => buf.poll_fill_up_to(cx, stream, limit),
            _ => self.poll_read(cx, buf),
        }
    }

    /// Receives as `poll_read`, but leaves the bytes after the end of a head in the kernel, as far
    /// as it can see the end.
    ///
    /// # Errors
    /// As `poll_read`.
    pub fn poll_read_head(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut Buf,
    ) -> Poll<io::Result<usize>> {
        let Self::Tcp(stream) = self else {
            return self.poll_read(cx, buf);
        };
        let mut bytes = [0; SHORT_READ];
        let mut peeked = ReadBuf::new(&mut bytes);
        ready!(stream.poll_peek(cx, &mut peeked))?;
        let end = memchr::memmem::find(peeked.filled(), b"\r\n\r\n");
        let limit = end.map_or(SHORT_READ, |at| at + 4);
        buf.poll_fill_up_to(cx, stream, limit)
    }

    /// Returns how many bytes the other side lets us send now, as far as it says so. Pending:
    /// earlier bytes have to leave first.
    #[inline]
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        match self {
            Self::Http2(stream) => stream.poll_room(cx),
            Self::Mux(stream) => stream.poll_room(cx),
            _ => Poll::Ready(usize::MAX),
        }
    }

    /// Wakes the task when the other side lets us send more.
    pub fn wait_for_credit(&mut self, cx: &mut Context<'_>) {
        match self {
            Self::Http2(stream) => stream.wait_for_credit(cx),
            Self::Mux(stream) => stream.wait_for_credit(cx),
            _ => {}
        }
    }

    /// Notices that a multiplexed stream was reset, also after the peer has ended its side. On
    /// other connections only a read or write shows it.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match self {
            Self::Mux(stream) => stream.poll_reset(cx),
            Self::Outside(stream) => stream.link().poll_reset(cx),
            Self::Http2(stream) => stream.poll_reset(cx),
            Self::Tunnel(tunnel) => tunnel.link().poll_reset(cx),
            _ => Poll::Pending,
        }
    }

    /// Lets the connection end with the next `last` bytes. TLS then sends its end with them: the
    /// peer is woken by one packet less.
    pub fn end_with_last(&mut self) {
        if let Self::Tls(stream) = self {
            stream.end_with_last();
        }
    }

    /// Sends some of `data` and returns how much was taken. `last` says that the exchange ends
    /// with these bytes, so that a multiplexed stream can say so in the same frame.
    ///
    /// # Errors
    /// The connection broke or the stream was reset.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
        last: bool,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, data),
            Self::Tls(stream) => stream.poll_write(cx, data, last),
            Self::Outside(stream) => stream.poll_write(cx, data),
            // The end of an exchange does not end the tunnel.
            Self::Tunnel(tunnel) => tunnel.link().poll_write(cx, data, false),
            Self::Mux(stream) => stream.poll_write(cx, data, last),
            Self::Http2(stream) => stream.poll_write(cx, data),
            Self::Closed => closed(),
        }
    }

    /// Flushes the bytes that `poll_write` took. Plain TCP and multiplexed streams have nothing to
    /// flush: the former write at once, the latter at the end of the event turn.
    ///
    /// # Errors
    /// The connection broke.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Mux(_) | Self::Http2(_) | Self::Closed => Poll::Ready(Ok(())),
            Self::Tls(stream) => stream.poll_flush(cx),
            Self::Outside(stream) => stream.poll_flush(cx),
            Self::Tunnel(tunnel) => tunnel.link().poll_flush(cx),
        }
    }

    /// Half-close: nothing more will be sent.
    ///
    /// # Errors
    /// The connection broke.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => stream.poll_shutdown(cx),
            Self::Outside(stream) => stream.poll_shutdown(cx),
            Self::Tunnel(tunnel) => tunnel.link().poll_shutdown(cx),
            Self::Mux(stream) => stream.poll_shutdown(),
            Self::Http2(stream) => stream.poll_shutdown(),
            Self::Closed => Poll::Ready(Ok(())),
        }
    }

    /// Whether a connection that is expected to be silent still is. It costs no system call unless
    /// the event loop has seen something on it.
    pub fn is_quiet(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let tcp = match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => {
                if stream.has_unread() {
                    return false;
                }
                stream.tcp()
            }
            Self::Outside(stream) => return stream.is_quiet(),
            Self::Mux(_) | Self::Http2(_) => return true,
            Self::Tunnel(tunnel) => return tunnel.is_quiet(),
            Self::Closed => return false,
        };
        match tcp.poll_read_ready(&mut cx) {
            Poll::Pending => true,
            Poll::Ready(Err(_)) => false,
            // Readiness can be stale; only a read shows. Any byte or end of stream is unwelcome.
            Poll::Ready(Ok(())) => {
                matches!(tcp.try_read(&mut [0]), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
            }
        }
    }

    /// Ends the connection at once with a reset, so that the peer cannot take a cut message for a
    /// complete one.
    pub fn abort(&mut self) {
        match self {
            Self::Tcp(stream) => reset_on_close(stream),
            Self::Tls(stream) => reset_on_close(stream.tcp()),
            Self::Outside(stream) => stream.link().abort(),
            Self::Tunnel(tunnel) => tunnel.link().abort(),
            Self::Mux(stream) => stream.reset(),
            Self::Http2(stream) => stream.reset(),
            Self::Closed => {}
        }
    }
}

/// A tunnel through an egress gateway, after the gateway's answer.
pub struct Tunnel {
    /// Returns the link to the gateway.
    link: Link,
    /// Bytes that came right behind the answer.
    received: Buf,
    /// Counts as long as the tunnel lasts.
    _lease: Box<dyn Any>,
}

impl Tunnel {
    /// A way over `link`, which `lease` has lent.
    pub fn new(link: Link, received: Buf, lease: Box<dyn Any>) -> Self {
        Self {
            link,
            received,
            _lease: lease,
        }
    }

    /// See [`Link::poll_read`].
    ///
    /// # Errors
    /// The connection broke.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Buf) -> Poll<io::Result<usize>> {
        if self.received.is_empty() {
            return self.link.poll_read(cx, buf);
        }
        let count = self.received.len();
        buf.extend_from_slice(self.received.as_slice());
        self.received.release();
        Poll::Ready(Ok(count))
    }

    /// See [`Link::peer_not_after`]; the peer is the gateway.
    pub fn peer_not_after(&self) -> Option<SystemTime> {
        self.link.peer_not_after()
    }

    /// Returns the link to the gateway.
    pub fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// See [`Link::is_quiet`]. Only a read tells that a stream has ended.
    pub fn is_quiet(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.poll_read(&mut cx, &mut Buf::new()).is_pending()
    }
}

fn reset_on_close(stream: &TcpStream) {
    // The connection may be gone already, which is the goal.
    let _ = socket2::SockRef::from(stream).set_linger(Some(std::time::Duration::ZERO));
}
