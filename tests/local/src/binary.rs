//! Where the programs are, and that they are what the sources say.

use crate::{alone, note_wait};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

/// A program, its package, and the directories below which its sources are.
struct Program {
    name: &'static str,
    package: &'static str,
    sources: &'static [&'static str],
}

const PROXY: Program = Program {
    name: "tulle-proxy",
    package: "tulle-proxy",
    sources: &[
        "api",
        "crates/api",
        "crates/http1",
        "crates/model",
        "crates/net",
        "crates/proxy",
        "crates/tls",
        "crates/transport",
    ],
};
const PROGRAMS: [Program; 5] = [
    PROXY,
    Program {
        name: "tulle",
        package: "tulle-cli",
        sources: &[
            "api",
            "crates/api",
            "crates/cli",
            "crates/console",
            "crates/control",
            "crates/model",
            "crates/net",
            "crates/proxy",
            "crates/redirect",
            "crates/tls",
        ],
    },
    Program {
        name: "tulle-envoy",
        package: "tulle-envoy",
        sources: &[
            "api",
            "crates/api",
            "crates/envoy",
            "crates/model",
            "crates/net",
            "crates/proxy",
            "crates/tls",
        ],
    },
    Program {
        name: "tulle-bench",
        package: "tulle-bench",
        sources: &[
            "bench/jmeter",
            "bench/seeds",
            "crates/bench",
            "crates/envoy",
            "crates/model",
        ],
    },
    Program {
        name: "bookinfo",
        package: "bookinfo",
        sources: &["demo/bookinfo"],
    },
];

/// The repository's root.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
}

/// `tulle-proxy` of this build's profile.
pub fn proxy_binary() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| fresh(&PROXY))
}

/// A program of this build's profile, by its name.
pub fn program(name: &str) -> PathBuf {
    fresh(PROGRAMS.iter().find(|p| p.name == name).unwrap())
}

/// Cargo does not build another package's program for a test, so it is built here when it is
/// missing or older than its sources. Those of another architecture are where `TULLE_TEST_PROGRAMS` says
/// (`scripts/test-foreign.sh`), and as they are.
fn fresh(program: &Program) -> PathBuf {
    if let Some(directory) = std::env::var_os("TULLE_TEST_PROGRAMS") {
        let path = Path::new(&directory).join(program.name);
        assert!(path.exists(), "there is no {}", path.display());
        return path;
    }
    let path = profile_directory().join(program.name);
    let is_stale = || {
        let built = std::fs::metadata(&path).and_then(|m| m.modified()).ok();
        built.is_none_or(|built| built < newest(program.sources))
    };
    if is_stale() {
        // One test at a time: what the first has built, the next finds fresh.
        let _alone = alone("build");
        if is_stale() {
            let begun = Instant::now();
            build(program, &path);
            note_wait(&format!("{} is built", program.name), begun.elapsed());
        }
    }
    path
}

/// Whether the programs are of another architecture than this one, so that qemu runs them.
pub fn is_emulated() -> bool {
    // 32 or 64 bits, and the machine.
    let kind = |path: &Path| {
        let mut head = [0; 20];
        let read = std::fs::File::open(path).and_then(|mut f| f.read_exact(&mut head));
        read.unwrap();
        (head[4], [head[18], head[19]])
    };
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| kind(proxy_binary()) != kind(Path::new("/proc/self/exe")))
}

/// `tulle-proxy` as users get it, if it has been built.
pub fn release_binary() -> Option<PathBuf> {
    let path = profile_directory()
        .with_file_name("release")
        .join("tulle-proxy");
    path.exists().then_some(path)
}

/// `target/<profile>`: the test is in `target/<profile>/deps`.
fn profile_directory() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
}

fn newest(sources: &[&str]) -> SystemTime {
    let mut newest = SystemTime::UNIX_EPOCH;
    for directory in sources {
        visit(&repository().join(directory), &mut newest);
    }
    newest
}

fn visit(directory: &Path, newest: &mut SystemTime) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let metadata = entry.metadata().unwrap();
        // Changed tests do not make a program outdated.
        if metadata.is_dir() && entry.file_name() != "tests" {
            visit(&entry.path(), newest);
        } else if metadata.is_file() {
            *newest = metadata.modified().unwrap().max(*newest);
        }
    }
}

fn build(program: &Program, path: &Path) {
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "-p", program.package]);
    command.args(["--bin", program.name]);
    command.current_dir(repository());
    let profile = profile_directory();
    command.env("CARGO_TARGET_DIR", profile.parent().unwrap());
    if profile.file_name().is_some_and(|name| name == "release") {
        command.arg("--release");
    }
    let status = command.status().expect("cargo is there while tests run");
    assert!(
        status.success() && path.exists(),
        "{} does not build",
        program.name
    );
    // Cargo leaves a program alone that needs no change; the next test need not ask again.
    // By name: a program that somebody has open for writing cannot be started.
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: now,
    };
    let _ = utimensat(CWD, path, &times, AtFlags::empty());
}
