//! Pages that show commands beside what they are about: each command is run as it stands there, and does what the page
//! says. What a block needs and readers do not, its [marks](crate::marks) say.

use crate::marks::{Block, marked_blocks};
use crate::page::{Host, Step, follow, steps};
use std::fs;
use std::process::{Child, Command};
use tests_local::{PATIENCE, can_redirect, holds_within, repository};

/// Pages all of whose commands other tests run, where no mark says otherwise: `feature_pages` and `quick_starts`.
const OTHERS: [&str; 2] = ["docs/own-services.md", "README.md"];
/// Words of pages and those that tests have instead: they wait for less, and leave this machine's own files alone. Marks are
/// read after that.
const INSTEAD: [(&str, &str); 9] = [
    (" --for 30s", " --for 1s"),
    (" --for 10s", " --for 1s"),
    (" --window 1m", " --window 1s"),
    ("\ntulle stat\n", "\ntulle stat --window 1s\n"),
    ("--hold 10s", "--hold 1s --no-wait"),
    ("\ntulle ca rotate\n", "\ntulle ca rotate --no-wait\n"),
    ("/var/lib/tulle", "state"),
    ("/backup", "backup"),
    ("/etc/bash_completion.d/", "completions-"),
];
/// The exit code of `timeout` when it has interrupted a command that went on.
const INTERRUPTED: i32 = 124;
/// One more policy for the demo.
const POLICIES: &str = "\
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata:
  name: details-to-ratings
spec:
  destination:
    kind: ServiceAccount
    name: ratings
  sources:
    - kind: ServiceAccount
      name: details
";
/// The manifest of another host.
const WORKLOADS: &str = "\
apiVersion: tulle.dev/v1alpha1
kind: Workload
metadata:
  name: elsewhere
spec:
  command: [bookinfo, details]
  ports:
    - name: http
      port: 8109
      appProtocol: http
";

/// Whether a test follows the commands of a page that has no mark.
pub(crate) fn is_followed(page: &str) -> bool {
    let is_feature = page.starts_with("docs/features/");
    is_feature || OTHERS.contains(&page) || PAGES.iter().any(|(path, _)| *path == page)
}

/// Processes of another host, which has joined the mesh.
struct OtherHost<'a> {
    host: &'a Host,
    processes: Vec<Child>,
}

impl OtherHost<'_> {
    fn command(&self, command: &str) -> Command {
        let mut command = self.host.command(command);
        command
            .env("TULLE_STATE", self.host.path().join("other"))
            .env("TULLE_NAME", format!("{}o", self.host.mesh()));
        command
    }

    fn start(&mut self, command: &str) {
        let process = self.command(command).spawn().unwrap();
        self.processes.push(process);
    }
}

impl Drop for OtherHost<'_> {
    fn drop(&mut self) {
        if self.processes.is_empty() {
            return;
        }
        let _ = self.command("tulle down --purge >/dev/null 2>&1").status();
        for mut process in std::mem::take(&mut self.processes) {
            let ended = || matches!(process.try_wait(), Ok(Some(_)));
            if !holds_within(PATIENCE, "a joined host ends", ended) {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}

/// A host with the files that pages name.
fn host_with_files(name: &str) -> Host {
    let host = Host::of_checkout(name);
    for file in ["mesh.yaml", "deny-ratings.yaml"] {
        // Readers of most pages have their manifests where they are.
        let text = fs::read_to_string(repository().join("demo").join(file)).unwrap();
        let here = text.replace("workingDirectory: ..", "workingDirectory: .");
        host.write(file, &here);
    }
    host.write("policies.yaml", POLICIES);
    host.write(
        "statements.txt",
        "gateway reaches ratings with GET at /ratings/1\n",
    );
    host.write("workloads.yaml", WORKLOADS);
    host
}

/// Puts what earlier commands have said where a command has `…`: what followed the same word there.
fn filled(command: &str, said: &str) -> Option<String> {
    let (mut done, mut rest) = (String::new(), command);
    while let Some((before, after)) = rest.split_once('…') {
        let begins = before.trim_end().rfind(' ').map_or(0, |at| at + 1);
        let (_, found) = said.rsplit_once(&before[begins..])?;
        done.push_str(before);
        done.push_str(found.split_whitespace().next()?);
        rest = after;
    }
    Some(done + rest)
}

/// Takes the brackets from what may be left out of a command.
fn with_options(command: &str) -> String {
    let Some((before, rest)) = command.split_once(" [") else {
        return command.to_owned();
    };
    let Some((option, after)) = rest.split_once(']') else {
        return command.to_owned();
    };
    format!("{before} {option}{}", with_options(after))
}

/// Runs the lines of a block and returns what is not as the page says.
fn run(name: &str, block: &Block<'_>, host: &Host, other: &mut OtherHost<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for first in block.marked("first: ") {
        if !holds_within(PATIENCE, first, || host.run(first).1 == 0) {
            let (said, code) = host.run(first);
            wrong.push(format!("{name}: first {first}: exit code {code}:\n{said}"));
        }
    }
    if block.kind == "console" {
        let text = block.lines.join("\n");
        let mut told = steps(&text);
        told.iter_mut().for_each(Step::expect_denial);
        wrong.extend(follow(host, name, &told));
        return wrong;
    }
    let (endless, elsewhere) = (
        block.marked("until Ctrl-C: "),
        block.marked("on another host: "),
    );
    for line in block.commands() {
        if block.leaves_out(&line) {
            continue;
        }
        let line = line.as_str();
        let Some(command) = filled(&with_options(line), &host.said()) else {
            wrong.push(format!("{name}: {line}: nothing has said what `…` is"));
            continue;
        };
        if elsewhere.contains(&line) {
            other.start(&command);
            continue;
        }
        if endless.contains(&line) {
            let command = format!("timeout --signal INT 1 {command}");
            wrong.extend(follow(host, name, &[Step::untold(&command, INTERRUPTED)]));
        } else {
            wrong.extend(follow(host, name, &[Step::untold(&command, 0)]));
        }
        for between in block.marked("between: ") {
            wrong.extend(follow(host, name, &[Step::untold(between, 0)]));
        }
    }
    wrong
}

/// Returns the errors of a page; none if all of it is true.
fn check(path: &str, begins: Begins) -> Vec<String> {
    let mut page = fs::read_to_string(repository().join(path)).unwrap();
    for (from, to) in INSTEAD {
        page = page.replace(from, to);
    }
    let name = path.trim_end_matches(".md").to_lowercase();
    let host = host_with_files(name.trim_start_matches("docs/").replace('/', "-").as_str());
    let mut other = OtherHost {
        host: &host,
        processes: Vec::new(),
    };
    if begins == Begins::WithMesh {
        let (said, code) = host.run("tulle up --detach mesh.yaml");
        assert_eq!(code, 0, "{path}: {said}");
    }
    let mut wrong = Vec::new();
    for block in marked_blocks(&page) {
        if block.holds_commands() && !block.is_left_out() {
            wrong.extend(run(path, &block, &host, &mut other));
        }
    }
    wrong
}

/// The mesh that there is when a page begins.
#[derive(Clone, Copy, PartialEq)]
enum Begins {
    /// The demo is up.
    WithMesh,
    /// Nothing is: the page starts a mesh.
    WithNothing,
}

const PAGES: [(&str, Begins); 7] = [
    ("demo/README.md", Begins::WithNothing),
    ("docs/certificates.md", Begins::WithMesh),
    ("docs/cli.md", Begins::WithNothing),
    ("docs/console.md", Begins::WithNothing),
    ("docs/incidents.md", Begins::WithMesh),
    ("docs/ports.md", Begins::WithNothing),
    ("docs/production.md", Begins::WithMesh),
];

/// Follows a page of the list.
fn is_true(page: &str) {
    if !can_redirect() {
        return;
    }
    let (path, begins) = PAGES.into_iter().find(|(path, _)| *path == page).unwrap();
    let wrong = check(path, begins);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn the_commands_of_the_manual_are_true() {
    is_true("docs/cli.md");
}

#[test]
fn the_commands_about_certificates_are_true() {
    is_true("docs/certificates.md");
}

/// Pages with few commands, together: each of their meshes is up within a second.
#[test]
fn the_commands_of_other_pages_are_true() {
    let own = ["docs/cli.md", "docs/certificates.md"];
    for (page, _) in PAGES.iter().filter(|(page, _)| !own.contains(page)) {
        is_true(page);
    }
}

#[test]
fn what_was_said_before_fills_a_command() {
    let said = "a token, valid once:\nTOKEN=x9 join --fingerprint f3 file\n";
    let command = "TOKEN=… join --fingerprint … other";
    let full = "TOKEN=x9 join --fingerprint f3 other";
    assert_eq!(filled(command, said).as_deref(), Some(full));
    assert_eq!(filled("TOKEN=…", "nothing"), None);
    assert_eq!(with_options("a [-b c] 'd[]'"), "a -b c 'd[]'");
}

#[test]
fn every_word_that_tests_replace_is_in_a_page() {
    let pages = PAGES.map(|(path, _)| fs::read_to_string(repository().join(path)).unwrap());
    for (word, _) in INSTEAD {
        assert!(pages.iter().any(|page| page.contains(word)), "{word}");
    }
}
