//! Dials an endpoint: TCP, and the handshake of mutual TLS.

use super::Upstream;
use crate::context::{WorkerContext, is_exhaustion};
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::upstream::tls_stream::{self, Failed, TlsStream};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tulle_model::identity::SpiffeId;
use tulle_net::{Buf, socket};
use tulle_tls::{Alpn, Handshake};
use tulle_transport::StreamKind;

/// A connection to another host whose peer acknowledges nothing for this long is dead (the kernel's own default is
/// about 15 minutes). So is one whose peer has no room for what waits, however alive it is: a sidecar always reads.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

impl Upstream {
    /// Connects, verifies the identity, and closes the connection.
    ///
    /// # Errors
    /// It is not reachable, or its certificate is wrong.
    pub async fn probe(&self, context: &WorkerContext) -> Result<(), Failure> {
        match self.key.identities.clone() {
            None => self.dial(context).await.map(drop),
            Some(identities) => {
                let tls = self.dial_tls(context, identities, StreamKind::Http).await?;
                Link::Tls(Box::new(tls)).abort();
                Ok(())
            }
        }
    }

    /// Makes a plain connection.
    ///
    /// # Errors
    /// It cannot be created.
    pub async fn dial(&self, context: &WorkerContext) -> Result<TcpStream, Failure> {
        let address = self.key.address;
        let failed = |e: std::io::Error| {
            let reason = match is_exhaustion(&e) {
                true => Reason::Overload,
                false => Reason::ConnectFailed,
            };
            Failure::new(reason, format!("connect to {address}: {e}"))
        };
        let tcp = match self.key.own && !address.ip().is_loopback() {
            // Otherwise it would look like a call of the workload to itself, and come back here.
            true => Box::pin(socket::connect_from_loopback(address)).await,
            false => TcpStream::connect(address).await,
        };
        let tcp = match tcp {
            // An application that listens on `localhost` may have got either address.
            Err(error) if is_local_refusal(address, &error) => {
                let other = SocketAddr::from((Ipv6Addr::LOCALHOST, address.port()));
                let tcp = Box::pin(TcpStream::connect(other)).await;
                tcp.map_err(|_| failed(error))?
            }
            tcp => tcp.map_err(failed)?,
        };
        socket::prepare(&tcp).map_err(failed)?;
        // On this host the kernel says itself who is gone; an application may read nothing for as long as it likes.
        if !self.key.own && !address.ip().is_loopback() {
            // An error is not fatal: a dead peer is noticed later.
            let _ = socket2::SockRef::from(&tcp).set_tcp_user_timeout(Some(USER_TIMEOUT));
        }
        context.metrics.internal(|i| i.dialled += 1);
        Ok(tcp)
    }

    pub(super) async fn dial_tls(
        &self,
        context: &WorkerContext,
        identities: Arc<[SpiffeId]>,
        kind: StreamKind,
    ) -> Result<TlsStream, Failure> {
        let snapshot = context.snapshot();
        let Some(tls) = &snapshot.tls else {
            return Err(Failure::new(
                Reason::NotReady,
                "this proxy has no certificate yet",
            ));
        };
        // A peer that does not know `tulle/1` must not take opaque bytes for HTTP.
        let offer: &[Alpn] = match kind {
            StreamKind::Http | StreamKind::Http2 => &[Alpn::Tulle1, Alpn::Http2, Alpn::Http11],
            StreamKind::Tcp => &[Alpn::Tulle1],
        };
        let address = self.key.address;
        let refused = |e: tulle_tls::HandshakeError| {
            context
                .metrics
                .internal(|i| i.handshakes_failed.add(e.code(), 1));
            Failure::new(Reason::TlsFailed, format!("{address}: {}: {e}", e.code()))
        };
        let handshake = Handshake::client(tls, identities, offer).map_err(refused)?;
        let tcp = self.dial(context).await?;
        match tls_stream::handshake(&context.peers, tcp, handshake, Buf::new()).await {
            Ok(tls) => {
                context.metrics.internal(|i| {
                    i.handshakes += 1;
                    i.resumed += u64::from(tls.session().resumed());
                });
                Ok(tls)
            }
            Err(Failed::Tls(error)) => Err(refused(error)),
            Err(Failed::Io(error)) => {
                context
                    .metrics
                    .internal(|i| i.handshakes_failed.add("cut", 1));
                let text = format!(
                    "{address}: cut: the server ended the connection during the TLS handshake: {error}"
                );
                Err(Failure::new(Reason::TlsFailed, text))
            }
        }
    }
}

fn is_local_refusal(address: SocketAddr, error: &std::io::Error) -> bool {
    address.ip() == Ipv4Addr::LOCALHOST && error.kind() == std::io::ErrorKind::ConnectionRefused
}
