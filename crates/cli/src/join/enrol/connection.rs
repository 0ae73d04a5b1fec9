//! The connection of a joined host to its controller: mutual TLS with the certificate of the moment, and another once
//! that was renewed.

use super::certificate::{Present, lock};
use super::renewal::RETRY;
use crate::supervise::line::Line;
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tulle_model::identity::TrustDomain;
use tulle_net::socket::KeepAlive;
use tulle_proxy::control::dial::{self, Answering, Stream};
use tulle_tls::controller::{Anchor, client_config};

const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
const BUFFER: usize = 64 * 1024;

/// How the controller is reached and known.
#[derive(Clone)]
pub(crate) struct Controller {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Fingerprint of its authority.
    pub(crate) fingerprint: String,
    /// The mesh's trust domain.
    pub(crate) trust_domain: TrustDomain,
    /// The line to it.
    pub(crate) line: Arc<Line>,
    /// This host may start without its answer.
    pub(crate) may_be_away: bool,
}

impl Controller {
    /// Connects when used, with the certificate of that moment.
    pub(super) fn channel(self, present: Option<Arc<Mutex<Present>>>) -> Channel {
        let connect = dial::connector(move || {
            let (controller, present) = (self.clone(), present.clone());
            async move {
                let line = Arc::clone(&controller.line);
                let connected = controller.connect(present).await;
                let stream = connected.inspect_err(|_| line.fail())?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }
        });
        Endpoint::from_static("http://controller").connect_with_connector_lazy(connect)
    }

    async fn connect(self, present: Option<Arc<Mutex<Present>>>) -> io::Result<DuplexStream> {
        let (config, until) = {
            let present = present.as_ref().map(|p| lock(p));
            let identity = present.as_ref().map(|p| &p.enrolled.identity);
            let fingerprint = self.fingerprint.clone();
            // The root may have been replaced since this host joined, or while it was away; then the operator names the new one.
            let anchor = match &present {
                Some(p) => Anchor::Successor {
                    told: p.enrolled.bundle.clone(),
                    fingerprint,
                },
                None => Anchor::Fingerprint(fingerprint),
            };
            let config =
                client_config(anchor, &self.trust_domain, identity).map_err(io::Error::other)?;
            // The controller takes nothing over a connection whose certificate has expired. Ending
            // it soon after the renewal makes the client connect again, with the new one.
            let until = present.map_or(HANDSHAKE_TIME, |p| (p.due() + RETRY * 3).min(p.left()));
            (config, until)
        };
        let changed = self.line.changed();
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::IpAddress(self.address.ip().into());
        let connecting = async {
            let tcp = TcpStream::connect(self.address).await?;
            tcp.set_nodelay(true)?;
            KeepAlive::HOST.apply(&tcp)?;
            // The supervisor answers changes that its sidecars are to hear of.
            connector.connect(name, Answering::new(tcp, true)).await
        };
        let mut tls = timeout(HANDSHAKE_TIME, connecting).await??;
        let (near, mut far) = duplex(BUFFER);
        tokio::spawn(async move {
            // However it ends, the client sees the end of its side.
            tokio::select! {
                _ = timeout(until, copy_bidirectional(&mut tls, &mut far)) => {}
                () = changed => {}
            }
        });
        Ok(near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::objects_over;
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject;
    use std::time::SystemTime;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tulle_api::v1::WatchRequest;
    use tulle_tls::enrol::Enrolled;
    use tulle_tls::testing::TestCa;

    #[tokio::test]
    async fn a_connection_that_cannot_be_made_is_noted() {
        let line = Arc::new(Line::default());
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let controller = Controller {
            address: nobody.local_addr().unwrap(),
            fingerprint: "0".repeat(64),
            trust_domain: TrustDomain::parse("tulle.local").unwrap(),
            line: Arc::clone(&line),
            may_be_away: true,
        };
        drop(nobody);
        let failed = line.failed();
        let asked = objects_over(controller.channel(None))
            .watch(WatchRequest {})
            .await;
        assert!(asked.is_err());
        failed.await;
    }

    /// Answers one connection as the controller, with a certificate of this root, which it presents as well.
    async fn controller_of(root: &TestCa) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let issued = root.issue("spiffe://tulle.local/controller");
        let mut chain = issued.chain;
        chain.push(root.der().clone());
        let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        tokio::spawn(async move {
            let (tcp, _) = listener.accept().await.unwrap();
            TlsAcceptor::from(Arc::new(config)).accept(tcp).await
        });
        address
    }

    #[tokio::test]
    async fn a_root_that_was_replaced_speaks_for_no_controller() {
        let since = |days: u64| SystemTime::now() - Duration::from_secs(days * 24 * 3600);
        let [old, told, new] = [("old", 3), ("told", 2), ("new", 1)]
            .map(|(name, days)| TestCa::since(name, since(days)));
        let issued = told.issue("spiffe://tulle.local/node/edge");
        let kept = [&*issued.key_pem, &issued.chain_pem, told.pem()];
        let kept = format!(
            "{}\n# chain\n{}\n# trust bundle\n{}",
            kept[0], kept[1], kept[2]
        );
        let enrolled = Enrolled::from_cache(&kept).unwrap();
        let present = Arc::new(Mutex::new(Present::new(enrolled, 0)));
        // The one by which the host knows the controller, and that of who answers.
        let connect = async |named: &TestCa, root: &TestCa, has_joined: bool| {
            let controller = Controller {
                address: controller_of(root).await,
                fingerprint: tulle_tls::fingerprint(named.der()),
                trust_domain: TrustDomain::parse("tulle.local").unwrap(),
                line: Arc::default(),
                may_be_away: true,
            };
            let present = has_joined.then(|| Arc::clone(&present));
            controller.connect(present).await.is_ok()
        };
        assert!(connect(&old, &old, false).await, "it knows no other");
        assert!(connect(&old, &told, true).await);
        assert!(!connect(&old, &old, true).await);
        assert!(!connect(&old, &new, true).await);
        assert!(connect(&new, &new, true).await, "named anew");
    }
}
