//! Memory of another process, from `/proc`.

use std::fs::read_to_string;

/// qemu's user mode keeps what is its own above this address, and the memory of the program that it runs below.
const BELOW_QEMU: u64 = 1 << 40;

/// Resident memory of a process in bytes.
pub(crate) fn resident(pid: u32) -> u64 {
    of_emulated(pid, "Rss:").unwrap_or_else(|| status(pid, "VmRSS:"))
}

/// Memory of its own in bytes: without the pages of files, which come and go.
pub(crate) fn anonymous(pid: u32) -> u64 {
    of_emulated(pid, "Anonymous:").unwrap_or_else(|| status(pid, "RssAnon:"))
}

/// Most resident memory so far, in bytes. What qemu has now, if that runs the process, is taken for what it had then.
pub(crate) fn peak(pid: u32) -> u64 {
    let of_qemu =
        of_emulated(pid, "Rss:").map_or(0, |own| status(pid, "VmRSS:").saturating_sub(own));
    status(pid, "VmHWM:").saturating_sub(of_qemu)
}

fn status(pid: u32, field: &str) -> u64 {
    let text = read_to_string(format!("/proc/{pid}/status")).unwrap();
    text.lines().find_map(|line| bytes(line, field)).unwrap()
}

/// Memory of a program of another architecture (scripts/test-foreign.sh), without what qemu takes to run it.
fn of_emulated(pid: u32, field: &str) -> Option<u64> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let name = program.file_name()?.to_str()?;
    let text = || read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    name.starts_with("qemu-").then(|| sum_below(&text(), field))
}

/// The sum of a field of all mappings in `smaps` that are the program's.
fn sum_below(smaps: &str, field: &str) -> u64 {
    let mut is_below = false;
    let mut sum = 0;
    for line in smaps.lines() {
        if let Some(start) = line.split_once('-').map(|(start, _)| start)
            && let Ok(start) = u64::from_str_radix(start, 16)
        {
            is_below = start < BELOW_QEMU;
        } else if is_below {
            sum += bytes(line, field).unwrap_or(0);
        }
    }
    sum
}

/// `VmRSS:      1234 kB`
fn bytes(line: &str, field: &str) -> Option<u64> {
    let amount = line.strip_prefix(field)?.split_whitespace().next()?;
    Some(amount.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of what Linux 6.1 said of a program of arm64 that qemu 7.2 ran.
    const SMAPS: &str = "\
00400000-0045f000 r--p 00000000 fe:00 9978104                            /tmp/program
Size:                380 kB
Rss:                 380 kB
Anonymous:             0 kB
VmFlags: rd mr mw me sd
00471000-00473000 rw-p 00000000 00:00 0
Rss:                   8 kB
Anonymous:             8 kB
5500001000-5500801000 rw-p 00000000 00:00 0
Rss:                   4 kB
Anonymous:             4 kB
555567668000-555567785000 rw-p 00000000 00:00 0                          [heap]
Rss:                1116 kB
Anonymous:          1116 kB
7f1dd2228000-7f1dd26a7000 r-xp 00228000 fe:00 10166405                   /usr/bin/qemu-aarch64-static
Rss:                2400 kB
Anonymous:             0 kB
";

    #[test]
    fn of_what_qemu_runs_only_its_own_counts() {
        assert_eq!(sum_below(SMAPS, "Rss:"), (380 + 8 + 4) * 1024);
        assert_eq!(sum_below(SMAPS, "Anonymous:"), (8 + 4) * 1024);
    }

    #[test]
    fn of_any_other_process_all_counts() {
        let own = std::process::id();
        assert_eq!(of_emulated(own, "Rss:"), None);
        assert!(anonymous(own) > 0 && resident(own) > anonymous(own));
        assert!(peak(own) >= resident(own) / 2);
    }
}
