//! The supervisor's own log: a file in the run directory, and for a service also where the machine keeps
//! its logs.

use crate::controller::log_level;
use crate::failure::{Failure, OrFail, Result};
use crate::paths::Paths;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A log file of a service takes twice this much of the disk at most.
const LONGEST: u64 = 5 << 20;

/// Where the lines go, too.
pub(crate) enum Also {
    /// The screen shows the mesh instead.
    Nowhere,
    /// The log of a container, say.
    StandardError,
    /// systemd's journal, which reads before a line how grave it is.
    Journal,
    /// A file that is kept from growing.
    Rotated(RotatedFile),
}

impl Also {
    /// The place that options of a command name.
    pub(crate) fn named(service: bool, log_file: Option<&Path>) -> Result<Self> {
        Ok(match log_file {
            Some(file) => Self::Rotated(RotatedFile::open(file)?),
            None if service && is_journal() => Self::Journal,
            None if service => Self::StandardError,
            None => Self::Nowhere,
        })
    }
}

/// Starts the log.
pub(crate) fn start(paths: &Paths, also: Also) -> Result<()> {
    let path = paths.log("supervisor");
    let kept = append(&path).or_fail(|| format!("cannot write {}", path.display()))?;
    let level = log_level()?;
    let made = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        // A log that cannot be written is no reason to write to the terminal, or to end.
        .log_internal_errors(false)
        .with_writer(std::sync::Mutex::new(Log { kept, also }))
        .try_init();
    made.map_err(|e| Failure::new("cannot start logging").because(e))
}

fn append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600).open(path)
}

struct Log {
    kept: File,
    also: Also,
}

impl Write for Log {
    /// A disk that is full keeps no line from the other place.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let kept = self.kept.write_all(line);
        match &mut self.also {
            Also::Nowhere => kept?,
            Also::StandardError => io::stderr().write_all(line)?,
            // At once: another's line may come in between.
            Also::Journal => io::stderr().write_all(&[priority(line), line].concat())?,
            Also::Rotated(file) => file.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether standard error is the journal: systemd names that by device and inode.
fn is_journal() -> bool {
    let file = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    let Ok(found) = file.and_then(|file| file.metadata()) else {
        return false;
    };
    let own = format!("{}:{}", found.dev(), found.ino());
    std::env::var("JOURNAL_STREAM").is_ok_and(|named| named == own)
}

/// The priority that a line's level stands for, as sd-daemon(3) has them.
fn priority(line: &[u8]) -> &'static [u8] {
    let words = line.split(|byte| *byte == b' ');
    // Behind the time.
    match words.filter(|word| !word.is_empty()).nth(1) {
        Some(b"ERROR") => b"<3>",
        Some(b"WARN") => b"<4>",
        Some(b"DEBUG" | b"TRACE") => b"<7>",
        _ => b"<6>",
    }
}

/// A log file whose beginning moves to `FILE.1`, whose own beginning goes.
pub(crate) struct RotatedFile {
    path: PathBuf,
    file: File,
    length: u64,
    longest: u64,
}

impl RotatedFile {
    /// Goes on at its end.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::with_longest(path, LONGEST).or_fail(|| format!("cannot write {}", path.display()))
    }

    fn with_longest(path: &Path, longest: u64) -> io::Result<Self> {
        let file = append(path)?;
        Ok(Self {
            length: file.metadata()?.len(),
            path: path.to_owned(),
            file,
            longest,
        })
    }

    fn rotate(&self) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        fs::rename(&self.path, old)
    }

    /// Goes on with the file that is at the path now, if there can be one.
    fn reopen(&mut self) {
        if let Ok(new) = Self::with_longest(&self.path, self.longest) {
            *self = new;
        }
    }

    /// Whether this is still the file at the path: it is not once somebody has removed or moved it.
    fn is_at_path(&self) -> bool {
        let id = |found: fs::Metadata| (found.dev(), found.ino());
        let own = self.file.metadata().map(id);
        fs::metadata(&self.path)
            .map(id)
            .is_ok_and(|there| own.is_ok_and(|own| own == there))
    }
}

impl Write for RotatedFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A usize is a u64 wherever Linux runs.
        let more = line.len() as u64;
        if !self.is_at_path() {
            self.reopen();
        }
        if self.length > 0 && self.length + more > self.longest {
            // One that cannot be moved away grows on.
            if self.rotate().is_ok() {
                self.reopen();
            }
        }
        self.file.write_all(line)?;
        self.length += more;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_gets_the_level_of_a_line() {
        for (level, expected) in [
            ("ERROR", "<3>"),
            (" WARN", "<4>"),
            (" INFO", "<6>"),
            ("DEBUG", "<7>"),
        ] {
            let line =
                format!("2026-11-25T09:56:10.452156Z {level} an ERROR is only a word here\n");
            assert_eq!(priority(line.as_bytes()), expected.as_bytes(), "{line}");
        }
        assert_eq!(priority(b""), b"<6>");
    }

    #[test]
    fn no_line_is_lost_when_a_file_is_rotated_and_two_files_are_all_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tulle.log");
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        for line in 0..25 {
            // As after a restart.
            let mut log = RotatedFile::with_longest(&path, 80).unwrap();
            // Whole, as a log is written.
            log.write_all(format!("line {line:03}\n").as_bytes())
                .unwrap();
        }
        // Eight bytes and a line end: eight lines fit.
        let lines = read("tulle.log.1") + &read("tulle.log");
        let expected: String = (16..25).map(|n| format!("line {n:03}\n")).collect();
        assert_eq!(lines, expected);
        assert_eq!(read("tulle.log").lines().count(), 1);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);

        // One that somebody has taken away is made anew.
        let mut log = RotatedFile::with_longest(&path, 80).unwrap();
        for line in ["first\n", "second\n"] {
            fs::remove_file(&path).unwrap();
            log.write_all(line.as_bytes()).unwrap();
            assert_eq!(read("tulle.log"), line);
        }
        fs::rename(&path, dir.path().join("moved")).unwrap();
        log.write_all(&[b'x'; 76]).unwrap();
        log.write_all(b"more\n").unwrap();
        assert_eq!((read("moved").len(), read("tulle.log.1").len()), (7, 76));
        assert_eq!(read("tulle.log"), "more\n");
    }
}
