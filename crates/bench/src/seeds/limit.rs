//! The CPU quota of a process, as the kernel has it: checked for sidecars, lifted for the ingress.

use std::fs;
use std::path::{Path, PathBuf};

const TREES: &str = "/sys/fs/cgroup";
/// Files of control groups version 1, in microseconds.
const QUOTA: &str = "cpu.cfs_quota_us";
const PERIOD: &str = "cpu.cfs_period_us";
/// Both, of version 2.
const MAX: &str = "cpu.max";

/// Cores that a process may use; none: no limit.
///
/// # Errors
/// Its control group cannot be read, in words.
pub(super) fn cores(id: u32) -> Result<Option<f64>, String> {
    let directory = group(id)?;
    if let Ok(max) = fs::read_to_string(directory.join(MAX)) {
        return Ok(parse_max(&max));
    }
    let number = |name: &str| -> Result<f64, String> {
        let file = directory.join(name);
        let text = fs::read_to_string(&file);
        let text = text.map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        let number = text.trim().parse();
        number.map_err(|e| format!("{}: {e}", file.display()))
    };
    let quota = number(QUOTA)?;
    if quota < 0.0 {
        return Ok(None);
    }
    Ok(Some(quota / number(PERIOD)?))
}

/// Lets a process use what there is.
///
/// # Errors
/// The limit cannot be changed, in words.
pub(super) fn lift(id: u32) -> Result<(), String> {
    if cores(id)?.is_none() {
        return Ok(());
    }
    let directory = group(id)?;
    let (file, value) = match directory.join(MAX) {
        max if max.exists() => (max, "max"),
        _ => (directory.join(QUOTA), "-1"),
    };
    fs::write(&file, value).map_err(|e| format!("cannot write {}: {e}", file.display()))
}

/// `max 100000` or `25000 100000`.
fn parse_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
}

/// Directory of a process's control group in the tree that has the CPU controller.
fn group(id: u32) -> Result<PathBuf, String> {
    let file = format!("/proc/{id}/cgroup");
    let text = fs::read_to_string(&file).map_err(|e| format!("cannot read {file}: {e}"))?;
    let (controller, path) =
        group_of(&text).ok_or_else(|| format!("{file} names no control group for CPU"))?;
    let tree = Path::new(TREES);
    let tree = match controller {
        "" if tree.join("unified").is_dir() => tree.join("unified"),
        "" => tree.to_owned(),
        controller => tree.join(controller),
    };
    Ok(tree.join(path.trim_start_matches('/')))
}

/// Controllers as version 1 mounts them, or nothing for version 2, and the path in their tree.
fn group_of(text: &str) -> Option<(&str, &str)> {
    let lines = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?, parts.next()?))
    });
    let is_cpu = |(controllers, _): &(&str, &str)| controllers.split(',').any(|c| c == "cpu");
    let mut unified = lines
        .clone()
        .filter(|(controllers, _)| controllers.is_empty());
    lines.clone().find(is_cpu).or_else(|| unified.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_group_in_both_versions() {
        let v1 = "5:memory:/m\n4:cpuset:/s\n3:cpu,cpuacct:/tulle-x/gateway\n0::/\n";
        assert_eq!(group_of(v1), Some(("cpu,cpuacct", "/tulle-x/gateway")));
        assert_eq!(
            group_of("0::/tulle-x/ratings\n"),
            Some(("", "/tulle-x/ratings"))
        );
        assert_eq!(group_of(""), None);
    }

    #[test]
    fn reads_a_quota() {
        assert_eq!(parse_max("25000 100000\n"), Some(0.25));
        assert_eq!(parse_max("max 100000\n"), None);
    }
}
