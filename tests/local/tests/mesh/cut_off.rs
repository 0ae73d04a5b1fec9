//! A mesh whose hosts have an authority over their own workloads, and lose their controller: for tests of what goes on
//! without it.

use crate::cli_join::only;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tests_local::{
    Client, Demo, PATIENCE, RATING, eventually, free_port, free_ports, holds_within, id, pause,
    signal,
};

/// Seconds that certificates last: the least that the mesh issues.
pub(crate) const LIFETIME: u64 = 10;

/// A mesh of its own with controller and operator, and hosts that join it.
pub(crate) struct Story {
    pub(crate) centre: Demo,
    /// Where its controller always is.
    pub(crate) port: u16,
}

pub(crate) fn mesh(authority: u64) -> String {
    format!(
        "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata: {{name: m}}\nspec:\n  permissiveMode: true\n  \
         certificates: {{lifetime: {LIFETIME}s, hostAuthority: {{lifetime: {authority}s}}}}\n"
    )
}

pub(crate) fn sleeper(name: &str, more: &str) -> String {
    format!(
        "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}}}\nspec:\n  \
         command: [sleep, '1000']\n{more}"
    )
}

pub(crate) fn is_ratings(document: &str) -> bool {
    document.contains("kind: Workload\nmetadata:\n  name: ratings\n")
}

impl Story {
    pub(crate) fn start(text: impl FnOnce(String) -> String) -> Self {
        let story = Self {
            centre: Demo::prepare_without_privileges(text),
            port: free_port(),
        };
        story.up(story.port);
        story
    }

    pub(crate) fn up(&self, port: u16) {
        let listen = format!("127.0.0.1:{port}");
        let manifest = self.centre.manifest.to_str().unwrap();
        let up = [
            "up",
            "--detach",
            "--loopback",
            "--listen",
            &listen,
            manifest,
        ];
        let up = self.centre.tulle(&up);
        assert_eq!(up.code, 0, "{up:?}");
    }

    /// A token for a host, with what else its command needs.
    pub(crate) fn token(&self, name: &str) -> Value {
        let identity = format!("node/{name}");
        let made = self
            .centre
            .tulle(&["token", "create", &identity, "-o", "json"]);
        serde_json::from_str(&made.out).unwrap()
    }

    pub(crate) fn join(&self, host: &Demo, name: &str) -> Child {
        let made = self.token(name);
        let mut command = joining(host, &made);
        command.env("TULLE_TOKEN", made["token"].as_str().unwrap());
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        child.unwrap()
    }

    /// Returns what the operator sees of a host's authority.
    pub(crate) fn authority(&self, name: &str) -> Value {
        let nodes = self.objects("nodes");
        let node = nodes.iter().find(|n| n["metadata"]["name"] == name);
        node.map_or(Value::Null, |n| n["status"]["hostAuthority"].clone())
    }

    fn objects(&self, kind: &str) -> Vec<Value> {
        let got = self.centre.tulle(&["get", kind, "-o", "json"]);
        let all: Value = serde_json::from_str(&got.out).unwrap_or_else(|e| panic!("{e}: {got:?}"));
        let listed = all.as_array().or_else(|| all["items"].as_array());
        listed.unwrap_or_else(|| panic!("{got:?}")).clone()
    }

    pub(crate) fn workloads(&self) -> Vec<String> {
        let name = |w: &Value| w["metadata"]["name"].as_str().unwrap().to_owned();
        let mut names: Vec<String> = self.objects("workloads").iter().map(name).collect();
        names.sort_unstable();
        names
    }

    pub(crate) fn await_authority(&self, name: &str, workloads: &[&str]) {
        let ids: Vec<_> = workloads.iter().map(|w| Value::from(id(w))).collect();
        eventually("the host has an authority over its workloads", || {
            self.authority(name)["identities"] == Value::from(ids.clone())
        });
    }

    /// The controller's host loses its power.
    pub(crate) fn kill(&self) {
        let (supervisor, controller) = self.centre.supervisor_and_controller();
        signal(supervisor, Signal::KILL);
        // The kernel ends it with its supervisor, perhaps before this does.
        let controller = Pid::from_raw(controller).unwrap();
        let _ = rustix::process::kill_process(controller, Signal::KILL);
        self.centre.await_nothing_left();
    }
}

pub(crate) fn joining(host: &Demo, made: &Value) -> Command {
    let mut command = host.command();
    command
        .args(["join", "--controller", made["controller"].as_str().unwrap()])
        .args(["--ca-fingerprint", made["ca_fingerprint"].as_str().unwrap()])
        .args(["--inbound-ports", &inbound_ports(host)])
        .arg(&host.manifest)
        .stdin(Stdio::null());
    command
}

/// Ports of this host's own, the same at each start. The mesh of another test could be given those that a host chooses,
/// while this one is off.
fn inbound_ports(host: &Demo) -> String {
    const COUNT: u16 = 16;
    let file = host.path().join("inbound-ports");
    std::fs::read_to_string(&file).unwrap_or_else(|_| {
        let first = free_ports(COUNT);
        let ports = format!("{first}-{}", first + COUNT - 1);
        std::fs::write(&file, &ports).unwrap();
        ports
    })
}

/// A host that serves ratings, and one that calls them at a port of its own.
pub(crate) fn two_hosts(spare: bool) -> (Demo, Demo, SocketAddr) {
    let two = Demo::prepare_without_privileges(|text| {
        let ratings = only(&text, is_ratings);
        match spare {
            true => format!("{ratings}\n---\n{}", sleeper("spare", "")),
            false => ratings,
        }
    });
    let (caller, ratings) = caller();
    let three = Demo::prepare_without_privileges(|_| caller);
    (two, three, ratings)
}

/// A host that serves ratings, and calls them at a port of its own.
pub(crate) fn one_host() -> (Demo, SocketAddr) {
    let (caller, ratings) = caller();
    let host = Demo::prepare_without_privileges(|text| {
        format!("{}\n---\n{caller}", only(&text, is_ratings))
    });
    (host, ratings)
}

/// A workload that calls ratings, and where.
fn caller() -> (String, SocketAddr) {
    let port = free_port();
    let upstream = format!("  upstreams: [{{service: ratings, port: 8101, localPort: {port}}}]\n");
    (
        sleeper("caller", &upstream),
        (Ipv4Addr::LOCALHOST, port).into(),
    )
}

/// Calls ratings from the other host, on a connection of its own.
pub(crate) fn call(address: SocketAddr) -> Result<(), String> {
    let mut client = Client::try_connect(address).map_err(|e| e.to_string())?;
    let request = format!("GET /ratings/{RATING} HTTP/1.1\r\nHost: ratings\r\n\r\n");
    client.try_send(request).map_err(|e| e.to_string())?;
    let answer = client.try_response("GET").map_err(|e| e.to_string())?;
    match answer.status() {
        200 => Ok(()),
        status => Err(format!("{status} {}", answer.text())),
    }
}

/// Calls until it is answered.
pub(crate) fn await_answer(address: SocketAddr) {
    let mut last = Ok(());
    let answered = holds_within(PATIENCE * 3, "ratings answers", || {
        last = call(address);
        last.is_ok()
    });
    assert!(answered, "ratings never answered: {last:?}");
}

/// Calls until then; each is answered.
pub(crate) fn call_until(address: SocketAddr, end: Instant) {
    while Instant::now() < end {
        let called = call(address);
        assert_eq!(called, Ok(()), "{:?} before the end", end - Instant::now());
        pause("the next call", Duration::from_millis(100));
    }
}

/// How many certificates a sidecar shows: two where its host's authority has signed.
pub(crate) fn shown(host: &Demo, workload: &str) -> usize {
    let body = host.admin(workload, "/certificates").body;
    let text = String::from_utf8(body).unwrap();
    let shown: Value = serde_json::from_str(&text).unwrap();
    let chain = shown["chain"].as_str().unwrap_or_else(|| panic!("{text}"));
    chain.matches("BEGIN CERTIFICATE").count()
}

/// Starts a host that has been of the mesh, without a token.
pub(crate) fn start_again(host: &Demo, made: &Value, options: &[&str]) -> Child {
    let mut command = joining(host, made);
    command
        .args(options)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The supervisor of a host loses its power, and with it all that the machine has not on its disk.
pub(crate) fn cut_power(host: &Demo, mut joined: Child) {
    signal(
        i32::try_from(host.status()["mesh"]["supervisor_pid"].as_i64().unwrap()).unwrap(),
        Signal::KILL,
    );
    joined.wait().unwrap();
    eventually("what was left of it is cleared away", || {
        host.left().is_empty()
    });
    let run = host.path().join("state/run");
    assert!(run.exists());
    std::fs::remove_dir_all(run).unwrap();
}
