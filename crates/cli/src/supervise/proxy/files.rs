//! Files that a proxy gets from the supervisor: new ones, and the proxy's own.

use crate::failure::{OrFail, Result};
use crate::new_file::NewFile;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;

/// Writes a file for the proxy's eyes only. The directory is the proxy's own, so what lies there,
/// links above all, was perhaps put there to have root write or give away something else: the file
/// is always a new one, and given away by its descriptor.
pub(super) fn write_for(file: &Path, bytes: &[u8], user: Option<u32>) -> Result<()> {
    let what = || format!("cannot write {}", file.display());
    let mut new = NewFile::create(file).or_fail(what)?;
    new.out.write_all(bytes).or_fail(what)?;
    give_fd_to(&new.out, user)?;
    new.replace().or_fail(what)
}

/// Makes a file or directory the proxy's own.
pub(super) fn give_to(path: &Path, user: Option<u32>) -> Result<()> {
    let Some(user) = user else { return Ok(()) };
    std::os::unix::fs::chown(path, Some(user), Some(user))
        .or_fail(|| format!("cannot give {} to user {user}", path.display()))
}

/// The same by a descriptor.
pub(super) fn give_fd_to(file: &impl AsFd, user: Option<u32>) -> Result<()> {
    let Some(user) = user else { return Ok(()) };
    std::os::unix::fs::fchown(file, Some(user), Some(user))
        .or_fail(|| format!("cannot give a file to user {user}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn root_writes_through_no_link_that_the_proxy_left() {
        use std::os::unix::fs::{MetadataExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let file = dir.path().join("token");
        symlink(&victim, dir.path().join("token.new")).unwrap();
        let own = rustix::process::geteuid().as_raw();
        let user = (own == 0).then_some(61_200);
        write_for(&file, b"secret", user).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(fs::metadata(&victim).unwrap().uid(), own);
        let written = fs::symlink_metadata(&file).unwrap();
        assert!(written.is_file() && written.mode() & 0o777 == 0o600);
        assert_eq!(written.uid(), user.unwrap_or(own));
        assert_eq!(fs::read(&file).unwrap(), b"secret");
    }
}
