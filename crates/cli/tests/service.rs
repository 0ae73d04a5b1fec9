//! `tulle service`: what it writes, and how what it has written runs.
//!
//! No init system is asked here: the lines of a unit are run as systemd runs them, with a socket in its place.

#![allow(clippy::unwrap_used)] // a helper of tests may fail like a test

mod common;

use common::{MESH, Mesh, TARGET, eventually, is_alive, kill};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SYSTEMD: [&str; 2] = ["--init", "systemd"];

/// Options of `service` for files below a directory of the test.
fn below(root: &Path) -> Vec<String> {
    let root = root.display().to_string();
    [&SYSTEMD[..], &["--root", &root]]
        .concat()
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// The file that was written, wherever the mesh's name has put it.
fn only_file(directory: &Path) -> PathBuf {
    let entries = fs::read_dir(directory).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.is_file());
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

struct Installed<'a> {
    mesh: &'a Mesh,
    root: tempfile::TempDir,
}

impl<'a> Installed<'a> {
    fn new(mesh: &'a Mesh) -> Self {
        Self {
            mesh,
            root: tempfile::tempdir().unwrap(),
        }
    }

    fn service(&self, words: &[&str], code: i32) -> common::Answer {
        let below = below(self.root.path());
        let below: Vec<&str> = below.iter().map(String::as_str).collect();
        let answer = self.mesh.tulle(&[&["service"][..], words, &below].concat());
        assert_eq!(answer.code, code, "{words:?}: {answer:?}");
        answer
    }

    fn units(&self) -> PathBuf {
        self.root.path().join("etc/systemd/system")
    }

    /// The words of a line of the unit. None of them is quoted here.
    fn line(&self, name: &str) -> Command {
        let text = fs::read_to_string(only_file(&self.units())).unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix(name)).unwrap();
        let mut words = line.trim_start_matches('-').split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words).env("TULLE_PROXY", "/bin/true");
        command.current_dir("/");
        command
    }
}

#[test]
fn a_service_is_installed_shown_and_removed_and_nothing_of_others_is_touched() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", MESH);
    let installed = Installed::new(&mesh);
    let install = ["install", "mesh.yaml", "--loopback"];

    let shown = installed
        .service(&[&install[..], &["--dry-run"]].concat(), 0)
        .out;
    assert!(shown.contains("\nExecStart="), "{shown}");
    assert!(
        !installed.units().exists(),
        "a dry run has written something"
    );
    let answer = installed.service(&["status"], 1);
    assert!(answer.out.contains("not installed"), "{answer:?}");

    installed.service(&install, 0);
    let unit = only_file(&installed.units());
    assert_eq!(fs::read_to_string(&unit).unwrap(), shown);
    let link = installed.units().join("multi-user.target.wants");
    let link = link.join(unit.file_name().unwrap());
    assert!(
        fs::read_link(&link)
            .unwrap()
            .starts_with("/etc/systemd/system")
    );
    let again = installed.service(&install, 0).out;
    assert!(again.contains("is installed already"), "{again}");
    let status = installed.service(&["status", "-o", "json"], 1).out;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    for (field, value) in [
        ("installed", true),
        ("enabled", true),
        ("changed", false),
        ("active", false),
    ] {
        assert_eq!(status[field], value, "{field}: {status}");
    }
    verify(&unit);

    // A file that somebody has changed is theirs.
    fs::write(&unit, shown.replace("TasksMax=infinity", "TasksMax=10")).unwrap();
    for words in [&install[..], &["uninstall"]] {
        let refused = installed.service(words, 1).err;
        assert!(refused.contains("somebody has changed it"), "{refused}");
        assert!(refused.contains("--force"), "{refused}");
    }
    assert!(unit.exists() && link.symlink_metadata().is_ok());
    let told = installed.service(&["status"], 1).out;
    assert!(told.contains("changed since it was installed"), "{told}");
    installed.service(&[&install[..], &["--force"]].concat(), 0);
    installed.service(&["uninstall"], 0);
    assert!(!unit.exists() && link.symlink_metadata().is_err());
    let again = installed.service(&["uninstall"], 0).out;
    assert!(again.contains("is not installed"), "{again}");

    fs::write(&unit, "[Service]\nExecStart=/bin/true\n").unwrap();
    let refused = installed.service(&["uninstall"], 1).err;
    assert!(refused.contains("has not written it"), "{refused}");
    installed.service(&["uninstall", "--force"], 0);
    assert!(!unit.exists());
}

/// Has systemd itself judge it, where it is installed.
fn verify(unit: &Path) {
    // Under a name without a mesh's: systemd looks at a file's name.
    let output = Command::new("systemd-analyze")
        .arg("verify")
        .arg(unit)
        .output();
    let Ok(output) = output else {
        return println!("skipped in part: systemd-analyze, which judges units, is not installed");
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // It also looks at the units of this machine.
    let name = unit.file_name().unwrap().to_str().unwrap();
    let ours: Vec<&str> = said.lines().filter(|l| l.contains(name)).collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");
}

#[test]
fn openrc_gets_a_script_that_a_shell_can_read() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", MESH);
    let root = tempfile::tempdir().unwrap();
    let root_word = root.path().display().to_string();
    let words = [
        "service",
        "install",
        "mesh.yaml",
        "--init",
        "openrc",
        "--root",
        &root_word,
    ];
    let answer = mesh.tulle(&words);
    assert_eq!(answer.code, 0, "{answer:?}");
    let script = only_file(&root.path().join("etc/init.d"));
    let read = Command::new("sh").arg("-n").arg(&script).status().unwrap();
    assert!(read.success());
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&script).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o755);
    let link = root.path().join("etc/runlevels/default");
    assert_eq!(fs::read_dir(link).unwrap().count(), 1);
    let gone = mesh.tulle(&["service", "uninstall", "--root", &root_word]);
    assert_eq!(gone.code, 0, "found by its file: {gone:?}");
    assert!(!script.exists());
}

#[test]
fn a_file_system_may_be_named_as_it_is_reached() {
    let mesh = Mesh::new();
    let image = mesh.path().join("image");
    fs::create_dir_all(image.join("etc/tulle")).unwrap();
    mesh.write("image/etc/tulle/mesh.yaml", MESH);
    std::os::unix::fs::symlink("image", mesh.path().join("linked")).unwrap();
    for root in ["image", "linked/../linked/"] {
        let words = [&["service", "install", "--root", root], &SYSTEMD[..]].concat();
        let file = format!("{root}/etc/tulle/mesh.yaml");
        let answer = mesh.tulle(&[&words[..], &[&file]].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
        let unit = only_file(&image.join("etc/systemd/system"));
        let text = fs::read_to_string(&unit).unwrap();
        let start = text.lines().find(|l| l.starts_with("ExecStart=")).unwrap();
        assert!(start.ends_with(" /etc/tulle/mesh.yaml"), "{start}");
        fs::remove_file(unit).unwrap();
    }
}

#[test]
fn a_manifest_that_is_wrong_and_an_unknown_init_system_are_told() {
    let mesh = Mesh::new();
    mesh.write("bad.yaml", "kind: Mesh\n");
    mesh.write("mesh.yaml", MESH);
    let installed = Installed::new(&mesh);
    let wrong = installed.service(&["install", "bad.yaml"], 65);
    assert!(wrong.err.contains("bad.yaml"), "{wrong:?}");
    installed.service(&["install", "nowhere.yaml"], 65);
    mesh.write("empty.yaml", "# nothing yet\n");
    let empty = installed.service(&["install", "empty.yaml"], 65);
    assert!(empty.err.contains("no object in it"), "{empty:?}");
    assert!(!installed.units().exists());
    let root = installed.root.path().display().to_string();
    let unknown = mesh.tulle(&["service", "install", "mesh.yaml", "--root", &root]);
    assert_eq!(unknown.code, 1, "{unknown:?}");
    assert!(
        unknown.err.contains("--init systemd or --init openrc"),
        "{unknown:?}"
    );
    for words in [
        &["install", "mesh.yaml", "--now", "--dry-run"][..],
        &["install"],
        &["install", "mesh.yaml", "--init", "upstart"],
    ] {
        let answer = mesh.tulle(&[&["service"], words].concat());
        assert_eq!(answer.code, 64, "{words:?}: {answer:?}");
    }
    let none = mesh.tulle(&["service", "reload"]);
    assert_eq!(none.code, 1, "no mesh is up: {none:?}");
}

/// A unit's start, as systemd runs it.
struct Run {
    child: Child,
    socket: UnixDatagram,
    log: PathBuf,
    told: Vec<String>,
}

impl Run {
    fn start(mut command: Command, mesh: &Mesh) -> Self {
        let path = mesh.path().join("notify");
        let _ = fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let log = mesh.path().join("journal");
        let child = command
            .env("NOTIFY_SOCKET", &path)
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self {
            child,
            socket,
            log,
            told: Vec::new(),
        }
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until it has said this.
    fn says(&mut self, state: &str) {
        eventually(state, || {
            let mut bytes = [0; 4096];
            if let Ok(length) = self.socket.recv(&mut bytes) {
                let text = String::from_utf8(bytes[..length].to_vec()).unwrap();
                self.told.extend(text.lines().map(str::to_owned));
            }
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() || self.told.iter().any(|t| t == state),
                "{ended:?}: {}",
                self.log()
            );
            self.told.iter().any(|t| t == state).then_some(())
        });
    }

    fn stop(mut self) {
        kill(self.pid(), "-TERM");
        self.says("STOPPING=1");
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_unit_starts_comes_back_after_a_crash_and_follows_its_manifests() {
    let mesh = Mesh::new();
    let own = TARGET.replace("a-to-b", "of-the-file");
    mesh.write("mesh.yaml", &format!("{MESH}---\n{own}"));
    mesh.write("target.yaml", TARGET);
    let installed = Installed::new(&mesh);
    let install = |files: &[&str]| {
        let listen = ["--loopback", "--listen", "127.0.0.1:0", "--console", "off"];
        installed.service(&[&["install"], files, &listen].concat(), 0);
    };
    install(&["mesh.yaml"]);
    let start = || Run::start(installed.line("ExecStart="), &mesh);
    let objects = || mesh.tulle(&["get"]).out;
    let reload = |code| {
        let output = installed.line("ExecReload=").output().unwrap();
        let answer = common::Answer::from_output(output);
        assert_eq!(answer.code, code, "{answer:?}");
        answer
    };

    let mut run = start();
    run.says("READY=1");
    run.says("STATUS=every service has answered");
    assert!(run.log().contains("every service answers"), "{}", run.log());
    let logs = mesh.tulle(&["logs", "supervisor"]);
    assert!(logs.out.contains("every service answers"), "{logs:?}");
    assert_eq!(mesh.tulle(&["apply", "target.yaml"]).code, 0);

    // Whatever ends it, what was acknowledged comes back; the files are as they were.
    let controller = mesh.pids().1.unwrap();
    kill(run.pid(), "-KILL");
    run.child.wait().unwrap();
    assert!(installed.line("ExecStopPost=").status().unwrap().success());
    eventually("nothing is left", || (!is_alive(controller)).then_some(()));
    run = start();
    run.says("READY=1");
    assert!(
        objects().contains("a-to-b") && objects().contains("of-the-file"),
        "{}",
        objects()
    );
    // A second one does it no harm, nor does the step that follows its failure.
    let second = installed.line("ExecStart=").output().unwrap();
    let second = common::Answer::from_output(second);
    assert_eq!(second.code, 1, "{second:?}");
    assert!(second.err.contains("up already"), "{second:?}");
    assert!(installed.line("ExecStopPost=").status().unwrap().success());
    assert!(is_alive(run.pid()) && mesh.tulle(&["get"]).code == 0);

    // Manifests are followed, and objects from elsewhere are left alone.
    mesh.write("mesh.yaml", MESH);
    assert!(reload(0).out.contains("traffictarget/of-the-file removed"));
    assert!(objects().contains("a-to-b"), "{}", objects());
    // So is another name of the Mesh, of which there is one at any time.
    let the_mesh = || mesh.tulle(&["get", "mesh"]).out;
    mesh.write("mesh.yaml", &MESH.replace("name: test", "name: other"));
    assert_eq!(reload(0).out, "mesh/other created\nmesh/test removed\n");
    assert_eq!(the_mesh(), "KIND  NAME\nMesh  other\n");
    mesh.write("mesh.yaml", "kind: Mesh\n");
    reload(65);
    assert!(objects().contains("Mesh"), "{}", objects());
    run.stop();

    // A mistake in a file keeps no mesh from coming up.
    run = start();
    run.says("READY=1");
    assert!(
        run.log().contains("starts with what was stored before"),
        "{}",
        run.log()
    );
    assert!(objects().contains("a-to-b"), "{}", objects());
    run.stop();
    mesh.write("mesh.yaml", &format!("{MESH}---\n{own}"));
    run = start();
    run.says("READY=1");
    assert!(objects().contains("of-the-file"), "{}", objects());
    assert_eq!(the_mesh(), "KIND  NAME\nMesh  test\n");
    run.stop();

    // The same objects in other files are no change; a reload reads the files of this start.
    mesh.write("mesh.yaml", MESH);
    mesh.write("more.yaml", &own);
    install(&["mesh.yaml", "more.yaml"]);
    run = start();
    run.says("READY=1");
    reload(0);
    assert!(objects().contains("of-the-file"), "{}", objects());
    // Nor does it take a file that was cut short for one whose objects are to go.
    for empty in ["", "# nothing yet\n"] {
        mesh.write("more.yaml", empty);
        let refused = reload(65).err;
        assert!(
            refused.contains("more.yaml: there is no object in it"),
            "{refused}"
        );
        assert!(objects().contains("of-the-file"), "{}", objects());
    }
    run.stop();
    // Files that are refused at a start are those that a reload reads once they are right.
    fs::rename(
        mesh.path().join("mesh.yaml"),
        mesh.path().join("renamed.yaml"),
    )
    .unwrap();
    mesh.write("other.yaml", &own.replace("of-the-file", "of-another"));
    install(&["renamed.yaml", "other.yaml"]);
    mesh.write("other.yaml", "");
    run = start();
    run.says("READY=1");
    assert!(
        run.log().contains("other.yaml: there is no object in it"),
        "{}",
        run.log()
    );
    assert!(objects().contains("of-the-file"), "{}", objects());
    mesh.write("other.yaml", &own.replace("of-the-file", "of-another"));
    assert_eq!(
        reload(0).out,
        "mesh/test unchanged\ntraffictarget/of-another created\ntraffictarget/of-the-file removed\n"
    );
    run.stop();
}

#[test]
fn the_first_start_with_a_wrong_file_fails_and_a_service_that_never_answers_does_not_hold_up_the_boot()
 {
    let mesh = Mesh::with_proxy("/bin/false");
    let file = mesh.write("mesh.yaml", "kind: Mesh\n");
    let file = file.to_str().unwrap();
    let words = [
        "up",
        "--service",
        "--loopback",
        "--listen",
        "127.0.0.1:0",
        "--timeout",
        "1s",
        file,
    ];
    let wrong = mesh.tulle(&words);
    assert_eq!(wrong.code, 65, "{wrong:?}");
    // Where no file has brought anything, an empty one takes nothing away.
    mesh.write("mesh.yaml", "# nothing yet\n");
    let mut command = mesh.command();
    command.args(words);
    let mut run = Run::start(command, &mesh);
    run.says("READY=1");
    run.stop();

    mesh.write("mesh.yaml", &format!("{MESH}---\n{}", common::WORKLOAD));
    let log = mesh.path().join("tulle.log");
    let mut command = mesh.command();
    command.args(words).arg("--log-file").arg(&log);
    let mut run = Run::start(command, &mesh);
    run.says("READY=1");
    let status = run
        .told
        .iter()
        .find(|t| t.starts_with("STATUS=not ready: "));
    assert!(
        status.is_some_and(|s| s.contains("workload b")),
        "{:?}",
        run.told
    );
    let logged = fs::read_to_string(&log).unwrap();
    assert!(logged.contains("not every service answers yet"), "{logged}");
    assert_eq!(run.log(), "", "the log is in its file");
    run.stop();
}
