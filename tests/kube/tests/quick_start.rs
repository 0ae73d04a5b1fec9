//! docs/kubernetes.md from its quick start to the removal, with the page's own commands and objects: a namespace joins,
//! gets policies, becomes strict and leaves again. Two clients call it all the time, one of it and one outside, and lose
//! what the page says that they lose.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use tests_kube::load::{await_endpoints, scale};
use tests_kube::{Cluster, MESH, Page, Shell, eventually};

/// Kinds of lost requests that are never the mesh's right. Names are resolved over UDP, which is not the mesh's.
const LOST: [&str; 5] = ["refused", "endedNew", "cut", "late", "nobody"];
/// Lanes of a client that keep their connection, times the servers that end. One without a sidecar closes connections that
/// clients keep, and a request may be on its way just then: that is HTTP/1.1's, with or without a mesh. One with a sidecar
/// refuses that request instead, and closes the connection.
const MAY_END: u64 = 4;

/// A Deployment that calls without end, and what became of its requests, by pod. A pod is asked until it ends.
struct Client<'a> {
    cluster: &'a Cluster,
    namespace: &'static str,
    accounts: BTreeMap<String, Value>,
    /// Counts when it was judged last.
    before: BTreeMap<&'static str, u64>,
}

impl<'a> Client<'a> {
    fn start(cluster: &'a Cluster, namespace: &'static str) -> Self {
        scale(cluster, namespace, "deployment/client", 1);
        cluster.await_deployment(namespace, "client");
        let (accounts, before) = (BTreeMap::new(), BTreeMap::new());
        Self {
            cluster,
            namespace,
            accounts,
            before,
        }
    }

    /// Asks its pods.
    fn look(&mut self) {
        let of_client = ["-n", self.namespace, "pods", "-l", "app=client"];
        let pods = self.cluster.get_json(&of_client);
        for pod in pods["items"].as_array().unwrap() {
            let Some(ip) = pod.pointer("/status/podIP").and_then(Value::as_str) else {
                continue;
            };
            let url = format!("http://{ip}:8107/");
            let mut curl = self.cluster.command(&["exec", "curl", "-sf", &url]);
            // One that starts or has just ended says nothing.
            if let Ok(account) = serde_json::from_slice(&curl.output().unwrap().stdout) {
                let name = pod["metadata"]["name"].as_str().unwrap();
                self.accounts.insert(name.to_owned(), account);
            }
        }
    }

    fn count(&self, kind: &str) -> u64 {
        let counts = self.accounts.values().filter_map(|a| a[kind].as_u64());
        counts.sum()
    }

    /// Answers so far, of those connections that have fewer: kept ones or new ones.
    fn answered(&self) -> u64 {
        self.count("answeredKept").min(self.count("answeredNew"))
    }

    fn since(&self, kind: &'static str) -> u64 {
        self.count(kind) - self.before.get(kind).copied().unwrap_or_default()
    }

    fn is_answered(&mut self, when: &str) {
        self.look();
        let then = self.answered();
        let what = format!("the client of {} is answered {when}", self.namespace);
        eventually(&what, || {
            self.look();
            self.answered() > then + 20
        });
    }

    /// Waits until requests are answered by now, and judges all since the last time: none was lost but so many on
    /// connections that were kept.
    fn goes_on(&mut self, when: &str, may_end: u64) {
        self.is_answered(when);
        self.judge(when, may_end, 0);
    }

    /// The same after sidecars were taken away. The page says that a connection which a client without a sidecar keeps
    /// to a server with one costs at most one request when that server ends.
    fn goes_on_without(&mut self, when: &str) {
        self.is_answered(when);
        let lost = self.since("status") + self.since("endedKept");
        assert!(lost <= MAY_END, "{lost} lost {when}: {:#?}", self.accounts);
        self.judge(when, MAY_END, MAY_END);
    }

    /// The same where the page says that it is refused: not otherwise than by an answer that says so.
    fn is_refused(&mut self, when: &str) {
        let what = format!("the client of {} is refused {when}", self.namespace);
        let then = self.count("status");
        eventually(&what, || {
            self.look();
            self.count("status") > then + 20
        });
        self.judge(when, 0, u64::MAX);
    }

    /// Waits until requests are answered and none is refused any more. Until then they may be.
    fn is_open_again(&mut self) {
        let (mut refused, mut answered) = (0, 0);
        eventually("the client outside is answered again", || {
            self.look();
            if self.count("status") != refused {
                (refused, answered) = (self.count("status"), self.answered());
            }
            self.answered() > answered + 20
        });
        self.judge("until it is let in again", 0, u64::MAX);
    }

    /// Runs something while the client is asked for its account again and again.
    fn while_asked(&mut self, run: impl FnOnce()) {
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                eventually("what runs beside the client is done", || {
                    self.look();
                    is_done.load(Ordering::Relaxed)
                });
            });
            let done = catch_unwind(AssertUnwindSafe(run));
            is_done.store(true, Ordering::Relaxed);
            done.unwrap_or_else(|why| resume_unwind(why));
        });
    }

    fn judge(&mut self, when: &str, may_end: u64, may_refuse: u64) {
        let told = format!("{} {when}: {:#?}", self.namespace, self.accounts);
        for lost in LOST {
            assert_eq!(self.since(lost), 0, "{lost}, {told}");
        }
        assert!(self.since("status") <= may_refuse, "{told}");
        assert!(self.since("endedKept") <= may_end, "{told}");
        let answered = self.since("answeredKept") + self.since("answeredNew");
        println!("{} {when}: {answered} answered", self.namespace);
        for kind in ["status", "endedKept", "answeredKept", "answeredNew"]
            .into_iter()
            .chain(LOST)
        {
            self.before.insert(kind, self.count(kind));
        }
    }
}

/// The lines of a block that are commands.
fn commands(block: &str) -> impl Iterator<Item = &str> {
    block.lines().filter(|line| !line.trim().is_empty())
}

/// The block of a heading in which a command stands.
fn block_with<'a>(page: &'a Page, heading: &str, command: &str) -> &'a str {
    let mut blocks = page.blocks(heading, "sh").into_iter();
    let found = blocks.find(|block| block.contains(command));
    found.unwrap_or_else(|| panic!("{heading} has no block with {command}"))
}

fn succeeds(shell: &Shell<'_>, line: &str) {
    let answer = shell.run(line);
    assert_eq!(answer.code, 0, "{line}: {answer:?}");
}

/// Runs what a console block shows until it says what the page says, with `[..]` for anything. A change takes effect
/// after a moment.
fn says(shell: &Shell<'_>, block: &str) {
    let (command, expected) = block.split_once('\n').unwrap();
    let command = command.strip_prefix("$ ").unwrap();
    let expected: Vec<&str> = expected.lines().collect();
    eventually(command, || {
        let said = shell.run(command).out;
        let lines: Vec<&str> = said.lines().collect();
        let fits = |(line, expected): (&&str, &&str)| match expected.split_once("[..]") {
            Some((first, last)) => line.starts_with(first) && line.ends_with(last),
            None => line == expected,
        };
        lines.len() == expected.len() && lines.iter().zip(&expected).all(fits)
    });
}

#[test]
fn the_page_is_followed_word_for_word_and_clients_lose_nothing() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    let page = Page::read("docs/kubernetes.md");
    let shell = Shell::new(&cluster);
    cluster.apply_file("quick-start.yaml", &[]);
    for name in ["web", "stranger"] {
        cluster.await_deployment("shop", name);
    }
    await_endpoints(&cluster, "shop", "web", 2);
    let mut inside = Client::start(&cluster, "shop");
    let mut outside = Client::start(&cluster, "outside");
    inside.goes_on("before there is a mesh", 0);
    outside.goes_on("before there is a mesh", 0);

    for line in commands(block_with(&page, "Quick start", "tulle install --apply")) {
        succeeds(&shell, line);
    }
    has_sidecars(&cluster, &mut inside);
    inside.goes_on("after shop has joined", MAY_END);
    outside.goes_on("after shop has joined", MAY_END);
    let of_client = "ns/shop/sa/client";
    eventually("the calls are mutual TLS", || {
        let edges = shell.run("tulle edges -n shop").out;
        let mut lines = edges.lines().filter(|line| line.contains(of_client));
        lines.any(|line| line.contains("mutual_tls"))
    });

    let [policy, mesh] = page.blocks("Routes and policies", "yaml")[..] else {
        panic!("the page has a policy, and the Mesh that demands policies");
    };
    cluster.apply(policy);
    inside.goes_on("with a policy that is not demanded", 0);
    outside.goes_on("with a policy that is not demanded", 0);
    cluster.apply(mesh);
    let [denied] = page.blocks("Routes and policies", "console")[..] else {
        panic!("the page shows one denial");
    };
    says(&shell, denied);
    outside.is_refused("by policies");
    inside.goes_on("under policies", 0);

    // Each line, and how it ends: shop is called in plaintext.
    let harden = block_with(&page, "Strict mode", "tulle harden");
    let codes: Vec<i32> = commands(harden).map(|line| shell.run(line).code).collect();
    assert_eq!(codes, [79, 79, 0], "{harden}");
    let [refused] = page.blocks("Strict mode", "console")[..] else {
        panic!("the page shows one refusal");
    };
    says(&shell, refused);
    outside.is_refused("by a strict namespace");
    inside.goes_on("in a strict namespace", 0);

    for line in commands(block_with(&page, "Removal", "kubectl delete")) {
        succeeds(&shell, line);
    }
    outside.is_open_again();
    inside.goes_on("when shop is open again", 0);
    inside.while_asked(|| {
        for line in commands(block_with(&page, "Removal", "tulle uninstall")) {
            // It asks, and there is no terminal for the answer.
            succeeds(
                &shell,
                &line.replace("tulle uninstall", "tulle uninstall --yes"),
            );
        }
    });
    inside.goes_on_without("after the mesh was removed");
    outside.goes_on_without("after the mesh was removed");
    let left = shell.run(&format!("kubectl get namespace {MESH}"));
    assert!(left.err.contains("NotFound"), "{left:?}");
    for namespace in ["shop", "outside"] {
        cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]);
    }
}

/// Waits until shop has no pods but ready ones with sidecars, and asks its client meanwhile.
fn has_sidecars(cluster: &Cluster, client: &mut Client<'_>) {
    eventually("every pod of shop has a sidecar", || {
        client.look();
        let pods = cluster.get_json(&["-n", "shop", "pods"]);
        let pods = pods["items"].as_array().unwrap();
        let is_as_wanted = |pod: &Value| {
            let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
            let mut conditions = conditions.into_iter().flatten();
            pod.to_string().contains("\"tulle-proxy\"")
                && conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
        };
        pods.len() == 4 && pods.iter().all(is_as_wanted)
    });
}
