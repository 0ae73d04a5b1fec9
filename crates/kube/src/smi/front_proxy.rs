//! Lets only the API server's front proxy ask, by its certificate. The API server publishes the authority
//! and the names in a ConfigMap (`--requestheader-client-ca-file`, `--requestheader-allowed-names`).

use crate::https;
use crate::restarting_watch::restarting_watch;
use crate::spawn::spawn;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, watcher};
use kube::{Api, Client};
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::watch::{self, Receiver, Sender};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tulle_control::feed::Feed;
use x509_parser::prelude::{FromDer, X509Certificate};

const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";
const AUTHORITY: &str = "requestheader-client-ca-file";
const NAMES: &str = "requestheader-allowed-names";

/// Follows what the API server publishes about its front proxy.
pub(super) struct FrontProxy {
    present: Receiver<Option<Arc<Present>>>,
    following: JoinHandle<()>,
}

/// How connections are accepted now.
pub(super) struct Present {
    pub(super) tls: TlsAcceptor,
    /// Empty: every name of that authority.
    names: BTreeSet<String>,
}

impl FrontProxy {
    pub(super) fn new(client: Client, feed: Feed, names: Vec<String>) -> Self {
        let (sender, present) = watch::channel(None);
        Self {
            present,
            following: spawn(follow(client, feed, names, sender)),
        }
    }

    /// `None`: it is not known yet.
    pub(super) fn present(&self) -> Option<Arc<Present>> {
        self.present.borrow().clone()
    }
}

impl Drop for FrontProxy {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl Present {
    /// Whether a client whose certificate was verified is it.
    pub(super) fn lets_in(&self, tls: &TlsStream<TcpStream>) -> Result<(), String> {
        let shown = tls.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let shown = shown.ok_or("only the API server's front proxy is answered")?;
        is_named(shown, &self.names)
    }
}

fn is_named(certificate: &CertificateDer<'_>, names: &BTreeSet<String>) -> Result<(), String> {
    if names.is_empty() {
        return Ok(());
    }
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| e.to_string())?;
    let mut common = parsed.subject().iter_common_name();
    let name = common.next().and_then(|name| name.as_str().ok());
    match name.filter(|name| names.contains(*name)) {
        Some(_) => Ok(()),
        None => Err(format!(
            "only the API server's front proxy is answered: the certificate is of {:?}, and {NAMES} \
             has other names",
            name.unwrap_or_default()
        )),
    }
}

async fn follow(
    client: Client,
    feed: Feed,
    names: Vec<String>,
    present: Sender<Option<Arc<Present>>>,
) {
    let kind = ApiResource::erase::<ConfigMap>(&());
    let api = Api::<DynamicObject>::namespaced_with(client, NAMESPACE, &kind);
    let one = Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
    let seen = restarting_watch("ConfigMap", move || watcher(api.clone(), one.clone()));
    let mut seen = seen.applied_objects().boxed();
    while let Some(map) = seen.next().await {
        let made = map.map_err(|e| e.to_string());
        match made.and_then(|map| accepting(map, feed.clone(), names.clone())) {
            Ok(made) => drop(present.send_replace(Some(Arc::new(made)))),
            // The last known authority stays in force; before there is one, nobody is let in.
            Err(why) => tracing::warn!(
                "the API server's front proxy is not known: ConfigMap {NAMESPACE}/{CONFIG_MAP}: {why}"
            ),
        }
    }
}

fn accepting(
    mut map: DynamicObject,
    feed: Feed,
    own_names: Vec<String>,
) -> Result<Present, String> {
    let data = map.data["data"].take();
    let (authorities, names) = read(&Deserialize::deserialize(&data).unwrap_or_default())?;
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots
            .add(authority)
            .map_err(|e| format!("{AUTHORITY}: {e}"))?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let verifier = verifier.build().map_err(|e| format!("{AUTHORITY}: {e}"))?;
    let config = https::config(feed, own_names, verifier)?;
    Ok(Present {
        tls: TlsAcceptor::from(Arc::new(config)),
        names,
    })
}

/// The authorities, of which there is one at least, and the names.
fn read(
    data: &BTreeMap<String, String>,
) -> Result<(Vec<CertificateDer<'static>>, BTreeSet<String>), String> {
    let value = |key: &str| {
        let value = data.get(key);
        value.ok_or_else(|| format!("it has no {key}: the API server has no aggregation layer"))
    };
    let authorities: Vec<_> = CertificateDer::pem_slice_iter(value(AUTHORITY)?.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| format!("{AUTHORITY}: {e}"))?;
    if authorities.is_empty() {
        return Err(format!("{AUTHORITY} has no certificate"));
    }
    let names = serde_json::from_str(value(NAMES)?).map_err(|e| format!("{NAMES}: {e}"))?;
    Ok((authorities, names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_control::ca::roots::Roots;

    fn map(authority: &str, names: &str) -> BTreeMap<String, String> {
        let data = [(AUTHORITY, authority), (NAMES, names)];
        data.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    }

    #[test]
    fn the_api_server_says_who_it_is() {
        let root = tulle_control::ca::Authority::from_roots(Roots::generate().unwrap()).unwrap();
        let pem = root.bundle_pem();
        let (authorities, names) = read(&map(&pem, r#"["front-proxy-client"]"#)).unwrap();
        assert_eq!(authorities, [root.root().clone()]);
        assert_eq!(names.len(), 1);
        // Without an authority nobody could be identified.
        for (authority, names) in [("", "[]"), ("no PEM", "[]"), (pem.as_str(), "front-proxy")] {
            assert!(read(&map(authority, names)).is_err(), "{authority} {names}");
        }
        assert!(read(&BTreeMap::default()).is_err());
    }

    #[test]
    fn of_its_authority_only_its_names_are_let_in() {
        let root = tulle_control::ca::Authority::from_roots(Roots::generate().unwrap()).unwrap();
        let subject = X509Certificate::from_der(root.root()).unwrap().1;
        let name = subject.subject().iter_common_name().next().unwrap();
        let own = BTreeSet::from([name.as_str().unwrap().to_owned()]);
        assert_eq!(is_named(root.root(), &own), Ok(()));
        assert_eq!(is_named(root.root(), &BTreeSet::new()), Ok(()));
        let other = BTreeSet::from(["front-proxy-client".to_owned()]);
        let refused = is_named(root.root(), &other).unwrap_err();
        assert!(refused.contains(name.as_str().unwrap()), "{refused}");
    }
}
