//! Issuers of workload certificates in place of the mesh's own root.

mod cert_manager;
mod https;
mod vault;

pub use cert_manager::CertManager;
pub use https::Https;
pub use vault::Vault;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Client;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use tulle_control::ca::issuer::Issuer;
use tulle_model::identity::SpiffeId;

/// Which issuer signs, as the controller's settings say it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum IssuerSettings {
    /// CertificateRequests of cert-manager, in the controller's namespace.
    CertManager(CertManagerSettings),
    /// The PKI engine of Vault or OpenBao.
    Vault(VaultSettings),
}

/// Settings of cert-manager as issuer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CertManagerSettings {
    /// Name of the Issuer or ClusterIssuer.
    pub name: String,
    /// `Issuer`, `ClusterIssuer`, or the kind of an issuer of others.
    pub kind: String,
    /// Its API group.
    pub group: String,
    /// File with the roots (PEM), from a ConfigMap or Secret that the controller mounts. Without it, the
    /// roots that the issuer returns count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roots: Option<PathBuf>,
}

/// Settings of Vault as issuer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VaultSettings {
    /// Address, such as `https://vault.vault.svc:8200`.
    pub address: String,
    /// Where the PKI engine is mounted.
    pub mount: String,
    /// Role that signs.
    pub role: String,
    /// File with the authority (PEM) of Vault's own certificate.
    pub ca: PathBuf,
    /// How the controller proves who it is.
    pub auth: VaultAuth,
}

/// How a controller proves to Vault who it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum VaultAuth {
    /// The token of the controller's service account.
    Kubernetes {
        /// Where that method is mounted.
        mount: String,
        /// Role of that method.
        role: String,
        /// File with the token.
        token: PathBuf,
    },
    /// A token in a file, which is read each time.
    TokenFile(PathBuf),
}

impl IssuerSettings {
    /// The issuer, for a controller that has this identity.
    ///
    /// # Errors
    /// Something of the settings is not usable.
    pub fn start(
        &self,
        client: Client,
        namespace: &str,
        identity: &SpiffeId,
    ) -> Result<Arc<dyn Issuer>, String> {
        Ok(match self {
            Self::CertManager(settings) => {
                let identity = identity.clone();
                Arc::new(CertManager::new(
                    client,
                    namespace,
                    identity,
                    settings.clone(),
                ))
            }
            Self::Vault(settings) => Arc::new(Vault::new(settings.clone())?),
        })
    }
}

/// Label of a signing request in PEM.
const REQUEST: &str = "CERTIFICATE REQUEST";

/// Writes DER as PEM.
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    // Base64 is ASCII.
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}

/// Certificates of a PEM text.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let found = CertificateDer::pem_slice_iter(pem).map(|c| c.map(|c| c.to_vec()));
    found
        .collect::<Result<_, _>>()
        .map_err(|e| format!("it is not certificates in PEM: {e}"))
}
