//! A joined host's own certificate: from the token, then renewed for as long as it stays.

use crate::client::{Objects, Rpc, objects_over};
use crate::failure::{Failure, OrFail, Result};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;
use tulle_api::v1::SignRequest;
use tulle_api::v1::certificates_client::CertificatesClient;
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_tls::controller::client_config;
use tulle_tls::enrol::{Enrolled, SigningRequest};

const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Between tries to renew while the controller is away.
const RETRY: Duration = Duration::from_secs(10);
const BUFFER: usize = 64 * 1024;

/// How the controller is reached and known.
#[derive(Clone)]
struct Controller {
    address: SocketAddr,
    fingerprint: String,
    trust_domain: TrustDomain,
}

/// This host as the mesh knows it.
pub(crate) struct Node {
    controller: Controller,
    identity: SpiffeId,
    present: Arc<Mutex<Enrolled>>,
}

impl Node {
    /// Spends the token.
    pub(crate) async fn enrol(
        address: SocketAddr,
        fingerprint: &str,
        trust_domain: TrustDomain,
        token: &str,
    ) -> Result<Rc<Self>> {
        let controller = Controller {
            address,
            fingerprint: fingerprint.to_owned(),
            trust_domain,
        };
        // The controller decides the identity by the token; the request must only be well formed.
        let asked = SpiffeId::parse(&format!(
            "spiffe://{}/node/joining",
            controller.trust_domain
        ))
        .or_fail(|| "the trust domain makes no identity".to_owned())?;
        let channel = controller.clone().channel(None);
        let enrolled = sign(channel, &asked, token)
            .await
            .map_err(|failure| advise(failure, address))?;
        let identity = enrolled.identity.spiffe_id().clone();
        if !identity.as_str().contains("/node/") {
            return Err(
                Failure::input(format!("the token is for {identity}, not for a host"))
                    .fix("`tulle token create node/NAME` on the controller's host"),
            );
        }
        Ok(Rc::new(Self {
            controller,
            identity,
            present: Arc::new(Mutex::new(enrolled)),
        }))
    }

    /// Its SPIFFE id.
    pub(crate) fn identity(&self) -> &SpiffeId {
        &self.identity
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        self.identity.name()
    }

    /// The objects service over mutual TLS, always with the present certificate.
    pub(crate) fn objects(&self) -> Objects {
        let present = Arc::clone(&self.present);
        objects_over(self.controller.clone().channel(Some(present)))
    }

    /// Renews at two thirds of the certificate's life, for ever.
    pub(crate) async fn renew(self: Rc<Self>) {
        loop {
            sleep(self.life()).await;
            let channel = self.controller.clone();
            let channel = channel.channel(Some(Arc::clone(&self.present)));
            match sign(channel, &self.identity, "").await {
                Ok(enrolled) => {
                    *self.present.lock().unwrap_or_else(PoisonError::into_inner) = enrolled;
                    tracing::info!("renewed the host's certificate");
                }
                Err(failure) => {
                    tracing::warn!("{failure}");
                    sleep(RETRY).await;
                }
            }
        }
    }

    fn life(&self) -> Duration {
        life(&self.present.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What to do when no certificate was given.
fn advise(failure: Failure, address: SocketAddr) -> Failure {
    if failure.to_string().contains("UnknownIssuer") {
        return Failure::new(format!("the controller at {address} is another one"))
            .because("the certificate authority of its mesh has not the fingerprint given")
            .fix(
                "compare --controller and --ca-fingerprint with what `tulle token create` printed",
            );
    }
    failure.fix("`tulle token create node/NAME` on the controller's host prints the command with a new token")
}

/// How long a certificate serves from now before it is renewed.
fn life(enrolled: &Enrolled) -> Duration {
    let identity = &enrolled.identity;
    let whole = identity.not_after().duration_since(identity.not_before());
    let due = identity.not_before() + whole.unwrap_or_default() * 2 / 3;
    due.duration_since(SystemTime::now()).unwrap_or_default()
}

async fn sign(channel: Channel, id: &SpiffeId, token: &str) -> Result<Enrolled> {
    let request = SigningRequest::new(id).or_fail(|| "cannot ask for a certificate".to_owned())?;
    let answer = CertificatesClient::new(channel)
        .sign(SignRequest {
            csr_der: request.csr_der.clone(),
            join_token: token.to_owned(),
        })
        .await
        .rpc(|| "the controller gives no certificate".to_owned())?;
    request
        .complete(answer.chain_der, answer.trust_bundle_der)
        .or_fail(|| "the controller's certificate cannot be used".to_owned())
}

impl Controller {
    /// Connects when used, with the certificate of that moment.
    fn channel(self, present: Option<Arc<Mutex<Enrolled>>>) -> Channel {
        let connect = service_fn(move |_: Uri| {
            let (controller, present) = (self.clone(), present.clone());
            async move { controller.connect(present).await.map(TokioIo::new) }
        });
        Endpoint::from_static("http://controller")
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(5))
            .connect_with_connector_lazy(connect)
    }

    async fn connect(self, present: Option<Arc<Mutex<Enrolled>>>) -> io::Result<DuplexStream> {
        let (config, life) = {
            let present = present
                .as_ref()
                .map(|p| p.lock().unwrap_or_else(PoisonError::into_inner));
            let identity = present.as_ref().map(|p| &p.identity);
            let config = client_config(&self.fingerprint, &self.trust_domain, identity)
                .map_err(io::Error::other)?;
            (config, present.as_ref().map_or(HANDSHAKE_TIME, |p| life(p)))
        };
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::IpAddress(self.address.ip().into());
        let connecting = async {
            let tcp = TcpStream::connect(self.address).await?;
            tcp.set_nodelay(true)?;
            connector.connect(name, tcp).await
        };
        let mut tls = timeout(HANDSHAKE_TIME, connecting).await??;
        // The controller takes nothing over a connection whose certificate has expired. Ending it
        // soon after the renewal makes the client connect again, with the new one.
        let (near, mut far) = duplex(BUFFER);
        let until = life + RETRY * 3;
        tokio::spawn(async move {
            // However it ends, the client sees the end of its side.
            let _ = timeout(until, copy_bidirectional(&mut tls, &mut far)).await;
        });
        Ok(near)
    }
}
