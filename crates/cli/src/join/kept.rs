//! The identity that a joined host keeps on its disk, so that it comes back without a new token.
//!
//! It is the host's own key and certificate, for its owner alone. The keys of its sidecars are in
//! no file.

use crate::failure::{Failure, OrFail, Result};
use crate::new_file::write_durably;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use tulle_tls::enrol::Enrolled;

/// A key, a chain and a few roots have far less.
const LONGEST: u64 = 256 << 10;

/// The file of the identity.
pub(crate) struct Kept(PathBuf);

impl Kept {
    /// Names the file; it need not exist.
    pub(crate) fn at(file: PathBuf) -> Self {
        Self(file)
    }

    /// Its path.
    pub(crate) fn file(&self) -> &Path {
        &self.0
    }

    /// Reads the identity. None: this host has never joined from here.
    pub(crate) fn read(&self) -> Result<Option<Enrolled>> {
        let what = || format!("cannot read this host's identity in {}", self.0.display());
        let file = match File::open(&self.0) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).or_fail(what),
        };
        let mut text = String::new();
        let read = file.take(LONGEST).read_to_string(&mut text);
        read.or_fail(what)?;
        let enrolled = Enrolled::from_cache(&text).map_err(|e| {
            Failure::new(what())
                .because(e)
                .fix("remove the file, and join with a token of `tulle token create node/NAME`")
        })?;
        Ok(Some(enrolled))
    }

    /// Replaces the identity. The file is for its owner alone from the start.
    pub(crate) fn write(&self, enrolled: &Enrolled) -> Result<()> {
        let what = || format!("cannot keep this host's identity in {}", self.0.display());
        write_durably(&self.0, enrolled.to_cache().as_bytes()).or_fail(what)
    }
}
