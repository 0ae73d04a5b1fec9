//! Keeps logs bounded: what is longer than [`LONGEST`] is cut to its last [`KEPT`] bytes.
//!
//! The writers append, so they go on at the new end. A line written during the cut may be lost.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

const LONGEST: u64 = 10 << 20;
const KEPT: u64 = 1 << 20;

/// Looks at every file of the directory.
pub(crate) fn trim_all(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    for path in entries.filter_map(|e| Some(e.ok()?.path())) {
        if let Err(e) = trim(&path, LONGEST, KEPT) {
            tracing::warn!(file = %path.display(), error = %e, "cannot cut the log");
        }
    }
}

fn trim(path: &Path, longest: u64, kept: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).open(path)?;
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

    #[test]
    fn a_long_log_keeps_its_last_whole_lines_and_its_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let mut writer = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .unwrap();
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
}
