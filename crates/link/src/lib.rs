//! Chooses how a release of `tulle`, `tulle-proxy` and `tulle-envoy` is linked: a tenth to a third of these programs would be
//! nothing that they run. Build scripts of theirs call it. Each option is tried with a small program first, because linkers and
//! C libraries differ in what they know.

#![allow(clippy::unwrap_used, reason = "the build fails")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A script for the linker.
const WITHOUT_TABLES: &str = include_str!("../small.ld");

/// Tells cargo how to link the programs of the package whose build script this is.
pub fn small() {
    // No name of this checkout: where checkouts share a target directory, each would build all anew that this is for.
    println!("cargo::rerun-if-changed=build.rs");
    // Other builds unwind, or are to be looked into: what cargo calls a release, and has debug information, is for a profiler.
    let release = variable("PROFILE") == "release" && variable("DEBUG") == "false";
    if !release || variable("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    let script = PathBuf::from(variable("OUT_DIR")).join("small.ld");
    std::fs::write(&script, WITHOUT_TABLES).unwrap();
    let script = format!("-Wl,--no-eh-frame-hdr,-T,{}", script.display());
    let wishes = [
        // Rust's own linker, which it uses by itself where the C library is glibc: others do not know what follows.
        lld(),
        // A panic aborts, so nothing reads the tables for unwinding.
        vec![script],
        // One copy of functions that are the same, which generic ones often are for several types. Nothing here
        // compares the addresses of functions.
        vec!["-Wl,--icf=all".to_owned()],
        // A relocation becomes a bit instead of 24 bytes (glibc 2.36, musl 1.2.4).
        vec!["-Wl,-z,pack-relative-relocs".to_owned()],
    ];
    let mut options = Vec::new();
    for wish in wishes {
        let with = [options.as_slice(), &wish].concat();
        if works(&with) {
            options = with;
        }
    }
    for option in options {
        println!("cargo::rustc-link-arg-bins={option}");
    }
}

/// The options by which a C compiler links with Rust's linker; none: Rust has not brought it.
fn lld() -> Vec<String> {
    let mut compiler = Command::new(variable("RUSTC"));
    let said = compiler.args(["--print", "sysroot"]).output();
    let root = said
        .ok()
        .and_then(|said| String::from_utf8(said.stdout).ok());
    let place = format!("lib/rustlib/{}/bin/gcc-ld", variable("HOST"));
    let directory = PathBuf::from(root.unwrap_or_default().trim()).join(place);
    match directory.join("ld.lld").exists() {
        true => vec![
            "-fuse-ld=lld".to_owned(),
            format!("-B{}", directory.display()),
        ],
        false => Vec::new(),
    }
}

/// Whether a program that is linked with these options runs, or, of another machine, whether it is linked at all.
fn works(options: &[String]) -> bool {
    let directory = PathBuf::from(variable("OUT_DIR"));
    let (source, program) = (directory.join("probe.rs"), directory.join("probe"));
    let target = variable("TARGET");
    let mut compiler = Command::new(variable("RUSTC"));
    compiler.args(["--target", &target, "--edition=2024", "-Cpanic=abort"]);
    compiler.arg(&source).arg("-o").arg(&program);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        compiler.arg(format!("-Clinker={linker}"));
    }
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    compiler.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    compiler.args(options.iter().map(|option| format!("-Clink-arg={option}")));
    let written = std::fs::write(
        &source,
        "fn main() { println!(\"{:?}\", std::env::args()) }",
    );
    let linked = written.is_ok() && succeeds(&mut compiler);
    linked && (variable("HOST") != target || succeeds(&mut Command::new(Path::new(&program))))
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}
