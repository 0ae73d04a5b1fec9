//! Gives what is in an application's directory to the next user of the application.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, fstat, openat};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How many directories may be within one another. Each that is entered is an open file.
const DEEPEST: usize = 256;
/// How many names of the way to a place an error has.
const NAMED: usize = 8;

/// A directory that was entered.
struct Level {
    name: CString,
    entries: Dir,
}

/// Gives all that its former owner has in it to the new one. What is somebody else's stays so: it
/// may be a second name of a file that is elsewhere.
///
/// Processes of the former owner may still be there, and put a link to a file of the host in the place of what was
/// looked at. So each entry is opened once, without following links, and what was opened is what is looked at, given
/// away and entered. The directory itself comes last: after an error the next start tries again.
pub(super) fn hand_over(path: &Path, before: u32, (uid, gid): (u32, u32)) -> io::Result<()> {
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    let give = |file: BorrowedFd<'_>| {
        if fstat(file)?.st_uid == before {
            chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        Ok::<_, io::Error>(())
    };
    let entry = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = openat(CWD, path, entry, Mode::empty())?;
    let mut levels = Vec::new();
    let mut found = Some((CString::default(), top));
    loop {
        if let Some((name, file)) = found.take() {
            if !is_directory(&file)? {
                give(file.as_fd())?;
            } else if levels.len() < DEEPEST {
                let entries = read(&file)?;
                levels.push(Level { name, entries });
            } else {
                return Err(too_deep(&levels));
            }
        }
        let Some(level) = levels.last_mut() else {
            return Ok(());
        };
        if let Some(next) = level.entries.next() {
            let name = next?.file_name().to_owned();
            if !matches!(name.as_bytes(), b"." | b"..") {
                let directory = level.entries.fd()?;
                let file = openat(directory, &name, entry, Mode::empty())?;
                found = Some((name, file));
            }
        } else {
            give(level.entries.fd()?)?;
            levels.pop();
        }
    }
}

fn is_directory(file: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(file)?.st_mode).is_dir())
}

/// Reads the directory that is open, wherever it is by now.
fn read(directory: &OwnedFd) -> io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(Dir::new(openat(directory, c".", flags, Mode::empty())?)?)
}

/// The former owner chose the names, so they are quoted and only so many.
fn too_deep(levels: &[Level]) -> io::Error {
    let below = levels.iter().skip(1).take(NAMED);
    let place: PathBuf = below
        .map(|level| OsStr::from_bytes(level.name.as_bytes()))
        .collect();
    let place = place.to_string_lossy();
    io::Error::other(format!(
        "{place:?} in it goes on for more than {DEEPEST} directories within one another"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{RenameFlags, mkdirat, renameat_with};
    use std::fs;
    use std::os::unix::fs::{MetadataExt, lchown, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn owner(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().uid()
    }

    #[test]
    fn what_is_handed_over_is_only_its_former_owners() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: it needs root");
        }
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::write(&outside, "").unwrap();
        let data = dir.path().join("data");
        fs::create_dir_all(data.join("sub")).unwrap();
        fs::write(data.join("sub/own"), "").unwrap();
        fs::hard_link(&outside, data.join("sub/linked")).unwrap();
        symlink(&outside, data.join("sub/link")).unwrap();
        for path in ["", "sub", "sub/own", "sub/link"] {
            lchown(data.join(path), Some(61_200), Some(61_200)).unwrap();
        }
        hand_over(&data, 61_200, (61_300, 61_301)).unwrap();
        for path in ["", "sub", "sub/own", "sub/link"] {
            let found = fs::symlink_metadata(data.join(path)).unwrap();
            assert_eq!((found.uid(), found.gid()), (61_300, 61_301), "{path}");
        }
        assert_eq!(owner(&outside), 0);
    }

    #[test]
    fn a_former_owner_who_puts_links_in_its_place_gets_nothing_else_given_away() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: it needs root");
        }
        let dir = tempfile::tempdir().unwrap();
        let (outside, data) = (dir.path().join("outside"), dir.path().join("data"));
        let (sub, link) = (data.join("sub"), data.join("link"));
        let names: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        for (directory, user) in [(&outside, 61_400), (&sub, 61_200)] {
            fs::create_dir_all(directory).unwrap();
            for name in &names {
                fs::write(directory.join(name), "").unwrap();
                lchown(directory.join(name), Some(user), Some(user)).unwrap();
            }
        }
        symlink(&outside, &link).unwrap();
        for path in [&data, &sub, &link] {
            lchown(path, Some(61_200), Some(61_200)).unwrap();
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    renameat_with(CWD, &sub, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                }
            });
            for round in 0..200 {
                let (before, after) = match round % 2 {
                    0 => (61_200, 61_300),
                    _ => (61_300, 61_200),
                };
                // An error would be right, too.
                let _ = hand_over(&data, before, (after, after));
            }
            over.store(true, Ordering::Relaxed);
        });
        for name in &names {
            assert_eq!(owner(&outside.join(name)), 61_400, "{name}");
        }
        // Gives away the rest, which was in another place when its turn came.
        for before in [61_200, 61_300] {
            hand_over(&data, before, (61_500, 61_500)).unwrap();
        }
        let stayed = [&sub, &link].into_iter().find(|p| !p.is_symlink()).unwrap();
        for name in &names {
            assert_eq!(owner(&stayed.join(name)), 61_500, "{name}");
        }
    }

    #[test]
    fn a_tree_that_is_too_deep_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let nested = |name: &str, levels: usize| {
            let top = dir.path().join(name);
            fs::create_dir(&top).unwrap();
            let mut at = openat(CWD, &top, OFlags::PATH, Mode::empty()).unwrap();
            for _ in 1..levels {
                mkdirat(&at, "d\n", Mode::RWXU).unwrap();
                at = openat(&at, "d\n", OFlags::PATH, Mode::empty()).unwrap();
            }
            top
        };
        let found = fs::metadata(dir.path()).unwrap();
        let (own, group) = (found.uid(), found.gid());
        hand_over(&nested("deep", DEEPEST), own, (own, group)).unwrap();
        let refused = hand_over(&nested("deeper", DEEPEST + 1), own, (own, group));
        let said = refused.unwrap_err().to_string();
        assert!(said.starts_with(r#""d\n/d\n/"#), "{said}");
        assert!(said.len() < 200 && said.contains("256"), "{said}");
    }
}
