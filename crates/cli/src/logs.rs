//! `tulle logs`: the output of a process of the mesh, also after the mesh is down.

use crate::args::workloads::Logs;
use crate::failure::{Failure, OrFail, Result};
use crate::paths::Paths;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LOOK: Duration = Duration::from_millis(200);

/// Prints a log, and what is added to it if asked to.
pub(crate) fn logs(paths: &Paths, args: &Logs) -> Result<()> {
    let path = find(paths, args)?;
    let what = || format!("cannot read {}", path.display());
    let mut file = File::open(&path).or_fail(what)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).or_fail(what)?;
    let mut at = bytes.len() as u64;
    if !print(last_lines(&bytes, args.tail)) {
        return Ok(());
    }
    if !args.follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(LOOK);
        let length = file.metadata().or_fail(what)?.len();
        if length < at {
            at = 0; // it was cut short
        }
        if length > at {
            file.seek(SeekFrom::Start(at)).or_fail(what)?;
            bytes.clear();
            file.read_to_end(&mut bytes).or_fail(what)?;
            at += bytes.len() as u64;
            if !print(&bytes) {
                return Ok(());
            }
        }
    }
}

/// False when the reader is gone.
fn print(bytes: &[u8]) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).is_ok()
}

fn find(paths: &Paths, args: &Logs) -> Result<PathBuf> {
    let name = &args.workload;
    // A gateway has no process but its proxy.
    let candidates = if args.sidecar {
        vec![format!("{name}.sidecar"), format!("gateway.{name}.sidecar")]
    } else {
        vec![
            name.clone(),
            format!("gateway.{name}.sidecar"),
            format!("{name}.sidecar"),
        ]
    };
    let known = known(&paths.logs());
    let found = candidates.iter().find(|c| known.contains(c));
    found.map(|c| paths.log(c)).ok_or_else(|| {
        Failure::new(format!("there is no log of {name}")).fix(if known.is_empty() {
            "nothing has run here yet; name another mesh with --state or --name".to_owned()
        } else {
            format!("there are logs of: {}", known.join(", "))
        })
    })
}

/// Names of the processes that have a log.
pub(crate) fn known(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter_map(|n| n.strip_suffix(".log").map(str::to_owned))
        .collect();
    names.sort_unstable();
    names
}

/// The last lines; none: all of them.
pub(crate) fn last_lines(bytes: &[u8], lines: Option<usize>) -> &[u8] {
    let Some(lines) = lines else { return bytes };
    let ends = bytes.iter().enumerate().rev().filter(|(_, b)| **b == b'\n');
    // The newline at the very end closes the last line, it does not begin another.
    let last_is_end = bytes.last() == Some(&b'\n');
    let skip = if last_is_end {
        lines
    } else {
        lines.saturating_sub(1)
    };
    if lines == 0 {
        return &[];
    }
    let start = ends.map(|(at, _)| at + 1).nth(skip).unwrap_or(0);
    bytes.get(start..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines() {
        let text = b"a\nb\nc\n";
        assert_eq!(last_lines(text, None), text);
        assert_eq!(last_lines(text, Some(1)), b"c\n");
        assert_eq!(last_lines(text, Some(2)), b"b\nc\n");
        assert_eq!(last_lines(text, Some(9)), text);
        assert_eq!(last_lines(text, Some(0)), b"");
        assert_eq!(last_lines(b"a\nb", Some(1)), b"b");
        assert_eq!(last_lines(b"", Some(3)), b"");
    }
}
