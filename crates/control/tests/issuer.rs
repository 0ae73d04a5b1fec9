//! Another issuer does not answer: sidecars with a certificate nevertheless have their configuration, also from
//! a controller that starts meanwhile.
#![allow(clippy::unwrap_used)]

#[path = "common/alone.rs"]
mod alone;
mod common;
#[path = "../../../tests/local/src/waits.rs"]
#[allow(dead_code, unreachable_pub)]
mod waits;

use alone::{Alone, Kept};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tokio::task::JoinHandle;
use tulle_control::ca::issuer::{CertificateRequest, IssueError, Issuer, Signed};
use tulle_control::ca::roots::Roots;
use tulle_control::ca::{Authority, VerifiedCsr};
use tulle_control::cluster::{Account, Accounts, Cluster, ResponseFuture, ReviewFuture};
use tulle_control::index::Edit;
use tulle_control::{Controller, RunningController, StoreKind, read_object};
use tulle_model::bootstrap::{Bootstrap, Control};
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_model::resource::Resource;
use tulle_proxy::control::client::{ControlClient, Sink, lookups};
use tulle_tls::enrol::Enrolled;
use waits::note_wait;

const LONG: Duration = Duration::from_secs(60);
const ID: &str = "spiffe://tulle.local/ns/shop/sa/web";

/// An issuer that can be made to hang.
struct Fickle {
    authority: Authority,
    hangs: AtomicBool,
    /// Requests that it has not answered, and those of them that somebody waits for.
    unanswered: AtomicUsize,
    waiting: Arc<AtomicUsize>,
}

struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A type of this test that can implement the controller's trait.
struct Shared(Arc<Fickle>);

impl Issuer for Shared {
    fn name(&self) -> String {
        "fickle".into()
    }

    fn sign(
        &self,
        asked: CertificateRequest,
    ) -> Pin<Box<dyn Future<Output = Result<Signed, IssueError>> + Send>> {
        let issuer = self.0.clone();
        Box::pin(async move {
            if issuer.hangs.load(Ordering::SeqCst) {
                issuer.waiting.fetch_add(1, Ordering::SeqCst);
                let _waiting = Waiting(issuer.waiting.clone());
                issuer.unanswered.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            let request = VerifiedCsr::parse(&asked.csr_der).unwrap();
            let authority = &issuer.authority;
            let now = SystemTime::now();
            let issued = authority.issue(&request, &asked.identity, None, asked.lifetime, now);
            let chain_der = vec![issued.unwrap().certificate.to_vec()];
            Ok(Signed { chain_der })
        })
    }

    fn roots(&self) -> ResponseFuture<Vec<Vec<u8>>> {
        let issuer = self.0.clone();
        Box::pin(async move {
            if issuer.hangs.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            Ok(vec![issuer.authority.root().to_vec()])
        })
    }
}

/// Everybody has the account of `ID`.
struct ApiServer;

impl Accounts for ApiServer {
    fn review(&self, _: String) -> ReviewFuture {
        Box::pin(async {
            Ok(Account {
                namespace: "shop".into(),
                name: "web".into(),
            })
        })
    }
}

/// The log level of the Mesh that a sidecar received last; it stands for its configuration.
#[derive(Clone)]
struct Heard {
    id: SpiffeId,
    level: Arc<Mutex<String>>,
}

impl Sink for Heard {
    fn identity(&self) -> &SpiffeId {
        &self.id
    }

    fn set_identity(&mut self, _: &Enrolled) {}

    fn update(&mut self, resources: &[(String, u64, Resource)], _: &[String]) -> Vec<String> {
        for (_, _, resource) in resources {
            if let Resource::Mesh(mesh) = resource {
                mesh.log_level.clone_into(&mut self.level.lock().unwrap());
            }
        }
        Vec::new()
    }

    fn note_configuration(&self, _: Result<(), &str>) {}

    fn wanted_services(&self) -> Vec<String> {
        Vec::new()
    }

    fn unowned(&self) -> Vec<String> {
        Vec::new()
    }

    fn forget_unowned(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn settled(&mut self) {}
}

/// A sidecar as it is to the controller; its certificate outlives it.
struct Sidecar {
    level: Arc<Mutex<String>>,
    running: JoinHandle<()>,
}

impl Sidecar {
    /// Starts one that knows the controller as one in a cluster does, by its roots.
    fn start(directory: &Path, of: &RunningController, own: &Roots) -> Self {
        let token = directory.join("token");
        std::fs::write(&token, "token").unwrap();
        let roots = directory.join("ca.crt");
        let own = Authority::from_roots(own.clone()).unwrap();
        std::fs::write(&roots, own.bundle_pem()).unwrap();
        let bootstrap: Bootstrap = serde_json::from_value(json!({ "identity": ID })).unwrap();
        let control = Control {
            address: of.local_addr().to_string(),
            ca_fingerprint: String::new(),
            trust_bundle: Some(roots),
            service: None,
            join_token_file: None,
            service_account_token: Some(token),
            snapshot: None,
            identity_cache: Some(cache(directory)),
            host_authority: None,
            host_services: None,
            sparing: false,
        };
        let level = Arc::default();
        let heard = Heard {
            id: bootstrap.identity.clone(),
            level: Arc::clone(&level),
        };
        let client = ControlClient::new(&bootstrap, control, heard);
        let (_, asked) = lookups();
        let running = tokio::spawn(client.run(asked));
        Self { level, running }
    }

    async fn hears(&self, level: &str) {
        eventually(&format!("the log level is {level}"), || {
            *self.level.lock().unwrap() == level
        })
        .await;
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn cache(directory: &Path) -> PathBuf {
    directory.join("identity")
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    note_wait(what, begun.elapsed());
}

async fn controller(
    directory: &Path,
    issuer: &Arc<Fickle>,
    kept: &Kept,
    known: Vec<Vec<u8>>,
    own: &Roots,
) -> RunningController {
    let cluster = Cluster {
        trust_domain: TrustDomain::parse("tulle.local").unwrap(),
        namespace: "tulle-system".to_owned(),
        roots: own.clone(),
        keeper: Arc::new(Alone(kept.clone())),
        issuer: Some(Arc::new(Shared(issuer.clone()))),
        issuer_roots: known,
        accounts: Arc::new(ApiServer),
        more_metrics: Arc::new(|_| {}),
    };
    let mut config = common::config(directory);
    config.store = StoreKind::Memory;
    Controller::start_in_cluster(config, cluster).await.unwrap()
}

fn feed(to: &RunningController, level: &str) {
    let mesh = json!({
        "apiVersion": "tulle.dev/v1alpha1", "kind": "Mesh", "metadata": { "name": "mesh" },
        "spec": {
            "trustDomain": "tulle.local", "logLevel": level,
            "certificates": { "lifetime": "1h", "renewAfter": "1s" },
        },
    });
    let mesh = read_object(&mesh.to_string()).unwrap();
    to.feed().edit(vec![Edit::Put(Box::new(mesh))]);
}

#[tokio::test]
async fn an_issuer_that_hangs_keeps_no_configuration_from_sidecars() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let own = Roots::generate().unwrap();
    let issuer = Arc::new(Fickle {
        authority: Authority::from_roots(Roots::generate().unwrap()).unwrap(),
        hangs: AtomicBool::new(false),
        unanswered: AtomicUsize::new(0),
        waiting: Arc::default(),
    });
    let kept = Kept::default();
    let first = controller(directory, &issuer, &kept, Vec::new(), &own).await;
    feed(&first, "warn");
    let sidecar = Sidecar::start(directory, &first, &own);
    sidecar.hears("warn").await;
    let root = issuer.authority.root().to_vec();
    eventually("the issuer's root is kept", || {
        *kept.lock().unwrap() == ("fickle".to_owned(), vec![root.clone()])
    })
    .await;

    // While the sidecar waits for its renewal, it receives changes.
    issuer.hangs.store(true, Ordering::SeqCst);
    let waiting = || issuer.waiting.load(Ordering::SeqCst);
    eventually("a renewal is asked for", || waiting() > 0).await;
    let unanswered = issuer.unanswered.load(Ordering::SeqCst);
    feed(&first, "error");
    sidecar.hears("error").await;
    assert_eq!(waiting(), 1, "it was told before the renewal was given up");
    assert_eq!(issuer.unanswered.load(Ordering::SeqCst), unanswered);
    drop(sidecar);
    first.shutdown().await;

    // A controller that knows no root of the issuer lets nobody in.
    let ignorant = controller(directory, &issuer, &kept, Vec::new(), &own).await;
    let cached = std::fs::read_to_string(cache(directory)).unwrap();
    let cached = Enrolled::from_cache(&cached).unwrap();
    let print = ignorant.ca_fingerprint();
    let entered = match common::dial(ignorant.local_addr(), print, Some(&cached.identity)).await {
        Ok(channel) => common::Stream::open(channel).await.is_ok(),
        Err(_) => false,
    };
    assert!(!entered);
    ignorant.shutdown().await;

    // One that was given the root that was kept lets in whom the issuer has given a certificate.
    let known = kept.lock().unwrap().1.clone();
    let second = controller(directory, &issuer, &kept, known, &own).await;
    feed(&second, "debug");
    let sidecar = Sidecar::start(directory, &second, &own);
    sidecar.hears("debug").await;
    drop(sidecar);
    second.shutdown().await;
}
