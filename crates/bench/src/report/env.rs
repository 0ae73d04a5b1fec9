//! The machine that measured, so that a reader can judge the figures and repeat them.

use serde::{Deserialize, Serialize};
use std::fs;

/// `env.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Model of the processor.
    pub cpu: String,
    /// CPUs this process may use.
    pub cpus: usize,
    /// Memory.
    pub memory_gib: u64,
    /// Linux's release.
    pub kernel: String,
    /// `x86_64`, `aarch64`.
    pub architecture: String,
    /// Of the operating system.
    pub system: String,
}

impl Environment {
    /// Of this machine.
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |text: &str, key: &str, separator: char| {
            let value = |line: &str| {
                let (found, value) = line.split_once(separator)?;
                (found.trim() == key).then(|| value.trim().trim_matches('"').to_owned())
            };
            text.lines().find_map(value)
        };
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory = field(&meminfo, "MemTotal", ':').unwrap_or_default();
        let kib: u64 = memory
            .split(' ')
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or(0);
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let uname = rustix::system::uname();
        let machine = uname.machine().to_string_lossy().into_owned();
        Self {
            cpu: field(&cpuinfo, "model name", ':').unwrap_or_else(|| machine.clone()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: (kib + (1 << 19)) >> 20,
            kernel: uname.release().to_string_lossy().into_owned(),
            architecture: machine,
            system: field(&release, "PRETTY_NAME", '=').unwrap_or_default(),
        }
    }
}

/// Now, for a reader and for a file's name, in UTC.
pub(super) fn now() -> (String, String) {
    let now = time::OffsetDateTime::now_utc();
    let (date, time) = (now.date(), now.time());
    let (hour, minute, second) = time.as_hms();
    (
        format!("{date} {hour:02}:{minute:02} UTC"),
        format!("{date}-{hour:02}{minute:02}{second:02}"),
    )
}
