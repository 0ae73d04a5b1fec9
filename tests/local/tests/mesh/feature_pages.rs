//! The pages in docs/features: each mesh starts as it stands there, each command answers as it says.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tests_local::{PATIENCE, holds_within, is_root, program, repository};

/// A network of its own, so that pages can use the ports that readers will use.
struct Host {
    name: String,
    directory: tempfile::TempDir,
}

impl Host {
    fn new(page: &str) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("tulle-page-")
            .tempdir()
            .unwrap();
        // Sidecars run as another user.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["tulle", "tulle-proxy", "bookinfo"] {
            let (from, to) = (program(name), directory.path().join(name));
            if fs::hard_link(&from, &to).is_err() {
                fs::copy(&from, &to).unwrap();
            }
        }
        let name = format!("page-{}-{page}", std::process::id());
        ip(&["netns", "add", &name]);
        let host = Self { name, directory };
        let (_, code) = host.run("ip link set lo up");
        assert_eq!(code, 0);
        host
    }

    /// Returns a command's output and its exit code.
    fn run(&self, command: &str) -> (String, i32) {
        let path = std::env::var("PATH").unwrap_or_default();
        let here = self.directory.path();
        let output = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", self.name))
            .args(["sh", "-c", &format!("{command} 2>&1")])
            .env("PATH", format!("{}:{path}", here.display()))
            .env("TULLE_STATE", here.join("state"))
            // Namespaces have names that all networks share.
            .env("TULLE_NAME", self.name.replace("page-", "p"))
            .env_remove("TULLE_PROXY")
            .env("NO_COLOR", "1")
            .current_dir(here)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (text, output.status.code().unwrap_or(-1))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.run("tulle down --purge");
        ip(&["netns", "delete", &self.name]);
    }
}

fn ip(args: &[&str]) {
    let done = Command::new("ip").args(args).status().unwrap();
    assert!(done.success(), "ip {args:?}");
}

/// The contents of fenced blocks of a kind, each with what follows the kind in its first line.
fn blocks<'a>(page: &'a str, kind: &str) -> Vec<(&'a str, &'a str)> {
    let mut found = Vec::new();
    for block in page.split("\n```").skip(1).step_by(2) {
        let (first, rest) = block.split_once('\n').unwrap();
        if let Some(title) = first.strip_prefix(kind)
            && (title.is_empty() || title.starts_with(' '))
        {
            found.push((title.trim(), rest));
        }
    }
    found
}

struct Step<'a> {
    command: &'a str,
    expected: Vec<&'a str>,
    code: i32,
}

fn steps(block: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    for line in block.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            let (expected, code) = (Vec::new(), 0);
            steps.push(Step {
                command,
                expected,
                code,
            });
            continue;
        }
        let step = steps.last_mut().expect("a console block begins with `$ `");
        match line.strip_prefix("? ") {
            Some(code) => step.code = code.parse().unwrap(),
            None => step.expected.push(line),
        }
    }
    steps
}

/// Whether a line is as expected; `[..]` stands for any text.
fn fits_line(expected: &str, line: &str) -> bool {
    let mut parts = expected.split("[..]");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

/// Whether all lines are as expected; a line of `...` stands for any lines.
fn fits(expected: &[&str], lines: &[&str]) -> bool {
    match (expected, lines) {
        ([], []) => true,
        (["...", rest @ ..], _) => (0..=lines.len()).any(|n| fits(rest, &lines[n..])),
        ([first, rest @ ..], [line, lines @ ..]) => fits_line(first, line) && fits(rest, lines),
        _ => false,
    }
}

/// Whether a command changes the mesh.
fn changes(command: &str) -> bool {
    ["apply", "delete"]
        .iter()
        .any(|word| command.contains(word))
}

/// Whether a command waits for something, or shows how long something takes.
fn depends_on_time(command: &str) -> bool {
    let parts = ["sleep ", "/delay/", "%{time_total}"];
    parts.iter().any(|part| command.contains(part))
}

/// Returns the errors of a page; none if all of it is true.
fn check(file: &Path) -> Vec<String> {
    let name = file.file_stem().unwrap().to_str().unwrap();
    let page = fs::read_to_string(file).unwrap();
    let manifests = blocks(&page, "yaml");
    let (mesh, files): (Vec<_>, Vec<_>) = manifests.iter().partition(|(title, _)| title.is_empty());
    if mesh.is_empty() {
        return vec![format!("{name}: it has no mesh")];
    }
    let host = Host::new(name);
    let mesh: Vec<_> = mesh.iter().map(|(_, text)| *text).collect();
    fs::write(
        host.directory.path().join("mesh.yaml"),
        mesh.join("\n---\n"),
    )
    .unwrap();
    for (title, text) in files {
        fs::write(host.directory.path().join(title), text).unwrap();
    }
    let (said, code) = host.run("tulle up --detach mesh.yaml");
    if code != 0 {
        let (log, _) = host.run("tulle logs supervisor");
        return vec![format!("{name}: its mesh does not start:\n{said}\n{log}")];
    }
    let mut wrong = Vec::new();
    let mut changed = false;
    for (_, block) in blocks(&page, "console") {
        for step in steps(block) {
            let is_told = |said: &str, code: i32| {
                let lines: Vec<_> = said.lines().collect();
                code == step.code && fits(&step.expected, &lines)
            };
            // A change takes effect after a moment, longer on a busy machine: ask again.
            let again = !changes(step.command) && (changed || depends_on_time(step.command));
            changed |= changes(step.command);
            let (mut said, mut code) = host.run(step.command);
            let mut told = is_told(&said, code);
            if again && !told {
                told = holds_within(PATIENCE, step.command, || {
                    (said, code) = host.run(step.command);
                    is_told(&said, code)
                });
            }
            if !told {
                let expected = step.expected.join("\n");
                wrong.push(format!(
                    "{name}: $ {}\nexpected (exit code {}):\n{expected}\nfound (exit code {code}):\n{said}",
                    step.command, step.code
                ));
            }
        }
    }
    wrong
}

fn pages() -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join("docs/features")).unwrap();
    let mut pages: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    pages.retain(|p| p.file_name().unwrap() != "README.md");
    pages.sort();
    pages
}

#[test]
fn every_page_is_in_the_index() {
    let index = fs::read_to_string(repository().join("docs/features/README.md")).unwrap();
    for page in pages() {
        let name = page.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(index.contains(&format!("({name})")), "{name}");
    }
}

#[test]
fn every_test_that_the_index_names_exists() {
    let index = fs::read_to_string(repository().join("docs/features/README.md")).unwrap();
    let (_, proven) = index
        .split_once("\n## Where each feature is proven\n")
        .unwrap();
    let rows = proven.lines().filter_map(|line| line.strip_prefix("| "));
    let mut named = 0;
    for row in rows.skip(1) {
        let tests = row.split(" | ").nth(2).unwrap_or_default();
        for name in tests.split('`').skip(1).step_by(2) {
            let path = repository().join("tests/local/tests").join(name);
            assert!(path.exists(), "{name} of {row}");
            named += 1;
        }
    }
    assert!(named > 30, "{named}");
}

/// Makes a test of each page, in a module of their own, and the list of their names.
macro_rules! true_pages {
    ($($name:ident)*) => {
        mod page {
            $(
                #[test]
                fn $name() {
                    super::is_true(stringify!($name));
                }
            )*
        }

        const WITH_A_TEST: &[&str] = &[$(stringify!($name)),*];
    };
}

true_pages! {
    access
    authorization
    circuit_breaking
    cors
    dns
    egress
    endpoints
    external_auth
    faults
    findings
    gateway_policies
    grpc
    ingress_tls
    ipv6
    jwt
    limits
    load_balancing
    mirroring
    outside_clients
    proxy_protocol
    rate_limits
    request_filters
    retries
    routing
    tcp
    tcp_routes
    tls_passthrough
    tracing
    traffic_split
    websocket
}

/// The name of a page's test.
fn test_name(page: &Path) -> String {
    let stem = page.file_stem().unwrap().to_str().unwrap();
    stem.replace('-', "_")
}

fn is_true(name: &str) {
    if !is_root() {
        return;
    }
    let page = pages().into_iter().find(|page| test_name(page) == name);
    let wrong = check(&page.unwrap());
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_page_has_a_test() {
    let mut pages: Vec<_> = pages().iter().map(|page| test_name(page)).collect();
    pages.sort();
    assert_eq!(pages, WITH_A_TEST, "the list in `true_pages!`");
}

#[test]
fn wildcards() {
    assert!(fits_line("a[..]c", "abc") && fits_line("a[..]", "a") && fits_line("[..]c", "abc"));
    assert!(!fits_line("a[..]c", "ab") && !fits_line("a", "ab") && !fits_line("ab", "a"));
    assert!(fits_line("a[..]b[..]c", "a1b2c") && !fits_line("a[..]b[..]c", "a1c"));
    assert!(fits(&["a", "...", "d"], &["a", "b", "c", "d"]));
    assert!(fits(&["...", "d"], &["d"]) && fits(&["a", "..."], &["a"]));
    assert!(!fits(&["a", "..."], &["b"]) && !fits(&["a"], &["a", "b"]) && !fits(&["a"], &[]));
}
