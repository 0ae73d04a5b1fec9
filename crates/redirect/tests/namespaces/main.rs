//! Interception and limits for real: namespaces, rules and cgroups of this machine. It needs root;
//! without it every test is skipped, and says so. All resources carry the name of a mesh that only
//! this process uses.
//!
//! There is no test harness: the processes inside the namespaces (listeners, dialers, …) are this
//! same binary with other arguments (`roles`), started in the same way as real workloads. It
//! answers `cargo test` and other runners as a harness does: `--list`, names and `--exact`.

// A test reports a failure by panicking; clippy knows a test only by its attribute.
#![allow(clippy::unwrap_used)]

mod cgroups;
mod crash;
mod redirection;
mod roles;
#[path = "../../../../tests/local/src/waits.rs"]
#[allow(dead_code, unreachable_pub)]
mod waits;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A test takes the name of a mesh, which it may create and leave behind.
type Test = fn(&str);

const TESTS: [(&str, Test); 9] = [
    ("redirection", redirection::by_nft),
    ("redirection_by_iptables", redirection::by_iptables),
    ("repair", redirection::repair),
    ("two_meshes", redirection::two_meshes),
    ("crash", crash::crash),
    ("half_made", crash::half_made),
    ("parent_death", crash::parent_death),
    ("cpu_and_memory", cgroups::cpu_and_memory),
    ("limits_change", cgroups::limits_change),
];

/// The part of a harness's arguments that matters here.
#[derive(Default)]
struct Asked {
    list: bool,
    exact: bool,
    /// Only tests that are left out otherwise; there are none.
    ignored: bool,
    names: Vec<String>,
}

impl Asked {
    fn read(arguments: &[String]) -> Self {
        let mut asked = Self::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--list" => asked.list = true,
                "--exact" => asked.exact = true,
                "--ignored" => asked.ignored = true,
                // The values of these options are not names of tests.
                "--format" | "--color" | "--logfile" | "--skip" | "--test-threads" | "-Z" => {
                    words.next();
                }
                name if !name.starts_with('-') => asked.names.push(name.to_owned()),
                _ => {}
            }
        }
        asked
    }

    fn tests(&self) -> impl Iterator<Item = (&'static str, Test)> {
        let is_named = |name: &str, asked: &str| match self.exact {
            true => name == asked,
            false => name.contains(asked),
        };
        let is_asked = move |name: &str| {
            self.names.is_empty() || self.names.iter().any(|asked| is_named(name, asked))
        };
        let all = TESTS.into_iter().filter(|_| !self.ignored);
        all.filter(move |(name, _)| is_asked(name))
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if roles::play(&arguments) {
        return;
    }
    let asked = Asked::read(&arguments);
    if asked.list {
        for (name, _) in asked.tests() {
            println!("{name}: test");
        }
        return;
    }
    let missing = tulle_redirect::available().why_not;
    if !missing.is_empty() {
        println!("skipped: {}", missing.join("; "));
        return;
    }
    let mut failed = 0;
    for (name, test) in asked.tests() {
        let mesh = format!("{}-{}", name.replace('_', ""), std::process::id());
        let before = world::World::look();
        let outcome = catch_unwind(AssertUnwindSafe(|| test(&mesh)));
        // This runs after a failure, too, so that the next test starts clean.
        let removed = catch_unwind(|| world::remove(&mesh));
        let left = world::World::look().beyond(&before);
        let ok = outcome.is_ok() && removed.is_ok() && left.is_empty();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        for line in left {
            println!("  left behind: {line}");
        }
        failed += i32::from(!ok);
    }
    std::process::exit(i32::from(failed > 0));
}
