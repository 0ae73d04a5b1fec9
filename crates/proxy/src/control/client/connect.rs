//! The connection to the controller: the trust anchors by which it is known, and TLS with this proxy's certificate.

use super::error::{ControlError, causes};
use super::{ControlClient, Sink};
use crate::control::dial::{self, Answering, Stream};
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tulle_net::socket::KeepAlive;
use tulle_tls::controller::Anchor;
use tulle_tls::{Identity, TrustBundle};

impl<S: Sink> ControlClient<S> {
    /// Returns the trust anchors for the controller: those from the start, and the roots received
    /// since.
    fn anchor(&self) -> Result<Anchor, ControlError> {
        let first = self.first_anchor();
        let Some(enrolled) = &self.enrolled else {
            return first;
        };
        let told = Anchor::Bundle(enrolled.bundle.clone());
        Ok(match first {
            // Names the successor of the roots that this proxy was told, or one that was replaced: the process before may
            // have ended before the replacement.
            Ok(Anchor::Fingerprint(fingerprint)) => Anchor::Successor {
                told: enrolled.bundle.clone(),
                fingerprint,
            },
            Ok(first) => Anchor::Any(vec![told, first]),
            // The file may be in the middle of a replacement.
            Err(_) => told,
        })
    }

    fn first_anchor(&self) -> Result<Anchor, ControlError> {
        let Some(path) = &self.control.trust_bundle else {
            return Ok(Anchor::Fingerprint(self.control.ca_fingerprint.clone()));
        };
        let failed = |why: String| ControlError::Certificate(format!("{}: {why}", path.display()));
        let text = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
        let bundle = TrustBundle::from_pem(&text).map_err(|e| failed(e.to_string()))?;
        Ok(Anchor::Bundle(bundle))
    }

    /// Connects with the present certificate, if it is valid.
    pub(super) fn connect(
        &self,
    ) -> Result<impl Future<Output = Result<Channel, ControlError>> + Send + use<S>, ControlError>
    {
        let identity = self
            .enrolled
            .as_ref()
            .filter(|_| self.has_valid_certificate());
        self.connect_as(identity.map(|e| &e.identity))
    }

    /// Connects with this certificate, or with none.
    pub(super) fn connect_as(
        &self,
        identity: Option<&Identity>,
    ) -> Result<impl Future<Output = Result<Channel, ControlError>> + Send + use<S>, ControlError>
    {
        let config =
            tulle_tls::controller::client_config(self.anchor()?, &self.trust_domain, identity)
                .map_err(|e| ControlError::Certificate(e.to_string()))?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let (address, sparing) = (self.control.address.clone(), self.control.sparing);
        let service = dial::connector(move || {
            let (connector, address) = (connector.clone(), address.clone());
            async move {
                let tcp = dial::tcp(&address).await?;
                tcp.set_nodelay(true)?;
                if sparing {
                    KeepAlive::PROXY_OF_HOST.apply(&tcp)?;
                }
                // The server name is not used: the SPIFFE id identifies the controller.
                let name = rustls::pki_types::ServerName::IpAddress(tcp.peer_addr()?.ip().into());
                let answering = Answering::new(tcp, sparing);
                let tls = connector.connect(name, answering).await?;
                Ok(Box::new(tls) as Box<dyn Stream>)
            }
        });
        let mut endpoint =
            Endpoint::from_static("http://controller").connect_timeout(Duration::from_secs(5));
        if !sparing {
            endpoint = endpoint
                .http2_keep_alive_interval(Duration::from_secs(10))
                .keep_alive_timeout(Duration::from_secs(5));
        }
        Ok(async move {
            let connected = endpoint.connect_with_connector(service).await;
            connected.map_err(|e| match dial::is_refused(&e) {
                true => ControlError::Away(causes(&e)),
                false => ControlError::Connect(causes(&e)),
            })
        })
    }
}
