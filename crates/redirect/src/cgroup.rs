//! Limits CPU and memory of a process and its children, by plain file I/O on cgroups of version 1
//! or 2: `tulle-MESH/NAME` in every tree that has a needed controller.

use crate::hierarchy::{Hierarchies, Tree};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Period of the CPU bandwidth controller, in microseconds: the kernel's own default.
const PERIOD_US: u64 = 100_000;
/// The kernel refuses a quota below one millisecond in each period, which is 10 thousandths.
const LEAST_CPU_MILLIS: u32 = 10;

/// Limits on a process. Absent: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Thousandths of one core, at least 10.
    pub cpu_millis: Option<u32>,
    /// Bytes of memory, swap included. The kernel rounds down to whole pages.
    pub memory_bytes: Option<u64>,
}

impl ProcessLimits {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A group of processes with limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    name: String,
    /// Its directory in each tree.
    directories: Vec<PathBuf>,
    cpu_usage: Option<(PathBuf, bool)>,
    memory_usage: Option<PathBuf>,
}

/// Why a cgroup could not be created, used or removed.
#[derive(Debug)]
pub enum CgroupError {
    /// A name that is not valid for a directory.
    Name(String),
    /// No tree has the controller a limit needs.
    NoController {
        /// The group.
        cgroup: String,
        /// "cpu" or "memory".
        controller: &'static str,
    },
    /// The limit is below what the kernel can enforce.
    TooSmall {
        /// The group.
        cgroup: String,
        /// The requested limit.
        cpu_millis: u32,
    },
    /// A file of the cgroup tree could not be read or written.
    File {
        /// The file.
        path: PathBuf,
        /// The failed step.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Processes survive SIGKILL.
    Survivors {
        /// The group.
        cgroup: String,
        /// The processes.
        pids: Vec<u32>,
    },
}

impl fmt::Display for CgroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(
                f,
                "{name:?} cannot name a cgroup; use lower-case letters, digits, `-`, `_`, `.`"
            ),
            Self::NoController { cgroup, controller } => write!(
                f,
                "cannot limit {cgroup}: the cgroup controller `{controller}` is mounted nowhere; mount it, or remove that limit"
            ),
            Self::TooSmall { cgroup, cpu_millis } => write!(
                f,
                "cannot limit {cgroup} to {cpu_millis} thousandths of a core: the least is {LEAST_CPU_MILLIS}"
            ),
            Self::File {
                path,
                doing,
                source,
            } => {
                write!(f, "cannot {doing} {}: {source}", path.display())?;
                match source.kind() {
                    io::ErrorKind::PermissionDenied => {
                        write!(
                            f,
                            "; limits need root, or a cgroup tree delegated to this user"
                        )
                    }
                    // Version 2: a group with processes cannot have limited subgroups.
                    io::ErrorKind::ResourceBusy => write!(
                        f,
                        "; processes live in the root of this cgroup tree (a container?), so nothing below it can be limited: move them, or remove the limit"
                    ),
                    _ => Ok(()),
                }
            }
            Self::Survivors { cgroup, pids } => write!(
                f,
                "processes {pids:?} of cgroup {cgroup} do not end although killed (waiting for a device?); end them, then try again"
            ),
        }
    }
}

impl std::error::Error for CgroupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl Cgroup {
    /// Creates the group, or gives an existing one new limits. Use of CPU and memory is counted
    /// even without a limit, where a controller for it is mounted.
    pub fn create(mesh: &str, name: &str, limits: &ProcessLimits) -> Result<Self, CgroupError> {
        let hierarchies = read_hierarchies()?;
        Self::create_in(&hierarchies, mesh, name, limits)
    }

    fn create_in(
        hierarchies: &Hierarchies,
        mesh: &str,
        name: &str,
        limits: &ProcessLimits,
    ) -> Result<Self, CgroupError> {
        check_name(name)?;
        let below = mesh_directory(mesh)?.join(name);
        let cgroup = format!("{mesh}/{name}");
        let missing = |controller| CgroupError::NoController {
            cgroup: cgroup.clone(),
            controller,
        };
        if limits.cpu_millis.is_some() && hierarchies.cpu.is_none() {
            return Err(missing("cpu"));
        }
        if limits.memory_bytes.is_some() && hierarchies.memory.is_none() {
            return Err(missing("memory"));
        }
        if let Some(cpu_millis) = limits.cpu_millis.filter(|c| *c < LEAST_CPU_MILLIS) {
            return Err(CgroupError::TooSmall { cgroup, cpu_millis });
        }
        let mut directories = Vec::new();
        for tree in hierarchies.trees() {
            if tree.v2 {
                enable_controllers(hierarchies, tree, mesh)?;
            }
            let directory = tree.root.join(&below);
            std::fs::create_dir_all(&directory).map_err(file(&directory, "make the cgroup"))?;
            directories.push(directory);
        }
        if let Some(tree) = &hierarchies.cpu {
            limit_cpu(&tree.root.join(&below), tree.v2, limits.cpu_millis)?;
        }
        if let Some(tree) = &hierarchies.memory {
            limit_memory(&tree.root.join(&below), tree.v2, limits.memory_bytes)?;
        }
        let usage = |tree: &Option<Tree>, v1: &str, v2: &str| {
            tree.as_ref().map(|tree| {
                (
                    tree.root.join(&below).join(if tree.v2 { v2 } else { v1 }),
                    tree.v2,
                )
            })
        };
        Ok(Self {
            name: cgroup.clone(),
            directories,
            cpu_usage: usage(&hierarchies.cpu_accounting, "cpuacct.usage", "cpu.stat"),
            memory_usage: usage(
                &hierarchies.memory,
                "memory.usage_in_bytes",
                "memory.current",
            )
            .map(|(path, _)| path),
        })
    }

    /// Returns its directories, one in each tree, for [`crate::LaunchSpec::cgroup`].
    pub fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// Moves a process in. Its later children follow; existing ones do not.
    pub fn add(&self, pid: u32) -> Result<(), CgroupError> {
        self.directories
            .iter()
            .try_for_each(|directory| join(directory, pid))
    }

    /// The processes inside.
    pub fn procs(&self) -> Result<Vec<u32>, CgroupError> {
        procs_of(&self.directories)
    }

    /// Kills every process inside and returns when the last is gone.
    pub fn kill_all(&self) -> Result<(), CgroupError> {
        kill_in(&self.name, &self.directories).map(drop)
    }

    /// Returns the CPU time used since the group was created, in microseconds; `None` without a
    /// controller.
    pub fn cpu_usage_us(&self) -> Result<Option<u64>, CgroupError> {
        let Some((path, v2)) = &self.cpu_usage else {
            return Ok(None);
        };
        let text = read(path)?;
        Ok(if *v2 {
            text.lines()
                .find_map(|l| l.strip_prefix("usage_usec ")?.parse().ok())
        } else {
            text.trim()
                .parse::<u64>()
                .ok()
                .map(|nanoseconds| nanoseconds / 1000)
        })
    }

    /// Returns the memory in use, page cache included; `None` without a controller.
    pub fn memory_bytes(&self) -> Result<Option<u64>, CgroupError> {
        let Some(path) = &self.memory_usage else {
            return Ok(None);
        };
        Ok(read(path)?.trim().parse().ok())
    }

    /// Kills all processes inside and removes the group. Does nothing if it is gone already.
    pub fn remove(&self) -> Result<(), CgroupError> {
        self.kill_all()?;
        self.directories
            .iter()
            .try_for_each(|directory| remove_directory(directory))
    }

    /// Kills and removes every group of a mesh, by name alone. Returns the names of the groups.
    pub fn remove_all(mesh: &str) -> Result<Vec<String>, CgroupError> {
        Self::remove_all_in(&read_hierarchies()?, mesh)
    }

    fn remove_all_in(hierarchies: &Hierarchies, mesh: &str) -> Result<Vec<String>, CgroupError> {
        let top = mesh_directory(mesh)?;
        let mut removed = Vec::new();
        for tree in hierarchies.trees() {
            let top = tree.root.join(&top);
            for directory in subdirectories(&top)? {
                let name = directory
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                kill_in(&format!("{mesh}/{name}"), std::slice::from_ref(&directory))?;
                remove_directory(&directory)?;
                removed.push(name);
            }
            remove_directory(&top)?;
        }
        removed.sort_unstable();
        removed.dedup();
        Ok(removed)
    }
}

/// Moves a process (0: the caller) into one directory of a group.
pub(crate) fn join(directory: &Path, pid: u32) -> Result<(), CgroupError> {
    let path = directory.join("cgroup.procs");
    write(&path, "move a process into", &pid.to_string())
}

fn read_hierarchies() -> Result<Hierarchies, CgroupError> {
    Hierarchies::read().map_err(file(Path::new("/proc/self/mountinfo"), "read"))
}

fn mesh_directory(mesh: &str) -> Result<PathBuf, CgroupError> {
    check_name(mesh)?;
    Ok(PathBuf::from(format!("tulle-{mesh}")))
}

fn check_name(name: &str) -> Result<(), CgroupError> {
    let plain =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    // The name must be a single directory's, never a path.
    if (1..=200).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain) {
        return Ok(());
    }
    Err(CgroupError::Name(name.to_owned()))
}

fn file<'a>(path: &'a Path, doing: &'static str) -> impl Fn(io::Error) -> CgroupError + 'a {
    move |source| CgroupError::File {
        path: path.to_owned(),
        doing,
        source,
    }
}

fn write(path: &Path, doing: &'static str, text: &str) -> Result<(), CgroupError> {
    // `fs::write` would create an ordinary file where the kernel offers none.
    let open = std::fs::OpenOptions::new().write(true).open(path);
    open.and_then(|mut f| io::Write::write_all(&mut f, text.as_bytes()))
        .map_err(file(path, doing))
}

fn read(path: &Path) -> Result<String, CgroupError> {
    std::fs::read_to_string(path).map_err(file(path, "read"))
}

/// Enables controllers. In version 2 a group has a controller's files only if its parent passes it
/// down.
fn enable_controllers(
    hierarchies: &Hierarchies,
    tree: &Tree,
    mesh: &str,
) -> Result<(), CgroupError> {
    let top = tree.root.join(mesh_directory(mesh)?);
    std::fs::create_dir_all(&top).map_err(file(&top, "make the cgroup"))?;
    for (found, name) in [(&hierarchies.cpu, "cpu"), (&hierarchies.memory, "memory")] {
        if found.as_ref() != Some(tree) {
            continue;
        }
        for directory in [&tree.root, &top] {
            let path = directory.join("cgroup.subtree_control");
            if !read(&path)?
                .split_whitespace()
                .any(|enabled| enabled == name)
            {
                write(&path, "enable a controller in", &format!("+{name}"))?;
            }
        }
    }
    Ok(())
}

fn limit_cpu(directory: &Path, v2: bool, millis: Option<u32>) -> Result<(), CgroupError> {
    let quota = millis.map(|millis| u64::from(millis) * PERIOD_US / 1000);
    if v2 {
        let quota = quota.map_or("max".to_owned(), |quota| quota.to_string());
        return write(
            &directory.join("cpu.max"),
            "limit CPU by",
            &format!("{quota} {PERIOD_US}"),
        );
    }
    let quota = quota.map_or("-1".to_owned(), |quota| quota.to_string());
    let path = directory.join("cpu.cfs_period_us");
    write(&path, "limit CPU by", &PERIOD_US.to_string())?;
    write(&directory.join("cpu.cfs_quota_us"), "limit CPU by", &quota)
}

fn limit_memory(directory: &Path, v2: bool, bytes: Option<u64>) -> Result<(), CgroupError> {
    if v2 {
        let limit = bytes.map_or("max".to_owned(), |bytes| bytes.to_string());
        write(&directory.join("memory.max"), "limit memory by", &limit)?;
        // Without swap the limit means the same on every machine. The file is absent without swap
        // accounting.
        let swap = directory.join("memory.swap.max");
        let limit = if bytes.is_some() { "0" } else { "max" };
        return if swap.exists() {
            write(&swap, "limit swap by", limit)
        } else {
            Ok(())
        };
    }
    let limit = bytes.map_or("-1".to_owned(), |bytes| bytes.to_string());
    let memory = directory.join("memory.limit_in_bytes");
    // The limit on memory and swap together. The file is absent without swap accounting.
    let both = directory.join("memory.memsw.limit_in_bytes");
    if !both.exists() {
        return write(&memory, "limit memory by", &limit);
    }
    // The sum may never be below its part: raise the sum first, lower it last. If the kernel
    // refuses the first order, the other one is right.
    if write(&memory, "limit memory by", &limit).is_ok() {
        return write(&both, "limit swap by", &limit);
    }
    write(&both, "limit swap by", &limit)?;
    write(&memory, "limit memory by", &limit)
}

fn procs_of(directories: &[PathBuf]) -> Result<Vec<u32>, CgroupError> {
    let mut pids = Vec::new();
    for directory in directories {
        let path = directory.join("cgroup.procs");
        match std::fs::read_to_string(&path) {
            Ok(text) => pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok())),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(file(&path, "read")(error)),
        }
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

fn kill_in(cgroup: &str, directories: &[PathBuf]) -> Result<usize, CgroupError> {
    let mut killed = 0;
    let mut pids = Vec::new();
    // A killed process may have forked just before, so repeat until none is left.
    for _ in 0..500 {
        pids = procs_of(directories)?;
        if pids.is_empty() {
            return Ok(killed);
        }
        for pid in &pids {
            if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
                // A process that is gone already is fine.
                let _ = kill_process(pid, Signal::KILL);
                killed += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(CgroupError::Survivors {
        cgroup: cgroup.to_owned(),
        pids,
    })
}

fn subdirectories(top: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let entries = match std::fs::read_dir(top) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        other => other.map_err(file(top, "list"))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(file(top, "list"))?.path();
        if path.is_dir() {
            found.push(path);
        }
    }
    Ok(found)
}

fn remove_directory(directory: &Path) -> Result<(), CgroupError> {
    let mut last = None;
    // The last process leaves the list a moment before it leaves the group.
    for _ in 0..200 {
        match std::fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => last = Some(error),
            Err(error) => return Err(file(directory, "remove the cgroup")(error)),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let error = last.unwrap_or_else(|| io::ErrorKind::ResourceBusy.into());
    Err(file(directory, "remove the cgroup")(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests version 2 with ordinary files: which files are written, and their contents.
    /// `tests/namespaces` tests version 1 and processes for real.
    #[test]
    fn version_2_files() {
        let root = std::env::temp_dir().join(format!("tulle-cgroup-{}", std::process::id()));
        let group = root.join("tulle-m/a");
        std::fs::create_dir_all(&group).unwrap();
        for name in ["cpu.max", "memory.max", "memory.swap.max"] {
            std::fs::write(group.join(name), "").unwrap();
        }
        std::fs::write(group.join("cpu.stat"), "usage_usec 1234\nuser_usec 1000\n").unwrap();
        std::fs::write(group.join("memory.current"), "4096\n").unwrap();
        for directory in [&root, &root.join("tulle-m")] {
            std::fs::write(directory.join("cgroup.subtree_control"), "pids memory").unwrap();
        }
        let tree = Some(Tree {
            root: root.clone(),
            v2: true,
        });
        let hierarchies = Hierarchies {
            cpu: tree.clone(),
            cpu_accounting: tree.clone(),
            memory: tree,
        };
        let limits = ProcessLimits {
            cpu_millis: Some(250),
            memory_bytes: Some(1 << 20),
        };
        let cgroup = Cgroup::create_in(&hierarchies, "m", "a", &limits).unwrap();
        let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        assert_eq!(text("tulle-m/a/cpu.max"), "25000 100000");
        assert_eq!(text("tulle-m/a/memory.max"), "1048576");
        assert_eq!(text("tulle-m/a/memory.swap.max"), "0");
        // The missing controller is enabled at both levels; the other already was. (An ordinary
        // file keeps a tail that the kernel's would not have.)
        assert_eq!(text("cgroup.subtree_control"), "+cpu memory");
        assert_eq!(text("tulle-m/cgroup.subtree_control"), "+cpu memory");
        assert_eq!(cgroup.directories(), [group]);
        assert_eq!(cgroup.cpu_usage_us().unwrap(), Some(1234));
        assert_eq!(cgroup.memory_bytes().unwrap(), Some(4096));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_limit_without_its_controller_is_refused_before_anything_is_made() {
        let limits = ProcessLimits {
            cpu_millis: None,
            memory_bytes: Some(1),
        };
        let error = Cgroup::create_in(&Hierarchies::default(), "m", "a", &limits).unwrap_err();
        assert!(error.to_string().contains("`memory`"), "{error}");
        let none = Cgroup::create_in(&Hierarchies::default(), "m", "a", &ProcessLimits::default());
        assert_eq!(none.unwrap().cpu_usage_us().unwrap(), None);
    }
}
