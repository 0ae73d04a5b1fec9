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
    /// since. A fingerprint counts until then: a root that was replaced stays named by it, but speaks for no controller.
    fn anchor(&self) -> Result<Anchor, ControlError> {
        let first = self.first_anchor();
        let Some(enrolled) = &self.enrolled else {
            return first;
        };
        let told = Anchor::Bundle(enrolled.bundle.clone());
        if self.roots_told && self.control.trust_bundle.is_none() {
            return Ok(told);
        }
        Ok(match first {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::publish::Publisher;
    use tulle_api::v1;
    use tulle_model::bootstrap::{Bootstrap, Control};
    use tulle_tls::testing::TestCa;

    #[tokio::test]
    async fn a_fingerprint_counts_until_the_controller_has_told_its_roots() {
        let (old, new) = (TestCa::new("old"), TestCa::new("new"));
        let id = "spiffe://tulle.local/svc/a";
        let issued = new.issue(id);
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("identity");
        let parts = [&issued.key_pem, &issued.chain_pem, new.pem()].map(str::to_owned);
        let [key, chain, bundle] = parts;
        let kept = format!("{key}\n# chain\n{chain}\n# trust bundle\n{bundle}");
        std::fs::write(&cache, kept).unwrap();
        let bootstrap = serde_json::json!({ "identity": id });
        let bootstrap: Bootstrap = serde_json::from_value(bootstrap).unwrap();
        let control = serde_json::json!({
            "address": "127.0.0.1:1",
            "identityCache": cache,
            "caFingerprint": tulle_tls::fingerprint(old.der()),
        });
        let control: Control = serde_json::from_value(control).unwrap();
        let publisher = Publisher::new(bootstrap.identity.clone());
        let mut client = ControlClient::new(&bootstrap, control, publisher);
        assert!(client.enrolled.is_some());
        // The process before may have ended before the roots were replaced.
        assert!(matches!(client.anchor(), Ok(Anchor::Any(_))));
        let root = v1::trust::Root {
            certificate_der: new.der().to_vec(),
            ..Default::default()
        };
        let told = v1::Trust { roots: vec![root] };
        assert_eq!(client.believe(told), Ok(false));
        assert!(matches!(client.anchor(), Ok(Anchor::Bundle(_))));
    }
}
