//! cert-manager: a CertificateRequest (cert-manager.io/v1) for each certificate.
//!
//! It is made in the controller's own namespace, looked at until it has its certificate, and removed.
//! Those of a controller that was killed meanwhile are removed by the others, or by the next.

use super::{CertManagerSettings, REQUEST, certificates, pem};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::sleep;
use tulle_control::ca::issuer::{
    CertificateRequest, IssueError, Issuer, Signed, parted, throwaway_request,
};
use tulle_control::cluster::ResponseFuture;
use tulle_model::identity::SpiffeId;

/// First and longest wait between looks at a request.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// How long the certificate is asked for that tells the roots: cert-manager gives none for less.
const SHORTEST: Duration = Duration::from_secs(3600);
/// The label of our own requests.
const OWN: (&str, &str) = ("app.kubernetes.io/managed-by", "tulle");
/// Nobody waits for a request that is older, also when clocks differ.
const LEFT: SignedDuration = SignedDuration::from_secs(60);

/// Asks cert-manager.
#[derive(Clone)]
pub struct CertManager {
    api: Api<DynamicObject>,
    kind: ApiResource,
    settings: CertManagerSettings,
    namespace: String,
    identity: SpiffeId,
    /// Roots that the newest certificate came with.
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl CertManager {
    /// Makes an issuer in this namespace, for a controller that has this identity.
    pub fn new(
        client: Client,
        namespace: &str,
        identity: SpiffeId,
        settings: CertManagerSettings,
    ) -> Self {
        let kind = GroupVersionKind::gvk("cert-manager.io", "v1", "CertificateRequest");
        let kind = ApiResource::from_gvk(&kind);
        Self {
            api: Api::namespaced_with(client, namespace, &kind),
            kind,
            settings,
            namespace: namespace.to_owned(),
            identity,
            seen: Arc::default(),
        }
    }

    async fn request(&self, asked: &CertificateRequest) -> Result<Signed, IssueError> {
        let made = self.make(asked).await?;
        let name = made.name_any();
        // The request is removed even when nobody waits any longer: a waiter that gives up drops this
        // future.
        let _removal = Removal {
            api: self.api.clone(),
            name: name.clone(),
        };
        let mut wait = LOOK.0;
        loop {
            sleep(wait).await;
            wait = (wait * 2).min(LOOK.1);
            let found = self.api.get(&name).await;
            let found = found.map_err(|e| unavailable(&format!("{name}: {e}")))?;
            if let Some(signed) = self.signed(&found)? {
                return Ok(signed);
            }
        }
    }

    async fn make(&self, asked: &CertificateRequest) -> Result<DynamicObject, IssueError> {
        let pem = pem(REQUEST, &asked.csr_der);
        let settings = &self.settings;
        let mut object = DynamicObject::new("", &self.kind).data(json!({
            "spec": {
                "request": STANDARD.encode(pem),
                "issuerRef": {
                    "name": settings.name, "kind": settings.kind, "group": settings.group,
                },
                "duration": format!("{}s", asked.lifetime.as_secs()),
                "usages": ["digital signature", "server auth", "client auth"],
            },
        }));
        object.metadata.name = None;
        object.metadata.generate_name = Some("tulle-".into());
        object.metadata.namespace = Some(self.namespace.clone());
        object.labels_mut().insert(OWN.0.into(), OWN.1.into());
        let made = self.api.create(&PostParams::default(), &object).await;
        made.map_err(|e| match e {
            kube::Error::Api(status) if status.code == 403 || status.code == 422 => {
                IssueError::Refused(status.message)
            }
            kube::Error::Api(status) if status.code == 404 => IssueError::Unavailable(
                "the cluster has no CertificateRequest: cert-manager is not installed".into(),
            ),
            e => unavailable(&e),
        })
    }

    /// The certificate, if it is there yet.
    fn signed(&self, request: &DynamicObject) -> Result<Option<Signed>, IssueError> {
        let status = &request.data["status"];
        let conditions = status["conditions"].as_array();
        for condition in conditions.into_iter().flatten() {
            let is = |kind: &str, is: &str| condition["type"] == kind && condition["status"] == is;
            let failed = is("Ready", "False")
                && matches!(condition["reason"].as_str(), Some("Failed" | "Denied"));
            if failed || is("Denied", "True") || is("InvalidRequest", "True") {
                let why = condition["message"].as_str().unwrap_or_default();
                return Err(IssueError::Refused(why.to_owned()));
            }
        }
        let read = |field: &Value| -> Result<Vec<Vec<u8>>, IssueError> {
            let Some(text) = field.as_str() else {
                return Ok(Vec::new());
            };
            let pem = STANDARD.decode(text).map_err(|e| e.to_string());
            let read = pem.and_then(|pem| certificates(&pem));
            read.map_err(|e| IssueError::Refused(format!("what it gives: {e}")))
        };
        let mut chain = read(&status["certificate"])?;
        if chain.is_empty() {
            return Ok(None);
        }
        chain.extend(read(&status["ca"])?);
        let (chain_der, roots) = parted(chain);
        if !roots.is_empty() {
            *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = roots;
        }
        Ok(Some(Signed { chain_der }))
    }

    fn seen(&self) -> Vec<Vec<u8>> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Removes requests that somebody has left.
    async fn tidy(&self) {
        let own = ListParams::default().labels(&format!("{}={}", OWN.0, OWN.1));
        // Without it nothing is wrong, or the issuer is and says so.
        let Ok(found) = self.api.list_metadata(&own).await else {
            return;
        };
        let now = Timestamp::now();
        let left = found.items.iter().filter(|request| {
            let made = request.metadata.creation_timestamp.as_ref();
            made.is_some_and(|made| now.duration_since(made.0) > LEFT)
        });
        for request in left {
            remove(&self.api, &request.name_any()).await;
        }
    }

    async fn learn(self) -> Result<Vec<Vec<u8>>, String> {
        // This runs beside it, because the roots are waited for.
        let this = self.clone();
        tokio::spawn(async move { this.tidy().await });
        if let Some(file) = &self.settings.roots {
            let failed = |e: String| format!("{}: {e}", file.display());
            let pem = tokio::fs::read(file)
                .await
                .map_err(|e| failed(e.to_string()))?;
            return certificates(&pem).map_err(failed);
        }
        if self.seen().is_empty() {
            let asked = CertificateRequest {
                csr_der: throwaway_request(&self.identity)?,
                identity: self.identity.clone(),
                lifetime: SHORTEST,
            };
            self.request(&asked).await.map_err(|e| e.to_string())?;
        }
        match self.seen() {
            seen if seen.is_empty() => Err(
                "the issuer does not say what its certificates come from (status.ca is empty): give \
                 the roots at installation (--issuer-ca)"
                    .into(),
            ),
            seen => Ok(seen),
        }
    }
}

impl Issuer for CertManager {
    fn name(&self) -> String {
        let settings = &self.settings;
        format!("cert-manager, {} {}", settings.kind, settings.name)
    }

    fn sign(
        &self,
        asked: CertificateRequest,
    ) -> Pin<Box<dyn Future<Output = Result<Signed, IssueError>> + Send>> {
        let this = self.clone();
        Box::pin(async move { this.request(&asked).await })
    }

    fn roots(&self) -> ResponseFuture<Vec<Vec<u8>>> {
        Box::pin(self.clone().learn())
    }
}

/// Removes a request when it is dropped.
struct Removal {
    api: Api<DynamicObject>,
    name: String,
}

impl Drop for Removal {
    fn drop(&mut self) {
        let (api, name) = (self.api.clone(), std::mem::take(&mut self.name));
        tokio::spawn(async move { remove(&api, &name).await });
    }
}

async fn remove(api: &Api<DynamicObject>, name: &str) {
    if let Err(error) = api.delete(name, &DeleteParams::default()).await {
        tracing::debug!(name, %error, "a CertificateRequest is left");
    }
}

fn unavailable(why: &dyn std::fmt::Display) -> IssueError {
    IssueError::Unavailable(why.to_string())
}
