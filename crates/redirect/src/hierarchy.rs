//! Finds where each cgroup controller is mounted. Version 1 has a tree for each controller (or a
//! few together), version 2 one tree for all; a machine may have both, each controller in one of
//! them.

use std::path::{Path, PathBuf};

/// Controllers that Tulle uses to limit or count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    Cpu,
    CpuAccounting,
    Memory,
}

impl Controller {
    fn v1_name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::CpuAccounting => "cpuacct",
            Self::Memory => "memory",
        }
    }
    pub(crate) fn v2_name(self) -> &'static str {
        match self {
            // In version 2 the CPU controller also counts.
            Self::Cpu | Self::CpuAccounting => "cpu",
            Self::Memory => "memory",
        }
    }
}

/// A mounted tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) v2: bool,
}

/// The tree of each controller, if it is mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hierarchies {
    pub(crate) cpu: Option<Tree>,
    pub(crate) cpu_accounting: Option<Tree>,
    pub(crate) memory: Option<Tree>,
}

impl Hierarchies {
    /// Reads the trees of this machine.
    pub(crate) fn read() -> std::io::Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let v2 = |root: &Path| std::fs::read_to_string(root.join("cgroup.controllers"));
        Ok(Self::parse(&mounts, |root| v2(root).unwrap_or_default()))
    }

    fn parse(mountinfo: &str, v2_controllers: impl Fn(&Path) -> String) -> Self {
        let mut found = Self::default();
        for line in mountinfo.lines() {
            let Some((tree, controllers)) = parse_line(line, &v2_controllers) else {
                continue;
            };
            for controller in [
                Controller::Cpu,
                Controller::CpuAccounting,
                Controller::Memory,
            ] {
                let name = if tree.v2 {
                    controller.v2_name()
                } else {
                    controller.v1_name()
                };
                let slot = found.slot(controller);
                if slot.is_none() && controllers.iter().any(|c| c == name) {
                    *slot = Some(tree.clone());
                }
            }
        }
        found
    }

    fn slot(&mut self, controller: Controller) -> &mut Option<Tree> {
        match controller {
            Controller::Cpu => &mut self.cpu,
            Controller::CpuAccounting => &mut self.cpu_accounting,
            Controller::Memory => &mut self.memory,
        }
    }

    /// Returns each tree once.
    pub(crate) fn trees(&self) -> Vec<&Tree> {
        let mut trees: Vec<&Tree> = Vec::new();
        for tree in [&self.cpu, &self.cpu_accounting, &self.memory]
            .into_iter()
            .flatten()
        {
            if !trees.contains(&tree) {
                trees.push(tree);
            }
        }
        trees
    }
}

/// Parses proc_pid_mountinfo(5): `id parent major:minor root MOUNTPOINT options [tags] - TYPE
/// source SUPER`.
fn parse_line(line: &str, v2_controllers: impl Fn(&Path) -> String) -> Option<(Tree, Vec<String>)> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let root = PathBuf::from(mount.split(' ').nth(4)?);
    let mut filesystem = filesystem.split(' ');
    let owned = |names: std::str::Split<'_, char>| names.map(str::to_owned).collect();
    match filesystem.next()? {
        "cgroup" => Some((
            Tree { root, v2: false },
            owned(filesystem.nth(1)?.split(',')),
        )),
        "cgroup2" => {
            let controllers = v2_controllers(&root);
            let controllers = controllers.split_whitespace().map(str::to_owned).collect();
            Some((Tree { root, v2: true }, controllers))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(root: &str, v2: bool) -> Option<Tree> {
        Some(Tree {
            root: root.into(),
            v2,
        })
    }

    #[test]
    fn version_1_together_and_apart() {
        let mounts = "\
30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:10 - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
33 25 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd";
        let found = Hierarchies::parse(mounts, |_| String::new());
        assert_eq!(found.cpu, tree("/sys/fs/cgroup/cpu,cpuacct", false));
        assert_eq!(found.cpu_accounting, found.cpu);
        assert_eq!(found.memory, tree("/sys/fs/cgroup/memory", false));
        assert_eq!(found.trees().len(), 2);
    }

    #[test]
    fn version_2() {
        let mounts = "26 23 0:24 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        let found = Hierarchies::parse(mounts, |_| "cpuset cpu io memory pids\n".into());
        assert_eq!(found.cpu, tree("/sys/fs/cgroup", true));
        assert_eq!(found.trees().len(), 1);
    }

    #[test]
    fn both_and_none() {
        let mounts = "\
31 25 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let found = Hierarchies::parse(mounts, |_| "cpu".into());
        assert_eq!(found.cpu, tree("/sys/fs/cgroup/unified", true));
        assert_eq!(found.memory, tree("/sys/fs/cgroup/memory", false));
        assert_eq!(
            Hierarchies::parse("nonsense\n1 - x", |_| String::new())
                .trees()
                .len(),
            0
        );
    }
}
