//! Memory and CPU of a controller with a console, when many proxies report and many browsers look.
//!
//! The controller is a process of its own, so that nothing is counted but what is its own.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "client/mod.rs"]
mod client;
#[path = "../../control/tests/common/mod.rs"]
mod common;

use client::Browser;
use common::{dial, local, sign};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tulle_api::v1;
use tulle_api::v1::certificates_client::CertificatesClient;
use tulle_api::v1::telemetry_client::TelemetryClient;
use tulle_console::{ConsoleClock, ConsoleConfig, RunningConsole};
use tulle_control::jwks::LEAST_REFRESH;
use tulle_control::{Controller, ControllerConfig, HOST_AWAY, StoreKind};

/// Names the directory of the controller that this process is.
const CONTROLLER: &str = "TULLE_TEST_CONTROLLER";
/// How long the mesh is looked at; the console's history has 900 s.
const SECONDS: &str = "TULLE_LARGE_MESH_SECONDS";
/// Between two reports of a proxy, as it has it.
const REPORTS: Duration = Duration::from_secs(5);

/// Not a test, but the controller that the tests below start. It writes where it is, and a code for each line that it
/// reads; it ends with its input.
#[tokio::test]
#[ignore = "another test starts it, as a process"]
async fn a_controller_of_its_own_process() {
    let Ok(directory) = std::env::var(CONTROLLER) else {
        return;
    };
    // As `tulle` does.
    tokio::spawn(async {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            tulle_net::memory::release_unused();
        }
    });
    let directory = PathBuf::from(directory);
    let running = Controller::start(ControllerConfig {
        state_dir: directory.join("state"),
        listen: "127.0.0.1:0".parse().unwrap(),
        socket: directory.join("run/control.sock"),
        store: StoreKind::Embedded,
        metrics: None,
        host_away: HOST_AWAY,
        least_key_refresh: LEAST_REFRESH,
        observe: true,
    })
    .await
    .unwrap();
    let config = ConsoleConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        forwarded: false,
        actions: false,
        visitors: None,
        clock: ConsoleClock::default(),
    };
    let observer = running.observer().unwrap();
    let console = RunningConsole::start(config, observer).await.unwrap();
    let (listen, fingerprint) = (running.local_addr(), running.ca_fingerprint());
    println!("\nHERE {listen} {fingerprint} {}", console.address());
    let codes = console.codes();
    let asked = move || {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            println!("CODE {}", codes.url("tester").unwrap());
        }
    };
    tokio::task::spawn_blocking(asked).await.unwrap();
}

/// The controller's process.
struct Large {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    listen: SocketAddr,
    fingerprint: String,
    console: SocketAddr,
    directory: tempfile::TempDir,
}

impl Drop for Large {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Large {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_controller_of_its_own_process"])
            .args(["--include-ignored", "--nocapture"])
            .env(CONTROLLER, directory.path())
            // As `tulle` has it (`tulle_net::memory::use_one_arena`); here there are threads before.
            .env("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let here = line_with(&mut output, "HERE ");
        let mut words = here.split(' ');
        let mut word = || words.next().unwrap().to_owned();
        Self {
            listen: word().parse().unwrap(),
            fingerprint: word(),
            console: word().parse().unwrap(),
            child,
            input,
            output,
            directory,
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("run/control.sock")
    }

    /// The cookie of a new session.
    async fn session(&mut self, browser: &Browser) -> String {
        self.input.write_all(b"\n").unwrap();
        let url = line_with(&mut self.output, "CODE ");
        let code = url.split_once("#code=").unwrap().1;
        let reply = browser.open(code).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.cookie()
    }

    fn resident_mib(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("VmRSS:"))
            .unwrap();
        let kib: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib / 1024.0
    }

    /// CPU that all its threads have taken.
    fn cpu(&self) -> Duration {
        let tasks = Path::new("/proc")
            .join(self.child.id().to_string())
            .join("task");
        let each = fs::read_dir(tasks).unwrap().filter_map(Result::ok);
        let nanos = each.filter_map(|task| {
            let stat = fs::read_to_string(task.path().join("schedstat")).ok()?;
            stat.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanos.sum())
    }
}

fn line_with(output: &mut impl BufRead, word: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "no {word}");
        if let Some(rest) = line.strip_prefix(word) {
            return rest.trim().to_owned();
        }
    }
}

/// A proxy that reports three edges each five seconds until it is dropped.
struct Reporting {
    _reporter: tokio::task::JoinHandle<()>,
    _heard: Streaming<v1::ToProxy>,
}

/// Makes a proxy of the mesh: its identity, a connection of its own, and reports about three neighbours.
async fn reporting(large: &Large, token: String, number: usize, of: usize) -> Reporting {
    let anyone = dial(large.listen, &large.fingerprint, None).await.unwrap();
    let proof = v1::SignRequest {
        join_token: token,
        ..Default::default()
    };
    let name = format!("svc/s{number}");
    let identity = sign(CertificatesClient::new(anyone), &name, proof)
        .await
        .unwrap();
    let channel = dial(large.listen, &large.fingerprint, Some(&identity))
        .await
        .unwrap();
    let (sender, outgoing) = mpsc::channel(4);
    let first = v1::FromProxy {
        reporter: Some(v1::Reporter {
            instance: format!("s{number}"),
            version: "0.1.0".into(),
            kind: "sidecar".into(),
            host: "here".into(),
            started_at_unix_seconds: 1,
            beat_seconds: 0,
        }),
        ..Default::default()
    };
    sender.send(first).await.unwrap();
    let mut client = TelemetryClient::new(channel);
    let heard = client.report(ReceiverStream::new(outgoing)).await.unwrap();
    let reporter = tokio::spawn(async move {
        // Not all at once, as real ones.
        tokio::time::sleep(REPORTS.mul_f64(number as f64 / of as f64)).await;
        let mut round = 0;
        while sender.send(report(number, of, round)).await.is_ok() {
            round += 1;
            tokio::time::sleep(REPORTS).await;
        }
    });
    Reporting {
        _reporter: reporter,
        _heard: heard.into_inner(),
    }
}

/// Counts of a proxy: calls to three services, of which some failed.
fn report(number: usize, of: usize, round: u64) -> v1::FromProxy {
    let edge = |step: usize| v1::EdgeCounts {
        at_source: true,
        source: format!("spiffe://tulle.local/svc/s{number}"),
        destination_service: format!("s{}", (number + step) % of),
        destination: format!("spiffe://tulle.local/svc/s{}", (number + step) % of),
        mutual_tls: true,
        outcomes: vec![
            v1::OutcomeCount {
                status_class: 2,
                count: 500 + round % 7,
                ..Default::default()
            },
            v1::OutcomeCount {
                status_class: 5,
                reason: "connect_failed".into(),
                count: round % 3,
                ..Default::default()
            },
        ],
        durations: vec![2, 400, 3, 90, 4, 10 + u32::try_from(round % 9).unwrap()],
        sent_bytes: 100_000,
        received_bytes: 20_000 + round,
        ..Default::default()
    };
    v1::FromProxy {
        interval: Some(v1::Interval {
            milliseconds: 5_000,
            edges: (1..=3).map(edge).collect(),
            cpu_milliseconds: 12,
            resident_bytes: 4 << 20,
            connections: 7,
            log_level: "info".into(),
            left_out: Vec::new(),
        }),
        ..Default::default()
    }
}

/// So many proxies that report.
async fn proxies(large: &Large, count: usize) -> Vec<Reporting> {
    let mut objects = local(&large.socket()).await;
    let mut all = Vec::with_capacity(count);
    for number in 0..count {
        let asked = v1::JoinTokenRequest {
            identity: format!("svc/s{number}"),
            ttl_seconds: 0,
        };
        let token = objects.create_join_token(asked).await.unwrap();
        all.push(reporting(large, token.into_inner().token, number, count).await);
    }
    all
}

fn seconds(usual: u64) -> Duration {
    let asked = std::env::var(SECONDS).ok().and_then(|s| s.parse().ok());
    Duration::from_secs(asked.unwrap_or(usual))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_of_a_thousand_reporting_proxies_is_within_its_memory() {
    let large = Large::start();
    let idle = large.resident_mib();
    let proxies = proxies(&large, 1000).await;
    let connected = large.resident_mib();
    tokio::time::sleep(seconds(12)).await;
    let told = large.resident_mib();
    println!(
        "controller with console, MiB resident: alone {idle:.1}; 1,000 proxies connected {connected:.1}, and told of 3,000 edges {told:.1}"
    );
    // A program that is not optimised is larger itself. docs/console.md has what a proxy takes.
    let grown = told - idle;
    assert!(grown <= 56.0, "{grown:.1} MiB for 1,000 proxies");
    drop(proxies);
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_consoles_cost_a_controller_little() {
    let mut large = Large::start();
    let proxies = proxies(&large, 100).await;
    let browser = Browser {
        address: large.console,
    };
    let window = seconds(20);
    // A report of each proxy came before.
    tokio::time::sleep(REPORTS * 2).await;
    let before = large.cpu();
    tokio::time::sleep(window).await;
    let unseen = (large.cpu() - before).as_secs_f64() / window.as_secs_f64();
    let mut streams = Vec::new();
    for _ in 0..20 {
        let session = large.session(&browser).await;
        streams.push(browser.stream(&session, "/api/v1/events").await);
    }
    let (before, begin) = (large.cpu(), Instant::now());
    // Browsers read.
    let readers: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            tokio::spawn(async move {
                let mut graphs = 0;
                while begin.elapsed() < window {
                    graphs += usize::from(stream.event().await.0 == "graph");
                }
                graphs
            })
        })
        .collect();
    for reader in readers {
        assert!(reader.await.unwrap() >= 2, "a browser hears of the mesh");
    }
    let seen = (large.cpu() - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    println!(
        "controller of 100 services: {:.2}% of a core unseen, {:.2}% with 20 consoles",
        unseen * 100.0,
        seen * 100.0
    );
    // Twice the budget of a release build: this one is not optimised.
    assert!(seen - unseen <= 0.10, "{:.1}%", (seen - unseen) * 100.0);
    drop(proxies);
}
