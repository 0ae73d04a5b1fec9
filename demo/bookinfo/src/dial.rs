//! How `load` gets its connections: plain or by TLS, HTTP/1.1 or HTTP/2.

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

pub(crate) type Ask = Request<Empty<Bytes>>;

/// Why there is no connection.
pub(crate) enum Failure {
    Unresolved(String),
    Refused(String),
}

/// Settings for all connections.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Manner {
    /// HTTP/2: over TLS if the server agrees, without TLS from the first byte
    #[arg(long)]
    http2: bool,
    /// Host that connections go to, whatever the URLs say
    #[arg(long)]
    connect: Option<String>,
    /// Certificates (PEM) of whom https is to lead to
    #[arg(long)]
    roots: Option<PathBuf>,
}

/// The way to where a URL is answered.
#[derive(Clone)]
pub(crate) struct Dial {
    url: Uri,
    address: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    http2: bool,
}

impl Dial {
    pub(crate) fn new(url: &Uri, manner: &Manner) -> Result<Self, String> {
        let wrong = || format!("{url}: expected http://host:port/path or https://host:port/path");
        let secure = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let host = url.host().ok_or_else(wrong)?;
        let port = url.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let tls = match (secure, &manner.roots) {
            (false, _) => None,
            (true, None) => return Err(format!("{url}: --roots says whom to believe")),
            (true, Some(roots)) => {
                let name = ServerName::try_from(host.to_owned());
                let name = name.map_err(|e| format!("{url}: {e}"))?;
                Some((connector(roots, manner.http2)?, name))
            }
        };
        Ok(Self {
            url: url.clone(),
            address: format!("{}:{port}", manner.connect.as_deref().unwrap_or(host)),
            tls,
            http2: manner.http2,
        })
    }

    /// The request for the URL.
    pub(crate) fn request(&self) -> Result<Ask, hyper::http::Error> {
        if self.http2 {
            return Request::get(self.url.clone()).body(Empty::new());
        }
        let host = self.url.authority().map_or("", |a| a.as_str());
        let path = self.url.path_and_query().map_or("/", |p| p.as_str());
        Request::get(path).header("host", host).body(Empty::new())
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> Result<Connection, Failure> {
        let found = tokio::net::lookup_host(&self.address).await;
        let found = found.map_err(|e| Failure::Unresolved(e.to_string()))?;
        let found: Vec<_> = found.collect();
        let stream = TcpStream::connect(found.as_slice()).await;
        let stream = stream.map_err(|e| refused(&e))?;
        let Some((connector, name)) = &self.tls else {
            return self.begin(stream).await;
        };
        let stream = connector.connect(name.clone(), stream).await;
        self.begin(stream.map_err(|e| refused(&e))?).await
    }

    async fn begin(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Connection, Failure> {
        let stream = TokioIo::new(stream);
        if self.http2 {
            let opened = http2::handshake(TokioExecutor::new(), stream).await;
            let (sender, connection) = opened.map_err(|e| refused(&e))?;
            tokio::spawn(connection);
            return Ok(Connection::Two(sender));
        }
        let opened = http1::handshake(stream).await;
        let (sender, connection) = opened.map_err(|e| refused(&e))?;
        tokio::spawn(connection);
        Ok(Connection::One(sender))
    }
}

fn refused(why: &dyn Display) -> Failure {
    Failure::Refused(why.to_string())
}

fn connector(roots: &Path, http2: bool) -> Result<TlsConnector, String> {
    let wrong = |e: &dyn Display| format!("--roots {}: {e}", roots.display());
    let mut store = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(roots).map_err(|e| wrong(&e))? {
        let added = store.add(root.map_err(|e| wrong(&e))?);
        added.map_err(|e| wrong(&e))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| e.to_string())?;
    let mut config = builder.with_root_certificates(store).with_no_client_auth();
    let protocol: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// One that is there.
pub(crate) enum Connection {
    One(http1::SendRequest<Empty<Bytes>>),
    Two(http2::SendRequest<Empty<Bytes>>),
}

impl Connection {
    /// Asks. What was not sent is given back.
    pub(crate) async fn ask(
        &mut self,
        request: Ask,
    ) -> Result<Response<Incoming>, TrySendError<Ask>> {
        match self {
            Self::One(sender) => sender.try_send_request(request).await,
            Self::Two(sender) => sender.try_send_request(request).await,
        }
    }

    /// Whether it can be asked again.
    pub(crate) async fn goes_on(&mut self) -> bool {
        match self {
            Self::One(sender) => sender.ready().await.is_ok(),
            Self::Two(sender) => sender.ready().await.is_ok(),
        }
    }
}
