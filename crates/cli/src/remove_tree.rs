//! Removes a directory with all that is in it, however deep that goes.
//!
//! `fs::remove_dir_all` keeps a directory open for each level. Whoever may write in a directory of the mesh (an
//! application in its own, a sidecar) could go deeper than files may be open, and no mesh could be ended there, nor
//! started again.

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Removes it. That it is not there is no error. Links are removed, never followed, also those that somebody puts in
/// the place of a directory meanwhile.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let top = match openat(CWD, path, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        top => top?,
    };
    // Entries of a directory move to the top before it goes, so that no way gets longer than two names.
    let mut moved = 0_u64;
    let mut is_flat = false;
    while !is_flat {
        is_flat = true;
        for name in names(&top)? {
            let name = name?;
            if is_removed(&top, &name)? {
                continue;
            }
            is_flat = false;
            let directory = match openat(&top, &name, DIRECTORY, Mode::empty()) {
                // Somebody else has put something in its place, which is looked at the next time.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                directory => directory?,
            };
            for name in names(&directory)? {
                let name = name?;
                if !is_removed(&directory, &name)? {
                    move_up(&directory, &name, &top, &mut moved)?;
                }
            }
        }
    }
    drop(top);
    std::fs::remove_dir(path)
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

fn names(directory: &OwnedFd) -> io::Result<impl Iterator<Item = io::Result<CString>>> {
    let entries = Dir::read_from(directory)?.map(|entry| Ok(entry?.file_name().to_owned()));
    let is_own = |name: &CStr| matches!(name.to_bytes(), b"." | b"..");
    Ok(entries.filter(move |name| !name.as_deref().is_ok_and(is_own)))
}

/// Removes a file or an empty directory. False: it is a directory with something in it.
fn is_removed(directory: &OwnedFd, name: &CStr) -> io::Result<bool> {
    let removed = match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => unlinkat(directory, name, AtFlags::REMOVEDIR),
        removed => removed,
    };
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        // The latter: a file is there by now, whose turn comes.
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Moves a directory to a name that nothing else has at the top.
fn move_up(from: &OwnedFd, name: &CStr, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved += 1;
        match renameat(from, name, top, format!("moved-{moved}")) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // An application may have such a name, too.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mkdirat;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// More levels than most processes may have files open.
    const DEEP: usize = 2_000;

    #[test]
    fn a_tree_deeper_than_files_may_be_open_goes() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir(&top).unwrap();
        let mut at = openat(CWD, &top, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..DEEP {
            mkdirat(&at, "d", Mode::RWXU).unwrap();
            let file = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            openat(&at, "file", file, Mode::RUSR).unwrap();
            at = openat(&at, "d", DIRECTORY, Mode::empty()).unwrap();
        }
        drop(at);
        remove_tree(&top).unwrap();
        assert!(!top.exists());
        remove_tree(&top).unwrap();
    }

    #[test]
    fn what_links_lead_to_stays_and_names_of_moved_directories_may_be_taken() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        let top = dir.path().join("top");
        for inner in ["a/b/c/d", "moved-1/x/y/z", "moved-3/x", "empty"] {
            fs::create_dir_all(top.join(inner)).unwrap();
            symlink(&outside, top.join(inner).join("link")).unwrap();
        }
        fs::write(top.join("moved-2"), "").unwrap();
        remove_tree(&top).unwrap();
        assert!(!top.exists() && outside.join("kept").exists());
        let link = dir.path().join("link");
        symlink(&outside, &link).unwrap();
        remove_tree(&link).unwrap_err();
        assert!(outside.join("kept").exists());
    }

    #[test]
    fn what_cannot_be_removed_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        remove_tree(&file).unwrap_err();
        assert!(file.exists());
    }
}
