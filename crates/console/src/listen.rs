//! Connections of browsers: how many, how large their heads, and how long one may take nothing.

use crate::route::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep, timeout};
use tulle_net::places::{Class, HeldPlace, PlaceLimits, Places};

/// Connections served at a time. All come from this host, so a source may have them all; streams of events keep theirs.
const CONNECTIONS: PlaceLimits = PlaceLimits {
    all: 128,
    source: 128,
    reserved: 0,
};
/// Most bytes of a head.
const MAX_HEAD: usize = 16 * 1024;
/// Time limit of a head, and of the pause before the next one.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// Longest time in which a connection takes nothing of what waits for it.
const STALL: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 20_000 });
/// Bytes of a connection that the kernel holds for a browser that does not read; it counts them twice.
const SEND_BUFFER: usize = 64 * 1024;
/// Time of the last words at the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Serves connections until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, router: Arc<Router>, down: watch::Receiver<bool>) {
    let places = Places::new(CONNECTIONS);
    let serve = |stream, place| connection(stream, place, router.clone(), down.clone());
    places.accept(listener, |_| Class::Anyone, serve).await;
}

async fn connection(
    stream: TcpStream,
    place: Arc<HeldPlace>,
    router: Arc<Router>,
    mut down: watch::Receiver<bool>,
) {
    let socket = SockRef::from(&stream);
    // Neither is more than a wish.
    let _ = socket.set_send_buffer_size(SEND_BUFFER);
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |request: Request<Incoming>| {
        let (router, place) = (router.clone(), place.clone());
        async move { Ok::<_, Infallible>(router.answer(request, &place).await) }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(MAX_HEAD);
    let connection = builder.serve_connection(TokioIo::new(Impatient::new(stream)), answer);
    tokio::pin!(connection);
    tokio::select! {
        // A browser that went away is nobody's business.
        _ = connection.as_mut() => return,
        _ = down.wait_for(|down| *down) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(LAST_WORDS, connection).await;
}

/// A connection that fails when the other side takes nothing for [`STALL`].
struct Impatient<S> {
    stream: S,
    /// Set while something waits to be written.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    fn new(stream: S) -> Self {
        Self {
            stream,
            until: None,
        }
    }

    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.until = None;
            return written;
        }
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(STALL)));
        match until.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.written(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    #[tokio::test]
    async fn a_side_that_takes_nothing_is_given_up() {
        let (here, mut there) = tokio::io::duplex(64);
        let mut here = Impatient::new(here);
        here.write_all(&[0; 64]).await.unwrap();
        let begin = Instant::now();
        let error = here.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begin.elapsed() >= STALL);
        // It may be slow as long as it takes something.
        let (here, mut slow) = tokio::io::duplex(8);
        let mut here = Impatient::new(here);
        let reader = tokio::spawn(async move {
            let mut bytes = [0; 8];
            for _ in 0..4 {
                sleep(STALL / 2).await;
                slow.read_exact(&mut bytes).await.unwrap();
            }
        });
        here.write_all(&[0; 32]).await.unwrap();
        reader.await.unwrap();
        there.read_exact(&mut [0; 64]).await.unwrap();
    }
}
