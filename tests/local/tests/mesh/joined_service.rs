//! A host that joined as a service of its machine: the lines of its unit are run as systemd runs them.

use crate::cli_join::{is_elsewhere, only, said, terminate, token};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tests_local::{Answer, Demo, RATING, eventually, runs_as_root, skip_part};

fn sleeper(name: &str) -> String {
    format!(
        "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}}}\nspec: {{command: [sleep, '1000']}}\n"
    )
}

/// A host with the unit that `tulle service join` has written for it.
struct Machine {
    host: Demo,
    root: PathBuf,
    made: Value,
}

impl Machine {
    fn install(host: Demo, made: Value) -> Self {
        let root = host.path().join("root");
        let machine = Self { host, root, made };
        let done = said(&mut machine.service_join());
        assert_eq!(done.code, 0, "{done:?}");
        machine
    }

    fn service_join(&self) -> Command {
        let made = |field: &str| self.made[field].as_str().unwrap();
        let mut command = self.host.command();
        command
            .args(["service", "join", "--init", "systemd", "--root"])
            .arg(&self.root)
            .args(["--controller", made("controller")])
            .args(["--ca-fingerprint", made("ca_fingerprint")])
            .arg(&self.host.manifest)
            .env("TULLE_TOKEN", made("token"))
            .stdin(Stdio::null());
        command
    }

    fn unit(&self) -> String {
        let units = fs::read_dir(self.root.join("etc/systemd/system")).unwrap();
        let mut files = units.map(|e| e.unwrap().path()).filter(|f| f.is_file());
        fs::read_to_string(files.next().unwrap()).unwrap()
    }

    /// The words of a line of the unit. None of them is quoted here.
    fn line(&self, name: &str) -> Command {
        let unit = self.unit();
        let line = unit.lines().find_map(|l| l.strip_prefix(name)).unwrap();
        let mut words = line.trim_start_matches('-').split(' ');
        let program = words.next().unwrap();
        assert_eq!(Path::new(program), self.host.path().join("tulle"));
        let mut command = self.host.command();
        command.args(words).stdin(Stdio::null());
        command
    }

    /// Where a token waits: below the unit's directory, and where the host looks.
    fn token_files(&self) -> [PathBuf; 2] {
        let file = self.host.path().join("state/host-token");
        [self.root.join(file.strip_prefix("/").unwrap()), file]
    }

    fn start(&self) -> (Child, PathBuf) {
        let journal = self.host.path().join("journal");
        let mut command = self.line("ExecStart=");
        command.stdout(Stdio::null());
        command.stderr(fs::File::create(&journal).unwrap());
        let child = command.spawn().unwrap();
        eventually("every service of the host answers", || {
            let status = self.host.tulle(&["status", "-o", "json"]).out;
            status.contains(r#""phase": "running""#)
        });
        (child, journal)
    }

    fn reload(&self) -> Answer {
        said(&mut self.line("ExecReload="))
    }
}

fn workloads(centre: &Demo) -> Vec<String> {
    let got = centre.tulle(&["get", "workloads", "-o", "json"]);
    let all: Value = serde_json::from_str(&got.out).unwrap_or_else(|e| panic!("{e}: {got:?}"));
    let listed = all.as_array().or_else(|| all["items"].as_array()).unwrap();
    let of_host = listed
        .iter()
        .filter(|w| w["metadata"]["labels"]["tulle.dev/node"] == "edge");
    let mut names: Vec<String> = of_host
        .map(|w| w["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn a_joined_host_is_a_service_of_its_machine() {
    let centre = Demo::prepare_without_privileges(|text| only(&text, |d| !is_elsewhere(d)));
    centre.up();
    let mut ratings = String::new();
    let host = Demo::prepare(true, |text| {
        ratings = only(&text, is_elsewhere);
        format!("{ratings}\n---\n{}", sleeper("spare"))
    });
    let with = |more: &str| format!("{ratings}\n---\n{more}");
    let machine = Machine::install(host, token(&centre));
    let host = &machine.host;
    let secret = machine.made["token"].as_str().unwrap();
    assert!(!machine.unit().contains(secret), "others can read a unit");

    // A host that was never in the mesh starts with the token that waits, and that is gone then.
    let [waits, here] = machine.token_files();
    let mode = fs::metadata(&waits).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let first = said(&mut machine.line("ExecStart="));
    assert_eq!(first.code, 64, "{first:?}");
    assert!(first.err.contains("no token to get one"), "{first:?}");
    fs::create_dir_all(here.parent().unwrap()).unwrap();
    fs::rename(&waits, &here).unwrap();
    let (mut joined, journal) = machine.start();
    assert!(!here.exists(), "a spent token");
    let log = fs::read_to_string(&journal).unwrap();
    assert!(
        log.contains("joined as spiffe://tulle.local/node/edge"),
        "{log}"
    );
    assert!(log.contains("every service answers"), "{log}");
    centre.await_answer(&format!("/ratings/{RATING}"));
    assert_eq!(workloads(&centre), ["gateway", "ratings", "spare"]);
    // Manifests are followed: what is new comes, what they no longer have goes.
    let before = host.application("ratings");
    fs::write(&host.manifest, with(&sleeper("late"))).unwrap();
    let reloaded = machine.reload();
    assert_eq!(reloaded.code, 0, "{reloaded:?}");
    for part in ["workload/late created", "workload/spare removed"] {
        assert!(reloaded.out.contains(part), "{part}: {reloaded:?}");
    }
    eventually("the host runs them so", || {
        host.application_now("late").is_some() && host.application_now("spare").is_none()
    });
    assert_eq!(workloads(&centre), ["gateway", "late", "ratings"]);
    assert_eq!(
        host.application("ratings"),
        before,
        "nothing has become of it"
    );
    fs::write(&host.manifest, "kind: Mesh\n").unwrap();
    let wrong = machine.reload();
    assert_eq!(wrong.code, 65, "{wrong:?}");
    fs::write(&host.manifest, "# cut short").unwrap();
    let empty = machine.reload();
    assert_eq!(empty.code, 65, "{empty:?}");
    assert!(empty.err.contains("no object in it"), "{empty:?}");
    assert_eq!(workloads(&centre), ["gateway", "late", "ratings"]);

    // New programs take over here, one sidecar after another.
    let upgraded = host.tulle(&["service", "upgrade"]);
    assert_eq!(upgraded.code, 0, "{upgraded:?}");
    assert!(
        upgraded.out.contains("workload/ratings has a new sidecar"),
        "{upgraded:?}"
    );
    assert_eq!(host.application("ratings"), before);

    // A machine that is shut down stays in the mesh, and a mistake in its manifests keeps nothing from starting.
    assert_eq!(terminate(&mut joined), 0);
    assert_eq!(workloads(&centre), ["gateway", "late", "ratings"]);
    let (mut joined, journal) = machine.start();
    let log = fs::read_to_string(&journal).unwrap();
    assert!(log.contains("this host starts what it ran before"), "{log}");
    assert!(log.contains("joined as"), "{log}");
    centre.await_answer(&format!("/ratings/{RATING}"));
    assert_eq!(terminate(&mut joined), 0);
    assert_eq!(workloads(&centre), ["gateway", "late", "ratings"]);

    // Changes of a host that is off are brought at its next start.
    fs::write(&host.manifest, with(&sleeper("later"))).unwrap();
    let (mut joined, _) = machine.start();
    assert_eq!(workloads(&centre), ["gateway", "later", "ratings"]);
    assert!(host.application_now("late").is_none());
    assert_eq!(terminate(&mut joined), 0);

    // The controller refuses what is new: a Workload of this name is of another host. What ran before runs.
    centre.apply(&centre.write("theirs.yaml", &sleeper("theirs")));
    fs::write(&host.manifest, with(&sleeper("theirs"))).unwrap();
    let (mut joined, journal) = machine.start();
    let log = fs::read_to_string(&journal).unwrap();
    assert!(
        log.contains("refused the workloads; this host starts what it ran before"),
        "{log}"
    );
    centre.await_answer(&format!("/ratings/{RATING}"));
    let refused = machine.reload();
    assert_eq!(refused.code, 1, "{refused:?}");
    assert_eq!(workloads(&centre), ["gateway", "later", "ratings"]);
    // Programs are looked for before anything is told.
    fs::write(
        &host.manifest,
        with(&sleeper("later").replace("sleep,", "/nowhere/program,")),
    )
    .unwrap();
    let missing = machine.reload();
    assert_eq!(missing.code, 65, "{missing:?}");
    assert!(missing.err.contains("/nowhere/program"), "{missing:?}");
    assert_eq!(terminate(&mut joined), 0);
    fs::write(&host.manifest, with(&sleeper("later"))).unwrap();

    uninstalled(&machine, || {
        assert!(workloads(&centre).is_empty(), "it has left the mesh");
    });
    assert_eq!(centre.tulle(&["down"]).code, 0);
}

/// Installs and uninstalls the service where the machine has its services, which is an empty directory here.
fn uninstalled(machine: &Machine, then: impl FnOnce()) {
    if !runs_as_root() {
        return skip_part("only root installs and uninstalls the service");
    }
    let word = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap());
    let join = machine.service_join();
    // Everything but `--root` and its directory.
    let words: Vec<String> = join.get_args().map(word).collect();
    let root = words.iter().position(|w| w == "'--root'").unwrap();
    let words = [&words[..root], &words[root + 2..]].concat().join(" ");
    let tulle = word(join.get_program());
    let script = format!(
        "mount -t tmpfs none /etc/systemd && {tulle} {words} >&2 && \
         {{ {tulle} service status --init systemd -o json || {tulle} service uninstall --init systemd >&2; }}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    for (name, value) in join.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command.env_remove("TULLE_TOKEN");
    let done = said(&mut command);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.err.contains("this host has left its mesh"), "{done:?}");
    let status: Value = serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}: {done:?}"));
    assert_eq!(status["controller"], machine.made["controller"]);
    let manifest = machine.host.manifest.to_str().unwrap();
    assert_eq!(status["manifests"][0], manifest);
    assert!(
        !machine
            .host
            .path()
            .join("state/host-last-known.json")
            .exists()
    );
    then();
}

#[test]
fn one_kind_of_service_does_not_replace_the_other() {
    let host = Demo::prepare_without_privileges(|_| sleeper("a"));
    let made = serde_json::json!({"controller": "127.0.0.1:15010", "ca_fingerprint": "0a".repeat(32), "token": "abc"});
    let machine = Machine::install(host, made);
    let root = machine.root.to_str().unwrap();
    let service = |words: &[&str]| {
        let place = ["--init", "systemd", "--root", root];
        machine.host.tulle(&[&["service"], words, &place].concat())
    };
    let manifest = machine.host.manifest.to_str().unwrap();
    let other = service(&["install", manifest, "--loopback"]);
    assert_eq!(other.code, 1, "{other:?}");
    assert!(
        other.err.contains("it is the service of a host that joins"),
        "{other:?}"
    );
    assert_eq!(
        service(&["install", manifest, "--loopback", "--force"]).code,
        0
    );
    let back = said(&mut machine.service_join());
    assert!(
        back.err.contains("it is the service of a mesh of its own"),
        "{back:?}"
    );
    assert_eq!(service(&["uninstall"]).code, 0);
    assert_eq!(said(&mut machine.service_join()).code, 0);
    // A token that nobody has used goes with the service.
    let [waits, _] = machine.token_files();
    assert!(waits.exists());
    assert_eq!(service(&["uninstall"]).code, 0);
    assert!(!waits.exists());
}

#[test]
fn a_service_that_could_not_join_is_not_written() {
    let host = Demo::prepare_without_privileges(|_| sleeper("a"));
    let fingerprint = "0a".repeat(32);
    let join = |controller: &str, fingerprint: &str, more: &[&str]| {
        let manifest = host.manifest.to_str().unwrap();
        let words = ["service", "join", "--init", "systemd", "--controller"];
        let all = [controller, "--ca-fingerprint", fingerprint, manifest];
        host.tulle(&[&words[..], &all, more].concat())
    };
    let none = join("127.0.0.1:15010", &fingerprint, &[]);
    assert_eq!(none.code, 64, "{none:?}");
    assert!(none.err.contains("no token to get one"), "{none:?}");
    let dry = join("127.0.0.1:15010", &fingerprint, &["--dry-run"]);
    assert_eq!(dry.code, 0, "{dry:?}");
    assert!(dry.out.contains(" join --service "), "{dry:?}");
    let short = join("127.0.0.1:15010", "0a", &["--dry-run"]);
    assert_eq!(short.code, 64, "{short:?}");
    assert!(short.err.contains("--ca-fingerprint"), "{short:?}");
    fs::write(
        &host.manifest,
        "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata: {name: m}\nspec: {}\n",
    )
    .unwrap();
    let mesh = join("127.0.0.1:15010", &fingerprint, &["--dry-run"]);
    assert_eq!(mesh.code, 65, "{mesh:?}");
    assert!(mesh.err.contains("is not a Workload"), "{mesh:?}");
    // Nobody reloads a host that no service has started.
    let reload = host.tulle(&["service", "reload"]);
    assert_eq!(reload.code, 1, "{reload:?}");
}
