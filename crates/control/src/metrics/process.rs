//! This process, as Prometheus' client libraries tell it of any.

use super::Text;

/// Ticks in a second of /proc: USER_HZ, the same on every architecture that Linux shows to programs.
const TICKS: f64 = 100.0;

/// Writes the metrics of the process. Values that cannot be read are left out.
pub(crate) fn write(text: &mut Text) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(bytes) = resident(&status) {
        let help = "Memory that is resident, in bytes.";
        text.single("process_resident_memory_bytes", "gauge", help, bytes);
    }
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    if let Some(seconds) = cpu_seconds(&stat) {
        let help = "CPU time spent, in seconds.";
        text.single("process_cpu_seconds_total", "counter", help, seconds);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        let help = "File descriptors that are open.";
        text.single("process_open_fds", "gauge", help, open.count());
    }
}

/// `VmRSS:      1234 kB`
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// proc(5): `utime` and `stime` are the 14th and 15th field; the name before them may hold anything.
#[allow(clippy::cast_precision_loss)]
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some((next()? + next()?) as f64 / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2_097_152));
        assert_eq!(resident("Name:\tx\n"), None);
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 150 50 0 0 20 0";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("7 (a) S 1"), None);
    }

    #[test]
    fn of_this_process_all_is_known() {
        let mut text = Text::default();
        write(&mut text);
        let text = text.end();
        for name in ["resident_memory_bytes", "cpu_seconds_total", "open_fds"] {
            assert!(text.contains(&format!("\nprocess_{name} ")), "{text}");
        }
    }
}
