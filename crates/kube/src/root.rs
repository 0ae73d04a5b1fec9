//! The roots of the mesh: kept in a Secret that all replicas of the controller read and agree on.
//!
//! Each change is one write that succeeds only if nobody has written since (resourceVersion). So
//! replicas cannot go different ways, and a controller that is killed leaves the step before or after.

use crate::issuer::{certificates, pem};
use crate::metadata::Metadata;
use crate::names::{CONTROLLER, ROTATE};
use crate::pod::Pod;
use futures_util::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, ListParams, ObjectMeta, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use std::time::Duration;
use tulle_control::ca::roots::Roots;
use tulle_control::cluster::{Keeper, ResponseFuture};
use tulle_control::feed::Feed;

/// Its name, in the controller's namespace.
pub const SECRET: &str = "tulle-root";
/// How long each step of a rotation lasts at least if nothing else is asked for. A kubelet may take that
/// long to show the pods of its node another trust bundle.
pub const HOLD: Duration = Duration::from_secs(120);
/// Keys of the Secret, in the order of [`tulle_control::ca::roots::VALUES`].
const KEYS: [&str; 6] = [
    "root.key.der",
    "root.crt.der",
    "next.key.der",
    "next.crt.der",
    "previous.crt.der",
    "rotation.json",
];

/// Key of the name of another issuer, and of its roots in PEM.
const ISSUER: (&str, &str) = ("issuer.name", "issuer.roots.pem");

/// Key of the trust domain that the mesh was installed with.
const TRUST_DOMAIN: &str = "trust-domain";

/// Why the trust domain stays, and what can be done.
pub(crate) fn other_trust_domain(trust_domain: &str, other: &str) -> String {
    format!(
        "trustDomain: it is `{trust_domain}` since the installation and cannot become `{other}`: all identities \
         and policies contain it, and workloads started with another cannot talk to them. `tulle uninstall`, then \
         install with the other one and restart all workloads with sidecars"
    )
}

/// Where the roots are.
#[derive(Clone)]
pub struct InSecret {
    api: Api<Secret>,
    pods: Api<Pod>,
    namespace: String,
    replica: String,
}

impl InSecret {
    /// In this namespace, for this replica.
    pub fn new(client: Client, namespace: &str, replica: String) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            replica,
        }
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> String {
        format!("Secret {}/{SECRET}: {error}", self.namespace)
    }

    /// Reads the roots, or makes them if the Secret does not exist.
    ///
    /// # Errors
    /// The API server does not answer, or the Secret holds something else.
    pub async fn open(&self) -> Result<Roots, String> {
        if let Some(secret) = self
            .api
            .get_opt(SECRET)
            .await
            .map_err(|e| self.failed(&e))?
        {
            return read(&secret);
        }
        let made = Roots::generate().map_err(|e| e.to_string())?;
        let mut secret = Secret {
            metadata: ObjectMeta {
                name: Some(SECRET.into()),
                ..Default::default()
            },
            type_: Some("tulle.dev/root".into()),
            ..Default::default()
        };
        write(&mut secret, &made);
        match self.api.create(&PostParams::default(), &secret).await {
            Ok(_) => Ok(made),
            // Another replica was first.
            Err(kube::Error::Api(status)) if status.code == 409 => self.get().await,
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Makes sure that the mesh still has the trust domain it was installed with.
    ///
    /// # Errors
    /// It has another, or the API server does not answer.
    pub async fn hold_trust_domain(&self, trust_domain: &str) -> Result<(), String> {
        loop {
            let secret = self.api.get(SECRET).await;
            let mut secret = secret.map_err(|e| self.failed(&e))?;
            if !hold(&mut secret, trust_domain)? {
                return Ok(());
            }
            let replaced = self
                .api
                .replace(SECRET, &PostParams::default(), &secret)
                .await;
            match replaced {
                Ok(_) => return Ok(()),
                // Another replica has written.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    /// Reads the roots.
    ///
    /// # Errors
    /// The API server does not answer, or the Secret holds something else.
    pub async fn get(&self) -> Result<Roots, String> {
        let secret = self.api.get(SECRET).await;
        read(&secret.map_err(|e| self.failed(&e))?)
    }

    /// Returns the roots (DER) that were kept of this issuer; none if they were of another one.
    ///
    /// # Errors
    /// The API server does not answer, or they are damaged.
    pub async fn issuer_roots(&self, issuer: &str) -> Result<Vec<Vec<u8>>, String> {
        let secret = self.api.get(SECRET).await;
        kept_of(&secret.map_err(|e| self.failed(&e))?, issuer)
    }

    async fn keep_now(self, issuer: String, roots: Vec<Vec<u8>>) -> Result<(), String> {
        let secret = self.api.get(SECRET).await;
        let mut secret = secret.map_err(|e| self.failed(&e))?;
        if !keep_of(&mut secret, &issuer, &roots) {
            return Ok(());
        }
        // The Secret keeps its resourceVersion, so that a rotation of the root in the meantime is not
        // undone.
        let replaced = self
            .api
            .replace(SECRET, &PostParams::default(), &secret)
            .await;
        replaced.map(|_| ()).map_err(|e| self.failed(&e))
    }

    async fn replace_now(self, old: Roots, new: Roots) -> Result<Roots, String> {
        let secret = self.api.get(SECRET).await;
        let mut secret = secret.map_err(|e| self.failed(&e))?;
        let kept = read(&secret)?;
        if kept != old {
            return Ok(kept);
        }
        write(&mut secret, &new);
        // The rotation that the annotation asks for is done, or was asked for while it was being done.
        secret.annotations_mut().remove(ROTATE);
        let replaced = self
            .api
            .replace(SECRET, &PostParams::default(), &secret)
            .await;
        match replaced {
            Ok(_) => Ok(new),
            Err(kube::Error::Api(status)) if status.code == 409 => self.get().await,
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Tells the controller what other replicas and operators do with the Secret.
    pub async fn follow(self, feed: Feed) {
        let own = watcher::Config::default().fields(&format!("metadata.name={SECRET}"));
        // The event only says that there is something to read.
        let kind = ApiResource::erase::<Secret>(&());
        let client = self.api.clone().into_client();
        let api = Api::<Metadata>::namespaced_with(client, &self.namespace, &kind);
        let seen = watcher(api, own).default_backoff();
        let mut seen = seen.applied_objects().boxed();
        while let Some(secret) = seen.next().await {
            let done = match secret {
                // The Secret is read anew: the event may be older than what this replica has written
                // since.
                Ok(_) => match self.api.get(SECRET).await {
                    Ok(secret) => obey(&feed, &secret).await,
                    Err(error) => Err(self.failed(&error)),
                },
                Err(error) => Err(self.failed(&error)),
            };
            if let Err(why) = done {
                tracing::warn!("the root is not changed: {why}");
            }
        }
    }
}

async fn obey(feed: &Feed, secret: &Secret) -> Result<(), String> {
    feed.adopt(read(secret)?)?;
    let Some(asked) = secret.annotations().get(ROTATE) else {
        return Ok(());
    };
    let seconds = asked.strip_suffix('s').and_then(|s| s.parse().ok());
    let hold = seconds.ok_or_else(|| {
        format!("the annotation {ROTATE} is {asked:?}; it must be a number of seconds such as 120s")
    })?;
    feed.rotate(Duration::from_secs(hold)).await
}

impl Keeper for InSecret {
    fn replace(&self, old: Roots, new: Roots) -> ResponseFuture<Roots> {
        Box::pin(self.clone().replace_now(old, new))
    }

    fn name(&self) -> String {
        self.replica.clone()
    }

    fn keep_issuer_roots(&self, issuer: String, roots: Vec<Vec<u8>>) -> ResponseFuture<()> {
        Box::pin(self.clone().keep_now(issuer, roots))
    }

    fn hold(&self) -> Duration {
        HOLD
    }

    /// Names the ready replicas: one that cannot start has no sidecars to wait for.
    fn replicas(&self) -> ResponseFuture<Vec<String>> {
        let pods = self.pods.clone();
        Box::pin(async move {
            let ours =
                ListParams::default().labels(&format!("app.kubernetes.io/name={CONTROLLER}"));
            let found = pods.list(&ours).await;
            let found =
                found.map_err(|e| format!("the controller's pods cannot be listed: {e}"))?;
            let ready = found.items.iter().filter(|pod| is_ready(pod));
            Ok(ready.map(ResourceExt::name_any).collect())
        })
    }
}

fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    pod.metadata.deletion_timestamp.is_none() && status.is_some_and(|s| s.ready().is_some())
}

fn read(secret: &Secret) -> Result<Roots, String> {
    let data = secret.data.as_ref();
    let values = KEYS.map(|key| data.and_then(|data| data.get(key)).map(|v| v.0.clone()));
    match Roots::from_values(values) {
        Ok(Some(roots)) => Ok(roots),
        Ok(None) => Err(format!(
            "Secret {SECRET} has neither {} nor {}: it is not replaced, because no pod would trust a \
             new root. Restore it",
            KEYS[0], KEYS[1]
        )),
        Err(error) => Err(format!("Secret {SECRET}: {error}")),
    }
}

fn write(secret: &mut Secret, roots: &Roots) {
    let data = secret.data.get_or_insert_default();
    for (key, value) in KEYS.into_iter().zip(roots.to_values()) {
        match value {
            Some(value) => data.insert(key.to_owned(), ByteString(value)),
            None => data.remove(key),
        };
    }
}

/// Puts the trust domain into the Secret, if none is there; whether it was changed.
fn hold(secret: &mut Secret, trust_domain: &str) -> Result<bool, String> {
    let data = secret.data.get_or_insert_default();
    match data.get(TRUST_DOMAIN) {
        Some(kept) if kept.0 == trust_domain.as_bytes() => Ok(false),
        Some(kept) => {
            let kept = String::from_utf8_lossy(&kept.0);
            Err(other_trust_domain(&kept, trust_domain))
        }
        None => {
            let value = ByteString(trust_domain.as_bytes().to_vec());
            data.insert(TRUST_DOMAIN.to_owned(), value);
            Ok(true)
        }
    }
}

/// Roots of this issuer in the Secret.
fn kept_of(secret: &Secret, issuer: &str) -> Result<Vec<Vec<u8>>, String> {
    let value = |key| Some(secret.data.as_ref()?.get(key)?.0.as_slice());
    match (value(ISSUER.0), value(ISSUER.1)) {
        (Some(name), Some(roots)) if name == issuer.as_bytes() => {
            certificates(roots).map_err(|e| format!("Secret {SECRET}, {}: {e}", ISSUER.1))
        }
        _ => Ok(Vec::new()),
    }
}

/// Puts the roots of this issuer into the Secret; whether it was changed.
fn keep_of(secret: &mut Secret, issuer: &str, roots: &[Vec<u8>]) -> bool {
    let blocks = roots.iter().map(|der| pem("CERTIFICATE", der));
    let new = [
        (ISSUER.0, issuer.as_bytes().to_vec()),
        (ISSUER.1, blocks.collect::<String>().into_bytes()),
    ];
    let data = secret.data.get_or_insert_default();
    let mut changed = false;
    for (key, value) in new {
        let value = ByteString(value);
        changed |= data.get(key) != Some(&value);
        data.insert(key.to_owned(), value);
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roots_of_an_issuer_are_kept_beside_the_mesh_s_own() {
        let own = Roots::generate().unwrap();
        let mut secret = Secret::default();
        write(&mut secret, &own);
        assert_eq!(kept_of(&secret, "Vault").unwrap(), Vec::<Vec<u8>>::new());
        let roots = [(); 2].map(|()| Roots::generate().unwrap().signing.certificate);
        assert!(keep_of(&mut secret, "Vault", &roots));
        assert!(!keep_of(&mut secret, "Vault", &roots));
        assert_eq!(kept_of(&secret, "Vault").unwrap(), roots);
        // The roots of another issuer are not returned.
        assert!(kept_of(&secret, "cert-manager").unwrap().is_empty());
        // A step of a rotation leaves them.
        write(&mut secret, &own.rotate(HOLD, SystemTime::now()).unwrap());
        assert_eq!(kept_of(&secret, "Vault").unwrap(), roots);
        assert!(keep_of(&mut secret, "Vault", &roots[..1]));
        assert_eq!(kept_of(&secret, "Vault").unwrap(), roots[..1]);
    }

    use std::time::SystemTime;

    #[test]
    fn the_trust_domain_of_the_installation_is_kept_and_no_other_taken() {
        let mut secret = Secret::default();
        let own = Roots::generate().unwrap();
        write(&mut secret, &own);
        assert_eq!(hold(&mut secret, "prod.example"), Ok(true));
        assert_eq!(hold(&mut secret, "prod.example"), Ok(false));
        let why = hold(&mut secret, "other").unwrap_err();
        assert!(
            why.contains("`prod.example`") && why.contains("`other`"),
            "{why}"
        );
        assert_eq!(read(&secret).unwrap(), own);
    }

    #[test]
    fn a_secret_holds_every_step_and_what_others_put_there() {
        let first = Roots::generate().unwrap();
        let mut secret = Secret::default();
        write(&mut secret, &first);
        let data = secret.data.get_or_insert_default();
        data.insert("note".into(), ByteString(b"kept".to_vec()));
        let mut roots = first.rotate(HOLD, SystemTime::now()).unwrap();
        for _ in 0..3 {
            write(&mut secret, &roots);
            assert_eq!(read(&secret).unwrap(), roots);
            roots = roots.advanced(SystemTime::now());
        }
        assert_eq!(secret.data.as_ref().unwrap().len(), 3);
        secret.data.as_mut().unwrap().remove(KEYS[0]);
        assert!(read(&secret).is_err());
    }
}
