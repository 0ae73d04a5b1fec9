//! Where the proxy's program is, and that it is what the sources say.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The repository's root.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
}

/// `tulle-proxy` of this build's profile. Cargo does not build another package's program for a
/// test, so it is built here when it is missing or older than the sources.
pub fn proxy_binary() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let path = profile_directory().join("tulle-proxy");
        let built = std::fs::metadata(&path).and_then(|m| m.modified()).ok();
        if built.is_none_or(|built| built < newest_source()) {
            build(&path);
        }
        path
    })
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

fn newest_source() -> SystemTime {
    let crates = repository().join("crates");
    let mut newest = SystemTime::UNIX_EPOCH;
    for name in ["proxy", "http1", "transport", "tls", "net", "model"] {
        visit(&crates.join(name).join("src"), &mut newest);
    }
    newest
}

fn visit(directory: &Path, newest: &mut SystemTime) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let metadata = entry.metadata().unwrap();
        if metadata.is_dir() {
            visit(&entry.path(), newest);
        } else {
            *newest = metadata.modified().unwrap().max(*newest);
        }
    }
}

/// Cargo's own lock keeps test processes that come here at once apart.
fn build(path: &Path) {
    let mut command = Command::new(env!("CARGO"));
    command.args([
        "build",
        "--quiet",
        "-p",
        "tulle-proxy",
        "--bin",
        "tulle-proxy",
    ]);
    command.current_dir(repository());
    let profile = profile_directory();
    command.env("CARGO_TARGET_DIR", profile.parent().unwrap());
    if profile.file_name().is_some_and(|name| name == "release") {
        command.arg("--release");
    }
    let status = command.status().expect("cargo is there while tests run");
    assert!(
        status.success() && path.exists(),
        "tulle-proxy does not build"
    );
    // Cargo leaves a program alone that needs no change; the next test need not ask again.
    let now = SystemTime::now();
    let _ = std::fs::File::options()
        .append(true)
        .open(path)
        .and_then(|f| f.set_modified(now));
}
