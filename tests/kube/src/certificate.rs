//! Certificates that gateways show to their clients.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

use crate::Cluster;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A certificate for a host that nobody else has signed.
pub struct Certificate {
    /// The certificate in PEM.
    pub text: String,
    /// Where it is.
    pub file: PathBuf,
    key: PathBuf,
}

impl Certificate {
    /// Makes one, and its key beside it.
    pub fn new(directory: &Path, name: &str, host: &str) -> Self {
        let file = directory.join(name).with_extension("pem");
        let key = directory.join(name).with_extension("key");
        let made = Command::new("openssl")
            .args(["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"])
            .args(["-pkeyopt", "ec_paramgen_curve:P-256"])
            .args(["-subj", &format!("/CN={name}"), "-addext"])
            .arg(format!("subjectAltName=DNS:{host}"))
            // Some clients take no authority for a server.
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&file)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let text = std::fs::read_to_string(&file).unwrap();
        Self { text, file, key }
    }

    /// Puts it and its key into a Secret.
    pub fn install(&self, cluster: &Cluster, namespace: &str, secret: &str) {
        let key = std::fs::read_to_string(&self.key).unwrap();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": { "name": secret, "namespace": namespace },
            "stringData": { "tls.crt": self.text, "tls.key": key },
        });
        cluster.apply(&secret.to_string());
    }
}
