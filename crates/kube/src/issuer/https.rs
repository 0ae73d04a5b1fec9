//! One request over HTTPS to a server whose authority is given.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tulle_control::lookup::ISSUER;

/// Longest answer that is read.
const MAX_ANSWER: usize = 256 * 1024;
/// Time limit of connecting.
const CONNECT: Duration = Duration::from_secs(5);
/// Time limit of a whole exchange.
const EXCHANGE: Duration = Duration::from_secs(8);

/// A server.
#[derive(Clone)]
pub struct Https {
    host: String,
    port: u16,
    tls: TlsConnector,
}

impl Https {
    /// The server at `https://host:port`, whose certificate comes from one of these authorities.
    ///
    /// # Errors
    /// The address or an authority is not usable.
    pub fn new(address: &str, authorities: Vec<Vec<u8>>) -> Result<Self, String> {
        let uri: Uri = address.parse().map_err(|e| format!("{address}: {e}"))?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("https"));
        let host = host.ok_or_else(|| format!("{address} must be https://HOST:PORT"))?;
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            let added = roots.add(CertificateDer::from(authority));
            added.map_err(|e| format!("an authority of {address} is not usable: {e}"))?;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(443),
            tls: TlsConnector::from(Arc::new(config)),
        })
    }

    /// Asks once, on a connection of its own: nothing is asked often.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: String,
    ) -> Result<(StatusCode, Bytes), String> {
        let exchange = self.exchange(method, path, headers, body);
        let answer = timeout(EXCHANGE, exchange).await;
        let answer = answer.unwrap_or_else(|_| Err("no answer in time".into()));
        answer.map_err(|why| format!("https://{}:{}{path}: {why}", self.host, self.port))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: String,
    ) -> Result<(StatusCode, Bytes), String> {
        let text = |e: &dyn fmt::Display| e.to_string();
        let tcp = timeout(CONNECT, self.connect()).await;
        let tcp = tcp.map_err(|_| "no connection in time".to_owned())??;
        let name = ServerName::try_from(self.host.clone()).map_err(|e| text(&e))?;
        let tls = self.tls.connect(name, tcp).await;
        let io = TokioIo::new(tls.map_err(|e| text(&e))?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io)
            .await
            .map_err(|e| text(&e))?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|e| text(&e))?;
        let answer = async {
            let answer = sender.send_request(request).await.map_err(|e| text(&e))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            let body = body.map_err(|e| e.to_string())?;
            Ok((status, body.to_bytes()))
        };
        tokio::pin!(connection, answer);
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            // It may end with the answer's last byte: that is in `answer` then.
            ended = &mut connection => match ended {
                Ok(()) => answer.await,
                Err(e) => Err(text(&e)),
            },
        }
    }

    /// Connects to an address of the host. Its look-up takes no more threads than it has places.
    async fn connect(&self) -> Result<TcpStream, String> {
        let found = ISSUER.resolve(&self.host, self.port).await?;
        let connected = TcpStream::connect(found.as_slice()).await;
        connected.map_err(|e| e.to_string())
    }
}

impl fmt::Debug for Https {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use tokio::net::TcpSocket;

    #[tokio::test]
    async fn a_look_up_that_hangs_takes_one_thread_whoever_asks() {
        // Connections to a port that is taken and not listened on are refused.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = format!("https://{}", socket.local_addr().unwrap());
        let server = Https::new(&address, Vec::new()).unwrap();
        let ask = async || {
            let asked = server.ask(Method::GET, "/", &[], String::new()).await;
            asked.unwrap_err()
        };
        let (answer, asked) = mpsc::channel::<()>();
        let (begin, begun) = tokio::sync::oneshot::channel();
        let hanging = tokio::spawn(ISSUER.run(move || {
            let _ = begin.send(());
            let _ = asked.recv();
        }));
        begun.await.unwrap();
        let why = ask().await;
        assert!(why.contains("no connection in time"), "{why}");
        drop(answer);
        hanging.await.unwrap().unwrap();
        let why = ask().await;
        assert!(why.contains("refused"), "{why}");
    }
}
