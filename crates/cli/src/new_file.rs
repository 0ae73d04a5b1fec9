//! Replaces a file as a whole: readers see the old one or the new one, never a part.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file that takes the place of another once it is written.
pub(crate) struct NewFile<'a> {
    /// Its contents. They are for the owner alone until the caller says otherwise.
    pub(crate) out: File,
    temp: PathBuf,
    file: &'a Path,
}

impl<'a> NewFile<'a> {
    /// Creates the new file beside the old one. It is never one that lay there: a link that somebody else
    /// made must not have root write elsewhere.
    pub(crate) fn create(file: &'a Path) -> io::Result<Self> {
        let temp = file.with_extension("new");
        let out = create_anew(&temp)?;
        Ok(Self { out, temp, file })
    }

    /// Puts it in the other's place.
    pub(crate) fn replace(self) -> io::Result<()> {
        fs::rename(&self.temp, self.file)
    }

    /// Puts it in the other's place, also for whoever looks after a power cut: the content is on the disk
    /// before the name is, and both are when this returns.
    pub(crate) fn replace_durably(self) -> io::Result<()> {
        let directory = self.file.parent().map(Path::to_owned);
        self.out.sync_all()?;
        self.replace()?;
        directory.map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}

/// Removes what lies there, and creates a file for its owner alone: what lay there may be open to others, or lead elsewhere.
pub(crate) fn create_anew(file: &Path) -> io::Result<File> {
    match fs::remove_file(file) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(file)
}

/// Replaces a file by this text, for its owner alone, and durably.
pub(crate) fn write_durably(file: &Path, text: &[u8]) -> io::Result<()> {
    let mut new = NewFile::create(file)?;
    new.out.write_all(text)?;
    new.replace_durably()
}
