//! Pages of docs that tests follow word for word: their files, commands and what these say.

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use tests_local::{PATIENCE, holds_within, program, repository};

/// Somebody without privileges.
const PLAIN_USER: u32 = 1234;
/// Seconds after which a command of a page hangs; a limit, not a measurement.
const HANGS: &str = "300";

/// A network of its own, so that pages can use the ports that readers will use.
pub(crate) struct Host {
    name: String,
    directory: tempfile::TempDir,
    /// The user of its commands, if it is not the user of the test.
    user: Option<u32>,
    /// Everything that its commands have said.
    said: RefCell<String>,
    /// Whether one of them has changed the mesh.
    changed: Cell<bool>,
}

impl Host {
    pub(crate) fn new(page: &str) -> Self {
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
        let host = Self {
            name,
            directory,
            user: None,
            said: RefCell::default(),
            changed: Cell::new(false),
        };
        // As on a terminal, where curl shows no progress of what it prints.
        host.write(".curlrc", "silent\n");
        let (_, code) = host.run("ip link set lo up");
        assert_eq!(code, 0);
        host
    }

    /// A host with the files of a checkout that was built: the programs and the demo's manifests, where the README has them.
    pub(crate) fn of_checkout(page: &str) -> Self {
        let host = Self::new(page);
        let at = |name: &str| host.path().join(name);
        fs::create_dir_all(at("target/release")).unwrap();
        for program in ["tulle", "tulle-proxy", "bookinfo"] {
            let here = at(&format!("target/release/{program}"));
            symlink(at(program), here).unwrap();
        }
        fs::create_dir(at("demo")).unwrap();
        for file in ["demo/mesh.yaml", "demo/deny-ratings.yaml"] {
            let text = fs::read_to_string(repository().join(file)).unwrap();
            host.write(file, &text);
        }
        host
    }

    /// A host whose commands are those of somebody without privileges.
    pub(crate) fn without_root(page: &str) -> Self {
        let mut host = Self::new(page);
        let user = Some(PLAIN_USER);
        std::os::unix::fs::chown(host.path(), user, user).unwrap();
        host.user = user;
        host
    }

    pub(crate) fn is_root(&self) -> bool {
        self.user.is_none()
    }

    /// Its directory, in which commands run.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file of its directory.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    /// The name of its mesh: namespaces have names that all networks share.
    pub(crate) fn mesh(&self) -> String {
        self.name.replace("page-", "p")
    }

    /// Everything that its commands have said so far.
    pub(crate) fn said(&self) -> String {
        self.said.borrow().clone()
    }

    /// A command of its shell.
    pub(crate) fn command(&self, command: &str) -> Command {
        self.program(&["sh", "-c", command])
    }

    /// A program with its arguments.
    fn program(&self, words: &[&str]) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let here = self.path();
        let mut shell = Command::new("nsenter");
        shell.arg(format!("--net=/run/netns/{}", self.name));
        if let Some(user) = self.user {
            shell.args(["--setuid", &user.to_string(), "--setgid", &user.to_string()]);
        }
        shell
            .args(words)
            .env("PATH", format!("{}:{path}", here.display()))
            .env("CURL_HOME", here)
            .env("TULLE_STATE", here.join("state"))
            .env("TULLE_NAME", self.mesh())
            .env_remove("TULLE_PROXY")
            // Without a screen nothing opens a browser.
            .env_remove("DISPLAY")
            .env_remove("WAYLAND_DISPLAY")
            .env("NO_COLOR", "1")
            .current_dir(here)
            .stdin(Stdio::null());
        shell
    }

    /// Returns a command's output and its exit code.
    pub(crate) fn run(&self, command: &str) -> (String, i32) {
        let command = format!("{command} 2>&1");
        let words = ["timeout", HANGS, "sh", "-c", &command];
        let output = self.program(&words).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        self.said.borrow_mut().push_str(&text);
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
pub(crate) fn blocks<'a>(page: &'a str, kind: &str) -> Vec<(&'a str, &'a str)> {
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

/// A command of a page, and what the page says of it.
pub(crate) struct Step<'a> {
    pub(crate) command: &'a str,
    expected: Vec<&'a str>,
    code: i32,
}

impl<'a> Step<'a> {
    /// A command of which the page tells the exit code alone.
    pub(crate) fn untold(command: &'a str, code: i32) -> Self {
        let expected = vec!["..."];
        Self {
            command,
            expected,
            code,
        }
    }

    /// Expects the exit code of `tulle why` where the page shows a denial without its code.
    pub(crate) fn expect_denial(&mut self) {
        if self
            .expected
            .iter()
            .any(|line| line.ends_with(": × denied"))
        {
            self.code = 1;
        }
    }

    /// Lets the command say more before and after what the page shows.
    pub(crate) fn allow_more(&mut self) {
        self.expected.insert(0, "...");
        self.expected.push("...");
    }
}

/// Reads the commands of a console block, each with the output and the exit code below it.
pub(crate) fn steps(block: &str) -> Vec<Step<'_>> {
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

/// Whether a line is as expected; `[..]` stands for any text, and a figure in a row about traffic for any figure.
fn fits_line(expected: &str, line: &str) -> bool {
    match (figures_apart(expected), figures_apart(line)) {
        (Some(expected), Some(line)) => fits_text(&expected, &line),
        _ => fits_text(expected, line),
    }
}

/// Replaces the figures of the table of traffic, whose values and widths are those of a run; none for other lines.
fn figures_apart(line: &str) -> Option<String> {
    let is_of_table = line.starts_with("SOURCE ") || line.starts_with("spiffe://");
    let words = line
        .split_whitespace()
        .map(|word| match word.parse::<f64>() {
            Ok(_) => "#",
            Err(_) => word,
        });
    is_of_table.then(|| words.collect::<Vec<_>>().join(" "))
}

fn fits_text(expected: &str, line: &str) -> bool {
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
    // A request is counted after its last byte, so the one before may not be in the table yet.
    let parts = ["sleep ", "/delay/", "%{time_total}", "tulle status"];
    parts.iter().any(|part| command.contains(part))
}

/// Runs the commands of a page and returns what is not as the page says.
pub(crate) fn follow(host: &Host, page: &str, told: &[Step<'_>]) -> Vec<String> {
    let mut wrong = Vec::new();
    for step in told {
        // A comment says what a command shows, where the page does not.
        let is_shown = !step.expected.is_empty() || !step.command.contains(" # ");
        let is_told = |said: &str, code: i32| {
            let lines: Vec<_> = said.lines().collect();
            code == step.code && (!is_shown || fits(&step.expected, &lines))
        };
        // A change takes effect after a moment, longer on a busy machine: ask again.
        let changes = changes(step.command);
        let again = !changes && (host.changed.get() || depends_on_time(step.command));
        host.changed.set(changes || host.changed.get());
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
                "{page}: $ {}\nexpected (exit code {}):\n{expected}\nfound (exit code {code}):\n{said}",
                step.command, step.code
            ));
        }
    }
    wrong
}

#[test]
fn wildcards() {
    assert!(fits_line("a[..]c", "abc") && fits_line("a[..]", "a") && fits_line("[..]c", "abc"));
    assert!(!fits_line("a[..]c", "ab") && !fits_line("a", "ab") && !fits_line("ab", "a"));
    assert!(fits_line("a[..]b[..]c", "a1b2c") && !fits_line("a[..]b[..]c", "a1c"));
    assert!(fits(&["a", "...", "d"], &["a", "b", "c", "d"]));
    assert!(fits(&["...", "d"], &["d"]) && fits(&["a", "..."], &["a"]));
    assert!(!fits(&["a", "..."], &["b"]) && !fits(&["a"], &["a", "b"]) && !fits(&["a"], &[]));
    let row = |figures| format!("spiffe://a  spiffe://b  mutual_tls  {figures}");
    assert!(fits_line(
        &row("1  100.0%  3.0 ms"),
        &row("12   100.0%  0.25 ms")
    ));
    assert!(!fits_line(&row("1  100.0%"), &row("1  50.0%")) && !fits_line("200", "503"));
}
