//! The other side of an HTTP/2 connection, by the `h2` crate: applications and clients that can do
//! what real ones can. Raw frames are for the tests that need what it does not do.

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use rustls::ServerConfig;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// The handler of a request.
type Serve = dyn Fn(Request<RecvStream>, SendResponse<Bytes>) -> Pin<Box<dyn Future<Output = ()> + Send>>
    + Send
    + Sync;

/// An application that speaks HTTP/2 without TLS, and nothing else.
pub struct Http2Server {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Http2Server {
    /// Serves each request with `serve` in a task of its own.
    pub async fn start<F>(
        serve: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::with(h2::server::Builder::new(), serve).await
    }

    /// Like `start`, with other settings.
    pub async fn with<F>(
        builder: h2::server::Builder,
        serve: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Self::on(listener, None, builder, serve)
    }

    /// Starts a server on a given listener, with TLS if a configuration is given.
    pub fn on<F>(
        listener: std::net::TcpListener,
        tls: Option<Arc<ServerConfig>>,
        builder: h2::server::Builder,
        serve: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let tls = tls.map(TlsAcceptor::from);
        let serve: Arc<Serve> = Arc::new(move |request, respond| Box::pin(serve(request, respond)));
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        let task = tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                // A client that has gone is noticed by who reads.
                let _ = tcp.set_nodelay(true);
                let (builder, serve) = (builder.clone(), serve.clone());
                match tls.clone() {
                    None => drop(tokio::spawn(connection(tcp, builder, serve))),
                    Some(tls) => drop(tokio::spawn(async move {
                        if let Ok(inside) = tls.accept(tcp).await {
                            connection(inside, builder, serve).await;
                        }
                    })),
                }
            }
        });
        Self {
            address,
            connections,
            task,
        }
    }

    /// Answers with the request's body as it comes, its trailers, and its head's fields under names
    /// that begin with `got-`.
    pub async fn echo() -> Self {
        Self::start(echo).await
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Http2Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The handler of [`Http2Server::echo`].
pub async fn echo(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let mut response = Response::new(());
    let path = request.uri().path_and_query().map_or("", |p| p.as_str());
    let headers = response.headers_mut();
    headers.insert("got-method", request.method().as_str().parse().unwrap());
    headers.insert("got-path", path.parse().unwrap());
    if let Some(authority) = request.uri().authority() {
        headers.insert("got-authority", authority.as_str().parse().unwrap());
    }
    for (name, value) in request.headers() {
        let name: http::HeaderName = format!("got-{name}").parse().unwrap();
        headers.append(name, value.clone());
    }
    let mut body = request.into_body();
    let Ok(mut send) = respond.send_response(response, body.is_end_stream()) else {
        return;
    };
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        if send_all(&mut send, data).await.is_err() {
            return;
        }
    }
    match body.trailers().await {
        Ok(Some(trailers)) => drop(send.send_trailers(trailers)),
        _ => drop(send.send_data(Bytes::new(), true)),
    }
}

async fn connection(
    tcp: impl AsyncRead + AsyncWrite + Unpin,
    builder: h2::server::Builder,
    serve: Arc<Serve>,
) {
    let Ok(mut connection) = builder.handshake(tcp).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(serve(request, respond));
    }
}

/// Sends as much as there is, as credit comes.
///
/// # Errors
/// The stream was reset or its connection ended.
pub async fn send_all(send: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), h2::Error> {
    while !data.is_empty() {
        send.reserve_capacity(data.len());
        let capacity = std::future::poll_fn(|cx| send.poll_capacity(cx)).await;
        let count = match capacity {
            Some(count) => count?.min(data.len()),
            None => return Err(h2::Reason::CANCEL.into()),
        };
        send.send_data(data.split_to(count), false)?;
    }
    Ok(())
}

/// A client's connection.
pub struct Http2Client {
    /// Opens streams.
    pub send: SendRequest<Bytes>,
    task: JoinHandle<()>,
}

impl Http2Client {
    /// Connects and speaks HTTP/2 at once (prior knowledge).
    pub async fn connect(address: SocketAddr) -> Self {
        Self::with(h2::client::Builder::new(), address).await
    }

    /// Like `connect`, with other settings.
    pub async fn with(builder: h2::client::Builder, address: SocketAddr) -> Self {
        let tcp = TcpStream::connect(address).await.unwrap();
        tcp.set_nodelay(true).unwrap();
        Self::over(builder, tcp).await
    }

    /// Like `connect`; none if the connection is closed at once.
    pub async fn try_connect(address: SocketAddr) -> Option<Self> {
        let tcp = TcpStream::connect(address).await.ok()?;
        let (send, connection) = h2::client::handshake(tcp).await.ok()?;
        let task = tokio::spawn(async move { drop(connection.await) });
        Some(Self { send, task })
    }

    /// Over a connection that is there already.
    pub async fn over(
        builder: h2::client::Builder,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Self {
        let (send, connection) = builder.handshake(io).await.unwrap();
        let task = tokio::spawn(async move { drop(connection.await) });
        Self { send, task }
    }

    /// Opens a stream; the body follows unless `end`.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn open(
        &self,
        request: Request<()>,
        end: bool,
    ) -> Result<(h2::client::ResponseFuture, SendStream<Bytes>), h2::Error> {
        let mut ready = self.send.clone().ready().await?;
        ready.send_request(request, end)
    }

    /// One exchange with a body and trailers, if there are any.
    ///
    /// # Errors
    /// The stream was reset or the connection ended.
    pub async fn exchange(
        &self,
        request: Request<()>,
        body: impl Into<Bytes>,
        trailers: Option<HeaderMap>,
    ) -> Result<Answered, h2::Error> {
        let body = body.into();
        let end = body.is_empty() && trailers.is_none();
        let (response, mut send) = self.open(request, end).await?;
        let upload = async {
            if !end {
                send_all(&mut send, body).await?;
                match trailers {
                    Some(trailers) => send.send_trailers(trailers)?,
                    None => send.send_data(Bytes::new(), true)?,
                }
            }
            Ok::<_, h2::Error>(())
        };
        let (uploaded, answered) = tokio::join!(upload, async { read(response.await?).await });
        uploaded.and(answered)
    }

    /// One GET.
    ///
    /// # Errors
    /// As `exchange`.
    pub async fn get(&self, path: &str) -> Result<Answered, h2::Error> {
        self.exchange(request("GET", path), "", None).await
    }
}

impl Drop for Http2Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A whole response.
pub struct Answered {
    /// Its head.
    pub head: Response<()>,
    /// Its body.
    pub body: Vec<u8>,
    /// Its trailers; empty if there are none.
    pub trailers: HeaderMap,
}

impl Answered {
    /// The status.
    pub fn status(&self) -> u16 {
        self.head.status().as_u16()
    }

    /// A field's first value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers().get(name).and_then(|v| v.to_str().ok())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Reads a response to its end.
///
/// # Errors
/// It was cut.
pub async fn read(response: Response<RecvStream>) -> Result<Answered, h2::Error> {
    let (head, mut stream) = response.into_parts();
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        body.extend_from_slice(&data);
    }
    let trailers = stream.trailers().await?.unwrap_or_default();
    Ok(Answered {
        head: Response::from_parts(head, ()),
        body,
        trailers,
    })
}

/// A request to the service.
pub fn request(method: &str, path: &str) -> Request<()> {
    Request::builder()
        .method(method)
        .uri(format!("http://{}{path}", crate::SERVER))
        .body(())
        .unwrap()
}
