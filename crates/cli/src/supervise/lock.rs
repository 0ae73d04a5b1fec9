//! One supervisor for each mesh: a lock on a file, which the kernel takes back however it ends.
//!
//! The state file cannot do this: between reading it and writing one's own, another may do the
//! same.

use crate::failure::{Failure, OrFail, Result};
use crate::paths::Paths;
use crate::proc::ProcessId;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

/// How long the kernel may take to take the lock back from one that was killed: its first thread
/// is a zombie before the last one has closed its files.
const GIVEN_BACK: Duration = Duration::from_secs(5);

/// The content of the file.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Holder {
    #[serde(flatten)]
    id: ProcessId,
    /// It holds the lock to clear up, and ends by itself. Earlier versions do not say so.
    #[serde(default)]
    clears: bool,
}

/// The right to be the mesh's supervisor, or to clear up where there is none, while it is held. No child inherits it.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes it, to keep the mesh up; a failure says who has it. The directory exists.
    pub(crate) fn take_to_supervise(paths: &Paths) -> Result<Self> {
        Self::take_as(false, paths, GIVEN_BACK, |_| false)
    }

    /// Takes it, to clear up.
    pub(crate) fn take(paths: &Paths) -> Result<Self> {
        Self::take_within(paths, GIVEN_BACK, |_| false)
    }

    /// Takes it likewise, if need be from a holder that is about to end: it has this long.
    pub(crate) fn take_within(
        paths: &Paths,
        patience: Duration,
        ends: impl Fn(ProcessId) -> bool,
    ) -> Result<Self> {
        Self::take_as(true, paths, patience, ends)
    }

    fn take_as(
        clears: bool,
        paths: &Paths,
        patience: Duration,
        ends: impl Fn(ProcessId) -> bool,
    ) -> Result<Self> {
        let what = || format!("cannot lock {}", paths.lock().display());
        let mut file = open(paths).or_fail(what)?;
        let until = Instant::now() + patience;
        loop {
            match file.try_lock() {
                Ok(()) if is_in_place(&file, paths) => break,
                // Its holder has removed it with the directory. It would keep nobody out who makes another.
                Ok(()) if Instant::now() < until => {
                    file = open(paths).or_fail(what)?;
                    continue;
                }
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(e).or_fail(what),
            }
            let holder = read(&mut file).map(|holder| holder.id);
            let stays = holder.is_some_and(|holder| holder.is_alive() && !ends(holder));
            if stays || Instant::now() >= until {
                let who = holder.map_or_else(String::new, |id| id.pid.to_string());
                return Err(up_already(&who));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let own = Holder {
            id: ProcessId::current(),
            clears,
        };
        let own = serde_json::to_vec(&own).or_fail(what)?;
        file.set_len(0).or_fail(what)?;
        std::os::unix::fs::FileExt::write_all_at(&file, &own, 0).or_fail(what)?;
        file.flush().or_fail(what)?;
        Ok(Self { _file: file })
    }

    /// Returns the process that holds the lock now.
    pub(crate) fn holder(paths: &Paths) -> Option<ProcessId> {
        Self::held(paths).map(|holder| holder.id)
    }

    /// Returns the process that holds the lock now to keep the mesh up.
    pub(crate) fn supervisor(paths: &Paths) -> Option<ProcessId> {
        let holder = Self::held(paths).filter(|holder| !holder.clears);
        holder.map(|holder| holder.id)
    }

    fn held(paths: &Paths) -> Option<Holder> {
        let mut file = File::open(paths.lock()).ok()?;
        match file.try_lock_shared() {
            // Nobody; closing the file gives it back.
            Ok(()) => None,
            Err(_) => read(&mut file),
        }
    }
}

fn open(paths: &Paths) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(paths.lock())
}

/// Whether a file is the one that others find.
fn is_in_place(file: &File, paths: &Paths) -> bool {
    match (file.metadata(), std::fs::metadata(paths.lock())) {
        (Ok(own), Ok(found)) => (own.dev(), own.ino()) == (found.dev(), found.ino()),
        _ => false,
    }
}

/// Empty for a moment, while its holder writes it.
fn read(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// The failure of a second `up`.
pub(crate) fn up_already(pid: &str) -> Failure {
    Failure::new("the mesh is up already")
        .because(format!("its supervisor is process {pid}"))
        .fix("change it with `tulle apply FILE`, or stop it with `tulle down` first; --state DIR or --name starts another beside it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths_in(directory: &std::path::Path) -> Paths {
        let paths = Paths {
            name: "l".into(),
            state: directory.join("state"),
            run: directory.join("run"),
        };
        paths.create().unwrap();
        paths
    }

    #[test]
    fn only_one_has_it_and_the_other_is_told_who() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths_in(dir.path());
        assert_eq!(Lock::holder(&paths), None);
        let lock = Lock::take_to_supervise(&paths).unwrap();
        assert_eq!(Lock::supervisor(&paths), Some(ProcessId::current()));
        let failure = Lock::take(&paths).unwrap_err().to_string();
        assert!(
            failure.contains(&std::process::id().to_string()),
            "{failure}"
        );
        assert_eq!(Lock::holder(&paths), Some(ProcessId::current()));
        drop(lock);
        // A child that another test is starting has it until it runs its own program.
        let end = Instant::now() + GIVEN_BACK;
        while Lock::holder(&paths).is_some() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Lock::holder(&paths), None);
        let _lock = Lock::take(&paths).unwrap();
        assert_eq!(Lock::holder(&paths), Some(ProcessId::current()));
        assert_eq!(Lock::supervisor(&paths), None, "it clears up");
    }

    #[test]
    fn a_holder_of_an_earlier_version_is_read() {
        let held: Holder = serde_json::from_str(r#"{"pid":7,"started":8}"#).unwrap();
        assert_eq!((held.id.pid, held.id.started, held.clears), (7, 8, false));
    }

    #[test]
    fn a_holder_that_is_about_to_end_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths_in(dir.path());
        let lock = Lock::take(&paths).unwrap();
        let soon = Duration::from_millis(20);
        assert!(Lock::take_within(&paths, soon, |_| true).is_err());
        assert!(Lock::take_within(&paths, GIVEN_BACK, |_| false).is_err());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let ends = |holder: ProcessId| holder == ProcessId::current();
                Lock::take_within(&paths, GIVEN_BACK, ends).map(drop)
            });
            // Time for it to be refused, if it were.
            std::thread::sleep(Duration::from_millis(100));
            drop(lock);
            second.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_lock_whose_file_was_removed_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths_in(dir.path());
        let lock = Lock::take(&paths).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| Lock::take_within(&paths, GIVEN_BACK, |_| true));
            // Time for it to open the file.
            std::thread::sleep(Duration::from_millis(100));
            std::fs::remove_file(paths.lock()).unwrap();
            drop(lock);
            let second = second.join().unwrap().unwrap();
            assert_eq!(Lock::holder(&paths), Some(ProcessId::current()));
            drop(second);
        });
    }

    #[test]
    fn a_dead_holder_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths_in(dir.path());
        let lock = Lock::take(&paths).unwrap();
        // Not a child's: until it has its own program, a child has the locks of other tests, too.
        let dead = ProcessId {
            started: 0,
            ..ProcessId::current()
        };
        std::fs::write(paths.lock(), serde_json::to_vec(&dead).unwrap()).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| Lock::take(&paths).map(drop));
            // Time for it to be refused, if it were.
            std::thread::sleep(Duration::from_millis(100));
            drop(lock);
            second.join().unwrap().unwrap();
        });
    }
}
