//! One supervisor for each mesh: a lock on a file, which the kernel takes back however it ends.
//!
//! The state file cannot do this: between reading it and writing one's own, another may do the
//! same.

use crate::failure::{Failure, OrFail, Result};
use crate::paths::Paths;
use crate::proc::ProcessId;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;

/// The right to be the mesh's supervisor, while it is held. No child inherits it.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes it; a failure says who has it. The directory exists.
    pub(crate) fn take(paths: &Paths) -> Result<Self> {
        let what = || format!("cannot lock {}", paths.lock().display());
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(paths.lock())
            .or_fail(what)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let who = read(&mut file).map_or_else(String::new, |id| id.pid.to_string());
                return Err(up_already(&who));
            }
            Err(e) => return Err(e).or_fail(what),
        }
        let id = serde_json::to_vec(&ProcessId::current()).or_fail(what)?;
        file.set_len(0).or_fail(what)?;
        std::os::unix::fs::FileExt::write_all_at(&file, &id, 0).or_fail(what)?;
        file.flush().or_fail(what)?;
        Ok(Self { _file: file })
    }

    /// Who holds it now.
    pub(crate) fn holder(paths: &Paths) -> Option<ProcessId> {
        let mut file = File::open(paths.lock()).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            // Nobody; closing the file gives it back.
            Ok(()) => None,
            Err(_) => read(&mut file),
        }
    }
}

/// Empty for a moment, while its holder writes it.
fn read(file: &mut File) -> Option<ProcessId> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// What a second `up` is told.
pub(crate) fn up_already(pid: &str) -> Failure {
    Failure::new("the mesh is up already")
        .because(format!("its supervisor is process {pid}"))
        .fix("change it with `tulle apply FILE`, or stop it with `tulle down` first; --state DIR or --name starts another beside it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_has_it_and_the_other_is_told_who() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            name: "l".into(),
            state: dir.path().join("state"),
            run: dir.path().join("run"),
        };
        paths.create().unwrap();
        assert_eq!(Lock::holder(&paths), None);
        let lock = Lock::take(&paths).unwrap();
        let failure = Lock::take(&paths).unwrap_err().to_string();
        assert!(
            failure.contains(&std::process::id().to_string()),
            "{failure}"
        );
        assert_eq!(Lock::holder(&paths), Some(ProcessId::current()));
        drop(lock);
        assert_eq!(Lock::holder(&paths), None);
        Lock::take(&paths).unwrap();
    }
}
