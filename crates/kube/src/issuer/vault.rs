//! The PKI engine of Vault or OpenBao: `POST /v1/<mount>/sign/<role>`.

use super::{Https, REQUEST, VaultAuth, VaultSettings, certificates, pem};
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tulle_control::ca::issuer::{CertificateRequest, IssueError, Issuer, Signed, parted};
use tulle_control::cluster::ResponseFuture;

/// Asks Vault.
#[derive(Clone)]
pub struct Vault {
    settings: VaultSettings,
    server: Https,
    /// Vault's token, from logging in.
    session: Arc<Mutex<Option<Login>>>,
}

#[derive(Clone)]
struct Login {
    token: String,
    again_at: Instant,
}

#[derive(Deserialize)]
struct Reply<T> {
    data: T,
}

#[derive(Deserialize)]
struct Certificate {
    certificate: String,
    #[serde(default)]
    issuing_ca: String,
    #[serde(default)]
    ca_chain: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Authenticated {
    auth: Auth,
}

#[derive(Deserialize)]
struct Auth {
    client_token: String,
    lease_duration: u64,
}

#[derive(Deserialize)]
struct Errors {
    #[serde(default)]
    errors: Vec<String>,
}

impl Vault {
    /// Does not speak to it yet.
    ///
    /// # Errors
    /// The address or its authority is not usable.
    pub fn new(settings: VaultSettings) -> Result<Self, String> {
        let failed = |e: String| format!("{}: {e}", settings.ca.display());
        let pem = std::fs::read(&settings.ca).map_err(|e| failed(e.to_string()))?;
        let authorities = certificates(&pem).map_err(failed)?;
        Ok(Self {
            server: Https::new(&settings.address, authorities)?,
            settings,
            session: Arc::default(),
        })
    }

    async fn token(&self) -> Result<String, IssueError> {
        let read = async |file: &std::path::Path| {
            let text = tokio::fs::read_to_string(file).await;
            let text = text.map_err(|e| format!("{}: {e}", file.display()));
            text.map(|t| t.trim().to_owned())
                .map_err(IssueError::Unavailable)
        };
        let (mount, role, file) = match &self.settings.auth {
            VaultAuth::TokenFile(file) => return read(file).await,
            VaultAuth::Kubernetes { mount, role, token } => (mount, role, token),
        };
        // One request at a time logs in; others that come meanwhile use the same token.
        let mut session = self.session.lock().await;
        if let Some(login) = session.as_ref().filter(|l| Instant::now() < l.again_at) {
            return Ok(login.token.clone());
        }
        let body = json!({ "role": role, "jwt": read(file).await? });
        let path = format!("/v1/auth/{mount}/login");
        let answer = self.ask(Method::POST, &path, &[], body.to_string()).await?;
        let answer: Authenticated = serde_json::from_slice(&answer).map_err(unreadable)?;
        let lease = Duration::from_secs(answer.auth.lease_duration);
        let login = Login {
            token: answer.auth.client_token,
            again_at: Instant::now() + lease * 2 / 3,
        };
        Ok(session.insert(login).token.clone())
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: String,
    ) -> Result<hyper::body::Bytes, IssueError> {
        let answer = self.server.ask(method, path, headers, body).await;
        let (status, body) = answer.map_err(IssueError::Unavailable)?;
        if status.is_success() {
            return Ok(body);
        }
        let errors: Errors = serde_json::from_slice(&body).unwrap_or(Errors { errors: Vec::new() });
        let why = format!("{path}: {status}: {}", errors.errors.join("; "));
        // 5xx: sealed, standby, or in trouble; 429: asked too much. All of that passes.
        match status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            true => Err(IssueError::Unavailable(why)),
            false => Err(IssueError::Refused(why)),
        }
    }

    async fn request(self, asked: CertificateRequest) -> Result<Signed, IssueError> {
        let token = self.token().await?;
        let body = json!({
            "csr": pem(REQUEST, &asked.csr_der),
            "uri_sans": asked.identity,
            "ttl": format!("{}s", asked.lifetime.as_secs()),
            "format": "pem",
            "exclude_cn_from_sans": true,
        });
        let path = format!("/v1/{}/sign/{}", self.settings.mount, self.settings.role);
        let headers = [("x-vault-token", token.as_str())];
        let answer = self
            .ask(Method::POST, &path, &headers, body.to_string())
            .await;
        if matches!(&answer, Err(IssueError::Refused(why)) if why.contains("403")) {
            // The token may have been revoked: the next one logs in again.
            *self.session.lock().await = None;
        }
        let answer: Reply<Certificate> = serde_json::from_slice(&answer?).map_err(unreadable)?;
        let data = answer.data;
        let mut all = data.certificate;
        for authority in data.ca_chain.into_iter().flatten().chain([data.issuing_ca]) {
            all.push('\n');
            all.push_str(&authority);
        }
        let all = certificates(all.as_bytes()).map_err(unreadable)?;
        let (chain_der, _) = parted(all);
        Ok(Signed { chain_der })
    }

    /// Authorities are public: no token.
    async fn learn(self) -> Result<Vec<Vec<u8>>, String> {
        let path = |which: &str| format!("/v1/{}/{which}", self.settings.mount);
        for which in ["ca_chain", "ca/pem"] {
            let answer = self
                .ask(Method::GET, &path(which), &[], String::new())
                .await;
            let pem = answer.map_err(|e| e.to_string())?;
            let (_, roots) = parted(certificates(&pem)?);
            if !roots.is_empty() {
                return Ok(roots);
            }
        }
        Err(format!(
            "the engine at {} has no authority: make one there, or give it a chain",
            self.settings.mount
        ))
    }
}

impl Issuer for Vault {
    fn name(&self) -> String {
        let settings = &self.settings;
        format!(
            "Vault, {}/v1/{}/sign/{}",
            settings.address, settings.mount, settings.role
        )
    }

    fn sign(
        &self,
        asked: CertificateRequest,
    ) -> Pin<Box<dyn Future<Output = Result<Signed, IssueError>> + Send>> {
        Box::pin(self.clone().request(asked))
    }

    fn roots(&self) -> ResponseFuture<Vec<Vec<u8>>> {
        Box::pin(self.clone().learn())
    }
}

fn unreadable(error: impl fmt::Display) -> IssueError {
    IssueError::Refused(format!("its answer cannot be read: {error}"))
}
