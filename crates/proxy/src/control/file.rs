//! One proxy without a controller: resources and certificates from files, reloaded when they
//! change. Invalid files are logged and refused; the last good configuration stays in force.

use crate::codec::host::Host;
use crate::control::publish::Publisher;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tulle_model::bootstrap::{Bootstrap, CertificateFiles};
use tulle_model::resource::Resource;
use tulle_tls::{Identity, TrustBundle};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Source of a proxy's own configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// In a file.
    File(PathBuf),
    /// In a variable of the environment; it does not change.
    Environment(String),
}

impl Source {
    /// Reads and checks the configuration.
    ///
    /// # Errors
    /// It cannot be read or is not valid; the text says where and why.
    pub fn read(&self) -> Result<Bootstrap, String> {
        match self {
            Self::File(path) => read(path),
            Self::Environment(name) => {
                let text = std::env::var(name)
                    .map_err(|e| format!("cannot read the environment variable {name}: {e}"))?;
                Bootstrap::parse(&format!("${name}"), &text).map_err(|e| e.to_string())
            }
        }
    }
}

/// Reads a bootstrap file.
///
/// # Errors
/// The file cannot be read or is not valid; the text says where and why.
pub fn read(path: &Path) -> Result<Bootstrap, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    Bootstrap::parse(&path.display().to_string(), &text).map_err(|e| e.to_string())
}

/// Puts the resources of a file in force.
///
/// # Errors
/// One of them makes no sense; nothing has changed.
pub fn apply(bootstrap: &Bootstrap, publisher: &mut Publisher) -> Result<(), String> {
    replace(None, bootstrap, publisher)?;
    match publisher.faults() {
        faults if faults.is_empty() => Ok(()),
        faults => Err(faults),
    }
}

/// Puts the resources of a file in force instead of those of another.
fn replace(
    old: Option<&Bootstrap>,
    new: &Bootstrap,
    publisher: &mut Publisher,
) -> Result<(), String> {
    let resources = resources(new);
    let kept = |name: &String| resources.iter().any(|(n, ..)| n == name);
    let before = old.map(self::resources).unwrap_or_default();
    let removed: Vec<_> = before
        .into_iter()
        .map(|(n, ..)| n)
        .filter(|n| !kept(n))
        .collect();
    let errors = publisher.update(&resources, &removed);
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors.join("; "))
    }
}

fn resources(bootstrap: &Bootstrap) -> Vec<(String, u64, Resource)> {
    let mut resources = vec![("mesh".to_owned(), 0, Resource::Mesh(bootstrap.mesh.clone()))];
    for service in &bootstrap.services {
        let name = format!("service/{}", service.name);
        resources.push((name, 0, Resource::Service(service.clone())));
        for address in &service.addresses {
            let alias = Resource::Alias(service.name.clone());
            resources.push((format!("address/{address}"), 0, alias));
        }
        for host in &service.hostnames {
            let owner = Resource::Host(service.name.clone());
            resources.push((
                format!("host/{}", Host::named(host.as_bytes()).to_text()),
                0,
                owner,
            ));
        }
    }
    if let Some(inbound) = &bootstrap.inbound {
        let name = format!("inbound/{}", inbound.service);
        resources.push((name, 0, Resource::Inbound(inbound.clone())));
    }
    for gateway in &bootstrap.gateways {
        let name = format!("gateway/{}", gateway.name);
        resources.push((name, 0, Resource::Gateway(gateway.clone())));
    }
    if let Some(egress) = &bootstrap.egress {
        resources.push(("egress".to_owned(), 0, Resource::Egress(egress.clone())));
    }
    resources
}

/// Reads the certificate files and puts them in force.
///
/// # Errors
/// A file cannot be read, or they do not make a usable identity.
pub fn load_certificates(
    files: &CertificateFiles,
    publisher: &mut Publisher,
) -> Result<(), String> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
    };
    let identity = Identity::from_pem(&read(&files.certificate)?, &read(&files.key)?)
        .map_err(|e| format!("{}: {e}", files.certificate.display()))?;
    let bundle = TrustBundle::from_pem(&read(&files.trust_bundle)?)
        .map_err(|e| format!("{}: {e}", files.trust_bundle.display()))?;
    if identity.spiffe_id() != publisher.identity() {
        return Err(format!(
            "{} is for {}, but this proxy is {}",
            files.certificate.display(),
            identity.spiffe_id(),
            publisher.identity()
        ));
    }
    publisher.set_identity(&identity, &bundle);
    Ok(())
}

/// Looks at the files until the process ends.
pub async fn watch(path: PathBuf, mut bootstrap: Bootstrap, mut publisher: Publisher) {
    let mut config_seen = look(&[&path]);
    let mut certificates_seen = bootstrap.certificates.as_ref().map(look_at_certificates);
    let mut refused = None;
    loop {
        tokio::time::sleep(LOOK).await;
        let now = look(&[&path]);
        if now != config_seen {
            config_seen = now;
            let result = reload(&path, &bootstrap, &mut publisher);
            let faults = publisher.faults();
            let noted = match &result {
                Ok(_) if faults.is_empty() => Ok(()),
                Ok(_) => Err(faults.as_str()),
                Err(error) => Err(error.as_str()),
            };
            publisher.note_configuration(noted);
            match result {
                Ok(new) => {
                    bootstrap = new;
                    if faults.is_empty() {
                        tracing::info!("the changed configuration is in force");
                    } else {
                        tracing::warn!(
                            faults,
                            "the changed configuration is in force except for these parts"
                        );
                    }
                }
                Err(error) => tracing::warn!(
                    error,
                    "the changed file is refused; the last good configuration stays"
                ),
            }
        }
        let now = bootstrap.certificates.as_ref().map(look_at_certificates);
        if now != certificates_seen
            && let Some(files) = &bootstrap.certificates
        {
            // Three files are rarely written at once: an incomplete set is tried again, and only a
            // new error is logged.
            match load_certificates(files, &mut publisher) {
                Ok(()) => {
                    certificates_seen = now;
                    refused = None;
                    publisher.note_certificates(Ok(()));
                    tracing::info!("new certificates are in use");
                }
                Err(error) if refused.as_ref() == Some(&error) => {}
                Err(error) => {
                    tracing::warn!(
                        error,
                        "the changed certificates are refused; the last good ones stay"
                    );
                    publisher.note_certificates(Err(&error));
                    refused = Some(error);
                }
            }
        }
    }
}

fn reload(path: &Path, old: &Bootstrap, publisher: &mut Publisher) -> Result<Bootstrap, String> {
    let new = read(path)?;
    if new.listeners != old.listeners
        || new.gateway_sockets != old.gateway_sockets
        || new.heir_socket != old.heir_socket
        || new.identity != old.identity
        || new.workers != old.workers
    {
        return Err("identity, listeners and workers cannot change without a restart".into());
    }
    replace(Some(old), &new, publisher)?;
    Ok(new)
}

/// Metadata that tells a changed file from an unchanged one. A tool may keep the time of a file it
/// copies, and two writes may fall into one tick of the file system's clock.
#[derive(PartialEq)]
struct Seen {
    modified: SystemTime,
    bytes: u64,
    inode: u64,
}

fn look(paths: &[&Path]) -> Vec<Option<Seen>> {
    let seen = |path: &&Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Seen {
            modified: metadata.modified().ok()?,
            bytes: metadata.len(),
            inode: metadata.ino(),
        })
    };
    paths.iter().map(seen).collect()
}

fn look_at_certificates(files: &CertificateFiles) -> Vec<Option<Seen>> {
    look(&[&files.certificate, &files.key, &files.trust_bundle])
}
