//! HTTPS for the API server, shared by the controller's servers: limits connections and their lifetime,
//! bounds the memory of request bodies, and renews the certificate, which the mesh's root signs.

use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::Value;
use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tulle_control::feed::Feed;
use tulle_control::memory_limit;
use tulle_net::places::{self, Class, HeldPlace, PlaceLimits, Places, Stage};

/// Connections of a port served at a time. Nothing tells the API server from others before its request, so it may
/// take the place of the source that holds most.
const CONNECTIONS: PlaceLimits = PlaceLimits {
    all: 256,
    source: 128,
    reserved: 8,
};
/// Most bytes that requests' bodies, and what is read from them, may take at a time. Where memory is limited, they
/// take an eighth of it at the most.
const BODIES: usize = 32 << 20;
/// Most bytes of a body while memory is short. Nearly all reviews are smaller.
const SHORT_BODY: usize = 64 << 10;
/// Most bytes of a request's head, which are also what a connection holds before its body is read.
const MAX_HEAD: usize = 16 * 1024;
/// Time limit of a handshake, of a request's head, and of its body.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time after which a connection is told to end, and then the time it has to do so. The API server waits for a
/// webhook for at most 30 seconds, and for others for a minute.
const LIFETIME: Duration = Duration::from_secs(60);
/// Validity of the server's certificate.
const VALIDITY: Duration = Duration::from_secs(7 * 24 * 3600);

pub(crate) type HttpResponse = Response<Full<Bytes>>;

/// TLS with a certificate for these names, for clients that the verifier lets in.
pub(crate) fn config(
    feed: Feed,
    names: Vec<String>,
    clients: Arc<dyn ClientCertVerifier>,
) -> Result<ServerConfig, String> {
    let resolver = Arc::new(Renewed {
        feed,
        names,
        present: Mutex::default(),
    });
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let mut config = config
        .with_client_cert_verifier(clients)
        .with_cert_resolver(resolver);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Serves each connection by itself, as [`Places`] allows.
pub(crate) async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream, Arc<HeldPlace>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let places = Places::new(CONNECTIONS);
    places.accept(listener, places::node_class(), serve).await;
}

/// Answers the requests of a connection.
pub(crate) async fn connection<S, F>(
    stream: S,
    place: Arc<HeldPlace>,
    answer: impl Fn(Request<Incoming>) -> F + Send + Sync,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = HttpResponse> + Send,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        let place = place.clone();
        // A connection counts as waiting until its body has arrived, so that slow senders are evicted first.
        let is_whole = request.body().is_end_stream();
        request.extensions_mut().insert(place.clone());
        let answered = answer(request);
        async move {
            if is_whole {
                place.reach(Stage::Served);
            }
            let answered = answered.await;
            place.reach(Stage::Silent);
            Ok::<_, Infallible>(answered)
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE)
        .max_buf_size(MAX_HEAD);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    if timeout(LIFETIME, connection.as_mut()).await.is_err() {
        // A request in progress is still answered; the next one comes on another connection.
        connection.as_mut().graceful_shutdown();
        let _ = timeout(LIFETIME, connection).await;
    }
}

/// The memory of all bodies of a server, divided among those who send them.
#[derive(Clone)]
pub struct Bodies(Places);

impl Default for Bodies {
    fn default() -> Self {
        let limit = memory_limit::limit().and_then(|limit| usize::try_from(limit / 8).ok());
        let all = limit.map_or(BODIES, |limit| limit.min(BODIES));
        // A source keeps within its share of bytes, so that the API server always finds room.
        Self(Places::new(PlaceLimits {
            all,
            source: all / 4 * 3,
            reserved: 0,
        }))
    }
}

/// A body, which counts until it is dropped.
pub(crate) struct Body {
    pub(crate) bytes: Vec<u8>,
    room: HeldPlace,
}

/// Why a body is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The body did not come in time, or is too long.
    Incomplete,
    /// Others send too much at the same time, or reading the body would take too much memory.
    NoMemory,
    /// The controller is short of memory, and it is not a small one.
    Short,
}

impl Bodies {
    /// Reads the body of a request, of at most so many bytes. From then on its connection is served.
    pub(crate) async fn read(
        &self,
        source: IpAddr,
        request: Request<Incoming>,
        most: usize,
    ) -> Result<Body, Unread> {
        let place = request.extensions().get::<Arc<HeldPlace>>().cloned();
        let mut body = request.into_body();
        // The announced length, so that memory is reserved once and nothing is moved.
        let length = body.size_hint().exact().unwrap_or_default();
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > most {
            return Err(Unread::Incomplete);
        }
        let most = match memory_limit::is_short() {
            true => most.min(SHORT_BODY),
            false => most,
        };
        if length > most {
            return Err(Unread::Short);
        }
        let room = self.0.take_weight(source, Class::Anyone, length);
        let room = room.ok_or(Unread::NoMemory)?;
        let mut bytes = Vec::with_capacity(length);
        let reading = async {
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|_| Unread::Incomplete)?;
                let Some(data) = frame.data_ref() else {
                    continue;
                };
                let wanted = bytes.len() + data.len();
                if wanted > most {
                    return Err(match most {
                        SHORT_BODY => Unread::Short,
                        _ => Unread::Incomplete,
                    });
                }
                if wanted > bytes.capacity() {
                    // While the vector grows, the old one exists beside the new one for a moment.
                    let more = wanted.max(2 * bytes.capacity()) - bytes.capacity();
                    if !room.grow(more) {
                        return Err(Unread::NoMemory);
                    }
                    bytes.reserve_exact(bytes.capacity() + more - bytes.len());
                }
                bytes.extend_from_slice(data);
            }
            Ok(())
        };
        match timeout(HANDSHAKE, room.during(reading)).await {
            Ok(Some(read)) => read?,
            Ok(None) => return Err(Unread::NoMemory),
            Err(_) => return Err(Unread::Incomplete),
        }
        if let Some(place) = place {
            place.reach(Stage::Served);
        }
        Ok(Body { bytes, room })
    }
}

impl Body {
    /// Makes room for the value that is read from the body. From then on the body keeps its room to the end.
    pub(crate) fn make_room(&self, bytes: usize) -> Result<(), Unread> {
        // First, so that its room cannot go while it is made larger.
        self.room.reach(Stage::Pinned);
        match self.room.grow(bytes) {
            true => Ok(()),
            false => Err(Unread::NoMemory),
        }
    }
}

pub(crate) fn text(status: StatusCode, text: &str) -> HttpResponse {
    let mut response = Response::new(Full::from(text.to_owned()));
    *response.status_mut() = status;
    response
}

pub(crate) fn json(status: StatusCode, value: &Value) -> HttpResponse {
    let mut response = text(status, &value.to_string());
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A certificate of the mesh's root for a server's names. It is made when it is first needed, again after two
/// thirds of its life, when the root changes, and when the clock has been set back.
struct Renewed {
    feed: Feed,
    names: Vec<String>,
    present: Mutex<Option<Present>>,
}

struct Present {
    key: Arc<CertifiedKey>,
    /// From when it was made until it is renewed. A clock that shows less was set back: the certificate may not be
    /// valid yet.
    in_use: Range<SystemTime>,
    /// Fingerprint of the root that it comes from.
    root: String,
}

impl Present {
    /// Takes a certificate that was made at this time.
    fn new(key: CertifiedKey, root: String, now: SystemTime) -> Self {
        Self {
            key: Arc::new(key),
            in_use: now..now + VALIDITY * 2 / 3,
            root,
        }
    }

    fn is_good(&self, root: &str, now: SystemTime) -> bool {
        self.in_use.contains(&now) && self.root == root
    }
}

impl Renewed {
    fn make(&self) -> Result<CertifiedKey, String> {
        let (chain, key) = self.feed.server_certificate(&self.names, VALIDITY)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key));
        let key = aws_lc_rs::sign::any_ecdsa_type(&key).map_err(|e| e.to_string())?;
        let chain = chain.into_iter().map(CertificateDer::from).collect();
        Ok(CertifiedKey::new(chain, key))
    }
}

impl ResolvesServerCert for Renewed {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemTime::now();
        let root = self.feed.root_fingerprint();
        if !present.as_ref().is_some_and(|p| p.is_good(&root, now)) {
            match self.make() {
                Ok(key) => *present = Some(Present::new(key, root, now)),
                Err(error) => tracing::error!(error, "no certificate for the controller's servers"),
            }
        }
        present.as_ref().map(|p| p.key.clone())
    }
}

impl fmt::Debug for Renewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewed")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_a_clock_that_was_ahead_is_made_anew() {
        let key = rcgen::KeyPair::generate().unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = aws_lc_rs::sign::any_ecdsa_type(&key).unwrap();
        let now = SystemTime::now();
        let ahead = now + Duration::from_secs(3600);
        let made = Present::new(CertifiedKey::new(Vec::new(), key), "root".to_owned(), ahead);
        assert!(made.is_good("root", ahead));
        assert!(!made.is_good("root", now), "it is not valid yet");
        assert!(!made.is_good("root", ahead + VALIDITY * 2 / 3));
        assert!(!made.is_good("another", ahead));
    }
}
