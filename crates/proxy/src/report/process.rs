//! Resources of this process, as the kernel tells it.

use std::fs::read_to_string;
use std::time::Duration;

/// Milliseconds of a tick of /proc: USER_HZ is 100 on every architecture that Linux shows to programs.
const TICK_MS: u64 = 10;

/// CPU time and memory. What cannot be read is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProcessUsage {
    /// Spent since the start.
    pub cpu: Duration,
    /// Bytes.
    pub resident: u64,
}

impl ProcessUsage {
    /// Returns the present numbers.
    pub fn now() -> Self {
        let read = |file| read_to_string(file).unwrap_or_default();
        Self {
            cpu: cpu(&read("/proc/self/stat")).unwrap_or_default(),
            resident: resident(&read("/proc/self/status")).unwrap_or_default(),
        }
    }
}

/// proc(5): `utime` and `stime` are the 14th and 15th field; the name before them may hold anything.
fn cpu(stat: &str) -> Option<Duration> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis((next()? + next()?) * TICK_MS))
}

/// `VmRSS:      1234 kB`
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 150 50 0 0 20 0";
        assert_eq!(cpu(stat), Some(Duration::from_secs(2)));
        assert_eq!(resident("VmRSS:\t    2048 kB\n"), Some(2_097_152));
        assert!(ProcessUsage::now().resident > 0);
    }
}
