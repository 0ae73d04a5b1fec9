//! The first pages that a reader follows, word for word: docs/own-services.md, while a client calls all the time, and
//! the first screen of README.md.

use crate::page::{Host, Step, blocks, follow, steps};
use serde_json::Value;
use std::fs;
use std::process::Child;
use tests_local::{can_redirect, eventually, is_root, repository};

/// The gateway of docs/own-services.md.
const GATEWAY: &str = "http://127.0.0.1:8080/";
/// The port at which the client gives account.
const ACCOUNT: &str = "http://127.0.0.1:8107/";
/// Every fate of a request but an answer.
const LOST: [&str; 8] = [
    "unresolved",
    "nobody",
    "refused",
    "endedKept",
    "endedNew",
    "cut",
    "status",
    "late",
];

/// A client that calls a URL without end.
struct Client<'a> {
    host: &'a Host,
    process: Child,
}

impl<'a> Client<'a> {
    fn start(host: &'a Host, url: &str) -> Self {
        let load = format!("exec bookinfo load --lanes 1 --pause 50 {url}");
        let process = host.command(&load).spawn().unwrap();
        Self { host, process }
    }

    /// Returns the account of its requests; none as long as it has not begun.
    fn account(&self) -> Option<Value> {
        let (said, _) = self.host.run(&format!("curl --fail {ACCOUNT}"));
        serde_json::from_str(&said).ok()
    }

    fn answered(&self) -> u64 {
        let account = self.account().unwrap_or_default();
        let count = |kind: &str| account[kind].as_u64().unwrap_or_default();
        count("answeredKept").min(count("answeredNew"))
    }

    /// Requests are answered still, and none was lost.
    fn has_lost_nothing(&self) {
        let before = self.answered();
        eventually("the client is answered", || self.answered() > before + 10);
        let account = self.account().unwrap();
        println!("{account:#}");
        for lost in LOST {
            assert_eq!(account[lost], 0, "{lost}: {account:#}");
        }
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn page(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap()
}

/// The commands of a page's console blocks.
fn commands(page: &str) -> Vec<Step<'_>> {
    let told = blocks(page, "console").into_iter();
    let mut told: Vec<_> = told.flat_map(|(_, block)| steps(block)).collect();
    told.iter_mut().for_each(Step::expect_denial);
    told
}

fn follow_own_services(host: &Host) {
    let page = page("docs/own-services.md");
    let [mesh, policy] = blocks(&page, "yaml")[..] else {
        panic!("the page has a mesh and a policy");
    };
    for (file, text) in [("mesh.yaml", mesh.1), ("policy.yaml", policy.1)] {
        assert!(page.contains(&format!("`{file}`")), "the page names {file}");
        host.write(file, text);
    }
    let dry_run = "tulle apply --dry-run mesh.yaml";
    assert!(page.contains(dry_run));
    let (said, code) = host.run(dry_run);
    assert_eq!(code, 0, "{said}");

    let mut told = commands(&page);
    if !host.is_root() {
        call_without_names(&mut told, &page);
    }
    // The client comes with the first answer, which the page shows: a gateway may be called before its services are ready.
    let first = told.iter().position(|s| s.command.ends_with(GATEWAY));
    let (until_first, then) = told.split_at(first.expect("the page calls the gateway") + 1);
    assert!(then.iter().any(|s| s.command == "tulle apply policy.yaml"));
    let wrong = follow(host, "own-services", until_first);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let client = Client::start(host, GATEWAY);
    let wrong = follow(host, "own-services", then);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    client.has_lost_nothing();

    for (named, command) in [
        ("tulle check", "tulle check"),
        ("tulle logs NAME", "tulle logs web"),
        ("tulle down", "tulle down"),
    ] {
        assert!(page.contains(&format!("`{named}`")), "{named}");
        let (said, code) = host.run(command);
        assert_eq!(code, 0, "{command}: {said}");
    }
}

/// Does what the page says of loopback mode, where services have no names: one call has another command, and there is
/// none for the other.
fn call_without_names<'a>(told: &mut Vec<Step<'a>>, page: &'a str) {
    let [(_, other)] = blocks(page, "sh")[..] else {
        panic!("the page has a command for loopback mode");
    };
    let mut named = told
        .iter_mut()
        .filter(|s| s.command.contains("http://api:"));
    let (Some(call), None) = (named.next(), named.next()) else {
        panic!("the page calls `api` once");
    };
    call.command = other.trim();
    told.retain(|step| !step.command.contains("http://web:"));
}

#[test]
fn own_services_join_a_mesh_and_their_client_loses_nothing() {
    if can_redirect() {
        follow_own_services(&Host::new("own"));
    }
}

#[test]
fn own_services_join_a_mesh_without_root() {
    if is_root() {
        follow_own_services(&Host::without_root("own-user"));
    }
}

/// `make demo` is `tulle up demo/mesh.yaml --verify`, after it has built everything.
#[test]
fn the_first_screen_of_the_readme_is_true() {
    if !can_redirect() {
        return;
    }
    let host = Host::of_checkout("readme");
    let readme = page("README.md");
    let mut told = commands(&readme);
    let up = &mut told[0];
    assert_eq!(up.command, "make demo");
    up.command = "target/release/tulle up demo/mesh.yaml --verify --detach";
    up.allow_more();
    let wrong = follow(&host, "README", &told);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
