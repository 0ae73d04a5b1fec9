//! The whole demo mesh, driven as an operator does: the real `tulle`, `tulle-proxy` and `bookinfo`
//! with the manifests of `demo/`, in a directory, a network and on an ingress port of its own.
//! It is taken down with the value, also when a test panics.

use crate::{
    Capture, Client, Message, eventually, free_port, interruptible, is_emulated, repository, skip,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A rating that exists from the start.
pub const RATING: &str = "2099a055-1e21-46ef-825e-9e0de93554ea";
const PROGRAMS: [&str; 4] = ["tulle", "tulle-proxy", "tulle-envoy", "bookinfo"];
/// Somebody without privileges.
const PLAIN_USER: u32 = 1234;

/// Whether this process may make network namespaces, groups of processes and processes of other users. If not, says that the
/// test is skipped.
pub fn is_root() -> bool {
    let root = runs_as_root();
    if !root {
        skip("it needs root");
    }
    root
}

/// The same without a word, for a test that is another one then.
pub fn runs_as_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether meshes in network namespaces work, whose connections are redirected: that takes root, and programs that can ask where a
/// connection was going. If not, says that the test is skipped. A mesh in loopback mode needs none of that, whatever namespaces
/// a test makes for it: such a test asks [`is_root`].
pub fn can_redirect() -> bool {
    if is_emulated() {
        skip("it needs redirection, and qemu does not know SO_ORIGINAL_DST");
    }
    !is_emulated() && is_root()
}

/// The same without a word, for a test that has its mesh in loopback mode then.
pub fn redirects() -> bool {
    !is_emulated() && runs_as_root()
}

/// The result of a command.
#[derive(Debug)]
pub struct Answer {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Answer {
    fn from_output(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The mesh of `demo/mesh.yaml`.
pub struct Demo {
    directory: tempfile::TempDir,
    name: String,
    loopback: bool,
    /// The user of its processes, if it is not the user of the test.
    user: Option<u32>,
    /// The network namespace of its processes, if it is not that of the test.
    inside: Option<String>,
    /// Where its ingress listens.
    pub ingress: SocketAddr,
    /// Its manifest.
    pub manifest: PathBuf,
}

impl Demo {
    /// Starts it in network namespaces, with a changed manifest.
    pub fn start(change: impl FnOnce(String) -> String) -> Self {
        let demo = Self::prepare(false, change);
        demo.up();
        demo
    }

    /// Starts it on loopback.
    pub fn start_on_loopback(change: impl FnOnce(String) -> String) -> Self {
        let demo = Self::prepare(true, change);
        demo.up();
        demo
    }

    /// Starts it on loopback as somebody without privileges.
    pub fn start_without_privileges(change: impl FnOnce(String) -> String) -> Self {
        let demo = Self::prepare_without_privileges(change);
        demo.up();
        demo
    }

    /// Like the function above, but the demo is not started yet. A test that is not root has no privileges
    /// itself.
    pub fn prepare_without_privileges(change: impl FnOnce(String) -> String) -> Self {
        let mut demo = Self::prepare(true, change);
        if runs_as_root() {
            demo.user = Some(PLAIN_USER);
            let user = Some(PLAIN_USER);
            std::os::unix::fs::chown(demo.path(), user, user).unwrap();
        }
        demo
    }

    /// Not started yet.
    pub fn prepare(loopback: bool, change: impl FnOnce(String) -> String) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("tulle-e2e-")
            .tempdir()
            .unwrap();
        // Sidecars run as another user, and so do whole meshes.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // The programs as they are now: a build meanwhile changes nothing.
        for program in PROGRAMS {
            let (from, to) = (
                crate::binary::program(program),
                directory.path().join(program),
            );
            if fs::hard_link(&from, &to).is_err() {
                fs::copy(&from, &to).unwrap();
            }
        }
        let port = free_port();
        let manifest = directory.path().join("mesh.yaml");
        let ingress = (Ipv4Addr::LOCALHOST, port).into();
        let name = format!("e{port:x}");
        let demo = Self {
            directory,
            name,
            loopback,
            user: None,
            inside: None,
            ingress,
            manifest,
        };
        let mut text = demo.adapt(&read_demo("mesh.yaml"));
        if loopback {
            text = own_ports(text);
        }
        fs::write(&demo.manifest, change(text)).unwrap();
        demo
    }

    /// Its places in a manifest of `demo/`.
    fn adapt(&self, text: &str) -> String {
        text.replace(
            "target/release/bookinfo",
            self.path().join("bookinfo").to_str().unwrap(),
        )
        .replace("workingDirectory: ..", "workingDirectory: .")
        .replace("port: 8080", &format!("port: {}", self.ingress.port()))
    }

    /// Starts it; every service answers afterwards.
    pub fn up(&self) {
        self.up_with(&[]);
    }

    /// The same with more options.
    pub fn up_with(&self, options: &[&str]) {
        let mut args = vec!["up", "--detach", self.manifest.to_str().unwrap()];
        if self.loopback {
            args.extend(["--loopback", "--listen", "127.0.0.1:0"]);
        }
        args.extend(options);
        let answer = self.tulle(&args);
        assert_eq!(
            answer.code,
            0,
            "{answer:?}\n{}",
            self.tulle(&["logs", "supervisor"]).out
        );
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of a workload's network namespace, or of the bridge's.
    pub fn namespace(&self, workload: &str) -> String {
        match workload {
            "" => format!("tulle-{}", self.name),
            _ => format!("tulle-{}.{workload}", self.name),
        }
    }

    /// Runs `tulle` on this mesh.
    pub fn tulle(&self, args: &[&str]) -> Answer {
        Answer::from_output(self.command().args(args).output().unwrap())
    }

    /// Runs everything of it in this network namespace, which must outlive it.
    #[must_use]
    pub fn in_namespace(mut self, name: &str) -> Self {
        self.inside = Some(name.to_owned());
        self
    }

    /// `tulle` for this mesh, to be given arguments.
    pub fn command(&self) -> Command {
        let program = self.path().join("tulle");
        let Some(namespace) = &self.inside else {
            return self.furnished(Command::new(program));
        };
        // The process id is that of `tulle`.
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{namespace}"))
            .arg(program);
        self.furnished(command)
    }

    /// The same for a test that interrupts it: SIGINT arrives, also where the test ignores it.
    pub fn interruptible(&self) -> Command {
        self.furnished(interruptible(self.path().join("tulle")))
    }

    fn furnished(&self, mut command: Command) -> Command {
        if let Some(user) = self.user {
            // Also leaves root's groups.
            command.uid(user).gid(user).env("HOME", self.path());
        }
        command
            .env("TULLE_STATE", self.path().join("state"))
            .env("TULLE_NAME", &self.name)
            .env_remove("TULLE_PROXY")
            .current_dir(self.path());
        command
    }

    /// Writes a file to its directory.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.path().join(name);
        fs::write(&file, text).unwrap();
        file
    }

    /// Applies a manifest that must be accepted.
    pub fn apply(&self, file: &Path) {
        let answer = self.tulle(&["apply", file.to_str().unwrap()]);
        assert_eq!(answer.code, 0, "{answer:?}");
    }

    /// Waits until a path is answered: each proxy learns by itself of what another host runs.
    pub fn await_answer(&self, path: &str) {
        crate::eventually(&format!("{path} is answered"), || {
            self.get(path).status() == 200
        });
    }

    /// Returns the user of its processes.
    pub fn user(&self) -> u32 {
        self.user
            .unwrap_or_else(|| rustix::process::geteuid().as_raw())
    }

    /// `tulle status -o json`.
    pub fn status(&self) -> Value {
        let answer = self.tulle(&["status", "-o", "json"]);
        serde_json::from_str(&answer.out).unwrap_or_else(|e| panic!("{e}: {answer:?}"))
    }

    /// Waits until `status` shows traffic from one service to another, and returns it: requests are counted
    /// after their last byte has gone.
    pub fn await_edge(&self, source: &str, destination: &str) -> Value {
        let mut found = None;
        crate::eventually(&format!("{source} → {destination} is counted"), || {
            found = edge(&self.status(), source, destination);
            found.is_some()
        });
        found.unwrap()
    }

    /// Returns the status of a workload's proxy.
    pub fn proxy(&self, workload: &str) -> Value {
        let status = self.status();
        let proxies = status["proxies"].as_array().unwrap();
        proxies
            .iter()
            .find(|p| p["workload"] == workload)
            .unwrap()
            .clone()
    }

    /// Process id of a workload's sidecar, or a gateway's proxy.
    pub fn sidecar(&self, workload: &str) -> i32 {
        let pid = self.proxy(workload)["pid"].as_i64().unwrap();
        i32::try_from(pid).unwrap()
    }

    /// Returns the user of a workload's sidecar.
    pub fn user_of_sidecar(&self, workload: &str) -> u32 {
        let process = fs::metadata(format!("/proc/{}", self.sidecar(workload)));
        process.unwrap().uid()
    }

    /// Process ids of the supervisor and the controller.
    pub fn supervisor_and_controller(&self) -> (i32, i32) {
        let status = self.status();
        let pid = |v: &Value| i32::try_from(v.as_i64().unwrap()).unwrap();
        (
            pid(&status["mesh"]["supervisor_pid"]),
            pid(&status["controller"]["pid"]),
        )
    }

    /// Process id of a workload's application.
    pub fn application(&self, workload: &str) -> i32 {
        self.application_now(workload).unwrap()
    }

    /// The same, if it runs now.
    pub fn application_now(&self, workload: &str) -> Option<i32> {
        let status = self.status();
        let services = status["services"].as_array().unwrap();
        let mut workloads = services
            .iter()
            .flat_map(|s| s["workloads"].as_array().unwrap());
        let found = workloads.find(|w| w["name"] == workload)?;
        i32::try_from(found["pid"].as_i64()?).ok()
    }

    /// GET through the ingress on a connection of its own.
    pub fn get(&self, target: &str) -> Message {
        Client::connect(self.ingress).get(target)
    }

    /// GET on a proxy's admin socket.
    pub fn admin(&self, workload: &str, target: &str) -> Message {
        let socket = self.proxy(workload)["admin_socket"]
            .as_str()
            .unwrap()
            .to_owned();
        let mut stream = UnixStream::connect(socket).unwrap();
        write!(
            stream,
            "GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        crate::read_message(&mut BufReader::new(stream), Some("GET")).unwrap()
    }

    /// An address of a workload's own or of its service.
    pub fn address(&self, service: &str, of_service: bool, v6: bool) -> std::net::IpAddr {
        let status = self.status();
        let services = status["services"].as_array().unwrap();
        let service = services.iter().find(|s| s["name"] == service).unwrap();
        let index = usize::from(!of_service) * 2 + usize::from(v6);
        service["addresses"][index]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    }

    /// Runs this in a workload's network namespace, as its application or past the redirection.
    pub fn inside<T: Send>(
        &self,
        workload: &str,
        as_app: bool,
        run: impl FnOnce() -> T + Send,
    ) -> T {
        let user = (!as_app).then(|| self.user_of_sidecar(workload));
        crate::yard::in_namespace(&self.namespace(workload), user, run)
    }

    /// Captures what passes a workload's namespace, or the bridge between all of them.
    pub fn capture(&self, workload: &str) -> Capture {
        self.inside(workload, true, Capture::start)
    }

    /// Everything of this mesh that is on the host now: processes, namespaces, links, cgroups.
    pub fn left(&self) -> Vec<String> {
        let own = format!("tulle-{}", self.name);
        let is_own = |name: &str| name == own || name.starts_with(&format!("{own}."));
        let mut left = Vec::new();
        let roots = [
            "/run/netns",
            "/sys/class/net",
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/cpu",
        ];
        for root in roots
            .iter()
            .chain(&["/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"])
        {
            for entry in fs::read_dir(root).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if is_own(&name) {
                    left.push(format!("{root}/{name}"));
                }
            }
        }
        let directory = self.path().as_os_str().as_encoded_bytes();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if command.windows(directory.len()).any(|w| w == directory) {
                left.push(String::from_utf8_lossy(&command).replace('\0', " "));
            }
        }
        left
    }

    /// Waits until nothing of it is left.
    pub fn await_nothing_left(&self) {
        eventually("nothing is left of the mesh", || self.left().is_empty());
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in ["supervisor", "controller"] {
                let answer = self.tulle(&["logs", log, "--tail", "40"]);
                eprintln!("--- {log}:\n{}", answer.out);
            }
        }
        // Tests that check the result call `down` themselves.
        let _ = self.tulle(&["down", "--timeout", "10s", "--purge"]);
    }
}

/// Sends a signal to a process of a mesh.
pub fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// A manifest of the demo.
pub fn read_demo(name: &str) -> String {
    fs::read_to_string(repository().join("demo").join(name)).unwrap()
}

/// Gives each application a free port behind its service port: on loopback all share one address.
fn own_ports(mut text: String) -> String {
    for (service, port) in [
        ("ratings", 8101),
        ("reviews", 8102),
        ("details", 8103),
        ("productpage", 9080),
        ("gateway", 10000),
    ] {
        let own = free_port();
        text = text
            .replace(
                &format!("bookinfo, {service}]"),
                &format!("bookinfo, {service}, --port, \"{own}\"]"),
            )
            .replace(
                &format!("    - name: http\n      port: {port}\n"),
                &format!("    - name: http\n      port: {port}\n      targetPort: {own}\n"),
            )
            .replace(
                &format!("path: /health\n      port: {port}\n"),
                &format!("path: /health\n      port: {own}\n"),
            );
    }
    text
}

/// Returns the entry of a status for the traffic from one service to another.
pub fn edge(status: &Value, source: &str, destination: &str) -> Option<Value> {
    let (source, destination) = (crate::id(source), crate::id(destination));
    let edges = status["edges"].as_array().unwrap();
    let mut found = edges
        .iter()
        .filter(|e| e["source"] == *source && e["destination"] == *destination);
    let edge = found.next().cloned();
    assert!(found.next().is_none(), "{source} twice in {edges:#?}");
    edge
}
