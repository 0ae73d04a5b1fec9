//! Machines that are small or lack something: little memory and a tenth of a core, no IPv6, a read-only root, a kernel
//! without nf_tables. None of these tests has systemd: the supervisor is started by hand.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests_local::{Demo, Host, RATING, Yard, can_redirect, is_root, pause};
use tulle_redirect::{Cgroup, ProcessLimits};

/// Memory of the smallest machine that is promised: a controller and five sidecars of light load, and here also the
/// supervisor, a gateway and the applications.
const MEMORY: u64 = 64 << 20;
/// Its share of a core in thousandths.
const CPU: u32 = 100;

/// Starts the mesh by a shell that runs `script` before it becomes `tulle`.
fn up_after(demo: &Demo, script: &str) {
    let tulle = demo.command();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("set -e\n{script}\nexec \"$@\""), "sh"]);
    shell.arg(tulle.get_program());
    shell.args(["up", "--detach", "--timeout", "280s"]);
    shell.arg(&demo.manifest).current_dir(demo.path());
    for (name, value) in tulle.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let done = shell.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    let log = || demo.tulle(&["logs", "supervisor"]).out;
    assert!(done.status.success(), "{said}\n{}", log());
}

/// Every path of the demo is answered.
fn serves(demo: &Demo) {
    for path in ["/ratings/", "/bookinfo-ratings/ratings/"] {
        let answer = demo.get(&format!("{path}{RATING}"));
        assert_eq!(answer.status(), 200, "{path}: {}", answer.head);
    }
    assert_eq!(demo.get("/productpage").status(), 200);
}

/// A cgroup that goes with the test, after the processes in it.
struct Group(Cgroup);

impl Group {
    fn new(limits: &ProcessLimits) -> Self {
        let name = format!("box{}", std::process::id());
        Self(Cgroup::create(&name, "mesh", limits).unwrap())
    }

    /// Shell that moves itself in.
    fn join(&self) -> String {
        let directories = self.0.directories().iter();
        let joins = directories.map(|d| format!("echo $$ >{}/cgroup.procs\n", d.display()));
        joins.collect()
    }

    /// Number that a file of either version of cgroups has after `name`.
    fn count(&self, files: [&str; 2], name: &str) -> u64 {
        let directories = self.0.directories().iter();
        let texts = directories
            .flat_map(|d| files.map(|f| d.join(f)))
            .filter_map(|file| fs::read_to_string(file).ok());
        let mut lines = texts.flat_map(|t| t.lines().map(str::to_owned).collect::<Vec<_>>());
        let line = lines.find_map(|l| l.strip_prefix(name).map(|n| n.trim().to_owned()));
        line.unwrap_or_else(|| panic!("no {name} in {files:?}"))
            .parse()
            .unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes that have just ended are still leaving it. Nothing panics here: a test may be failing already.
        for _ in 0..100 {
            if self.0.remove().is_ok() {
                break;
            }
            pause("the group is empty", Duration::from_millis(50));
        }
        for directory in self.0.directories() {
            let _ = directory.parent().map(fs::remove_dir);
        }
    }
}

#[test]
fn a_mesh_lives_in_64_mib_and_a_tenth_of_a_core() {
    if !can_redirect() {
        return;
    }
    let group = Group::new(&ProcessLimits {
        cpu_millis: Some(CPU),
        memory_bytes: Some(MEMORY),
    });
    let demo = Demo::prepare(false, |text| text);
    up_after(&demo, &group.join());
    for _ in 0..20 {
        serves(&demo);
    }
    let killed = group.count(["memory.oom_control", "memory.events"], "oom_kill ");
    assert_eq!(killed, 0, "processes ended for want of memory");
    let throttled = group.count(["cpu.stat", "cpu.stat"], "nr_throttled ");
    assert!(throttled > 0, "the share of a core was no limit");
    let status = demo.status();
    for proxy in status["proxies"].as_array().unwrap() {
        assert_eq!(proxy["restarts"].as_u64().unwrap_or(0), 0, "{proxy}");
    }
    assert_eq!(demo.tulle(&["down"]).code, 0);
    drop(demo);
}

#[test]
fn a_mesh_needs_no_ipv6() {
    if !can_redirect() {
        return;
    }
    let yard = Yard::new(&[]);
    let namespace = yard.name(Host::Client).to_owned();
    let off = "for c in all default; do echo 1 >/proc/sys/net/ipv6/conf/$c/disable_ipv6; done";
    let mut ip = Command::new("ip");
    ip.args(["netns", "exec", &namespace, "sh", "-ec", off]);
    assert!(ip.status().unwrap().success());
    let demo = Demo::prepare(false, |text| text);
    yard.sidecar(Host::Client, || {
        up_after(&demo, "");
        serves(&demo);
        assert_eq!(demo.tulle(&["down"]).code, 0);
    });
}

#[test]
fn a_mesh_runs_on_a_read_only_root() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::prepare(false, |text| text);
    let own = demo.path().display();
    // /run is in memory on such machines, and the state directory on what may be written.
    let script = format!(
        "exec unshare --mount --propagation private -- sh -c '
            set -e
            mount --bind {own} {own}
            mount --bind /run /run
            mount -o remount,bind,ro /
            if touch /etc/tulle-writable 2>/dev/null; then rm /etc/tulle-writable; exit 1; fi
            cd {own}
            exec \"$@\"' sh \"$@\""
    );
    up_after(&demo, &script);
    serves(&demo);
    let warnings = &demo.status()["warnings"];
    assert_eq!(*warnings, serde_json::json!([]));
    assert_eq!(demo.tulle(&["down"]).code, 0);
}

/// Puts a program before all others of its name.
fn shadow(directory: &Path, program: &str, text: &str) -> String {
    let shadows = directory.join("shadows");
    fs::create_dir_all(&shadows).unwrap();
    let file = shadows.join(program);
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    format!("export PATH={}:$PATH", shadows.display())
}

/// The words of an old kernel.
const REFUSED: &str =
    "#!/bin/sh\necho 'Error: Could not process rule: Operation not supported' >&2\nexit 1\n";

#[test]
fn where_the_kernel_has_no_nf_tables_rules_are_iptables() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::prepare(false, |text| text);
    let script = shadow(demo.path(), "nft", REFUSED);
    up_after(&demo, &script);
    serves(&demo);
    let status = demo.status();
    assert_eq!(status["mesh"]["mode"], "namespaces", "{}", status["mesh"]);
    let mut ip = Command::new("ip");
    ip.args(["netns", "exec", &demo.namespace("details"), "iptables-save"]);
    let rules = String::from_utf8(ip.output().unwrap().stdout).unwrap();
    assert!(rules.contains("TULLE_INBOUND"), "{rules}");
    // A call past the sidecar is refused by these rules as by the others.
    assert!(rules.contains("REDIRECT --to-ports 15006"), "{rules}");
    assert_eq!(demo.tulle(&["down"]).code, 0);
}

#[test]
fn without_any_packet_filter_the_reason_is_told() {
    if !is_root() {
        return;
    }
    let demo = Demo::prepare(false, |text| text);
    let mut script = shadow(demo.path(), "nft", REFUSED);
    for program in [
        "iptables",
        "iptables-legacy",
        "ip6tables",
        "ip6tables-legacy",
    ] {
        let text = "#!/bin/sh\necho \"iptables: can't initialize table: Table does not exist\" >&2\nexit 3\n";
        script = shadow(demo.path(), program, text);
    }
    let mut check = Command::new("sh");
    check.args(["-c", &format!("{script}; exec \"$@\""), "sh"]);
    check.arg(demo.command().get_program()).arg("check");
    let said = check.output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    for part in [
        "only loopback mode",
        "Operation not supported",
        "Linux 5.2 or later",
        "iptables failed, too",
        "Table does not exist",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
}
