//! Files of this proxy: the cache of its identity, and how a file is read, written and replaced.

use std::path::Path;
use tulle_model::bootstrap::Control;
use tulle_model::identity::SpiffeId;
use tulle_tls::enrol::Enrolled;

pub(super) fn cached_identity(control: &Control, id: &SpiffeId) -> Option<Enrolled> {
    let path = control.identity_cache.as_ref()?;
    let text = std::fs::read_to_string(path)
        .ok()
        .filter(|text| !text.is_empty())?;
    match Enrolled::from_cache(&text) {
        Ok(enrolled) if enrolled.identity.spiffe_id() == id => Some(enrolled),
        Ok(_) => None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the identity cache is not usable");
            None
        }
    }
}

/// An inherited memfd cannot be replaced by renaming, and has no disk to fill.
pub(super) fn write_cache(path: &Path, text: &str) -> std::io::Result<()> {
    if path.starts_with("/proc") {
        return write_private(path, text.as_bytes());
    }
    replace(path, text.as_bytes())
}

/// Written beside and renamed, so that a crash leaves the old or the new file, never a part.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let beside = path.with_extension("new");
    write_private(&beside, bytes)?;
    std::fs::rename(beside, path)
}

fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)
}

pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|e| e.to_string())
}
