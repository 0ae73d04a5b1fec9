//! Where one mesh keeps its files, so that several can run side by side on a host.
//!
//! Two directories: `state` outlives a reboot (CA, objects), `run` does not (sockets, logs,
//! bootstrap files). Nothing here creates anything but directories.

use crate::failure::{Failure, OrFail, Result};
use crate::remove_tree::remove_tree;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Name of the mesh when nothing else is asked for.
const DEFAULT_NAME: &str = "tulle";
/// `sun_path` holds 108 bytes with its final zero.
pub(crate) const LONGEST_SOCKET_PATH: usize = 107;
/// Part of a socket's path below `run` that must fit: the Gateway's name may have so many letters in every mesh. A longer
/// one, up to 63, is refused where it does not fit.
const SOCKET_NAME: usize = "/proxies/gateway./admin.sock".len() + 32;

/// The files of one mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Paths {
    /// Name of the mesh instance: part of its namespaces' and bridge's names.
    pub(crate) name: String,
    /// Durable files.
    pub(crate) state: PathBuf,
    /// Files that a reboot may remove.
    pub(crate) run: PathBuf,
}

/// The parts of the environment that decide the paths.
pub(crate) struct Surroundings {
    /// Effective user is root.
    pub(crate) root: bool,
    /// User id, for the fallback under `/tmp`.
    pub(crate) uid: u32,
    /// `$XDG_STATE_HOME`.
    pub(crate) xdg_state: Option<PathBuf>,
    /// `$XDG_RUNTIME_DIR`.
    pub(crate) xdg_runtime: Option<PathBuf>,
    /// `$HOME`.
    pub(crate) home: Option<PathBuf>,
}

impl Surroundings {
    /// Those of this process.
    pub(crate) fn of_this_process() -> Self {
        let dir = |name| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|p| p.is_absolute())
        };
        let uid = rustix::process::geteuid();
        Self {
            root: uid.is_root(),
            uid: uid.as_raw(),
            xdg_state: dir("XDG_STATE_HOME"),
            xdg_runtime: dir("XDG_RUNTIME_DIR"),
            home: dir("HOME"),
        }
    }
}

impl Paths {
    /// Decides the paths from `--state` and `--name`.
    pub(crate) fn choose(
        state: Option<&Path>,
        name: Option<&str>,
        around: &Surroundings,
    ) -> Result<Self> {
        if let Some(name) = name {
            check_name(name)?;
        }
        let state = state.map(settled).transpose()?;
        let state = state.as_deref();
        let name = match (name, state) {
            (Some(name), _) => name.to_owned(),
            (None, Some(dir)) => format!("t{:06x}", short_hash(dir) & 0xff_ffff),
            (None, None) => DEFAULT_NAME.to_owned(),
        };
        // The default mesh has the plain directory; others stand beside it.
        let leaf = if name == DEFAULT_NAME {
            DEFAULT_NAME.to_owned()
        } else {
            format!("{DEFAULT_NAME}-{name}")
        };
        let state_dir = match state {
            Some(dir) => dir.to_owned(),
            None if around.root => Path::new("/var/lib").join(&leaf),
            None => around
                .xdg_state
                .clone()
                .or_else(|| around.home.as_ref().map(|h| h.join(".local/state")))
                .unwrap_or_else(|| PathBuf::from(format!("/var/tmp/tulle-{}", around.uid)))
                .join(&leaf),
        };
        // Sidecars run as another user than root, so their directory must be reachable by it:
        // a directory given with --state (often 0700) need not be.
        let run = match state {
            _ if around.root => Path::new("/run").join(&leaf),
            Some(dir) => dir.join("run"),
            None => around
                .xdg_runtime
                .clone()
                .unwrap_or_else(|| PathBuf::from(format!("/tmp/tulle-{}", around.uid)))
                .join(&leaf),
        };
        if run.as_os_str().len() + SOCKET_NAME > LONGEST_SOCKET_PATH {
            return Err(Failure::usage(format!(
                "{} is too long for the Unix sockets kept in it",
                run.display()
            ))
            .fix("choose a shorter directory with --state"));
        }
        Ok(Self {
            name,
            state: state_dir,
            run,
        })
    }

    /// Refuses directories of somebody else, who could have put anything in them. That matters
    /// most for those under `/tmp`, whose names everybody knows.
    pub(crate) fn are_own(&self) -> Result<()> {
        for dir in self.shared_parents().iter().chain([&self.run]) {
            owned(dir)?;
        }
        if rustix::process::geteuid().is_root() {
            return self.state.ancestors().try_for_each(roots_own);
        }
        Ok(())
    }

    /// Parents that stand where everybody may write.
    pub(crate) fn shared_parents(&self) -> Vec<PathBuf> {
        // Only those that `choose` makes up: `tulle-<user id>`.
        let made_up = |name: &str| {
            let id = name.strip_prefix("tulle-").unwrap_or_default();
            !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit())
        };
        let shared = |dir: &&Path| {
            dir.parent()
                .is_some_and(|p| p == Path::new("/tmp") || p == Path::new("/var/tmp"))
                && dir
                    .file_name()
                    .and_then(|n| n.to_str())
                    .is_some_and(made_up)
        };
        let parents = [self.state.parent(), self.run.parent()];
        let parents = parents.into_iter().flatten().filter(shared);
        parents.map(Path::to_owned).collect()
    }

    /// Makes the directories. Everything is for the owner alone, except that others may pass
    /// through `run` to their own files (a sidecar's user).
    pub(crate) fn create(&self) -> Result<()> {
        for dir in self.shared_parents() {
            make_dir(&dir, 0o700)?;
        }
        self.are_own()?;
        // Applications of root's mesh are users of their own, with a directory each below `data`.
        let root = rustix::process::geteuid().is_root();
        let passed = if root { 0o711 } else { 0o700 };
        for (dir, mode) in [
            (self.state.clone(), passed),
            (self.controller_state(), 0o700),
            (self.data(), passed),
            (self.run.clone(), 0o711),
            (self.run.join("control"), 0o700),
            (self.proxies(), 0o711),
            (self.data_mounts(), 0o711),
            (self.accounts(), 0o711),
            (self.logs(), 0o700),
        ] {
            make_dir(&dir, mode)?;
        }
        Ok(())
    }

    /// Lists the directories that [`Paths::create`] would add, with their parents, innermost first.
    pub(crate) fn missing(&self) -> Vec<PathBuf> {
        let own = [
            self.controller_state(),
            self.data(),
            self.state.clone(),
            self.run.clone(),
        ];
        let mut missing: Vec<PathBuf> = Vec::new();
        for directory in own.iter().flat_map(|d| d.ancestors()) {
            if !directory.exists() && !missing.iter().any(|m| m == directory) {
                missing.push(directory.to_owned());
            }
        }
        missing.sort_unstable_by_key(|d| std::cmp::Reverse(d.components().count()));
        missing
    }

    /// Removes those again: `run` with what is in it, the durable ones if they are still empty.
    pub(crate) fn remove_added(&self, missing: &[PathBuf]) {
        for directory in missing {
            // One that cannot be removed is in use by somebody else, or harmless.
            let _ = match *directory == self.run {
                true => remove_tree(directory),
                false => fs::remove_dir(directory),
            };
        }
    }

    /// The controller's own files: CA and objects.
    pub(crate) fn controller_state(&self) -> PathBuf {
        self.state.join("controller")
    }
    /// The parent of the workloads' data directories.
    pub(crate) fn data(&self) -> PathBuf {
        self.state.join("data")
    }
    /// Where a workload sees its own, if it has no way to `data`.
    pub(crate) fn data_mounts(&self) -> PathBuf {
        self.run.join("data")
    }
    /// Users and groups as workloads see them.
    pub(crate) fn accounts(&self) -> PathBuf {
        self.run.join("accounts")
    }
    /// The users, or the groups, that one workload sees.
    pub(crate) fn account_file(&self, workload: &str, file: &str) -> PathBuf {
        self.accounts().join(format!("{workload}.{file}"))
    }
    /// The controller's Unix socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.run.join("control").join("control.sock")
    }
    /// The supervisor's report about itself and its children.
    pub(crate) fn run_state(&self) -> PathBuf {
        self.run.join("supervisor.json")
    }
    /// Locked by the supervisor for as long as it lives; holds its process id.
    pub(crate) fn lock(&self) -> PathBuf {
        self.run.join("lock")
    }
    /// Where Prometheus finds the proxies of this host, alone in a directory that it may watch.
    pub(crate) fn metrics_targets(&self) -> PathBuf {
        self.run.join("metrics").join("targets.json")
    }
    /// The ports that gateways keep.
    pub(crate) fn fixed_ports(&self) -> PathBuf {
        self.state.join("ports.json")
    }
    /// The objects that a service's manifests brought last.
    pub(crate) fn service_record(&self) -> PathBuf {
        self.state.join("service.json")
    }
    /// The identity with which a joined host comes back.
    pub(crate) fn host_identity(&self) -> PathBuf {
        self.state.join("host-identity.pem")
    }
    /// The token with which a service joins when it starts for the first time.
    pub(crate) fn host_token(&self) -> PathBuf {
        self.state.join("host-token")
    }
    /// The authority of a joined host over its own workloads' identities, with its key.
    pub(crate) fn host_authority(&self) -> PathBuf {
        self.state.join("host-authority.json")
    }
    /// Certificates that this authority has signed and the controller does not know yet.
    pub(crate) fn host_issued(&self) -> PathBuf {
        self.state.join("host-issued.json")
    }
    /// Counts of a joined host from while its controller was away.
    pub(crate) fn away(&self) -> PathBuf {
        self.state.join("host-away")
    }
    /// The workloads that a joined host has brought.
    pub(crate) fn brought(&self) -> PathBuf {
        self.state.join("host-brought.json")
    }
    /// The file of what a joined host knew last of its mesh.
    pub(crate) fn last_known(&self) -> PathBuf {
        self.state.join("host-last-known.json")
    }
    /// The configurations that its sidecars had last.
    pub(crate) fn last_known_sidecars(&self) -> PathBuf {
        self.state.join("host-last-known")
    }
    /// Names of services inside the namespaces.
    pub(crate) fn hosts(&self) -> PathBuf {
        self.run.join("hosts")
    }
    /// Name servers inside the namespaces: none.
    pub(crate) fn resolv_conf(&self) -> PathBuf {
        self.run.join("resolv.conf")
    }
    /// Where root's mesh keeps a copy of a program if its sidecars' user cannot reach the
    /// original (built in root's home, for instance). Not below `run`, which may be `noexec`.
    pub(crate) fn program_copy(&self, program: &str) -> Option<PathBuf> {
        let root = rustix::process::geteuid().is_root();
        root.then(|| PathBuf::from(format!("/var/lib/tulle-{program}-{}", self.name)))
    }
    /// One directory per proxy.
    pub(crate) fn proxies(&self) -> PathBuf {
        self.run.join("proxies")
    }
    /// Where one proxy answers the supervisor and commands.
    pub(crate) fn admin_socket(&self, proxy: &str) -> PathBuf {
        self.proxies().join(proxy).join("admin.sock")
    }
    /// The configuration that one proxy had last.
    pub(crate) fn snapshot(&self, proxy: &str) -> PathBuf {
        self.proxies().join(proxy).join("snapshot")
    }
    /// One file per process.
    pub(crate) fn logs(&self) -> PathBuf {
        self.run.join("logs")
    }
    /// Output of one process.
    pub(crate) fn log(&self, process: &str) -> PathBuf {
        self.logs().join(format!("{process}.log"))
    }
}

/// Makes a directory and its parents and sets its mode.
pub(crate) fn make_dir(dir: &Path, mode: u32) -> Result<()> {
    let what = || format!("cannot make the directory {}", dir.display());
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)
            .or_fail(what)
            .map_err(|f| f.fix("choose a directory you may write to with --state"))?;
    }
    if !dir.is_dir() {
        match fs::DirBuilder::new().mode(mode).create(dir) {
            // Another `tulle up` at the same moment.
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && dir.is_dir() => {}
            made => made
                .or_fail(what)
                .map_err(|f| f.fix("choose a directory you may write to with --state"))?,
        }
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(mode)).or_fail(what)
}

/// Whether nobody but this user (or root) can have made it; also when it does not exist yet.
fn owned(dir: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(dir) else {
        return Ok(());
    };
    let own = rustix::process::geteuid().as_raw();
    if found.is_dir() && (found.uid() == own || own == 0) {
        return Ok(());
    }
    Err(Failure::new(format!("{} cannot be used", dir.display()))
        .because(if found.is_dir() {
            format!("it belongs to user {}, not to {own}", found.uid())
        } else {
            "it is no directory".to_owned()
        })
        .fix("name another directory with --state, or set XDG_RUNTIME_DIR"))
}

/// Refuses a directory that another user could replace. Root keeps the key of the authority there.
fn roots_own(dir: &Path) -> Result<()> {
    let Ok(found) = fs::metadata(dir) else {
        return Ok(());
    };
    if found.uid() == 0 {
        return Ok(());
    }
    Err(
        Failure::new(format!("{} cannot be used by root", dir.display()))
            .because(format!(
                "it belongs to user {}, who could change what is kept in it",
                found.uid()
            ))
            .fix("name a directory of root's with --state, or run this as that user"),
    )
}

fn check_name(name: &str) -> Result<()> {
    let valid = (1..=24).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && name.starts_with(|c: char| c.is_ascii_lowercase());
    if valid {
        return Ok(());
    }
    Err(
        Failure::usage(format!("{name:?} is not a name for a mesh")).because(
            "it becomes part of the names of namespaces: 1 to 24 of a-z, 0-9 and -, a letter first",
        ),
    )
}

/// The same path from wherever it is named, and before and after it exists: processes of the mesh
/// run elsewhere, and a mesh is found again by it.
fn settled(dir: &Path) -> Result<PathBuf> {
    let dir = std::path::absolute(dir).or_fail(|| format!("cannot use {}", dir.display()))?;
    let found = dir
        .ancestors()
        .find_map(|a| Some((a, a.canonicalize().ok()?)));
    let Some((ancestor, canonical)) = found else {
        return Ok(dir);
    };
    let rest = dir.strip_prefix(ancestor).unwrap_or(Path::new(""));
    // Joining nothing would add a slash.
    Ok(if rest.as_os_str().is_empty() {
        canonical
    } else {
        canonical.join(rest)
    })
}

/// FNV-1a over the path: stable from one run to the next.
fn short_hash(dir: &Path) -> u32 {
    dir.as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0x811c_9dc5, |h, b| {
            (h ^ u32::from(*b)).wrapping_mul(0x0100_0193)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(root: bool) -> Surroundings {
        Surroundings {
            root,
            uid: 1000,
            xdg_state: None,
            xdg_runtime: Some("/run/user/1000".into()),
            home: Some("/home/a".into()),
        }
    }

    #[test]
    fn root_has_the_system_directories() {
        let paths = Paths::choose(None, None, &around(true)).unwrap();
        assert_eq!(paths.state, Path::new("/var/lib/tulle"));
        assert_eq!(paths.run, Path::new("/run/tulle"));
    }

    #[test]
    fn a_user_has_their_own() {
        let paths = Paths::choose(None, Some("two"), &around(false)).unwrap();
        assert_eq!(paths.state, Path::new("/home/a/.local/state/tulle-two"));
        assert_eq!(paths.run, Path::new("/run/user/1000/tulle-two"));
    }

    #[test]
    fn a_state_directory_makes_a_mesh_of_its_own() {
        let one = Paths::choose(Some(Path::new("/x/one")), None, &around(false)).unwrap();
        let two = Paths::choose(Some(Path::new("/x/two")), None, &around(false)).unwrap();
        assert_ne!(one.name, two.name);
        assert_eq!(one.run, Path::new("/x/one/run"));
        check_name(&one.name).unwrap();
    }

    #[test]
    fn what_somebody_else_put_there_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        owned(dir.path()).unwrap();
        owned(&dir.path().join("not-yet")).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert!(
            owned(&link)
                .unwrap_err()
                .to_string()
                .contains("no directory")
        );
        let around = Surroundings {
            xdg_runtime: None,
            ..around(false)
        };
        let paths = Paths::choose(None, None, &around).unwrap();
        assert_eq!(paths.shared_parents(), [Path::new("/tmp/tulle-1000")]);
        let given = Path::new("/tmp/tulle-mine/state");
        let paths = Paths::choose(Some(given), None, &around).unwrap();
        assert!(paths.shared_parents().is_empty());
    }

    #[test]
    fn root_keeps_nothing_in_a_directory_of_somebody_else() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: it needs root");
        }
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/state");
        let paths = Paths::choose(Some(&state), None, &around(true)).unwrap();
        paths.are_own().unwrap();
        fs::create_dir_all(&state).unwrap();
        paths.are_own().unwrap();
        std::os::unix::fs::chown(dir.path().join("a"), Some(1234), None).unwrap();
        let said = paths.are_own().unwrap_err().to_string();
        assert!(said.contains("belongs to user 1234"), "{said}");
    }

    #[test]
    fn a_directory_is_the_same_however_it_is_named_and_once_it_exists() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        let paths = |d: &Path| Paths::choose(Some(d), None, &around(true)).unwrap();
        let before = paths(&real.join("link/new"));
        assert_eq!(before.state, real.join("new"));
        fs::create_dir(real.join("new")).unwrap();
        assert_eq!(paths(&real.join("new")), before);
        let relative = paths(Path::new("no/such"));
        assert_eq!(
            relative.state,
            std::env::current_dir().unwrap().join("no/such")
        );
    }

    #[test]
    fn names_and_lengths_are_checked() {
        for name in [
            "",
            "Mesh",
            "a-name-that-is-much-too-long",
            "1a",
            "a_b",
            "../x",
        ] {
            let failure = Paths::choose(None, Some(name), &around(true)).unwrap_err();
            assert_eq!(failure.exit, crate::failure::Exit::Usage, "{name}");
        }
        let long = PathBuf::from("/x".repeat(60));
        assert!(Paths::choose(Some(&long), None, &around(false)).is_err());
    }
}
