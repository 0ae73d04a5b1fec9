//! Tests on a real Kubernetes: `make test-kube` starts it (tests/kube/cluster) and runs the short tier of
//! them, `make test-kube-all` every one (tests/kube/run.sh).
//!
//! Without it, as in `cargo test --workspace`, they say so and pass: they need root and a cluster.

mod certificate;
mod documented;
mod gateway_api;
mod install;
pub mod load;
mod neighbour;
mod node;
mod page;
mod peer;
mod study;
#[path = "../../local/src/waits.rs"]
#[allow(dead_code, unreachable_pub)]
mod waits;
mod wire;

pub use certificate::Certificate;
pub use documented::Documented;
pub use gateway_api::{conforms, install_gateway_api};
pub use install::{await_webhooks, install, install_as, install_with, objects_with_cni};
pub use neighbour::Neighbour;
pub use node::{Node, OnNode};
pub use page::{Ended, Page, Shell};
pub use peer::peer;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
pub use study::study;
pub use waits::{note_wait, pause};
pub use wire::{Capture, Direction, Wire};

/// The label of requests that came in mutual TLS.
pub const MUTUAL_TLS: &str = "connection_security_policy=\"mutual_tls\"";
/// Where the mesh is.
pub const MESH: &str = "tulle-system";
/// Its controller.
pub const CONTROLLER: &str = "deployment/tulle-controller";
/// How long anything is waited for. The machine may be busy: three clusters share it.
const PATIENCE: Duration = Duration::from_secs(300);

/// The cluster that `make test-kube` has started.
pub struct Cluster {
    script: PathBuf,
}

/// The names of the servers in what `bookinfo talk` prints; what was said instead, if none answered.
pub fn answering(said: String) -> BTreeSet<String> {
    let names = said.lines().filter_map(|line| {
        let said: Value = serde_json::from_str(line.get(line.find('{')?..)?).ok()?;
        Some(said["name"].as_str()?.to_owned())
    });
    let names: BTreeSet<String> = names.collect();
    match names.is_empty() {
        true => BTreeSet::from([said]),
        false => names,
    }
}

/// The checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where the cluster's own certificates are.
///
/// # Panics
/// Its settings cannot be read.
pub fn pki() -> PathBuf {
    let settings = root().join("tests/kube/cluster/env.sh");
    let mut command = Command::new("bash");
    let command = command.args(["-c", ". \"$0\" && printf %s \"$PKI\""]);
    let told = command.arg(settings).output();
    let told = told.unwrap_or_else(|e| panic!("bash: {e}"));
    PathBuf::from(String::from_utf8_lossy(&told.stdout).into_owned())
}

impl Cluster {
    /// The cluster, if there is one.
    pub fn get() -> Option<Self> {
        if std::env::var_os("TULLE_TEST_KUBE").is_none() {
            println!("skipped: `make test-kube` starts the cluster that this needs");
            return None;
        }
        let script = root().join("tests/kube/cluster/cluster.sh");
        Some(Self { script })
    }

    /// The same with so many nodes. `tests/kube/run.sh` reads the number here, and starts the cluster with them.
    ///
    /// # Panics
    /// It has another number of nodes.
    pub fn with_nodes(count: usize) -> Option<Self> {
        let cluster = Self::get()?;
        let nodes = cluster.get_json(&["nodes"]);
        let found = nodes["items"].as_array().map_or(0, Vec::len);
        assert_eq!(
            found, count,
            "this test asks for {count} nodes: NODES={count} tests/kube/cluster/cluster.sh up"
        );
        Some(cluster)
    }

    /// The same with IPv6 alone. `tests/kube/run.sh` finds this call, and starts such a cluster.
    ///
    /// # Panics
    /// It has IPv4.
    pub fn with_ipv6_alone() -> Option<Self> {
        let cluster = Self::get()?;
        let range = cluster.get_json(&["service", "kubernetes"]);
        let families = &range["spec"]["ipFamilies"];
        assert_eq!(
            families,
            &serde_json::json!(["IPv6"]),
            "this test asks for IPv6 alone: FAMILY=6 tests/kube/cluster/cluster.sh up"
        );
        Some(cluster)
    }

    /// A command of the cluster's script about a node, by its number from 1.
    pub fn on(&self, node: usize, arguments: &[&str]) -> Command {
        self.command(&[&["on", &node.to_string()], arguments].concat())
    }

    /// A command of the cluster's script. It reads nothing unless the caller gives it something: the
    /// test's own standard input may be a terminal, or closed.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.script);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs the `tulle` command inside the cluster's network and returns its output.
    pub fn tulle(&self, arguments: &[&str]) -> String {
        let program = root().join("target/debug/tulle");
        let mut command = self.command(&["exec"]);
        let done = command.arg(program).args(arguments).output();
        let done = done.unwrap_or_else(|e| panic!("tulle: {e}"));
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(!done.stdout.is_empty(), "tulle {arguments:?}: {error}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Applies a file of `manifests`, with `@IMAGE@` and these words replaced.
    pub fn apply_file(&self, name: &str, words: &[(&str, &str)]) {
        let file = root().join("tests/kube/manifests").join(name);
        let read = std::fs::read_to_string(&file);
        let text = read.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let text = words
            .iter()
            .fold(text, |text, (word, meant)| text.replace(word, meant));
        let image = format!("localhost/bookinfo:{}", env!("CARGO_PKG_VERSION"));
        self.apply(&text.replace("@IMAGE@", &image));
    }

    /// Restarts a component of the node, as `kubelet`: it is killed and starts again.
    pub fn restart(&self, component: &str) {
        let done = self.command(&["restart", component]).status();
        assert!(done.is_ok_and(|s| s.success()), "restart {component}");
    }

    /// Runs `kubectl`.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(&["kubectl"]);
        let command = command.args(arguments);
        command.output().unwrap_or_else(|e| panic!("kubectl: {e}"))
    }

    /// Runs `kubectl`, which must succeed; its output.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let done = self.try_kubectl(arguments);
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(
            done.status.success(),
            "kubectl {arguments:?}: {text}{}",
            String::from_utf8_lossy(&done.stderr)
        );
        text
    }

    /// An object, or several, as JSON.
    pub fn get_json(&self, arguments: &[&str]) -> Value {
        let text = self.kubectl(&[&["get", "-o", "json"], arguments].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// Applies manifests.
    pub fn apply(&self, manifests: &str) {
        let done = self.try_apply(manifests);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "kubectl apply of {manifests}: {said}"
        );
    }

    /// Waits until `tulle check` says this: proxies and controller may be slow to tell it.
    ///
    /// # Panics
    /// It does not in time.
    pub fn await_finding(&self, expected: &str) {
        let mut last = String::new();
        eventually(&format!("check finds {expected}"), || {
            let found = self.tulle(&["check"]);
            if found != last {
                println!("{found}");
            }
            last = found;
            last.contains(expected)
        });
    }

    /// Applies manifests, which may be refused. Their probes have ten seconds: with the one that Kubernetes
    /// gives them, a busy machine soon calls a pod that works not ready.
    pub fn try_apply(&self, manifests: &str) -> Output {
        self.try_apply_with(&[], manifests)
    }

    /// The same with options of `kubectl apply`.
    pub fn try_apply_with(&self, options: &[&str], manifests: &str) -> Output {
        let mut child = Command::new(&self.script)
            .args(["kubectl", "apply", "-f", "-"])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("kubectl: {e}"));
        if let Some(mut stdin) = child.stdin.take() {
            let written = stdin.write_all(manifests.as_bytes());
            written.unwrap_or_else(|e| panic!("kubectl apply: {e}"));
        }
        let done = child.wait_with_output();
        done.unwrap_or_else(|e| panic!("kubectl: {e}"))
    }

    /// Waits until every container of a Deployment's pods is ready. When it does not become so, what
    /// the pods say.
    pub fn await_deployment(&self, namespace: &str, name: &str) {
        let timeout = format!("--timeout={}s", PATIENCE.as_secs());
        let deployment = format!("deployment/{name}");
        let status = ["-n", namespace, "rollout", "status", &deployment, &timeout];
        let begun = Instant::now();
        let mut done = self.try_kubectl(&status);
        // The controller creates its objects a moment after the object that asks for them.
        eventually(&format!("there is {namespace}/{name}"), || {
            let is_there = !String::from_utf8_lossy(&done.stderr).contains("(NotFound)");
            if !is_there {
                done = self.try_kubectl(&status);
            }
            is_there
        });
        note_wait(&format!("{namespace}/{name} is ready"), begun.elapsed());
        if !done.status.success() {
            panic!("{namespace}/{name} is not ready\n{}", self.said(namespace));
        }
    }

    /// Waits until a DaemonSet has a pod that is ready on each node that it is for.
    ///
    /// # Panics
    /// It has not in time.
    pub fn await_daemon_set(&self, namespace: &str, name: &str) {
        let timeout = format!("--timeout={}s", PATIENCE.as_secs());
        let daemon_set = format!("daemonset/{name}");
        let status = ["-n", namespace, "rollout", "status", &daemon_set, &timeout];
        let begun = Instant::now();
        let done = self.try_kubectl(&status);
        note_wait(&format!("{namespace}/{name} is ready"), begun.elapsed());
        assert!(
            done.status.success(),
            "{namespace}/{name} is not ready\n{}",
            self.said(namespace)
        );
    }

    /// Returns the state and the logs of a namespace's pods, for failures.
    pub fn said(&self, namespace: &str) -> String {
        let mut all = self.kubectl(&["-n", namespace, "describe", "pods"]);
        let pods = self.kubectl(&["-n", namespace, "get", "pods", "-o", "name"]);
        for pod in pods.lines() {
            let logs = [
                "-n",
                namespace,
                "logs",
                "--all-containers",
                "--tail=20",
                pod,
            ];
            all.push_str(&String::from_utf8_lossy(&self.try_kubectl(&logs).stdout));
        }
        all
    }

    /// Asks for a URL where the cluster's network is; the answer's content.
    pub fn curl(&self, url: &str) -> String {
        let mut command = Command::new(&self.script);
        let done = command
            .args(["exec", "curl", "--silent", "--show-error", "--fail", url])
            .output();
        let done = done.unwrap_or_else(|e| panic!("curl: {e}"));
        assert!(
            done.status.success(),
            "{url}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// A sidecar refuses a request without mutual TLS from where the cluster's network is.
    ///
    /// # Panics
    /// It does not.
    pub fn refuses_plaintext(&self, url: &str) {
        let done = self.command(&["exec", "curl", "--silent", url]).output();
        let done = done.unwrap_or_else(|e| panic!("curl: {e}"));
        let refused = String::from_utf8_lossy(&done.stdout);
        assert!(refused.contains("plaintext_refused"), "{url}: {refused}");
    }

    /// Whether the sidecar at this address has counted requests with all of these labels. It counts one after its last
    /// byte.
    pub fn has_counted(&self, address: impl Display, labels: &[&str]) -> bool {
        let metrics = self.curl(&format!("http://{address}:15020/metrics"));
        metrics.lines().any(|line| {
            line.starts_with("istio_requests_total") && labels.iter().all(|l| line.contains(l))
        })
    }

    /// Runs a program in a Deployment's first container; whether it succeeded, and its output.
    pub fn exec(&self, namespace: &str, target: &str, program: &[&str]) -> (bool, String) {
        let words = [&["-n", namespace, "exec", target, "--"], program].concat();
        let done = self.try_kubectl(&words);
        let text = [done.stdout, done.stderr].concat();
        (
            done.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }
}

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
    note_wait(what, begun.elapsed());
}
