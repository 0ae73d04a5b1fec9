//! System calls per request, as `strace` counts them on a worker's thread.

use crate::{is_promised, usual_request, with_policy};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use tests_local::{Client, Pair, Proxy, Server, ok, skip};

const REQUESTS: usize = 1024;
/// Measured again so often when it is too much: other work on the machine can only make it more.
const TRIES: usize = 15;

/// Reads and writes: two for each of the two connections a request passes.
const TRANSFERS: f64 = 4.0;
/// One wait before each of the two messages.
const WAITS: f64 = 2.0;
/// Calls on the shared connection, and waits, are shared by many requests at once.
const SHARED_TRANSFERS: f64 = 3.0;
const SHARED_WAITS: f64 = 1.0;
/// Timers, wake-ups from other threads.
const OTHERS: f64 = 0.1;

/// `strace` on the only worker of a proxy.
struct Trace {
    strace: Child,
    output: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

impl Trace {
    /// Attaches; the error says why that is not possible here.
    fn start(proxy: &Proxy) -> Result<Self, String> {
        let directory = tempfile::tempdir().unwrap();
        let output = directory.path().join("counts");
        let mut strace = Command::new("strace")
            .args(["-c", "-p", &worker(proxy).to_string(), "-o"])
            .arg(&output)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| {
                let why = format!("strace: {e}; the Debian package is `strace`");
                assert!(!is_promised(), "{why}");
                why
            })?;
        let mut line = String::new();
        let mut errors = BufReader::new(strace.stderr.take().unwrap());
        errors.read_line(&mut line).unwrap();
        let trace = Self {
            strace,
            output,
            _directory: directory,
        };
        match line.contains("attached") {
            true => Ok(trace),
            false => Err(format!("strace cannot attach here: {}", line.trim())),
        }
    }

    /// Detaches; calls by name.
    fn finish(mut self) -> BTreeMap<String, f64> {
        let pid = rustix::process::Pid::from_child(&self.strace);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        self.strace.wait().unwrap();
        let table = std::fs::read_to_string(&self.output).unwrap();
        // % time, seconds, usecs/call, calls, errors or nothing, syscall.
        let rows = table.lines().filter_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let calls = words.get(3)?.parse().ok()?;
            Some((words.last()?.to_string(), calls))
        });
        rows.filter(|(name, _)| name != "total").collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // It has ended already, if all went well.
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}

fn worker(proxy: &Proxy) -> u32 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", proxy.pid())).unwrap();
    let mut tasks = tasks.flatten();
    let worker = tasks.find(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|c| c.trim() == "worker-0")
    });
    worker
        .unwrap()
        .file_name()
        .to_str()
        .unwrap()
        .parse()
        .unwrap()
}

fn drive(clients: &mut [Client], count: usize) {
    let request = usual_request();
    for _ in 0..count / clients.len() {
        for client in &mut *clients {
            client.send(&request);
        }
        for client in &mut *clients {
            assert_eq!(client.response("GET").status(), 200);
        }
    }
}

#[test]
fn a_request_costs_few_system_calls() {
    let app = Server::http(|_| ok(b"five stars"));
    let pair = Pair::with(app.address(), |client, server| {
        (client, with_policy(server))
    });
    for (connections, transfers, waits) in
        [(1, TRANSFERS, WAITS), (64, SHARED_TRANSFERS, SHARED_WAITS)]
    {
        let mut clients: Vec<_> = (0..connections).map(|_| pair.connect()).collect();
        drive(&mut clients, 64);
        for (name, proxy) in [("client's", &pair.client), ("server's", &pair.server)] {
            let mut seen = match measure(proxy, &mut clients) {
                Ok(seen) => seen,
                Err(why) => return skip(why),
            };
            let most = [transfers, waits, OTHERS];
            // A trace begins and ends in the middle of something.
            let fits = |seen: &[f64; 3]| seen.iter().zip(most).all(|(s, m)| *s <= m + 0.02);
            // On a busy machine fewer requests share a system call: measure again.
            for _ in 0..TRIES {
                if fits(&seen) {
                    break;
                }
                seen = measure(proxy, &mut clients).unwrap();
            }
            println!(
                "system calls per request, {name} sidecar, {connections} connections: \
                 {:.2} reads and writes, {:.2} waits, {:.2} others",
                seen[0], seen[1], seen[2]
            );
            assert!(
                fits(&seen),
                "{name} sidecar, {connections} connections: {seen:?} reads and writes, waits and \
                 others per request, at most {most:?} allowed"
            );
            assert!(seen[0] > 0.5, "nothing was counted");
        }
    }
}

/// Reads and writes, waits, and other calls per request.
fn measure(proxy: &Proxy, clients: &mut [Client]) -> Result<[f64; 3], String> {
    let trace = Trace::start(proxy)?;
    drive(clients, REQUESTS);
    let mut seen = [0.0; 3];
    for (name, calls) in trace.finish() {
        let transfers = ["read", "recv", "write", "send"];
        let kind = match name.as_str() {
            name if transfers.iter().any(|t| name.starts_with(t)) => 0,
            name if name.starts_with("epoll_") && name.contains("wait") => 1,
            _ => 2,
        };
        seen[kind] += calls / REQUESTS as f64;
    }
    Ok(seen)
}
