//! The machine that measured, so that a reader can judge the figures and repeat them.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The machine, as `env.json` describes it.
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
    /// The name of the operating system.
    pub system: String,
    /// How the processor's clock is governed, where the machine says so: `performance` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// The version of the control groups that limit sidecars: `v2`, `v1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The commit of the checkout that it ran in, with `-dirty` when files were changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

impl Environment {
    /// Reads the environment of this machine.
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
            governor: fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .ok()
                .map(|text| text.trim().to_owned()),
            cgroup: cgroup().map(str::to_owned),
            commit: commit(),
        }
    }

    /// Name and value of everything that is known.
    pub fn lines(&self) -> Vec<(String, String)> {
        let known = [
            ("processor", Some(self.cpu.clone())),
            ("CPUs", Some(self.cpus.to_string())),
            ("memory", Some(format!("{} GiB", self.memory_gib))),
            ("system", Some(self.system.clone())),
            (
                "Linux",
                Some(format!("{} {}", self.kernel, self.architecture)),
            ),
            ("governor", self.governor.clone()),
            ("control groups", self.cgroup.clone()),
            ("commit", self.commit.clone()),
        ];
        let known = known.into_iter();
        known
            .filter_map(|(name, value)| Some((name.to_owned(), value.filter(|v| !v.is_empty())?)))
            .collect()
    }

    /// Describes the machine in one line, for a table or a caption.
    pub fn machine(&self) -> String {
        let cpus = if self.cpus == 1 { "CPU" } else { "CPUs" };
        format!(
            "{}, {} {cpus}, {} GiB",
            self.cpu, self.cpus, self.memory_gib
        )
    }
}

fn cgroup() -> Option<&'static str> {
    let root = Path::new("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        Some("v2")
    } else if root.join("cpu").exists() || root.join("cpu,cpuacct").exists() {
        Some("v1")
    } else {
        None
    }
}

/// None outside a checkout of Tulle: another project's commit would say nothing.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
    };
    let top = git(&["rev-parse", "--show-toplevel"])?;
    Path::new(&top)
        .join("crates/bench/Cargo.toml")
        .exists()
        .then_some(())?;
    git(&[
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ])
}
