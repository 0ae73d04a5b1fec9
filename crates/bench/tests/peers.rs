//! Every peer really runs: it forwards in each mode, proves its mutual TLS, refuses who may not
//! call, and a proof fails when there is nothing to prove. Needs the programs; says how to get a
//! missing one.
#![allow(clippy::unwrap_used)]

#[path = "../../../tests/local/src/ports.rs"]
#[allow(dead_code, unreachable_pub)]
mod ports;
#[path = "../../../tests/local/src/waits.rs"]
#[allow(dead_code, unreachable_pub)]
mod waits;

use ports::free_ports;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use tulle_bench::args::Common;
use tulle_bench::peer::refusal::{self, ProbeRequest};
use tulle_bench::peer::{self, Mode, Peer, Ports, Running, Topology, http};
use tulle_bench::process::Process;
use tulle_model::resource::Protocol;
use waits::holds_within;

/// Longest wait for something that must happen; a limit against hanging.
const PATIENCE: Duration = Duration::from_secs(60);
const PROBE: ProbeRequest<'static> = ProbeRequest {
    path: "/",
    caller: Some("/caller"),
};
const MODES: [Mode; 4] = [
    Mode::Baseline,
    Mode::ClientSidecar,
    Mode::ServerSidecar,
    Mode::Both,
];

fn options() -> Common {
    Common {
        quick: false,
        repeats: None,
        warmup: None,
        seconds: None,
        out: None,
        envoy: None,
        pipy_binary: None,
    }
}

fn one(name: &str) -> Box<dyn Peer> {
    let mut peers = peer::parse(name, &options()).unwrap();
    peers.remove(peers.iter().position(|p| p.name() == name).unwrap())
}

/// Tests run at once; each has ports of its own.
fn ports() -> Ports {
    Ports::from(free_ports(7))
}

/// Waits until somebody listens on a port.
fn await_listening(name: &str, port: u16) {
    let listens = holds_within(PATIENCE, "the server's sidecar listens", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    assert!(listens, "{name} does not listen");
}

/// The application: 200 for everything; `/caller` says what it was told of the caller.
fn serve(address: SocketAddr) {
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
}

fn answer(mut stream: TcpStream) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    loop {
        let first = lines.next()?.ok()?;
        let (mut caller, mut set, mut close) = (String::new(), String::new(), false);
        loop {
            let line = lines.next()?.ok()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "x-forwarded-client-cert" => caller = value.trim().to_owned(),
                "x-set" => set = value.trim().to_owned(),
                "connection" => close = value.trim() == "close",
                _ => {}
            }
        }
        let body = if first.contains("/caller") {
            caller
        } else if first.contains("/set") {
            set
        } else {
            "ok".into()
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", body.len());
        let end = if close { "Connection: close\r\n" } else { "" };
        write!(stream, "{head}{end}\r\n{body}").ok()?;
        if close {
            return None;
        }
    }
}

struct Setup {
    path: &'static str,
    peer: Box<dyn Peer>,
    topology: Topology,
    _dir: tempfile::TempDir,
    _running: Running,
    asked: u64,
}

impl Setup {
    fn new(name: &str, mode: Mode) -> Self {
        Self::asking("/", one(name), mode)
    }

    fn asking(path: &'static str, peer: Box<dyn Peer>, mode: Mode) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let topology = Topology::new(dir.path(), mode, Protocol::Http, ports()).unwrap();
        Self::with(path, peer, topology, dir)
    }

    fn with(
        path: &'static str,
        peer: Box<dyn Peer>,
        topology: Topology,
        dir: tempfile::TempDir,
    ) -> Self {
        serve(([127, 0, 0, 1], topology.ports.app).into());
        let entry = topology.entry().port();
        let running = Running::start(peer.as_ref(), &topology, &[], || {
            http::get(entry, path).map(drop)
        });
        Self {
            path,
            peer,
            topology,
            _dir: dir,
            _running: running.unwrap(),
            asked: 1,
        }
    }

    fn ask(&mut self, count: u64) {
        let answered = String::from_utf8(tulle_bench::payload::text(200)).unwrap();
        let expected = match self.peer.name() {
            "tulle+plugin-body" => "Xk",
            "tulle+plugin-answers" => &answered,
            _ => "ok",
        };
        for _ in 0..count {
            let body = http::get(self.topology.entry().port(), self.path).unwrap();
            assert_eq!(body, expected);
        }
        self.asked += count;
    }

    fn prove(&self) -> Result<Vec<String>, String> {
        self.peer.prove(&self.topology, self.asked)
    }

    /// Returns the proof, once the last request is counted.
    fn proven(&self) -> Vec<String> {
        proven(self.peer.as_ref(), &self.topology, self.asked)
    }
}

/// Some count a request only after its last byte has gone.
fn proven(peer: &dyn Peer, topology: &Topology, asked: u64) -> Vec<String> {
    let mut found = peer.prove(topology, asked);
    holds_within(Duration::from_secs(20), "requests are counted", || {
        if found.is_err() {
            found = peer.prove(topology, asked);
        }
        found.is_ok()
    });
    found.unwrap_or_else(|why| panic!("{why}"))
}

fn every_mode(name: &str) {
    for mode in MODES {
        let mut setup = Setup::new(name, mode);
        setup.ask(3);
        let evidence = setup.proven().join("; ");
        println!("{name} {}: {evidence}", mode.name());
        if mode == Mode::Both {
            // As often as it is asked, also with requests in between.
            setup.ask(2);
            setup.proven();
            // A relay counts connections: which of them carried how much, it cannot tell.
            let more = setup.peer.prove(&setup.topology, setup.asked + 1);
            assert_eq!(more.is_err(), name != "haproxy-tcp");
            let refused = refusal::prove(setup.peer.as_ref(), &setup.topology, &PROBE).unwrap();
            println!("{name}: {}", refused.join("; "));
            assert_eq!(
                refused.len(),
                if setup.peer.told_caller().is_some() {
                    4
                } else {
                    3
                }
            );
        } else {
            assert!(evidence.contains(mode.name()), "{evidence}");
            let more = setup.peer.prove(&setup.topology, setup.asked + 1);
            let tells = name != "haproxy-tcp" && mode != Mode::Baseline;
            assert_eq!(more.is_err(), tells);
        }
    }
}

/// A row of `--vs features` counts only if its identities are proven.
#[test]
fn each_feature_lets_the_proof_through() {
    let features = peer::parse("features", &options()).unwrap();
    assert!(features.len() > 10);
    for peer in features {
        let name = peer.name();
        let mut setup = Setup::asking("/bytes/1", peer, Mode::Both);
        setup.ask(2);
        setup.proven();
        let probe = ProbeRequest {
            path: "/bytes/1",
            caller: Some("/caller"),
        };
        let refused = refusal::prove(setup.peer.as_ref(), &setup.topology, &probe);
        refused.unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

#[test]
fn tulle_in_every_mode() {
    every_mode("tulle");
}

#[test]
fn envoy_in_every_mode() {
    every_mode("envoy");
}

#[test]
fn envoy_with_http2_in_every_mode() {
    every_mode("envoy-wasmless-h2");
}

#[test]
fn nginx_in_every_mode() {
    every_mode("nginx");
}

#[test]
fn haproxy_in_every_mode() {
    every_mode("haproxy");
}

#[test]
fn haproxy_as_a_relay_in_every_mode() {
    every_mode("haproxy-tcp");
}

/// The whole answer through both sidecars of a peer.
fn fetched(name: &str, path: &str) -> String {
    let setup = Setup::asking("/", one(name), Mode::Both);
    let mut stream = TcpStream::connect(("127.0.0.1", setup.topology.ports.client)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn scripts_of_all_peers_do_the_same() {
    for name in [
        "tulle+plugin",
        "envoy+lua",
        "envoy+wasm",
        "haproxy+lua",
        "nginx+njs",
    ] {
        if name == "nginx+njs" && tulle_bench::tools::njs().is_err() {
            println!("note: nginx+njs is left out: apt-get install libnginx-mod-http-js");
            continue;
        }
        let answer = fetched(name, "/set").to_lowercase();
        assert!(answer.starts_with("http/1.1 200"), "{name}: {answer}");
        assert!(answer.ends_with("\r\n\r\nbench"), "{name}: {answer}");
        assert!(answer.contains("x-set: 5\r\n"), "{name}: {answer}");
    }
    for name in ["tulle+plugin-body", "envoy+lua-body"] {
        let answer = fetched(name, "/bytes/2");
        assert!(answer.ends_with("\r\n\r\nXk"), "{name}: {answer}");
    }
}

/// A change of a configuration.
type Change = fn(&str) -> String;

/// A peer whose configurations were changed in one place.
struct Changed {
    peer: Box<dyn Peer>,
    change: Change,
}

impl Peer for Changed {
    fn name(&self) -> &'static str {
        self.peer.name()
    }

    fn version(&self) -> tulle_bench::Result<String> {
        self.peer.version()
    }

    fn notes(&self) -> Vec<String> {
        self.peer.notes()
    }

    fn told_caller(&self) -> Option<String> {
        self.peer.told_caller()
    }

    fn sidecars(&self, topology: &Topology) -> tulle_bench::Result<Vec<peer::Sidecar>> {
        let sidecars = self.peer.sidecars(topology)?;
        let mut changes = 0;
        for (name, text) in sidecars.iter().flat_map(|s| &s.files) {
            let changed = (self.change)(text);
            changes += usize::from(changed != *text);
            std::fs::write(topology.path(name), changed).unwrap();
        }
        assert_ne!(changes, 0, "nothing was changed");
        Ok(sidecars)
    }

    fn prove(&self, topology: &Topology, answered: u64) -> Result<Vec<String>, String> {
        self.peer.prove(topology, answered)
    }
}

fn changed(name: &str, change: Change) -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let topology = Topology::new(dir.path(), Mode::Both, Protocol::Http, ports()).unwrap();
    let peer = one(name);
    Setup::with("/", Box::new(Changed { peer, change }), topology, dir)
}

/// Where the client's sidecar is told that the application is the next hop.
fn past_the_server(dir: &Path, name: &str) -> Setup {
    let topology = Topology::new(dir, Mode::Both, Protocol::Http, ports()).unwrap();
    let straight = Topology {
        mode: Mode::ClientSidecar,
        ..topology.clone()
    };
    // The server's sidecar runs, but the client's knows no mutual TLS and goes to the application.
    struct Straight(Box<dyn Peer>, Topology);
    impl Peer for Straight {
        fn name(&self) -> &'static str {
            self.0.name()
        }
        fn version(&self) -> tulle_bench::Result<String> {
            self.0.version()
        }
        fn notes(&self) -> Vec<String> {
            self.0.notes()
        }
        fn sidecars(&self, topology: &Topology) -> tulle_bench::Result<Vec<peer::Sidecar>> {
            let mut sidecars = self.0.sidecars(topology)?;
            sidecars.retain(|sidecar| sidecar.role == "server");
            sidecars.extend(self.0.sidecars(&self.1)?);
            Ok(sidecars)
        }
        fn prove(&self, topology: &Topology, answered: u64) -> Result<Vec<String>, String> {
            self.0.prove(topology, answered)
        }
    }
    let peer = Box::new(Straight(one(name), straight));
    Setup::with("/", peer, topology, tempfile::tempdir().unwrap())
}

#[test]
fn bytes_are_relayed_in_every_mode() {
    for name in ["tulle", "envoy", "haproxy", "haproxy-tcp"] {
        for mode in MODES {
            let dir = tempfile::tempdir().unwrap();
            let topology = Topology::new(dir.path(), mode, Protocol::Tcp, ports()).unwrap();
            serve_bytes(topology.ports.app);
            let peer = one(name);
            let entry = topology.entry();
            let _running =
                Running::start(peer.as_ref(), &topology, &[], || echo(entry, b"begin")).unwrap();
            echo(entry, b"more").unwrap();
            let evidence = proven(peer.as_ref(), &topology, 2).join("; ");
            println!("{name} {}: {evidence}", mode.name());
            let refused = refusal::prove(peer.as_ref(), &topology, &PROBE).unwrap();
            println!("{name}: {}", refused.join("; "));
            assert_eq!(refused.len(), if mode == Mode::Both { 3 } else { 1 });
        }
    }
}

/// Sends back what it gets.
fn serve_bytes(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = stream.try_clone().unwrap();
                std::io::copy(&mut reader, &mut stream)
            });
        }
    });
}

fn echo(address: SocketAddr, bytes: &[u8]) -> Result<(), String> {
    let mut stream = TcpStream::connect(address).map_err(|e| e.to_string())?;
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.write_all(bytes).map_err(|e| e.to_string())?;
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).map_err(|e| e.to_string())?;
    assert_eq!(back, bytes);
    Ok(())
}

#[test]
fn what_a_peer_cannot_do_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let topology = Topology::new(dir.path(), Mode::Both, Protocol::Tcp, ports()).unwrap();
    let failure = one("nginx").sidecars(&topology).map(drop).unwrap_err();
    assert_eq!(failure.kind, tulle_bench::FailureKind::Usage);
    assert!(failure.to_string().contains("haproxy-tcp"), "{failure}");
}

#[test]
fn traffic_that_passes_the_server_by_is_not_proven() {
    for name in ["tulle", "envoy", "nginx", "haproxy", "haproxy-tcp"] {
        let dir = tempfile::tempdir().unwrap();
        let mut setup = past_the_server(dir.path(), name);
        // Requests bypass the server's sidecar and so do not wait until it listens.
        await_listening(name, setup.topology.ports.server);
        setup.ask(3);
        let failure = setup.prove().unwrap_err();
        println!("{failure}");
        assert!(failure.contains("4 requests were answered"), "{failure}");
    }
}

#[test]
fn a_server_that_takes_anybody_is_seen() {
    let cases: [(&str, Change); 4] = [
        ("nginx", |text| text.replace("return 403;", "")),
        ("haproxy", |text| {
            text.replace("{ ssl_c_s_dn(cn) -m str client }", "")
        }),
        ("envoy", |text| {
            text.replace(
                "\"exact\": \"spiffe://tulle.local/svc/client",
                "\"prefix\": \"spiffe://tulle.local/",
            )
        }),
        ("tulle", |text| {
            text.replace("  policy:\n", "  policy:\n    permissive: true\n")
        }),
    ];
    for (name, change) in cases {
        let setup = changed(name, change);
        let failure = refusal::prove(setup.peer.as_ref(), &setup.topology, &PROBE).unwrap_err();
        assert!(failure.contains("stranger reached the server"), "{failure}");
    }
}

/// The server's sidecar has a certificate of the mesh, but not the server's.
#[test]
fn a_server_with_the_wrong_identity_gets_no_request() {
    for name in ["tulle", "envoy", "envoy-wasmless-h2", "nginx", "haproxy"] {
        let dir = tempfile::tempdir().unwrap();
        let topology = Topology::new(dir.path(), Mode::Both, Protocol::Http, ports()).unwrap();
        serve(([127, 0, 0, 1], topology.ports.app).into());
        let change: Change = |text| {
            let other = text.replace("echo.crt", "stranger.crt");
            let other = other.replace("echo.key", "stranger.key");
            // Tulle does not start with somebody else's certificate.
            other.replace(
                "identity: spiffe://tulle.local/svc/echo",
                "identity: spiffe://tulle.local/svc/stranger",
            )
        };
        let peer = one(name);
        let sidecars = Changed { peer, change }.sidecars(&topology).unwrap();
        let _running: Vec<Process> = sidecars
            .into_iter()
            .map(|sidecar| {
                let log = topology.path(&format!("{}.log", sidecar.role));
                Process::start(sidecar.role, sidecar.command, &[], &log).unwrap()
            })
            .collect();
        // An answer of the client's sidecar itself, after the server's was there to be asked.
        await_listening(name, topology.ports.server);
        let mut status = 0;
        let answers = holds_within(PATIENCE, "the client's sidecar answers", || {
            let answer = http::get_with(topology.entry().port(), "/", &[]);
            answer.is_ok_and(|(code, _)| {
                status = code;
                true
            })
        });
        assert!(answers, "{name} does not answer");
        assert!([502, 503].contains(&status), "{name}: {status}");
    }
}

#[test]
fn a_claimed_identity_that_is_believed_is_seen() {
    let cases: [(&str, Change); 2] = [
        ("nginx", |text| {
            text.replace("proxy_set_header X-Forwarded-Client-Cert", "#")
        }),
        ("haproxy", |text| {
            text.replace("http-request set-header X-Forwarded-Client-Cert", "#")
        }),
    ];
    for (name, change) in cases {
        let setup = changed(name, change);
        let failure = refusal::prove(setup.peer.as_ref(), &setup.topology, &PROBE).unwrap_err();
        assert!(failure.contains("is not told"), "{failure}");
    }
}

#[test]
fn names_that_do_not_exist_are_answered_with_those_that_do() {
    let failure = peer::parse("none,linkerd", &options())
        .map(drop)
        .unwrap_err();
    assert_eq!(failure.kind, tulle_bench::FailureKind::Usage);
    let text = failure.to_string();
    assert!(text.starts_with("--vs linkerd: "), "{text}");
    for (name, how) in peer::NAMES {
        assert!(text.contains(name) && text.contains(how), "{text}");
    }
    let peers = peer::parse("none, tulle,,none", &options()).unwrap();
    let names: Vec<_> = peers.iter().map(|p| p.name()).collect();
    assert_eq!(names, ["tulle", "none"]);
}
