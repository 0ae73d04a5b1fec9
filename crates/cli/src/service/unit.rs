//! The text of a service: a unit of systemd, or a script of OpenRC.
//!
//! The last line carries a checksum of those before it. So a file that somebody else wrote or changed is told
//! apart from what `install` left there.

use crate::args::service::Init;
use crate::failure::{Failure, Result};
use crate::service_record::checksum;
use std::ffi::OsString;
use std::path::PathBuf;

/// Starts the last line. `scripts/install.sh` and `scripts/release/prerm` look for it before they remove the program.
const MARK: &str = "# Written by `tulle service install`; checksum ";

/// How long the mesh may take to stop: a gateway drains for 7 s, then an application has 10 s, its sidecar
/// 7 s and the controller 5 s, and the janitor clears up.
const STOP_SECONDS: u32 = 60;

/// The parts of a service.
#[derive(Debug)]
pub(crate) struct Unit {
    /// The mesh's name.
    pub(crate) mesh: String,
    /// The program `tulle`.
    pub(crate) program: PathBuf,
    /// Options that name the mesh, such as `--name two`.
    pub(crate) which: Vec<OsString>,
    /// The command that it runs: `up` or `join`.
    pub(crate) command: &'static str,
    /// Options of that.
    pub(crate) options: Vec<OsString>,
    /// The manifests.
    pub(crate) files: Vec<PathBuf>,
    /// The durable directory.
    pub(crate) state: PathBuf,
    /// The log file, if it is not the journal.
    pub(crate) log_file: Option<PathBuf>,
    /// Variables that this command had and the mesh needs.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// Whether systemd knows pauses that grow (254 and newer).
    pub(crate) growing_pauses: bool,
}

impl Unit {
    /// The whole file.
    pub(crate) fn text(&self, init: Init) -> Result<String> {
        let text = match init {
            Init::Systemd => self.systemd()?,
            Init::Openrc => self.openrc()?,
        };
        Ok(signed(&text))
    }

    /// Words of a command of this program about this mesh.
    fn words(&self, words: &[&str]) -> Result<Vec<String>> {
        let program = self.program.as_os_str().to_owned();
        let all = [program]
            .into_iter()
            .chain(words.iter().map(OsString::from));
        all.chain(self.which.iter().cloned()).map(plain).collect()
    }

    fn start(&self) -> Result<Vec<String>> {
        let mut words = self.words(&[self.command, "--service"])?;
        let log = self.log_file.iter().map(|f| f.as_os_str().to_owned());
        let log = log.flat_map(|f| ["--log-file".into(), f]);
        let files = self.files.iter().map(|f| f.as_os_str().to_owned());
        let more = self.options.iter().cloned().chain(log).chain(files);
        for word in more {
            words.push(plain(word)?);
        }
        Ok(words)
    }

    fn systemd(&self) -> Result<String> {
        let line = |words: Vec<String>| words.iter().map(|w| systemd_word(w)).collect::<Vec<_>>();
        let line = |words| line(words).join(" ");
        let mut mounts = vec![plain(self.state.clone().into())?];
        for file in &self.files {
            mounts.push(plain(file.clone().into())?);
        }
        let mounts: Vec<String> = mounts.iter().map(|m| literal_word(m)).collect();
        let variables = self.variables.iter();
        let variables = variables.map(|(name, value)| {
            let assigned = literal_word(&format!("{name}={value}"));
            format!("Environment={assigned}\n")
        });
        let pause = match self.growing_pauses {
            true => "RestartSec=1\nRestartSteps=6\nRestartMaxDelaySec=60",
            false => "RestartSec=5",
        };
        Ok(format!(
            "\
# Tulle, started at boot. Put settings of your own into a drop-in (`systemctl edit`): this file is replaced when
# the service is installed again.
[Unit]
Description=Tulle service mesh {mesh}
# Not network-online.target: the mesh serves this host without a network, too.
RequiresMountsFor={mounts}
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={start}
ExecReload={reload}
ExecStopPost=-{clear}
{variables}Restart=on-failure
{pause}
TimeoutStartSec=5min
# Requests in flight may end. The supervisor stops its processes in order, and what is left is killed.
KillMode=mixed
TimeoutStopSec={STOP_SECONDS}
# Workloads have control groups of their own with limits: systemd enables the controllers for them.
Delegate=yes
TasksMax=infinity
# A workload that runs out of memory is started again by the supervisor; it ends no other.
OOMPolicy=continue
# Nothing that gives the service a mount namespace (ProtectSystem=, PrivateTmp= and others): the network namespaces
# of workloads would be in it, out of reach of `tulle exec` and `ip netns`.
CapabilityBoundingSet=~CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_BOOT CAP_SYS_TIME CAP_SYSLOG CAP_MAC_ADMIN CAP_MAC_OVERRIDE
LockPersonality=yes

[Install]
WantedBy=multi-user.target
",
            // `%` begins a specifier. A mesh's name has none.
            mesh = self.mesh,
            mounts = mounts.join(" "),
            start = line(self.start()?),
            reload = line(self.words(&["service", "reload"])?),
            clear = line(self.words(&["clear-up"])?),
            variables = variables.collect::<String>(),
        ))
    }

    fn openrc(&self) -> Result<String> {
        let line = |words: &[String]| words.iter().map(|w| shell_word(w)).collect::<Vec<_>>();
        let line = |words: Vec<String>| line(&words).join(" ");
        let start = self.start()?;
        let arguments = line(start.into_iter().skip(1).collect());
        let log = self.log_file.clone().unwrap_or_default();
        let variables = self.variables.iter();
        let variables =
            variables.map(|(name, value)| format!("export {name}={}\n", shell_word(value)));
        Ok(format!(
            "\
#!/sbin/openrc-run
# Tulle, started at boot. This file is replaced when the service is installed again.

description=\"Tulle service mesh {mesh}\"
supervisor=supervise-daemon
# OpenRC has the shell read these three again.
command={program}
command_args={arguments}
error_log={log}
respawn_delay=5
respawn_max=0
# Requests in flight may end; what is left after that is killed.
retry=TERM/{STOP_SECONDS}/KILL/5
extra_started_commands=reload
description_reload=\"Apply the manifests as they are now\"
{variables}
depend() {{
\tneed localmount
\tuse cgroups loopback
\tafter bootmisc
}}

reload() {{
\tebegin \"Reloading $RC_SVCNAME\"
\t{reload}
\teend $?
}}

stop_post() {{
\t{clear} || true
}}
",
            mesh = self.mesh,
            program = shell_word(&shell_word(&plain(self.program.clone().into())?)),
            arguments = shell_word(&arguments),
            log = shell_word(&shell_word(&plain(log.into())?)),
            variables = variables.collect::<String>(),
            reload = line(self.words(&["service", "reload"])?),
            clear = line(self.words(&["clear-up"])?),
        ))
    }
}

/// A word that both formats can carry.
fn plain(word: OsString) -> Result<String> {
    let refuse = |word: String| {
        Failure::usage(format!("{word:?} cannot be in a service"))
            .because("it has a line end or another control character, or is not UTF-8")
            .fix("give it another name")
    };
    let word = word.into_string();
    let word = word.map_err(|word| refuse(word.to_string_lossy().into_owned()))?;
    match word.contains(char::is_control) {
        true => Err(refuse(word)),
        false => Ok(word),
    }
}

fn is_simple(word: &str) -> bool {
    let simple = |c: char| c.is_ascii_alphanumeric() || "/._-:=,+@".contains(c);
    !word.is_empty() && word.chars().all(simple)
}

/// Quotes a word of a command line.
fn systemd_word(word: &str) -> String {
    let word = word.replace('%', "%%").replace('$', "$$");
    quoted(&word)
}

/// Quotes a path of a list, or a variable and its value: there `$` is itself.
fn literal_word(word: &str) -> String {
    quoted(&word.replace('%', "%%"))
}

fn quoted(word: &str) -> String {
    if is_simple(word) {
        return word.to_owned();
    }
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

fn shell_word(word: &str) -> String {
    match is_simple(word) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Whether a service has its host join another's mesh.
pub(crate) fn joins(text: &str) -> bool {
    text.contains("join --service ")
}

fn signed(text: &str) -> String {
    let sum = checksum([text.as_bytes()].into_iter());
    format!("{text}{MARK}{sum}\n")
}

/// The author of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    /// `tulle service install`, and nobody has changed it.
    Tulle,
    /// `tulle service install`, and somebody has changed it since.
    Changed,
    /// Somebody else.
    SomebodyElse,
    /// The package of the program.
    Package,
}

impl Author {
    /// Tells by a file's text.
    pub(crate) fn new(text: &str) -> Self {
        let Some((before, rest)) = text.rsplit_once(MARK) else {
            return Self::SomebodyElse;
        };
        let sum = checksum([before.as_bytes()].into_iter());
        match rest.strip_suffix('\n') == Some(&sum) {
            true => Self::Tulle,
            false => Self::Changed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit() -> Unit {
        Unit {
            mesh: "tulle".into(),
            program: "/usr/local/bin/tulle".into(),
            which: vec!["--name".into(), "two".into()],
            command: "up",
            options: vec!["--loopback".into()],
            files: vec!["/etc/tulle/my mesh $HOME 50%'\".yaml".into()],
            state: "/var/lib/tulle".into(),
            log_file: Some("/var/log/tulle.log".into()),
            variables: vec![("TULLE_PROXY", "/opt/my $1/tulle-proxy".into())],
            growing_pauses: false,
        }
    }

    #[test]
    fn words_of_a_unit_mean_themselves() {
        let text = unit().text(Init::Systemd).unwrap();
        let line = |name: &str| {
            let found = text.lines().find_map(|l| l.strip_prefix(name));
            found.unwrap_or_else(|| panic!("{name} in {text}"))
        };
        assert_eq!(
            line("ExecStart="),
            "/usr/local/bin/tulle up --service --name two --loopback --log-file /var/log/tulle.log \
             \"/etc/tulle/my mesh $$HOME 50%%'\\\".yaml\""
        );
        assert_eq!(
            line("RequiresMountsFor="),
            "/var/lib/tulle \"/etc/tulle/my mesh $HOME 50%%'\\\".yaml\""
        );
        assert_eq!(
            line("ExecReload="),
            "/usr/local/bin/tulle service reload --name two"
        );
        assert_eq!(
            line("Environment="),
            "\"TULLE_PROXY=/opt/my $1/tulle-proxy\""
        );
        assert!(!text.contains("RestartSteps"));
        let newer = Unit {
            growing_pauses: true,
            ..unit()
        };
        assert!(newer.text(Init::Systemd).unwrap().contains("RestartSteps"));
    }

    /// The last lines are those of OpenRC's `supervise-daemon.sh`.
    #[test]
    fn a_shell_reads_the_words_of_a_script_as_they_were_given() {
        let odd = Unit {
            program: "/opt/my programs/tulle".into(),
            log_file: Some("/var/log/it's.log".into()),
            ..unit()
        };
        let text = odd.text(Init::Openrc).unwrap();
        let script = format!(
            "{text}\nshow() {{ printf '%s\\n' \"$@\"; }}\neval show --stderr $error_log $command \\\n -- $command_args"
        );
        let output = std::process::Command::new("sh")
            .args(["-e", "-c", &script])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "--stderr\n/var/log/it's.log\n/opt/my programs/tulle\n--\nup\n--service\n--name\ntwo\n--loopback\n\
             --log-file\n/var/log/it's.log\n/etc/tulle/my mesh $HOME 50%'\".yaml\n"
        );
    }

    /// All but the begin, and the one condition that a file with manifests written by hand needs.
    #[test]
    fn a_package_has_the_unit_that_would_be_written() {
        let written = Unit {
            program: "/usr/bin/tulle".into(),
            which: Vec::new(),
            options: Vec::new(),
            files: vec!["/etc/tulle/mesh.yaml".into()],
            log_file: None,
            variables: Vec::new(),
            ..unit()
        };
        let written = written.systemd().unwrap();
        let packaged = include_str!("../../../../deploy/systemd/tulle.service");
        let settings = |text: &str| {
            let start = text.find("[Unit]").unwrap();
            let lines = text[start..].lines();
            let own = |line: &&str| {
                line.starts_with("AssertPathExists=") || line.starts_with("# There are manifests")
            };
            lines
                .filter(|line| !own(line))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert!(packaged.contains("AssertPathExists="));
        assert_eq!(settings(packaged), settings(&written));
    }

    #[test]
    fn a_name_that_would_end_a_line_is_refused() {
        let bad = Unit {
            files: vec!["/etc/a\nExecStartPre=/bin/x".into()],
            ..unit()
        };
        for init in [Init::Systemd, Init::Openrc] {
            let failure = bad.text(init).unwrap_err();
            assert!(failure.to_string().contains("cannot be in a service"));
        }
    }

    #[test]
    fn the_mark_tells_what_was_changed() {
        for init in [Init::Systemd, Init::Openrc] {
            let text = unit().text(init).unwrap();
            assert_eq!(Author::new(&text), Author::Tulle);
            assert_eq!(Author::new(&text.replace("two", "three")), Author::Changed);
            assert_eq!(Author::new(&format!("{text}#\n")), Author::Changed);
            let unmarked = text.replace(MARK, "# ");
            assert_eq!(Author::new(&unmarked), Author::SomebodyElse);
        }
    }
}
