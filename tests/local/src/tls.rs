//! Peers that speak plain TLS and HTTP/1.1: not sidecars, and not always honest. They take every
//! certificate, so that what is refused is refused by the proxy.

use crate::{Message, PATIENCE, get, read_message};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ServerConfig, ServerConnection, StreamOwned,
    SupportedProtocolVersion,
};
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tulle_tls::testing::{self, AcceptAnyone, Issued};

const ANYONE: AcceptAnyone = AcceptAnyone {
    certificate_required: true,
};
/// TLS 1.3.
pub const TLS13: &SupportedProtocolVersion = &rustls::version::TLS13;
/// TLS 1.2.
pub const TLS12: &SupportedProtocolVersion = &rustls::version::TLS12;

/// A client with a certificate, or none.
pub struct TlsClient {
    reader: BufReader<StreamOwned<ClientConnection, TcpStream>>,
}

/// Returns the configuration of a client with or without a certificate.
pub fn client_config(
    certificate: Option<&Issued>,
    version: &'static SupportedProtocolVersion,
    alpn: &[&str],
) -> Arc<ClientConfig> {
    let alpn: Vec<&[u8]> = alpn.iter().map(|a| a.as_bytes()).collect();
    Arc::new(testing::client_config(certificate, version, &alpn))
}

/// Returns the configuration of a server that accepts any client's certificate.
pub fn server_config(certificate: &Issued, alpn: &[&str]) -> Arc<ServerConfig> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[TLS13])
        .unwrap()
        .with_client_cert_verifier(Arc::new(ANYONE))
        .with_single_cert(certificate.chain.clone(), certificate.key())
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|a| a.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// Returns the configuration of a server that takes clients without a certificate.
pub fn public_config(certificate: &Issued, alpn: &[&str]) -> Arc<ServerConfig> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificate.chain.clone(), certificate.key())
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|a| a.as_bytes().to_vec()).collect();
    Arc::new(config)
}

impl TlsClient {
    /// Connects and offers these protocols.
    ///
    /// # Errors
    /// The handshake failed. A client of TLS 1.3 may learn only later that its certificate is
    /// refused.
    pub fn connect(
        address: SocketAddr,
        certificate: Option<&Issued>,
        version: &'static SupportedProtocolVersion,
        alpn: &[&str],
    ) -> io::Result<Self> {
        Self::connect_with(address, &client_config(certificate, version, alpn))
    }

    /// Connects with a configuration, which keeps the sessions that can be resumed.
    ///
    /// # Errors
    /// As `connect`.
    pub fn connect_with(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Self> {
        Self::over(TcpStream::connect(address)?, config)
    }

    /// The handshake on a connection that has been used before.
    ///
    /// # Errors
    /// As `connect`.
    pub fn over(tcp: TcpStream, config: &Arc<ClientConfig>) -> io::Result<Self> {
        Self::start(prepared(tcp)?, config, "ratings.test")
    }

    /// Connects and asks for a server.
    ///
    /// # Errors
    /// As `connect`.
    pub fn connect_to(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        server: &str,
    ) -> io::Result<Self> {
        let tcp = prepared(TcpStream::connect(address)?)?;
        Self::start(tcp, config, server)
    }

    /// Like `connect_to`, but the first bytes come one by one.
    ///
    /// # Errors
    /// As `connect`.
    pub fn connect_dripping(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        server: &str,
    ) -> io::Result<Self> {
        let name = ServerName::try_from(server.to_owned()).unwrap();
        let mut connection = ClientConnection::new(config.clone(), name).unwrap();
        let mut tcp = prepared(TcpStream::connect(address)?)?;
        let mut hello = Vec::new();
        connection.write_tls(&mut hello)?;
        for byte in hello {
            tcp.write_all(&[byte])?;
        }
        Self::finish(connection, tcp)
    }

    fn start(tcp: TcpStream, config: &Arc<ClientConfig>, server: &str) -> io::Result<Self> {
        let name = ServerName::try_from(server.to_owned()).unwrap();
        let connection = ClientConnection::new(config.clone(), name).unwrap();
        Self::finish(connection, tcp)
    }

    fn finish(mut connection: ClientConnection, mut tcp: TcpStream) -> io::Result<Self> {
        while connection.is_handshaking() {
            connection.complete_io(&mut tcp)?;
        }
        Ok(Self {
            reader: BufReader::new(StreamOwned::new(connection, tcp)),
        })
    }

    /// An honest client that speaks only HTTP/1.1.
    pub fn http(address: SocketAddr, certificate: &Issued) -> Self {
        Self::connect(address, Some(certificate), TLS13, &["http/1.1"]).unwrap()
    }

    /// Whether a session was resumed.
    pub fn is_resumed(&self) -> bool {
        self.reader.get_ref().conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The protocol agreed on.
    pub fn alpn(&self) -> Option<String> {
        let name = self.reader.get_ref().conn.alpn_protocol()?;
        Some(String::from_utf8_lossy(name).into_owned())
    }

    /// The chain that the server presented.
    pub fn peer_certificates(&self) -> Vec<CertificateDer<'static>> {
        let chain = self.reader.get_ref().conn.peer_certificates();
        let chain = chain.unwrap_or_default().iter();
        chain.map(|c| c.clone().into_owned()).collect()
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The proxy has gone.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes.as_ref())
    }

    /// Reads the response to a request with this method.
    ///
    /// # Errors
    /// There was no complete response; an alert is the error's text.
    pub fn response(&mut self, method: &str) -> io::Result<Message> {
        read_message(&mut self.reader, Some(method))
    }

    /// Sends a request without a body and reads its response.
    ///
    /// # Errors
    /// As `response`.
    pub fn get(&mut self, target: &str) -> io::Result<Message> {
        self.send(get(target))?;
        self.response("GET")
    }

    /// Reads exactly this many bytes.
    ///
    /// # Errors
    /// There were fewer.
    pub fn read_exact(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// A server that presents any certificate, and remembers what it was sent after the handshake.
pub struct TlsServer {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    connections: usize,
    failed: usize,
    received: Vec<u8>,
}

/// A connection of the server.
pub struct TlsConnection {
    reader: BufReader<StreamOwned<ServerConnection, TcpStream>>,
    seen: Arc<Mutex<Seen>>,
}

impl TlsServer {
    /// An HTTP server that offers these protocols.
    pub fn http(
        certificate: &Issued,
        alpn: &[&str],
        answer: impl Fn(&Message) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        Self::start(certificate, alpn, move |mut connection| {
            while let Ok(request) = connection.request() {
                if connection.send(answer(&request)).is_err() {
                    return;
                }
            }
        })
    }

    /// Serves each connection with `serve` in a thread of its own.
    pub fn start(
        certificate: &Issued,
        alpn: &[&str],
        serve: impl Fn(TlsConnection) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Self::on(listener, certificate, alpn, serve)
    }

    /// The same, with a listener that was made elsewhere.
    pub fn on(
        listener: TcpListener,
        certificate: &Issued,
        alpn: &[&str],
        serve: impl Fn(TlsConnection) + Send + Sync + 'static,
    ) -> Self {
        Self::with(listener, server_config(certificate, alpn), serve)
    }

    /// The same, with a configuration of its own.
    pub fn with(
        listener: TcpListener,
        config: Arc<ServerConfig>,
        serve: impl Fn(TlsConnection) + Send + Sync + 'static,
    ) -> Self {
        let server = Self {
            address: listener.local_addr().unwrap(),
            stopped: Arc::default(),
            seen: Arc::default(),
        };
        let (stopped, seen, serve) = (server.stopped.clone(), server.seen.clone(), Arc::new(serve));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream.and_then(prepared) else {
                    continue;
                };
                let (config, seen, serve) = (config.clone(), seen.clone(), serve.clone());
                std::thread::spawn(move || {
                    if let Some(connection) = TlsConnection::accept(stream, config, seen) {
                        serve(connection);
                    }
                });
            }
        });
        server
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything it could read.
    pub fn received(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap().received).into_owned()
    }

    /// Connections whose handshake succeeded.
    pub fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }

    /// Connections that ended before a byte could be read.
    pub fn refused(&self) -> usize {
        self.seen.lock().unwrap().failed
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Ends the accept loop.
        let _ = TcpStream::connect(self.address);
    }
}

impl TlsConnection {
    fn accept(
        mut tcp: TcpStream,
        config: Arc<ServerConfig>,
        seen: Arc<Mutex<Seen>>,
    ) -> Option<Self> {
        // A test may let its clients wait for long, and a busy machine adds to that.
        tcp.set_read_timeout(Some(PATIENCE * 3)).unwrap();
        let mut connection = ServerConnection::new(config).unwrap();
        while connection.is_handshaking() {
            if connection.complete_io(&mut tcp).is_err() {
                seen.lock().unwrap().failed += 1;
                return None;
            }
        }
        seen.lock().unwrap().connections += 1;
        Some(Self {
            reader: BufReader::new(StreamOwned::new(connection, tcp)),
            seen,
        })
    }

    /// Reads a request.
    ///
    /// # Errors
    /// The connection ended or what came is no request.
    pub fn request(&mut self) -> io::Result<Message> {
        let request = read_message(&mut self.reader, None)?;
        let received = &mut self.seen.lock().unwrap().received;
        received.extend_from_slice(request.head.as_bytes());
        received.extend_from_slice(&request.body);
        Ok(request)
    }

    /// Reads until these bytes have come.
    ///
    /// # Errors
    /// The connection ended, or nothing came for long.
    pub fn read_until(&mut self, end: &[u8]) -> io::Result<()> {
        let (mut seen, mut part) = (Vec::new(), [0; 16 * 1024]);
        while !seen.windows(end.len()).any(|window| window == end) {
            let count = self.reader.read(&mut part)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let kept = seen.len().saturating_sub(end.len());
            seen.drain(..kept);
            seen.extend_from_slice(&part[..count]);
        }
        Ok(())
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The proxy has gone.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes.as_ref())
    }
}

fn prepared(tcp: TcpStream) -> io::Result<TcpStream> {
    tcp.set_read_timeout(Some(PATIENCE))?;
    tcp.set_write_timeout(Some(PATIENCE))?;
    tcp.set_nodelay(true)?;
    Ok(tcp)
}
