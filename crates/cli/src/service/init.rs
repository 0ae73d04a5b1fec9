//! The init systems: where a service's files are, whether one runs here, and how it is asked.

use crate::args::service::{Init, Installed};
use crate::failure::{Failure, OrFail, Result};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where one service is, and who starts it.
#[derive(Debug)]
pub(crate) struct Place {
    /// The init system.
    pub(crate) init: Init,
    /// Name of the service.
    pub(crate) name: String,
    /// The top of the file system it is in.
    root: PathBuf,
    /// The init system is the one that runs here.
    pub(crate) runs: bool,
}

/// How a service is doing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// In the init system's words, such as `active`.
    pub(crate) state: String,
    /// In seconds since 1970.
    pub(crate) since: Option<i64>,
    /// The supervisor.
    pub(crate) pid: Option<i32>,
    /// How often it was started again.
    pub(crate) restarts: Option<u32>,
    /// The mesh's own words.
    pub(crate) message: String,
}

impl Place {
    /// Finds the init system, unless it is named.
    pub(crate) fn find(mesh: &str, installed: &Installed) -> Result<Self> {
        let root = installed.root.as_deref().unwrap_or(Path::new("/"));
        // Manifests are named likewise.
        let root = root.canonicalize().or_else(|_| std::path::absolute(root));
        let root = root.or_fail(|| "cannot use --root".to_owned())?;
        let here = installed.root.is_none();
        let running = here.then(running).flatten();
        let name = match mesh {
            "tulle" => mesh.to_owned(),
            other => format!("tulle-{other}"),
        };
        let place = |init| Self {
            runs: running == Some(init),
            name: name.clone(),
            root: root.clone(),
            init,
        };
        if let Some(init) = installed.init.or(running) {
            return Ok(place(init));
        }
        let inits = [Init::Systemd, Init::Openrc];
        let is_written = |init: &Init| place(*init).file().exists();
        // A package brings its unit everywhere, also where systemd does not run.
        let is_packaged = |init: &Init| !here && place(*init).packaged().is_some();
        let find = |is: &dyn Fn(&Init) -> bool| inits.into_iter().find(|init| is(init));
        let found = find(&is_written).or_else(|| find(&is_packaged));
        found.map(place).ok_or_else(|| {
            let looked = match here {
                true => "neither systemd nor OpenRC runs here (/run/systemd/system, /run/openrc)",
                false => "nobody can see which one starts this file system",
            };
            Failure::new("cannot tell which init system starts services")
                .because(looked)
                .fix(
                    "name it with --init systemd or --init openrc; with another one, have it run `tulle up --service \
                     FILE` as root, which stays in the foreground and ends in order at SIGTERM",
                )
        })
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The file that describes the service.
    pub(crate) fn file(&self) -> PathBuf {
        match self.init {
            Init::Systemd => self.at(&format!("etc/systemd/system/{}.service", self.name)),
            Init::Openrc => self.at(&format!("etc/init.d/{}", self.name)),
        }
    }

    /// The unit of systemd that a package has brought, unless the file goes before it.
    pub(crate) fn packaged(&self) -> Option<PathBuf> {
        let unit = self.at(&format!("usr/lib/systemd/system/{}.service", self.name));
        let counts = self.init == Init::Systemd && !self.file().exists() && unit.exists();
        counts.then_some(unit)
    }

    /// The link that enables it.
    fn link(&self) -> PathBuf {
        self.at(&match self.init {
            Init::Systemd => format!(
                "etc/systemd/system/multi-user.target.wants/{}.service",
                self.name
            ),
            Init::Openrc => format!("etc/runlevels/default/{}", self.name),
        })
    }

    /// Where this file system has a file of the host's.
    pub(crate) fn inside(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.root) {
            Ok(below) => Path::new("/").join(below),
            Err(_) => path.to_owned(),
        }
    }

    /// Has the service start at boot. This is what `systemctl enable` and `rc-update add` do, also where neither
    /// is installed.
    pub(crate) fn enable(&self) -> Result<()> {
        let (link, target) = (self.link(), self.inside(&self.file()));
        let what = || format!("cannot make the link {}", link.display());
        if fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(());
        }
        if let Some(directory) = link.parent() {
            fs::create_dir_all(directory).or_fail(what)?;
        }
        let new = link.with_extension("new");
        let _ = fs::remove_file(&new);
        symlink(&target, &new).or_fail(what)?;
        fs::rename(&new, &link).or_fail(what)
    }

    /// Undoes it.
    pub(crate) fn disable(&self) -> Result<()> {
        remove(&self.link())
    }

    /// Whether it starts at boot.
    pub(crate) fn is_enabled(&self) -> bool {
        fs::symlink_metadata(self.link()).is_ok()
    }

    /// Has the init system read its files again.
    pub(crate) fn reread(&self) -> Result<()> {
        match (self.runs, self.init) {
            (true, Init::Systemd) => self.ask(&["systemctl", "daemon-reload"]),
            // OpenRC looks at the files' times.
            _ => Ok(()),
        }
    }

    /// Starts it; with systemd this waits until it is ready.
    pub(crate) fn start(&self) -> Result<()> {
        self.tell("start")
    }

    /// Stops it, and waits until it has.
    pub(crate) fn stop(&self) -> Result<()> {
        if !self.runs || ["inactive", "stopped", ""].contains(&self.activity().state.as_str()) {
            return Ok(());
        }
        self.tell("stop")?;
        if self.init == Init::Systemd {
            // One that has failed is remembered by name; it does not matter if it has not.
            let _ = Command::new("systemctl")
                .args(["reset-failed", &self.unit()])
                .output();
        }
        Ok(())
    }

    fn unit(&self) -> String {
        format!("{}.service", self.name)
    }

    fn tell(&self, what: &str) -> Result<()> {
        match self.init {
            Init::Systemd => self.ask(&["systemctl", what, &self.unit()]),
            Init::Openrc => self.ask(&["rc-service", &self.name, what]),
        }
    }

    fn ask(&self, words: &[&str]) -> Result<()> {
        let said = words.join(" ");
        let (program, rest) = words.split_first().unwrap_or((&"", &[]));
        let output = Command::new(program)
            .args(rest)
            .output()
            .or_fail(|| format!("cannot run `{said}`"))?;
        if output.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&output.stderr);
        Err(Failure::new(format!("`{said}` failed"))
            .because(why.trim())
            .fix(self.where_logs_are()))
    }

    /// Where to look when it does not start.
    pub(crate) fn where_logs_are(&self) -> String {
        match self.init {
            Init::Systemd => format!(
                "see `journalctl -u {}`, or its log file if it has one",
                self.name
            ),
            Init::Openrc => format!("see /var/log/{}.log", self.name),
        }
    }

    /// How it is doing now.
    pub(crate) fn activity(&self) -> Activity {
        if !self.runs {
            return Activity::default();
        }
        match self.init {
            Init::Systemd => {
                let asked = Command::new("systemctl")
                    .args(["show", &self.unit(), "--property"])
                    .arg("ActiveState,StateChangeTimestampMonotonic,MainPID,NRestarts,StatusText")
                    .output();
                let text = asked.map(|o| o.stdout).unwrap_or_default();
                of_systemd(&String::from_utf8_lossy(&text), booted())
            }
            Init::Openrc => self.of_openrc(),
        }
    }

    /// Each state of OpenRC is a directory with a link for each service in it.
    fn of_openrc(&self) -> Activity {
        let state = |s: &&str| fs::symlink_metadata(format!("/run/openrc/{s}/{}", self.name));
        let states = ["failed", "starting", "stopping", "inactive", "started"];
        let found = states.iter().find_map(|s| Some((s, state(s).ok()?)));
        let options = format!("/run/openrc/options/{}/child_pid", self.name);
        let pid = fs::read_to_string(options);
        Activity {
            state: found.as_ref().map_or("stopped", |(s, _)| s).to_owned(),
            since: found.map(|(_, link)| link.mtime()),
            pid: pid.ok().and_then(|p| p.trim().parse().ok()),
            ..Activity::default()
        }
    }
}

/// Which init system runs here.
fn running() -> Option<Init> {
    if Path::new("/run/systemd/system").is_dir() {
        return Some(Init::Systemd);
    }
    let openrc = Path::new("/run/openrc").is_dir() && Path::new("/sbin/openrc-run").exists();
    openrc.then_some(Init::Openrc)
}

/// When the machine was started, in seconds since 1970.
fn booted() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = i64::try_from(now.unwrap_or_default().as_secs()).unwrap_or(i64::MAX);
    let up = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let up = up.split('.').next().and_then(|s| s.parse().ok());
    now - up.unwrap_or(0)
}

/// Reads the answer of `systemctl show`.
fn of_systemd(text: &str, booted: i64) -> Activity {
    let field = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|l| l.strip_prefix(name)?.strip_prefix('='))
    };
    let number = |name| field(name)?.parse::<i64>().ok().filter(|n| *n > 0);
    let since = number("StateChangeTimestampMonotonic");
    let state = field("ActiveState").unwrap_or_default();
    // systemd keeps the last message of one that was stopped.
    let message = field("StatusText").filter(|_| state != "inactive");
    Activity {
        state: state.to_owned(),
        since: since.map(|micros| booted + micros / 1_000_000),
        pid: number("MainPID").and_then(|pid| i32::try_from(pid).ok()),
        restarts: field("NRestarts").and_then(|n| n.parse().ok()),
        message: message.unwrap_or_default().to_owned(),
    }
}

/// Whether systemd knows pauses between restarts that grow.
pub(crate) fn has_growing_pauses() -> bool {
    let asked = Command::new("systemctl").arg("--version").output();
    let text = asked.map(|o| o.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let version = text.split_whitespace().nth(1).unwrap_or_default();
    let digits = version.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|v| v.parse::<u32>().ok()) >= Some(254)
}

/// Removes a file that may be gone.
pub(crate) fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).or_fail(|| format!("cannot remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_systemctl_shows_is_read() {
        let text = "ActiveState=active\nStateChangeTimestampMonotonic=5000000\nMainPID=42\nNRestarts=3\n\
                    StatusText=every service has answered\n";
        let activity = of_systemd(text, 1_700_000_000);
        assert_eq!(activity.since, Some(1_700_000_005));
        assert_eq!((activity.pid, activity.restarts), (Some(42), Some(3)));
        assert_eq!(activity.message, "every service has answered");
        // There is no such unit, or it was stopped.
        let none = "ActiveState=inactive\nStateChangeTimestampMonotonic=0\nMainPID=0\nStatusText=stopping\n";
        let activity = of_systemd(none, 0);
        assert_eq!(
            (&*activity.state, &*activity.message),
            ("inactive", ""),
            "its message is of before"
        );
        assert_eq!((activity.since, activity.pid), (None, None));
    }

    #[test]
    fn enabling_may_be_repeated_and_undone() {
        let dir = tempfile::tempdir().unwrap();
        for init in [Init::Systemd, Init::Openrc] {
            let installed = Installed {
                init: Some(init),
                root: Some(dir.path().to_owned()),
            };
            let place = Place::find("two", &installed).unwrap();
            assert!(!place.runs && !place.is_enabled());
            place.enable().unwrap();
            place.enable().unwrap();
            assert!(place.is_enabled());
            let target = fs::read_link(place.link()).unwrap();
            assert_eq!(target, place.inside(&place.file()));
            assert!(target.starts_with("/etc") && target.to_string_lossy().contains("tulle-two"));
            place.disable().unwrap();
            place.disable().unwrap();
            assert!(!place.is_enabled());
        }
    }
}
