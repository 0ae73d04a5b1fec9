//! Finds what a mesh that is not up has left on this host, without changing anything.
//!
//! It reads the file system alone, so it is also a second look at what the [janitor] has removed.

use super::janitor;
use super::state::RunState;
use crate::paths::Paths;
use crate::proc;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tulle_redirect::Network;

const NAMESPACES: &str = "/run/netns";
const LINKS: &str = "/sys/class/net";

/// The leftovers of a mesh.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// Processes of the mesh, or within its namespaces and control groups. They may serve traffic.
    pub(crate) processes: Vec<i32>,
    /// Network namespaces, links and control groups, each with its kind. Without a process they carry nothing.
    pub(crate) kernel: Vec<String>,
    /// Files that are there only while a mesh is up.
    pub(crate) files: Vec<PathBuf>,
}

impl Leftovers {
    /// Looks for them.
    pub(crate) fn find(paths: &Paths) -> Self {
        let marked = proc::marked(&paths.run);
        let recorded = RunState::recorded(paths).into_iter();
        let recorded = recorded.filter(|id| id.is_alive());
        let mut processes: BTreeSet<i32> = marked
            .into_iter()
            .chain(recorded)
            .map(|id| id.pid)
            .collect();
        let mut kernel = Vec::new();
        if rustix::process::geteuid().is_root() {
            let namespaces = namespaces(&paths.name);
            processes.extend(within_namespaces(&namespaces));
            let shown = |path: &PathBuf| {
                path.file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned()
            };
            kernel.extend(
                namespaces
                    .iter()
                    .map(|n| format!("network namespace {}", shown(n))),
            );
            let link = Network::new(&paths.name).map(|network| network.host_link());
            let link = link
                .ok()
                .filter(|link| Path::new(LINKS).join(link).exists());
            kernel.extend(link.map(|link| format!("network link {link}")));
            for group in control_groups(&paths.name) {
                processes.extend(within_group(&group));
                kernel.push(format!("control group {}", group.display()));
            }
        }
        processes.remove(&proc::ProcessId::current().pid);
        Self {
            processes: processes.into_iter().collect(),
            kernel,
            files: files(paths),
        }
    }

    /// Whether nothing of the mesh runs or is in the kernel. Files alone do no harm.
    pub(crate) fn is_gone(&self) -> bool {
        self.processes.is_empty() && self.kernel.is_empty()
    }

    /// Lists processes and what is in the kernel.
    pub(crate) fn shown(&self) -> Vec<String> {
        let processes = self.processes.iter().map(|pid| format!("process {pid}"));
        processes.chain(self.kernel.iter().cloned()).collect()
    }
}

/// Whether a name is one that a mesh gives: `tulle-MESH` or `tulle-MESH.WORKLOAD`. Names of meshes have no dot.
fn is_of_mesh(name: &str, mesh: &str) -> bool {
    let rest = name
        .strip_prefix("tulle-")
        .and_then(|n| n.strip_prefix(mesh));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn namespaces(mesh: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| is_of_mesh(name, mesh))
        })
        .collect();
    found.sort_unstable();
    found
}

/// Processes whose network namespace is one of these.
fn within_namespaces(namespaces: &[PathBuf]) -> Vec<i32> {
    let id = |path: &Path| {
        fs::metadata(path)
            .ok()
            .map(|found| (found.dev(), found.ino()))
    };
    let ids: BTreeSet<_> = namespaces.iter().filter_map(|path| id(path)).collect();
    if ids.is_empty() {
        return Vec::new();
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let inside = |pid: &i32| {
        let own = id(Path::new(&format!("/proc/{pid}/ns/net")));
        own.is_some_and(|own| ids.contains(&own))
    };
    pids.filter(inside).collect()
}

/// The mesh's directory in each tree of control groups.
fn control_groups(mesh: &str) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let roots = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (root, kind) = (fields.nth(1)?, fields.next()?);
        matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(root))
    });
    let mut found: Vec<PathBuf> = roots
        .map(|root| root.join(format!("tulle-{mesh}")))
        .filter(|path| path.is_dir())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn within_group(group: &Path) -> Vec<i32> {
    let below = fs::read_dir(group).into_iter().flatten().flatten();
    let groups = below.map(|entry| entry.path()).chain([group.to_owned()]);
    let texts = groups.filter_map(|path| fs::read_to_string(path.join("cgroup.procs")).ok());
    texts
        .flat_map(|text| {
            text.lines()
                .filter_map(|l| l.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Files and directories that the janitor removes.
fn files(paths: &Paths) -> Vec<PathBuf> {
    let all = [paths.run_state()]
        .into_iter()
        .chain(janitor::files(paths))
        .chain(janitor::directories(paths));
    // An empty directory was made for a mesh that never came up, or is left by an orderly end.
    let is_there = |path: &PathBuf| match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => fs::symlink_metadata(path).is_ok(),
    };
    all.filter(is_there).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::MARK;
    use std::process::Command;

    #[test]
    fn names_of_other_meshes_are_not_of_this_one() {
        assert!(is_of_mesh("tulle-a", "a") && is_of_mesh("tulle-a.web", "a"));
        for other in ["tulle-ab", "tulle-a-b", "a", "tulle-", "tulle"] {
            assert!(!is_of_mesh(other, "a"), "{other}");
        }
    }

    #[test]
    fn processes_and_files_are_found_and_nothing_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            name: format!("l{:05}", std::process::id() % 100_000),
            state: dir.path().join("state"),
            run: dir.path().join("run"),
        };
        assert_eq!(Leftovers::find(&paths), Leftovers::default());
        paths.create().unwrap();
        // Directories that are always there are none.
        assert_eq!(Leftovers::find(&paths), Leftovers::default());
        fs::write(paths.socket(), "").unwrap();
        let mut child = Command::new("sleep")
            .arg("60")
            .env(MARK, &paths.run)
            .spawn()
            .unwrap();
        while proc::marked(&paths.run).is_empty() {}
        let left = Leftovers::find(&paths);
        assert_eq!(left.processes, [i32::try_from(child.id()).unwrap()]);
        assert_eq!(left.files, [paths.socket()]);
        assert!(!left.is_gone());
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Leftovers::find(&paths).is_gone());
    }
}
