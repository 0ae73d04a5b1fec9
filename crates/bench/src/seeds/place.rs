//! A directory of this run's own: the applications' archives, the mesh's state, outputs of tools.

use crate::failure::{Failure, OrFail, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PREFIX: &str = "tulle-seeds-";

/// Removed with this value.
pub(super) struct Place {
    directory: PathBuf,
}

impl Place {
    /// Makes it, after clearing up what killed runs left, their meshes too.
    pub(super) fn make(tulle: &Path) -> Result<Self> {
        let parent = std::env::temp_dir();
        for (id, directory) in abandoned(&parent) {
            down(tulle, &mesh_name(id), &directory.join("state"));
            end_users_of(&directory);
            let _ = fs::remove_dir_all(directory);
        }
        let directory = parent.join(format!("{PREFIX}{}", std::process::id()));
        // Applications run as other users and pass through it. It must not be there yet: a
        // directory that somebody else made stays somebody else's.
        let made = DirBuilder::new().mode(0o711).create(&directory);
        made.or_fail(|| format!("cannot make {}", directory.display()))?;
        Ok(Self { directory })
    }

    /// A file in it.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Name of the mesh that the bench of this process id starts.
pub(super) fn mesh_name(id: u32) -> String {
    format!("bench-{id}")
}

/// Directories of ours whose process is gone, with its id.
fn abandoned(parent: &Path) -> Vec<(u32, PathBuf)> {
    let own = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let name = entry.file_name();
        let id: u32 = name.to_str()?.strip_prefix(PREFIX)?.parse().ok()?;
        let metadata = entry.metadata().ok()?;
        let gone = !Path::new(&format!("/proc/{id}")).exists();
        (metadata.is_dir() && metadata.uid() == own && gone).then(|| (id, entry.path()))
    });
    found.collect()
}

/// Ends a mesh and removes everything of it; that there is none is fine.
pub(super) fn down(tulle: &Path, name: &str, state: &Path) -> Option<Failure> {
    let mut command = Command::new(tulle);
    command
        .args(["down", "--purge", "--timeout", "10s", "--name", name])
        .arg("--state")
        .arg(state)
        // In a group of its own: a second Ctrl-C must not keep it from its work.
        .stdin(Stdio::null());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    match command.output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Some(Failure::failed(format!(
                "the mesh {name} could not be ended: {}",
                text.trim()
            )))
        }
        Err(e) => Some(Failure::failed(format!(
            "cannot run {}: {e}",
            tulle.display()
        ))),
    }
}

/// Ends what has a file of this directory in its command line: a load generator whose bench was
/// killed would go on.
fn end_users_of(directory: &Path) {
    let mut inside = directory.as_os_str().as_encoded_bytes().to_vec();
    inside.push(b'/');
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let id = entry.file_name().to_str().and_then(|n| n.parse().ok());
        let Some(id) = id.and_then(Pid::from_raw) else {
            continue;
        };
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if words.windows(inside.len()).any(|part| part == inside) {
            let _ = kill_process(id, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn who_was_given_a_file_of_the_directory_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x");
        // Waits for a line that nobody writes.
        let mut shell = Command::new("sh");
        shell.args(["-c", "read line; :"]).arg(&file);
        let mut user = shell.stdin(Stdio::piped()).spawn().unwrap();
        // Its command line shows a moment after it has started.
        let until = Instant::now() + Duration::from_secs(10);
        let status = loop {
            end_users_of(directory.path());
            if let Some(status) = user.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "it lives");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(!status.success());
    }

    #[test]
    fn only_directories_of_processes_that_are_gone_are_abandoned() {
        let parent = tempfile::tempdir().unwrap();
        let own = std::process::id();
        for name in [
            format!("{PREFIX}{own}"),
            // Above the highest that Linux gives.
            format!("{PREFIX}4194999"),
            format!("{PREFIX}x"),
            "other-4194999".to_owned(),
        ] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        fs::write(parent.path().join(format!("{PREFIX}4194998")), "").unwrap();
        let gone = parent.path().join(format!("{PREFIX}4194999"));
        assert_eq!(abandoned(parent.path()), [(4_194_999, gone)]);
    }
}
