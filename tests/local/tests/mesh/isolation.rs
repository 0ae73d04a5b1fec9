//! Tests the limits of an application, a sidecar and a second operator on one host: under root each
//! application is a user of its own, and each sidecar keeps its key to itself.

use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tests_local::{
    Client, Demo, PATIENCE, RATING, can_redirect, eventually, holds_within, is_root, signal,
};

/// Those that systemd sets aside for services with a user of their own.
const OWN_USERS: std::ops::RangeInclusive<u32> = 61_184..=65_519;

/// Tries what it must not be able to do and writes what came of it to its own directory. Root could do
/// all of it, to other meshes of the host as well, and does not try.
const PROBER: &str = r#"
import glob, json, os, pwd, socket, subprocess, sys, time
while os.getuid() == 0:
    time.sleep(60)
report = {}
def attempt(name, action, process="/proc"):
    try:
        report[name] = "did: " + repr(action())
    except Exception as e:
        # One of another mesh may have ended meanwhile.
        if os.path.exists(process):
            report[name] = type(e).__name__
def sidecars():
    for path in glob.glob("/proc/[0-9]*"):
        try:
            if open(path + "/comm").read().startswith("tulle-proxy"):
                yield path
        except OSError:
            pass
found = list(sidecars())
report["sidecars"] = len(found)
for path in found:
    attempt("list " + path, lambda: os.listdir(path + "/fd"), path)
    attempt("key " + path, lambda: open(path + "/fd/0", "rb").read(), path)
    attempt("memory " + path, lambda: open(path + "/mem", "rb"), path)
    attempt("environment " + path, lambda: open(path + "/environ", "rb").read(), path)
control = sys.argv[1]
def connect():
    socket.socket(socket.AF_UNIX).connect(control)
attempt("control", connect)
for path in found:
    attempt("user of " + path, lambda: os.setuid(os.stat(path).st_uid), path)
attempt("root", lambda: os.setuid(0))
attempt("groups", lambda: os.setgroups([0]))
attempt("hosts", lambda: open("/etc/hosts", "a"))
attempt("namespace", lambda: subprocess.run(["ip", "netns", "exec", "NAMESPACE", "true"], check=True, stderr=subprocess.DEVNULL))
attempt("rules", lambda: subprocess.run(["/usr/sbin/nft", "flush", "ruleset"], check=True, stderr=subprocess.DEVNULL))
attempt("setuid program", lambda: subprocess.run(["su", "-c", "true"], check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
status = dict(l.split(":\t", 1) for l in open("/proc/self/status").read().splitlines() if ":\t" in l)
for key in ["Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs"]:
    report[key] = status[key].strip()
report["home"] = os.environ["HOME"]
report["account"] = list(pwd.getpwuid(os.getuid()))
directory = os.environ["STATE_DIRECTORY"]
starts = directory + "/starts"
with open(starts, "a") as f:
    f.write("x")
report["starts"] = os.stat(starts).st_size
with open("/dev/stdout", "a") as f:
    f.write("by its path\n")
with open(directory + "/new", "w") as f:
    json.dump(report, f)
os.rename(directory + "/new", directory + "/report")
while True:
    time.sleep(60)
"#;

fn prober(name: &str, control: &str, more: &str) -> String {
    let script: String = PROBER.lines().map(|l| format!("        {l}\n")).collect();
    format!(
        "---\napiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}}}\nspec:\n  \
         command:\n    - python3\n    - -c\n    - |\n{script}    - {control}\n{more}  \
         readinessProbe: {{exec: {{command: [sh, -c, 'test -s \"$STATE_DIRECTORY/report\"']}}}}\n"
    )
}

fn with_prober(loopback: bool, more: &str) -> Demo {
    let mut demo = Demo::prepare(loopback, |text| text);
    let control = format!("/run/tulle-{}/control/control.sock", demo.name());
    let text = fs::read_to_string(&demo.manifest).unwrap() + &prober("prober", &control, more);
    let text = text.replace("NAMESPACE", &demo.namespace("ratings"));
    demo.manifest = demo.write("mesh.yaml", &text);
    demo.up();
    demo
}

fn report(demo: &Demo) -> Value {
    let file = demo.path().join("state/data/prober/report");
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// A field of `/proc/PID/status`.
fn field(pid: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let prefix = format!("{name}:\t");
    let line = status.lines().find_map(|l| l.strip_prefix(&prefix));
    line.unwrap().trim().to_owned()
}

fn user_of(pid: i32) -> u32 {
    let ids = field(pid, "Uid");
    let all: Vec<u32> = ids.split('\t').map(|id| id.parse().unwrap()).collect();
    assert!(all.iter().all(|id| *id == all[0]), "{ids}");
    all[0]
}

/// Whether some process of this host runs as this user.
fn runs_as(user: u32) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut owners = processes.filter_map(|p| p.metadata().ok());
    owners.any(|m| m.uid() == user)
}

fn assert_confined(demo: &Demo) {
    let report = report(demo);
    assert!(report["sidecars"].as_u64().unwrap() >= 7, "{report:#}");
    for (what, came) in report.as_object().unwrap() {
        let came = came.as_str().unwrap_or_default();
        let attempted = [
            "list ",
            "key ",
            "memory ",
            "environment ",
            "control",
            "user of ",
            "root",
            "groups",
            "hosts",
            "namespace",
            "rules",
            "setuid",
        ];
        if attempted.iter().any(|a| what.starts_with(a)) {
            assert!(
                ["PermissionError", "CalledProcessError"].contains(&came),
                "{what}: {came}"
            );
        }
    }
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(report[set], "0000000000000000", "{set}");
    }
    assert_eq!(report["NoNewPrivs"], "1");
    assert_eq!(report["Groups"], "");
    assert_eq!(report["account"][5], report["home"], "{report:#}");
}

#[test]
fn an_application_is_a_user_of_its_own_and_can_do_nothing_to_the_mesh() {
    if !can_redirect() {
        return;
    }
    for loopback in [false, true] {
        let demo = with_prober(loopback, "");
        assert_confined(&demo);
        let mut users = Vec::new();
        for name in [
            "ratings",
            "reviews",
            "details",
            "productpage",
            "gateway",
            "prober",
        ] {
            let user = user_of(demo.application(name));
            assert!(OWN_USERS.contains(&user), "{name} is {user}");
            let sidecar = user_of(demo.sidecar(name));
            assert!(OWN_USERS.contains(&sidecar), "{name}'s is {sidecar}");
            users.push(sidecar);
            let data = demo.path().join("state/data").join(name);
            let found = fs::metadata(data).unwrap();
            assert_eq!((found.uid(), found.mode() & 0o777), (user, 0o700), "{name}");
            users.push(user);
        }
        users.sort_unstable();
        users.dedup();
        assert_eq!(users.len(), 12, "each has its own");
        let said = demo.tulle(&["logs", "prober"]).out;
        assert!(said.contains("by its path"), "{said}");
        assert_eq!(demo.get("/productpage").status(), 200);

        // Its data outlives `down`. It gets the same user again, unless another mesh took that one in the
        // meantime.
        let user = user_of(demo.application("prober"));
        assert_eq!(report(&demo)["starts"], 1);
        assert_eq!(demo.tulle(&["down"]).code, 0);
        fs::remove_file(demo.path().join("state/data/prober/report")).unwrap();
        demo.up();
        assert_eq!(report(&demo)["starts"], 2);
        let again = user_of(demo.application("prober"));
        assert!(again == user || runs_as(user), "{user} became {again}");
        assert_eq!(demo.tulle(&["down", "--purge"]).code, 0);
        assert!(!demo.path().join("state").exists());
    }
}

/// A state directory in root's home, or a build there: nobody else has a way to them.
#[test]
fn a_state_directory_and_a_program_that_only_root_can_reach_serve_all_the_same() {
    if !can_redirect() {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    for loopback in [false, true] {
        let demo = with_prober(loopback, "");
        assert_eq!(demo.tulle(&["down", "--purge"]).code, 0);
        fs::set_permissions(demo.path(), fs::Permissions::from_mode(0o700)).unwrap();
        demo.up();
        assert_confined(&demo);
        assert_eq!(report(&demo)["starts"], 1);
        let touch = "touch \"$STATE_DIRECTORY/touched\"";
        let answer = demo.tulle(&["exec", "prober", "--", "sh", "-c", touch]);
        assert_eq!(answer.code, 0, "{answer:?}");
        assert!(demo.path().join("state/data/prober/touched").exists());
        assert!(OWN_USERS.contains(&user_of(demo.application("ratings"))));
        assert_eq!(demo.get(&format!("/ratings/{RATING}")).status(), 200);

        // A script's interpreter has no way to it.
        let script = demo.write("script", "#!/bin/sh\nsleep 60\n");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let workload = format!(
            "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {{name: script}}\nspec: \
             {{command: [{}]}}\n",
            script.display()
        );
        demo.apply(&demo.write("script.yaml", &workload));
        eventually("its log says why it does not run", || {
            let said = demo.tulle(&["logs", "script"]).out;
            said.contains("who may not reach or execute it")
        });
    }
}

#[test]
fn a_user_may_be_named_and_root_is_only_who_asks_for_it() {
    if !can_redirect() {
        return;
    }
    let demo = with_prober(false, "  user: nobody\n");
    assert_confined(&demo);
    let prober = demo.application("prober");
    assert_eq!(user_of(prober), 65_534);
    assert!(
        report(&demo)["home"]
            .as_str()
            .unwrap()
            .starts_with("/nonexistent")
    );

    let change = |user: &str| {
        let text = fs::read_to_string(&demo.manifest).unwrap();
        let file = demo.write("changed.yaml", &text.replace("user: nobody", user));
        demo.apply(&file);
    };
    change("user: root");
    // Its data still belongs to it.
    eventually("it runs as root", || {
        demo.application_now("prober")
            .is_some_and(|pid| pid != prober && user_of(pid) == 0)
    });
    let text = fs::read_to_string(&demo.manifest).unwrap();
    let text = text.replace("user: nobody", "user: nobody-of-that-name");
    let file = demo.write("changed.yaml", &text);
    let refused = demo.tulle(&["apply", file.to_str().unwrap()]);
    assert_eq!(refused.code, 65, "{refused:?}");
    assert!(refused.err.contains("no user of that name"), "{refused:?}");
}

#[test]
fn a_port_is_never_past_the_sidecar() {
    if !can_redirect() {
        return;
    }
    // Ports that are others' elsewhere (SSH, Istio's health), and below 1024.
    let ports = [22, 80, 15021];
    let mut demo = Demo::prepare(false, |text| text);
    let mut text = fs::read_to_string(&demo.manifest).unwrap();
    for port in ports {
        text += &format!(
            "---\napiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {{name: p{port}}}\nspec:\n  \
             command: [python3, -m, http.server, --bind, 0.0.0.0, '{port}']\n  \
             ports: [{{port: {port}, appProtocol: http}}]\n"
        );
    }
    demo.manifest = demo.write("mesh.yaml", &text);
    demo.up();
    for port in ports {
        let name = format!("p{port}");
        let address = demo.address(&name, false, false);
        let mut stream = TcpStream::connect(SocketAddr::new(address, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.contains("200"), "{port}: {answer}");
    }
    // Only the metrics are not redirected.
    let metrics = SocketAddr::new(demo.address("ratings", false, false), 15020);
    let answer = Client::connect(metrics).get("/metrics");
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let status = demo.status();
    assert!(
        status["proxies"]
            .as_array()
            .unwrap()
            .iter()
            .all(|p| p["ready"] == true),
        "{status:#}"
    );
}

#[test]
fn a_gateway_on_a_low_port_has_no_privilege() {
    if !is_root() {
        return;
    }
    let mut demo = Demo::prepare(true, |text| text);
    // An address that no other test has.
    let ingress: SocketAddr = format!("127.77.{}.1:80", demo.ingress.port() % 250)
        .parse()
        .unwrap();
    let text = fs::read_to_string(&demo.manifest).unwrap();
    let text = text
        .replace("value: 127.0.0.1", &format!("value: {}", ingress.ip()))
        .replace(&format!("port: {}", demo.ingress.port()), "port: 80");
    demo.manifest = demo.write("mesh.yaml", &text);
    demo.ingress = ingress;
    demo.up();
    assert_eq!(demo.get("/productpage").status(), 200);
    let pid = demo.sidecar("gateway.ingress");
    assert!(OWN_USERS.contains(&user_of(pid)));
    for set in ["CapEff", "CapPrm", "CapAmb"] {
        let bits = u64::from_str_radix(&field(pid, set), 16).unwrap();
        assert_eq!(bits, 0, "{set}");
    }
    assert_eq!(field(pid, "NoNewPrivs"), "1");
    // Not only the first time.
    signal(pid, Signal::KILL);
    eventually("it is back", || TcpStream::connect(demo.ingress).is_ok());
}

#[test]
fn a_sidecar_sees_nothing_of_another_nor_of_the_operator() {
    if !is_root() {
        return;
    }
    let demo = Demo::prepare(true, |text| {
        let own = "bookinfo, reviews, ";
        let mut lines: Vec<&str> = text.lines().collect();
        let command = lines.iter().position(|line| line.contains(own)).unwrap();
        lines.insert(command, "  passEnv: [FOR_REVIEWS, NOT_SET]");
        lines.join("\n")
    });
    // An operator might leave a secret in the environment and a file open.
    let secret = demo.write("secret", "precious");
    let up = demo.command().get_program().to_owned();
    let started = Command::new("sh")
        .args(["-c", "exec 9<\"$0\"; exec \"$@\""])
        .arg(&secret)
        .arg(up)
        .args(["up", "--detach", "--loopback", "--listen", "127.0.0.1:0"])
        .arg(&demo.manifest)
        .envs(demo.command().get_envs().filter_map(|(k, v)| Some((k, v?))))
        .env("OPERATORS_SECRET", "precious")
        .env("FOR_REVIEWS", "passed on")
        .current_dir(demo.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(started.status.success(), "{started:?}");
    let proxy = demo.sidecar("ratings");
    let [ratings, reviews] = ["ratings", "reviews"].map(|name| demo.application(name));
    for pid in [proxy, demo.supervisor_and_controller().1, ratings, reviews] {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        assert!(!environment.contains("OPERATORS_SECRET"), "{environment}");
        assert!(environment.contains("TULLE_MESH="), "{environment}");
        assert!(!environment.contains("NOT_SET"), "{environment}");
        // Only the process that asks for the variable has it.
        let passed = environment.contains("FOR_REVIEWS=passed on");
        assert_eq!(passed, pid == reviews, "{environment}");
    }
    for pid in [
        proxy,
        demo.application("ratings"),
        demo.supervisor_and_controller().1,
    ] {
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
            let file = fs::read_link(entry.unwrap().path()).unwrap_or_default();
            assert_ne!(file, secret, "open in {pid}");
        }
    }
    // Another sidecar, taken over.
    let read = |user: u32, file: &str| {
        let mut command = Command::new("head");
        command.args(["-c", "1", file]).uid(user).gid(user);
        command.output().unwrap().status.success()
    };
    let other = user_of(demo.sidecar("reviews"));
    let own = user_of(proxy);
    for file in ["fd/0", "mem", "environ", "maps"] {
        for user in [own, other] {
            assert!(!read(user, &format!("/proc/{proxy}/{file}")), "{file}");
        }
    }
    assert!(
        read(other, &format!("/proc/{proxy}/status")),
        "the test can read"
    );
    let files = demo.proxy("ratings")["admin_socket"]
        .as_str()
        .unwrap()
        .to_owned();
    let files = std::path::Path::new(&files).parent().unwrap();
    for file in ["snapshot", "bootstrap.yaml"] {
        let file = files.join(file).display().to_string();
        eventually("the sidecar keeps it", || read(own, &file));
        assert!(!read(other, &file), "{file}");
    }
    // Nor does it end it.
    let mut kill = Command::new("kill");
    kill.arg(proxy.to_string()).uid(other).gid(other);
    assert!(!kill.output().unwrap().status.success());
}

#[test]
fn of_two_that_start_a_mesh_at_once_one_is_refused() {
    let demo = Demo::prepare_without_privileges(|text| text);
    let up = || {
        let mut command = demo.command();
        command
            .args(["up", "--detach", "--loopback", "--listen", "127.0.0.1:0"])
            .arg(&demo.manifest)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let both = [up(), up()].map(|child| child.wait_with_output().unwrap());
    let codes = both.each_ref().map(|o| o.status.code().unwrap());
    assert!(codes == [0, 1] || codes == [1, 0], "{both:?}");
    let refused = both.iter().find(|o| !o.status.success()).unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("the mesh is up already"), "{said}");
    assert_eq!(demo.get("/productpage").status(), 200);
    // A third is refused as well, and changes nothing.
    let third = up().wait_with_output().unwrap();
    assert_eq!(third.status.code(), Some(1));
    assert_eq!(demo.get("/productpage").status(), 200);
    assert_eq!(demo.tulle(&["down"]).code, 0);
    assert_eq!(demo.left(), Vec::<String>::new());
}

#[test]
fn certificates_that_expired_while_the_controller_was_away_come_back() {
    let demo = Demo::prepare_without_privileges(|text| {
        text.replacen("spec:\n", "spec:\n  certificates: {lifetime: 10s}\n", 1)
    });
    demo.up();
    let (_, controller) = demo.supervisor_and_controller();
    signal(controller, Signal::STOP);
    let unready = |demo: &Demo| demo.get("/productpage").status() != 200;
    eventually("certificates expire", || unready(&demo));
    let expired = |proxy: &str| {
        let page: Value = serde_json::from_str(&demo.admin(proxy, "/certificates").text()).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        page["not_after"].as_u64().unwrap() < now.as_secs()
    };
    eventually("all of them have expired", || {
        crate::life::PROXIES.iter().all(|proxy| expired(proxy))
    });
    signal(controller, Signal::CONT);
    let limit = Duration::from_mins(2);
    assert!(
        holds_within(limit, "certificates come back", || !unready(&demo)),
        "{}",
        demo.tulle(&["status"]).out
    );
}
