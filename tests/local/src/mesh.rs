//! A throw-away mesh: one authority and a directory with everybody's certificates.

use std::path::{Path, PathBuf};
use tulle_tls::testing::{Issued, Leaf, TestCa};

/// Service name of the client sidecar.
pub const CLIENT: &str = "productpage";
/// Service name of the server sidecar.
pub const SERVER: &str = "ratings";

/// The SPIFFE id of a service.
pub fn id(service: &str) -> String {
    format!("spiffe://tulle.local/svc/{service}")
}

/// An authority and a directory.
pub struct Mesh {
    /// Signs everybody's certificates.
    pub ca: TestCa,
    directory: tempfile::TempDir,
}

impl Default for Mesh {
    fn default() -> Self {
        Self::new()
    }
}

impl Mesh {
    /// A mesh without members.
    pub fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("tulle-test-")
            .tempdir()
            .unwrap();
        Self {
            ca: TestCa::new("test root"),
            directory,
        }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a good certificate for a service; returns the directory with the three files.
    pub fn certificate(&self, service: &str) -> PathBuf {
        self.certificate_as(service, &Leaf::new(&id(service)), &self.ca)
    }

    /// Writes any certificate in place of a service's.
    pub fn certificate_as(&self, service: &str, leaf: &Leaf, ca: &TestCa) -> PathBuf {
        self.install(service, &ca.issue_leaf(leaf), self.ca.pem())
    }

    /// Writes a certificate and a trust bundle in place of a service's.
    pub fn install(&self, service: &str, issued: &Issued, bundle: &str) -> PathBuf {
        let directory = self.path().join(service);
        std::fs::create_dir_all(&directory).unwrap();
        // Replaced one by one, each by a rename, as tools that renew certificates do. What stays the
        // same is left alone: a proxy that looks in between would see two changes.
        let files = [
            ("cert.pem", issued.chain_pem.as_str()),
            ("key.pem", issued.key_pem.as_str()),
            ("ca.pem", bundle),
        ];
        let mut renames = Vec::new();
        for (name, text) in files {
            let (file, new) = (directory.join(name), directory.join(format!("{name}.new")));
            if std::fs::read(&file).is_ok_and(|old| old == text.as_bytes()) {
                continue;
            }
            std::fs::write(&new, text).unwrap();
            renames.push((new, file));
        }
        for (new, file) in renames {
            std::fs::rename(new, file).unwrap();
        }
        directory
    }
}
