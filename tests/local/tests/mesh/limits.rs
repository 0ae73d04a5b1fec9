//! Tests the resources that a mesh may use and its neighbours: limits of sidecars, meshes side by side, and
//! hosts that join.

use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tests_local::{
    Client, Demo, Load, RATING, can_redirect, edge, eventually, id, is_root, signal,
};

const MIB: u64 = 1 << 20;

fn direct() -> String {
    format!("/ratings/{RATING}")
}

fn by_gateway() -> String {
    format!("/bookinfo-ratings/ratings/{RATING}")
}

/// Directory of a process's control group, in the tree that limits `controller`: that of version
/// 1 if this host has it, else of version 2.
fn cgroup(pid: i32, controller: &str) -> PathBuf {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let line = |wanted: &str| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            controllers
                .split(',')
                .any(|c| c == wanted)
                .then(|| path.trim_start_matches('/').to_owned())
        })
    };
    match line(controller) {
        Some(path) => PathBuf::from("/sys/fs/cgroup").join(controller).join(path),
        None => PathBuf::from("/sys/fs/cgroup").join(line("").unwrap()),
    }
}

/// The first of these files that is there.
fn value(directory: &std::path::Path, names: &[&str]) -> String {
    let read = names.iter().map(|n| fs::read_to_string(directory.join(n)));
    let text = read.into_iter().find_map(Result::ok);
    let text = text.unwrap_or_else(|| panic!("no {names:?} in {}", directory.display()));
    text.trim().to_owned()
}

/// Memory in bytes and CPU in microseconds of each tenth of a second.
fn limits(pid: i32) -> (String, String) {
    let (memory, cpu) = (cgroup(pid, "memory"), cgroup(pid, "cpu"));
    let cpu = value(&cpu, &["cpu.cfs_quota_us", "cpu.max"]);
    (
        value(&memory, &["memory.limit_in_bytes", "memory.max"]),
        cpu.split(' ').next().unwrap().to_owned(),
    )
}

fn mesh(cpu: &str, memory: &str) -> String {
    format!("  sidecar:\n    cpuLimit: {cpu}\n    memoryLimit: {memory}\n")
}

#[test]
fn sidecars_and_only_they_are_limited() {
    if !can_redirect() {
        return;
    }
    let from = "  permissiveMode: false\n";
    let demo = Demo::start(|text| {
        assert!(text.contains(from));
        text.replace(from, &format!("{from}{}", mesh("100m", "64Mi")))
    });
    let status = demo.status();
    assert_eq!(status["warnings"], serde_json::json!([]));
    let mut groups = Vec::new();
    for proxy in status["proxies"].as_array().unwrap() {
        let name = proxy["workload"].as_str().unwrap();
        let pid = i32::try_from(proxy["pid"].as_i64().unwrap()).unwrap();
        let expected = ((64 * MIB).to_string(), "10000".to_owned());
        assert_eq!(limits(pid), expected, "{name}");
        let group = cgroup(pid, "memory");
        assert!(group.ends_with(format!("tulle-{}/{name}", demo.name())));
        assert_eq!(value(&group, &["cgroup.procs"]), pid.to_string());
        groups.push(group);
    }
    let app = cgroup(demo.application("ratings"), "memory");
    assert!(!groups.contains(&app), "applications are not limited");

    // More work than a tenth of a core can do: slow, but nothing fails.
    let ingress = demo.sidecar("gateway.ingress");
    let throttled = || -> u64 {
        let stat = value(&cgroup(ingress, "cpu"), &["cpu.stat"]);
        let line = stat.lines().find_map(|l| l.strip_prefix("nr_throttled "));
        line.unwrap().parse().unwrap()
    };
    let before = throttled();
    let load = Load::gets(demo.ingress, 8, &[&direct(), &by_gateway()]);
    eventually("the kernel holds it back", || throttled() > before + 3);
    load.assert_no_failure();

    // A changed limit holds from the next start.
    let wider = format!(
        "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata:\n  name: bookinfo\nspec:\n{}",
        mesh("1500m", "80Mi")
    );
    demo.apply(&demo.write("wider.yaml", &wider));
    signal(ingress, Signal::KILL);
    eventually("it is started with the new limits", || {
        let proxy = demo.proxy("gateway.ingress");
        proxy["ready"] == true && proxy["pid"].as_i64() != Some(ingress.into())
    });
    let wider = ((80 * MIB).to_string(), "150000".to_owned());
    assert_eq!(limits(demo.sidecar("gateway.ingress")), wider);
    eventually("it serves", || {
        Client::try_connect(demo.ingress).is_ok_and(|mut c| c.get(&direct()).status() == 200)
    });

    assert_eq!(demo.tulle(&["down"]).code, 0);
    for group in groups {
        assert!(!group.exists(), "{} is left", group.display());
    }
    assert_eq!(demo.left(), [""; 0]);
}

#[test]
fn two_meshes_side_by_side_do_not_disturb_each_other() {
    if !can_redirect() {
        return;
    }
    // Both start at the same moment and must not choose the same network.
    let (one, other) = std::thread::scope(|scope| {
        let one = scope.spawn(|| Demo::start(|text| text));
        let other = Demo::start(|text| text);
        (one.join().unwrap(), other)
    });
    let requests = |demo: &Demo| {
        let status = demo.status();
        let edges = status["edges"].as_array().unwrap().clone();
        edges
            .iter()
            .map(|e| e["requests"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_ne!(
        one.address("ratings", false, false),
        other.address("ratings", false, false)
    );
    assert_eq!(one.get(&direct()).status(), 200);
    eventually("it is counted", || requests(&one) == 1);
    assert_eq!(requests(&other), 0, "it was not theirs");
    // Each has an authority of its own, and no way into the other.
    let fingerprint = |demo: &Demo| demo.status()["mesh"]["ca_fingerprint"].clone();
    assert_ne!(fingerprint(&one), fingerprint(&other));
    let ratings = (one.address("ratings", false, false), 8101).into();
    let answer = other.inside("gateway", true, || {
        let mut client = Client::try_connect(ratings).ok()?;
        client.try_send(tests_local::get(&direct())).ok()?;
        client.try_response("GET").ok()
    });
    assert!(answer.is_none_or(|a| a.status() >= 500), "no way across");

    let load = Load::gets(
        other.ingress,
        4,
        &[&direct(), &by_gateway(), "/productpage"],
    );
    assert_eq!(one.tulle(&["down"]).code, 0);
    assert_eq!(one.left(), [""; 0]);
    one.up();
    assert_eq!(one.get(&direct()).status(), 200);
    let (supervisor, _) = one.supervisor_and_controller();
    signal(supervisor, Signal::KILL);
    one.await_nothing_left();
    load.assert_no_failure();
}

#[test]
fn a_second_up_of_the_same_name_is_refused() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let (supervisor, controller) = demo.supervisor_and_controller();
    let manifest = demo.manifest.to_str().unwrap();
    for args in [
        &["up", "--detach", manifest][..],
        &["up", manifest],
        &["--state", "elsewhere", "up", "--detach", manifest],
    ] {
        let again = demo.tulle(args);
        assert_eq!(again.code, 1, "{again:?}");
        for part in [
            "up already",
            &supervisor.to_string(),
            "tulle apply",
            "tulle down",
        ] {
            assert!(again.err.contains(part), "no {part:?} in {}", again.err);
        }
    }
    assert_eq!(demo.supervisor_and_controller(), (supervisor, controller));
    assert_eq!(demo.get(&by_gateway()).status(), 200);
}

/// `tulle join` as another host would run it, ended with the value.
struct Site {
    child: Child,
    name: String,
    directory: PathBuf,
}

impl Site {
    fn command(&self, args: &[&str]) -> Command {
        site_command(&self.directory, &self.name, args)
    }

    fn status(&self) -> Option<Value> {
        let output = self.command(&["status", "-o", "json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("join.log")).unwrap_or_default()
    }
}

fn site_command(directory: &std::path::Path, name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(directory.join("tulle"));
    command
        .args(args)
        .env("TULLE_STATE", directory.join("site"))
        .env("TULLE_NAME", name)
        .env_remove("TULLE_PROXY")
        .current_dir(directory);
    command
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- join:\n{}", self.log());
        }
        // Ended already, in a test that passed.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = self.command(&["down", "--purge"]).output();
    }
}

#[test]
fn a_workload_of_a_host_that_joins_is_part_of_the_mesh() {
    if !is_root() {
        return;
    }
    let mut gateway = String::new();
    let demo = Demo::start_on_loopback(|text| {
        let is_gateway = |d: &&str| d.contains("kind: Workload") && d.contains("name: gateway\n");
        let documents = || text.split("---\n");
        gateway = documents().find(is_gateway).unwrap().to_owned();
        let others: Vec<_> = documents().filter(|d| !is_gateway(d)).collect();
        others.join("---\n")
    });
    let file = demo.write("gateway.yaml", &gateway);
    assert_eq!(demo.get(&direct()).status(), 200);
    let missing = demo.get(&by_gateway());
    assert!(missing.status() >= 500, "nobody is there: {}", missing.head);

    let made = demo.tulle(&["token", "create", "node/edge", "-o", "json"]);
    let made: Value = serde_json::from_str(&made.out).unwrap_or_else(|e| panic!("{e}: {made:?}"));
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    let (controller, token, ca) = (text("controller"), text("token"), text("ca_fingerprint"));
    let name = format!("{}j", demo.name());
    let join = |token: &str, ca: &str| {
        let file = file.to_str().unwrap();
        let args = ["join", "--controller", &controller, "--token", token];
        let mut command = site_command(demo.path(), &name, &args);
        command.args(["--ca-fingerprint", ca, file]);
        command
    };
    // Whoever answers with another authority never sees the token.
    let wrong = join(&token, &"0".repeat(64)).output().unwrap();
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(said.contains("fingerprint"), "{said}");
    assert!(!said.contains(&token), "{said}");

    let log = File::create(demo.path().join("join.log")).unwrap();
    let mut command = join(&token, &ca);
    command.stdout(log.try_clone().unwrap()).stderr(log);
    let mut site = Site {
        child: command.stdin(Stdio::null()).spawn().unwrap(),
        name: name.clone(),
        directory: demo.path().to_owned(),
    };
    eventually("the joined workload answers", || {
        demo.get(&by_gateway()).status() == 200
    });
    let answer = demo.get(&by_gateway());
    assert_eq!(answer.header("x-called-by"), id("ingress"));
    // Traffic goes into the second host, and from there back into the first.
    let edge_here = demo.await_edge("gateway", "ratings");
    assert_eq!(edge_here["security"], "mutual_tls", "{edge_here}");
    let there = site.status().unwrap();
    assert_eq!(there["mesh"]["node"], "edge");
    let mut edge_there = None;
    eventually("the second host counts its own", || {
        edge_there = edge(&site.status().unwrap(), "ingress", "gateway");
        edge_there.is_some()
    });
    let edge_there = edge_there.unwrap();
    assert_eq!(edge_there["security"], "mutual_tls", "{edge_there}");
    // Both say where it runs.
    for status in [&there, &demo.status()] {
        let services = status["services"].as_array().unwrap();
        let gateway = services.iter().find(|s| s["name"] == "gateway").unwrap();
        assert_eq!(gateway["workloads"][0]["host"], "edge", "{gateway}");
    }

    // The token is spent.
    let third = format!("{name}k");
    // The third workload has no port: the ports of the first are in use on this host, which would be
    // reported before the token is looked at.
    let other = "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {name: third}\nspec: {command: [sleep, '60']}\n";
    let other = demo.write("third.yaml", other);
    let again = site_command(demo.path(), &third, &["join", "--controller", &controller])
        .args(["--token", &token, "--ca-fingerprint", &ca])
        .args([other.to_str().unwrap(), "--state", "third"])
        .output()
        .unwrap();
    let purge = ["down", "--purge", "--state", "third"];
    let purged = site_command(demo.path(), &third, &purge).output().unwrap();
    assert!(purged.status.success(), "{purged:?}");
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("token"), "{said}");
    assert_eq!(
        demo.get(&by_gateway()).status(),
        200,
        "nobody was disturbed"
    );

    // It leaves, and takes its workload along.
    signal(i32::try_from(site.child.id()).unwrap(), Signal::TERM);
    assert!(site.child.wait().unwrap().success(), "{}", site.log());
    eventually("it is gone", || demo.get(&by_gateway()).status() >= 500);
    assert_eq!(demo.tulle(&["get", "workload", "gateway"]).code, 1);
    assert_eq!(demo.get(&direct()).status(), 200);
}
