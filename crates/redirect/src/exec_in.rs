//! Starts a program in a workload's namespace, with its names, limits and user.
//!
//! Between `fork` and `exec` a program with threads may do hardly anything. Entering namespaces,
//! mounting and changing the user takes many steps that may fail and should report it. So
//! [`LaunchSpec::command`] re-executes this very binary with the hidden subcommand [`SUBCOMMAND`].
//! That runs [`main`], which takes the steps in a process with a single thread and then becomes the
//! program, with the same process id and files.
//!
//! The steps are taken as the caller, root for one, while the program's variables may be another's
//! choice, and some of them (`LD_PRELOAD`) make the dynamic loader run another's code. So they arrive
//! under other names, and only the program has them under their own.

mod variables;

use crate::cgroup;
use crate::network::namespace_path;
use crate::program::{NoProgram, find_program};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::{Gid, Pid, Signal, Uid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use variables::{disguise, of_program};

/// The hidden subcommand, which must call [`main`] with the arguments after it, before any thread
/// is started.
pub const SUBCOMMAND: &str = "exec-in";

/// The caller's name for this binary, its first argument.
const CALLED: &str = "tulle";

/// Where and as whom a program runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LaunchSpec {
    /// Network namespace by its name for `ip netns`; none: the caller's.
    pub namespace: Option<String>,
    /// File to mount as `/etc/hosts` ([`crate::Hosts`]).
    pub hosts: Option<PathBuf>,
    /// File to mount as `/etc/resolv.conf` ([`crate::RESOLV_CONF`]).
    pub resolv_conf: Option<PathBuf>,
    /// File to mount as `/etc/passwd`, so that the user has a name; only where mounting is
    /// permitted.
    pub passwd: Option<PathBuf>,
    /// File to mount as `/etc/group`, likewise.
    pub group: Option<PathBuf>,
    /// A directory to mount at another, existing place, too: from, at.
    pub directory: Option<(PathBuf, PathBuf)>,
    /// Directories of a cgroup to join ([`crate::Cgroup::directories`]).
    pub cgroup: Vec<PathBuf>,
    /// User and group, without supplementary groups; none: the caller's.
    pub user: Option<(u32, u32)>,
    /// Everybody in the namespace may bind ports below 1024.
    pub bind_low_ports: bool,
    /// The program is killed when this process ends; none: it lives on. (The kernel watches the
    /// *thread* that spawned it: spawn from one that lives as long as the mesh.)
    pub parent: Option<u32>,
    /// The program and its children can never gain privileges, by setuid files for instance.
    pub no_new_privileges: bool,
    /// Numbers of files that the program inherits besides standard input, output and error; set by
    /// [`LaunchSpec::command_passing`].
    #[serde(default)]
    pub passed: Vec<i32>,
}

impl Default for LaunchSpec {
    /// Defaults: no new privileges, and the program dies with the calling process.
    fn default() -> Self {
        Self {
            namespace: None,
            hosts: None,
            resolv_conf: None,
            passwd: None,
            group: None,
            directory: None,
            cgroup: Vec::new(),
            user: None,
            bind_low_ports: false,
            parent: Some(std::process::id()),
            no_new_privileges: true,
            passed: Vec::new(),
        }
    }
}

/// The step that failed on the way into the program.
#[derive(Debug)]
pub enum ExecInError {
    /// The arguments are not from [`LaunchSpec::command`].
    Arguments(String),
    /// The process that requested the launch has ended.
    ParentEnded,
    /// A call to the system failed.
    Step {
        /// The failed step, and its object.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
    /// The cgroup could not be joined.
    Cgroup(cgroup::CgroupError),
    /// There is no such program, for any user.
    Program(NoProgram),
}

impl ExecInError {
    /// The exit code that shells use: 127 for a program that does not exist, 126 for one that
    /// cannot be run.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Program(NoProgram::NoFile(_) | NoProgram::NotInPath { .. }) => 127,
            _ => 126,
        }
    }
}

impl fmt::Display for ExecInError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arguments(why) => {
                write!(
                    f,
                    "`{SUBCOMMAND}` is internal and cannot be used by hand: {why}"
                )
            }
            Self::ParentEnded => write!(f, "the process that started this one has ended"),
            Self::Step { doing, source } => write!(f, "cannot {doing}: {source}"),
            Self::Cgroup(source) => source.fmt(f),
            Self::Program(why) => write!(f, "cannot start the program: {why}"),
        }
    }
}

impl std::error::Error for ExecInError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Step { source, .. } => Some(source),
            Self::Cgroup(source) => Some(source),
            Self::Program(source) => Some(source),
            Self::Arguments(_) | Self::ParentEnded => None,
        }
    }
}

impl LaunchSpec {
    /// Returns a command that runs `program` with these settings and these variables, and no others.
    /// The caller adds arguments, working directory and files, as with any command. A variable that
    /// is added to the command itself is not for the program, only for this binary on the way there.
    pub fn command(
        &self,
        program: impl AsRef<OsStr>,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> io::Result<Command> {
        // The link still works after an upgrade has replaced the file.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0(CALLED)
            .arg(SUBCOMMAND)
            .arg(serde_json::to_string(self)?)
            .arg(program)
            .env_clear();
        let disguised = variables.into_iter();
        command.envs(disguised.map(|(name, value)| (disguise(&name), value)));
        Ok(command)
    }

    /// Like [`command`](Self::command); the program inherits `files` under the numbers they have here. The command holds
    /// them until it is dropped.
    pub fn command_passing(
        &self,
        program: impl AsRef<OsStr>,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        files: Vec<OwnedFd>,
    ) -> io::Result<Command> {
        let spec = Self {
            passed: files.iter().map(AsRawFd::as_raw_fd).collect(),
            ..self.clone()
        };
        let mut command = spec.command(program, variables)?;
        let inherit = move || {
            for file in &files {
                rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty())?;
            }
            Ok(())
        };
        // SAFETY: after the fork this makes a few system calls, and neither allocates nor locks.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(inherit);
        }
        Ok(command)
    }
}

/// Takes the steps, then becomes the program. `arguments` are those after [`SUBCOMMAND`]. Returns
/// only if something failed; the caller then prints the error and exits.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> Result<Infallible, ExecInError> {
    let mut arguments = arguments.into_iter();
    let bad = |why: &str| ExecInError::Arguments(why.to_owned());
    let spec = arguments
        .next()
        .ok_or_else(|| bad("no description given"))?;
    let spec = spec
        .to_str()
        .ok_or_else(|| bad("the description is not UTF-8"))?;
    let spec: LaunchSpec =
        serde_json::from_str(spec).map_err(|error| bad(&format!("bad description: {error}")))?;
    let program = arguments.next().ok_or_else(|| bad("no program given"))?;

    close_the_rest(&spec.passed)?;
    // The cgroup comes first: the next steps are then counted and, if they hang, found and killed.
    for directory in &spec.cgroup {
        cgroup::join(directory, 0).map_err(ExecInError::Cgroup)?;
    }
    if let Some(namespace) = &spec.namespace {
        enter_namespace(namespace)?;
    }
    if spec.hosts.is_some() || spec.resolv_conf.is_some() || spec.directory.is_some() {
        see_own_files(&spec)?;
    } else if spec.passwd.is_some() || spec.group.is_some() {
        // A container may forbid mounts. The program then runs without a user name, as it would
        // anyway.
        let _ = see_own_files(&spec);
    }
    if spec.bind_low_ports && spec.namespace.is_some() {
        let first = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
        std::fs::write(first, "0").step(|| format!("write {first}"))?;
    }
    // The file is opened before the change of user, who may have no path to it: a program built in
    // root's home. The error of `exec` would also be "denied" for a program that does not exist, if
    // the user may not search one directory of the PATH.
    let variables = of_program(std::env::vars_os());
    let path = variables.get(OsStr::new("PATH")).map(OsString::as_os_str);
    let directory = std::env::current_dir().unwrap_or_default();
    let found = find_program(&program, path, &directory);
    let found = found.map_err(ExecInError::Program)?;
    let opened = match spec.user {
        Some(_) => open_program(&found),
        None => None,
    };
    if let Some((uid, gid)) = spec.user {
        become_user(uid, gid)?;
    }
    // The change of user clears this setting, so it comes after.
    if let Some(parent) = spec.parent {
        die_with(parent)?;
    }
    if spec.no_new_privileges {
        rustix::thread::set_no_new_privs(true).step(|| "give up new privileges".to_owned())?;
    }
    let arguments: Vec<OsString> = arguments.collect();
    // Becomes it, searching the PATH among its variables; returns only if that failed.
    let start = |file: &OsStr| {
        let mut command = Command::new(file);
        command.arg0(&program).args(&arguments);
        command.env_clear().envs(&variables).exec()
    };
    let mut source = start(&program);
    if source.kind() == io::ErrorKind::PermissionDenied
        && let Some(opened) = opened
    {
        // The kernel follows this link by the open file, not by its path.
        source = start(format!("/proc/self/fd/{}", opened.as_raw_fd()).as_ref());
    }
    let program = Path::new(&program).display();
    let denied = source.kind() == io::ErrorKind::PermissionDenied;
    Err(ExecInError::Step {
        doing: match spec.user {
            Some((uid, _)) if denied => format!(
                "run {program} as user {uid}, who may not reach or execute it (`user` in the manifest names another)"
            ),
            Some((uid, _)) => format!("run {program} as user {uid}"),
            None => format!("run {program}"),
        },
        source,
    })
}

/// Whether a process with these arguments (`/proc/PID/cmdline`) has yet to become its program. Until
/// then its user and its variables are not the program's.
pub fn is_on_its_way(arguments: &[u8]) -> bool {
    arguments.starts_with(format!("{CALLED}\0{SUBCOMMAND}\0").as_bytes())
}

/// Opens the program's file. `None` for a script: its interpreter would have to open it by a path
/// that is closed to it.
fn open_program(file: &Path) -> Option<OwnedFd> {
    let mut start = [0; 2];
    let mut file = std::fs::File::open(file).ok()?;
    std::io::Read::read_exact(&mut file, &mut start).ok()?;
    (start != *b"#!").then(|| file.into())
}

trait Step<T> {
    fn step(self, doing: impl FnOnce() -> String) -> Result<T, ExecInError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, doing: impl FnOnce() -> String) -> Result<T, ExecInError> {
        self.map_err(|error| ExecInError::Step {
            doing: doing(),
            source: error.into(),
        })
    }
}

fn enter_namespace(name: &str) -> Result<(), ExecInError> {
    let doing = || format!("enter the network namespace {name}");
    let file = std::fs::File::open(namespace_path(name)).step(doing)?;
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .step(doing)
}

/// Mounts files over `/etc/hosts`, `/etc/resolv.conf`, `/etc/passwd` and `/etc/group`, and the
/// directory. Only this process and its children see them.
fn see_own_files(spec: &LaunchSpec) -> Result<(), ExecInError> {
    // SAFETY: unsafe only for UnshareFlags::FILES, which is not asked for.
    #[allow(unsafe_code)]
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
        .step(|| "make a mount namespace".to_owned())?;
    // Slave: the host never sees these mounts, while its unmounts still arrive here, so that
    // this process does not keep removed namespaces and volumes alive.
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )
    .step(|| "keep mounts private".to_owned())?;
    for (from, to) in [
        (&spec.hosts, "/etc/hosts"),
        (&spec.resolv_conf, "/etc/resolv.conf"),
        (&spec.passwd, "/etc/passwd"),
        (&spec.group, "/etc/group"),
    ] {
        let Some(from) = from else { continue };
        // A machine without the file (or with a dangling link) has nothing to hide. Without the
        // hosts file, however, names would not work, so its absence is an error.
        if to != "/etc/hosts" && !Path::new(to).exists() {
            continue;
        }
        mount_bind(from, to).step(|| format!("mount {} over {to}", from.display()))?;
    }
    if let Some((from, at)) = &spec.directory {
        mount_bind(from, at).step(|| format!("mount {} at {}", from.display(), at.display()))?;
        // A working directory that was entered before is the one below the mount.
        if std::env::current_dir().is_ok_and(|now| now == *at) {
            std::env::set_current_dir(at).step(|| format!("enter {}", at.display()))?;
        }
    }
    Ok(())
}

/// Lets only standard input, output and error pass, and the files that are `passed`: any other open file is closed when
/// the program starts.
fn close_the_rest(passed: &[i32]) -> Result<(), ExecInError> {
    let doing = || "find the open files".to_owned();
    for entry in std::fs::read_dir("/proc/self/fd").step(doing)? {
        let name = entry.step(doing)?.file_name();
        let Some(number) = name.to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        if number <= 2 || passed.contains(&number) {
            continue;
        }
        // SAFETY: borrowed for this call only, which fails harmlessly if it is closed by now (that
        // of the directory being read is not).
        #[allow(unsafe_code)]
        let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_setfd(file, rustix::io::FdFlags::CLOEXEC).step(doing)?;
    }
    Ok(())
}

fn become_user(uid: u32, gid: u32) -> Result<(), ExecInError> {
    let doing = || format!("become user {uid} and group {gid}");
    // The kernel takes all ones to mean "leave unchanged".
    if uid == u32::MAX || gid == u32::MAX {
        return Err(ExecInError::Arguments(format!(
            "there is no user {uid}:{gid}"
        )));
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_groups(&[]).step(doing)?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).step(doing)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).step(doing)
}

fn die_with(parent: u32) -> Result<(), ExecInError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .step(|| "die with the parent".to_owned())?;
    // The parent may have ended before the line above.
    let now = rustix::process::getppid().map(Pid::as_raw_pid);
    if now == i32::try_from(parent).ok() {
        Ok(())
    } else {
        Err(ExecInError::ParentEnded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str]) -> ExecInError {
        main(arguments.iter().map(OsString::from)).unwrap_err()
    }

    #[test]
    fn refuses_what_it_did_not_make() {
        for arguments in [
            &[][..],
            &["{}"],
            &["{\"namspace\":1}", "true"],
            &["x", "true"],
        ] {
            assert!(
                matches!(run(arguments), ExecInError::Arguments(_)),
                "{arguments:?}"
            );
        }
    }

    #[test]
    fn the_description_survives_the_command_line() {
        let spec = LaunchSpec {
            namespace: Some("tulle-m.a".into()),
            hosts: Some("/run/x/hosts".into()),
            user: Some((1500, 1500)),
            ..LaunchSpec::default()
        };
        let command = spec.command("true", []).unwrap();
        let arguments: Vec<&OsStr> = command.get_args().collect();
        assert_eq!(arguments[0], SUBCOMMAND);
        let back: LaunchSpec = serde_json::from_str(arguments[1].to_str().unwrap()).unwrap();
        assert_eq!(back, spec);
        assert_eq!(arguments[2], "true");
    }

    #[test]
    fn a_process_is_on_its_way_until_it_is_the_program() {
        assert!(is_on_its_way(b"tulle\0exec-in\0{}\0sh\0"));
        for other in [&b""[..], b"sh\0", b"tulle\0up\0", b"tulle\0exec-in"] {
            assert!(!is_on_its_way(other), "{other:?}");
        }
    }
}
