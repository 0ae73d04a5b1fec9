//! Keeps logs bounded: what is longer than [`LONGEST`] is cut to its last [`KEPT`] bytes.
//!
//! The writers append, so they go on at the new end. A line written during the cut may be lost.

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const LONGEST: u64 = 10 << 20;
const KEPT: u64 = 1 << 20;

/// Cuts logs.
#[derive(Debug, Default)]
pub(crate) struct Trimmer {
    /// Logs that could not be cut. The supervisor's own log tells of each once.
    failed: BTreeSet<PathBuf>,
}

impl Trimmer {
    /// Looks at every file of the directory.
    pub(crate) fn trim_all(&mut self, directory: &Path) {
        let Ok(entries) = std::fs::read_dir(directory) else {
            return;
        };
        for path in entries.filter_map(|e| Some(e.ok()?.path())) {
            if let Err(e) = trim(&path, LONGEST, KEPT)
                && !self.failed.contains(&path)
            {
                tracing::warn!(file = %path.display(), error = %e, "cannot cut the log");
                self.failed.insert(path);
            }
        }
    }
}

/// Opens a log for a process that writes to it, and makes one that is not there.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = open_now(path, OFlags::WRONLY | OFlags::CREATE)?;
    // The process inherits the flags with the file.
    let flags = fcntl_getfl(&file)?.difference(OFlags::NONBLOCK);
    fcntl_setfl(&file, flags)?;
    Ok(file)
}

/// Opens a log to append to it, so that cutting the file short keeps writers right. Where a process has a lease on the
/// file it fails at once: to wait for the end of the lease would stop the supervisor.
fn open_now(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    Ok(rustix::fs::open(path, flags, mode)?.into())
}

fn trim(path: &Path, longest: u64, kept: u64) -> io::Result<()> {
    let mut file = open_now(path, OFlags::RDWR)?;
    if file.metadata()?.len() <= longest {
        return Ok(());
    }
    let tail = tail(&mut file, kept)?;
    file.set_len(0)?;
    file.write_all(&tail)
}

/// The last bytes, from the start of a line.
fn tail(file: &mut File, kept: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(kept)))?;
    let mut bytes = Vec::new();
    file.take(kept).read_to_end(&mut bytes)?;
    let start = bytes
        .iter()
        .position(|b| *b == b'\n')
        .map_or(0, |at| at + 1);
    Ok(bytes.split_off(start.min(bytes.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::user::{Account, give_log};
    use std::fs::OpenOptions;
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::process::{Child, Command, Stdio};

    #[test]
    fn a_long_log_keeps_its_last_whole_lines_and_its_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let mut writer = open(&path).unwrap();
        for n in 0..100 {
            writeln!(writer, "line {n}").unwrap();
        }
        trim(&path, 1000, 20).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 100);
        trim(&path, 500, 20).unwrap();
        writeln!(writer, "after").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "line 98\nline 99\nafter\n");
    }

    /// Starts a program with the log as its standard input.
    fn python(script: &str, arguments: &[u32], log: &Path) -> Child {
        Command::new("python3")
            .args(["-c", script])
            .args(arguments.iter().map(u32::to_string))
            .stdin(File::open(log).unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3")
    }

    #[test]
    fn an_application_may_write_to_its_log_and_take_no_lease_on_it() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: it needs root");
        }
        let script = "import errno, fcntl, os, sys
user, group = map(int, sys.argv[1:])
os.setgroups([])
os.setgid(group)
os.setuid(user)
try:
    fcntl.fcntl(0, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    print('leased')
except OSError as e:
    print(errno.errorcode[e.errno])
with open('/proc/self/fd/0', 'ab') as log:
    log.write(b'by its path\\n')
";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        writeln!(open(&path).unwrap(), "first").unwrap();
        let account = Account {
            ids: (61_200, 61_300),
            known: None,
        };
        give_log(&path, &account).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (0, 61_300));
        assert_eq!(found.permissions().mode() & 0o7777, 0o660);
        let child = python(script, &[61_200, 61_300], &path);
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "EACCES\n");
        let text = || std::fs::read_to_string(&path).unwrap();
        assert_eq!(text(), "first\nby its path\n");
        trim(&path, 15, 15).unwrap();
        assert_eq!(text(), "by its path\n");
    }

    #[test]
    fn a_lease_on_a_log_keeps_nobody_waiting() {
        let script = "import fcntl, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(0, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print('leased', flush=True)
time.sleep(600)
";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        std::fs::write(&path, "a\nb\n").unwrap();
        let mut child = python(script, &[], &path);
        let mut said = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut said).unwrap();
        let results = [trim(&path, 2, 2), open(&path).map(drop)];
        let mut trimmer = Trimmer::default();
        trimmer.trim_all(dir.path());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(said, "leased\n");
        for result in results {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        assert_eq!(trimmer.failed, BTreeSet::from([path.clone()]));
        trim(&path, 2, 2).unwrap();
    }

    #[test]
    fn a_process_inherits_a_log_as_any_other_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let flags = fcntl_getfl(open(&path).unwrap()).unwrap();
        let mut usual = OpenOptions::new();
        let usual = usual.append(true).open(&path).unwrap();
        assert_eq!(flags, fcntl_getfl(usual).unwrap());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }
}
