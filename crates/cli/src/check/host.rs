//! Can a mesh run on this host?

use super::Findings;
use crate::paths::Paths;
use crate::programs::Program;
use crate::supervise::state::RunState;
use rustix::process::{Resource, getrlimit};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tulle_redirect::available;

/// Certificates and tokens are judged by the clock; one from before this program was written is
/// surely wrong.
const EARLIEST: Duration = Duration::from_secs(1_767_225_600); // 2026-01-01
/// Connections of a busy sidecar: one descriptor each side.
const FILES: u64 = 4096;
const CONTROLLER_PORT: u16 = 15010;

pub(super) fn check(paths: &Paths, findings: &mut Findings) {
    kernel(findings);
    interception(findings);
    proxy(findings);
    state(paths, findings);
    files(findings);
    clock(findings);
    port(paths, findings);
}

fn kernel(findings: &mut Findings) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (5, 4) {
        findings.error(
            "kernel",
            format!("Linux {release} is older than 5.4, the oldest that Tulle is made for"),
            "run a newer kernel",
        );
        return;
    }
    if !Path::new("/proc/self/ns/net").exists() {
        findings.error(
            "kernel",
            format!("Linux {release} without network namespaces, or /proc is not mounted"),
            "mount /proc, or run a kernel with CONFIG_NET_NS",
        );
        return;
    }
    findings.ok("kernel", format!("Linux {release}"));
}

fn interception(findings: &mut Findings) {
    let here = available();
    if here.is_complete() {
        findings.ok(
            "interception",
            format!(
                "root, ip and {} are here: namespaces with transparent redirection",
                if here.nft {
                    "nft"
                } else {
                    "iptables (nft does not work)"
                }
            ),
        );
    } else {
        findings.warning(
            "interception",
            format!(
                "only loopback mode, with declared upstreams, is possible: {}",
                here.why_not.join("; ")
            ),
            "fix the named cause, or declare `upstreams` in each Workload",
        );
    }
}

fn proxy(findings: &mut Findings) {
    match Program::PROXY.find() {
        Ok(path) => findings.ok("proxy", path.display().to_string()),
        Err(failure) => findings.error(
            "proxy",
            failure.to_string(),
            "keep tulle-proxy beside tulle, or name it by TULLE_PROXY",
        ),
    }
}

fn state(paths: &Paths, findings: &mut Findings) {
    for (what, directory) in [
        ("state directory", &paths.state),
        ("run directory", &paths.run),
    ] {
        // It need not exist yet: then its nearest ancestor that does must let us make it.
        let present = directory.ancestors().find(|d| d.exists());
        let writable = present.is_some_and(|d| {
            d.is_dir() && rustix::fs::access(d, rustix::fs::Access::WRITE_OK).is_ok()
        });
        let shown = directory.display().to_string();
        if writable {
            findings.ok(what, shown);
        } else {
            findings.error(
                what,
                format!("{shown} cannot be written"),
                "choose another with --state, or run this as its owner",
            );
        }
    }
}

fn files(findings: &mut Findings) {
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    if hard < FILES {
        findings.warning(
            "open files",
            format!("a process may open only {hard} files; a busy sidecar needs more"),
            "raise the limit (`ulimit -Hn`)",
        );
    } else {
        findings.ok("open files", format!("a process may open {hard}"));
    }
}

fn clock(findings: &mut Findings) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    if now.is_ok_and(|now| now >= EARLIEST) {
        findings.ok("clock", "plausible");
    } else {
        findings.error(
            "clock",
            "it is set to before 2026: certificates would not be valid",
            "set the clock, or run a time service",
        );
    }
}

fn port(paths: &Paths, findings: &mut Findings) {
    let up = RunState::read(paths).ok().flatten();
    if up.is_some_and(|s| s.supervisor.is_alive()) {
        return;
    }
    match TcpListener::bind((Ipv4Addr::LOCALHOST, CONTROLLER_PORT)) {
        Ok(_) => findings.ok("controller's port", format!("{CONTROLLER_PORT} is free")),
        Err(e) => findings.warning(
            "controller's port",
            format!("{CONTROLLER_PORT} on 127.0.0.1 cannot be used: {e}"),
            "another is chosen by itself; give --listen if other hosts are to join",
        ),
    }
}
